//! `fid_poll`: polls several queues and counters at once. Also `fi_trywait`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{fi_ops, fi_ops_poll, fi_poll_attr, fid, fid_poll};
use crate::cntr::Cntr;
use crate::counter::Counter;
use crate::cq::Cq;
use crate::door::{Guard, Object, close, enter, entries, give};
use crate::eq::Eq;
use crate::error::Error;
use crate::fid::{head, ops, table};
use crate::flags::{FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_CLASS_POLL, FI_CLASS_WAIT};
use crate::queue::Queue;
use crate::state::DomainState;
use crate::waitset::WaitSet;

#[repr(C)]
struct Poll {
    raw: fid_poll,
    guard: Guard,
    /// Keeps the domain open.
    _domain: Arc<DomainState>,
    members: Mutex<Vec<Member>>,
}

// SAFETY: `repr(C)`, starting with `fid_poll`.
unsafe impl Object for Poll {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

struct Member {
    raw: *mut fid,
    context: *mut c_void,
    asked: Asked,
}

enum Asked {
    Queue(Arc<Queue>),
    /// A counter, with the successes and errors that were last reported.
    Counter(Arc<Counter>, (u64, u64)),
}

impl Member {
    /// Polls the queue or counter, and remembers its state. Returns whether it has changed since the last call.
    fn check_news(&mut self) -> bool {
        match &mut self.asked {
            Asked::Queue(queue) => queue.has_news(),
            Asked::Counter(counter, last) => {
                counter.progress();
                let values = counter.values();
                std::mem::replace(last, values) != values
            }
        }
    }
}

/// Opens a poll set.
///
/// # Safety
/// `attr` is null or valid; `out` is null or writable.
pub(crate) unsafe fn open(
    domain: Arc<DomainState>,
    attr: *const fi_poll_attr,
    out: *mut *mut fid_poll,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract.
    let flags = unsafe { attr.as_ref() }.map_or(0, |attr| attr.flags);
    if flags != 0 {
        return Err(Error::BadFlags(flags));
    }
    let raw = fid_poll { fid: head(FI_CLASS_POLL, std::ptr::null_mut(), &FID_OPS), ops: table(&OPS) };
    let poll = Poll { raw, guard: Guard::new(), _domain: domain, members: Mutex::default() };
    // SAFETY: by this function's contract.
    unsafe { give(poll, out) }?;
    Ok(0)
}

static FID_OPS: fi_ops = ops(close_poll, None, None);

static OPS: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: Some(poll),
    poll_add: Some(poll_add),
    poll_del: Some(poll_del),
};

entries! {
    fn poll(set: Poll as fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
        let room = usize::try_from(count).map_err(|_| Error::Invalid("a negative count"))?;
        let mut found = 0;
        for member in set.members.lock().iter_mut() {
            if found < room && member.check_news() {
                // SAFETY: the caller passes room for `count` contexts.
                unsafe { contexts.add(found).write(member.context) };
                found += 1;
            }
        }
        Ok(found as c_int)
    }

    fn poll_add(set: Poll as fid_poll, raw: *mut fid, flags: u64) -> c_int {
        if flags != 0 {
            return Err(Error::BadFlags(flags));
        }
        // SAFETY: the caller passes null or an object of this provider.
        let class = unsafe { raw.as_ref() }.ok_or(Error::Null)?.fclass;
        let asked = match class {
            // SAFETY: the class says what it is.
            FI_CLASS_CQ => Asked::Queue(unsafe { &*raw.cast::<Cq>() }.queue.clone()),
            FI_CLASS_CNTR => {
                // SAFETY: the class says what it is.
                let counter = unsafe { &*raw.cast::<Cntr>() }.counter.clone();
                let values = counter.values();
                Asked::Counter(counter, values)
            }
            _ => return Err(Error::Unsupported("polling anything but queues and counters")),
        };
        // SAFETY: checked above.
        let context = unsafe { (*raw).context };
        set.members.lock().push(Member { raw, context, asked });
        Ok(0)
    }

    fn poll_del(set: Poll as fid_poll, raw: *mut fid, flags: u64) -> c_int {
        if flags != 0 {
            return Err(Error::BadFlags(flags));
        }
        set.members.lock().retain(|member| member.raw != raw);
        Ok(0)
    }
}

/// For `fi_trywait`: whether the program may sleep on this object's descriptor.
///
/// # Safety
/// `raw` is null or an object of this provider.
pub(crate) unsafe fn try_wait(raw: *mut fid) -> Result<(), Error> {
    // SAFETY: by this function's contract.
    let class = unsafe { raw.as_ref() }.ok_or(Error::Null)?.fclass;
    let code: c_int = match class {
        // SAFETY: the class says what it is.
        FI_CLASS_CQ => unsafe { enter(raw, |cq: &Cq| cq.queue.try_wait().map(|()| 0)) },
        // SAFETY: the class says what it is.
        FI_CLASS_CNTR => unsafe { enter(raw, |cntr: &Cntr| cntr.counter.try_wait().map(|()| 0)) },
        // SAFETY: the class says what it is.
        FI_CLASS_EQ => unsafe { enter(raw, |eq: &Eq| eq.queue.try_wait().map(|()| 0)) },
        // SAFETY: the class says what it is.
        FI_CLASS_WAIT => unsafe { enter(raw, |set: &WaitSet| set.state.try_wait().map(|()| 0)) },
        _ => return Err(Error::Unsupported("waiting for anything but queues, counters and wait sets")),
    };
    match code {
        0 => Ok(()),
        code if code == -libc::EAGAIN => Err(Error::Again),
        _ => Err(Error::BadState("one of the objects to wait for is out of order")),
    }
}

unsafe extern "C" fn close_poll(raw: *mut fid) -> c_int {
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, |_: &Poll| Ok(())) }
}
