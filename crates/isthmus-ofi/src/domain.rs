//! `fid_domain`: holds the settings and the registered memory, and opens all other objects.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use isthmus_io::{RegionTable, Settings};
use parking_lot::Mutex;

use crate::abi::{
    fi_atomic_attr, fi_av_attr, fi_cntr_attr, fi_collective_attr, fi_collective_op, fi_cq_attr, fi_datatype,
    fi_domain_attr, fi_info, fi_op, fi_ops, fi_ops_domain, fi_poll_attr, fi_rx_attr, fi_tx_attr, fi_xpu_attr,
    fid, fid_av, fid_cntr, fid_cq, fid_domain, fid_ep, fid_poll, fid_stx, fid_xpu_ctx,
};
use crate::convert::copy_prefix;
use crate::door::{Guard, Object, close, entries, give, of_class, refusals};
use crate::eq::Eq;
use crate::error::Error;
use crate::events::EventQueue;
use crate::fid::{head, ops, table};
use crate::flags::{FI_CLASS_DOMAIN, FI_CLASS_EQ, FI_MR_BASIC, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR};
use crate::state::{DomainState, FabricState};
use crate::{atomic, av, cntr, collective, cq, deferred, ep, mr, poll};

#[repr(C)]
pub(crate) struct Domain {
    raw: fid_domain,
    guard: Guard,
    /// The bound event queue. It would be told of asynchronous registrations, but ours are done when the call returns.
    events: Mutex<Option<Arc<EventQueue>>>,
    pub(crate) state: Arc<DomainState>,
}

// SAFETY: `repr(C)`, starting with `fid_domain`.
unsafe impl Object for Domain {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// Opens a domain.
///
/// # Safety
/// `info` is null or a `fi_info` in the caller's version; `out` is null or writable.
pub(crate) unsafe fn open(
    fabric: Arc<FabricState>,
    info: *const fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; the part read is in all versions.
    let info = unsafe { copy_prefix(info, offset_of!(fi_info, fabric_attr)) }.ok_or(Error::Null)?;
    // SAFETY: likewise.
    let attr = unsafe { copy_prefix(info.domain_attr, offset_of!(fi_domain_attr, mr_key_size)) };
    let mr_mode = attr.map_or(0, |attr| attr.mr_mode);
    let settings = Settings::load().map_err(|error| Error::InvalidText(error.to_string()))?;
    let state = DomainState {
        fabric,
        settings,
        regions: Arc::new(RegionTable::within_reach()),
        observers: Arc::default(),
        board: Arc::default(),
        addr_format: info.addr_format,
        virtual_addressing: mr_mode & (FI_MR_BASIC | FI_MR_VIRT_ADDR) != 0,
        provider_keys: mr_mode & (FI_MR_BASIC | FI_MR_PROV_KEY) != 0,
    };
    let raw =
        fid_domain { fid: head(FI_CLASS_DOMAIN, context, &FID_OPS), ops: table(&OPS), mr: table(&mr::OPS) };
    let domain = Domain { raw, guard: Guard::new(), events: Mutex::default(), state: Arc::new(state) };
    // SAFETY: by this function's contract.
    unsafe { give(domain, out) }?;
    Ok(0)
}

static FID_OPS: fi_ops = ops(close_domain, Some(bind), Some(control));

static OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(open_av),
    cq_open: Some(open_cq),
    endpoint: Some(open_ep),
    scalable_ep: Some(no_scalable_ep),
    cntr_open: Some(open_cntr),
    poll_open: Some(open_poll),
    stx_ctx: Some(no_stx_ctx),
    srx_ctx: Some(no_srx_ctx),
    query_atomic: Some(query_atomic),
    query_collective: Some(query_collective),
    endpoint2: Some(open_ep2),
    xpu_ctx: Some(no_xpu_ctx),
};

unsafe extern "C" fn close_domain(raw: *mut fid) -> c_int {
    let unused = |domain: &Domain| match Arc::strong_count(&domain.state) {
        1 => {
            domain.state.board.close();
            Ok(())
        }
        _ => Err(Error::Busy("the domain has open objects")),
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, unused) }
}

entries! {
    fn bind(domain: Domain as fid, other: *mut fid, flags: u64) -> c_int {
        if flags != 0 {
            return Err(Error::BadFlags(flags));
        }
        // SAFETY: the caller passes null or an object.
        let eq: &Eq = unsafe { of_class(other, FI_CLASS_EQ, "only an event queue can be bound to a domain") }?;
        *domain.events.lock() = Some(eq.queue.clone());
        Ok(0)
    }

    fn control(domain: Domain as fid, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the caller passes what the command takes.
        unsafe { deferred::control(&domain.state.board, command, arg) }
    }

    fn open_av(
        domain: Domain as fid_domain, attr: *mut fi_av_attr, out: *mut *mut fid_av, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes its attributes and a place for the result.
        unsafe { av::open(domain.state.clone(), attr, out, context) }
    }

    fn open_cq(
        domain: Domain as fid_domain, attr: *mut fi_cq_attr, out: *mut *mut fid_cq, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes its attributes and a place for the result.
        unsafe { cq::open(domain.state.clone(), attr, out, context) }
    }

    fn open_ep(
        domain: Domain as fid_domain, info: *mut fi_info, out: *mut *mut fid_ep, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes an info of fi_getinfo and a place for the result.
        unsafe { ep::open(domain.state.clone(), info, out, context) }
    }

    fn open_ep2(
        domain: Domain as fid_domain, info: *mut fi_info, out: *mut *mut fid_ep, flags: u64,
        context: *mut c_void,
    ) -> c_int {
        if flags != 0 {
            return Err(Error::Unsupported("an endpoint with flags"));
        }
        // SAFETY: the caller passes an info of fi_getinfo and a place for the result.
        unsafe { ep::open(domain.state.clone(), info, out, context) }
    }

    fn open_cntr(
        domain: Domain as fid_domain, attr: *mut fi_cntr_attr, out: *mut *mut fid_cntr, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes null or its attributes, and a place for the result.
        unsafe { cntr::open(domain.state.clone(), attr, out, context) }
    }

    fn open_poll(domain: Domain as fid_domain, attr: *mut fi_poll_attr, out: *mut *mut fid_poll) -> c_int {
        // SAFETY: the caller passes null or its attributes, and a place for the result.
        unsafe { poll::open(domain.state.clone(), attr, out) }
    }

    fn query_atomic(
        domain: Domain as fid_domain, datatype: fi_datatype, op: fi_op, attr: *mut fi_atomic_attr, flags: u64,
    ) -> c_int {
        let _ = domain;
        // SAFETY: the caller passes a place for the result.
        unsafe { atomic::query(datatype, op, attr, flags) }
    }

    fn query_collective(
        domain: Domain as fid_domain, what: fi_collective_op, attr: *mut fi_collective_attr, flags: u64,
    ) -> c_int {
        let _ = domain;
        // SAFETY: the caller passes its question, and a place for the answer in it.
        unsafe { collective::query(what, attr, flags) }
    }
}

refusals! {
    fn no_scalable_ep(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int;
    fn no_stx_ctx(*mut fid_domain, *mut fi_tx_attr, *mut *mut fid_stx, *mut c_void) -> c_int;
    fn no_srx_ctx(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    fn no_xpu_ctx(*mut fid_domain, *mut fi_xpu_attr, *mut *mut fid_xpu_ctx, *mut c_void) -> c_int;
}
