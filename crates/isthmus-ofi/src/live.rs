//! An enabled endpoint: drives the engine, and delivers its completions to queues and counters.

use std::sync::Arc;

use isthmus_io::lock::Mutex;
use isthmus_io::{LostPeer, RegionTable};
use isthmus_proto::CompletionKind::{RemoteAccess, RemoteWrite, SendLost};
use isthmus_proto::{AtomicKind, Completion, CompletionKind, OpError, PeerId, RemoteRange};

use crate::abi::fi_addr_t;
use crate::access::Observers;
use crate::av_table::AvTable;
use crate::counter::Counter;
use crate::counters::Counters;
use crate::engine::Engine;
use crate::error::Error;
use crate::flags::*;
use crate::groups::Collectives;
use crate::info;
use crate::joint::Joints;
use crate::log::{self, Level};
use crate::order::Orders;
use crate::peers::Peers;
use crate::queue::{Entry, Filling, Queue, Reading, tagged};
use crate::reach::Reach;
use crate::state::DomainState;
use crate::trigger::{Board, Tickets};

/// One direction's completion queue.
#[derive(Debug)]
pub(crate) struct QueueBinding {
    pub(crate) queue: Arc<Queue>,
    /// Only operations that ask for it get an entry (`FI_SELECTIVE_COMPLETION`).
    pub(crate) selective: bool,
}

/// The capabilities that a program asked for when it opened the endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) caps: u64,
    pub(crate) orders: Orders,
    /// Longest injected message or write. Bytes.
    pub(crate) inject_max: usize,
}

/// An enabled endpoint. Nothing of it changes any more, except that counters may be added.
#[derive(Debug)]
pub(crate) struct Live {
    engine: Engine,
    av: Arc<AvTable>,
    peers: Peers,
    pub(crate) tx: Option<QueueBinding>,
    pub(crate) rx: Option<QueueBinding>,
    counters: Counters,
    terms: Terms,
    observers: Arc<Observers>,
    regions: Arc<RegionTable>,
    board: Arc<Board>,
    tickets: Tickets,
    joints: Joints,
    collectives: Collectives,
    /// The setting `lost_peer`.
    lost_peer: LostPeer,
    /// Where to tell of peers that are given up, if no operation tells.
    reach: Option<Reach>,
    /// Completions on their way to the queues. The thread that drives the engine holds its lock.
    scratch: Mutex<Vec<Completion>>,
}

/// The objects bound to an endpoint before it is enabled.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    pub(crate) av: Option<Arc<AvTable>>,
    pub(crate) tx: Option<QueueBinding>,
    pub(crate) rx: Option<QueueBinding>,
    pub(crate) counters: Vec<(Arc<Counter>, u64)>,
}

impl Bindings {
    /// Checks that everything is bound that an endpoint with these capabilities needs: a queue for each direction.
    /// Even if no success is reported, failures are.
    pub(crate) fn check(&self, caps: u64) -> Result<(), Error> {
        if self.av.is_none() {
            return Err(Error::NoAv);
        }
        if self.tx.is_none() && info::transmits(caps) {
            return Err(Error::NoCq("FI_TRANSMIT"));
        }
        if self.rx.is_none() && info::receives(caps) {
            return Err(Error::NoCq("FI_RECV"));
        }
        // An endpoint that peers only access by RMA may have counters alone.
        if self.tx.is_none() && self.rx.is_none() && self.counters.is_empty() {
            return Err(Error::NoCq("FI_TRANSMIT or FI_RECV"));
        }
        Ok(())
    }
}

impl Live {
    /// Enables the endpoint.
    pub(crate) fn start(
        engine: Engine,
        bound: Bindings,
        terms: Terms,
        domain: &DomainState,
    ) -> Result<Arc<Self>, Error> {
        let av = bound.av.ok_or(Error::NoAv)?;
        let lost_peer = domain.settings.lost_peer;
        let reach = match &engine {
            Engine::Reliable(endpoint) if lost_peer == LostPeer::Silent => Reach::open(endpoint),
            _ => None,
        };
        let live = Arc::new(Self {
            engine,
            av,
            peers: Peers::default(),
            tx: bound.tx,
            rx: bound.rx,
            counters: Counters::default(),
            terms,
            observers: domain.observers.clone(),
            regions: domain.regions.clone(),
            board: domain.board.clone(),
            tickets: Tickets::default(),
            joints: Joints::default(),
            collectives: Collectives::default(),
            lost_peer,
            reach,
            scratch: Mutex::default(),
        });
        // An object that refers to it would keep it open and could not be closed.
        live.join(bound.counters).inspect_err(|_| live.leave())?;
        Ok(live)
    }

    /// Adds it to its queues and counters, whose reads drive it from now on.
    fn join(self: &Arc<Self>, counters: Vec<(Arc<Counter>, u64)>) -> Result<(), Error> {
        for queue in self.queues() {
            queue.add_source(self)?;
        }
        for (counter, events) in counters {
            self.bind_counter(counter, events)?;
        }
        if self.terms.caps & FI_RMA_EVENT != 0 {
            self.observers.add_endpoint(self)?;
        }
        if self.terms.caps & (FI_TRIGGER | FI_COLLECTIVE) != 0 {
            self.board.add_endpoint(self)?;
        }
        Ok(())
    }

    /// Binds another counter for these events.
    pub(crate) fn bind_counter(self: &Arc<Self>, counter: Arc<Counter>, events: u64) -> Result<(), Error> {
        counter.add_source(self)?;
        if events & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0
            && let Engine::Reliable(engine) = &self.engine
        {
            engine.watch_accesses();
        }
        self.counters.join(counter, events);
        Ok(())
    }

    /// Ends it: nothing polls the engine any more, and its peers are told.
    pub(crate) fn stop(self: &Arc<Self>) {
        self.leave();
        self.engine.close();
        self.collectives.close(self);
    }

    /// Removes it from its queues and counters.
    fn leave(self: &Arc<Self>) {
        for queue in self.queues() {
            queue.remove_source(self);
        }
        for counter in self.counters.all() {
            counter.remove_source(self);
        }
        self.observers.forget_endpoint(self);
        self.board.forget_endpoint(self);
        self.tickets.close(self);
    }

    /// An untagged message is posted.
    #[inline]
    pub(crate) fn note_post(&self) {
        if let Some(binding) = &self.rx {
            binding.queue.note_post();
        }
    }

    fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.tx.iter().chain(&self.rx).map(|binding| &binding.queue)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn board(&self) -> &Arc<Board> {
        &self.board
    }

    pub(crate) fn tickets(&self) -> &Tickets {
        &self.tickets
    }

    pub(crate) fn joints(&self) -> &Joints {
        &self.joints
    }

    pub(crate) fn collectives(&self) -> &Collectives {
        &self.collectives
    }

    pub(crate) fn av(&self) -> &AvTable {
        &self.av
    }

    pub(crate) fn caps(&self) -> u64 {
        self.terms.caps
    }

    /// Longest injected message or write. Bytes.
    #[inline]
    pub(crate) fn inject_max(&self) -> usize {
        self.terms.inject_max
    }

    pub(crate) fn orders(&self) -> &Orders {
        &self.terms.orders
    }

    /// Whether counters are told of any of these events.
    pub(crate) fn counts(&self, events: u64) -> bool {
        self.counters.count_any(events)
    }

    /// The peer to send to.
    #[inline]
    pub(crate) fn peer(&self, number: fi_addr_t) -> Result<PeerId, Error> {
        self.peers.peer(&self.engine, &self.av, number)
    }

    /// The peer that a transmitting call names.
    pub(crate) fn target(&self, number: fi_addr_t) -> Result<PeerId, Error> {
        if number == FI_ADDR_UNSPEC {
            return Err(Error::Invalid("no destination"));
        }
        self.peer(number)
    }

    /// The peer to receive from; `None` for any.
    #[inline]
    pub(crate) fn source(&self, number: fi_addr_t) -> Result<Option<PeerId>, Error> {
        if number == FI_ADDR_UNSPEC || self.terms.caps & FI_DIRECTED_RECV == 0 {
            return Ok(None);
        }
        self.peer(number).map(Some)
    }

    /// Drives the engine, and delivers what it finished. If another thread is doing that already, this one returns:
    /// that one delivers its completions, too.
    pub(crate) fn progress(&self, mut reading: Option<&mut Reading<'_>>) {
        let Some(mut scratch) = self.scratch.try_lock() else { return };
        let room = reading.as_ref().map_or(usize::MAX, |reading| reading.room());
        let polled = self.engine.poll(room, &mut scratch);
        if let (Some(reach), Engine::Reliable(endpoint)) = (&self.reach, &self.engine) {
            reach.tell_lost(endpoint);
        }
        if polled == 0 && scratch.is_empty() {
            return;
        }
        let taken = self.hand_over(&scratch, reading.as_deref_mut());
        // Most completions go to the same queue, which is locked once for all of them.
        let mut open = None;
        for completion in &mut scratch[taken..] {
            self.deliver_by(completion, &mut open, reading.as_deref_mut());
        }
        drop(open);
        scratch.clear();
        // Triggered operations may have waited for room.
        self.board.start();
        if self.collectives.are_open() {
            self.collectives.resume(self);
        }
    }

    /// Delivers the received messages at the front of `done` as long as only the queue has to be told; returns how
    /// many.
    #[inline]
    fn hand_over(&self, done: &[Completion], reading: Option<&mut Reading<'_>>) -> usize {
        let Some(binding) = &self.rx else { return 0 };
        let others = self.joints.are_open() || self.tickets.are_open() || self.collectives.are_open();
        if others || self.counters.count_any(FI_RECV) {
            return 0;
        }
        let plain = |completion: &&Completion| {
            let received = matches!(completion.kind, CompletionKind::Recv(_));
            received && completion.notify && completion.error.is_none()
        };
        let mut done = done.iter().take_while(plain);
        let source = |completion: &Completion| self.source_number(completion);
        let taken = reading.filter(|reading| reading.is_next_of(&binding.queue)).map_or(0, |reading| {
            let room = done.by_ref().take(reading.room());
            room.map(|completion| reading.take(&tagged(completion), || source(completion))).count()
        });
        let rest = done.map(|completion| Entry::received(completion, source(completion)));
        taken + binding.queue.fill(rest)
    }

    /// Hands out a completion.
    pub(crate) fn deliver(&self, mut completion: Completion) {
        self.deliver_by(&mut completion, &mut None, None);
    }

    /// Delivers a completion. `open` is the queue that got the last one; `reading` is the program's read that waits.
    #[inline]
    fn deliver_by<'a>(
        &'a self,
        completion: &mut Completion,
        open: &mut Option<Filling<'a>>,
        reading: Option<&mut Reading<'_>>,
    ) {
        if self.collectives.are_open() {
            // The end goes to a queue that may be the open one.
            *open = None;
            if !self.collectives.settle(self, completion) {
                return;
            }
        }
        if self.joints.are_open() && !self.joints.settle(completion) {
            return;
        }
        if self.tickets.are_open() {
            // Counting may start an operation that waits for the counter. If that fails, it is reported to
            // the same queue.
            *open = None;
            if !self.tickets.settle(completion) {
                return;
            }
        }
        if let RemoteAccess { .. } | RemoteWrite = completion.kind {
            *open = None;
            let key = std::mem::take(&mut completion.tag);
            let addr = std::mem::take(&mut completion.buffer);
            if completion.kind == RemoteWrite {
                // fi_cq(3) leaves the length open. `sockets` reports it, and clients such as ADIOS2's SST rely on it.
                let written = RemoteRange { key, addr, len: completion.len };
                completion.buffer = self.regions.address(written).unwrap_or(0);
            }
            let wrote = !matches!(completion.kind, RemoteAccess { wrote: false, .. });
            let event = if wrote { FI_REMOTE_WRITE } else { FI_REMOTE_READ };
            self.observers.count(key, event, completion.len);
        }
        // A program that gave its endpoint no context may take the one of an error for a request of its own (Open MPI).
        if let SendLost(_) = completion.kind
            && (completion.context == 0 || self.lost_peer != LostPeer::Error)
        {
            return report(completion);
        }
        if is_lost(completion) {
            match self.lost_peer {
                LostPeer::Error => {}
                LostPeer::Truncate => outlive(completion),
                LostPeer::Silent => {
                    report(completion);
                    if !completion.released {
                        return;
                    }
                    // The program may post the buffer again.
                    completion.kind = CompletionKind::BufferReleased;
                    (completion.error, completion.notify) = (None, false);
                }
            }
        }
        if self.counters.count_any(u64::MAX)
            && let Some(event) = counted_as(completion.kind).filter(|event| self.counters.count_any(*event))
        {
            *open = None;
            self.counters.count(event, completion.error.is_some(), completion.len);
        }
        let binding = if is_receiver_side(completion.kind) { &self.rx } else { &self.tx };
        let Some(binding) = binding else { return };
        if completion.notify || completion.error.is_some() {
            report(completion);
            let source = self.source_number(completion);
            filling(open, &binding.queue).push(Entry::new(completion, source), reading);
        } else if completion.released || completion.kind == CompletionKind::BufferReleased {
            // The end of a multi-receive buffer is reported even if its messages are not.
            filling(open, &binding.queue).push(Entry::released(completion.context), reading);
        }
    }

    /// Puts an entry into the transmit queue.
    pub(crate) fn tell(&self, entry: Entry) {
        if let Some(binding) = &self.tx {
            binding.queue.filling().push(entry, None);
        }
    }

    fn source_number(&self, completion: &Completion) -> fi_addr_t {
        let wanted = self.terms.caps & FI_SOURCE != 0 && is_receiver_side(completion.kind);
        let number = match (completion.peer.filter(|_| wanted), &self.engine) {
            (Some(peer), Engine::Reliable(engine)) => self.peers.number(engine, &self.av, peer),
            (Some(peer), Engine::Datagrams(datagrams)) => {
                datagrams.source(peer).and_then(|source| self.av.number(&source)).unwrap_or(FI_ADDR_NOTAVAIL)
            }
            (None, _) => return FI_ADDR_NOTAVAIL,
        };
        self.av.told(number)
    }
}

/// Opens a queue instead of the one that is open.
fn filling<'a, 'b>(open: &'b mut Option<Filling<'a>>, queue: &'a Queue) -> &'b mut Filling<'a> {
    if !open.as_ref().is_some_and(|open| open.is_of(queue)) {
        // Hold one at a time: two threads that hold two queues could wait for each other.
        *open = None;
    }
    open.get_or_insert_with(|| queue.filling())
}

/// Whether an operation failed because its peer was given up.
fn is_lost(completion: &Completion) -> bool {
    matches!(completion.error, Some(OpError::PeerGone(_) | OpError::Unreachable(_)))
}

/// The setting `lost_peer` = "truncate": a send to a peer that is given up succeeds, as if the peer had received it just
/// before its end. `errno_of_receive` has the other half.
fn outlive(completion: &mut Completion) {
    if matches!(completion.kind, CompletionKind::Send(_)) {
        report(completion);
        completion.error = None;
    }
}

/// Logs a failure: many programs print only the errno.
fn report(completion: &Completion) {
    match &completion.error {
        None | Some(OpError::Cancelled | OpError::NoMessage) => {}
        Some(OpError::PeerGone(text) | OpError::Unreachable(text) | OpError::Protocol(text)) => {
            log::once(text)
        }
        Some(error) => log::write(Level::Info, format_args!("{:?} failed: {error}", completion.kind)),
    }
}

fn is_receiver_side(kind: CompletionKind) -> bool {
    use CompletionKind::*;
    matches!(kind, Recv(_) | Peek | RemoteWrite | RemoteAccess { .. } | BufferReleased)
}

/// The event that this completion is for an endpoint's counters (`fi_endpoint(3)`). An atomic that fetches counts as a
/// read, whatever it does to the memory.
fn counted_as(kind: CompletionKind) -> Option<u64> {
    use CompletionKind::*;
    match kind {
        Send(_) => Some(FI_SEND),
        Recv(_) => Some(FI_RECV),
        Write | Atomic(AtomicKind::Update) => Some(FI_WRITE),
        Read | Atomic(_) => Some(FI_READ),
        RemoteWrite | RemoteAccess { fetched: false, .. } => Some(FI_REMOTE_WRITE),
        RemoteAccess { fetched: true, .. } => Some(FI_REMOTE_READ),
        // It was counted when it completed.
        SendLost(_) => None,
        Peek | BufferReleased => None,
    }
}
