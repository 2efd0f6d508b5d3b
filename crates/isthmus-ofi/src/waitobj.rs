//! Wait objects (`fi_poll(3)`): each is one descriptor.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use crate::abi::{FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_POLLFD, FI_WAIT_UNSPEC, FI_WAIT_YIELD, fi_wait_obj};
use crate::error::Error;
use crate::flags::{FI_GETWAIT, FI_GETWAITOBJ};

/// libfabric's list of descriptors (`FI_WAIT_POLLFD`).
#[repr(C)]
struct Descriptors {
    /// Grows when the list changes; ours never does.
    change_index: u64,
    /// In: the length of the list. Out: the length that is needed.
    count: usize,
    list: *mut libc::pollfd,
}

/// Whether an object's own wait object needs a descriptor. An error for wait objects that we do not have.
pub(crate) fn waits(wait_obj: fi_wait_obj) -> Result<bool, Error> {
    match wait_obj {
        FI_WAIT_NONE => Ok(false),
        FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD | FI_WAIT_POLLFD => Ok(true),
        _ => Err(Error::Unsupported(
            "this wait object (supported: none, unspecified, fd, pollfd, yield; of queues and counters set)",
        )),
    }
}

/// The controls `FI_GETWAIT` and `FI_GETWAITOBJ` of an object that has `wait_obj`, whose descriptor `fd` gives.
///
/// # Safety
/// `arg` is null, or what the command takes with this wait object.
pub(crate) unsafe fn control(
    wait_obj: fi_wait_obj,
    command: c_int,
    arg: *mut c_void,
    fd: impl FnOnce() -> Result<RawFd, Error>,
) -> Result<c_int, Error> {
    if arg.is_null() {
        return Err(Error::Null);
    }
    let value = match command {
        FI_GETWAIT if wait_obj == FI_WAIT_NONE => return Err(Error::BadState("it has no wait object")),
        // SAFETY: by this function's contract.
        FI_GETWAIT if wait_obj == FI_WAIT_POLLFD => return unsafe { list(arg, fd()?) },
        FI_GETWAIT => fd()?,
        FI_GETWAITOBJ => wait_obj.cast_signed(),
        _ => return Err(Error::Unsupported("this control of what may be waited for")),
    };
    // SAFETY: not null; the descriptor and the enumeration are both of this type.
    unsafe { arg.cast::<c_int>().write(value) };
    Ok(0)
}

/// # Safety
/// `arg` is valid, with as much room in its list as it says.
unsafe fn list(arg: *mut c_void, fd: RawFd) -> Result<c_int, Error> {
    // SAFETY: by this function's contract.
    let all = unsafe { &mut *arg.cast::<Descriptors>() };
    let room = if all.list.is_null() { 0 } else { all.count };
    (all.change_index, all.count) = (1, 1);
    if room == 0 {
        return Err(Error::TooSmall);
    }
    // SAFETY: not null, and with room for one.
    unsafe { all.list.write(libc::pollfd { fd, events: libc::POLLIN, revents: 0 }) };
    Ok(0)
}
