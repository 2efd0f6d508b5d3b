//! `fid_ep`: endpoints, from opening to closing. Their operations are in `msg.rs`, `tagged.rs`, `rma.rs` and `atomic/`.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use isthmus_io::{Datagrams, Endpoint, Settings, TlsMode};
use isthmus_proto::{Fence, Level, Options};
use parking_lot::Mutex;

use crate::abi::{fi_addr_t, fi_alias, fi_ep_attr, fi_info, fi_ops, fi_rx_attr, fi_tx_attr, fid, fid_ep};
use crate::av::Av;
use crate::call::Call;
use crate::cntr::Cntr;
use crate::convert::{copy_prefix, zeroed};
use crate::cq::Cq;
use crate::domain::DomainState;
use crate::door::{Guard, Object, close, entries, give};
use crate::engine::Engine;
use crate::eq::{Eq, EventQueue};
use crate::error::Error;
use crate::fid::{head, ops, table};
use crate::flags::*;
use crate::info::{INJECT_SIZE_MAX, Kind, MSG_SIZE_MAX, MULTI_RECV_MIN};
use crate::live::{Bindings, Live, QueueBinding, Terms};
use crate::order::Orders;
use crate::trigger::When;
use crate::{atomic, cm, collective, info, msg, options, rma, tagged};

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

/// Opens an endpoint.
///
/// # Safety
/// `info` is null or a `fi_info` in the caller's version; `out` is null or writable.
pub(crate) unsafe fn open(
    domain: Arc<DomainState>,
    info: *const fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; read as far as all versions reach.
    let info = unsafe { copy_prefix(info, offset_of!(fi_info, fabric_attr)) }.ok_or(Error::Null)?;
    // SAFETY: as above.
    let ep = unsafe { copy_prefix(info.ep_attr, offset_of!(fi_ep_attr, protocol)) }.unwrap_or(zeroed());
    // SAFETY: as above.
    let tx: fi_tx_attr =
        unsafe { copy_prefix(info.tx_attr, offset_of!(fi_tx_attr, tclass)) }.unwrap_or(zeroed());
    // SAFETY: as above.
    let rx: fi_rx_attr = unsafe { copy_prefix(info.rx_attr, size_of::<fi_rx_attr>()) }.unwrap_or(zeroed());
    let kind = Kind::of(ep.type_);
    let kind = kind.ok_or(Error::Unsupported("an endpoint type other than FI_EP_RDM and FI_EP_DGRAM"))?;
    // SAFETY: libfabric's structure holds as many bytes as it says.
    let src = unsafe { info::address(info.src_addr, info.src_addrlen) }?;
    let state = EpState {
        domain,
        kind,
        terms: Terms {
            caps: if info.caps == 0 { kind.caps() } else { info.caps },
            orders: Orders::of(tx.msg_order),
            inject_max: tx.inject_size.clamp(Endpoint::INJECT_MAX, INJECT_SIZE_MAX),
        },
        bind: Mutex::new(src.map(|address| address.locator)),
        engine: Mutex::default(),
        bindings: Mutex::default(),
        events: Mutex::default(),
        live: OnceLock::new(),
        min_multi_recv: AtomicUsize::new(MULTI_RECV_MIN),
    };
    let ep = Ep::new(Arc::new(state), context, tx.op_flags & kind.tx_flags(), rx.op_flags & kind.rx_flags());
    // SAFETY: by this function's contract.
    unsafe { give(ep, out) }?;
    Ok(0)
}

impl EpState {
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

    fn enable(&self) -> Result<(), Error> {
        let mut bindings = self.bindings.lock();
        if self.live.get().is_some() {
            return Ok(());
        }
        // If something is missing, the bindings stay, so that the program can add it.
        bindings.check(self.caps())?;
        let live = Live::start(self.engine()?, std::mem::take(&mut bindings), self.terms, &self.domain)?;
        self.live.set(live).map_err(|_| Error::BadState("enabled twice at once"))
    }

    fn stop(&self) {
        match (self.live.get(), self.engine.lock().take()) {
            (Some(live), _) => live.stop(),
            (None, Some(engine)) => engine.close(),
            (None, None) => {}
        }
    }
}

impl Ep {
    fn new(state: Arc<EpState>, context: *mut c_void, tx_flags: u64, rx_flags: u64) -> Self {
        let raw = fid_ep {
            fid: head(FI_CLASS_EP, context, &FID_OPS),
            ops: table(&options::OPS),
            cm: table(&cm::OPS),
            msg: table(&msg::OPS),
            rma: table(&rma::OPS),
            tagged: table(&tagged::OPS),
            atomic: table(&atomic::OPS),
            collective: table(&collective::OPS),
        };
        Self {
            raw,
            guard: Guard::new(),
            state,
            tx_flags: AtomicU64::new(tx_flags),
            rx_flags: AtomicU64::new(rx_flags),
        }
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
        unsafe { When::of(context) }.map(Some)
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

    fn bind_queue(&self, cq: &Cq, flags: u64) -> Result<(), Error> {
        if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0
            || flags & (FI_TRANSMIT | FI_RECV) == 0
        {
            return Err(Error::BadFlags(flags));
        }
        let binding = || {
            Some(QueueBinding { queue: cq.queue.clone(), selective: flags & FI_SELECTIVE_COMPLETION != 0 })
        };
        let mut bound = self.state.bindings.lock();
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

    fn bind_counter(&self, cntr: &Cntr, flags: u64) -> Result<(), Error> {
        const EVENTS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        if flags & !EVENTS != 0 || flags == 0 {
            return Err(Error::BadFlags(flags));
        }
        // A counter may come late (libfabric's own providers allow that, and Sandia OpenSHMEM does it);
        // the lock keeps enabling out.
        let mut bound = self.state.bindings.lock();
        let counted = match self.state.live.get() {
            Some(live) => live.counts(flags),
            None => bound.counters.iter().any(|(_, events)| events & flags != 0),
        };
        if counted {
            return Err(Error::Invalid("the endpoint has a counter for this already"));
        }
        match self.state.live.get() {
            Some(live) => live.bind_counter(cntr.counter.clone(), flags),
            None => {
                bound.counters.push((cntr.counter.clone(), flags));
                Ok(())
            }
        }
    }

    /// A second handle with other default flags (`FI_ALIAS`).
    ///
    /// # Safety
    /// `alias` is null or valid, with a place for the result.
    unsafe fn alias(&self, alias: *mut fi_alias) -> Result<c_int, Error> {
        // SAFETY: by this function's contract.
        let alias = unsafe { alias.as_ref() }.ok_or(Error::Null)?;
        let copy = Self::new(
            self.state.clone(),
            self.raw.fid.context,
            self.tx_flags.load(Ordering::Relaxed),
            self.rx_flags.load(Ordering::Relaxed),
        );
        copy.set_flags(alias.flags)?;
        // SAFETY: by this function's contract.
        unsafe { give(copy, alias.fid) }?;
        Ok(0)
    }

    /// Replaces the default flags of one direction.
    fn set_flags(&self, flags: u64) -> Result<(), Error> {
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

    fn get_flags(&self, direction: u64) -> Result<u64, Error> {
        match direction & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT => Ok(self.tx_flags.load(Ordering::Relaxed)),
            FI_RECV => Ok(self.rx_flags.load(Ordering::Relaxed)),
            _ => Err(Error::Invalid("name either FI_TRANSMIT or FI_RECV")),
        }
    }
}

#[inline]
fn fence(flags: u64) -> Fence {
    if flags & FI_FENCE != 0 { Fence::All } else { Fence::None }
}

/// The peer that a transmitting call names.
pub(crate) fn target(live: &Live, number: fi_addr_t) -> Result<isthmus_proto::PeerId, Error> {
    if number == FI_ADDR_UNSPEC {
        return Err(Error::Invalid("no destination"));
    }
    live.peer(number)
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

static FID_OPS: fi_ops = ops(close_ep, Some(bind), Some(control));

entries! {
    fn bind(ep: Ep as fid, other: *mut fid, flags: u64) -> c_int {
        // SAFETY: the caller passes null or an object of this provider.
        let class = unsafe { other.as_ref() }.ok_or(Error::Null)?.fclass;
        if ep.state.live.get().is_some() && matches!(class, FI_CLASS_AV | FI_CLASS_CQ) {
            return Err(Error::BadState("the endpoint is enabled already"));
        }
        match class {
            FI_CLASS_AV => {
                // SAFETY: the class says what it is.
                let av = unsafe { &*other.cast::<Av>() };
                let mut bound = ep.state.bindings.lock();
                if bound.av.is_some() {
                    return Err(Error::Invalid("the endpoint has an address vector already"));
                }
                bound.av = Some(av.table.clone());
            }
            // SAFETY: the class says what it is.
            FI_CLASS_CQ => ep.bind_queue(unsafe { &*other.cast::<Cq>() }, flags)?,
            // SAFETY: the class says what it is.
            FI_CLASS_CNTR => ep.bind_counter(unsafe { &*other.cast::<Cntr>() }, flags)?,
            // The only events of connectionless endpoints are joined groups.
            FI_CLASS_EQ => {
                // SAFETY: the class says what it is.
                let eq = unsafe { &*other.cast::<Eq>() };
                *ep.state.events.lock() = Some(eq.queue.clone());
            }
            _ => return Err(Error::Unsupported("binding this kind of object to an endpoint")),
        }
        Ok(0)
    }

    fn control(ep: Ep as fid, command: c_int, arg: *mut c_void) -> c_int {
        match command {
            FI_ENABLE => ep.state.enable()?,
            // SAFETY: the caller passes null or its structure.
            FI_ALIAS => return unsafe { ep.alias(arg.cast()) },
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: the caller passes null or its flags.
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(Error::Null)?;
                if command == FI_SETOPSFLAG {
                    ep.set_flags(*flags)?;
                } else {
                    *flags = ep.get_flags(*flags)?;
                }
            }
            _ => return Err(Error::Unsupported("this control of an endpoint")),
        }
        Ok(0)
    }
}

unsafe extern "C" fn close_ep(raw: *mut fid) -> c_int {
    let end = |ep: &Ep| {
        if Arc::strong_count(&ep.state) == 1 {
            ep.state.stop();
        }
        Ok(())
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, end) }
}
