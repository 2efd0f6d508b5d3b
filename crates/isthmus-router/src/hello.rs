//! The only frames that a router reads and writes itself: Hello, and Refuse as the answer to one.

use std::io;
use std::time::Duration;

use isthmus_wire::frame::{Frame, Hello, MAGIC, Refuse, RefuseReason};
use isthmus_wire::{PROTOCOL_OLDEST, PROTOCOL_VERSION};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Longest time that a lane may take to send its Hello.
pub(crate) const HELLO_TIME: Duration = Duration::from_secs(10);
/// After a Refuse the router reads on for at most this time and this many bytes, so that the Refuse arrives.
const LINGER_TIME: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 << 20;

/// Why there is no Hello.
#[derive(Debug, thiserror::Error)]
pub enum NoHello {
    /// The peer closed before it sent anything, as port probes do.
    #[error("closed without a word")]
    Silent,
    /// The peer does not speak the protocol.
    #[error("what comes is no Hello of an isthmus endpoint")]
    Stranger,
    /// The peer speaks this other version.
    #[error("the peer speaks version {0} of the protocol")]
    Version(u16),
    /// The peer was too slow, or the connection broke.
    #[error("no complete Hello came: {0}")]
    Cut(io::Error),
}

/// Reads the Hello, and no byte beyond it.
pub async fn read(lane: &mut (impl AsyncRead + Unpin)) -> Result<Hello, NoHello> {
    let read = timeout(HELLO_TIME, read_unhurried(lane)).await;
    read.unwrap_or_else(|_| Err(NoHello::Cut(io::ErrorKind::TimedOut.into())))
}

async fn read_unhurried(lane: &mut (impl AsyncRead + Unpin)) -> Result<Hello, NoHello> {
    let mut bytes = [0; Hello::LEN];
    let mut have = 0;
    while have < bytes.len() {
        match lane.read(&mut bytes[have..]).await.map_err(NoHello::Cut)? {
            0 if have == 0 => return Err(NoHello::Silent),
            0 => return Err(NoHello::Cut(io::ErrorKind::UnexpectedEof.into())),
            more => have += more,
        }
        check_start(&bytes[..have])?;
    }
    match Frame::decode(&bytes) {
        Ok(Some(Frame::Hello(hello))) if hello.oldest > PROTOCOL_VERSION => {
            Err(NoHello::Version(hello.version))
        }
        Ok(Some(Frame::Hello(hello))) => Ok(hello),
        _ => Err(NoHello::Stranger),
    }
}

/// Checks the magic number and the version as soon as their bytes are there. A peer of another protocol may never send
/// a whole Hello, and a Hello of another version may have another length.
fn check_start(bytes: &[u8]) -> Result<(), NoHello> {
    let expected = [&[1], &MAGIC.to_le_bytes()[..]].concat();
    if bytes.iter().zip(&expected).any(|(byte, expected)| byte != expected) {
        return Err(NoHello::Stranger);
    }
    match bytes.get(5..7) {
        Some(version) => match u16::from_le_bytes([version[0], version[1]]) {
            version if version < PROTOCOL_OLDEST => Err(NoHello::Version(version)),
            _ => Ok(()),
        },
        None => Ok(()),
    }
}

/// The bytes of a frame.
pub(crate) fn encoded(frame: impl Into<Frame>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.into().encode(&mut bytes);
    bytes
}

/// Sends a Refuse with the reason and closes.
pub(crate) async fn refuse(lane: &mut (impl AsyncRead + AsyncWrite + Unpin), reason: RefuseReason) {
    let (version, oldest) = (PROTOCOL_VERSION, PROTOCOL_OLDEST);
    let refuse = Refuse { magic: MAGIC, version, reason: reason as u8, oldest };
    // A peer that does not read the answer in time does not get it.
    let _ = timeout(LINGER_TIME, async {
        lane.write_all(&encoded(refuse)).await?;
        lane.shutdown().await
    })
    .await;
    linger(lane).await;
}

/// Reads until the other side closes, within limits. If a socket is closed with unread bytes, TCP resets the connection
/// and the last written bytes can be lost.
pub(crate) async fn linger(lane: &mut (impl AsyncRead + Unpin)) {
    let _ = timeout(LINGER_TIME, async {
        let (mut waste, mut total) = ([0; 4096], 0);
        while total < LINGER_BYTES {
            match lane.read(&mut waste).await {
                Ok(0) | Err(_) => break,
                Ok(read) => total += read,
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use isthmus_wire::Address;

    use super::*;

    /// A stranger may never send as many bytes as a Hello has.
    #[tokio::test]
    async fn strangers_are_known_by_their_first_bytes() {
        let older = PROTOCOL_OLDEST - 1;
        let old = [&[1][..], &MAGIC.to_le_bytes(), &older.to_le_bytes()].concat();
        for (bytes, expected) in [(b"G".to_vec(), None), (b"\x01HTTP".to_vec(), None), (old, Some(older))] {
            let (mut near, mut far) = tokio::io::duplex(64);
            far.write_all(&bytes).await.expect("there is room");
            // `far` stays open.
            let said = timeout(HELLO_TIME / 2, read(&mut near)).await.expect("at once");
            match said.expect_err("no Hello") {
                NoHello::Version(version) => assert_eq!(Some(version), expected),
                NoHello::Stranger => assert_eq!(None, expected),
                other => panic!("{other}"),
            }
        }
    }

    /// A router passes a Hello of a later version on, as long as its sender speaks ours as well.
    #[tokio::test]
    async fn a_hello_of_a_range_that_holds_ours_is_passed_on() {
        let at = Address::from(std::net::SocketAddr::from(([10, 0, 0, 1], 1)));
        let hello = |oldest, version| Hello {
            magic: MAGIC,
            version,
            source: at,
            target: at,
            credit: 0,
            hops: 0,
            oldest,
            payload: 0,
        };
        let both = hello(PROTOCOL_VERSION, PROTOCOL_VERSION + 1);
        assert_eq!(read(&mut &both.to_bytes()[..]).await.ok(), Some(both));
        let later = hello(PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 1);
        let refused = read(&mut &later.to_bytes()[..]).await;
        assert!(matches!(refused, Err(NoHello::Version(version)) if version == PROTOCOL_VERSION + 1));
    }
}
