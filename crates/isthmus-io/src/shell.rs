//! The shell of one endpoint's engine: its lanes, and the loops that move bytes between them and the engine. Every loop
//! has a bound.
//!
//! A thread that drives the shell owns it meanwhile. It locks the engine only between system calls, never across one.

mod direct;
mod down;
mod fast_path;
mod listeners;
mod memory;
mod passes;
mod summary;
mod unauthenticated;
mod up;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use isthmus_proto::{Action, LaneId, LaneKind, LaneLoss};
use isthmus_udp::{Composition, Dropped};
use socket2::Socket;

use crate::carrier::{Carriers, PathNews, Transfer};
use crate::engine::Core;
use crate::lane::table::LaneTable;
use crate::lane::{Phase, Spares, fill, loss_of, read_some};
use crate::lock::Mutex;
use crate::log::{info_few, info_log, warn_sparingly};
use crate::poller::{Events, Poller, Ready};
use crate::settings::{Changes, Protocols};
pub(crate) use direct::REACHED;
pub(crate) use fast_path::Brief;
use listeners::Listeners;
use memory::MemoryLanes;
use passes::Passes;
use unauthenticated::Unauthenticated;

/// Most reads from one lane before the next lane is read. Count.
const READS_PER_TURN: usize = 8;
/// Most batches written in one pass. Count.
const WRITES_PER_TURN: usize = 64;

/// Key of the listeners in the poller.
const LISTENER: u64 = u64::MAX;
/// Key of the carriers' descriptor in the poller.
const CARRIERS: u64 = u64::MAX - 1;

/// The lanes of one endpoint. Its parts keep their own state; the shell moves bytes between them and the engine.
#[derive(Debug)]
pub(crate) struct Shell {
    carriers: Carriers,
    listeners: Listeners,
    unauthenticated: Unauthenticated,
    lanes: LaneTable,
    memory: MemoryLanes,
    /// Lanes that send from the program's memory without a copy.
    borrowing: Vec<usize>,
    passes: Passes,
    poller: Poller,
    events: Events,
    spares: Spares,
    /// Events that the carriers themselves reported.
    news: Vec<Ready>,
    /// When lanes that take too long were last looked for.
    swept: Instant,
    /// All lanes have ended for good.
    ended: bool,
    /// Dropped decisions that were logged so far. Count.
    untold: u64,
    /// The configuration file that the endpoint follows.
    settings: Option<Changes>,
}

// SAFETY: `events` holds keys of lanes and no pointers, and `spares` has no pieces between reads.
unsafe impl Send for Shell {}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassResult {
    /// Something came.
    pub(crate) read: bool,
    /// The engine may have finished operations.
    pub(crate) done: bool,
}

impl Shell {
    pub(crate) fn new(carriers: Carriers, listeners: Vec<Socket>) -> io::Result<Self> {
        let poller = Poller::new()?;
        let listeners = Listeners::new(listeners, &poller)?;
        if let Some(fd) = carriers.fd() {
            poller.add(fd, CARRIERS, false)?;
        }
        Ok(Self {
            carriers,
            listeners,
            unauthenticated: Unauthenticated::default(),
            lanes: LaneTable::default(),
            memory: MemoryLanes::new(),
            borrowing: Vec::new(),
            passes: Passes::new(),
            poller,
            events: Events::with_capacity(64),
            spares: Spares::default(),
            news: Vec::new(),
            swept: Instant::now(),
            ended: false,
            untold: 0,
            settings: None,
        })
    }

    /// The descriptor that is readable when there is something to do.
    pub(crate) fn poller(&self) -> &Poller {
        &self.poller
    }

    /// Makes one pass: reads, writes, and does what is due. A thread that calls this again and again need not do so
    /// `fully`. Then most passes skip descriptors and the clock, if nothing is lost by that.
    pub(crate) fn run_pass(&mut self, core: &Mutex<Core>, fully: bool) -> PassResult {
        if self.ended {
            return PassResult::default();
        }
        self.passes.begin(fully);
        self.memory.unwatch();
        let read = self.take_in(core);
        if self.passes.is_full() {
            self.look_at_settings(core);
        }
        let mut guard = core.lock();
        if self.passes.is_full() && guard.engine.poll_timeout().is_some() {
            let now = guard.now();
            let Core { engine, memory, .. } = &mut *guard;
            engine.handle_timeout(now, memory);
        }
        if !read && guard.engine.owes_acks() {
            if self.passes.is_full() {
                guard.engine.flush_acks();
            } else {
                let now = guard.now();
                guard.engine.flush_old_acks(now);
            }
        }
        let busy = guard.engine.has_output();
        let done = busy || guard.engine.has_completions();
        let decisions = guard.engine.take_decisions();
        let untold = if decisions.is_empty() { 0 } else { guard.engine.counters().decisions_untold };
        drop(guard);
        // There is one about the credit of each peer, and of an open endpoint everybody can be one.
        decisions.iter().for_each(|(peer, what)| info_few!("{peer}: {what}"));
        if untold > self.untold {
            info_log!("{} decisions more than there was room for were made since", untold - self.untold);
            self.untold = untold;
        }
        if busy {
            self.write_out(core);
        }
        self.carriers.flush();
        self.sweep(core);
        PassResult { read, done }
    }

    /// Follows the protocol settings in this file.
    pub(crate) fn follow(&mut self, path: &Path) {
        self.settings = Some(Changes::of(path));
    }

    fn look_at_settings(&mut self, core: &Mutex<Core>) {
        if let Some(settings) = self.settings.as_mut().and_then(Changes::look) {
            self.set_protocols(core, settings.all_protocols());
        }
    }

    /// The protocols that messages and lanes are made of.
    pub(crate) fn protocols(&self) -> &Protocols {
        self.carriers.protocols()
    }

    /// Changes the protocols that messages and lanes are made of.
    pub(crate) fn set_protocols(&mut self, core: &Mutex<Core>, protocols: Protocols) {
        core.lock().engine.set_transfers(protocols.transfers.clone());
        let former = self.carriers.set_protocols(protocols);
        self.lanes.iter_mut().for_each(|lane| lane.carrier.follow(&self.carriers, &former));
    }

    fn take_in(&mut self, core: &Mutex<Core>) -> bool {
        let polled = !self.carriers.is_plain() && self.poll_carriers(core);
        let read = self.take_in_by_memory(core);
        self.take_in_by_descriptors(core) || read || polled
    }

    fn take_in_by_descriptors(&mut self, core: &Mutex<Core>) -> bool {
        if self.lanes.take_change() {
            let talks_to_one = || core.lock().engine.talks_to_one();
            self.passes.plan(&self.lanes, self.memory.counts(), talks_to_one);
        }
        if self.passes.reads_directly() {
            return self.read_busy(core);
        }
        self.passes.look();
        self.listeners.resume(&self.poller);
        if let Err(error) = self.poller.wait(&mut self.events, Some(Duration::ZERO)) {
            warn_sparingly!("cannot ask for events: {error}");
            return false;
        }
        let mut read = false;
        for i in 0.. {
            let Some(ready) = self.events.get(i) else { break };
            if ready.key == LISTENER {
                self.accept(core);
                read = true;
            } else if ready.key == CARRIERS {
                self.carriers.stir();
                read = true;
            } else {
                self.stir(&ready);
                read |= self.attend(ready, core);
            }
        }
        read
    }

    /// Tells a lane's carrier that its descriptor is readable.
    fn stir(&mut self, ready: &Ready) {
        let index = ready.key as usize;
        if let Some(lane) = self.lanes.get_mut(index)
            && ready.readable
        {
            lane.carrier.stir(&mut self.carriers);
            if lane.asleep {
                self.look_at(index);
            }
        }
    }

    /// Reads and writes a lane that is ready. True if something came.
    fn attend(&mut self, ready: Ready, core: &Mutex<Core>) -> bool {
        let index = ready.key as usize;
        if ready.writable {
            self.resume(index, core);
        }
        ready.readable && self.receive(index, core)
    }

    /// Drives the state that lanes share. True if something came.
    fn poll_carriers(&mut self, core: &Mutex<Core>) -> bool {
        let mut news = std::mem::take(&mut self.news);
        self.carriers.run_pass(&mut news);
        self.give_back(core);
        let mut read = self.accept_turned(core);
        for ready in news.drain(..) {
            read |= self.attend(ready, core);
        }
        self.news = news;
        self.change_bulk(core);
        read
    }

    /// Tells the engine which borrowed batches lanes no longer use.
    pub(super) fn give_back(&mut self, core: &Mutex<Core>) {
        let lanes = &mut self.lanes;
        self.borrowing.retain(|index| {
            let Some(lane) = lanes.get_mut(*index) else { return false };
            let (returned, others) = lane.carrier.take_returned();
            if returned > 0 {
                let mut guard = core.lock();
                let Core { engine, memory, .. } = &mut *guard;
                (0..returned).for_each(|_| engine.returned(LaneId(*index as u32), memory));
            }
            others
        });
    }

    /// Tells the engine how much of the bulk data is for which lanes from now on.
    fn change_bulk(&mut self, core: &Mutex<Core>) {
        let changed = self.carriers.take_changed_bulk();
        if !changed.is_empty() {
            let mut guard = core.lock();
            let lanes = changed.into_iter().filter(|(index, _)| self.lanes.get(*index).is_some());
            lanes.for_each(|(index, bulk)| guard.engine.set_lane_bulk(LaneId(index as u32), bulk));
        }
    }

    /// Reads the lanes on which something came lately, without asking epoll first: one system call instead of two.
    fn read_busy(&mut self, core: &Mutex<Core>) -> bool {
        let mut read = false;
        for i in (0..self.passes.busy_count()).rev() {
            // A lane that was lost meanwhile has left the list.
            let Some(index) = self.passes.busy_at(i) else { continue };
            if self.receive(index, core) {
                read = true;
            } else if let Some(lane) = self.lanes.get_mut(index) {
                self.passes.note_vain(index, lane);
            }
        }
        read
    }

    /// Something came on this lane, so it may be read directly from now on.
    fn note_busy(&mut self, index: usize) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if !lane.carrier.is_polled() {
            self.passes.note_busy(index, lane);
        }
    }

    /// Continues a lane that can be written to again, or that has been connected.
    fn resume(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if lane.phase() == Phase::Settling {
            if !self.settle(index, core) {
                return;
            }
        } else {
            let news = lane.carrier.look(&mut self.carriers);
            let limit = lane.carrier.tcp_limit();
            self.change_bulk(core);
            if news != PathNews::default() {
                let mut guard = core.lock();
                let (now, id) = (guard.now(), LaneId(index as u32));
                if let Some(sample) = news.sample {
                    guard.engine.set_lane_limit(id, limit);
                    guard.engine.lane_sample(now, id, sample);
                }
                if news.outdone {
                    guard.engine.on_lane_outdone(id);
                }
                if let Some(rtt_us) = news.rtt_us {
                    guard.engine.set_lane_rtt(id, rtt_us);
                }
            }
        }
        self.wait_to_write(index, false);
        self.write(index, core);
        self.write_out(core);
    }

    fn wait_to_write(&mut self, index: usize, wanted: bool) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        // If the lane does not write to its descriptor, that would be writable all the time.
        let wanted = wanted && !lane.carrier.is_polled();
        if lane.waits_to_write != wanted {
            lane.waits_to_write = wanted;
            if let Some(fd) = lane.carrier.fd()
                && let Err(error) = self.poller.change(fd, index as u64, wanted)
            {
                warn_sparingly!("cannot change what lane {index} waits for: {error}");
            }
        }
    }

    /// Writes what the engine has to send, carries out its actions, and flushes the carriers.
    pub(crate) fn put_out(&mut self, core: &Mutex<Core>) {
        self.write_out(core);
        self.carriers.flush();
    }

    /// Writes what the engine has to send, and carries out its actions.
    fn write_out(&mut self, core: &Mutex<Core>) {
        if self.ended {
            return;
        }
        for _ in 0..WRITES_PER_TURN {
            let mut guard = core.lock();
            let Some(id) = guard.engine.next_ready() else {
                let Some(action) = guard.engine.poll_action() else { return };
                drop(guard);
                self.act(action, core);
                continue;
            };
            let index = id.0 as usize;
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            if lane.phase() == Phase::Settling || lane.has_unwritten() {
                continue;
            }
            self.spares.lend_outgoing(lane);
            let now = guard.now();
            guard.engine.set_clock(now);
            fill(lane, id, &mut guard);
            drop(guard);
            if !self.write(index, core) {
                return;
            }
        }
    }

    /// Carries out an action of the engine.
    fn act(&mut self, action: Action, core: &Mutex<Core>) {
        match action {
            Action::Dial { lane, locator, key } => self.dial(lane, locator, &key, core),
            Action::Abandon { lane } => {
                let text = "the other end gave no sign of life".to_owned();
                if let Some(lane) = self.lanes.get_mut(lane.0 as usize) {
                    lane.carrier.discard();
                }
                self.lose(lane.0 as usize, &LaneLoss::Broken(text), core);
            }
            Action::Recall { lane, batches } => {
                if let Some(lane) = self.lanes.get_mut(lane.0 as usize) {
                    lane.carrier.recall(batches, &mut self.carriers);
                }
                self.give_back(core);
            }
            Action::Close { lane } => self.flush(lane.0 as usize, core),
        }
    }

    /// Writes the lane's pending data. False if the engine has nothing more to send on any lane.
    fn write(&mut self, index: usize, core: &Mutex<Core>) -> bool {
        let mut more = true;
        let Some(lane) = self.lanes.get_mut(index) else { return more };
        if let Some(outgoing) = lane.outgoing.as_mut().filter(|outgoing| outgoing.is_unwritten()) {
            if let Some(secret) = outgoing.secret() {
                lane.carrier.share(&secret, lane.dialled, index, &mut self.carriers);
            }
            let (pieces, lent) = outgoing.rest();
            // SAFETY: the pieces are the batch's own bytes and memory lent until the
            // engine hears that the batch is written, or was returned if it is borrowed.
            match unsafe { lane.carrier.write(pieces, lent, &mut self.carriers) } {
                Transfer::Bytes(n) => outgoing.advance(n),
                Transfer::Blocked => {}
                Transfer::Failed(error) => {
                    self.lose(index, &loss_of(&error), core);
                    return more;
                }
            }
            if outgoing.is_unwritten() {
                self.memory.unwatch();
                self.wait_to_write(index, true);
                return more;
            }
            if outgoing.secret().is_some() {
                lane.carrier.seal_outward();
            }
            let borrows = lane.carrier.close_batch(&self.carriers);
            let mut guard = core.lock();
            let Core { engine, memory, .. } = &mut *guard;
            if borrows {
                engine.borrowed(LaneId(index as u32));
                if !self.borrowing.contains(&index) {
                    self.borrowing.push(index);
                }
            } else {
                engine.written(LaneId(index as u32), memory);
            }
            more = engine.has_output();
        }
        self.spares.take_outgoing(lane);
        if lane.phase() == Phase::Flushing {
            self.flush(index, core);
            more = true;
        }
        more
    }

    /// Reads from a lane. True if something came.
    pub(super) fn receive(&mut self, index: usize, core: &Mutex<Core>) -> bool {
        let mut any = false;
        for _ in 0..READS_PER_TURN {
            let Some(lane) = self.lanes.get_mut(index) else { return any };
            let phase = lane.phase();
            match phase {
                Phase::Settling if self.settle(index, core) => continue,
                Phase::Settling => return any,
                Phase::Flushing | Phase::HalfClosed => {
                    self.discard(index, core);
                    return any;
                }
                Phase::Open | Phase::Ungreeted => {}
            }
            let Some(lane) = self.lanes.get_mut(index) else { return any };
            self.spares.lend_staging(lane);
            match read_some(lane, index, &mut self.spares, &mut self.carriers, core) {
                Ok(Some((n, offered))) => {
                    any = true;
                    self.greeted(index, core);
                    // A read of shared memory brings no more than goes to one target.
                    if n < offered && !self.is_readable_by_memory(index) {
                        break;
                    }
                }
                Ok(None) => break,
                Err(loss) => {
                    self.lose(index, &loss, core);
                    return true;
                }
            }
        }
        if any {
            self.note_busy(index);
        }
        if let Some(lane) = self.lanes.get_mut(index) {
            self.spares.take_staging(lane);
        }
        any
    }

    /// Counts a lane as open once it is authenticated.
    fn greeted(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if lane.phase() == Phase::Ungreeted && core.lock().engine.is_greeted(LaneId(index as u32)) {
            lane.vouched =
                self.unauthenticated.vouches_for(core.lock().engine.lane_peer(LaneId(index as u32)));
            if lane.vouched {
                lane.carrier.admitted(&mut self.carriers);
            }
            self.carriers.begin_flow(index, &lane.carrier);
            self.lanes.enter(index, Phase::Open);
            self.tell_lanes_of(index, core);
        }
    }

    /// Tells lanes by UDP that their peer has made this one, if it is by TCP or from another address.
    fn tell_lanes_of(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get(index).filter(|_| self.carriers.has_packets()) else { return };
        let (is_tcp, from) = (lane.carrier.kind() == LaneKind::Tcp, lane.carrier.host());
        let others = core.lock().engine.other_lanes(LaneId(index as u32));
        for lane in others.iter().filter_map(|lane| self.lanes.get(lane.0 as usize)) {
            if is_tcp {
                lane.carrier.on_tcp_lane(&mut self.carriers);
            }
            if from.is_some() && lane.carrier.host() != from {
                lane.carrier.on_move(&mut self.carriers);
            }
        }
    }

    /// Prepares for a sleep on the shell's poller. False if there is something to do.
    pub(crate) fn doze(&mut self) -> bool {
        if !self.carriers.is_plain() {
            self.carriers.doze();
        }
        self.doze_by_memory()
    }

    /// When the shell has to be driven even without events.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        let own = (self.lanes.unsettled() > 0).then_some(Duration::from_millis(200));
        let own = own.into_iter().chain(self.listeners.resume_in());
        let memory = self.is_stirred().then_some(Duration::ZERO);
        own.chain(memory).chain(self.carriers.deadline()).min()
    }

    /// Stops listening.
    pub(crate) fn stop_listening(&mut self) {
        self.listeners.close(&self.poller);
    }

    /// The carrier of each lane.
    pub(crate) fn carriers(&self) -> Vec<String> {
        self.lanes.iter().map(|lane| lane.carrier.name(&self.carriers).to_owned()).collect()
    }

    /// The compositions of UDP lanes, and how many lanes had each.
    pub(crate) fn udp_protocols(&self) -> Vec<(Composition, u64)> {
        self.carriers.udp_protocols()
    }

    /// The state that lanes share.
    pub(crate) fn carriers_mut(&mut self) -> &mut Carriers {
        &mut self.carriers
    }

    /// The reason why a fabric that carried lanes has failed, if one has.
    pub(crate) fn fabric_failure(&self) -> Option<&str> {
        self.carriers.fabric_failure()
    }

    /// UDP packets that were dropped.
    pub(crate) fn dropped(&self) -> Dropped {
        self.carriers.dropped()
    }

    /// Whether any lane is left, or data that a lane was given is undelivered.
    pub(crate) fn has_lanes(&mut self) -> bool {
        self.lanes.count() > 0 || !self.carriers.is_settled()
    }

    /// Whether a lane may hold something that has not been sent once.
    pub(crate) fn has_unsent(&self) -> bool {
        self.lanes.iter().any(|lane| lane.phase() != Phase::HalfClosed) || self.carriers.has_unsent()
    }
}
