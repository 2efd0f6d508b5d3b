//! `fid_cq`: completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use crate::abi::{
    FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_TAGGED, FI_CQ_FORMAT_UNSPEC, fi_addr_t, fi_cq_attr, fi_cq_err_entry,
    fi_ops, fi_ops_cq, fi_wait_obj, fid, fid_cq, fid_xpu_cq,
};
use crate::convert::{Plain, copy_prefix, copy_text};
use crate::door::{Guard, Object, close, entries, give, refusals};
use crate::error::{Error, completion_errno, errno_of_receive};
use crate::fid::{head, ops, table};
use crate::flags::{FI_AFFINITY, FI_CLASS_CQ, FI_RECV, version};
use crate::queue::{Entry, Queue};
use crate::state::DomainState;
use crate::wait::Deadline;
use crate::waitobj::{self, waits};
use crate::waitset::{self, SetState};

#[repr(C)]
pub(crate) struct Cq {
    raw: fid_cq,
    guard: Guard,
    domain: Arc<DomainState>,
    wait_obj: fi_wait_obj,
    /// Keeps open the wait set that wakes for it.
    _set: Option<Arc<SetState>>,
    pub(crate) queue: Arc<Queue>,
}

// SAFETY: `repr(C)`, starting with `fid_cq`.
unsafe impl Object for Cq {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

// SAFETY: integers and raw pointers.
unsafe impl Plain for fi_cq_attr {}

/// Opens a completion queue.
///
/// # Safety
/// `attr` is null or in the caller's version; `out` is null or writable.
pub(crate) unsafe fn open(
    domain: Arc<DomainState>,
    attr: *const fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; read as far as all versions reach.
    let attr = unsafe { copy_prefix(attr, offset_of!(fi_cq_attr, xpu_ctx)) }.ok_or(Error::Null)?;
    if attr.flags & !FI_AFFINITY != 0 {
        return Err(Error::BadFlags(attr.flags));
    }
    let format = match attr.format {
        FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_CONTEXT,
        format if format <= FI_CQ_FORMAT_TAGGED => format,
        _ => return Err(Error::Unsupported("this format of completion entries")),
    };
    // SAFETY: by this function's contract.
    let set = unsafe { waitset::named(attr.wait_obj, attr.wait_set) }?;
    let waits = set.is_some() || waits(attr.wait_obj)?;
    let queue = Arc::new(Queue::new(format, attr.size, waits)?);
    if let Some(set) = &set {
        set.add_queue(&queue)?;
    }
    let raw = fid_cq { fid: head(FI_CLASS_CQ, context, &FID_OPS), ops: table(&OPS) };
    let cq = Cq { raw, guard: Guard::new(), domain, wait_obj: attr.wait_obj, _set: set, queue };
    // SAFETY: by this function's contract.
    unsafe { give(cq, out) }?;
    Ok(0)
}

static FID_OPS: fi_ops = ops(close_cq, None, Some(control));

static OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
    export_xpu: Some(no_export_xpu),
};

/// Result of a read that found nothing.
const NOTHING: isize = -(libc::EAGAIN as isize);

impl Cq {
    /// Reads up to `count` entries. If there is plainly nothing, it returns without driving any endpoint.
    ///
    /// # Safety
    /// As for [`Queue::read`].
    #[inline]
    unsafe fn take(&self, out: *mut c_void, count: usize, sources: *mut fi_addr_t) -> Result<isize, Error> {
        if self.queue.is_poll_vain() {
            return Ok(NOTHING);
        }
        // SAFETY: by this function's contract.
        unsafe { self.queue.read(out.cast(), count, sources) }
    }
}

entries! {
    fn read(cq: Cq as fid_cq, out: *mut c_void, count: usize) -> isize {
        // SAFETY: the caller passes room for `count` entries.
        unsafe { cq.take(out, count, std::ptr::null_mut()) }
    }

    fn readfrom(cq: Cq as fid_cq, out: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        // SAFETY: the caller passes room for `count` entries and numbers.
        unsafe { cq.take(out, count, sources) }
    }

    fn sread(cq: Cq as fid_cq, out: *mut c_void, count: usize, _cond: *const c_void, timeout: c_int) -> isize {
        // SAFETY: the caller passes room for `count` entries.
        unsafe { cq.queue.read_waiting(out.cast(), count, std::ptr::null_mut(), Deadline::after(timeout)) }
    }

    fn sreadfrom(
        cq: Cq as fid_cq, out: *mut c_void, count: usize, sources: *mut fi_addr_t, _cond: *const c_void,
        timeout: c_int,
    ) -> isize {
        // SAFETY: the caller passes room for `count` entries and numbers.
        unsafe { cq.queue.read_waiting(out.cast(), count, sources, Deadline::after(timeout)) }
    }

    fn readerr(cq: Cq as fid_cq, out: *mut fi_cq_err_entry, _flags: u64) -> isize {
        if out.is_null() {
            return Err(Error::Null);
        }
        let entry = cq.queue.take_error().ok_or(Error::Again)?;
        // SAFETY: not null; the caller passes an entry of its version.
        unsafe { write_error(cq, &entry, out) };
        Ok(1)
    }

    fn signal(cq: Cq as fid_cq) -> c_int {
        cq.queue.signal();
        Ok(0)
    }

    fn strerror(
        cq: Cq as fid_cq, number: c_int, _data: *const c_void, out: *mut c_char, len: usize,
    ) -> *const c_char {
        let text = cq.queue.text(number);
        // SAFETY: a terminated text of ours, and room as the caller says.
        unsafe { copy_text(text, out, len) };
        Ok(text)
    }

    fn control(cq: Cq as fid, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the caller passes what the command takes.
        unsafe { waitobj::control(cq.wait_obj, command, arg, || cq.queue.fd()) }
    }
}

/// Fills the caller's error entry as far as its version reaches: `err_data_size` came
/// with 1.5; `src_addr` (1.20) is for `FI_SOURCE_ERR`, which we do not offer.
///
/// # Safety
/// `out` is a writable entry of the version that the program was built for.
unsafe fn write_error(cq: &Cq, entry: &Entry, out: *mut fi_cq_err_entry) {
    let Some(error) = &entry.error else { return };
    let (done, beyond) = match **error {
        isthmus_proto::OpError::Truncated { sent, room } => {
            (entry.tagged.len, sent.saturating_sub(room) as usize)
        }
        _ => (entry.tagged.len, 0),
    };
    let is_receive = entry.tagged.flags & FI_RECV != 0;
    let errno = if is_receive {
        errno_of_receive(error, cq.domain.settings.lost_peer)
    } else {
        completion_errno(error)
    };
    let number = cq.queue.keep_text(error.to_string());
    // SAFETY: these fields are in all versions.
    unsafe {
        (*out).op_context = entry.tagged.op_context;
        (*out).flags = entry.tagged.flags;
        (*out).len = done;
        (*out).buf = entry.tagged.buf;
        (*out).data = entry.tagged.data;
        (*out).tag = entry.tagged.tag;
        (*out).olen = beyond;
        (*out).err = errno;
        (*out).prov_errno = number;
    }
    if cq.domain.fabric.api_version >= version(1, 5) {
        // SAFETY: this field is in all versions from 1.5.
        unsafe { (*out).err_data_size = 0 };
    }
}

unsafe extern "C" fn close_cq(raw: *mut fid) -> c_int {
    let unused = |cq: &Cq| match Arc::strong_count(&cq.queue) {
        1 if !cq.queue.is_bound() => Ok(()),
        _ => Err(Error::Busy("the completion queue is bound to an endpoint or poll set")),
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, unused) }
}

refusals! {
    fn no_export_xpu(*mut fid_cq, u64, *mut fid_xpu_cq) -> c_int;
}
