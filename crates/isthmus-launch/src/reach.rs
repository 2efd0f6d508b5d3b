//! What the provider in the ranks tells this process: which endpoints they have opened, and which they cannot reach.
//!
//! A datagram has a letter, the rank in the world, and the address of an endpoint, with spaces in between: `E` for an
//! endpoint of that rank, `U` for an endpoint that it has given up. After another space, `U` says why.
//! `isthmus-ofi/src/reach.rs` writes them.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::thread;

use isthmus_substrate::log::no_thread;

use crate::run::Input;

/// Environment variable of the ranks with the path of the socket.
pub(crate) const VARIABLE: &str = "ISTHMUS_RUN_REACH";
/// Longest datagram. Bytes. An address has fewer than 200; a longer reason is cut.
const DATAGRAM_MAX: usize = 600;

/// A rank of the world, and what it tells of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is the rank's own.
    Opened { rank: u32, endpoint: String },
    /// The rank has given it up, for this reason.
    Unreachable { rank: u32, endpoint: String, why: String },
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
    // A cut may have split the last character.
    let text = String::from_utf8_lossy(bytes);
    let mut words = text.splitn(4, ' ');
    let (letter, rank, endpoint) = (words.next()?, words.next()?.parse().ok()?, words.next()?.to_owned());
    match (letter, words.next()) {
        ("E", None) => Some(Reach::Opened { rank, endpoint }),
        ("U", Some(why)) => Some(Reach::Unreachable { rank, endpoint, why: why.to_owned() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_of_ranks_are_parsed() {
        let endpoint = "isthmus://0.0/10.0.0.1:5000#0badcafe".to_owned();
        let told = |text: &str| parse(text.as_bytes());
        let opened = Reach::Opened { rank: 7, endpoint: endpoint.clone() };
        assert_eq!(told(&format!("E 7 {endpoint}")), Some(opened));
        let unreachable =
            Reach::Unreachable { rank: 7, endpoint: endpoint.clone(), why: "no route".to_owned() };
        assert_eq!(told(&format!("U 7 {endpoint} no route")), Some(unreachable));
        for wrong in [&format!("X 7 {endpoint}"), &format!("U 7 {endpoint}"), "U x", "\u{fffd}"] {
            assert!(told(wrong).is_none(), "{wrong}");
        }
        assert!(parse(b"\xff").is_none());
    }
}
