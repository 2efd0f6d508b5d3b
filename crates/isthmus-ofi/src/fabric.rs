//! `fid_fabric`: the root of all other objects.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{
    fi_eq_attr, fi_fabric_attr, fi_info, fi_ops, fi_ops_fabric, fi_wait_attr, fid, fid_domain, fid_eq,
    fid_fabric, fid_pep, fid_wait,
};
use crate::convert::{array, copy_prefix, text};
use crate::door::{Guard, Object, close, enter_free, entries, give, refusals};
use crate::error::Error;
use crate::fid::{head, ops, table};
use crate::flags::FI_CLASS_FABRIC;
use crate::state::FabricState;
use crate::{domain, eq, info, poll, waitset};

#[repr(C)]
pub(crate) struct Fabric {
    raw: fid_fabric,
    guard: Guard,
    state: Arc<FabricState>,
}

// SAFETY: `repr(C)`, starting with `fid_fabric`.
unsafe impl Object for Fabric {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// The provider's `fabric`.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    let body = || {
        // SAFETY: libfabric passes its own structure, which has not grown since 1.5.
        let attr = unsafe { copy_prefix(attr, size_of::<fi_fabric_attr>()) }.ok_or(Error::Null)?;
        // SAFETY: null or a terminated string.
        let name = unsafe { text(attr.name) }?;
        if name.is_some_and(|name| Ok(name) != info::NAME.to_str()) {
            return Err(Error::NoData("a fabric of another name"));
        }
        let api_version = attr.api_version;
        let raw = fid_fabric { fid: head(FI_CLASS_FABRIC, context, &FID_OPS), ops: table(&OPS), api_version };
        let fabric = Fabric { raw, guard: Guard::new(), state: Arc::new(FabricState { api_version }) };
        // SAFETY: libfabric passes a place for the result.
        unsafe { give(fabric, out) }?;
        Ok(0)
    };
    enter_free(body)
}

static FID_OPS: fi_ops = ops(close_fabric, None, None);

static OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(open_domain),
    passive_ep: Some(no_passive_ep),
    eq_open: Some(open_eq),
    wait_open: Some(open_wait),
    trywait: Some(trywait),
    domain2: Some(open_domain2),
};

unsafe extern "C" fn close_fabric(raw: *mut fid) -> c_int {
    let unused = |fabric: &Fabric| match Arc::strong_count(&fabric.state) {
        1 => Ok(()),
        _ => Err(Error::Busy("the fabric has open domains or event queues")),
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, unused) }
}

entries! {
    fn open_domain(
        fabric: Fabric as fid_fabric, info: *mut fi_info, out: *mut *mut fid_domain, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes an info of fi_getinfo and a place for the result.
        unsafe { domain::open(fabric.state.clone(), info, out, context) }
    }

    fn open_domain2(
        fabric: Fabric as fid_fabric, info: *mut fi_info, out: *mut *mut fid_domain, flags: u64,
        context: *mut c_void,
    ) -> c_int {
        if flags != 0 {
            return Err(Error::Unsupported("a domain with flags"));
        }
        // SAFETY: the caller passes an info of fi_getinfo and a place for the result.
        unsafe { domain::open(fabric.state.clone(), info, out, context) }
    }

    fn open_eq(
        fabric: Fabric as fid_fabric, attr: *mut fi_eq_attr, out: *mut *mut fid_eq, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes null or its attributes, and a place for the result.
        unsafe { eq::open(fabric.state.clone(), attr, out, context) }
    }

    fn open_wait(fabric: Fabric as fid_fabric, attr: *mut fi_wait_attr, out: *mut *mut fid_wait) -> c_int {
        // SAFETY: the caller passes null or its attributes, and a place for the result.
        unsafe { waitset::open(fabric.state.clone(), attr, out) }
    }

    fn trywait(fabric: Fabric as fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
        let _ = fabric;
        let count = usize::try_from(count).map_err(|_| Error::Invalid("a negative count"))?;
        // SAFETY: the caller passes an array of `count` objects.
        for &raw in unsafe { array(fids, count) }? {
            // SAFETY: each is an object of this provider.
            unsafe { poll::try_wait(raw) }?;
        }
        Ok(0)
    }
}

refusals! {
    fn no_passive_ep(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int;
}
