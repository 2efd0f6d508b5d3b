//! The protocol between endpoints of the substrate: the tags of their messages, and the letters (control messages) that
//! begin and end connections.
//!
//! Each of them is a message of the engine, which delivers it exactly once and in order. A letter is little-endian and
//! has no padding. A released letter never changes its meaning.

use std::fmt;

/// Version of the conversation; both ends must agree.
pub const CONVERSATION_VERSION: u8 = 1;

/// Most bytes of the program that a request for a connection, or its rejection, may carry.
pub const PAYLOAD_MAX: usize = 1024;

/// Most bytes of a letter.
pub const LETTER_MAX: usize = HEADER_MAX + PAYLOAD_MAX;

/// Longest header of a letter. Bytes.
const HEADER_MAX: usize = 40;

/// First byte of every tag. It distinguishes the substrate's messages from those of other programs.
const MARK: u64 = 0x5B;

/// The id of a connection at one of its ends. It has 48 bits: 24 for an index, and 24 for the number of times that the
/// index was used. So an ended connection is not taken for its successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// Indices and ages are below this.
    pub const LIMIT: u32 = 1 << 24;

    /// Makes an id of an index and its age. Both count modulo [`ConnectionId::LIMIT`].
    pub fn new(index: u32, age: u32) -> Self {
        Self(u64::from(age % Self::LIMIT) << 24 | u64::from(index % Self::LIMIT))
    }

    /// The index.
    pub fn index(self) -> u32 {
        (self.0 % u64::from(Self::LIMIT)) as u32
    }

    /// Earlier uses of the index. Count.
    pub fn age(self) -> u32 {
        (self.0 >> 24) as u32
    }

    /// The id as a number of 48 bits.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Reverses [`ConnectionId::to_bits`]. Higher bits are ignored.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & 0xffff_ffff_ffff)
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.age())
    }
}

/// The number of a message that is not in its sender's order.
pub const UNORDERED: u64 = u64::MAX;

/// The meaning of an engine's message for the substrate; its tag encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A [`Letter`].
    Letter,
    /// A message on this connection; its data is its number in the sender's order, or [`UNORDERED`].
    Message(ConnectionId),
    /// A message of an unreliable connection, which no datagram can carry.
    Datagram(ConnectionId),
    /// The message that follows a write to memory; its data is the ticket that the write's own data names.
    Remote(ConnectionId),
}

impl Subject {
    /// The tag of a message.
    pub fn to_tag(self) -> u64 {
        let (kind, id) = match self {
            Self::Letter => (0, ConnectionId::default()),
            Self::Message(id) => (1, id),
            Self::Datagram(id) => (2, id),
            Self::Remote(id) => (3, id),
        };
        MARK << 56 | kind << 48 | id.to_bits()
    }

    /// Decodes a tag. `None`: it is not one of the substrate.
    pub fn from_tag(tag: u64) -> Option<Self> {
        let id = ConnectionId::from_bits(tag);
        match (tag >> 56, tag >> 48 & 0xff) {
            (MARK, 0) => Some(Self::Letter),
            (MARK, 1) => Some(Self::Message(id)),
            (MARK, 2) => Some(Self::Datagram(id)),
            (MARK, 3) => Some(Self::Remote(id)),
            _ => None,
        }
    }
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Objection {
    /// The program's decision; its reason goes along.
    Program = 0,
    /// The other end speaks another version of the conversation.
    Version = 1,
    /// Too many requests wait for the program's decision.
    Busy = 2,
}

impl Objection {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Program, Self::Version, Self::Busy].into_iter().find(|objection| *objection as u8 == code)
    }
}

/// One end of a connection, as the other endpoint must know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The connection's id there.
    pub id: ConnectionId,
    /// A secret of this connection. A datagram is accepted only if it has this token.
    pub token: u64,
    /// UDP port for datagrams; 0: none, they go as messages.
    pub udp_port: u16,
    /// Longest message that it takes. Bytes.
    pub message_max: u32,
}

/// A control message about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Letter {
    /// Asks for a connection.
    Connect {
        /// Version of the conversation.
        version: u8,
        /// Service level: 0 UU, 1 RU, 2 RO.
        level: u8,
        /// The end that asks.
        from: End,
        /// The program's own words, at most [`PAYLOAD_MAX`] bytes.
        payload: Vec<u8>,
    },
    /// Grants it.
    Accept {
        /// The id of the end that asked.
        to: ConnectionId,
        /// The token that it sent.
        token: u64,
        /// The end that accepts.
        from: End,
    },
    /// Turns it down.
    Reject {
        /// The id of the end that asked.
        to: ConnectionId,
        /// The token that it sent.
        token: u64,
        /// Why the request was rejected.
        objection: Objection,
        /// The program's reason.
        reason: u32,
        /// The program's own words, at most [`PAYLOAD_MAX`] bytes.
        payload: Vec<u8>,
    },
    /// Ends a connection.
    Disconnect {
        /// The id at the end that is told.
        to: ConnectionId,
        /// Reliable messages that were sent to that end. Count.
        sent: u64,
    },
    /// The write before a message has failed, so the message is void.
    Void {
        /// The id at the end that is told.
        to: ConnectionId,
        /// The message's ticket.
        ticket: u64,
    },
}

impl End {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_bits().to_le_bytes());
        out.extend_from_slice(&self.token.to_le_bytes());
        out.extend_from_slice(&self.udp_port.to_le_bytes());
        out.extend_from_slice(&self.message_max.to_le_bytes());
    }
}

impl Letter {
    /// Appends the letter.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Connect { version, level, from, payload } => {
                out.extend_from_slice(&[1, *version, *level]);
                from.put(out);
                out.extend_from_slice(payload);
            }
            Self::Accept { to, token, from } => {
                out.push(2);
                out.extend_from_slice(&to.to_bits().to_le_bytes());
                out.extend_from_slice(&token.to_le_bytes());
                from.put(out);
            }
            Self::Reject { to, token, objection, reason, payload } => {
                out.push(3);
                out.extend_from_slice(&to.to_bits().to_le_bytes());
                out.extend_from_slice(&token.to_le_bytes());
                out.push(*objection as u8);
                out.extend_from_slice(&reason.to_le_bytes());
                out.extend_from_slice(payload);
            }
            Self::Disconnect { to, sent } => {
                out.push(4);
                out.extend_from_slice(&to.to_bits().to_le_bytes());
                out.extend_from_slice(&sent.to_le_bytes());
            }
            Self::Void { to, ticket } => {
                out.push(5);
                out.extend_from_slice(&to.to_bits().to_le_bytes());
                out.extend_from_slice(&ticket.to_le_bytes());
            }
        }
    }

    /// Reads what [`Letter::encode`] wrote. `None`: the other end broke the protocol.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let letter = match reader.byte()? {
            // We know only the head of other versions.
            1 => {
                let (version, level) = (reader.byte()?, reader.byte()?);
                Self::Connect { version, level, from: reader.end()?, payload: reader.payload()? }
            }
            2 => Self::Accept { to: reader.id()?, token: reader.u64()?, from: reader.end()? },
            3 => Self::Reject {
                to: reader.id()?,
                token: reader.u64()?,
                objection: Objection::from_code(reader.byte()?)?,
                reason: reader.u32()?,
                payload: reader.payload()?,
            },
            4 => Self::Disconnect { to: reader.id()?, sent: reader.u64()? },
            5 => Self::Void { to: reader.id()?, ticket: reader.u64()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(letter)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn id(&mut self) -> Option<ConnectionId> {
        self.u64().filter(|bits| bits >> 48 == 0).map(ConnectionId::from_bits)
    }

    fn end(&mut self) -> Option<End> {
        Some(End {
            id: self.id()?,
            token: self.u64()?,
            udp_port: self.take().map(u16::from_le_bytes)?,
            message_max: self.u32()?,
        })
    }

    fn payload(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.0);
        (rest.len() <= PAYLOAD_MAX).then(|| rest.to_vec())
    }
}

/// Describes registered memory. A program gives it to its peer, so that the peer can access the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHandle {
    /// The key of the registration: hard to guess.
    pub key: u64,
    /// Length of the memory. Bytes.
    pub len: u64,
    /// Whether peers may read it.
    pub read: bool,
    /// Whether peers may write it.
    pub write: bool,
}

impl MemoryHandle {
    /// Length of the encoded form. Bytes.
    pub const LEN: usize = 32;
    const MAGIC: u32 = u32::from_le_bytes(*b"ISTm");

    /// The encoded form.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        out[4] = u8::from(self.read) | u8::from(self.write) << 1;
        out[8..16].copy_from_slice(&self.key.to_le_bytes());
        out[16..24].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Reads what [`MemoryHandle::to_bytes`] wrote. `None`: these bytes are not a handle.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (magic, access) = (reader.u32()?, reader.u32()?);
        let (key, len, rest) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let valid = magic == Self::MAGIC && access < 4 && rest == 0;
        valid.then_some(Self { key, len, read: access & 1 != 0, write: access & 2 != 0 })
    }
}

/// The header before the payload of a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The id of the connection at the receiving end.
    pub to: ConnectionId,
    /// The token of that end.
    pub token: u64,
}

impl DatagramHeader {
    /// Length of the encoded form. Bytes.
    pub const LEN: usize = 20;
    const MAGIC: u32 = u32::from_le_bytes(*b"ISTu");

    /// The encoded form.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        out[4..12].copy_from_slice(&self.to.to_bits().to_le_bytes());
        out[12..].copy_from_slice(&self.token.to_le_bytes());
        out
    }

    /// Reads the start of a datagram. `None`: it is not one of ours.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != Self::MAGIC {
            return None;
        }
        Some(Self { to: reader.id()?, token: reader.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn end() -> End {
        End {
            id: ConnectionId::new(0x0203, 5),
            token: 0x1122_3344_5566_7788,
            udp_port: 4100,
            message_max: 65536,
        }
    }

    const END: [u8; 22] =
        [3, 2, 0, 5, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 4, 16, 0, 0, 1, 0];

    fn letters() -> Vec<(Letter, Vec<u8>)> {
        let to = ConnectionId::new(7, 1);
        let to_bytes = [7, 0, 0, 1, 0, 0, 0, 0];
        let connect = Letter::Connect { version: 1, level: 2, from: end(), payload: b"hi".to_vec() };
        let reject = Letter::Reject {
            to,
            token: 9,
            objection: Objection::Program,
            reason: 258,
            payload: b"no".to_vec(),
        };
        let nine = [9, 0, 0, 0, 0, 0, 0, 0];
        vec![
            (connect, [&[1, 1, 2][..], &END, b"hi"].concat()),
            (Letter::Accept { to, token: 9, from: end() }, [&[2][..], &to_bytes, &nine, &END].concat()),
            (reject, [&[3][..], &to_bytes, &nine, &[0, 2, 1, 0, 0], b"no"].concat()),
            (Letter::Disconnect { to, sent: 9 }, [&[4][..], &to_bytes, &nine].concat()),
            (Letter::Void { to, ticket: 9 }, [&[5][..], &to_bytes, &nine].concat()),
        ]
    }

    #[test]
    fn the_golden_vectors_hold() {
        for (letter, bytes) in letters() {
            let mut out = Vec::new();
            letter.encode(&mut out);
            assert_eq!(out, bytes, "{letter:?}");
            assert_eq!(Letter::decode(&bytes), Some(letter));
            assert!(bytes.len() <= LETTER_MAX);
        }
        let header = DatagramHeader { to: ConnectionId::new(7, 1), token: 9 };
        let bytes = [b'I', b'S', b'T', b'u', 7, 0, 0, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(DatagramHeader::from_bytes(&bytes), Some(header));
        let memory = MemoryHandle { key: 0x0102, len: 3, read: false, write: true };
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(b"ISTm");
        (bytes[4], bytes[8], bytes[9], bytes[16]) = (2, 2, 1, 3);
        assert_eq!(memory.to_bytes(), bytes);
        assert_eq!(MemoryHandle::from_bytes(&bytes), Some(memory));
        bytes[31] = 1;
        assert_eq!(MemoryHandle::from_bytes(&bytes), None);
        assert_eq!(Subject::Message(ConnectionId::new(7, 1)).to_tag(), 0x5B01_0000_0100_0007);
        assert_eq!(Subject::Remote(ConnectionId::new(7, 1)).to_tag(), 0x5B03_0000_0100_0007);
    }

    #[test]
    fn what_is_no_letter_is_refused() {
        for (letter, bytes) in letters() {
            let headed = matches!(letter, Letter::Connect { .. } | Letter::Reject { .. });
            let least = if headed { bytes.len() - 2 } else { bytes.len() };
            for len in 0..least {
                assert_eq!(Letter::decode(&bytes[..len]), None);
            }
            let too_long = [&bytes[..], &[0; PAYLOAD_MAX]].concat();
            assert_eq!(Letter::decode(&too_long), None, "{letter:?}");
        }
        assert_eq!(Letter::decode(&[9]), None);
        assert_eq!(Subject::from_tag(0), None);
        assert_eq!(Subject::from_tag(0x5B09 << 48), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, tag: u64) {
            if let Some(letter) = Letter::decode(&bytes) {
                let mut out = Vec::new();
                letter.encode(&mut out);
                prop_assert_eq!(out, bytes.clone());
            }
            let _ = DatagramHeader::from_bytes(&bytes);
            if let Some(subject) = Subject::from_tag(tag) {
                prop_assert_eq!(Subject::from_tag(subject.to_tag()), Some(subject));
            }
        }
    }
}
