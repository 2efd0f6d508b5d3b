//! The records that the engine keeps: operations, messages on their way in, lanes, connections.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;

use isthmus_path::streams::Streams;
use isthmus_path::{Bulk, LaneSample};
use isthmus_wire::frame::{self, Frame};
use isthmus_wire::{Address, AsId};

use super::Config;
use super::rails::Rails;
use super::sparse::{Empty, Sparse};
use super::stragglers::Stragglers;
use crate::matching::Posted;
use crate::memory::BufferRef;
use crate::window::{ReceiveWindow, SendWindow};
use crate::{AtomicKind, AtomicOp, AtomicType, Channel, OpError, Options, PeerId};

/// Microseconds on the caller's clock.
pub type Micros = u64;

/// Names a lane: one carrier of a connection, such as a TCP connection or a UDP stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// Kinds of operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Message {
        channel: Channel,
        tag: u64,
        data: Option<u64>,
    },
    Write {
        key: u64,
        addr: u64,
        data: Option<u64>,
    },
    Read {
        key: u64,
        addr: u64,
    },
    Atomic {
        key: u64,
        addr: u64,
        kind: AtomicKind,
        op: AtomicOp,
        datatype: AtomicType,
    },
    /// The answer to a peer's read or atomic. It has no completion.
    Reply {
        token: u64,
    },
}

/// An operation that sends something, from post to completion.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) peer: PeerId,
    pub(crate) kind: Kind,
    pub(crate) options: Options,
    pub(crate) place: BufferRef,
    /// Copied data of injected operations, operands of atomics, small answers.
    pub(crate) owned: Option<Vec<u8>>,
    /// Length of the message or transfer. Bytes.
    pub(crate) total: u64,
    /// Bytes put into fragments so far.
    pub(crate) sent: u64,
    /// Bytes that go without waiting for Accept.
    pub(crate) eager: u64,
    /// Bytes that may be sent now.
    pub(crate) allowed: u64,
    /// Bytes that the receiver wants.
    pub(crate) limit: u64,
    /// Fragments not yet acknowledged.
    pub(crate) pieces: u32,
    /// Pieces of the buffer to which lanes still refer (`leases.rs`). Count.
    pub(crate) leases: u32,
    /// Number of the first fragment, once started.
    pub(crate) first: Option<u64>,
    /// Position among the connection's messages and atomics.
    pub(crate) order: u64,
    /// The peer's Accept, Done or whole Reply is still to come.
    pub(crate) awaiting: bool,
    /// Answer received so far. Bytes.
    pub(crate) received: u64,
    pub(crate) error: Option<OpError>,
    /// The message asks the peer to announce its receives (`announce.rs`).
    pub(crate) asks: bool,
    /// Fragments below this number went without credit because the receive was announced (`granted.rs`). 0: none did.
    pub(crate) granted_before: u64,
    /// Time of the first acknowledgement of one of its fragments.
    pub(crate) heard: Option<Micros>,
    /// Distinguishes the operation from earlier users of its slot.
    pub(crate) generation: u32,
    /// The operation's index, as part of its token.
    pub(crate) slot: u32,
    /// Time of the post, by the engine's clock.
    pub(crate) posted_at: Micros,
}

impl Operation {
    /// Whether the peer has all of it, and has answered if an answer was due.
    pub(crate) fn is_carried_out(&self) -> bool {
        let sent = self.sent >= self.limit && self.allowed >= self.limit;
        self.first.is_some() && self.pieces == 0 && sent && !self.awaiting
    }

    /// Whether it has ended, except that lanes may still refer to its buffer.
    pub(crate) fn is_over(&self) -> bool {
        self.first.is_some() && self.pieces == 0 && (self.error.is_some() || self.is_carried_out())
    }

    /// Whether it uses the program's buffer until it ends.
    pub(crate) fn is_lent(&self) -> bool {
        let writes_back =
            !matches!(self.kind, Kind::Reply { .. } | Kind::Atomic { kind: AtomicKind::Update, .. });
        writes_back && !self.options.inject
    }

    /// Whether the peer answers it, by Done or Reply.
    pub(crate) fn is_request(&self) -> bool {
        !matches!(self.kind, Kind::Message { .. } | Kind::Reply { .. })
    }

    /// Whether the peer's answer carries data.
    pub(crate) fn takes_reply(&self) -> bool {
        match self.kind {
            Kind::Read { .. } => true,
            Kind::Atomic { kind, .. } => kind != AtomicKind::Update,
            _ => false,
        }
    }

    /// Length of an atomic's operands. Bytes.
    pub(crate) fn operands(&self) -> u64 {
        match (&self.kind, &self.owned) {
            (Kind::Atomic { .. }, Some(operands)) => operands.len() as u64,
            _ => 0,
        }
    }

    /// The operation's name in requests; the peer returns it in its answer.
    pub(crate) fn token(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

/// An unacknowledged fragment.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) lane: LaneId,
    pub(crate) load: Load,
    /// Time at which a lane last took it.
    pub(crate) sent_at: Micros,
    /// Times that it was sent again because it was late (`stragglers.rs`).
    pub(crate) tries: u8,
}

/// The record of a fragment, by which it can be sent again.
#[derive(Debug)]
pub(crate) enum Load {
    /// The whole frame.
    Kept { bytes: Vec<u8>, operation: Option<usize> },
    /// A message of at most 16 bytes, whose operation is over.
    Inline(Inline),
    /// A piece of an operation's buffer.
    Piece { operation: usize, offset: u64, len: u32 },
}

impl Load {
    pub(crate) fn operation(&self) -> Option<usize> {
        match self {
            Self::Kept { operation, .. } => *operation,
            Self::Inline(_) => None,
            Self::Piece { operation, .. } => Some(*operation),
        }
    }
}

/// A message of at most 16 bytes without its number, kept in place instead of in a buffer of its own.
#[derive(Debug)]
pub(crate) struct Inline {
    order: u64,
    tag: u64,
    data: u64,
    bytes: [u8; Inline::MAX],
    len: u8,
    flags: u8,
}

impl Inline {
    /// Longest payload. Bytes. It keeps a [`Flight`] small; most short messages of MPI programs are no longer.
    const MAX: usize = 16;

    /// Makes the record of a message that is whole in one frame; `None` if its payload is too long.
    #[inline]
    pub(crate) fn of(message: &frame::Message, payload: &[u8]) -> Option<Self> {
        let &frame::Message { order, tag, data, flags, .. } = message;
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..payload.len())?.copy_from_slice(payload);
        Some(Self { order, tag, data, bytes, len: payload.len() as u8, flags })
    }

    /// The frame with the number `seq`.
    pub(crate) fn message(&self, seq: u64) -> frame::Message {
        let &Self { order, tag, data, len, flags, .. } = self;
        let total = u64::from(len);
        frame::Message {
            flags,
            connection: 0,
            seq,
            order,
            tag,
            data,
            total,
            eager: total,
            payload: len.into(),
        }
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A message that is coming in, from its first fragment to its completion.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) peer: PeerId,
    /// Number of its first fragment, which names it.
    pub(crate) message: u64,
    pub(crate) channel: Channel,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) total: u64,
    pub(crate) eager: u64,
    pub(crate) wants_accept: bool,
    /// Its sender asks for receives to be announced (`announce.rs`).
    pub(crate) asks: bool,
    pub(crate) stage: Stage,
    /// Bytes that will come, once that is decided; `u64::MAX` before.
    pub(crate) needed: u64,
    pub(crate) got: u64,
    /// Data that came before the receive: offset and bytes.
    pub(crate) parts: Vec<(u64, Vec<u8>)>,
    /// Data that came before the receive and without credit (`granted.rs`).
    pub(crate) granted: Option<Box<super::granted::Granted>>,
    /// The reason why it will never be whole.
    pub(crate) error: Option<OpError>,
    /// Its sender.
    pub(crate) sender: Sender,
}

/// The sender of an incoming message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A peer, by a lane.
    Peer,
    /// This endpoint itself (`loopback.rs`). The operation completes when a receive takes the message; `None` if the
    /// data was copied and the operation is complete.
    Loopback { operation: Option<usize> },
}

/// The progress of an incoming message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// Its header has not arrived.
    Orphan,
    /// Its header arrived before those of earlier messages.
    Early,
    /// No receive matched.
    Unexpected,
    /// A receive matched; `last` releases a multi-receive buffer.
    Matched { posted: Posted, last: bool },
    /// Nobody will receive it.
    Dropped,
}

/// A fragment whose payload is arriving piece by piece.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) frame: Frame,
    pub(crate) target: Target,
    pub(crate) done: u64,
    pub(crate) len: u64,
    /// The shell is filling the target right now, without the engine.
    pub(crate) busy: bool,
}

impl Stream {
    /// Whether the shell is filling a buffer of this owner right now.
    pub(crate) fn fills(&self, owner: Owner) -> bool {
        self.busy && self.goes_to(owner)
    }

    pub(crate) fn goes_to(&self, owner: Owner) -> bool {
        match &self.target {
            Target::Direct { owner: other, .. } => *other == owner,
            Target::Bounce { inbound, .. } => Owner::Message(*inbound) == owner,
            Target::Discard => false,
        }
    }

    /// Drops the rest of the payload.
    pub(crate) fn drop_rest(&mut self) {
        if !self.busy {
            self.target = Target::Discard;
        }
    }
}

/// An operation that waits until no lane's shell fills its buffer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are rarely any, and never many")]
pub(crate) enum Lingering {
    /// The end of a message or of an operation that reads.
    Owner(Owner),
    /// A fragment that arrived whole while another lane was still filling its target from an earlier transmission. It
    /// counts as received only afterwards, so that no stale bytes follow it.
    Fragment { peer: PeerId, frame: Frame, target: Target },
}

/// The owner of the buffer that a fragment's payload goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A receive that matched this message.
    Message(usize),
    /// An operation that reads or fetches.
    Answer(usize),
    /// Registered memory.
    Region,
}

/// The destination of a fragment's payload.
#[derive(Debug)]
pub(crate) enum Target {
    Discard,
    /// To `offset` of `place`; bytes beyond `keep` are dropped.
    Direct {
        place: BufferRef,
        offset: u64,
        keep: u64,
        owner: Owner,
    },
    Bounce {
        inbound: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    /// The shell is connecting.
    Dialing,
    /// We connected and sent a Hello; the answer has not come.
    Greeting,
    /// A peer connected; its Hello has not come.
    Listening,
    Open,
    /// The queued frames are still sent; then the shell closes the lane.
    Closing,
}

/// The other end of a lane, as its certificate names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    None,
    /// A router, which speaks for others.
    Trusted,
    /// An endpoint of this AS.
    Of(AsId),
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) state: LaneState,
    pub(crate) proof: Proof,
    pub(crate) peer: Option<PeerId>,
    /// The host from which it came.
    pub(crate) from: Option<IpAddr>,
    /// Handshake and liveness frames, sent before anything else.
    pub(crate) control: VecDeque<Frame>,
    /// We dial it, and its data is to be sealed.
    pub(crate) seals: bool,
    /// Nobody else can read its data, whether it is sealed or not.
    pub(crate) private: bool,
    /// The handshake, until both ends have greeted.
    pub(crate) greeting: Option<Box<super::greeting::Greeting>>,
    pub(crate) stream: Option<Box<Stream>>,
    /// The shell has written all that it took, and may take more.
    pub(crate) writable: bool,
    /// It is in the engine's list of ready lanes.
    pub(crate) queued: bool,
    /// Operations whose buffers the unwritten batch refers to (`leases.rs`).
    pub(crate) leases: Vec<usize>,
    /// Batches whose buffers the shell still uses.
    pub(super) borrowed: Option<Box<super::leases::Borrowed>>,
    /// Time of the last Hello or Ping that is not answered.
    pub(crate) pinged_at: Option<Micros>,
    /// We dialled it.
    pub(crate) dialled: bool,
    /// Round trip that the shell measured. Microseconds.
    pub(crate) rtt_us: Option<u64>,
    /// It uses all of its path; more lanes beside it would only share the path.
    pub(crate) fills_path: bool,
    /// How much of the bulk data it carries, if it could fill its path.
    pub(crate) bulk: Bulk,
    /// We dialled it through this router of the endpoint's list.
    pub(crate) router: Option<usize>,
    /// It came through routers.
    pub(crate) through_routers: bool,
    /// Its carrier.
    pub(crate) kind: super::LaneKind,
    /// Index of the rail that it uses (`rails.rs`).
    pub(crate) rail: usize,
    /// The rate limit that the user set for it. Bytes/s.
    pub(crate) limit: Option<NonZeroU64>,
    /// The shell's last report of it.
    pub(crate) sample: Option<Box<LaneSample>>,
    /// Time at which a fragment that it carried was last acknowledged, or at which it came up.
    pub(crate) moved_at: Micros,
    /// Time at which it last got something to write.
    pub(crate) filled_at: Micros,
    /// Something came since the engine last looked for silent lanes (`routed.rs`).
    pub(crate) heard: bool,
    /// Time at which the engine last looked and something had come.
    pub(crate) heard_at: Micros,
}

impl Lane {
    pub(crate) fn new(state: LaneState, peer: Option<PeerId>) -> Self {
        Self {
            state,
            proof: Proof::None,
            peer,
            control: VecDeque::new(),
            seals: false,
            private: false,
            greeting: None,
            stream: None,
            writable: true,
            queued: false,
            leases: Vec::new(),
            borrowed: None,
            pinged_at: None,
            dialled: state == LaneState::Dialing,
            rtt_us: None,
            fills_path: false,
            bulk: Bulk::All,
            router: None,
            through_routers: false,
            from: None,
            kind: super::LaneKind::default(),
            rail: 0,
            limit: None,
            sample: None,
            moved_at: 0,
            filled_at: 0,
            heard: false,
            heard_at: 0,
        }
    }
}

/// A remote endpoint. One that was never talked to costs no more than this.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: Address,
    /// The locator where it answered, if that differs from its address. Later lanes go there: behind a forwarded port
    /// or an address translation, the address that it knows of itself leads nowhere.
    pub(crate) answers_at: Option<Box<SocketAddr>>,
    /// It called, and the program has not named it. Its locator is only its own claim.
    pub(crate) guest: bool,
    /// The host of the router that it called through, if the program has not named it.
    pub(crate) router_host: Option<Box<IpAddr>>,
    /// The program has named it.
    pub(crate) named: bool,
    /// It has left and nobody named it. The engine keeps nothing else of it (`gone.rs`).
    pub(crate) departed: bool,
    /// The program has said that this peer has proved who it is ([`Engine::vouch_for`](super::Engine::vouch_for)).
    pub(crate) vouched: bool,
    /// The entry of the table that this peer turned out to be.
    pub(crate) alias: Option<PeerId>,
    pub(crate) connection: Option<Box<Connection>>,
}

impl Peer {
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            answers_at: None,
            guest: false,
            router_host: None,
            named: false,
            departed: false,
            vouched: false,
            alias: None,
            connection: None,
        }
    }

    pub(crate) fn lanes(&self) -> &[LaneId] {
        self.connection.as_ref().map_or(&[], |connection| &connection.lanes)
    }
}

/// A numbered frame without payload that waits to be sent.
pub(crate) type Urgent = Frame;

/// A message or atomic that overtook an earlier one.
#[derive(Debug)]
pub(crate) enum Early {
    Message(usize),
    Atomic(frame::Atomic, Vec<u8>),
}

impl Early {
    /// Length of an atomic's operands. Bytes.
    pub(crate) fn operands(&self) -> u64 {
        match self {
            Self::Message(_) => 0,
            Self::Atomic(_, operands) => operands.len() as u64,
        }
    }
}

/// A peer's write that is coming in.
#[derive(Debug, Default)]
pub(crate) struct IncomingWrite {
    pub(crate) got: u64,
    pub(crate) status: u8,
}

/// Queues and unfinished work of a connection; all empty while it is silent.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Numbers of lost fragments, to be sent again.
    pub(crate) again: VecDeque<u64>,
    /// Short answers.
    pub(crate) urgent: VecDeque<Urgent>,
    /// Answers to the peer's reads and atomics. They go before `fresh`, so that a fence of ours never holds up the
    /// peer, which may wait at one of its own.
    pub(crate) replies: VecDeque<usize>,
    /// Operations that were posted and have not begun.
    pub(crate) fresh: VecDeque<usize>,
    /// Operations that have begun and have more to send.
    pub(crate) bulk: VecDeque<usize>,
    /// Messages whose Accept is still to come, by number of their first fragment.
    pub(crate) unaccepted: BTreeMap<u64, usize>,
    /// The peer's messages and atomics that overtook earlier ones, by their order.
    pub(crate) early: BTreeMap<u64, Early>,
    /// The peer's messages that are coming in, by number of their first fragment.
    pub(crate) incoming: BTreeMap<u64, usize>,
    pub(crate) writes: BTreeMap<u64, IncomingWrite>,
    /// Operands of the atomics in `early`. Bytes.
    pub(crate) early_operands: u64,
}

impl Traffic {
    fn has_fragments(&self) -> bool {
        // One test for all: most often none has any.
        self.again.len() | self.urgent.len() | self.replies.len() | self.fresh.len() | self.bulk.len() != 0
    }
}

impl Traffic {
    /// Whether no message of the peer is coming in or came too early.
    pub(crate) fn expects_nothing(&self) -> bool {
        self.early.is_empty() && self.incoming.is_empty()
    }
}

impl Empty for Traffic {
    fn empty() -> &'static Self {
        static EMPTY: Traffic = Traffic {
            again: VecDeque::new(),
            urgent: VecDeque::new(),
            replies: VecDeque::new(),
            fresh: VecDeque::new(),
            bulk: VecDeque::new(),
            unaccepted: BTreeMap::new(),
            early: BTreeMap::new(),
            incoming: BTreeMap::new(),
            writes: BTreeMap::new(),
            early_operands: 0,
        };
        &EMPTY
    }

    fn is_empty(&self) -> bool {
        !self.has_fragments()
            && self.unaccepted.is_empty()
            && self.early.is_empty()
            && self.incoming.is_empty()
            && self.writes.is_empty()
    }
}

/// The troubles of a peer that cannot be reached or was given up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) failed: Option<OpError>,
    pub(crate) lost_since: Option<Micros>,
    pub(crate) retry_at: Option<Micros>,
    /// A further lane failed to come up; none is dialled before this time.
    pub(crate) spread_at: Option<Micros>,
    pub(crate) backoff_us: u64,
    pub(crate) refusals: u32,
    /// Routers in a row that reported no route. Count.
    pub(crate) hopeless: u32,
    pub(crate) last_failure: String,
    /// The loss of a message that had completed from a copy was reported.
    pub(crate) told_lost: bool,
    /// Memory that the messages it left behind hold (`gone.rs`). Bytes.
    pub(crate) holds: u64,
}

impl Trouble {
    /// Doubles the pause between attempts to connect, and returns it. Microseconds.
    pub(crate) fn back_off(&mut self) -> Micros {
        self.backoff_us = (self.backoff_us * 2).clamp(Config::BACKOFF_US, Config::BACKOFF_MAX_US);
        self.backoff_us
    }
}

impl Empty for Trouble {
    fn empty() -> &'static Self {
        static EMPTY: Trouble = Trouble {
            failed: None,
            lost_since: None,
            retry_at: None,
            spread_at: None,
            backoff_us: 0,
            refusals: 0,
            hopeless: 0,
            last_failure: String::new(),
            told_lost: false,
            holds: 0,
        };
        &EMPTY
    }

    fn is_empty(&self) -> bool {
        self == Self::empty()
    }
}

/// The conversation between two endpoints.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) lanes: Vec<LaneId>,
    pub(crate) dialing: u32,
    /// The lane by which a frame of the peer came last. Acknowledgements go there: the peer may have lost other lanes,
    /// and this end may not know it yet.
    pub(crate) recent: Option<LaneId>,
    /// Numbers of the Hellos in either direction.
    pub(crate) hellos: crate::admission::HelloNumbers,
    /// It is among the connections that keep their memory (`sparse.rs`).
    pub(crate) warm: bool,
    /// Its messages are compared with announcements, so none takes the fast path (`fast_path.rs`).
    pub(crate) goes_long: bool,
    pub(crate) traffic: Sparse<Traffic>,
    pub(crate) trouble: Sparse<Trouble>,

    pub(crate) window: SendWindow<Flight>,
    /// Set while a fenced operation is the first of `fresh`: the number of the next fragment when it got there.
    pub(crate) fence: Option<u64>,
    /// The program's operations that have started and are not complete.
    pub(crate) active: u32,
    /// Operations among `active` that the peer answers.
    pub(crate) requests: u32,
    /// Operands of the atomics among `requests`. Bytes.
    pub(crate) operands: u64,
    /// Answers to the peer's reads and atomics that it has not acknowledged.
    pub(crate) answers: u32,
    pub(crate) next_order: u64,
    pub(crate) credit_out: super::credit::CreditOut,
    pub(crate) receives: super::transfer::Receives,
    /// Receives that the two sides have announced to each other, if one has asked (`announce.rs`).
    pub(crate) announces: Option<Box<super::announce::Announces>>,

    pub(crate) received: ReceiveWindow,
    pub(crate) expected_order: u64,
    /// Messages that no receive has matched.
    pub(crate) unmatched: u32,
    pub(crate) credit_in: super::credit::CreditIn,
    pub(crate) ack: super::acks::PendingAck,

    /// The rate at which bytes arrive from the peer, if the credit follows it (`credit.rs`).
    pub(crate) inflow: Option<Box<super::credit::Inflow>>,
    pub(crate) rtt_us: Option<u64>,
    /// The lane that was dialled last because another one was outdone ([`Engine::on_lane_outdone`](super::Engine)).
    pub(crate) relief: Option<LaneId>,
    /// The number of lanes that carry data, if that is measured (`streams.rs`).
    pub(crate) streams: Option<Box<Streams>>,
    /// The times that fragments take, to find stragglers (`stragglers.rs`).
    pub(crate) stragglers: Option<Box<Stragglers>>,
    /// The rails to the peer, if it has announced more than one (`rails.rs`).
    pub(crate) rails: Option<Box<Rails>>,
    /// Time of the next check of the lanes for silence; only for routed and multi-rail peers.
    pub(crate) silence_check_at: Option<Micros>,
    /// The lanes were used since the last check for silence.
    pub(crate) used: bool,
    pub(crate) counters: super::PeerCounters,
    /// The last decision about its streams, and the last about its transfers. Boxed: a silent peer has had none.
    pub(crate) decided: Option<Box<[Option<super::Decision>; 2]>>,
}

impl Connection {
    /// The state before anything was said.
    pub(crate) fn fresh() -> Box<Self> {
        Box::default()
    }

    /// Frees the memory of the queues and records that are empty.
    pub(crate) fn shed(&mut self) {
        self.traffic.shed();
        self.trouble.shed();
        self.window.shed();
        self.received.shed();
    }

    /// Whether anything waits to be sent or acknowledged. An acknowledgement alone counts only while there is a lane.
    pub(crate) fn has_work(&self) -> bool {
        self.traffic.has_fragments()
            || (self.ack.is_due() && !self.lanes.is_empty())
            || !self.window.is_empty()
            || self.active > 0
            || self.answers > 0
    }

    /// Whether anything waits to be sent.
    pub(crate) fn has_output(&self) -> bool {
        self.ack.is_due() || self.traffic.has_fragments()
    }

    pub(crate) fn leftovers(&self, note: &mut impl FnMut(&str, usize)) {
        note("fragments to send again", self.traffic.again.len());
        note("answers to send", self.traffic.urgent.len() + self.traffic.replies.len());
        note("operations not begun", self.traffic.fresh.len());
        note("operations in the middle", self.traffic.bulk.len());
        note("messages not accepted", self.traffic.unaccepted.len());
        note("operations counted as active", (self.active + self.requests + self.answers) as usize);
        note("operands counted", self.operands as usize);
        note("messages that came early", self.traffic.early.len());
        note("messages coming in", self.traffic.incoming.len());
        note("writes coming in", self.traffic.writes.len());
        note("bytes held", self.credit_in.held() as usize);
        if let Some(announces) = &self.announces {
            announces.leftovers(note);
        }
        note("messages unmatched", self.unmatched as usize);
        if self.trouble.failed.is_none() {
            note("fragments unacknowledged", usize::from(!self.window.is_empty()));
        }
    }

    /// Whether the peer is worth more than one lane.
    pub(crate) fn is_far(&self) -> bool {
        self.rtt_us.is_some_and(|rtt| rtt >= super::Config::FAR_US)
    }

    /// The number of lanes that carry data, the first ones of the list. For a near peer it is 1.
    pub(crate) fn carriers(&self) -> usize {
        let most = match &self.streams {
            _ if !self.is_far() => 1,
            Some(streams) => streams.count().max(2) as usize,
            None => usize::MAX,
        };
        self.lanes.len().min(most)
    }

    /// Whether an acknowledgement goes by this lane, which carries no data: the peer's last frame came by it.
    pub(crate) fn acks_aside(&self, lane: LaneId) -> bool {
        self.ack.is_due()
            && self.recent == Some(lane)
            && !self.lanes[..self.carriers()].contains(&lane)
            && self.lanes.contains(&lane)
    }

    /// Makes an acknowledgement, which also grants credit.
    pub(crate) fn acknowledgement(&mut self) -> Frame {
        let (upto, credit) = (self.received.upto(), self.credit_in.advertise());
        if self.received.has_gaps() {
            frame::AckMap { connection: 0, upto, credit, map: self.received.map() }.into()
        } else {
            frame::Ack { connection: 0, upto, credit }.into()
        }
    }
}

/// Buffers that are used again. The page faults of a fresh buffer cost more than copying the data into it.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    /// Capacity of all large buffers. Bytes.
    large_bytes: usize,
}

impl Pool {
    /// Capacity up to which a buffer counts as small. Bytes.
    const SMALL: usize = 64 << 10;
    /// Most small buffers that are kept. Count; 16 MiB together.
    const SMALL_MAX: usize = 256;
    /// Most capacity that is kept in large buffers. Bytes.
    const LARGE_MAX: usize = 16 << 20;

    /// An empty buffer with room for `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut buffer =
            if len <= Self::SMALL { self.small.pop() } else { self.large.pop() }.unwrap_or_default();
        if buffer.capacity() > Self::SMALL {
            self.large_bytes -= buffer.capacity();
        }
        buffer.reserve_exact(len);
        buffer
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        buffer.clear();
        if capacity <= Self::SMALL {
            if self.small.len() < Self::SMALL_MAX {
                self.small.push(buffer);
            }
        } else if self.large_bytes + capacity <= Self::LARGE_MAX {
            self.large_bytes += capacity;
            self.large.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn a_pool_gives_what_was_given_and_keeps_no_more_than_its_bounds() {
        let mut pool = Pool::default();
        let first = pool.take(1 << 20);
        let at = first.as_ptr();
        pool.give(first);
        assert!(pool.take(10).capacity() < 1 << 20, "a small one is not taken from the large");
        let again = pool.take(600_000);
        assert_eq!(again.as_ptr(), at);
        let many: Vec<_> = (0..40).map(|_| pool.take(1 << 20)).collect();
        many.into_iter().chain([again]).for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.large_bytes, pool.large.iter().map(Vec::capacity).sum());
        assert!(pool.large_bytes <= Pool::LARGE_MAX && pool.large.len() == 16);
        let many: Vec<_> = (0..300).map(|_| pool.take(100)).collect();
        many.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.small.len(), Pool::SMALL_MAX);
    }
}
