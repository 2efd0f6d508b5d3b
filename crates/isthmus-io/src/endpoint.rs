//! An endpoint: the engine, its shell, and whoever turns them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isthmus_datagram::{EthernetError, is_frames_only};
use isthmus_proto::{
    AtomicRequest, Completion, Config, Counters, Engine, OpError, PeekRequest, PeerId, RecvRequest, Refusal,
    RmaRequest, SHORT_FRAME_MAX, SendRequest,
};
use isthmus_trust::TrustError;
use isthmus_udp::{Composition, Dropped};
use isthmus_wire::{Address, AsId, SubnetId};
use parking_lot::{Mutex, MutexGuard};

use crate::burst::Burst;
use crate::carrier::{Carriers, Tls};
use crate::courtesy::{self, NAP};
use crate::driver::Driver;
use crate::interface::InterfaceError;
use crate::listen::{Listening, listen};
use crate::memory::ProcessMemory;
use crate::poller::{Bell, Poller};
use crate::shell::{Brief, Core, Shell, Turned};
use crate::signals;
use crate::watch::{POLLS_A_LOOK, Watch};
use crate::{Credit, Protocols, RegionTable, Settings, TlsMode, carrier};

/// Why an endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No address to listen at.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The listening socket could not be made.
    #[error("cannot listen at {at}: {cause}; choose another interface or port")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// Why.
        cause: io::Error,
    },
    /// The settings of encrypted lanes.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The interface carries no frames, or none of ours.
    #[error(transparent)]
    Ethernet(#[from] EthernetError),
    /// The system gave no descriptor, thread or random number.
    #[error("cannot open an endpoint: {0}")]
    System(#[from] io::Error),
}

/// Why an operation was not started. Nothing has happened then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No room now; turn the endpoint and try again (`-FI_EAGAIN`).
    #[error("no room for another operation; progress and try again")]
    Again,
    /// The peer cannot be reached from here at all.
    #[error("{0}")]
    Unreachable(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(&'static str),
}

impl From<Refusal> for PostError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unreachable(text) => Self::Unreachable(text),
            Refusal::Invalid(text) => Self::Invalid(text),
        }
    }
}

/// One endpoint. All calls may be made from any thread.
#[derive(Debug)]
pub struct Endpoint {
    address: Address,
    core: Mutex<Core>,
    shell: Mutex<Shell>,
    /// The engine has news for the shell that its present owner may have missed.
    pending: AtomicBool,
    burst: Burst,
    /// What polls look at first; told with the engine locked, or by whoever turns the shell.
    watch: Arc<Watch>,
    /// Somebody sleeps on the bell, or is about to.
    armed: AtomicBool,
    /// Threads that sleep until something is delivered: polls by others do not disarm the bell for them.
    sleepers: AtomicUsize,
    /// The bell was rung and not silenced since.
    rung: AtomicBool,
    /// The I/O thread does not sleep on this endpoint's descriptor: whoever polls need not be woken.
    standby: AtomicBool,
    closed: AtomicBool,
    bell: Bell,
    event_fd: Poller,
    driver: Arc<Driver>,
    process: u32,
    linger: Duration,
}

/// Turns that the I/O thread makes before it looks at other endpoints.
const TURNS_PER_DRIVE: usize = 16;
/// Sleep of a closing endpoint between its turns.
const CLOSE_STEP: Duration = Duration::from_micros(200);
/// How long closing waits for peers to close their side of the lanes.
const PARTING: Duration = Duration::from_secs(2);

impl Endpoint {
    /// Most bytes that [`isthmus_proto::Options::inject`] accepts.
    pub const INJECT_MAX: usize = 4096;
    /// Most pieces of one buffer.
    pub const IOV_MAX: usize = 8;
    /// Most bytes of one atomic operation's operand.
    pub const ATOMIC_MAX: usize = 4096;

    /// Opens an endpoint that listens at `bind` (or as the settings say).
    ///
    /// # Errors
    /// [`OpenError`], whose text says what to do.
    pub fn open(
        settings: &Settings,
        bind: Option<SocketAddr>,
        regions: Arc<RegionTable>,
    ) -> Result<Arc<Self>, OpenError> {
        let tls = settings.trust(carrier::PROTOCOL)?.map(Tls::new);
        let Listening { listeners, at, also, packets } = listen(settings, bind)?;
        let address = Address {
            as_id: AsId(settings.as_id),
            subnet: SubnetId(settings.subnet),
            locator: at,
            incarnation: random_incarnation()?,
        };
        // Among several rails the route decides.
        let named = !settings.interface.is_empty() && also.is_empty();
        let from = named.then_some(at.ip()).filter(|ip| !is_frames_only(*ip));
        let config = Config {
            also,
            credit_grows: settings.credit == Credit::Auto,
            credit: match settings.credit {
                Credit::Auto => Config::CREDIT,
                Credit::Bytes(bytes) => bytes,
            },
            credit_total: settings.credit_total.0,
            streams: settings.streams.0,
            transfer: settings.transfer.0,
            peer_timeout_us: settings.peer_timeout.0 / 1_000,
            proved_only: settings.tls == TlsMode::Required,
            routers: settings.routers.0.clone(),
            seed: u64::from(address.incarnation),
            ..Config::new(address)
        };
        let shell = Shell::new(Carriers::new(settings, at.ip(), from, packets, tls), listeners)?;
        let event_fd = Poller::new()?;
        event_fd.add(shell.poller(), 0, false)?;
        let endpoint = Arc::new(Self {
            address,
            core: Mutex::new(Core::new(Engine::new(config), ProcessMemory::new(regions))),
            shell: Mutex::new(shell),
            pending: AtomicBool::new(false),
            burst: Burst::new(),
            watch: Arc::new(Watch::new()),
            armed: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            rung: AtomicBool::new(false),
            standby: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            bell: Bell::new()?,
            event_fd,
            driver: Driver::get()?,
            process: signals::process_number(),
            linger: settings.linger.to_duration(),
        });
        endpoint.driver.adopt(&endpoint);
        courtesy::prepare();
        Ok(endpoint)
    }

    /// The address that peers need.
    pub fn address(&self) -> Address {
        self.address
    }

    /// What the engine did so far.
    pub fn counters(&self) -> Counters {
        self.core.lock().engine.counters()
    }

    /// What each lane goes by, for diagnosis: "TCP", or a provider of libfabric.
    pub fn carriers(&self) -> Vec<String> {
        self.shell.lock().carriers()
    }

    /// What lanes by UDP were made up of, and how many, in the order in which each was first
    /// chosen.
    pub fn udp_protocols(&self) -> Vec<(Composition, u64)> {
        self.shell.lock().udp_protocols()
    }

    /// Why a local fabric that lanes went by has failed as a whole, if one has: what it carried
    /// goes by other lanes. `None` also while another thread turns the endpoint: ask again.
    pub fn fabric_failure(&self) -> Option<String> {
        self.shell.try_lock()?.fabric_failure().map(str::to_owned)
    }

    /// What lanes by UDP, or as frames, are made up of from now on; `None` where `transport` has
    /// no such lanes.
    pub fn protocols(&self) -> Option<Protocols> {
        self.shell.lock().carriers_mut().protocols().cloned()
    }

    /// Makes lanes by UDP up of these small protocols, in place of what the settings said: new ones
    /// and those that carry data now. Nothing is lost or sent twice for it.
    pub fn set_udp_protocols(&self, protocols: Protocols) {
        self.shell.lock().carriers_mut().set_udp_protocols(protocols);
    }

    /// Does so whenever `udp_protocols` changes in this configuration file, which is looked at
    /// every second in which packets come or go.
    pub fn follow(&self, path: &Path) {
        self.shell.lock().carriers_mut().follow(path);
    }

    /// UDP packets that were passed over: garbled, of strangers, altered on the way.
    pub fn dropped(&self) -> Dropped {
        self.shell.lock().dropped()
    }

    /// The index of a peer in this endpoint's table; makes no connection.
    ///
    /// # Errors
    /// [`PostError::Unreachable`] for an address that no route leads to.
    pub fn peer(&self, address: &Address) -> Result<PeerId, PostError> {
        Ok(self.core.lock().engine.peer(address)?)
    }

    /// The address of a peer.
    pub fn peer_address(&self, peer: PeerId) -> Address {
        self.core.lock().engine.peer_address(peer).unwrap_or_default()
    }

    /// The shortest round trip to a peer that was seen; none before a lane to it has shown one, or
    /// where only that to a router shows.
    pub fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.core.lock().engine.round_trip_us(peer).map(Duration::from_micros)
    }

    /// This endpoint calls one peer, which answers before others call: what is sent first does not wait for
    /// that answer, a round trip. To be called before the peer is named.
    pub fn call_one(&self) {
        self.core.lock().engine.call_one();
    }

    /// The engine, for what may leave something to the next turn.
    fn work(&self) -> MutexGuard<'_, Core> {
        let guard = self.core.lock();
        self.watch.stir();
        guard
    }

    /// Posts something of so many bytes that are to go.
    fn post<T>(
        &self,
        len: u64,
        with: impl FnOnce(&mut Core) -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        if self.is_closed() {
            return Err(PostError::Invalid(
                "the endpoint is closed, or belongs to the parent of this process",
            ));
        }
        let mut guard = self.work();
        let posted = with(&mut guard);
        let busy = guard.engine.has_output();
        drop(guard);
        if busy && !self.burst.holds(len) {
            self.pump();
        }
        posted
    }

    /// Posts a message.
    ///
    /// # Errors
    /// [`PostError`]; a peer that cannot be reached is reported by the completion.
    ///
    /// # Safety
    /// Unless injected, the buffers stay valid and unchanged until the completion was polled.
    pub unsafe fn send(&self, request: &SendRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        let len = total(iov);
        // SAFETY: the caller's promise.
        if len <= SHORT_FRAME_MAX as u64 && unsafe { self.send_short(request, iov, len) } {
            return Ok(());
        }
        self.post(len, |core| {
            let place = core.memory.lend(iov);
            Ok(core.engine.send(request, place, len, &mut core.memory)?)
        })
    }

    /// Sends a small message at once, if it may go now ([`Shell::send_short`]).
    ///
    /// # Safety
    /// The pieces are valid for reading.
    unsafe fn send_short(&self, request: &SendRequest, iov: &[libc::iovec], len: u64) -> bool {
        if self.is_closed() {
            return false;
        }
        let Some(mut shell) = self.shell.try_lock() else { return false };
        self.watch.stir();
        // SAFETY: the caller's promise.
        let sent = unsafe { shell.send_short(&self.core, request, iov, len) };
        self.release(shell);
        sent
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`PostError::Invalid`] on a closed endpoint.
    ///
    /// # Safety
    /// The buffers stay valid and untouched until the completion was polled.
    pub unsafe fn recv(&self, request: &RecvRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        self.post(0, |core| {
            let place = core.memory.lend(iov);
            core.engine.recv(request, place, total(iov), &mut core.memory);
            Ok(())
        })
    }

    /// Searches the unexpected tagged messages, as they were at the last poll: programs look
    /// at other queues of theirs too, and count on this one to stand still meanwhile.
    ///
    /// # Errors
    /// [`PostError::Invalid`] on a closed endpoint.
    pub fn peek(&self, request: &PeekRequest) -> Result<(), PostError> {
        self.post(0, |core| {
            core.engine.note_polls(self.polls());
            core.engine.peek(request, &mut core.memory);
            Ok(())
        })
    }

    /// Receives the message that a peek reserved under the same context; with
    /// `discard` drops it instead.
    ///
    /// # Errors
    /// [`PostError::Invalid`] where nothing is claimed under this context.
    ///
    /// # Safety
    /// As for [`Endpoint::recv`].
    pub unsafe fn claim(
        &self,
        request: &RecvRequest,
        iov: &[libc::iovec],
        discard: bool,
    ) -> Result<(), PostError> {
        self.post(0, |core| {
            let place = core.memory.lend(iov);
            if core.engine.claim(request, place, total(iov), discard, &mut core.memory) {
                Ok(())
            } else {
                Err(PostError::Invalid("no message was claimed under this context"))
            }
        })
    }

    /// Writes to a peer's memory.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    ///
    /// # Safety
    /// As for [`Endpoint::send`].
    pub unsafe fn write(&self, request: &RmaRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        self.post(total(iov), |core| {
            let place = core.memory.lend(iov);
            Ok(core.engine.write(request, place, &mut core.memory)?)
        })
    }

    /// Reads a peer's memory.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    ///
    /// # Safety
    /// As for [`Endpoint::recv`].
    pub unsafe fn read(&self, request: &RmaRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        self.post(0, |core| {
            let place = core.memory.lend(iov);
            Ok(core.engine.read(request, place, &mut core.memory)?)
        })
    }

    /// An atomic operation on a peer's memory; `operand` and `compare` are copied before
    /// the call returns, `result` receives the earlier value.
    ///
    /// # Errors
    /// As for [`Endpoint::send`], and [`PostError::Invalid`] for an operation that does
    /// not exist for the type or is longer than [`Endpoint::ATOMIC_MAX`].
    ///
    /// # Safety
    /// As for [`Endpoint::recv`], of `result`.
    pub unsafe fn atomic(
        &self,
        request: &AtomicRequest,
        operand: &[libc::iovec],
        compare: &[libc::iovec],
        result: &[libc::iovec],
    ) -> Result<(), PostError> {
        if total(operand).max(total(compare)).max(request.remote.len) > Self::ATOMIC_MAX as u64 {
            return Err(PostError::Invalid("an atomic operation takes at most 4096 bytes"));
        }
        self.post(total(operand), |core| {
            let mut operands = Vec::new();
            for iov in [operand, compare] {
                let place = core.memory.lend(iov);
                isthmus_proto::Memory::load(&core.memory, place, 0, total(iov) as usize, &mut operands);
                isthmus_proto::Memory::release(&mut core.memory, place);
            }
            let place = core.memory.lend(result);
            Ok(core.engine.atomic(request, &operands, place, &mut core.memory)?)
        })
    }

    /// Cancels the oldest posted receive with this context; it then completes with
    /// [`isthmus_proto::OpError::Cancelled`]. False where there is none to cancel.
    pub fn cancel(&self, context: u64) -> bool {
        let mut guard = self.work();
        let Core { engine, memory, .. } = &mut *guard;
        engine.cancel(context, memory)
    }

    /// From now on [`Endpoint::poll_lost`] tells of peers that are gone for good.
    pub fn watch_peers(&self) {
        self.work().engine.watch_peers();
    }

    /// The next peer that is gone for good, and why ([`Engine::poll_lost`]).
    pub fn poll_lost(&self) -> Option<(PeerId, OpError)> {
        self.core.lock().engine.poll_lost()
    }

    /// Whether a message of this peer has matched a receive and is not complete
    /// ([`Engine::is_receiving`]).
    pub fn is_receiving(&self, peer: PeerId) -> bool {
        self.core.lock().engine.is_receiving(peer)
    }

    /// Gives a message's buffer back before the message is complete ([`Engine::disown`]).
    /// False while it is being written: try again later.
    pub fn disown(&self, context: u64) -> bool {
        let mut guard = self.work();
        let Core { engine, memory, .. } = &mut *guard;
        engine.disown(context, memory)
    }

    /// Turns the engine and moves finished operations into `out` (appending; `out` is
    /// the caller's to reuse). Returns how many.
    ///
    /// The engine is turned even where operations have finished already: a program that
    /// peeks has one at every poll, and what a peer had sent before it told the program so
    /// by way of a third must be seen by the next poll (`MPI_Win_test` after a barrier).
    pub fn poll(&self, out: &mut Vec<Completion>) -> usize {
        self.poll_beside(out, None)
    }

    /// As [`Endpoint::poll`], of a program that also waits for a descriptor of its own: where
    /// the poll sleeps a little for others' sake, that wakes it.
    pub fn poll_beside(&self, out: &mut Vec<Completion>, beside: Option<BorrowedFd<'_>>) -> usize {
        if self.is_closed() {
            return 0;
        }
        if self.watch.count_poll().is_multiple_of(POLLS_A_LOOK) {
            self.driver.put_off();
        }
        if self.armed.load(Ordering::Relaxed) {
            self.disarm();
        }
        if self.burst.end() {
            self.pump();
        }
        let brief = self.turn_briefly(out);
        if let Brief::Yes { read, done } = brief {
            if read || done > 0 {
                courtesy::found();
            } else {
                courtesy::found_nothing(&self.event_fd, beside, || self.is_quiet());
            }
            return done;
        }
        if brief == Brief::No {
            self.core.lock().engine.note_polls(self.polls());
        }
        let turned = self.turn(false);
        let done = turned.is_none_or(|turned| turned.done);
        let moved = if done { self.core.lock().engine.take_completions(out) } else { 0 };
        if turned.is_some_and(|turned| turned.read) || moved > 0 {
            courtesy::found();
        } else if turned.is_some() {
            courtesy::found_nothing(&self.event_fd, beside, || self.is_quiet());
        } else {
            // Whoever turns the shell works for us: polling on would only hold that up.
            courtesy::found_busy(|| self.shell.try_lock_for(NAP).map_or((), drop));
        }
        moved
    }

    /// What tells without a lock whether a poll would be in vain.
    pub fn watch(&self) -> Arc<Watch> {
        self.watch.clone()
    }

    /// The program found something by a descriptor of its own: its polls are not in vain.
    pub fn note_found(&self) {
        courtesy::found();
    }

    /// A descriptor that is readable when [`Endpoint::poll`] has something to return,
    /// provided [`Endpoint::arm`] said yes since the last poll.
    pub fn wait_fd(&self) -> RawFd {
        self.bell.raw_fd()
    }

    /// A descriptor that is readable whenever a turn has something to do, armed or not: for a
    /// program that polls several endpoints, and sleeps a little within the poll of one.
    pub fn turn_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// Prepares to sleep on [`Endpoint::wait_fd`]: from now on the I/O thread turns the
    /// engine. False where completions are already waiting.
    pub fn arm(&self) -> bool {
        self.armed.store(true, Ordering::SeqCst);
        self.watch.stir();
        if self.core.lock().engine.has_completions() {
            return false;
        }
        self.driver.wake();
        true
    }

    /// As [`Endpoint::arm`], for a thread that sleeps while others may poll: until it says
    /// [`Endpoint::wake_up`], their polls leave the bell armed. To be undone either way.
    pub fn fall_asleep(&self) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.arm()
    }

    /// The end of [`Endpoint::fall_asleep`].
    pub fn wake_up(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The program polls, and needs no bell unless another thread of its sleeps.
    fn disarm(&self) {
        // Whoever polls takes all that there is, and wakes those for whom some of it is.
        if self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::SeqCst) {
            self.bell.silence();
        }
        if self.sleepers.load(Ordering::SeqCst) > 0 || !self.armed.swap(false, Ordering::SeqCst) {
            return;
        }
        // One that fell asleep between the two looks counted itself before it armed.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.armed.store(true, Ordering::SeqCst);
        }
    }

    /// Sleeps until completions wait or `timeout` has passed (`None`: no limit). False
    /// on a time-out or an interrupting signal.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if !self.arm() {
            return true;
        }
        let limit = timeout.map_or(-1, |t| t.as_millis().min(i32::MAX as u128) as i32);
        wait_readable(self.bell.raw_fd(), limit);
        self.core.lock().engine.has_completions()
    }

    /// Ends the endpoint: sends what was accepted (bounded by the `linger` setting),
    /// tells the peers, closes the lanes. Unfinished receives are dropped silently.
    pub fn close(&self) {
        if self.is_foreign() || self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.work().engine.begin_close();
        self.turn_until(self.linger, |endpoint, _| endpoint.core.lock().engine.is_drained());
        self.work().engine.say_bye();
        self.turn_until(PARTING, |_, shell| {
            shell.stop_listening();
            !shell.has_lanes()
        });
    }

    fn turn_until(&self, limit: Duration, done: impl Fn(&Self, &mut Shell) -> bool) {
        let start = Instant::now();
        loop {
            let mut shell = self.shell.lock();
            shell.turn(&self.core, true);
            if done(self, &mut shell) || start.elapsed() > limit {
                return;
            }
            let quiet = shell.doze();
            drop(shell);
            if !quiet {
                continue;
            }
            wait_readable(self.event_fd.raw_fd(), CLOSE_STEP.as_millis().max(1) as i32);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.is_foreign()
    }

    /// Whether this process was forked from the one that opened the endpoint.
    fn is_foreign(&self) -> bool {
        self.process != signals::process_number()
    }

    /// Lets the shell write what was just posted, here or where it is being turned.
    fn pump(&self) {
        self.pending.store(true, Ordering::SeqCst);
        while self.pending.load(Ordering::SeqCst) {
            let Some(mut shell) = self.shell.try_lock() else { return };
            self.watch.stir();
            self.pending.store(false, Ordering::SeqCst);
            shell.put_out(&self.core);
        }
    }

    /// Whether there is nothing to do, and whatever comes will show at the descriptor.
    fn is_quiet(&self) -> bool {
        // Whoever was to be woken is roused by the next poll.
        self.watch.stir();
        self.shell.try_lock().is_none_or(|mut shell| shell.doze())
    }

    /// Turns the shell once, unless somebody else does; what became of that.
    fn turn(&self, fully: bool) -> Option<Turned> {
        let mut shell = self.shell.try_lock()?;
        self.watch.stir();
        if self.standby.load(Ordering::Relaxed) {
            shell.rouse();
        }
        let turned = shell.turn(&self.core, fully);
        self.release(shell);
        Some(turned)
    }

    /// As [`Endpoint::turn`], as far as there is a short way ([`Shell::turn_briefly`]).
    fn turn_briefly(&self, out: &mut Vec<Completion>) -> Brief {
        let Some(mut shell) = self.shell.try_lock() else { return Brief::No };
        if self.standby.load(Ordering::Relaxed) {
            shell.rouse();
        }
        let brief = shell.turn_briefly(&self.core, &self.watch, out);
        self.release(shell);
        brief
    }

    /// Gives the shell up and does what came while it was held.
    fn release(&self, shell: MutexGuard<'_, Shell>) {
        drop(shell);
        if self.pending.load(Ordering::SeqCst) {
            self.pump();
        }
        if self.armed.load(Ordering::Relaxed) && self.core.lock().engine.has_completions() {
            self.bell.ring();
            // After it: what is silenced has been rung.
            self.rung.store(true, Ordering::SeqCst);
        }
    }

    // What follows is for the I/O thread.

    pub(crate) fn polls(&self) -> u64 {
        self.watch.polls()
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    pub(crate) fn attend(&self, attended: bool) {
        self.burst.attend(attended);
    }

    pub(crate) fn event_fd(&self) -> &Poller {
        &self.event_fd
    }

    /// Turns the endpoint until there is nothing more to read, or the program polls again and can
    /// do so itself: a thread beside it would take a processor from others.
    pub(crate) fn drive(&self) {
        if self.is_closed() {
            return;
        }
        let polls = self.polls();
        for _ in 0..TURNS_PER_DRIVE {
            if !self.turn(true).is_some_and(|turned| turned.read) || self.polls() != polls {
                break;
            }
        }
    }

    /// The I/O thread leaves the endpoint to the program, or takes over.
    pub(crate) fn set_standby(&self, standby: bool) {
        self.standby.store(standby, Ordering::Relaxed);
    }

    /// The I/O thread is about to sleep until the endpoint's descriptor is readable.
    pub(crate) fn doze(&self) {
        if !self.is_closed() {
            // Who holds it now may not come again.
            let mut shell = self.shell.lock();
            self.watch.stir();
            shell.doze();
        }
    }

    /// When the endpoint wants to be turned even without events.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let guard = self.core.lock();
        let now = guard.now();
        let engine = guard.engine.poll_timeout().map(|at| Duration::from_micros(at.saturating_sub(now)));
        drop(guard);
        let shell = if self.is_closed() { None } else { self.shell.lock().deadline() };
        engine.into_iter().chain(shell).min()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

pub(crate) fn random_incarnation() -> io::Result<u32> {
    let random = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(random.max(1))
}

pub(crate) fn total(iov: &[libc::iovec]) -> u64 {
    iov.iter().map(|piece| piece.iov_len as u64).sum()
}

/// Sleeps until a descriptor is readable or so many milliseconds have passed (-1: no limit).
fn wait_readable(fd: RawFd, limit_ms: i32) {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut entry, 1, limit_ms) };
}
