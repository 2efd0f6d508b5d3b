//! The engine of one endpoint.
//!
//! The program posts operations (`post.rs`). The shell reports changes of lanes (`lanes.rs`, `losses.rs`), passes in
//! frames (`receive.rs`), and fetches what to write (`transmit.rs`). After each report it drains, in this order:
//! [`Engine::next_ready`] and [`Engine::transmit`], [`Engine::poll_action`], [`Engine::poll_timeout`],
//! [`Engine::poll_completion`].

mod acks;
mod announce;
mod buffered;
mod counting;
mod credit;
mod decisions;
mod direct;
mod directory;
mod fast_path;
mod gone;
mod granted;
mod greeting;
mod lanes;
mod leases;
mod loopback;
mod losses;
mod messages;
mod post;
mod probe;
mod rails;
mod receive;
mod remote;
mod routed;
mod shutdown;
mod sparse;
mod stalls;
mod state;
mod stragglers;
mod streams;
mod transfer;
mod transmit;

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use isthmus_seal::Secret;
use isthmus_wire::{Address, Key, Versions};
use slab::Slab;

use crate::admission::{Identity, public_key};
use crate::matching::{Matcher, Posted};
use crate::memory::{BufferRef, Memory};
use crate::{Channel, Completion, CompletionKind, OpError, PeerId, Transfers};
use acks::Owed;
use directory::Directory;
use routed::Routers;
use sparse::Warm;
use state::{Connection, Inbound, Kind, Lane, Lingering, Operation, Owner, Peer, Pool, Stage};

pub use counting::{LaneKind, PeerCounters, PeerState};
pub use decisions::Decision;
pub use fast_path::FAST_PATH_FRAME_MAX;
pub use lanes::{LaneLoss, PeerFault};
pub use post::Refusal;
pub use receive::Sink;
pub use state::{LaneId, Micros};
pub use transmit::{Batch, Segment};

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The endpoint's own address.
    pub address: Address,
    /// Most unexpected data that one peer may send before receives are posted. Bytes.
    pub credit: u64,
    /// Whether the credit of a peer grows to what its path holds (`credit.rs`). Default false.
    pub credit_grows: bool,
    /// Most unexpected data of all peers together; later peers get less. Bytes.
    pub credit_total: u64,
    /// Longest message to a far peer that completes once it has been copied, if the program allows it
    /// ([`crate::Options::buffered`]). Bytes.
    pub buffered_max: u64,
    /// Most lanes to a peer that is far away (round trip of [`Config::FAR_US`] or more). Count.
    pub streams: u32,
    /// The [`crate::Transfer`] of messages that do not ask for one. Default: adaptive.
    pub transfers: Transfers,
    /// Time out of reach after which a peer's operations fail. Microseconds.
    pub peer_timeout_us: Micros,
    /// Connection attempts refused in a row before a peer counts as gone. Count.
    pub refusals_max: u32,
    /// Whether a receive from any peer waits for another message if the sender of its message is given up before all of
    /// it has come. Default false: the receive fails.
    pub receives_wait: bool,
    /// Whether incoming lanes must come from a peer with a certificate ([`Engine::set_lane_as`]). Default false.
    pub proved_only: bool,
    /// Whether peers must seal lanes that the shell does not call private ([`Engine::set_lane_private`]). Default
    /// false.
    pub sealed_only: bool,
    /// Routers of the endpoint's subnet, for peers in others. Empty: there are none.
    pub routers: Vec<SocketAddr>,
    /// Further addresses at which the endpoint listens, each on a network of its own. Peers are told of the first 3.
    pub also: Vec<SocketAddr>,
    /// Whether the endpoint calls one peer, and nobody calls it before that peer has answered. Then what it sends to a
    /// wildcard need not wait for the answer, and lanes that come in earlier are closed. Default false.
    pub calls_one: bool,
    /// The versions of the protocol that the endpoint speaks. Default: all that this build speaks.
    pub versions: Versions,
    /// Seed of the random choice among routers.
    pub seed: u64,
    /// With a secret, the endpoint admits only peers that prove that they know its whole address, and proves to them
    /// who it is. `address` must then have its key; [`Config::closed`] sets both. Default `None`: it admits everybody.
    pub secret: Option<Secret>,
}

impl Config {
    /// A peer is *far* from this round trip on, and may get more than one lane. Microseconds.
    pub const FAR_US: u64 = isthmus_path::thresholds::distance::FAR_US;
    /// First pause between attempts to connect; doubled each time up to [`Config::BACKOFF_MAX_US`]. Microseconds.
    pub const BACKOFF_US: Micros = 10_000;
    /// Longest pause between attempts to connect. Microseconds.
    pub const BACKOFF_MAX_US: Micros = 1_000_000;

    /// Most memory for messages that completed from a copy and are not acknowledged. Bytes (64 MiB): what a path of
    /// 1 Gb/s and 500 ms holds.
    pub const BUFFERED_TOTAL: u64 = 64 << 20;
    /// Default credit of a peer. Bytes.
    pub const CREDIT: u64 = 8 << 20;

    /// The defaults, for an endpoint at `address`.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            credit: Self::CREDIT,
            credit_grows: false,
            credit_total: 1 << 30,
            buffered_max: 1 << 20,
            streams: 32,
            transfers: Transfers::default(),
            peer_timeout_us: 60_000_000,
            refusals_max: 8,
            receives_wait: false,
            proved_only: false,
            sealed_only: false,
            routers: Vec::new(),
            also: Vec::new(),
            calls_one: false,
            versions: Versions::OWN,
            seed: 1,
            secret: None,
        }
    }

    /// Makes the endpoint admit only those who know its address, to which this adds the key.
    #[must_use]
    pub fn closed(self, secret: Secret) -> Self {
        Self { address: Address { key: public_key(&secret), ..self.address }, secret: Some(secret), ..self }
    }
}

/// A request of the engine to its shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect a lane.
    Dial {
        /// The lane's name from now on.
        lane: LaneId,
        /// The locator to dial: the peer's own, or a router's.
        locator: SocketAddr,
        /// The peer's key, if the peer itself listens there and has one.
        key: Key,
    },
    /// Close at once and report [`LaneLoss::Broken`]: the other end does not answer.
    Abandon {
        /// The lane.
        lane: LaneId,
    },
    /// Copy what is still needed of the first `batches` batches that the lane ever borrowed ([`Engine::borrowed`]), and
    /// report [`Engine::returned`] for each.
    Recall {
        /// The lane.
        lane: LaneId,
        /// Number of batches, including those that were returned before.
        batches: u64,
    },
    /// Write what is queued, then close and report the lane as lost. This must take bounded time: failed operations
    /// wait for the buffers that a lane writes from.
    Close {
        /// The lane.
        lane: LaneId,
    },
}

/// Counts of what an engine did, for diagnosis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Fragments sent, first transmissions only.
    pub fragments_sent: u64,
    /// Fragments sent again.
    pub fragments_resent: u64,
    /// Fragments received.
    pub fragments_received: u64,
    /// Fragments received again and dropped.
    pub duplicates: u64,
    /// Messages that went whole without waiting for an Accept.
    pub messages_eager: u64,
    /// Reads and writes of a near peer's memory that the shell carried out directly, without a message.
    pub accesses_reached: u64,
    /// Messages that waited for an Accept with all or part of their data.
    pub messages_asked: u64,
    /// Messages among `messages_asked` of which a part went before the Accept.
    pub messages_mixed: u64,
    /// Messages that went whole without credit because their receives were announced.
    pub messages_announced: u64,
    /// Messages among `messages_announced` of which a part was sent again because the announced receive was gone.
    pub messages_resumed: u64,
    /// Receives that were announced to senders.
    pub receives_announced: u64,
    /// Acknowledgements that went alone, not beside another frame.
    pub acks_alone: u64,
    /// Times that a peer's credit was raised.
    pub credit_raised: u64,
    /// Times that a peer's credit was lowered.
    pub credit_lowered: u64,
    /// Fragments sent again because their lane held them for too long, not because it broke.
    pub fragments_late: u64,
    /// TCP lanes added to those that carry data, as measurements suggested.
    pub streams_added: u64,
    /// TCP lanes taken from those that carry data, as measurements suggested.
    pub streams_rested: u64,
    /// Lanes given up because they had stopped while others moved.
    pub lanes_stuck: u64,
    /// UDP lanes that left bulk data to TCP lanes because the processor was the bottleneck.
    pub lanes_rested: u64,
    /// Lanes dialled to see whether a silent peer can be reached.
    pub probes: u64,
    /// Lanes that broke.
    pub lanes_lost: u64,
    /// Lanes that came up.
    pub lanes_opened: u64,
    /// Lanes that came up by kind, in the order of [`LaneKind::ALL`].
    pub lanes: [u64; LaneKind::ALL.len()],
    /// Decisions that were dropped because the shell did not fetch earlier ones ([`Engine::take_decisions`]).
    pub decisions_untold: u64,
}

/// The engine of one endpoint.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    /// The endpoint's keys, if peers must prove who they are.
    identity: Option<Identity>,
    peers: Vec<Peer>,
    directory: Directory,
    warm: Warm,
    lanes: Slab<Lane>,
    operations: Slab<Operation>,
    inbounds: Slab<Inbound>,
    matcher: Matcher,
    /// Messages that a peek reserved: the peek's context, and the message.
    claimed: Vec<(u64, usize)>,
    /// Receives that were ever posted. Count.
    receives: u64,
    /// For each multi-receive buffer, the number of messages that use it, and whether it takes more.
    multi_buffers: Slab<MultiBuffer>,
    completions: VecDeque<Completion>,
    actions: VecDeque<Action>,
    ready: VecDeque<LaneId>,
    owed: Owed,
    timers: BTreeSet<(Micros, PeerId)>,
    pool: Pool,
    /// Messages that completed from a copy and are not acknowledged (`buffered.rs`). Bytes.
    buffered_bytes: u64,
    /// Operations that would be complete if no lane's shell were still filling their buffers.
    lingering: Vec<Lingering>,
    /// Credit granted to all peers beyond the initial credit of each. Bytes.
    credit_given: u64,
    /// Peers that have left or broken off (`gone.rs`).
    gone: gone::Gone,
    /// Peers that were ever entered. Count.
    entered: u64,
    /// Peers with more than the initial credit. Count.
    credit_peers: u64,
    generation: u32,
    /// The program has begun to close the endpoint.
    closing: bool,
    /// Every peer has been sent a Bye.
    parted: bool,
    counters: Counters,
    decisions: Vec<(Address, Decision)>,
    routers: Routers,
    /// The latest time that the shell told. Microseconds.
    clock: Micros,
    /// Time of the last probe of a silent peer (`probe.rs`). Microseconds.
    probed_at: Micros,
    /// Lost peers that the program has not been told of; `None` if it does not ask.
    lost: Option<VecDeque<PeerId>>,
}

#[derive(Debug)]
struct MultiBuffer {
    users: u32,
    exhausted: bool,
}

impl Engine {
    /// An engine without peers.
    pub fn new(config: Config) -> Self {
        Self {
            routers: Routers::new(&config.routers, config.seed),
            clock: 0,
            probed_at: 0,
            lost: None,
            identity: config.secret.map(Identity::new),
            config,
            peers: Vec::new(),
            directory: Directory::default(),
            warm: Warm::default(),
            lanes: Slab::new(),
            operations: Slab::new(),
            inbounds: Slab::new(),
            matcher: Matcher::default(),
            claimed: Vec::new(),
            receives: 0,
            multi_buffers: Slab::new(),
            completions: VecDeque::new(),
            actions: VecDeque::new(),
            ready: VecDeque::new(),
            owed: Owed::default(),
            timers: BTreeSet::new(),
            pool: Pool::default(),
            buffered_bytes: 0,
            lingering: Vec::new(),
            credit_given: 0,
            gone: gone::Gone::default(),
            entered: 0,
            credit_peers: 0,
            generation: 0,
            closing: false,
            parted: false,
            counters: Counters::default(),
            decisions: Vec::new(),
        }
    }

    /// The endpoint's own address.
    pub fn address(&self) -> Address {
        self.config.address
    }

    /// Counts of what was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The index of a peer; makes no connection. Refuses an address of another subnet if no router is configured.
    pub fn peer(&mut self, address: &Address) -> Result<PeerId, Refusal> {
        let own = self.config.address;
        if self.is_routed(address) && !self.has_routers() {
            return Err(Refusal::Unreachable(format!(
                "{address} is in AS {} subnet {}, this endpoint in AS {} subnet {}, and no router joins them; set \
                 routers, or give both sides the same as_id and subnet",
                address.as_id.0, address.subnet.0, own.as_id.0, own.subnet.0
            )));
        }
        if let Some(refusal) = self.unknown_key(address) {
            return Err(refusal);
        }
        let peer = self.enter_peer(*address);
        let known = &mut self.peers[peer.0 as usize];
        known.named = true;
        known.router_host = None;
        if std::mem::take(&mut known.guest) {
            known.answers_at = None;
        }
        Ok(peer)
    }

    fn enter_peer(&mut self, address: Address) -> PeerId {
        let address = if self.names_self(&address) { self.config.address } else { address };
        if let Some(peer) = self.directory.find(&self.peers, &address) {
            return peer;
        }
        self.entered += 1;
        let peer = match self.reusable() {
            Some(peer) => {
                self.peers[peer.0 as usize] = Peer::new(address);
                peer
            }
            None => {
                self.peers.push(Peer::new(address));
                PeerId(self.peers.len() as u32 - 1)
            }
        };
        self.directory.enter(&self.peers, peer);
        peer
    }

    /// The peer at a lane's other end, once it has greeted.
    pub fn lane_peer(&self, lane: LaneId) -> Option<PeerId> {
        Some(self.resolve(self.lanes.get(lane.0 as usize)?.peer?))
    }

    /// The locator at which a lane's peer says that it listens; `None` for lanes through a router.
    pub fn lane_locator(&self, lane: LaneId) -> Option<SocketAddr> {
        let lane = self.lanes.get(lane.0 as usize).filter(|lane| lane.router.is_none())?;
        Some(self.peer_address(lane.peer?)?.locator)
    }

    /// The address of a peer; for a wildcard that has answered, its full address.
    pub fn peer_address(&self, peer: PeerId) -> Option<Address> {
        let peer = self.resolve(peer);
        self.peers.get(peer.0 as usize).map(|peer| peer.address)
    }

    /// Where a peer is reached. If the program never named the peer, this is on the host that it called from, whatever
    /// host it claims to listen on. Of a peer behind routers that is the last router's host.
    pub fn peer_locator(&self, peer: PeerId) -> Option<SocketAddr> {
        let peer = self.resolve(peer);
        let known = self.peers.get(peer.0 as usize)?;
        let at = self.rail_address(peer, 0).locator;
        Some(known.router_host.as_deref().map_or(at, |host| SocketAddr::new(*host, at.port())))
    }

    /// The shortest round trip to a peer so far; `None` before the first measurement, and if only the round trip to a
    /// router is known. Microseconds.
    pub fn round_trip_us(&self, peer: PeerId) -> Option<Micros> {
        self.peers.get(self.resolve(peer).0 as usize)?.connection.as_ref()?.rtt_us
    }

    /// Sets [`Config::calls_one`]. Call it before any peer is known.
    pub fn call_one(&mut self) {
        self.config.calls_one = true;
    }

    /// Whether the only peer that this endpoint calls has not answered yet.
    fn awaits_the_one(&self) -> bool {
        self.config.calls_one && matches!(&self.peers[..], [only] if only.address.is_wildcard())
    }

    #[inline]
    fn resolve(&self, mut peer: PeerId) -> PeerId {
        while let Some(alias) = self.peers.get(peer.0 as usize).and_then(|peer| peer.alias) {
            peer = alias;
        }
        peer
    }

    /// The connection to a peer; the first call makes it.
    #[inline]
    fn connection(&mut self, peer: PeerId) -> &mut Connection {
        let known = &self.peers[peer.0 as usize].connection;
        if !known.as_ref().is_some_and(|connection| connection.warm) {
            self.warm_up(peer);
        }
        self.peers[peer.0 as usize].connection.get_or_insert_with(Connection::fresh)
    }

    /// The next finished operation.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Moves the finished operations to the end of `out`, and returns how many there were.
    pub fn take_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        let count = self.completions.len();
        if out.is_empty() && count > 0 {
            // Swap the two lists, so that nothing is copied.
            let emptied = VecDeque::from(std::mem::take(out));
            *out = Vec::from(std::mem::replace(&mut self.completions, emptied));
        } else {
            out.extend(self.completions.drain(..));
        }
        count
    }

    /// Tells how often the program has polled its completion queue so far. The shell calls this before it reports what
    /// a poll brought, and before a peek. A peek finds only messages that arrived before the last poll.
    ///
    /// The reason is MPICH: it looks for a message of any source first in its own shared memory, then by a peek here,
    /// and it moves its shared memory's queues only between two polls. If a peek found a message that arrived just now,
    /// that message would overtake one in shared memory, and MPICH's probe and receive would find different messages.
    pub fn set_polls(&mut self, polls: u64) {
        self.matcher.set_polls(polls);
    }

    /// Whether finished operations, or lost peers that the program watches, wait to be fetched.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty() || self.lost.as_ref().is_some_and(|lost| !lost.is_empty())
    }

    /// Whether the shell has anything to do of which no lane and no timer tells it.
    #[inline]
    pub fn has_leavings(&self) -> bool {
        self.has_completions() || self.has_output() || self.owes_acks()
    }

    /// Makes [`Engine::poll_lost`] report peers that are gone for good.
    pub fn watch_peers(&mut self) {
        self.lost.get_or_insert_default();
    }

    /// The next peer that is gone for good, and why; each is reported once. A peer is lost when it closes, ends, or is
    /// out of reach for `peer_timeout`, whether operations wait or not.
    ///
    /// `None` while completions wait: the program must see what a peer sent before it sees the loss. This holds even if
    /// another thread drives the engine between the two calls.
    pub fn poll_lost(&mut self) -> Option<(PeerId, OpError)> {
        if !self.completions.is_empty() {
            return None;
        }
        let peer = self.lost.as_mut()?.pop_front()?;
        let failed = self.peers[peer.0 as usize].connection.as_ref()?.trouble.failed.clone()?;
        Some((peer, failed))
    }

    /// Whether a message of this peer has matched a receive and is not complete. It looks at every message that is
    /// coming in, so do not call it often.
    pub fn is_receiving(&self, peer: PeerId) -> bool {
        let matched = |inbound: &Inbound| matches!(inbound.stage, Stage::Matched { .. });
        self.inbounds.iter().any(|(_, inbound)| inbound.peer == peer && matched(inbound))
    }

    /// The next action for the shell.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether a lane may have something to write, or the shell something to do.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.ready.is_empty() || !self.actions.is_empty()
    }

    /// The time at which [`Engine::handle_timeout`] is next due.
    pub fn poll_timeout(&self) -> Option<Micros> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.owed.due()).min()
    }

    #[inline]
    fn report(&mut self, completion: Completion) {
        self.completions.push_back(completion);
    }

    /// Ends an operation if nothing of it is missing any more.
    fn try_finish(&mut self, index: usize, mem: &mut dyn Memory) {
        let Some(operation) = self.operations.get(index).filter(|operation| operation.is_over()) else {
            return;
        };
        if operation.leases > 0 {
            return self.recall(index);
        }
        let (peer, answered) =
            (operation.peer, matches!(operation.kind, Kind::Read { .. } | Kind::Atomic { .. }));
        if answered && self.lingers(Owner::Answer(index), peer) {
            return;
        }
        self.retire(index);
        self.finish(index, mem);
        // The next operation may have waited at a fence for this one's end, or for room.
        if !self.connection(peer).traffic.fresh.is_empty() {
            self.kick(peer);
        }
    }

    /// Takes a started operation from its connection's counts.
    fn retire(&mut self, index: usize) {
        let operation = &self.operations[index];
        let (peer, kind) = (operation.peer, operation.kind);
        let operands = operation.operands();
        let connection = self.connection(peer);
        match kind {
            Kind::Reply { .. } => {
                connection.answers -= 1;
                return;
            }
            Kind::Message { .. } => {}
            Kind::Write { .. } | Kind::Read { .. } | Kind::Atomic { .. } => connection.requests -= 1,
        }
        connection.active -= 1;
        connection.operands -= operands;
    }

    /// Reports an operation and forgets it.
    fn finish(&mut self, index: usize, mem: &mut dyn Memory) {
        let mut operation = self.operations.remove(index);
        if operation.is_lent() {
            mem.release(operation.place);
        }
        if let Some(owned) = operation.owned.take() {
            self.pool.give(owned);
        }
        if !self.end_buffered(&operation) {
            return;
        }
        let kind = match operation.kind {
            Kind::Message { channel, .. } if operation.options.buffered.is_some() => {
                CompletionKind::SendLost(channel)
            }
            Kind::Message { channel, .. } => CompletionKind::Send(channel),
            Kind::Write { .. } => CompletionKind::Write,
            Kind::Read { .. } => CompletionKind::Read,
            Kind::Atomic { kind, .. } => CompletionKind::Atomic(kind),
            Kind::Reply { .. } => return,
        };
        if operation.options.silent && operation.error.is_none() {
            return;
        }
        self.report(Completion {
            context: operation.options.context,
            notify: operation.options.notify,
            kind,
            len: operation.total,
            buffer: 0,
            data: None,
            tag: 0,
            peer: Some(operation.peer),
            released: false,
            error: operation.error,
        });
    }

    /// Reports a posted receive that ended without a message.
    fn fail_posted(
        &mut self,
        channel: Channel,
        posted: Posted,
        error: Option<OpError>,
        mem: &mut dyn Memory,
    ) {
        let released = posted.multi.is_some();
        if released && !self.release_multi(&posted, true, mem) {
            return;
        }
        if !released {
            mem.release(posted.place);
        }
        let kind = match error {
            None => CompletionKind::BufferReleased,
            Some(_) => CompletionKind::Recv(channel),
        };
        self.report(Completion {
            context: posted.context,
            notify: posted.notify || released,
            kind,
            len: 0,
            buffer: 0,
            data: None,
            tag: posted.wanted.tag,
            peer: None,
            released,
            error,
        });
    }

    /// Records that a multi-receive buffer takes no more (`exhausted`), or else that one of its messages is complete.
    /// True when the buffer is the program's again.
    fn release_multi(&mut self, posted: &Posted, exhausted: bool, mem: &mut dyn Memory) -> bool {
        let Some(multi) = posted.multi else { return false };
        let buffer = &mut self.multi_buffers[multi.buffer];
        buffer.exhausted |= exhausted;
        if !exhausted {
            buffer.users -= 1;
        }
        let over = buffer.exhausted && buffer.users == 0;
        if over {
            self.multi_buffers.remove(multi.buffer);
            mem.release(BufferRef { list: posted.place.list, token: posted.place.token });
        }
        over
    }

    /// Whether a lane's shell is filling this owner's buffer right now. If so, the owner's end waits for that.
    /// Lanes that are in the middle of a fragment for it, but not filling, drop the rest.
    fn lingers(&mut self, owner: Owner, peer: PeerId) -> bool {
        let mut busy = false;
        for lane in self.peers[peer.0 as usize].lanes() {
            let Some(stream) = &mut self.lanes[lane.0 as usize].stream else { continue };
            busy |= stream.fills(owner);
            if stream.goes_to(owner) {
                stream.drop_rest();
            }
        }
        if !self.lingering.is_empty() {
            self.lingering.retain(|other| !matches!(other, Lingering::Owner(other) if *other == owner));
        }
        if busy {
            self.lingering.push(Lingering::Owner(owner));
        }
        busy
    }

    /// Ends the operations that waited for a lane's shell to stop filling a buffer.
    fn end_lingering(&mut self, mem: &mut dyn Memory) -> Result<(), PeerFault> {
        for waiting in std::mem::take(&mut self.lingering) {
            match waiting {
                Lingering::Owner(Owner::Message(index)) => self.complete_inbound(index, mem),
                Lingering::Owner(Owner::Answer(index)) => self.try_finish(index, mem),
                Lingering::Owner(Owner::Region) => {}
                Lingering::Fragment { peer, frame, target } => {
                    self.end_fragment(peer, &frame, target, &[], mem)?;
                }
            }
        }
        Ok(())
    }

    /// Completes the receive of a message: all of its data has arrived, or never will.
    fn complete_inbound(&mut self, index: usize, mem: &mut dyn Memory) {
        let peer = self.inbounds[index].peer;
        if self.lingers(Owner::Message(index), peer) {
            return;
        }
        self.free_parts(index);
        let inbound = self.inbounds.remove(index);
        self.connection(peer).traffic.incoming.remove(&inbound.message);
        let Stage::Matched { posted, last } = inbound.stage else { return };
        if inbound.error.is_some() && self.may_wait_again(&posted) {
            return self.wait_again(inbound.channel, posted, mem);
        }
        let total = if inbound.error.is_some() { 0 } else { inbound.total };
        let summary = Summary { data: inbound.data, tag: inbound.tag, total };
        self.finish_receive(&posted, last, &summary, inbound.channel, peer, inbound.error, mem);
    }

    /// Frees the data that was kept of a message.
    fn free_parts(&mut self, index: usize) {
        let inbound = &mut self.inbounds[index];
        let peer = inbound.peer;
        let granted = inbound.granted.as_mut().map(|granted| granted.take_parts());
        for (_, bytes) in std::mem::take(&mut inbound.parts) {
            self.connection(peer).credit_in.free(bytes.len() as u64);
            self.free_of_gone(peer, bytes.len() as u64);
            self.pool.give(bytes);
        }
        if let Some(parts) = granted {
            self.free_granted(peer, parts);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "all of it goes into one completion")]
    #[inline]
    fn finish_receive(
        &mut self,
        posted: &Posted,
        last: bool,
        summary: &Summary,
        channel: Channel,
        peer: PeerId,
        error: Option<OpError>,
        mem: &mut dyn Memory,
    ) {
        let room = posted.end - posted.offset;
        let truncated = summary.total > room;
        let released = match posted.multi {
            None => {
                mem.release(posted.place);
                false
            }
            Some(multi) => {
                self.multi_buffers[multi.buffer].exhausted |= last;
                self.release_multi(posted, false, mem)
            }
        };
        self.report(Completion {
            context: posted.context,
            notify: posted.notify,
            kind: CompletionKind::Recv(channel),
            len: summary.total.min(room),
            buffer: posted.place.token + posted.offset,
            data: summary.data,
            tag: summary.tag,
            peer: Some(peer),
            released,
            error: error.or_else(|| truncated.then_some(OpError::Truncated { sent: summary.total, room })),
        });
    }
}

/// The parts of a message that go into its completion.
struct Summary {
    data: Option<u64>,
    tag: u64,
    total: u64,
}

impl Engine {
    /// The records that the engine still keeps, for tests of leaks: none once all operations are over and lanes idle.
    #[doc(hidden)]
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut note = |what: &str, count: usize| {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        };
        note("operations", self.operations.len());
        note("bytes of copied messages", self.buffered_bytes as usize);
        note("inbound messages", self.inbounds.len());
        note("claims", self.claimed.len());
        note("multi-receive buffers", self.multi_buffers.len());
        note("lingering ends", self.lingering.len());
        note("peers owed acknowledgements", self.owed.len());
        for connection in self.peers.iter().filter_map(|peer| peer.connection.as_deref()) {
            connection.leftovers(&mut note);
        }
        left
    }

    /// The number of peers of which more than the address is kept.
    #[doc(hidden)]
    pub fn peers_kept(&self) -> usize {
        self.peers.iter().filter(|peer| peer.connection.is_some()).count()
    }

    /// For each peer, the data that waits for receives and the credit that it was granted. Bytes.
    #[doc(hidden)]
    pub fn held(&self) -> Vec<(u64, u64)> {
        let connections = self.peers.iter().filter_map(|peer| peer.connection.as_deref());
        connections.map(|connection| (connection.credit_in.held(), connection.credit_in.granted())).collect()
    }
}
