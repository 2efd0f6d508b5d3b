//! `fid_wait`: wait sets, to sleep on several completion queues, event queues and counters at once.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::abi::{FI_WAIT_SET, fi_ops, fi_ops_wait, fi_wait_attr, fi_wait_obj, fid, fid_wait};
use crate::counter::Counter;
use crate::door::{Guard, Object, close, entries, give};
use crate::error::Error;
use crate::events::EventQueue;
use crate::fid::{head, ops, table};
use crate::flags::FI_CLASS_WAIT;
use crate::queue::Queue;
use crate::state::FabricState;
use crate::wait::{Deadline, Waiter};
use crate::waitobj::{self, waits};

/// The set, which its members keep open.
#[derive(Debug)]
pub(crate) struct SetState {
    /// Keeps the fabric open.
    _fabric: Arc<FabricState>,
    /// Watches the members' own descriptors.
    waiter: Waiter,
    members: Mutex<Vec<Member>>,
}

/// An object that the set wakes for; the reference is dead once the object is closed.
#[derive(Debug)]
enum Member {
    Queue(Weak<Queue>),
    Counter(Weak<Counter>),
    Events(Weak<EventQueue>),
}

impl Member {
    /// `fi_trywait` on the member. A closed member is ready to sleep.
    fn try_wait(&self) -> Result<(), Error> {
        match self {
            Self::Queue(queue) => queue.upgrade().map_or(Ok(()), |queue| queue.try_wait()),
            Self::Counter(counter) => counter.upgrade().map_or(Ok(()), |counter| counter.try_wait()),
            Self::Events(events) => events.upgrade().map_or(Ok(()), |events| events.try_wait()),
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Queue(queue) => queue.strong_count() == 0,
            Self::Counter(counter) => counter.strong_count() == 0,
            Self::Events(events) => events.strong_count() == 0,
        }
    }
}

impl SetState {
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result<(), Error> {
        self.waiter.watch(queue.fd()?)?;
        self.add(Member::Queue(Arc::downgrade(queue)));
        Ok(())
    }

    pub(crate) fn add_counter(&self, counter: &Arc<Counter>) -> Result<(), Error> {
        self.waiter.watch(counter.fd()?)?;
        self.add(Member::Counter(Arc::downgrade(counter)));
        Ok(())
    }

    pub(crate) fn add_events(&self, events: &Arc<EventQueue>) -> Result<(), Error> {
        self.waiter.watch(events.fd())?;
        self.add(Member::Events(Arc::downgrade(events)));
        Ok(())
    }

    fn add(&self, member: Member) {
        let mut members = self.members.lock();
        members.retain(|member| !member.is_gone());
        members.push(member);
    }

    /// Whether the program may sleep on the set's descriptor now.
    pub(crate) fn try_wait(&self) -> Result<(), Error> {
        self.members.lock().iter().try_for_each(Member::try_wait)
    }

    /// Sleeps until a member has something, or the deadline.
    fn wait(&self, deadline: Deadline) -> Result<(), Error> {
        let sleeper = self.waiter.enter()?;
        loop {
            match self.try_wait() {
                Err(Error::Again) => return Ok(()),
                other => other?,
            }
            if deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            sleeper.sleep(deadline);
        }
    }
}

#[repr(C)]
pub(crate) struct WaitSet {
    raw: fid_wait,
    guard: Guard,
    wait_obj: fi_wait_obj,
    pub(crate) state: Arc<SetState>,
}

// SAFETY: `repr(C)`, starting with `fid_wait`.
unsafe impl Object for WaitSet {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// The set that the attributes of a queue or counter name; `None` if they name none.
///
/// # Safety
/// `set` is null or an object of this provider where `wait_obj` is `FI_WAIT_SET`.
pub(crate) unsafe fn named(
    wait_obj: fi_wait_obj,
    set: *mut fid_wait,
) -> Result<Option<Arc<SetState>>, Error> {
    if wait_obj != FI_WAIT_SET {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let class = unsafe { set.as_ref() }.ok_or(Error::Null)?.fid.fclass;
    if class != FI_CLASS_WAIT {
        return Err(Error::Invalid("wait_set is no wait set"));
    }
    // SAFETY: its class says what it is.
    Ok(Some(unsafe { &*set.cast::<WaitSet>() }.state.clone()))
}

/// Opens a wait set.
///
/// # Safety
/// `attr` is null or valid; `out` is null or writable.
pub(crate) unsafe fn open(
    fabric: Arc<FabricState>,
    attr: *const fi_wait_attr,
    out: *mut *mut fid_wait,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; the structure never grew.
    let attr = unsafe { attr.as_ref() }.ok_or(Error::Null)?;
    if attr.flags != 0 {
        return Err(Error::BadFlags(attr.flags));
    }
    if !waits(attr.wait_obj)? {
        return Err(Error::Invalid("a wait set without a wait object"));
    }
    let state = SetState { _fabric: fabric, waiter: Waiter::new()?, members: Mutex::default() };
    let raw = fid_wait { fid: head(FI_CLASS_WAIT, std::ptr::null_mut(), &FID_OPS), ops: table(&OPS) };
    let set = WaitSet { raw, guard: Guard::new(), wait_obj: attr.wait_obj, state: Arc::new(state) };
    // SAFETY: by this function's contract.
    unsafe { give(set, out) }?;
    Ok(0)
}

static FID_OPS: fi_ops = ops(close_set, None, Some(control));

static OPS: fi_ops_wait = fi_ops_wait { size: size_of::<fi_ops_wait>(), wait: Some(wait) };

entries! {
    fn wait(set: WaitSet as fid_wait, timeout: c_int) -> c_int {
        set.state.wait(Deadline::after(timeout))?;
        Ok(0)
    }

    fn control(set: WaitSet as fid, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the caller passes what the command takes.
        unsafe { waitobj::control(set.wait_obj, command, arg, || Ok(set.state.waiter.fd())) }
    }
}

unsafe extern "C" fn close_set(raw: *mut fid) -> c_int {
    let unused = |set: &WaitSet| match Arc::strong_count(&set.state) {
        1 => Ok(()),
        _ => Err(Error::Busy("the wait set has open queues or counters")),
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, unused) }
}
