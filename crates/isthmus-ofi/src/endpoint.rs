//! An endpoint as its operations see it: its state, and the options of a call. `ep.rs` opens, binds and closes it.

use std::ffi::c_void;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use isthmus_abi::trigger::{FI_TRIGGER_THRESHOLD, fi_triggered_context};
use isthmus_io::{Datagrams, Endpoint, Settings, TlsMode};
use isthmus_proto::{Fence, Level, Options};
use parking_lot::Mutex;

use crate::abi::fid_ep;
use crate::av_table::AvTable;
use crate::call::Call;
use crate::cntr::of_trigger;
use crate::counter::Counter;
use crate::door::{Guard, Object};
use crate::engine::Engine;
use crate::error::Error;
use crate::events::EventQueue;
use crate::flags::*;
use crate::info::{Kind, MSG_SIZE_MAX, MULTI_RECV_MIN};
use crate::live::{Bindings, Live, QueueBinding, Terms};
use crate::queue::Queue;
use crate::state::DomainState;
use crate::trigger::When;

/// The state that an endpoint and its aliases share.
#[derive(Debug)]
pub(crate) struct EpState {
    domain: Arc<DomainState>,
    kind: Kind,
    terms: Terms,
    /// The address to listen at; `None`: as the settings say.
    pub(crate) bind: Mutex<Option<SocketAddr>>,
    engine: Mutex<Option<Engine>>,
    bindings: Mutex<Bindings>,
    /// The bound event queue, which is told of joined groups.
    events: Mutex<Option<Arc<EventQueue>>>,
    live: OnceLock<Arc<Live>>,
    pub(crate) min_multi_recv: AtomicUsize,
}

#[repr(C)]
pub(crate) struct Ep {
    raw: fid_ep,
    guard: Guard,
    pub(crate) state: Arc<EpState>,
    tx_flags: AtomicU64,
    rx_flags: AtomicU64,
}

// SAFETY: `repr(C)`, starting with `fid_ep`.
unsafe impl Object for Ep {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

impl EpState {
    pub(crate) fn new(domain: Arc<DomainState>, kind: Kind, terms: Terms, bind: Option<SocketAddr>) -> Self {
        Self {
            domain,
            kind,
            terms,
            bind: Mutex::new(bind),
            engine: Mutex::default(),
            bindings: Mutex::default(),
            events: Mutex::default(),
            live: OnceLock::new(),
            min_multi_recv: AtomicUsize::new(MULTI_RECV_MIN),
        }
    }

    /// The enabled endpoint.
    pub(crate) fn live(&self) -> Option<&Arc<Live>> {
        self.live.get()
    }

    /// The engine, opened when first needed.
    pub(crate) fn engine(&self) -> Result<Engine, Error> {
        let mut slot = self.engine.lock();
        if let Some(engine) = &*slot {
            return Ok(engine.clone());
        }
        let (settings, bind) = (&self.domain.settings, *self.bind.lock());
        let engine = match self.kind {
            Kind::Reliable => {
                let endpoint = Endpoint::open(settings, bind, self.domain.regions.clone())?;
                // Follow the file: protocols may change while a job runs.
                if let Some(file) = Settings::file_to_follow() {
                    endpoint.follow(&file);
                }
                Engine::Reliable(endpoint)
            }
            Kind::Datagram if settings.tls == TlsMode::Required => {
                return Err(Error::Unsupported(
                    "a datagram endpoint, which encrypts nothing, where tls is required:",
                ));
            }
            Kind::Datagram => Engine::Datagrams(Arc::new(Datagrams::open(settings, bind)?)),
        };
        Ok(slot.insert(engine).clone())
    }

    /// Longest message. Bytes.
    pub(crate) fn message_max(&self) -> usize {
        match self.engine() {
            Ok(Engine::Datagrams(datagrams)) => datagrams.message_max(),
            _ => MSG_SIZE_MAX,
        }
    }

    pub(crate) fn inject_max(&self) -> usize {
        self.terms.inject_max
    }

    /// The event queue bound to it.
    pub(crate) fn events(&self) -> Option<Arc<EventQueue>> {
        self.events.lock().clone()
    }

    pub(crate) fn caps(&self) -> u64 {
        self.terms.caps
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn socket_addresses(&self) -> bool {
        self.domain.socket_addresses()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.engine.lock().is_some()
    }

    pub(crate) fn enable(&self) -> Result<(), Error> {
        let mut bindings = self.bindings.lock();
        if self.live.get().is_some() {
            return Ok(());
        }
        // If something is missing, the bindings stay, so that the program can add it.
        bindings.check(self.caps())?;
        let live = Live::start(self.engine()?, std::mem::take(&mut bindings), self.terms, &self.domain)?;
        self.live.set(live).map_err(|_| Error::BadState("enabled twice at once"))
    }

    pub(crate) fn stop(&self) {
        match (self.live.get(), self.engine.lock().take()) {
            (Some(live), _) => live.stop(),
            (None, Some(engine)) => engine.close(),
            (None, None) => {}
        }
    }

    pub(crate) fn bind_av(&self, table: &Arc<AvTable>) -> Result<(), Error> {
        let mut bound = self.bindings.lock();
        if bound.av.is_some() {
            return Err(Error::Invalid("the endpoint has an address vector already"));
        }
        bound.av = Some(table.clone());
        Ok(())
    }

    pub(crate) fn bind_events(&self, events: &Arc<EventQueue>) {
        *self.events.lock() = Some(events.clone());
    }

    pub(crate) fn bind_queue(&self, queue: &Arc<Queue>, flags: u64) -> Result<(), Error> {
        if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0
            || flags & (FI_TRANSMIT | FI_RECV) == 0
        {
            return Err(Error::BadFlags(flags));
        }
        let binding =
            || Some(QueueBinding { queue: queue.clone(), selective: flags & FI_SELECTIVE_COMPLETION != 0 });
        let mut bound = self.bindings.lock();
        let taken =
            (flags & FI_TRANSMIT != 0 && bound.tx.is_some()) || (flags & FI_RECV != 0 && bound.rx.is_some());
        if taken {
            return Err(Error::Invalid("the endpoint has a completion queue for this already"));
        }
        if flags & FI_TRANSMIT != 0 {
            bound.tx = binding();
        }
        if flags & FI_RECV != 0 {
            bound.rx = binding();
        }
        Ok(())
    }

    pub(crate) fn bind_counter(&self, counter: &Arc<Counter>, flags: u64) -> Result<(), Error> {
        const EVENTS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        if flags & !EVENTS != 0 || flags == 0 {
            return Err(Error::BadFlags(flags));
        }
        // A counter may come late (libfabric's own providers allow that, and Sandia OpenSHMEM does it);
        // the lock keeps enabling out.
        let mut bound = self.bindings.lock();
        let counted = match self.live.get() {
            Some(live) => live.counts(flags),
            None => bound.counters.iter().any(|(_, events)| events & flags != 0),
        };
        if counted {
            return Err(Error::Invalid("the endpoint has a counter for this already"));
        }
        match self.live.get() {
            Some(live) => live.bind_counter(counter.clone(), flags),
            None => {
                bound.counters.push((counter.clone(), flags));
                Ok(())
            }
        }
    }
}

impl Ep {
    pub(crate) fn new(raw: fid_ep, state: Arc<EpState>, tx_flags: u64, rx_flags: u64) -> Self {
        Self {
            raw,
            guard: Guard::new(),
            state,
            tx_flags: AtomicU64::new(tx_flags),
            rx_flags: AtomicU64::new(rx_flags),
        }
    }

    /// Another handle of the same state and context, with the same default flags.
    pub(crate) fn twin(&self, head_of: impl FnOnce(*mut c_void) -> fid_ep) -> Self {
        let (tx_flags, rx_flags) = (&self.tx_flags, &self.rx_flags);
        Self::new(
            head_of(self.raw.fid.context),
            self.state.clone(),
            tx_flags.load(Ordering::Relaxed),
            rx_flags.load(Ordering::Relaxed),
        )
    }

    /// The enabled endpoint.
    #[inline(always)]
    pub(crate) fn live(&self) -> Result<&Arc<Live>, Error> {
        // `ok_or` would make an error on each call only to drop it.
        let Some(live) = self.state.live.get() else {
            return Err(Error::BadState("the endpoint is not enabled"));
        };
        Ok(live)
    }

    /// A call without flags that transmits.
    ///
    /// # Safety
    /// `context` is a `fi_triggered_context` if the endpoint's flags have `FI_TRIGGER`.
    #[inline(always)]
    pub(crate) unsafe fn tx(&self, context: *mut c_void) -> Result<Call<'_>, Error> {
        let (live, flags) = (self.live()?, self.tx_flags.load(Ordering::Relaxed));
        // SAFETY: by this function's contract.
        let when = unsafe { self.when(flags, context) }?;
        // MPICH sets FI_DELIVERY_COMPLETE by default for the sake of RMA. Its messages do not need it.
        let has_rma = self.state.terms.caps & (FI_RMA | FI_ATOMIC) != 0;
        let wanted = if has_rma { flags & !FI_DELIVERY_COMPLETE } else { flags };
        let options = Options { buffered: self.buffered(wanted), ..self.tx_options(live, flags, context) };
        Ok(Call { live, options, when })
    }

    /// A `*msg` call that transmits, whose flags replace the defaults.
    ///
    /// # Safety
    /// `context` is a `fi_triggered_context` if the flags have `FI_TRIGGER`.
    #[inline]
    pub(crate) unsafe fn tx_msg(&self, flags: u64, context: *mut c_void) -> Result<Call<'_>, Error> {
        let unknown = flags & !self.state.kind.tx_flags();
        if unknown != 0 {
            return Err(Error::BadFlags(unknown));
        }
        let live = self.live()?;
        // SAFETY: by this function's contract.
        let when = unsafe { self.when(flags, context) }?;
        let options = Options { buffered: self.buffered(flags), ..self.tx_options(live, flags, context) };
        Ok(Call { live, options, when })
    }

    /// An inject call: no entry in the queue, and the buffer is free at once. Of the default flags, only those that say
    /// when it starts apply.
    #[inline(always)]
    pub(crate) fn tx_inject(&self) -> Result<Call<'_>, Error> {
        let flags = self.tx_flags.load(Ordering::Relaxed);
        if flags & FI_TRIGGER != 0 {
            return Err(Error::Unsupported("an injected operation that waits for a counter"));
        }
        let options =
            Options { inject: true, context: self.own_context(), fence: fence(flags), ..Options::default() };
        Ok(Call { live: self.live()?, options, when: None })
    }

    /// The counter that an operation with these flags waits for.
    ///
    /// # Safety
    /// `context` is a `fi_triggered_context` if the flags have `FI_TRIGGER`.
    #[inline(always)]
    unsafe fn when(&self, flags: u64, context: *mut c_void) -> Result<Option<When>, Error> {
        if flags & FI_TRIGGER == 0 {
            return Ok(None);
        }
        if self.state.terms.caps & FI_TRIGGER == 0 {
            return Err(Error::BadFlags(FI_TRIGGER));
        }
        // SAFETY: by this function's contract.
        unsafe { trigger_of(context) }.map(Some)
    }

    /// [`Options::buffered`] of a message with these flags: none if it waits for something at the peer or for a counter.
    #[inline(always)]
    fn buffered(&self, flags: u64) -> Option<u64> {
        let levels = FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
        let waits = flags & (levels | FI_TRIGGER) != 0;
        (!waits).then(|| self.own_context())
    }

    /// The context under which failures of operations without a context of their own are reported (fi_endpoint(3)).
    fn own_context(&self) -> u64 {
        self.raw.fid.context.expose_provenance() as u64
    }

    #[inline(always)]
    pub(crate) fn tx_options(&self, live: &Live, flags: u64, context: *mut c_void) -> Options {
        let selective = live.tx.as_ref().is_some_and(|binding| binding.selective);
        let notify = !selective || flags & FI_COMPLETION != 0;
        let level = if flags & FI_MATCH_COMPLETE != 0 {
            Level::Match
        } else if flags & FI_DELIVERY_COMPLETE != 0 {
            Level::Delivery
        } else {
            Level::Transmit
        };
        Options {
            // Without an entry for success, the program may reuse the context at once.
            context: if notify { context.expose_provenance() as u64 } else { self.own_context() },
            notify,
            inject: flags & FI_INJECT != 0,
            level,
            fence: fence(flags),
            ..Options::default()
        }
    }

    /// A receive without flags.
    ///
    /// # Safety
    /// As for [`Ep::tx`].
    #[inline(always)]
    pub(crate) unsafe fn rx(&self, context: *mut c_void) -> Result<Call<'_>, Error> {
        // SAFETY: by this function's contract.
        unsafe { self.rx_msg(self.rx_flags.load(Ordering::Relaxed), context) }
    }

    /// A `*msg` receive, whose flags replace the defaults.
    ///
    /// # Safety
    /// As for [`Ep::tx_msg`].
    #[inline(always)]
    pub(crate) unsafe fn rx_msg(&self, flags: u64, context: *mut c_void) -> Result<Call<'_>, Error> {
        let live = self.live()?;
        // SAFETY: by this function's contract.
        let when = unsafe { self.when(flags, context) }?;
        Ok(Call { live, options: rx_options(live, flags, context), when })
    }

    /// Whether receives without flags are multi-receives.
    pub(crate) fn default_multi(&self) -> Option<u64> {
        self.multi(self.rx_flags.load(Ordering::Relaxed))
    }

    /// The least room of a multi-receive buffer, if `flags` ask for one.
    pub(crate) fn multi(&self, flags: u64) -> Option<u64> {
        let least = || self.state.min_multi_recv.load(Ordering::Relaxed) as u64;
        (flags & FI_MULTI_RECV != 0).then(least)
    }

    /// Replaces the default flags of one direction.
    pub(crate) fn set_flags(&self, flags: u64) -> Result<(), Error> {
        let (slot, known) = match flags & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT => (&self.tx_flags, self.state.kind.tx_flags()),
            FI_RECV => (&self.rx_flags, self.state.kind.rx_flags()),
            _ => return Err(Error::Invalid("name either FI_TRANSMIT or FI_RECV")),
        };
        let wanted = flags & !(FI_TRANSMIT | FI_RECV);
        if wanted & !known != 0 {
            return Err(Error::BadFlags(wanted & !known));
        }
        slot.store(wanted, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn get_flags(&self, direction: u64) -> Result<u64, Error> {
        match direction & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT => Ok(self.tx_flags.load(Ordering::Relaxed)),
            FI_RECV => Ok(self.rx_flags.load(Ordering::Relaxed)),
            _ => Err(Error::Invalid("name either FI_TRANSMIT or FI_RECV")),
        }
    }
}

/// Reads the trigger from the context of an operation with `FI_TRIGGER`.
///
/// # Safety
/// `context` is null or a `fi_triggered_context`.
unsafe fn trigger_of(context: *mut c_void) -> Result<When, Error> {
    // SAFETY: by this function's contract.
    let trigger = unsafe { context.cast::<fi_triggered_context>().as_ref() }.ok_or(Error::Null)?;
    if trigger.event_type != FI_TRIGGER_THRESHOLD {
        return Err(Error::Unsupported("a trigger other than a counter's threshold"));
    }
    // SAFETY: by this function's contract.
    let counter = unsafe { of_trigger(trigger.cntr) }?;
    Ok(When::new(counter, trigger.threshold as u64, context.addr()))
}

#[inline]
fn fence(flags: u64) -> Fence {
    if flags & FI_FENCE != 0 { Fence::All } else { Fence::None }
}

#[inline]
fn rx_options(live: &Live, flags: u64, context: *mut c_void) -> Options {
    let selective = live.rx.as_ref().is_some_and(|binding| binding.selective);
    Options {
        context: context.expose_provenance() as u64,
        notify: !selective || flags & FI_COMPLETION != 0,
        ..Options::default()
    }
}
