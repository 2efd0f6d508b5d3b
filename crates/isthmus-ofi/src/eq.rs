//! `fid_eq`: event queues. Nothing of ours is asynchronous, so that they carry what the
//! program itself writes.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{FI_WAIT_NONE, fi_eq_attr, fi_eq_err_entry, fi_ops, fi_ops_eq, fi_wait_obj, fid, fid_eq};
use crate::convert::{Plain, array, copy_prefix, zeroed};
use crate::cq::{copy_text, waits};
use crate::door::{Guard, Object, close, entries, give};
use crate::error::Error;
use crate::fabric::FabricState;
use crate::fid::{head, ops, table};
use crate::flags::{FI_AFFINITY, FI_CLASS_EQ, FI_GETWAIT, FI_GETWAITOBJ, FI_PEEK, FI_WRITE};
use crate::wait::{Deadline, Waiter};

#[repr(C)]
pub(crate) struct Eq {
    raw: fid_eq,
    guard: Guard,
    /// Keeps the fabric open.
    _fabric: Arc<FabricState>,
    wait_obj: fi_wait_obj,
    writable: bool,
    events: Mutex<VecDeque<Event>>,
    waiter: Waiter,
}

struct Event {
    kind: u32,
    data: Box<[u8]>,
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
    waits(attr.wait_obj)?;
    let eq = Eq {
        raw: fid_eq { fid: head(FI_CLASS_EQ, context, &FID_OPS), ops: table(&OPS) },
        guard: Guard::new(),
        _fabric: fabric,
        wait_obj: attr.wait_obj,
        writable: attr.flags & FI_WRITE != 0,
        events: Mutex::default(),
        waiter: Waiter::new()?,
    };
    // SAFETY: by this function's contract.
    unsafe { give(eq, out) }?;
    Ok(0)
}

impl Eq {
    /// Moves the first event to the program, or copies it (`FI_PEEK`).
    ///
    /// # Safety
    /// `kind` is null or writable; `out` has room for `len` bytes.
    unsafe fn read(&self, kind: *mut u32, out: *mut c_void, len: usize, flags: u64) -> Result<isize, Error> {
        let mut events = self.events.lock();
        let event = events.front().ok_or(Error::Again)?;
        if event.data.len() > len {
            return Err(Error::TooSmall);
        }
        let kind = std::ptr::NonNull::new(kind).ok_or(Error::Null)?;
        // SAFETY: by this function's contract.
        unsafe { kind.write(event.kind) };
        // SAFETY: by this function's contract; the event fits.
        unsafe { std::ptr::copy_nonoverlapping(event.data.as_ptr(), out.cast::<u8>(), event.data.len()) };
        let moved = event.data.len() as isize;
        if flags & FI_PEEK == 0 {
            events.pop_front();
            if events.is_empty() {
                self.waiter.clear();
            }
        }
        Ok(moved)
    }

    fn write(&self, kind: u32, data: &[u8]) {
        let mut events = self.events.lock();
        events.push_back(Event { kind, data: data.into() });
        self.waiter.wake();
    }

    /// For `fi_trywait`: whether the program may sleep on the descriptor now.
    pub(crate) fn try_wait(&self) -> Result<(), Error> {
        if self.events.lock().is_empty() { Ok(()) } else { Err(Error::Again) }
    }
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
        unsafe { eq.read(kind, out, len, flags) }
    }

    fn sread(
        eq: Eq as fid_eq, kind: *mut u32, out: *mut c_void, len: usize, timeout: c_int, flags: u64,
    ) -> isize {
        let deadline = Deadline::after(timeout);
        loop {
            // SAFETY: the caller passes places for the event and `len` bytes.
            match unsafe { eq.read(kind, out, len, flags) } {
                Err(Error::Again) if !deadline.has_passed() => eq.waiter.sleep(deadline),
                other => return other,
            }
        }
    }

    fn readerr(eq: Eq as fid_eq, out: *mut fi_eq_err_entry, _flags: u64) -> isize {
        let _ = (eq, out);
        Err(Error::Again)
    }

    fn write(eq: Eq as fid_eq, kind: u32, data: *const c_void, len: usize, flags: u64) -> isize {
        if flags != 0 {
            return Err(Error::BadFlags(flags));
        }
        if !eq.writable {
            return Err(Error::Invalid("this event queue was not opened with FI_WRITE"));
        }
        // SAFETY: the caller passes `len` bytes.
        eq.write(kind, unsafe { array(data.cast::<u8>(), len) }?);
        Ok(len as isize)
    }

    fn strerror(
        eq: Eq as fid_eq, _number: c_int, _data: *const c_void, out: *mut c_char, len: usize,
    ) -> *const c_char {
        let _ = eq;
        let text = c"no error".as_ptr();
        // SAFETY: a terminated text, and room as the caller says.
        unsafe { copy_text(text, out, len) };
        Ok(text)
    }

    fn control(eq: Eq as fid, command: c_int, arg: *mut c_void) -> c_int {
        if arg.is_null() {
            return Err(Error::Null);
        }
        let value = match command {
            FI_GETWAIT if eq.wait_obj == FI_WAIT_NONE => {
                return Err(Error::BadState("this queue has no wait object"));
            }
            FI_GETWAIT => eq.waiter.fd(),
            FI_GETWAITOBJ => eq.wait_obj.cast_signed(),
            _ => return Err(Error::Unsupported("this control of an event queue")),
        };
        // SAFETY: the caller passes a place for the descriptor or the enumeration.
        unsafe { arg.cast::<c_int>().write(value) };
        Ok(0)
    }
}

unsafe extern "C" fn close_eq(raw: *mut fid) -> c_int {
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, |_: &Eq| Ok(())) }
}
