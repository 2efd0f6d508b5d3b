//! `fid_cntr`: counters of finished operations.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use isthmus_wakeup::Waiters;

use crate::abi::{
    FI_CNTR_EVENTS_BYTES, FI_CNTR_EVENTS_COMP, fi_cntr_attr, fi_ops, fi_ops_cntr, fi_wait_obj, fid, fid_cntr,
    fid_xpu_cntr,
};
use crate::convert::{Plain, copy_prefix, zeroed};
use crate::domain::DomainState;
use crate::door::{Guard, Object, close, entries, give, refusals};
use crate::error::Error;
use crate::fid::{head, ops, table};
use crate::flags::FI_CLASS_CNTR;
use crate::live::Live;
use crate::trigger::Board;
use crate::wait::{Deadline, Sources};
use crate::waitobj::{self, waits};
use crate::waitset::{self, SetState};

/// The counter behind a C object.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    value: AtomicU64,
    errors: AtomicU64,
    /// The sum of successes and errors that the program has read.
    seen: AtomicU64,
    /// Counts bytes instead of operations.
    bytes: bool,
    /// Threads that sleep until it changes.
    sleepers: Waiters,
    sources: Sources,
    /// Operations on the domain's board that wait for it.
    awaited: Waiters,
    board: Arc<Board>,
}

impl Counter {
    /// Counts one operation.
    pub(crate) fn count(&self, failed: bool, len: u64) {
        let step = if self.bytes { len } else { 1 };
        let (counter, step) = if failed { (&self.errors, 1) } else { (&self.value, step) };
        counter.fetch_add(step, Ordering::SeqCst);
        self.changed();
    }

    pub(crate) fn add(&self, value: u64) {
        self.value.fetch_add(value, Ordering::SeqCst);
        self.changed();
    }

    pub(crate) fn set(&self, value: u64) {
        self.value.swap(value, Ordering::SeqCst);
        self.changed();
    }

    /// The sum of successes and errors, which triggers wait for (`fi_trigger(3)`).
    pub(crate) fn reached(&self) -> u64 {
        self.value().saturating_add(self.errors())
    }

    pub(crate) fn await_more(&self, count: usize) {
        self.awaited.enter(count);
    }

    pub(crate) fn await_fewer(&self, count: usize) {
        self.awaited.leave(count);
    }

    pub(crate) fn add_source(&self, live: &Arc<Live>) -> Result<(), Error> {
        self.sources.add(live)
    }

    pub(crate) fn remove_source(&self, live: &Arc<Live>) {
        self.sources.remove(live);
    }

    /// Drives the endpoints that feed it.
    pub(crate) fn progress(&self) {
        self.sources.progress();
    }

    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    fn errors(&self) -> u64 {
        self.errors.load(Ordering::SeqCst)
    }

    /// Successes and errors.
    pub(crate) fn values(&self) -> (u64, u64) {
        (self.value(), self.errors())
    }

    /// Returns the value, and remembers that the program knows it.
    fn read(&self) -> u64 {
        let (value, errors) = (self.value(), self.errors());
        let sum = value.wrapping_add(errors);
        if self.seen.load(Ordering::Relaxed) != sum {
            self.seen.store(sum, Ordering::SeqCst);
            self.sources.note_answered();
        }
        value
    }

    /// Whether something was counted that the program has not read.
    fn has_news(&self) -> bool {
        self.value().wrapping_add(self.errors()) != self.seen.load(Ordering::SeqCst)
    }

    /// Wakes threads that sleep until it changes, and starts operations that wait for it.
    fn changed(&self) {
        if self.awaited.any() {
            self.board.release(self);
        }
        if self.sleepers.any()
            && let Some(waiter) = self.sources.made_waiter()
        {
            waiter.wake();
        }
    }

    pub(crate) fn fd(&self) -> Result<RawFd, Error> {
        Ok(self.sources.waiter()?.fd())
    }

    /// For `fi_trywait`: whether the program may sleep on the descriptor now.
    pub(crate) fn try_wait(&self) -> Result<(), Error> {
        let waiter = self.sources.waiter()?;
        waiter.clear();
        self.sleepers.enter_for_good();
        self.progress();
        if !self.has_news() && self.sources.arm() { Ok(()) } else { Err(Error::Again) }
    }

    /// Sleeps until the value reaches `threshold`, an error is counted, or the deadline.
    fn wait(&self, threshold: u64, deadline: Deadline) -> Result<(), Error> {
        let waiter = self.sources.waiter()?;
        let errors = self.errors();
        let sleeper = waiter.enter()?;
        self.sleepers.enter(1);
        let result = loop {
            self.progress();
            if self.value() >= threshold {
                self.read();
                break Ok(());
            }
            if self.errors() != errors {
                break Err(Error::EntryFailed);
            }
            if deadline.has_passed() {
                break Err(Error::TimedOut);
            }
            if let Some(_asleep) = self.sources.fall_asleep() {
                sleeper.sleep(deadline);
            }
        };
        self.sleepers.leave(1);
        result
    }
}

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
    let counter = Arc::new(Counter { bytes, board: domain.board.clone(), ..Counter::default() });
    // SAFETY: by this function's contract.
    let set = unsafe { waitset::named(attr.wait_obj, attr.wait_set) }?;
    match &set {
        Some(set) => set.add_counter(&counter)?,
        None if waits(attr.wait_obj)? => {
            counter.sources.waiter()?;
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
        cntr.counter.errors.fetch_add(value, Ordering::SeqCst);
        cntr.counter.changed();
        Ok(0)
    }

    fn seterr(cntr: Cntr as fid_cntr, value: u64) -> c_int {
        cntr.counter.errors.swap(value, Ordering::SeqCst);
        cntr.counter.changed();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_bytes_and_errors_are_counted_apart() {
        let counter = Counter { bytes: true, ..Counter::default() };
        counter.count(false, 10);
        counter.count(true, 99);
        assert_eq!((counter.value(), counter.errors.load(Ordering::SeqCst)), (10, 1));
    }

    #[test]
    fn waiting_ends_by_threshold_error_or_time() {
        let counter = Arc::new(Counter::default());
        assert!(matches!(counter.wait(1, Deadline::after(10)), Err(Error::TimedOut)));
        let other = counter.clone();
        let thread = std::thread::spawn(move || other.wait(1, Deadline::after(-1)));
        counter.count(false, 0);
        assert!(thread.join().expect("no panic").is_ok());
    }
}
