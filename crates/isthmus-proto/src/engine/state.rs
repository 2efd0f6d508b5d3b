//! The records that the engine keeps: operations, messages on their way in, lanes,
//! connections.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use isthmus_wire::frame::{self, Frame};
use isthmus_wire::{Address, AsId};

use super::Config;
use super::late::Late;
use super::sparse::{Empty, Sparse};
use super::streams::{LaneSample, Streams};
use super::ways::Ways;
use crate::matching::Posted;
use crate::memory::Place;
use crate::window::{ReceiveWindow, SendWindow};
use crate::{AtomicKind, AtomicOp, AtomicType, Channel, OpError, Options, PeerId};

/// Microseconds on the caller's clock.
pub type Micros = u64;

/// One carrier of a link: a TCP stream for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// Credit that every endpoint grants before it has said anything. Bytes.
pub(crate) const CREDIT_FIRST: u64 = 64 << 10;

/// What an operation sends.
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
    /// The answer to a peer's read or atomic: no completion here.
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
    pub(crate) place: Place,
    /// Copied data of injected operations, operands of atomics, small answers.
    pub(crate) owned: Option<Vec<u8>>,
    /// Length of the message or transfer. Bytes.
    pub(crate) total: u64,
    /// How much has been put into fragments. Bytes.
    pub(crate) sent: u64,
    /// How much went or goes without waiting for Accept. Bytes.
    pub(crate) eager: u64,
    /// How much may be sent by now. Bytes.
    pub(crate) allowed: u64,
    /// How much the receiver wants. Bytes.
    pub(crate) limit: u64,
    /// Fragments not yet acknowledged.
    pub(crate) pieces: u32,
    /// Pieces of the buffer that a lane is writing from.
    pub(crate) leases: u32,
    /// Number of the first fragment, once started.
    pub(crate) first: Option<u64>,
    pub(crate) order: u64,
    /// Done or the whole Reply is still to come.
    pub(crate) awaiting: bool,
    /// Answer received so far. Bytes.
    pub(crate) received: u64,
    pub(crate) error: Option<OpError>,
    /// It asks for receives to be announced.
    pub(crate) asks: bool,
    /// Fragments before this number went as its receive was announced (`granted.rs`). 0: none did.
    pub(crate) granted_before: u64,
    /// When the first acknowledgement of any of its fragments came.
    pub(crate) heard: Option<Micros>,
    /// Told apart from earlier users of the same slot.
    pub(crate) generation: u32,
    /// Its index, as part of its token.
    pub(crate) slot: u32,
    /// When it was posted, by the latest time that the shell had told.
    pub(crate) posted_at: Micros,
}

impl Operation {
    /// Whether the peer has all of it, and has answered where it was to.
    pub(crate) fn is_carried_out(&self) -> bool {
        let sent = self.sent >= self.limit && self.allowed >= self.limit;
        self.first.is_some() && self.pieces == 0 && sent && !self.awaiting
    }

    /// Whether it has ended, but for lanes that still refer to its buffer.
    pub(crate) fn is_over(&self) -> bool {
        self.first.is_some() && self.pieces == 0 && (self.error.is_some() || self.is_carried_out())
    }

    /// Whether its buffer is the program's until the operation ends.
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

    /// Names the operation to the peer, which returns it in its answer.
    pub(crate) fn token(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

/// A fragment on its way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) lane: LaneId,
    pub(crate) load: Load,
    /// When it was last given to a lane, and how often because it was late (`late.rs`).
    pub(crate) sent_at: Micros,
    pub(crate) tries: u8,
}

/// How a fragment is made again.
#[derive(Debug)]
pub(crate) enum Load {
    /// The whole frame was kept.
    Kept { bytes: Vec<u8>, operation: Option<usize> },
    /// A message of few bytes, which belongs to no operation.
    Few(Few),
    /// A piece of an operation's buffer.
    Piece { operation: usize, offset: u64, len: u32 },
}

impl Load {
    pub(crate) fn operation(&self) -> Option<usize> {
        match self {
            Self::Kept { operation, .. } => *operation,
            Self::Few(_) => None,
            Self::Piece { operation, .. } => Some(*operation),
        }
    }
}

/// What a message of few bytes is made of, but for its number: it is kept in place, not in a buffer of its own.
#[derive(Debug)]
pub(crate) struct Few {
    order: u64,
    tag: u64,
    data: u64,
    bytes: [u8; Few::MAX],
    len: u8,
    flags: u8,
}

impl Few {
    const MAX: usize = 16;

    /// Of a message that is whole in one frame, with this payload; `None` where that is too long.
    #[inline]
    pub(crate) fn of(message: &frame::Message, payload: &[u8]) -> Option<Self> {
        let &frame::Message { order, tag, data, flags, .. } = message;
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..payload.len())?.copy_from_slice(payload);
        Some(Self { order, tag, data, bytes, len: payload.len() as u8, flags })
    }

    /// The frame, under its number.
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

/// A message that comes in, from its first fragment to its completion.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) peer: PeerId,
    /// Number of its first fragment: its name.
    pub(crate) message: u64,
    pub(crate) channel: Channel,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) total: u64,
    pub(crate) eager: u64,
    pub(crate) wants_accept: bool,
    /// Its sender asks for receives to be announced.
    pub(crate) asks: bool,
    pub(crate) stage: Stage,
    /// Bytes that will come, once that is settled.
    pub(crate) needed: u64,
    pub(crate) got: u64,
    /// Data that came before the receive: offset and bytes.
    pub(crate) parts: Vec<(u64, Vec<u8>)>,
    /// What came before the receive and beyond the credit.
    pub(crate) granted: Option<Box<super::granted::Granted>>,
    /// Why it will never be whole.
    pub(crate) error: Option<OpError>,
    /// Whether it comes by a lane.
    pub(crate) sender: Sender,
}

/// Who sent a message that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A peer, by a lane.
    Peer,
    /// This endpoint (`loopback.rs`), by an operation that is not complete until a receive takes the message; `None` where
    /// the data was copied.
    Own { operation: Option<usize> },
}

/// How far a message has got.
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
    /// Nobody wants it.
    Dropped,
}

/// A fragment whose payload is arriving piece by piece.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) frame: Frame,
    pub(crate) target: Target,
    pub(crate) done: u64,
    pub(crate) len: u64,
    /// The shell is filling the place right now, without the engine.
    pub(crate) busy: bool,
}

impl Stream {
    /// The shell is filling a buffer of this owner right now.
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

    /// The rest of the payload is dropped.
    pub(crate) fn drop_rest(&mut self) {
        if !self.busy {
            self.target = Target::Discard;
        }
    }
}

/// What waits until no lane's shell fills its buffer any more.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are rarely any, and never many")]
pub(crate) enum Lingering {
    /// The end of a message or of an operation that reads.
    Owner(Owner),
    /// A fragment that came whole while another lane still fills its place from an
    /// earlier transmission: noted only then, so that stale bytes cannot follow it.
    Fragment { peer: PeerId, frame: Frame, target: Target },
}

/// Whose buffer a fragment's payload goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A receive that matched this message.
    Message(usize),
    /// An operation that reads or fetches.
    Answer(usize),
    /// Registered memory.
    Region,
}

/// Where a fragment's payload goes.
#[derive(Debug)]
pub(crate) enum Target {
    Discard,
    /// To `offset` of `place`; bytes beyond `keep` are dropped.
    Direct {
        place: Place,
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
    /// Connected by us; the answer has not come.
    Greeting,
    /// Connected by a peer that has not yet said who it is.
    Listening,
    Open,
    /// Nothing but what is queued is sent; then the shell closes it.
    Closing,
}

/// What is known of who is at a lane's other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    None,
    /// A neighbour that is trusted to speak for others.
    Trusted,
    /// Somebody of this AS, by its certificate.
    Of(AsId),
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) state: LaneState,
    pub(crate) proof: Proof,
    pub(crate) peer: Option<PeerId>,
    /// The host that it came in from.
    pub(crate) from: Option<IpAddr>,
    /// Handshake and liveness frames, sent before anything else.
    pub(crate) control: VecDeque<Frame>,
    /// What it carries is to be sealed, if we dial it.
    pub(crate) seals: bool,
    /// Nobody else can read what it carries, sealed or not.
    pub(crate) private: bool,
    /// Until both ends have greeted.
    pub(crate) greeting: Option<Box<super::greeting::Greeting>>,
    pub(crate) stream: Option<Box<Stream>>,
    /// The shell has written all that it took.
    pub(crate) writable: bool,
    pub(crate) queued: bool,
    /// Operations whose buffers the unwritten batch refers to.
    pub(crate) leases: Vec<usize>,
    /// Batches of which the shell still uses the buffers.
    pub(super) borrowed: Option<Box<super::leases::Borrowed>>,
    pub(crate) pinged_at: Option<Micros>,
    /// We dialled it.
    pub(crate) dialled: bool,
    /// Round trip that the shell measured. Microseconds.
    pub(crate) rtt_us: Option<u64>,
    /// It uses all that the path has; more lanes beside it would only share that.
    pub(crate) fills_path: bool,
    /// It would, but is kept free for small messages while there are others.
    pub(crate) rests: bool,
    /// We dialled it through this router of the endpoint's list.
    pub(crate) router: Option<usize>,
    /// It came through routers.
    pub(crate) through_routers: bool,
    /// What carries it.
    pub(crate) kind: super::LaneKind,
    /// By which of the ways to the peer it goes (`ways.rs`).
    pub(crate) way: usize,
    /// What the shell last told of it.
    pub(crate) sample: Option<Box<LaneSample>>,
    /// When a fragment that it carried was last acknowledged, or it came up; and when it was last given
    /// something to write.
    pub(crate) moved_at: Micros,
    pub(crate) filled_at: Micros,
    /// Something came since routed lanes were last looked at.
    pub(crate) heard: bool,
    /// The last look by which something had come.
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
            rests: false,
            router: None,
            through_routers: false,
            from: None,
            kind: super::LaneKind::default(),
            way: 0,
            sample: None,
            moved_at: 0,
            filled_at: 0,
            heard: false,
            heard_at: 0,
        }
    }
}

/// A remote endpoint. Silent ones cost no more than this.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: Address,
    /// Where it answered, if that is not where it says it is: behind a forwarded port, or an address translation, what
    /// it knows of itself leads nowhere. Lanes go there from then on.
    pub(crate) answers_at: Option<Box<SocketAddr>>,
    /// It called, and the program has not named it: nobody but itself says where it listens.
    pub(crate) guest: bool,
    /// This peer turned out to be another one of the table.
    pub(crate) alias: Option<PeerId>,
    pub(crate) connection: Option<Box<Connection>>,
}

impl Peer {
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

/// A write that is coming in.
#[derive(Debug, Default)]
pub(crate) struct IncomingWrite {
    pub(crate) got: u64,
    pub(crate) status: u8,
}

/// What is on its way between two endpoints; nothing while they are silent.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) again: VecDeque<u64>,
    pub(crate) urgent: VecDeque<Urgent>,
    /// Answers to the peer's reads and atomics. They go before `fresh`, so that a fence
    /// of ours never holds up the peer, which may wait behind one of its own.
    pub(crate) replies: VecDeque<usize>,
    pub(crate) fresh: VecDeque<usize>,
    pub(crate) bulk: VecDeque<usize>,
    /// Messages whose Accept is still to come, by number of their first fragment.
    pub(crate) unaccepted: BTreeMap<u64, usize>,
    pub(crate) early: BTreeMap<u64, Early>,
    pub(crate) incoming: BTreeMap<u64, usize>,
    pub(crate) writes: BTreeMap<u64, IncomingWrite>,
    /// Operands of the atomics in `early`. Bytes.
    pub(crate) early_operands: u64,
}

impl Traffic {
    fn has_fragments(&self) -> bool {
        // Together: none is likely to have any.
        self.again.len() | self.urgent.len() | self.replies.len() | self.fresh.len() | self.bulk.len() != 0
    }
}

impl Traffic {
    /// Whether no message of the peer is on its way in, or came too early.
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

/// What is known of a peer that cannot be reached, or was given up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) failed: Option<OpError>,
    pub(crate) lost_since: Option<Micros>,
    pub(crate) retry_at: Option<Micros>,
    /// More lanes failed to come up: none is tried before this.
    pub(crate) spread_at: Option<Micros>,
    pub(crate) backoff_us: u64,
    pub(crate) refusals: u32,
    /// Routers in a row that said that there is no way.
    pub(crate) hopeless: u32,
    pub(crate) last_failure: String,
    /// What it left behind (`gone.rs`). Bytes.
    pub(crate) holds: u64,
}

impl Trouble {
    /// The next pause between attempts to connect.
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
    /// Those of the Hellos in either direction.
    pub(crate) hellos: crate::admission::Numbers,
    /// It is among those that keep their memory (`sparse.rs`).
    pub(crate) warm: bool,
    /// Its messages are compared with announcements: none goes the short way (`short.rs`).
    pub(crate) goes_long: bool,
    pub(crate) traffic: Sparse<Traffic>,
    pub(crate) trouble: Sparse<Trouble>,

    pub(crate) window: SendWindow<Flight>,
    /// Set while a fenced operation is the first of `fresh`: what was sent before it.
    pub(crate) fence: Option<u64>,
    /// Operations of the program started and not complete; those that completed at once
    /// not counted.
    pub(crate) active: u32,
    /// Those of them that the peer answers.
    pub(crate) requests: u32,
    /// Operands of the atomics among them. Bytes.
    pub(crate) operands: u64,
    /// Answers to the peer that it has not acknowledged.
    pub(crate) answers: u32,
    pub(crate) next_order: u64,
    pub(crate) credit_limit: u64,
    pub(crate) credit_used: u64,
    pub(crate) receives: super::transfer::Receives,
    /// Receives that either side announces to the other, where one has asked.
    pub(crate) announces: Option<Box<super::announce::Announces>>,

    pub(crate) received: ReceiveWindow,
    pub(crate) expected_order: u64,
    /// Messages that no receive has matched.
    pub(crate) unmatched: u32,
    /// Data that waits for receives. Bytes; never more than `granted`.
    pub(crate) held: u64,
    pub(crate) granted: u64,
    /// Credit that the peer has used. Bytes; never more than was advertised.
    pub(crate) taken: u64,
    pub(crate) returned: u64,
    pub(crate) advertised: u64,

    pub(crate) ack_owed: bool,
    /// When it first was, of those not yet sent.
    pub(crate) owed_since: Micros,
    /// Already among those that the engine owes acknowledgements: soon, and later.
    pub(crate) owing: bool,
    pub(crate) owing_later: bool,
    pub(crate) ack_due: bool,
    pub(crate) unacked: u32,

    /// What arrives from the peer, where credit follows that.
    pub(crate) inflow: Option<Box<super::credit::Inflow>>,
    pub(crate) rtt_us: Option<u64>,
    /// The lane that was dialled last because others were outdone.
    pub(crate) relief: Option<LaneId>,
    /// How many of the lanes carry, where that is measured; and what is known of how long fragments take.
    pub(crate) streams: Option<Box<Streams>>,
    pub(crate) late: Option<Box<Late>>,
    /// What the peer told of other ways to it.
    pub(crate) ways: Option<Box<Ways>>,
    /// Routed, or by several ways: when its lanes are looked at next, and whether they were used
    /// meanwhile.
    pub(crate) look_at: Option<Micros>,
    pub(crate) used: bool,
    pub(crate) counters: super::PeerCounters,
}

impl Connection {
    /// One that has not said anything.
    pub(crate) fn fresh() -> Box<Self> {
        Box::new(Self { credit_limit: CREDIT_FIRST, granted: CREDIT_FIRST, ..Self::default() })
    }

    /// Gives back the memory of whatever is empty.
    pub(crate) fn shed(&mut self) {
        self.traffic.shed();
        self.trouble.shed();
        self.window.shed();
        self.received.shed();
    }

    /// Whether anything waits to be sent or acknowledged.
    /// An acknowledgement alone counts while there is a lane for it.
    pub(crate) fn has_work(&self) -> bool {
        self.traffic.has_fragments()
            || (self.ack_due && !self.lanes.is_empty())
            || !self.window.is_empty()
            || self.active > 0
            || self.answers > 0
    }

    /// Whether anything waits to be sent.
    pub(crate) fn has_output(&self) -> bool {
        self.ack_due || self.traffic.has_fragments()
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
        note("bytes held", self.held as usize);
        if let Some(announces) = &self.announces {
            announces.leftovers(note);
        }
        note("messages unmatched", self.unmatched as usize);
        if self.trouble.failed.is_none() {
            note("fragments unacknowledged", usize::from(!self.window.is_empty()));
        }
    }

    /// Credit reserved for this peer beyond what every peer has. Bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.granted.saturating_sub(CREDIT_FIRST)
    }

    /// Whether the peer is worth more than one lane.
    pub(crate) fn is_far(&self) -> bool {
        self.rtt_us.is_some_and(|rtt| rtt >= super::Config::FAR_US)
    }

    /// How many of the lanes carry anything: on a near peer the first does it all.
    pub(crate) fn carriers(&self) -> usize {
        let most = match &self.streams {
            _ if !self.is_far() => 1,
            Some(streams) => streams.count().max(2) as usize,
            None => usize::MAX,
        };
        self.lanes.len().min(most)
    }

    /// Says what has come, and grants credit.
    pub(crate) fn acknowledgement(&mut self) -> Frame {
        let (upto, credit) = (self.received.upto(), self.credit_to_advertise());
        self.advertised = credit;
        if self.received.has_gaps() {
            frame::AckMap { connection: 0, upto, credit, map: self.received.map() }.into()
        } else {
            frame::Ack { connection: 0, upto, credit }.into()
        }
    }

    pub(crate) fn credit_to_advertise(&self) -> u64 {
        self.granted + self.returned
    }
}

/// Buffers that are used again: fresh ones cost more to touch than what they carry costs to
/// copy.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    /// Capacity of all the large ones. Bytes.
    large_bytes: usize,
}

impl Pool {
    /// Capacity of the largest small buffer, and how many of those are kept.
    const SMALL: usize = 64 << 10;
    const SMALL_MAX: usize = 256;
    /// Most capacity that is kept in large ones. Bytes.
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
