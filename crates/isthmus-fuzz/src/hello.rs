//! A router reads a lane's first frame, which must be a Hello.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use isthmus_router::hello::{NoHello, read};
use isthmus_wire::frame::{Frame, Hello, MAGIC};
use isthmus_wire::{Address, PROTOCOL_OLDEST, PROTOCOL_VERSION};
use tokio::io::{AsyncRead, ReadBuf};

use crate::address::sample;

/// The first byte says in what pieces the rest arrives, and whether the lane stays open: see [`Lane`].
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let with = |how: u8, change: fn(&mut Vec<u8>)| {
        let mut bytes = encoded(sample(), sample());
        change(&mut bytes);
        bytes.insert(0, how);
        bytes
    };
    vec![
        with(0x7f, |_| {}),
        with(0x01, |_| {}),
        with(0x87, |bytes| bytes.truncate(40)),
        with(0x00, |bytes| bytes.extend_from_slice(&[16; 60])),
        with(0x03, |bytes| bytes[5] = 1),
        b"\x05GET / HTTP/1.1\r\n\r\n".to_vec(),
    ]
}

pub(crate) fn encoded(source: Address, target: Address) -> Vec<u8> {
    let (version, oldest) = (PROTOCOL_VERSION, PROTOCOL_OLDEST);
    let hello = Hello { magic: MAGIC, version, source, target, credit: 1 << 20, hops: 0, oldest, payload: 0 };
    let mut bytes = Vec::new();
    Frame::from(hello).encode(&mut bytes);
    bytes
}

/// The answer depends on the bytes only, not on the pieces in which they arrive. The router reads
/// no byte beyond the Hello, and refuses a stranger before the Hello is complete. A lane that
/// closes early, or without a byte, differs from one whose Hello is still to come.
pub(crate) fn property(input: &[u8]) {
    let Some((&how, bytes)) = input.split_first() else { return };
    let stays_open = how & 0x80 != 0;
    let (answer, taken) = answer(bytes, usize::from(how & 0x7f) + 1, stays_open);
    assert_eq!(answer, self::answer(bytes, usize::MAX, stays_open).0, "the pieces count");
    assert!(taken <= Hello::LEN, "read {taken} bytes");
    match answer {
        Answer::Hello(hello) => {
            let mut again = Vec::new();
            Frame::from(hello).encode(&mut again);
            assert_eq!(again, bytes[..Hello::LEN]);
        }
        Answer::None("silent") => assert!(bytes.is_empty() && !stays_open),
        Answer::None("cut") => assert!(bytes.len() < Hello::LEN && !stays_open),
        Answer::None("stranger") => {
            assert_ne!(Frame::decode(&encoded(sample(), sample())), Frame::decode(bytes))
        }
        Answer::None(_) => {
            let version = u16::from_le_bytes([bytes[5], bytes[6]]);
            let Ok(Some(Frame::Hello(hello))) = Frame::decode(bytes) else {
                return assert!(version < PROTOCOL_OLDEST, "version {version}");
            };
            assert!(hello.oldest > PROTOCOL_VERSION, "{hello:?}");
        }
        Answer::Awaited => assert!(bytes.len() < Hello::LEN && stays_open),
    }
}

#[derive(Debug, PartialEq)]
enum Answer {
    Hello(Hello),
    None(&'static str),
    /// No answer yet: more bytes may come.
    Awaited,
}

/// The router's answer to `bytes` that arrive in pieces, and how many of them it read.
fn answer(bytes: &[u8], piece: usize, stays_open: bool) -> (Answer, usize) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    }
    let mut lane = Lane { left: bytes, piece, stays_open };
    let polled = RUNTIME.with(|runtime| {
        let _within = runtime.enter();
        pin!(read(&mut lane)).poll(&mut Context::from_waker(Waker::noop()))
    });
    let answer = match polled {
        Poll::Pending => Answer::Awaited,
        Poll::Ready(Ok(hello)) => Answer::Hello(hello),
        Poll::Ready(Err(NoHello::Silent)) => Answer::None("silent"),
        Poll::Ready(Err(NoHello::Stranger)) => Answer::None("stranger"),
        Poll::Ready(Err(NoHello::Version(_))) => Answer::None("version"),
        Poll::Ready(Err(NoHello::Cut(_))) => Answer::None("cut"),
    };
    (answer, bytes.len() - lane.left.len())
}

/// A lane whose bytes arrive in pieces of one length. Then it closes, or stays open in silence.
struct Lane<'a> {
    left: &'a [u8],
    piece: usize,
    stays_open: bool,
}

impl AsyncRead for Lane<'_> {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let lane = self.get_mut();
        if lane.left.is_empty() && lane.stays_open {
            return Poll::Pending;
        }
        let (piece, left) = lane.left.split_at(lane.piece.min(buf.remaining()).min(lane.left.len()));
        buf.put_slice(piece);
        lane.left = left;
        Poll::Ready(Ok(()))
    }
}
