//! Packets and frames as bytes. All integers are little-endian.
//!
//! A packet is a header, followed by frames up to its end:
//!
//! | kind | header after the first byte | meaning |
//! |---|---|---|
//! | 1 Open | source 8, token 24, window 6, number 6 | asks for a connection; frames follow |
//! | 2 Accept | target 8, source 8, token 24, window 6, number 6 | grants one, and a token for the next; frames follow |
//! | 3 Data | target 8, number 6 | frames follow |
//! | 4 Challenge | target 8, token 24 | open again with this token; nothing follows |
//! | 5 Reset | target 8 | the receiver of `target` knows no such connection; nothing follows |
//! | 6 Keyed | as of 3 | as of 3; encrypted with the stream's own keys |
//! | 14, 13, 12 | as of 1, 2, 3 | the same; behind the frames a CRC-32C of the whole packet, 4 |
//!
//! A kind and its variant with a checksum differ in all four bits. So damage that the checksum should show does not
//! turn one into the other.
//!
//! The first byte is the kind, [`VERSION`] in bits 4 to 6, and [`ACK_NOW`]. `target` is the id that the addressee
//! chose. `source` is the id by which the sender wants to be addressed. `window` is the stream offset up to which the
//! sender takes data.
//!
//! | frame | fields after the tag | meaning |
//! |---|---|---|
//! | 1 Stream, 2 its end | offset 8, length 2, bytes | stream data; 2: the stream ends behind it |
//! | 3 Ack | see [`Ack`] | what has arrived |
//! | 4 Floor | number 6 | the sender knows the fates of all lower numbers |
//! | 5 Ping | | asks for an acknowledgement |
//! | 6 Padding | anything up to the packet's end | none, unless it begins with a 1, see [`Strain`], a 2, see [`ParityShard`], a 3, see [`Frame::Marks`], or a 4, see [`Frame::AckSpacing`] |
//! | 7 Close | reason 1 | the connection ends at once |
//! | 8 | anything up to the packet's end | none: earlier builds sent parity of another code |

/// Version of the packet format, 0..=7. Packets of other versions are dropped.
pub const VERSION: u8 = 1;
/// Bit of the first byte: asks for an acknowledgement at once.
pub const ACK_NOW: u8 = 0x80;
/// The kind of a packet with a checksum is this number minus the kind without one.
const CHECKED: u8 = 15;
/// Length of a token. Bytes.
pub const TOKEN_LEN: usize = 24;
/// Longest header of a packet. Bytes.
pub const HEADER_MAX: usize = 1 + 8 + 8 + TOKEN_LEN + 6 + 6;
/// Length of a Stream frame without its data. Bytes.
pub const STREAM_OVERHEAD: usize = 1 + 8 + 2;
/// Length of an Ack frame without its words. Bytes.
pub const ACK_FIXED: usize = 1 + 6 + 4 + 4 + 8 + 8 + 1 + 2 + 1;
/// Length of a parity frame without its shard. It equals [`STREAM_OVERHEAD`], so that packets of both have one length.
/// Bytes.
pub const PARITY_OVERHEAD: usize = 1 + 1 + 7 + 1 + 1;
/// Length of a [`Strain`] in its padding. Bytes.
pub const STRAIN_BYTES: usize = 1 + 1 + 4 + 4;
/// Length of [`Frame::Marks`] in its padding. Bytes.
pub const MARKS_BYTES: usize = 1 + 1 + 4;
/// Length of [`Frame::AckSpacing`] in its padding. Bytes.
pub const SPACING_BYTES: usize = 1 + 1 + 4;
/// First byte of padding that is a [`Strain`], parity, [`Frame::Marks`], or [`Frame::AckSpacing`]. Other padding is all 0.
const STRAINED: u8 = 1;
const PARITY: u8 = 2;
const MARKED: u8 = 3;
const SPACED: u8 = 4;
/// Most words of one bitmap of an acknowledgement. Count.
pub const WORDS_MAX: usize = 64;
/// Numbers and windows are below this, as they take 6 bytes.
const U48_END: u64 = 1 << 48;
/// Offsets of parity are below this, as they take 7 bytes.
pub(crate) const U56_END: u64 = 1 << 56;

/// Id that addresses a connection. The addressed side draws it at random, so that nobody off the path can guess it.
pub type ConnectionId = u64;

/// Proof that a host once answered at its address; all zero if there is none.
pub type Token = [u8; TOKEN_LEN];

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than the header or the frames say.
    #[error("truncated packet")]
    Truncated,
    /// Unknown kind or version.
    #[error("first byte {0:#04x} is of no known packet")]
    Kind(u8),
    /// Unknown frame.
    #[error("unknown frame {0}")]
    Frame(u8),
}

/// Header of a packet with frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table at the module's top says it")]
pub enum Header {
    Open { source: ConnectionId, token: Token, window: u64 },
    Accept { target: ConnectionId, source: ConnectionId, token: Token, window: u64 },
    Data { target: ConnectionId, keyed: bool },
}

/// Any packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A packet with frames.
    Numbered {
        /// The header.
        header: Header,
        /// The packet number: fresh for every transmission.
        number: u64,
        /// Whether the sender asks for an acknowledgement at once.
        ack_now: bool,
        /// Whether the packet ends with a checksum.
        checked: bool,
        /// Offset of the frames. Bytes.
        body: usize,
    },
    /// See the table at the module's top.
    #[allow(missing_docs)]
    Challenge { target: ConnectionId, token: Token },
    /// See the table at the module's top.
    #[allow(missing_docs)]
    Reset { target: ConnectionId },
}

/// Reads fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    fn uint(&mut self, len: usize) -> Result<u64, WireError> {
        let mut raw = [0; 8];
        raw[..len].copy_from_slice(self.take(len)?);
        Ok(u64::from_le_bytes(raw))
    }

    fn token(&mut self) -> Result<Token, WireError> {
        let mut token = [0; TOKEN_LEN];
        token.copy_from_slice(self.take(TOKEN_LEN)?);
        Ok(token)
    }
}

fn put(out: &mut Vec<u8>, value: u64, len: usize) {
    out.extend_from_slice(&value.to_le_bytes()[..len]);
}

impl Packet {
    /// Reads a packet's header.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not one of our packets: a fault of the peer, or of a stranger.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let first = from.uint(1)? as u8;
        if (first >> 4) & 7 != VERSION {
            return Err(WireError::Kind(first));
        }
        let kind = first & 0x0f;
        let checked = (CHECKED - 3..CHECKED).contains(&kind);
        let header = match if checked { CHECKED - kind } else { kind } {
            1 => Header::Open { source: from.uint(8)?, token: from.token()?, window: from.uint(6)? },
            2 => Header::Accept {
                target: from.uint(8)?,
                source: from.uint(8)?,
                token: from.token()?,
                window: from.uint(6)?,
            },
            3 => Header::Data { target: from.uint(8)?, keyed: false },
            4 => return Ok(Self::Challenge { target: from.uint(8)?, token: from.token()? }),
            5 => return Ok(Self::Reset { target: from.uint(8)? }),
            6 => Header::Data { target: from.uint(8)?, keyed: true },
            _ => return Err(WireError::Kind(first)),
        };
        let number = from.uint(6)?;
        let body = bytes.len() - from.0.len();
        Ok(Self::Numbered { header, number, ack_now: first & ACK_NOW != 0, checked, body })
    }

    /// Appends the packet to `out`; of a numbered packet only the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let first = |kind: u8| kind | VERSION << 4;
        match *self {
            Self::Challenge { target, token } => {
                out.push(first(4));
                put(out, target, 8);
                out.extend_from_slice(&token);
            }
            Self::Reset { target } => {
                out.push(first(5));
                put(out, target, 8);
            }
            Self::Numbered { header, number, ack_now, checked, .. } => {
                let flag = if ack_now { ACK_NOW } else { 0 };
                let first = |kind| flag | first(if checked { CHECKED - kind } else { kind });
                match header {
                    Header::Open { source, token, window } => {
                        out.push(first(1));
                        put(out, source, 8);
                        out.extend_from_slice(&token);
                        put(out, window.min(U48_END - 1), 6);
                    }
                    Header::Accept { target, source, token, window } => {
                        out.push(first(2));
                        put(out, target, 8);
                        put(out, source, 8);
                        out.extend_from_slice(&token);
                        put(out, window.min(U48_END - 1), 6);
                    }
                    Header::Data { target, keyed } => {
                        out.push(first(if keyed { 6 } else { 3 }));
                        put(out, target, 8);
                    }
                }
                put(out, number, 6);
            }
        }
    }
}

impl Header {
    /// Length of this header. Bytes.
    pub fn byte_len(&self) -> usize {
        match self {
            Self::Open { .. } => HEADER_MAX - 8,
            Self::Accept { .. } => HEADER_MAX,
            Self::Data { .. } => 1 + 8 + 6,
        }
    }
}

/// Consecutive 64-bit words of a bitmap over packet numbers: bit `b` of word `w` is number `64 w + b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words<'a> {
    /// Index of the first word.
    pub first: u64,
    /// The words, 8 bytes each.
    pub bytes: &'a [u8],
}

impl Words<'_> {
    /// The words with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let word = |raw: &[u8]| raw.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        (self.first..).zip(self.bytes.chunks_exact(8).map(word))
    }
}

/// An acknowledgement. Fields in this order: largest 6, arrived 4, delay 4, upto 8, window 8, number of recent words 1,
/// distance of the swept words 2, number of swept words 1, the swept words, the recent words. The sender chooses the
/// number of words, so the length does not grow with the number of gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// Largest packet number that has arrived.
    pub largest: u64,
    /// When that packet arrived, by the receiver's clock. Microseconds, modulo 2^32.
    pub arrived: u32,
    /// Time from that arrival to the acknowledgement's departure. Microseconds.
    pub delay_us: u32,
    /// All stream bytes below this offset have arrived.
    pub upto: u64,
    /// Stream offset up to which data may be sent.
    pub window: u64,
    /// Bitmap of the newest numbers, up to the word of `largest`.
    pub recent: Words<'a>,
    /// Bitmap of older numbers: another part of them each time.
    pub sweep: Words<'a>,
}

/// Parity of a block of the stream, which repairs losses in it. Fields in this order: 2, start 7, count 1, index 1, the
/// bytes of the shard. The code's field and factors are part of the format (`cauchy.rs`). It travels as padding, as
/// [`Strain`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityShard<'a> {
    /// Stream offset at which the block starts.
    pub start: u64,
    /// Data shards of the block, each as long as this shard. At least 1.
    pub count: u8,
    /// Index of this parity shard in the block, from 0; at most 255 - `count`.
    pub index: u8,
    /// The shard's bytes.
    pub bytes: &'a [u8],
}

/// Report that a host does not read packets as fast as they come: its processor, not the path, delays or drops them.
/// Fields in this order: 1, busy 4, dropped 4. Both count from the stream's beginning, modulo 2^32. It travels as
/// padding, as the last frame of a packet, so that older builds skip it: they refuse packets with unknown frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strain {
    /// Time that packets waited to be read, in periods in which they mostly did. Microseconds.
    pub busy_us: u32,
    /// Packets that found no room in the socket. Approximate count.
    pub dropped: u32,
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table at the module's top says it")]
pub enum Frame<'a> {
    Stream {
        offset: u64,
        data: &'a [u8],
        fin: bool,
    },
    Ack(Ack<'a>),
    Floor(u64),
    Ping,
    Padding,
    Strain(Strain),
    /// Packets that arrived with a mark of congestion (CE of RFC 3168), counted from the stream's beginning, modulo 2^32.
    /// Fields: 3, count 4. It travels as padding, as [`Strain`] does.
    Marks(u32),
    /// Asks the receiver to wait this long with acknowledgements that no [`ACK_NOW`] asks for. Fields: 4, microseconds 4. It
    /// travels as padding, as [`Strain`] does.
    AckSpacing(u32),
    Close {
        reason: u8,
    },
    Parity(ParityShard<'a>),
}

/// Iterator over the frames of a packet; it stops behind the first invalid one.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a>(Reader<'a>);

impl<'a> Frames<'a> {
    /// Reads the frames in `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self(Reader(body))
    }

    fn read(&mut self) -> Result<Frame<'a>, WireError> {
        let from = &mut self.0;
        match from.uint(1)? as u8 {
            tag @ (1 | 2) => {
                let (offset, len) = (from.uint(8)?, from.uint(2)? as usize);
                Ok(Frame::Stream { offset, data: from.take(len)?, fin: tag == 2 })
            }
            3 => Ok(Frame::Ack(read_ack(from)?)),
            4 => Ok(Frame::Floor(from.uint(6)?)),
            5 => Ok(Frame::Ping),
            6 => Ok(read_padding(std::mem::take(&mut from.0)).unwrap_or(Frame::Padding)),
            7 => Ok(Frame::Close { reason: from.uint(1)? as u8 }),
            8 => {
                from.0 = &[];
                Ok(Frame::Padding)
            }
            other => Err(WireError::Frame(other)),
        }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.0.is_empty() {
            return None;
        }
        let frame = self.read();
        if frame.is_err() {
            self.0.0 = &[];
        }
        Some(frame)
    }
}

fn read_ack<'a>(from: &mut Reader<'a>) -> Result<Ack<'a>, WireError> {
    let largest = from.uint(6)?;
    let (arrived, delay_us) = (from.uint(4)? as u32, from.uint(4)? as u32);
    let (upto, window) = (from.uint(8)?, from.uint(8)?);
    let (recent, back, swept) = (from.uint(1)?, from.uint(2)?, from.uint(1)?);
    let last = largest / 64;
    let first = (last + 1).checked_sub(recent).ok_or(WireError::Truncated)?;
    let sweep = Words {
        first: last.checked_sub(back).ok_or(WireError::Truncated)?,
        bytes: from.take(8 * swept as usize)?,
    };
    let recent = Words { first, bytes: from.take(8 * recent as usize)? };
    Ok(Ack { largest, arrived, delay_us, upto, window, recent, sweep })
}

/// Reads the report or parity in padding, if there is any.
fn read_padding(bytes: &[u8]) -> Option<Frame<'_>> {
    let mut from = Reader(bytes);
    match from.uint(1).ok()? as u8 {
        STRAINED => {
            let (busy_us, dropped) = (from.uint(4).ok()? as u32, from.uint(4).ok()? as u32);
            Some(Frame::Strain(Strain { busy_us, dropped }))
        }
        MARKED => Some(Frame::Marks(from.uint(4).ok()? as u32)),
        SPACED => Some(Frame::AckSpacing(from.uint(4).ok()? as u32)),
        PARITY => {
            let start = from.uint(7).ok()?;
            let (count, index) = (from.uint(1).ok()? as u8, from.uint(1).ok()? as u8);
            let sane = count > 0 && index <= u8::MAX - count && !from.0.is_empty();
            sane.then_some(Frame::Parity(ParityShard { start, count, index, bytes: from.0 }))
        }
        _ => None,
    }
}

/// Appends the head of a parity frame. The caller appends the shard, which must end the packet. `start` is below 2^56.
pub fn put_parity_head(out: &mut Vec<u8>, start: u64, count: u8, index: u8) {
    out.extend_from_slice(&[6, PARITY]);
    put(out, start, 7);
    out.extend_from_slice(&[count, index]);
}

/// Appends the head of a Stream frame. The caller appends the data.
pub fn put_stream_head(out: &mut Vec<u8>, offset: u64, len: u16, fin: bool) {
    out.push(if fin { 2 } else { 1 });
    put(out, offset, 8);
    put(out, u64::from(len), 2);
}

/// Appends an Ack frame. The recent words end with that of `ack.largest`. The swept words start at most 65,535 words
/// before it.
pub fn put_ack(out: &mut Vec<u8>, ack: &Ack<'_>) {
    out.push(3);
    put(out, ack.largest, 6);
    put(out, u64::from(ack.arrived), 4);
    put(out, u64::from(ack.delay_us), 4);
    put(out, ack.upto, 8);
    put(out, ack.window, 8);
    put(out, ack.recent.bytes.len() as u64 / 8, 1);
    put(out, ack.largest / 64 - ack.sweep.first, 2);
    put(out, ack.sweep.bytes.len() as u64 / 8, 1);
    out.extend_from_slice(ack.sweep.bytes);
    out.extend_from_slice(ack.recent.bytes);
}

/// Appends any frame. [`Frame::Padding`] becomes one byte.
pub fn put_small(out: &mut Vec<u8>, frame: &Frame<'_>) {
    match *frame {
        Frame::Floor(number) => {
            out.push(4);
            put(out, number, 6);
        }
        Frame::Ping => out.push(5),
        Frame::Padding => out.push(6),
        Frame::Strain(Strain { busy_us, dropped }) => {
            out.extend_from_slice(&[6, STRAINED]);
            put(out, u64::from(busy_us), 4);
            put(out, u64::from(dropped), 4);
        }
        Frame::Marks(count) => {
            out.extend_from_slice(&[6, MARKED]);
            put(out, u64::from(count), 4);
        }
        Frame::AckSpacing(us) => {
            out.extend_from_slice(&[6, SPACED]);
            put(out, u64::from(us), 4);
        }
        Frame::Close { reason } => out.extend_from_slice(&[7, reason]),
        Frame::Stream { offset, data, fin } => {
            put_stream_head(out, offset, data.len() as u16, fin);
            out.extend_from_slice(data);
        }
        Frame::Ack(ack) => put_ack(out, &ack),
        Frame::Parity(ParityShard { start, count, index, bytes }) => {
            put_parity_head(out, start, count, index);
            out.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(packet: &Packet) -> Vec<u8> {
        let mut out = Vec::new();
        packet.encode(&mut out);
        out
    }

    #[test]
    fn packets_look_as_they_always_did() {
        let data = Packet::Numbered {
            header: Header::Data { target: 0x0807_0605_0403_0201, keyed: false },
            number: 0x0a0b,
            ack_now: true,
            checked: false,
            body: 15,
        };
        let bytes = [0x93, 1, 2, 3, 4, 5, 6, 7, 8, 0x0b, 0x0a, 0, 0, 0, 0];
        assert_eq!(encoded(&data), bytes);
        assert_eq!(Packet::decode(&bytes), Ok(data));

        let open = Packet::Numbered {
            header: Header::Open { source: 1, token: [7; TOKEN_LEN], window: 2 },
            number: 3,
            ack_now: false,
            checked: false,
            body: HEADER_MAX - 8,
        };
        let mut bytes = vec![0x11, 1, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([7; 24]);
        bytes.extend([2, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(&open), bytes);
        assert_eq!(Packet::decode(&bytes), Ok(open));

        let checked = |packet| {
            let Packet::Numbered { header, number, ack_now, body, .. } = packet else { panic!() };
            Packet::Numbered { header, number, ack_now, checked: true, body }
        };
        bytes[0] = 0x1e;
        assert_eq!(encoded(&checked(open)), bytes);
        assert_eq!(Packet::decode(&bytes), Ok(checked(open)));
        assert_eq!(encoded(&checked(data))[0], 0x9c);
        assert_eq!(Packet::decode(&encoded(&checked(data))), Ok(checked(data)));

        let reset = Packet::Reset { target: 9 };
        assert_eq!(encoded(&reset), [0x15, 9, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn frames_look_as_they_always_did() {
        let mut out = Vec::new();
        put_small(&mut out, &Frame::Stream { offset: 0x0102, data: b"ab", fin: true });
        put_small(&mut out, &Frame::Floor(5));
        let words = [0xff, 0, 0, 0, 0, 0, 0, 0x80];
        let ack = Ack {
            largest: 130,
            arrived: 1,
            delay_us: 2,
            upto: 3,
            window: 4,
            recent: Words { first: 2, bytes: &words },
            sweep: Words { first: 1, bytes: &words },
        };
        put_ack(&mut out, &ack);
        let mut bytes = vec![2, 2, 1, 0, 0, 0, 0, 0, 0, 2, 0, b'a', b'b', 4, 5, 0, 0, 0, 0, 0];
        bytes.extend([3, 130, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        bytes.extend([3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1]);
        bytes.extend([words, words].concat());
        assert_eq!(out, bytes);
        let frames: Vec<_> = Frames::new(&out).map(|frame| frame.expect("valid")).collect();
        assert_eq!(frames[2], Frame::Ack(ack));
        assert_eq!(ack.recent.iter().collect::<Vec<_>>(), [(2, 0x8000_0000_0000_00ff)]);
    }

    #[test]
    fn parity_looks_like_padding_to_who_does_not_know_it_and_reaches_to_the_packets_end() {
        let shard = ParityShard { start: 0x0102, count: 200, index: 2, bytes: b"abcd" };
        let mut out = Vec::new();
        put_small(&mut out, &Frame::Parity(shard));
        assert_eq!(out, [6, 2, 2, 1, 0, 0, 0, 0, 0, 200, 2, b'a', b'b', b'c', b'd']);
        assert_eq!(out.len(), PARITY_OVERHEAD + 4);
        assert_eq!(Frames::new(&out).collect::<Vec<_>>(), [Ok(Frame::Parity(shard))]);
        for (at, wrong) in [(9, 0), (10, 56)] {
            let mut bytes = out.clone();
            bytes[at] = wrong;
            assert_eq!(Frames::new(&bytes).collect::<Vec<_>>(), [Ok(Frame::Padding)], "byte {at}");
        }
        assert_eq!(Frames::new(&out[..11]).collect::<Vec<_>>(), [Ok(Frame::Padding)], "nothing of the shard");
        let before = [8, 2, 1, 0, 0, 0, 0, 0, 200, 3, 2, b'a', b'b'];
        assert_eq!(Frames::new(&before).collect::<Vec<_>>(), [Ok(Frame::Padding)], "of another code");
    }

    #[test]
    fn a_count_of_marks_travels_as_padding() {
        let mut out = Vec::new();
        put_small(&mut out, &Frame::Marks(0x0102_0304));
        assert_eq!((out.len(), out[0]), (MARKS_BYTES, 6));
        assert_eq!(Frames::new(&out).collect::<Vec<_>>(), [Ok(Frame::Marks(0x0102_0304))]);
        out.clear();
        put_small(&mut out, &Frame::AckSpacing(25_000));
        assert_eq!(out.len(), SPACING_BYTES);
        assert_eq!(Frames::new(&out).collect::<Vec<_>>(), [Ok(Frame::AckSpacing(25_000))]);
        assert_eq!(Frames::new(&out[..3]).collect::<Vec<_>>(), [Ok(Frame::Padding)], "cut off");
    }

    #[test]
    fn a_strain_looks_like_padding_to_who_does_not_know_it() {
        let strain = Strain { busy_us: 0x0102, dropped: 0x0304 };
        let mut out = Vec::new();
        put_small(&mut out, &Frame::Ping);
        put_small(&mut out, &Frame::Strain(strain));
        assert_eq!(out, [5, 6, 1, 2, 1, 0, 0, 4, 3, 0, 0]);
        assert_eq!(out.len(), 1 + STRAIN_BYTES);
        assert_eq!(Frames::new(&out).collect::<Vec<_>>(), [Ok(Frame::Ping), Ok(Frame::Strain(strain))]);
        for padding in [&[6][..], &[6, 0, 0], &[6, 5, 1, 1, 1, 1, 1, 1, 1, 1], &out[1..10]] {
            assert_eq!(Frames::new(padding).collect::<Vec<_>>(), [Ok(Frame::Padding)]);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(packet @ Packet::Numbered { body, .. }) = Packet::decode(&bytes) {
                prop_assert_eq!(&encoded(&packet), &bytes[..body]);
            }
            let mut again = Vec::new();
            let mut len = 0;
            for frame in Frames::new(&bytes).flatten() {
                put_small(&mut again, &frame);
                len += 1;
            }
            prop_assert!(len <= bytes.len());
            prop_assert!(again.len() <= bytes.len());
        }
    }
}
