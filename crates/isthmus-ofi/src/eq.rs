//! `fid_eq`: event queues. They carry what the program itself writes, insertions into asynchronous address vectors, and
//! joined groups. Nothing else is asynchronous.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use crate::abi::{fi_eq_attr, fi_eq_err_entry, fi_ops, fi_ops_eq, fi_wait_obj, fid, fid_eq};
use crate::convert::{Plain, array, copy_prefix, copy_text, zeroed};
use crate::door::{Guard, Object, close, entries, give};
use crate::error::Error;
use crate::events::EventQueue;
use crate::fid::{head, ops, table};
use crate::flags::{FI_AFFINITY, FI_CLASS_EQ, FI_WRITE};
use crate::state::FabricState;
use crate::wait::Deadline;
use crate::waitobj::{self, waits};
use crate::waitset::{self, SetState};

#[repr(C)]
pub(crate) struct Eq {
    raw: fid_eq,
    guard: Guard,
    /// Keeps the fabric open.
    fabric: Arc<FabricState>,
    wait_obj: fi_wait_obj,
    /// Keeps open the wait set that wakes for it.
    _set: Option<Arc<SetState>>,
    writable: bool,
    pub(crate) queue: Arc<EventQueue>,
}

// SAFETY: `repr(C)`, starting with `fid_eq`.
unsafe impl Object for Eq {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

// SAFETY: integers and raw pointers.
unsafe impl Plain for fi_eq_attr {}

/// Opens an event queue.
///
/// # Safety
/// `attr` is null or valid; `out` is null or writable.
pub(crate) unsafe fn open(
    fabric: Arc<FabricState>,
    attr: *const fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; the structure never grew.
    let attr = unsafe { copy_prefix(attr, size_of::<fi_eq_attr>()) }.unwrap_or(zeroed());
    if attr.flags & !(FI_WRITE | FI_AFFINITY) != 0 {
        return Err(Error::BadFlags(attr.flags));
    }
    // SAFETY: by this function's contract.
    let set = unsafe { waitset::named(attr.wait_obj, attr.wait_set) }?;
    let queue = Arc::new(EventQueue::new()?);
    match &set {
        Some(set) => set.add_events(&queue)?,
        None => {
            waits(attr.wait_obj)?;
        }
    }
    let eq = Eq {
        raw: fid_eq { fid: head(FI_CLASS_EQ, context, &FID_OPS), ops: table(&OPS) },
        guard: Guard::new(),
        fabric,
        wait_obj: attr.wait_obj,
        _set: set,
        writable: attr.flags & FI_WRITE != 0,
        queue,
    };
    // SAFETY: by this function's contract.
    unsafe { give(eq, out) }?;
    Ok(0)
}

static FID_OPS: fi_ops = ops(close_eq, None, Some(control));

static OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

entries! {
    fn read(eq: Eq as fid_eq, kind: *mut u32, out: *mut c_void, len: usize, flags: u64) -> isize {
        // SAFETY: the caller passes places for the event and `len` bytes.
        unsafe { eq.queue.read(kind, out, len, flags) }
    }

    fn sread(
        eq: Eq as fid_eq, kind: *mut u32, out: *mut c_void, len: usize, timeout: c_int, flags: u64,
    ) -> isize {
        let deadline = Deadline::after(timeout);
        let sleeper = eq.queue.enter()?;
        loop {
            // SAFETY: the caller passes places for the event and `len` bytes.
            match unsafe { eq.queue.read(kind, out, len, flags) } {
                Err(Error::Again) if !deadline.has_passed() => sleeper.sleep(deadline),
                other => return other,
            }
        }
    }

    fn readerr(eq: Eq as fid_eq, out: *mut fi_eq_err_entry, flags: u64) -> isize {
        if out.is_null() {
            return Err(Error::Null);
        }
        let failure = eq.queue.failure(flags)?;
        let entry = fi_eq_err_entry {
            fid: failure.object as *mut fid,
            context: failure.context as *mut c_void,
            data: failure.index,
            err: failure.errno,
            prov_errno: failure.errno,
            err_data: std::ptr::null_mut(),
            err_data_size: 0,
        };
        // The last member came with 1.5.
        let old = eq.fabric.api_version < crate::flags::version(1, 5);
        let len = if old { offset_of!(fi_eq_err_entry, err_data_size) } else { size_of::<fi_eq_err_entry>() };
        // SAFETY: the caller passes a place for the structure of its version.
        unsafe { std::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), out.cast::<u8>(), len) };
        Ok(len as isize)
    }

    fn write(eq: Eq as fid_eq, kind: u32, data: *const c_void, len: usize, flags: u64) -> isize {
        if flags != 0 {
            return Err(Error::BadFlags(flags));
        }
        if !eq.writable {
            return Err(Error::Invalid("this event queue was not opened with FI_WRITE"));
        }
        // SAFETY: the caller passes `len` bytes.
        eq.queue.write(kind, unsafe { array(data.cast::<u8>(), len) }?);
        Ok(len as isize)
    }

    fn strerror(
        eq: Eq as fid_eq, number: c_int, _data: *const c_void, out: *mut c_char, len: usize,
    ) -> *const c_char {
        let _ = eq;
        // Only insertions fail with a text here.
        let text = if number == 0 { c"no error" } else { c"the address could not be inserted; the log says why" };
        let text = text.as_ptr();
        // SAFETY: a terminated text, and room as the caller says.
        unsafe { copy_text(text, out, len) };
        Ok(text)
    }

    fn control(eq: Eq as fid, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the caller passes what the command takes.
        unsafe { waitobj::control(eq.wait_obj, command, arg, || Ok(eq.queue.fd())) }
    }
}

unsafe extern "C" fn close_eq(raw: *mut fid) -> c_int {
    let unused = |eq: &Eq| match Arc::strong_count(&eq.queue) {
        1 => Ok(()),
        _ => Err(Error::Busy("the event queue is bound to an endpoint, a domain or an address vector")),
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, unused) }
}
