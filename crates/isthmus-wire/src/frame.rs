//! The one table of frames.
//!
//! A lane carries frames back to back. A frame is a header, then its payload. The tag fixes the header's length; the
//! header is little-endian and has no padding. The field `payload` has the payload's length; a frame without it has no
//! payload. The table below generates the structures, the codec, the text form and the table in the manual ([`TABLE`]).
//!
//! A released tag never changes its meaning. A change of a released frame takes a new tag or a new
//! [`PROTOCOL_VERSION`].

use std::fmt;

use crate::Address;

/// The newest version of the protocol that this build speaks. Since version 2 a Hello proves who sends it; since
/// version 3 it can contain the secret with which its lane is sealed, and packets are always sealed.
pub const PROTOCOL_VERSION: u16 = 3;

/// The oldest version of the protocol that this build speaks.
pub const PROTOCOL_OLDEST: u16 = 3;

/// First field of [`Hello`] and [`Welcome`]. It distinguishes an Isthmus peer from other programs.
pub const MAGIC: u32 = u32::from_le_bytes(*b"ISTH");

/// Most payload in one frame. Bytes; a larger claim is a fault of the peer.
pub const PAYLOAD_MAX: u32 = 8 << 20;

/// Most routers that a lane passes. Count; more mean a loop in the route maps.
pub const HOPS_MAX: u8 = 16;

/// Longest header in the table. Bytes.
pub const HEADER_MAX: usize = 88;

/// Words of [`AckMap::map`]; each bit is one fragment after `upto`.
pub const ACK_WORDS: usize = 8;

/// Why bytes are not a frame: always the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No frame has this tag.
    #[error("unknown frame tag {0}")]
    Tag(u8),
    /// A payload longer than [`PAYLOAD_MAX`].
    #[error("frame claims {0} payload bytes, more than is ever sent")]
    Payload(u32),
    /// An address inside the frame is malformed.
    #[error("malformed address in a frame")]
    Address,
    /// A Hello of a version older than [`PROTOCOL_OLDEST`], whose rest is not like ours.
    #[error("protocol version {0}, which is older than this build speaks")]
    Version(u16),
}

/// A type that can be a field of a frame.
trait Field: Sized {
    const LEN: usize;
    /// Fills `out`, of [`Field::LEN`] bytes.
    fn put(&self, out: &mut [u8]);
    fn get(bytes: &[u8]) -> Result<Self, FrameError>;
}

macro_rules! integer_field {
    ($($kind:ty),*) => {$(
        impl Field for $kind {
            const LEN: usize = size_of::<$kind>();
            fn put(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Result<Self, FrameError> {
                let mut raw = [0; size_of::<$kind>()];
                raw.copy_from_slice(&bytes[..Self::LEN]);
                Ok(Self::from_le_bytes(raw))
            }
        }
    )*};
}

integer_field!(u8, u16, u32, u64);

impl Field for Address {
    const LEN: usize = Address::PLACE_LEN;
    /// Writes the address without its key, which is a secret.
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.place_bytes());
    }
    fn get(bytes: &[u8]) -> Result<Self, FrameError> {
        Address::from_place(bytes).map_err(|_| FrameError::Address)
    }
}

impl Field for [u64; ACK_WORDS] {
    const LEN: usize = 8 * ACK_WORDS;
    fn put(&self, out: &mut [u8]) {
        self.iter().zip(out.chunks_exact_mut(8)).for_each(|(word, out)| word.put(out));
    }
    fn get(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut words = [0; ACK_WORDS];
        for (word, raw) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::get(raw)?;
        }
        Ok(words)
    }
}

/// Rejects a Hello of an older version, which is shorter than ours: the decoder would wait for the rest in vain.
fn check_version(bytes: &[u8]) -> Result<(), FrameError> {
    let Some(&[1, magic @ .., low, high]) = bytes.first_chunk::<7>() else { return Ok(()) };
    match u16::from_le_bytes([low, high]) {
        version if magic == MAGIC.to_le_bytes() && version < PROTOCOL_OLDEST => {
            Err(FrameError::Version(version))
        }
        _ => Ok(()),
    }
}

/// A row of the manual's table of frames.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// First byte of the frame.
    pub tag: u8,
    /// Name of the frame.
    pub name: &'static str,
    /// The meaning of the frame.
    pub meaning: &'static str,
    /// Its fields: name and type.
    pub fields: &'static [(&'static str, &'static str)],
    /// Length of the header, tag included. Bytes.
    pub header_len: usize,
}

macro_rules! frames {
    ($($(#[doc = $doc:literal])+ $name:ident = $tag:literal { $($(#[doc = $fdoc:literal])+ $field:ident: $kind:ty,)* })+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name { $($(#[doc = $fdoc])+ pub $field: $kind,)* }

            impl $name {
                /// Length of the header, tag included. Bytes.
                pub const LEN: usize = 1 $(+ <$kind as Field>::LEN)*;

                /// The header.
                pub fn to_bytes(&self) -> [u8; Self::LEN] {
                    let mut header = [$tag; Self::LEN];
                    let mut at = 1;
                    $(
                        self.$field.put(&mut header[at..at + <$kind as Field>::LEN]);
                        at += <$kind as Field>::LEN;
                    )*
                    let _ = at;
                    header
                }

                fn get(bytes: &[u8]) -> Result<Self, FrameError> {
                    let bytes = &bytes[..Self::LEN];
                    let mut at = 1;
                    $(
                        let $field = <$kind as Field>::get(&bytes[at..])?;
                        at += <$kind as Field>::LEN;
                    )*
                    let _ = at;
                    Ok(Self { $($field),* })
                }
            }

            impl $name {
                /// Like [`Frame::decode`]; `None` also if another frame is at the front.
                pub fn decode(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
                    if bytes.len() < Self::LEN || bytes[0] != $tag {
                        return Ok(None);
                    }
                    Self::get(bytes).map(Some)
                }
            }

            impl From<$name> for Frame {
                fn from(frame: $name) -> Self {
                    Self::$name(frame)
                }
            }

            const _: () = assert!($name::LEN <= HEADER_MAX);
        )+

        /// Any frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is documented at its structure")]
        pub enum Frame { $($name($name),)+ }

        impl Frame {
            /// Length of the header, tag included. Bytes.
            pub fn header_len(&self) -> usize {
                match self { $(Self::$name(_) => $name::LEN,)+ }
            }

            /// Appends the header.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Self::$name(frame) => out.extend_from_slice(&frame.to_bytes()),)+ }
            }

            /// Decodes the header at the front of `bytes`; `None` if it needs more bytes.
            pub fn decode(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
                let Some(&tag) = bytes.first() else { return Ok(None) };
                check_version(bytes)?;
                let frame = match tag {
                    $($tag => {
                        if bytes.len() < $name::LEN {
                            return Ok(None);
                        }
                        Self::$name($name::get(bytes)?)
                    })+
                    unknown => return Err(FrameError::Tag(unknown)),
                };
                match frame.payload_len() {
                    len if len > PAYLOAD_MAX => Err(FrameError::Payload(len)),
                    _ => Ok(Some(frame)),
                }
            }
        }

        impl fmt::Display for Frame {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$name(frame) => write!(f, "{frame:?}"),)+ }
            }
        }

        /// The manual's table of frames.
        pub const TABLE: &[Row] = &[$(Row {
            tag: $tag,
            name: stringify!($name),
            meaning: concat!($($doc),+),
            fields: &[$((stringify!($field), stringify!($kind)),)*],
            header_len: $name::LEN,
        },)+];
    };
}

frames! {
    /// Opens a lane; the first frame of the side that connects.
    Hello = 1 {
        /// [`MAGIC`].
        magic: u32,
        /// [`PROTOCOL_VERSION`] of the sender.
        version: u16,
        /// The endpoint that connects.
        source: Address,
        /// The endpoint that is to answer.
        target: Address,
        /// Credit limit granted with the lane. Bytes.
        credit: u64,
        /// Routers passed so far; each adds itself.
        hops: u8,
        /// [`PROTOCOL_OLDEST`] of the sender.
        oldest: u16,
        /// Length of the proof of the source's identity, which follows: the first message of a Noise handshake. 0 if
        /// the sender does not know the target's key. Bytes.
        payload: u32,
    }
    /// Accepts a lane; the first frame of the side that listens.
    Welcome = 2 {
        /// [`MAGIC`].
        magic: u32,
        /// The newest version of the protocol that both ends speak.
        version: u16,
        /// The endpoint that answers.
        source: Address,
        /// Credit limit granted with the lane. Bytes.
        credit: u64,
        /// Length of the proof of the source's identity, which follows: the second message of the handshake. Bytes.
        payload: u32,
    }
    /// Refuses a lane, instead of Welcome: the peer does, or a router on the way. The
    /// sender closes after it.
    Refuse = 3 {
        /// [`MAGIC`].
        magic: u32,
        /// [`PROTOCOL_VERSION`] of the sender.
        version: u16,
        /// A [`RefuseReason`].
        reason: u8,
        /// [`PROTOCOL_OLDEST`] of the sender.
        oldest: u16,
    }
    /// Before Hello, from the side that connects: the lane's bytes could go over a local
    /// fabric. The payload lists the ways, best first: see `isthmus-fabric`.
    Offer = 4 {
        /// [`MAGIC`].
        magic: u32,
        /// Version of the list.
        version: u16,
        /// Number of the sender's host: endpoints that share memory with it have the same number.
        host: u64,
        /// Length of the list. Bytes.
        payload: u32,
    }
    /// Answers Offer. The payload is the name of the answerer's endpoint on the chosen fabric.
    Answer = 5 {
        /// [`MAGIC`].
        magic: u32,
        /// Index of the chosen entry of the offered list; 255: none, the lane stays as it is.
        choice: u8,
        /// Names the lane in the packets to the sender.
        lane: u64,
        /// Length of the name. Bytes.
        payload: u32,
    }
    /// Ends the handover that Offer began: both sides have tried the fabric.
    Settle = 6 {
        /// 1: all further bytes of the lane go over the fabric; 0: it stays as it is.
        moved: u8,
    }
    /// On the connection of a lane that has moved to a fabric: the sender no longer polls the fabric.
    Doze = 7 {
        /// Packets of this lane that the sender has received.
        received: u64,
    }
    /// Answers Doze when there is something to receive on the fabric.
    Ring = 8 {
        /// Packets of this lane that were sent.
        sent: u64,
    }
    /// The head of every message on a fabric; the payload is the next bytes of the lane.
    Packet = 9 {
        /// A [`PacketKind`].
        kind: u8,
        /// Names the lane, as its receiver told in Answer or in its probe.
        lane: u64,
        /// Number of the packet, among the packets of its lane that count against `limit`.
        seq: u64,
        /// Packets that the receiver may send on this lane in all. Count.
        limit: u64,
        /// Length of the payload. Bytes.
        payload: u32,
    }
    /// First fragment of a message that is matched with a receive.
    Message = 16 {
        /// [`flags`].
        flags: u8,
        /// Connection on this link; 0 is the one between the lane's two endpoints.
        connection: u32,
        /// Number of the fragment; also names the message.
        seq: u64,
        /// Place in the order in which messages are matched.
        order: u64,
        /// Tag, for tagged messages.
        tag: u64,
        /// Data for the receiver's completion.
        data: u64,
        /// Length of the message. Bytes.
        total: u64,
        /// Length of the part that comes without waiting for Accept. Bytes.
        eager: u64,
        /// Length of this fragment, from offset 0. Bytes.
        payload: u32,
    }
    /// A further fragment of a message.
    More = 17 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The message: number of its first fragment.
        message: u64,
        /// Offset of the fragment in the message. Bytes.
        offset: u64,
        /// Length of the fragment. Bytes.
        payload: u32,
    }
    /// A message was matched: its remaining bytes may come.
    Accept = 18 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The message: number of its first fragment.
        message: u64,
        /// Length of the part that is wanted, from the start of the message. Bytes.
        wanted: u64,
    }
    /// A write or an atomic has been carried out, or refused.
    Done = 19 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The operation's token.
        token: u64,
        /// 0, or a [`Status`].
        status: u8,
    }
    /// A fragment of a write to registered memory. It has all that is needed to place it alone.
    Write = 20 {
        /// [`flags`].
        flags: u8,
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The operation's token at the initiator.
        token: u64,
        /// Key of the target's registration.
        key: u64,
        /// Start of the whole write in the registration.
        addr: u64,
        /// Data for the target's completion.
        data: u64,
        /// Length of the whole write. Bytes.
        total: u64,
        /// Offset of the fragment in the write. Bytes.
        offset: u64,
        /// Length of the fragment. Bytes.
        payload: u32,
    }
    /// Asks for a piece of registered memory.
    Read = 21 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The operation's token at the initiator.
        token: u64,
        /// Key of the target's registration.
        key: u64,
        /// Start in the registration.
        addr: u64,
        /// Length. Bytes.
        len: u64,
    }
    /// A fragment of what Read or Atomic asked for.
    Reply = 22 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The operation's token at the initiator.
        token: u64,
        /// Offset of the fragment in the answer. Bytes.
        offset: u64,
        /// 0, or a [`Status`]; then there is no payload.
        status: u8,
        /// Length of the fragment. Bytes.
        payload: u32,
    }
    /// An atomic operation; the payload is the operand, then the compare operand if any.
    Atomic = 23 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// Place in the order of messages.
        order: u64,
        /// The operation's token at the initiator.
        token: u64,
        /// Key of the target's registration.
        key: u64,
        /// Start in the registration.
        addr: u64,
        /// Length of the target's elements. Bytes.
        len: u64,
        /// The call: update, fetch or compare.
        kind: u8,
        /// The operation on each element.
        op: u8,
        /// Type of the elements.
        datatype: u8,
        /// Length of the operands. Bytes.
        payload: u32,
    }
    /// Announces a posted receive that has no message yet. The message for it may come whole, as [`Granted`]. A
    /// receiver announces only to senders that ask ([`flags::ANNOUNCE`]).
    Announce = 24 {
        /// [`flags`]: the channel.
        flags: u8,
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment. Announcements have the order in which the receives were posted.
        seq: u64,
        /// Names the receive in [`Withdraw`].
        number: u32,
        /// Order of the first message that the receive may match. Earlier ones came before it was posted.
        order: u64,
        /// The tag wanted.
        tag: u64,
        /// Bits of the tag that need not match.
        ignore: u64,
        /// Room in the buffer. Bytes.
        room: u64,
    }
    /// A fragment of a message whose receive was announced. It goes without credit and without waiting for Accept. The
    /// receiver drops it if no receive has matched.
    Granted = 25 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The message: number of its first fragment.
        message: u64,
        /// Offset of the fragment in the message. Bytes.
        offset: u64,
        /// Length of the fragment. Bytes.
        payload: u32,
    }
    /// Accepts a message of which Granted fragments were dropped. The sender sends the bytes from `from` on again, as
    /// More.
    Resume = 26 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The message: number of its first fragment.
        message: u64,
        /// Offset from which the message is missing. Bytes.
        from: u64,
        /// Length of the part that is wanted, from the start of the message. Bytes.
        wanted: u64,
    }
    /// Takes back an announcement: the receive is gone, and no message has matched it.
    Withdraw = 27 {
        /// Connection on this link.
        connection: u32,
        /// Number of the fragment.
        seq: u64,
        /// The number in its Announce.
        number: u32,
    }
    /// All fragments below `upto` have arrived. Not numbered; the latest counts.
    Ack = 32 {
        /// Connection on this link.
        connection: u32,
        /// First fragment not yet received.
        upto: u64,
        /// Credit limit. Bytes.
        credit: u64,
    }
    /// Ack with gaps: bit i of the map stands for fragment `upto` + 1 + i.
    AckMap = 33 {
        /// Connection on this link.
        connection: u32,
        /// First fragment not yet received.
        upto: u64,
        /// Credit limit. Bytes.
        credit: u64,
        /// Fragments received beyond the gap.
        map: [u64; ACK_WORDS],
    }
    /// Asks for a Pong at once.
    Ping = 34 {
        /// Returned in Pong.
        id: u64,
    }
    /// Answers Ping.
    Pong = 35 {
        /// The id in the Ping.
        id: u64,
    }
    /// The endpoint closes; the last frame of a lane.
    Bye = 36 {
        /// Connection on this link.
        connection: u32,
    }
    /// Announces another locator at which the sender listens, on another network. Lanes may go there too.
    Also = 37 {
        /// The sender's address, with that locator.
        address: Address,
    }
}

/// Bits of the `flags` fields.
pub mod flags {
    /// `tag` is valid: the message belongs to the tagged channel.
    pub const TAGGED: u8 = 1;
    /// `data` is valid.
    pub const DATA: u8 = 2;
    /// Answer with Accept when the message is matched, even if all of it came eagerly.
    pub const ACCEPT: u8 = 4;
    /// The acknowledgement may wait for another frame: the sender needs it only to free its window.
    pub const LAZY: u8 = 8;
    /// With `TAGGED`: the message belongs to the channel of groups instead. No tagged receive matches it.
    pub const GROUP: u8 = 16;
    /// The sender has too little credit for its messages, and asks for announcements of receives ([`super::Announce`]).
    /// A build that does not know this bit announces none, so it gets no frame that it does not know.
    pub const ANNOUNCE: u8 = 32;
}

/// Kinds of [`Packet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PacketKind {
    /// The next bytes of the lane; counts against the limit.
    Data = 0,
    /// The sender's bytes end here; counts against the limit.
    End = 1,
    /// Has no data, only the limit.
    Limit = 2,
    /// Tries the fabric; answered by [`PacketKind::Proof`]. The payload starts with the name of the lane in the packets
    /// to the sender, as a u64.
    Probe = 3,
    /// Answers a probe.
    Proof = 4,
}

impl PacketKind {
    /// The kind with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Data, Self::End, Self::Limit, Self::Probe, Self::Proof]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// Why a lane is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefuseReason {
    /// The versions of the protocol differ.
    Version = 1,
    /// The endpoint addressed is not the one that listens here now.
    Stranger = 2,
    /// The connection failed earlier, or the endpoint is closing.
    Closed = 3,
    /// The source is in another autonomous system or subnet, and no router joins them.
    Subnet = 4,
    /// A router knows no route to the target's autonomous system or subnet.
    NoRoute = 5,
    /// A router does not admit this source, or does not let it reach this target.
    Denied = 6,
    /// A router found nobody listening at the target's locator.
    Absent = 7,
    /// A router could not reach the next hop.
    Unreached = 8,
    /// More than [`HOPS_MAX`] routers were passed.
    Loop = 9,
    /// A router has as many lanes as it may have, or is being drained.
    Full = 10,
    /// The endpoint takes encrypted lanes only.
    Plain = 11,
    /// The endpoint admits only those who know its whole address, and the Hello proves nothing.
    Unproved = 12,
}

impl RefuseReason {
    const ALL: [Self; 12] = [
        Self::Version,
        Self::Stranger,
        Self::Closed,
        Self::Subnet,
        Self::NoRoute,
        Self::Denied,
        Self::Absent,
        Self::Unreached,
        Self::Loop,
        Self::Full,
        Self::Plain,
        Self::Unproved,
    ];

    /// The reason with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == code)
    }
}

/// Why an access to registered memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// No registration has this key.
    Key = 1,
    /// The range is outside the registration.
    Bounds = 2,
    /// The registration does not permit this access.
    Access = 3,
    /// The target does not know this atomic operation for this type.
    Unsupported = 4,
}

impl Status {
    /// The status with this number; `None` for success and unknown numbers.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Key, Self::Bounds, Self::Access, Self::Unsupported]
            .into_iter()
            .find(|status| *status as u8 == code)
    }

    /// Text for the initiator's completion.
    pub fn text(self) -> &'static str {
        match self {
            Self::Key => "no memory is registered under this key",
            Self::Bounds => "the range lies outside the registered memory",
            Self::Access => "the registration does not permit this access",
            Self::Unsupported => "the target does not know this atomic operation for this type",
        }
    }
}

impl Frame {
    /// Payload bytes that follow the header.
    pub fn payload_len(&self) -> u32 {
        match self {
            Self::Hello(frame) => frame.payload,
            Self::Welcome(frame) => frame.payload,
            Self::Offer(frame) => frame.payload,
            Self::Answer(frame) => frame.payload,
            Self::Packet(frame) => frame.payload,
            Self::Message(frame) => frame.payload,
            Self::More(frame) => frame.payload,
            Self::Write(frame) => frame.payload,
            Self::Reply(frame) => frame.payload,
            Self::Atomic(frame) => frame.payload,
            Self::Granted(frame) => frame.payload,
            _ => 0,
        }
    }

    /// Number of the fragment; `None` for frames that are not acknowledged.
    pub fn seq(&self) -> Option<u64> {
        match self {
            Self::Message(frame) => Some(frame.seq),
            Self::More(frame) => Some(frame.seq),
            Self::Accept(frame) => Some(frame.seq),
            Self::Done(frame) => Some(frame.seq),
            Self::Write(frame) => Some(frame.seq),
            Self::Read(frame) => Some(frame.seq),
            Self::Reply(frame) => Some(frame.seq),
            Self::Atomic(frame) => Some(frame.seq),
            Self::Announce(frame) => Some(frame.seq),
            Self::Granted(frame) => Some(frame.seq),
            Self::Resume(frame) => Some(frame.seq),
            Self::Withdraw(frame) => Some(frame.seq),
            _ => None,
        }
    }
}

/// The manual's table of frames, in Markdown.
pub fn table_markdown() -> String {
    let mut out = String::from("| Tag | Frame | Header bytes | Meaning | Fields |\n|---|---|---|---|---|\n");
    for row in TABLE {
        let fields: Vec<_> = row.fields.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        let line = format!(
            "| {} | {} | {} |{} | {} |\n",
            row.tag,
            row.name,
            row.header_len,
            row.meaning,
            fields.join(", ")
        );
        out.push_str(&line);
    }
    out
}

#[cfg(test)]
mod tests;
