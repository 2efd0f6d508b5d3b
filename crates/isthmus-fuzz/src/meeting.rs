//! The handshake in which two ends agree on a site fabric, before a lane's first frame.

use std::fmt::Arguments;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use isthmus_fabric::{FabricError, Fabrics, Meeting, Met, OfferedEndpoint, Taken};
use isthmus_wire::frame::{Answer, MAGIC, Offer, Settle};

/// A host with one fabric, on which every operation succeeds.
struct Willing;

impl Fabrics for Willing {
    type Pipe = u32;

    fn host(&mut self) -> u64 {
        7
    }
    fn endpoints(&mut self, _near: bool) -> Vec<OfferedEndpoint> {
        vec![OfferedEndpoint { provider: "shm".to_owned(), name: b"here".to_vec() }]
    }
    fn withdraw(&mut self, _endpoints: &[OfferedEndpoint]) {}
    fn take(&mut self, endpoints: &[OfferedEndpoint], _near: bool) -> Option<Taken<u32>> {
        let choice = endpoints.iter().position(|endpoint| endpoint.provider == "shm")?;
        Some(Taken { choice, pipe: 1, lane: 2, name: b"there".to_vec() })
    }
    fn join(&mut self, _endpoint: &OfferedEndpoint, name: &[u8]) -> Result<u32, FabricError> {
        if name.is_empty() { Err(FabricError::Full) } else { Ok(1) }
    }
    fn probe(&mut self, _pipe: u32, _theirs: u64) {}
    fn is_proved(&mut self, _pipe: u32) -> bool {
        true
    }
    fn set_key(&mut self, _pipe: u32, _key: u64) {}
    fn begin(&mut self, _pipe: u32, _connection: OwnedFd) {}
    fn remove(&mut self, _pipe: u32) {}
    fn provider(&self, _pipe: u32) -> &str {
        "shm"
    }
    fn remark(&mut self, _what: Arguments<'_>) {}
}

/// An offer with its end, an answer, and a lane without a handshake. The first byte of each says which end hears it.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let list = b"\x03shm\x04\0name";
    let offer = Offer { magic: MAGIC, version: 3, host: 7, payload: list.len() as u32 }.to_bytes();
    let settle = Settle { moved: 1 }.to_bytes();
    let answer = Answer { magic: MAGIC, choice: 0, lane: 9, payload: 5 }.to_bytes();
    let hello = [1, b'I', b'S', b'T', b'H', 3, 0];
    vec![
        [&[0], &offer[..], list, &settle].concat(),
        [&[1], &answer[..], b"there"].concat(),
        [&[0], &hello[..]].concat(),
    ]
}

/// Nothing panics, and a lane that begins without an offer loses no byte. The first byte says which end hears the rest,
/// and in what pieces.
pub(crate) fn property(input: &[u8]) {
    let Some((&how, bytes)) = input.split_first() else { return };
    let Ok((mut theirs, mut ours)) = UnixStream::pair() else { return };
    let dialled = how & 1 == 1;
    let mut meeting = if dialled { Meeting::of_dialled(true) } else { Meeting::of_accepted() };
    let mut fabrics = Willing;
    // The answers to the other end are never read: the socket has room for them.
    let mut told = 0;
    for piece in bytes.chunks(usize::from(how >> 1) + 1) {
        let met = meeting.go_on(ours.as_fd(), 1, &mut fabrics);
        if !matches!(met, Ok(Met::NotYet)) {
            break;
        }
        if theirs.write_all(piece).is_err() {
            return;
        }
        told += piece.len();
    }
    let met = meeting.go_on(ours.as_fd(), 1, &mut fabrics);
    if !dialled && bytes.first().is_some_and(|first| *first != 4) {
        assert!(matches!(met, Ok(Met::Stays)), "{met:?}");
        let mut left = vec![0; told];
        assert!(ours.read_exact(&mut left).is_ok(), "something was taken of what is no offer");
        assert_eq!(left, bytes[..told]);
    }
}
