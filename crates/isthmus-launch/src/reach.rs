//! What the provider in the ranks tells this process: which endpoints they have opened, and which they cannot reach.
//!
//! A datagram has a letter, the rank in the world, and the address of an endpoint, with spaces in between: `E` for an
//! endpoint of that rank, `U` for an endpoint that it has given up. `isthmus-ofi/src/reach.rs` writes them.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::thread;

use isthmus_substrate::log::no_thread;

use crate::run::Input;

/// Environment variable of the ranks with the path of the socket.
pub(crate) const VARIABLE: &str = "ISTHMUS_RUN_REACH";
/// Longest datagram. Bytes. An address has fewer than 200.
const DATAGRAM_MAX: usize = 512;

/// A rank of the world, and what it tells of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is the rank's own.
    Opened { rank: u32, endpoint: String },
    /// The rank has given it up: it was out of reach for `peer_timeout`.
    Lost { rank: u32, endpoint: String },
}

/// Passes the datagrams at a new socket to the main thread.
pub(crate) fn listen(path: &Path, inputs: &SyncSender<Input>) -> io::Result<()> {
    let (socket, inputs) = (UnixDatagram::bind(path)?, inputs.clone());
    let reader = thread::Builder::new().name("isthmus-reach".to_owned()).spawn(move || {
        let mut bytes = [0; DATAGRAM_MAX];
        while let Ok(len) = socket.recv(&mut bytes) {
            let Some(reach) = parse(&bytes[..len]) else { continue };
            if inputs.send(Input::Reach(reach)).is_err() {
                return;
            }
        }
    });
    reader.map(drop).map_err(no_thread)
}

fn parse(bytes: &[u8]) -> Option<Reach> {
    let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
    let (letter, rank, endpoint) = (words.next()?, words.next()?.parse().ok()?, words.next()?.to_owned());
    match letter {
        "E" => Some(Reach::Opened { rank, endpoint }),
        "U" => Some(Reach::Lost { rank, endpoint }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_tells_is_understood() {
        let endpoint = "isthmus://0.0/10.0.0.1:5000#0badcafe".to_owned();
        let told = |letter| parse(format!("{letter} 7 {endpoint}").as_bytes());
        assert_eq!(told('E'), Some(Reach::Opened { rank: 7, endpoint: endpoint.clone() }));
        assert_eq!(told('U'), Some(Reach::Lost { rank: 7, endpoint: endpoint.clone() }));
        assert!(told('X').is_none() && parse(b"U x").is_none() && parse(b"\xff").is_none());
    }
}
