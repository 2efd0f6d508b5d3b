//! Tells `isthmus run` which endpoint this rank has opened, and which ones it cannot reach.
//!
//! With `lost_peer = silent` no operation tells the program that its peer was given up. If the peer's process lives, only
//! this rank knows. `isthmus run` decides which of the two ranks is lost, and tells the MPI. `isthmus-launch/src/reach.rs`
//! reads these datagrams and describes them.

use std::env;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use isthmus_io::Endpoint;
use isthmus_proto::OpError;

use crate::log::{self, Level};

/// How long `isthmus run` may leave a datagram unread.
const UNREAD: Duration = Duration::from_secs(5);

/// The way from this rank to its `isthmus run`.
#[derive(Debug)]
pub(crate) struct Reach {
    socket: UnixDatagram,
    to: PathBuf,
    rank: String,
}

impl Reach {
    /// Tells of a new endpoint. `None` if no `isthmus run` wants to know.
    pub(crate) fn open(endpoint: &Endpoint) -> Option<Self> {
        let (to, rank) = (env::var_os("ISTHMUS_RUN_REACH")?.into(), env::var("ISTHMUS_RUN_RANK").ok()?);
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_write_timeout(Some(UNREAD)).ok()?;
        let reach = Self { socket, to, rank };
        endpoint.watch_peers();
        reach.tell('E', &endpoint.address().to_string());
        Some(reach)
    }

    /// Tells of the peers that the endpoint has given up. One that has closed or ended is no matter of reach.
    pub(crate) fn tell_lost(&self, endpoint: &Endpoint) {
        while let Some((peer, error)) = endpoint.poll_lost() {
            if let OpError::Unreachable(_) = error {
                self.tell('U', &endpoint.peer_address(peer).to_string());
            }
        }
    }

    fn tell(&self, letter: char, endpoint: &str) {
        let told = self.socket.send_to(format!("{letter} {} {endpoint}", self.rank).as_bytes(), &self.to);
        if let Err(error) = told {
            log::write(Level::Warn, format_args!("isthmus run is not told of {endpoint}: {error}"));
        }
    }
}
