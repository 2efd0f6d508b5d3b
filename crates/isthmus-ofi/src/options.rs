//! Options of an endpoint, `fi_cancel`, and the room in its queues.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use isthmus_io::Endpoint;

use crate::abi::{fi_ops_ep, fi_rx_attr, fi_tx_attr, fid, fid_ep, fid_xpu_ep};
use crate::door::{entries, refusals};
use crate::endpoint::Ep;
use crate::error::Error;
use crate::info::{Kind, QUEUE_SIZE};

const FI_OPT_ENDPOINT: c_int = 0;

/// `FI_OPT_*`, with the type of the value.
const MIN_MULTI_RECV: c_int = 0;
const CM_DATA_SIZE: c_int = 1;
const TX_SIZE: c_int = 6;
const RX_SIZE: c_int = 7;
const HMEM_P2P: c_int = 8;
const CUDA_API_PERMITTED: c_int = 10;
const SHARED_MEMORY_PERMITTED: c_int = 11;
const MAX_MSG_SIZE: c_int = 12;
const MAX_TAGGED_SIZE: c_int = 13;
const MAX_RMA_SIZE: c_int = 14;
const MAX_ATOMIC_SIZE: c_int = 15;
const INJECT_MSG_SIZE: c_int = 16;
const INJECT_TAGGED_SIZE: c_int = 17;
const INJECT_RMA_SIZE: c_int = 18;
const INJECT_ATOMIC_SIZE: c_int = 19;

pub(crate) static OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(no_tx_ctx),
    rx_ctx: Some(no_rx_ctx),
    rx_size_left: Some(size_left),
    tx_size_left: Some(size_left),
    export_xpu: Some(no_export_xpu),
};

entries! {
    fn cancel(ep: Ep as fid, context: *mut c_void) -> isize {
        let live = ep.live()?;
        let found = live.board().cancel(live, context.addr())
            || live.engine().cancel(context.expose_provenance() as u64);
        // Do not log this: the receive may just have completed.
        Ok(if found { 0 } else { -(libc::ENOENT as isize) })
    }

    fn getopt(ep: Ep as fid, level: c_int, name: c_int, out: *mut c_void, len: *mut usize) -> c_int {
        let value = known_size(ep, level, name)?;
        // SAFETY: the caller passes null or a length.
        let len = unsafe { len.as_mut() }.ok_or(Error::Null)?;
        let room = std::mem::replace(len, size_of::<usize>());
        if room < size_of::<usize>() {
            return Err(Error::TooSmall);
        }
        if out.is_null() {
            return Err(Error::Null);
        }
        // SAFETY: not null, with the room just checked.
        unsafe { out.cast::<usize>().write_unaligned(value) };
        Ok(0)
    }

    fn setopt(ep: Ep as fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
        if level == FI_OPT_ENDPOINT && matches!(name, HMEM_P2P | CUDA_API_PERMITTED | SHARED_MEMORY_PERMITTED) {
            // We use no device memory, and nothing else that these options forbid.
            return Ok(0);
        }
        let now = known_size(ep, level, name)?;
        if len != size_of::<usize>() || value.is_null() {
            return Err(Error::Invalid("this option takes a size_t"));
        }
        // SAFETY: not null, with the length just checked.
        let value = unsafe { value.cast::<usize>().read_unaligned() };
        match name {
            MIN_MULTI_RECV => ep.state.min_multi_recv.store(value, Ordering::Relaxed),
            CM_DATA_SIZE => return Err(Error::NoOption),
            // Only memory limits our queues; the size is a hint.
            TX_SIZE | RX_SIZE => {}
            _ if value > now => return Err(Error::Invalid("more than this endpoint can do")),
            _ => {}
        }
        Ok(0)
    }

    fn size_left(ep: Ep as fid_ep) -> isize {
        ep.live()?;
        Ok(QUEUE_SIZE as isize)
    }
}

/// The value of an option that is a size.
fn known_size(ep: &Ep, level: c_int, name: c_int) -> Result<usize, Error> {
    if level != FI_OPT_ENDPOINT {
        return Err(Error::NoOption);
    }
    match name {
        MIN_MULTI_RECV => Ok(ep.state.min_multi_recv.load(Ordering::Relaxed)),
        CM_DATA_SIZE => Ok(0),
        TX_SIZE | RX_SIZE => Ok(QUEUE_SIZE),
        MAX_MSG_SIZE => Ok(ep.state.message_max()),
        INJECT_MSG_SIZE => Ok(ep.state.inject_max().min(ep.state.message_max())),
        // Datagrams are plain messages only.
        MAX_TAGGED_SIZE..=MAX_ATOMIC_SIZE | INJECT_TAGGED_SIZE..=INJECT_ATOMIC_SIZE
            if ep.state.kind() == Kind::Datagram =>
        {
            Ok(0)
        }
        MAX_TAGGED_SIZE | MAX_RMA_SIZE => Ok(ep.state.message_max()),
        MAX_ATOMIC_SIZE => Ok(Endpoint::ATOMIC_MAX),
        INJECT_TAGGED_SIZE | INJECT_RMA_SIZE => Ok(ep.state.inject_max()),
        INJECT_ATOMIC_SIZE => Ok(Endpoint::ATOMIC_MAX),
        _ => Err(Error::NoOption),
    }
}

refusals! {
    fn no_tx_ctx(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    fn no_rx_ctx(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    fn no_export_xpu(*mut fid_ep, u64, *mut fid_xpu_ep) -> c_int;
}
