//! Requests that a program makes of an endpoint, and the completions that it gets.

use isthmus_wire::frame::flags;

use crate::{ServiceLevel, Transfer};

/// Index of a remote endpoint in one local endpoint's table of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// The separate spaces in which receives are matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// `fi_send`/`fi_recv`: matched by arrival (and source).
    Untagged,
    /// `fi_tsend`/`fi_trecv`: matched by tag, ignore mask and source.
    Tagged,
    /// Messages of collective operations. They are matched as tagged messages are, but never by the program's own
    /// receives and peeks.
    Group,
}

impl Channel {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Untagged, Self::Tagged, Self::Group];

    /// The channel of a message with these [`flags`].
    #[inline]
    pub(crate) fn of(bits: u8) -> Self {
        match (bits & flags::TAGGED != 0, bits & flags::GROUP != 0) {
            (false, _) => Self::Untagged,
            (true, false) => Self::Tagged,
            (true, true) => Self::Group,
        }
    }

    /// The [`flags`] of a message of this channel.
    #[inline]
    pub(crate) fn flags(self) -> u8 {
        match self {
            Self::Untagged => 0,
            Self::Tagged => flags::TAGGED,
            Self::Group => flags::TAGGED | flags::GROUP,
        }
    }
}

/// The event at which an operation that sends is complete (`fi_endpoint(3)`, completion levels).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The caller's buffer may be used again.
    #[default]
    Transmit,
    /// The target endpoint has all the data (for RMA and atomics: placed in its memory).
    Delivery,
    /// The target matched the message with a receive.
    Match,
}

/// The earlier operations to the same peer that have to be complete before one starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fence {
    /// None of them.
    #[default]
    None,
    /// Its writes, reads and atomics of the peer's memory.
    Remote,
    /// All of them (`FI_FENCE`).
    All,
}

/// Options that every operation takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Returned unchanged in the operation's [`Completion`].
    pub context: u64,
    /// Returned unchanged in the operation's [`Completion`]: whether the caller wants an entry in its completion queue.
    /// The engine reports every operation that is not `silent`.
    pub notify: bool,
    /// Only its failure is reported.
    pub silent: bool,
    /// Buffers are copied before the call returns (`FI_INJECT`).
    pub inject: bool,
    /// The event at which the operation is complete.
    pub level: Level,
    /// A message to a far peer may complete once it has been copied, even at [`Level::Delivery`]. If it is lost after
    /// that, [`CompletionKind::SendLost`] says so under this context.
    pub buffered: Option<u64>,
    /// The earlier operations for which it waits.
    pub fence: Fence,
    /// The protocol of the message's transfer; `None`: as the endpoint is set.
    pub transfer: Option<Transfer>,
    /// The service level of the substrate's connection that sends the message, if one does.
    pub service: Option<ServiceLevel>,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// The destination.
    pub peer: PeerId,
    /// Tagged, untagged or a group's.
    pub channel: Channel,
    /// The tag; ignored for untagged messages.
    pub tag: u64,
    /// Data for the receiver's completion (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    /// Options of the operation.
    pub options: Options,
}

/// A buffer to receive into.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest {
    /// Only messages of this peer (`FI_DIRECTED_RECV`); `None` for any source.
    pub source: Option<PeerId>,
    /// Tagged, untagged or a group's.
    pub channel: Channel,
    /// The tag wanted; ignored for untagged receives.
    pub tag: u64,
    /// Bits of the tag that need not match.
    pub ignore: u64,
    /// `Some(n)`: a multi-receive buffer (`FI_MULTI_RECV`), released when fewer than `n` bytes are left in it. Untagged
    /// only.
    pub multi: Option<u64>,
    /// Options of the operation; `inject`, `level` and `fence` do not apply.
    pub options: Options,
}

/// The action on the unexpected message that a [`PeekRequest`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekAction {
    /// Report it and leave it (`FI_PEEK`).
    Look,
    /// Report it and reserve it for a later claim with the same context (`FI_PEEK | FI_CLAIM`).
    Claim,
    /// Report it and drop it (`FI_PEEK | FI_DISCARD`).
    Discard,
}

/// A search of the unexpected tagged messages. Its completion has the error [`OpError::NoMessage`] if none fits.
#[derive(Clone, Copy, Debug)]
pub struct PeekRequest {
    /// Only messages of this peer; `None` for any source.
    pub source: Option<PeerId>,
    /// The tag wanted.
    pub tag: u64,
    /// Bits of the tag that need not match.
    pub ignore: u64,
    /// The action for the message found.
    pub action: PeekAction,
    /// Options of the operation.
    pub options: Options,
}

/// A piece of a peer's registered memory.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRange {
    /// Key of the registration at the peer.
    pub key: u64,
    /// Offset in the registration, or virtual address if it was registered so.
    pub addr: u64,
    /// Length. Bytes.
    pub len: u64,
}

/// A read from or a write to a peer's registered memory.
#[derive(Clone, Copy, Debug)]
pub struct RmaRequest {
    /// The peer whose memory is accessed.
    pub peer: PeerId,
    /// The range of that memory.
    pub remote: RemoteRange,
    /// Data for a completion at the target (`FI_REMOTE_CQ_DATA`); writes only.
    pub data: Option<u64>,
    /// Options of the operation.
    pub options: Options,
}

/// Element types of atomic operations, in the order of libfabric's `enum fi_datatype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say all")]
pub enum AtomicType {
    Int8,
    Uint8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float,
    Double,
    FloatComplex,
    DoubleComplex,
}

/// Operations of atomics, in the order of libfabric's `enum fi_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are fi_atomic(3)'s")]
pub enum AtomicOp {
    Min,
    Max,
    Sum,
    Prod,
    Lor,
    Land,
    Bor,
    Band,
    Lxor,
    Bxor,
    AtomicRead,
    AtomicWrite,
    Cswap,
    CswapNe,
    CswapLe,
    CswapLt,
    CswapGe,
    CswapGt,
    Mswap,
}

/// The three calls of `fi_atomic(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// `fi_atomic`: nothing comes back.
    Update,
    /// `fi_fetch_atomic`: the earlier value comes back.
    Fetch,
    /// `fi_compare_atomic`: a compare buffer goes along, the earlier value comes back.
    Compare,
}

impl AtomicKind {
    /// Its number in frames.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Update => 0,
            Self::Fetch => 1,
            Self::Compare => 2,
        }
    }

    /// Lengths of the operand, compare and result buffers of an operation on `len` bytes. Bytes.
    pub fn buffers(self, op: AtomicOp, len: u64) -> [u64; 3] {
        let has = [op != AtomicOp::AtomicRead, self == Self::Compare, self != Self::Update];
        has.map(|has| if has { len } else { 0 })
    }
}

/// An atomic operation on a peer's registered memory.
#[derive(Clone, Copy, Debug)]
pub struct AtomicRequest {
    /// The peer whose memory is accessed.
    pub peer: PeerId,
    /// The range of that memory; its length is that of all elements.
    pub remote: RemoteRange,
    /// The call.
    pub kind: AtomicKind,
    /// The operation on each element.
    pub op: AtomicOp,
    /// Type of the elements.
    pub datatype: AtomicType,
    /// Options of the operation.
    pub options: Options,
}

/// The operation that a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A message was sent.
    Send(Channel),
    /// A message that had completed from a copy ([`Options::buffered`]) was lost. It always has an error.
    SendLost(Channel),
    /// A message was received.
    Recv(Channel),
    /// An unexpected tagged message was looked for.
    Peek,
    /// Local end of an RMA write.
    Write,
    /// Local end of an RMA read.
    Read,
    /// Local end of an atomic operation.
    Atomic(AtomicKind),
    /// Target end of an RMA write that carried data for the completion queue.
    RemoteWrite,
    /// Target end of an RMA write without data, of a read or of an atomic: for counters.
    RemoteAccess {
        /// Whether the target memory changed.
        wrote: bool,
        /// Whether the earlier content went to the peer.
        fetched: bool,
    },
    /// A multi-receive buffer is the caller's again.
    BufferReleased,
}

/// Why an operation failed, by who must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The message was longer than the buffer; the excess was dropped.
    #[error("message of {sent} bytes received into a buffer of {room} bytes; post a larger receive")]
    Truncated {
        /// Length of the message. Bytes.
        sent: u64,
        /// Length of the buffer. Bytes.
        room: u64,
    },
    /// The caller cancelled the operation.
    #[error("cancelled by the caller")]
    Cancelled,
    /// A peek found no matching message.
    #[error("no matching message has arrived")]
    NoMessage,
    /// The peer refused access to its memory.
    #[error("the peer refused access to its memory: {0}")]
    RemoteAccess(&'static str),
    /// The peer's process ended or is not there.
    #[error("{0}")]
    PeerGone(String),
    /// The peer was out of reach for the configured time, or it or the routers refused the connection.
    #[error("{0}")]
    Unreachable(String),
    /// The peer speaks another protocol or broke this one.
    #[error("{0}")]
    Protocol(String),
}

/// The end of an operation.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The operation's [`Options::context`].
    pub context: u64,
    /// The operation's [`Options::notify`]; true for [`CompletionKind::RemoteWrite`].
    pub notify: bool,
    /// The operation that completed.
    pub kind: CompletionKind,
    /// Length of the message or transfer; on truncation, the length received. Bytes.
    pub len: u64,
    /// For received messages, the address of the data. For memory that a peer accessed, the address that the peer
    /// named. Else 0.
    pub buffer: u64,
    /// Data that came with the message or write.
    pub data: Option<u64>,
    /// Tag of the message received; key of the memory that a peer accessed.
    pub tag: u64,
    /// The peer at the other end.
    pub peer: Option<PeerId>,
    /// Whether a multi-receive buffer ended with this message.
    pub released: bool,
    /// Why it failed; `None` on success.
    pub error: Option<OpError>,
}

impl Completion {
    /// A completion to fill in.
    pub(crate) const NOTHING: Self = Self {
        context: 0,
        notify: false,
        kind: CompletionKind::Read,
        len: 0,
        buffer: 0,
        data: None,
        tag: 0,
        peer: None,
        released: false,
        error: None,
    };

    /// A successful completion of 0 bytes.
    pub fn of(kind: CompletionKind, context: u64, notify: bool) -> Self {
        Self { context, notify, kind, ..Self::NOTHING }
    }

    /// The successful completion of a message that was sent with these options.
    #[inline]
    pub(crate) fn of_send(options: &Options, channel: Channel, len: u64, peer: PeerId) -> Self {
        let sent = Self::of(CompletionKind::Send(channel), options.context, options.notify);
        Self { len, peer: Some(peer), ..sent }
    }
}
