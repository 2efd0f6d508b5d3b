//! `fid_cntr`: counters of finished operations.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use crate::abi::{
    FI_CNTR_EVENTS_BYTES, FI_CNTR_EVENTS_COMP, fi_cntr_attr, fi_ops, fi_ops_cntr, fi_wait_obj, fid, fid_cntr,
    fid_xpu_cntr,
};
use crate::convert::{Plain, copy_prefix, zeroed};
use crate::counter::Counter;
use crate::door::{Guard, Object, close, entries, give, of_class, refusals};
use crate::error::Error;
use crate::fid::{head, ops, table};
use crate::flags::FI_CLASS_CNTR;
use crate::state::DomainState;
use crate::wait::Deadline;
use crate::waitobj::{self, waits};
use crate::waitset::{self, SetState};

#[repr(C)]
pub(crate) struct Cntr {
    raw: fid_cntr,
    guard: Guard,
    /// Keeps the domain open.
    _domain: Arc<DomainState>,
    wait_obj: fi_wait_obj,
    /// Keeps open the wait set that wakes for it.
    _set: Option<Arc<SetState>>,
    pub(crate) counter: Arc<Counter>,
}

// SAFETY: `repr(C)`, starting with `fid_cntr`.
unsafe impl Object for Cntr {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

// SAFETY: integers and raw pointers.
unsafe impl Plain for fi_cntr_attr {}

/// Opens a counter.
///
/// # Safety
/// `attr` is null or in the caller's version; `out` is null or writable.
pub(crate) unsafe fn open(
    domain: Arc<DomainState>,
    attr: *const fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; read as far as all versions reach.
    let attr = unsafe { copy_prefix(attr, offset_of!(fi_cntr_attr, xpu_ctx)) }.unwrap_or(zeroed());
    if attr.flags != 0 {
        return Err(Error::BadFlags(attr.flags));
    }
    let bytes = match attr.events {
        FI_CNTR_EVENTS_COMP => false,
        FI_CNTR_EVENTS_BYTES => true,
        _ => return Err(Error::Invalid("an unknown kind of counted event")),
    };
    let counter = Arc::new(Counter::new(bytes, domain.board.clone()));
    // SAFETY: by this function's contract.
    let set = unsafe { waitset::named(attr.wait_obj, attr.wait_set) }?;
    match &set {
        Some(set) => set.add_counter(&counter)?,
        None if waits(attr.wait_obj)? => {
            counter.fd()?;
        }
        None => {}
    }
    let raw = fid_cntr { fid: head(FI_CLASS_CNTR, context, &FID_OPS), ops: table(&OPS) };
    let cntr =
        Cntr { raw, guard: Guard::new(), _domain: domain, wait_obj: attr.wait_obj, _set: set, counter };
    // SAFETY: by this function's contract.
    unsafe { give(cntr, out) }?;
    Ok(0)
}

/// The counter behind an object that a trigger names.
///
/// # Safety
/// `raw` is null or an object of libfabric.
pub(crate) unsafe fn of_trigger(raw: *const fid_cntr) -> Result<Arc<Counter>, Error> {
    // SAFETY: by this function's contract; every object starts with its class.
    let found: &Cntr =
        unsafe { of_class(raw.cast(), FI_CLASS_CNTR, "a trigger's counter is not a counter") }?;
    Ok(found.counter.clone())
}

static FID_OPS: fi_ops = ops(close_cntr, None, Some(control));

static OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
    export_xpu: Some(no_export_xpu),
};

entries! {
    fn read(cntr: Cntr as fid_cntr) -> u64 {
        cntr.counter.progress();
        Ok(cntr.counter.read())
    }

    fn readerr(cntr: Cntr as fid_cntr) -> u64 {
        cntr.counter.progress();
        cntr.counter.read();
        Ok(cntr.counter.errors())
    }

    fn add(cntr: Cntr as fid_cntr, value: u64) -> c_int {
        cntr.counter.add(value);
        Ok(0)
    }

    fn set(cntr: Cntr as fid_cntr, value: u64) -> c_int {
        cntr.counter.set(value);
        Ok(0)
    }

    fn adderr(cntr: Cntr as fid_cntr, value: u64) -> c_int {
        cntr.counter.add_errors(value);
        Ok(0)
    }

    fn seterr(cntr: Cntr as fid_cntr, value: u64) -> c_int {
        cntr.counter.set_errors(value);
        Ok(0)
    }

    fn wait(cntr: Cntr as fid_cntr, threshold: u64, timeout: c_int) -> c_int {
        cntr.counter.wait(threshold, Deadline::after(timeout))?;
        Ok(0)
    }

    fn control(cntr: Cntr as fid, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the caller passes what the command takes.
        unsafe { waitobj::control(cntr.wait_obj, command, arg, || cntr.counter.fd()) }
    }
}

unsafe extern "C" fn close_cntr(raw: *mut fid) -> c_int {
    let unused = |cntr: &Cntr| match Arc::strong_count(&cntr.counter) {
        1 => Ok(()),
        _ => Err(Error::Busy(
            "the counter is bound to an endpoint, memory region or poll set, or something waits for it",
        )),
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, unused) }
}

refusals! {
    fn no_export_xpu(*mut fid_cntr, u64, *mut fid_xpu_cntr) -> c_int;
}
