//! The encoding of frames. A header has 12 bytes: kind, three zeros, lane, number. Some frames have a payload, whose
//! length is the number. Integers are little-endian.

use crate::lane::LaneId;
use crate::mux::{Fault, Limits};

/// Bytes of a header.
pub const HEADER: usize = 12;
/// Longest payload. Bytes. Other lanes wait at most for one payload. With its header it fills two TLS records.
pub const PIECE: usize = (32 << 10) - HEADER;
/// The first bytes of a stream; the last of them is the version.
const MAGIC: [u8; 4] = *b"imx1";
/// Bytes of a greeting's payload.
pub(crate) const GREETING: usize = 20;

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The first frame: its payload has the limits that this end promises.
    Greeting,
    /// The sender opens a lane.
    Open(LaneId),
    /// This many bytes of a lane follow.
    Data(LaneId, usize),
    /// This many bytes of a lane were read.
    Credit(LaneId, u32),
    /// The sender sends no more data on a lane.
    Finish(LaneId),
    /// The sender neither reads nor writes a lane any longer.
    Reset(LaneId),
    /// A heartbeat.
    Beat,
}

impl Frame {
    pub(crate) fn encode(self) -> [u8; HEADER] {
        let (kind, lane, number) = match self {
            Self::Greeting => (1, 0, GREETING as u32),
            Self::Open(lane) => (2, lane.0, 0),
            Self::Data(lane, len) => (3, lane.0, len as u32),
            Self::Credit(lane, bytes) => (4, lane.0, bytes),
            Self::Finish(lane) => (5, lane.0, 0),
            Self::Reset(lane) => (6, lane.0, 0),
            Self::Beat => (7, 0, 0),
        };
        let mut bytes = [0; HEADER];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&lane.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, Fault> {
        let [kind, 0, 0, 0, a, b, c, d, number @ ..] = *bytes else { return Err(Fault::Frame) };
        let lane = LaneId(u32::from_le_bytes([a, b, c, d]));
        let number = u32::from_le_bytes(number);
        let len = usize::try_from(number).unwrap_or(usize::MAX);
        let frame = match kind {
            1 if len == GREETING => Self::Greeting,
            2 => Self::Open(lane),
            3 if (1..=PIECE).contains(&len) => Self::Data(lane, len),
            4 => Self::Credit(lane, number),
            5 => Self::Finish(lane),
            6 => Self::Reset(lane),
            7 => Self::Beat,
            _ => return Err(Fault::Frame),
        };
        // Each frame has exactly one encoding.
        if frame.encode() == *bytes { Ok(frame) } else { Err(Fault::Frame) }
    }
}

/// A greeting's payload.
pub(crate) fn greeting(limits: &Limits) -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&limits.lanes.to_le_bytes());
    bytes[8..12].copy_from_slice(&limits.base.to_le_bytes());
    bytes[12..].copy_from_slice(&limits.pool.to_le_bytes());
    bytes
}

pub(crate) fn read_greeting(bytes: &[u8]) -> Result<Limits, Fault> {
    let bytes: &[u8; GREETING] = bytes.try_into().map_err(|_| Fault::Frame)?;
    let [m, a, g, i, l0, l1, l2, l3, b0, b1, b2, b3, pool @ ..] = *bytes;
    if [m, a, g, i] != MAGIC {
        return Err(Fault::Version);
    }
    let limits = Limits {
        lanes: u32::from_le_bytes([l0, l1, l2, l3]),
        base: u32::from_le_bytes([b0, b1, b2, b3]),
        pool: u64::from_le_bytes(pool),
    };
    // Credit is returned in quarters of `base`. With a smaller `base` a lane could stall for ever.
    if (limits.base as usize) < 2 * PIECE { Err(Fault::Limits) } else { Ok(limits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_and_nothing_else_is() {
        let lane = LaneId(0x0102_0304);
        for frame in [
            Frame::Greeting,
            Frame::Open(lane),
            Frame::Data(lane, 1),
            Frame::Data(lane, PIECE),
            Frame::Credit(lane, u32::MAX),
            Frame::Finish(lane),
            Frame::Reset(lane),
            Frame::Beat,
        ] {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
        for wrong in [[0; HEADER], [9; HEADER], [3; HEADER]] {
            assert_eq!(Frame::decode(&wrong), Err(Fault::Frame));
        }
        let mut long = Frame::Data(lane, PIECE).encode();
        long[11] = 1;
        assert_eq!(Frame::decode(&long), Err(Fault::Frame));
        let mut empty = Frame::Data(lane, 1).encode();
        empty[8] = 0;
        assert_eq!(Frame::decode(&empty), Err(Fault::Frame));
    }

    /// What release 0.2.0 said first (`tools/release.env`) is understood, and what is said first is the same.
    #[test]
    fn the_greeting_of_the_release_is_understood() {
        let limits = Limits { lanes: 7, base: 65_536, pool: 1 << 40 };
        let recorded = [
            1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, b'i', b'm', b'x', b'1', 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0,
            0, 1, 0, 0,
        ];
        let (header, payload) = recorded.split_first_chunk::<HEADER>().expect("longer");
        assert_eq!(Frame::decode(header), Ok(Frame::Greeting));
        assert_eq!(read_greeting(payload), Ok(limits));
        assert_eq!([&Frame::Greeting.encode()[..], &greeting(&limits)].concat(), recorded);
    }

    #[test]
    fn greetings_tell_the_version_and_limits_that_work() {
        let limits = Limits { lanes: 7, base: 65_536, pool: 1 << 40 };
        let mut bytes = greeting(&limits);
        assert_eq!(read_greeting(&bytes), Ok(limits));
        bytes[3] = b'9';
        assert_eq!(read_greeting(&bytes), Err(Fault::Version));
        assert_eq!(read_greeting(&greeting(&Limits { base: 100, ..limits })), Err(Fault::Limits));
    }
}
