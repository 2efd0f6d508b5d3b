//! Tells `isthmus run` which endpoint this rank has opened, and which ones it cannot reach.
//!
//! With `lost_peer = silent` no operation tells the program that its peer was given up. If the peer's process lives, only
//! this rank knows. `isthmus run` decides which of the two ranks is lost, and tells the MPI. `isthmus-launch/src/reach.rs`
//! reads these datagrams and describes them.

use std::collections::VecDeque;
use std::env;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use isthmus_io::Endpoint;
use isthmus_proto::OpError;
use parking_lot::Mutex;

use crate::log::{self, Level};

/// How long a new endpoint waits for `isthmus run` to read datagrams, if its socket is full. After that the endpoint is
/// not told, and reports about it have no effect.
const UNREAD: Duration = Duration::from_secs(5);

/// A socket to the `isthmus run` of this rank.
#[derive(Debug)]
pub(crate) struct Reach {
    socket: UnixDatagram,
    to: PathBuf,
    rank: String,
    /// Datagrams that the socket had no room for.
    unsent: Mutex<VecDeque<String>>,
}

impl Reach {
    /// Tells of a new endpoint. `None` if no `isthmus run` wants to know.
    pub(crate) fn open(endpoint: &Endpoint) -> Option<Self> {
        let (to, rank) = (env::var_os("ISTHMUS_RUN_REACH")?.into(), env::var("ISTHMUS_RUN_RANK").ok()?);
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_write_timeout(Some(UNREAD)).ok()?;
        let reach = Self { socket, to, rank, unsent: Mutex::default() };
        endpoint.watch_peers();
        let opened = format!("E {} {}", reach.rank, endpoint.address());
        if let Err(error) = reach.send(&opened) {
            reach.warn(&opened, &error);
        }
        // From now on, the thread that drives the engine sends.
        reach.socket.set_nonblocking(true).ok()?;
        Some(reach)
    }

    /// Tells of the peers that the endpoint has given up, and why. Peers that have closed or ended are left out: their own
    /// `isthmus run` tells of them.
    pub(crate) fn tell_lost(&self, endpoint: &Endpoint) {
        let mut unsent = self.unsent.lock();
        while let Some((peer, error)) = endpoint.poll_lost() {
            if let OpError::Unreachable(why) = error {
                unsent.push_back(format!("U {} {} {why}", self.rank, endpoint.peer_address(peer)));
            }
        }
        self.send_all(&mut unsent);
    }

    /// Sends until the socket is full. The rest goes with the next progress.
    fn send_all(&self, unsent: &mut VecDeque<String>) {
        while let Some(datagram) = unsent.front() {
            match self.send(datagram) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return;
                }
                Err(error) => self.warn(datagram, &error),
                Ok(()) => {}
            }
            unsent.pop_front();
        }
    }

    fn send(&self, datagram: &str) -> io::Result<()> {
        self.socket.send_to(datagram.as_bytes(), &self.to).map(drop)
    }

    fn warn(&self, datagram: &str, error: &io::Error) {
        log::write(Level::Warn, format_args!("isthmus run is not told \"{datagram}\": {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_the_socket_has_no_room_for_are_sent_later_and_in_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("reach");
        let run = UnixDatagram::bind(&to).expect("a socket");
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.set_nonblocking(true).expect("no waiting");
        let reach = Reach { socket, to, rank: "0".to_owned(), unsent: Mutex::default() };
        let mut unsent: VecDeque<String> = (0..100_000).map(|number| format!("U {number}")).collect();
        reach.send_all(&mut unsent);
        assert!(!unsent.is_empty(), "the socket is full");
        let mut bytes = [0; 100];
        for number in 0..100_000 {
            let len = run.recv(&mut bytes).expect("a datagram");
            assert_eq!(&bytes[..len], format!("U {number}").as_bytes());
            reach.send_all(&mut unsent);
        }
        assert!(unsent.is_empty());
    }
}
