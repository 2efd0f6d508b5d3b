//! The border to C: every C entry runs through one of these functions.
//!
//! They check for null, for a fork and for earlier damage, and run the body behind `catch_unwind`. They turn typed
//! errors into `-FI_E*`. If the body panicked, they poison the object, since its state may be half changed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::fid;
use crate::error::{Error, FI_EOTHER};
use crate::fork;
use crate::log::{self, Level};

/// The record that these functions keep of every object.
#[derive(Debug)]
pub(crate) struct Guard {
    generation: u32,
    poisoned: AtomicBool,
}

impl Guard {
    pub(crate) fn new() -> Self {
        Self { generation: fork::generation(), poisoned: AtomicBool::new(false) }
    }

    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    fn check(&self) -> Result<(), Error> {
        if self.is_inherited() {
            return Err(Error::Forked);
        }
        if self.poisoned.load(Ordering::Relaxed) { Err(Error::Poisoned) } else { Ok(()) }
    }
}

/// An object that C holds.
///
/// # Safety
/// The type is `repr(C)` and starts with libfabric's structure for it (hence with a
/// `struct fid`), so that pointers to any of the three are the same.
pub(crate) unsafe trait Object: Sized {
    /// The record of this object.
    fn guard(&self) -> &Guard;
}

/// The value that C gets when a call fails.
pub(crate) trait Code {
    /// The value for a positive errno.
    fn failed(errno: i32) -> Self;
}

impl Code for i32 {
    fn failed(errno: i32) -> Self {
        -errno
    }
}

impl Code for isize {
    fn failed(errno: i32) -> Self {
        -(errno as isize)
    }
}

/// Counters' values have no room for errors.
impl Code for u64 {
    fn failed(_errno: i32) -> Self {
        0
    }
}

impl Code for *const std::ffi::c_char {
    fn failed(_errno: i32) -> Self {
        std::ptr::null()
    }
}

/// Runs `body` on the object behind `raw`. It is inlined into the C function, so that arguments stay in registers.
///
/// # Safety
/// `raw` is null, or was returned by [`give`] for an `O` and not closed since.
#[inline(always)]
pub(crate) unsafe fn enter<O: Object, T, R: Code>(
    raw: *mut T,
    body: impl FnOnce(&O) -> Result<R, Error>,
) -> R {
    // SAFETY: by this function's contract; an `O` starts with the `T` that C sees.
    let Some(object) = (unsafe { raw.cast::<O>().as_ref() }) else {
        return refuse(&Error::Null);
    };
    if let Err(error) = object.guard().check() {
        return refuse(&error);
    }
    match catch_unwind(AssertUnwindSafe(|| body(object))) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => refuse(&error),
        Err(panic) => {
            object.guard().poisoned.store(true, Ordering::Relaxed);
            panicked(panic.as_ref())
        }
    }
}

/// An object that a program names in its arguments, if it is of this class; else an error that says `otherwise`.
///
/// # Safety
/// `raw` is null or an object of ours, which starts with its `fid` and stays open; objects of the class are `O`s.
pub(crate) unsafe fn of_class<'a, O: Object>(
    raw: *const fid,
    class: usize,
    otherwise: &'static str,
) -> Result<&'a O, Error> {
    // SAFETY: by this function's contract.
    if unsafe { raw.as_ref() }.ok_or(Error::Null)?.fclass != class {
        return Err(Error::Invalid(otherwise));
    }
    // SAFETY: the class says what it is.
    Ok(unsafe { &*raw.cast::<O>() })
}

/// Runs a body that has no object yet.
pub(crate) fn enter_free<R: Code>(body: impl FnOnce() -> Result<R, Error>) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => refuse(&error),
        Err(panic) => panicked(panic.as_ref()),
    }
}

/// Hands an object to C.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn give<O: Object, T>(object: O, out: *mut *mut T) -> Result<(), Error> {
    if out.is_null() {
        return Err(Error::Null);
    }
    let raw = Box::into_raw(Box::new(object)).cast::<T>();
    // SAFETY: not null, and writable by this function's contract.
    unsafe { out.write(raw) };
    Ok(())
}

/// Ends an object: runs `body`, which may refuse, and then frees the object. In a forked child, and after a panic, the
/// object is left alone.
///
/// # Safety
/// As for [`enter`]; after a return of 0 nobody uses the object again.
pub(crate) unsafe fn close<O: Object, T>(raw: *mut T, body: impl FnOnce(&O) -> Result<(), Error>) -> i32 {
    // SAFETY: by this function's contract.
    let Some(object) = (unsafe { raw.cast::<O>().as_ref() }) else {
        return refuse(&Error::Null);
    };
    if object.guard().check().is_err() {
        return 0;
    }
    let end = || {
        body(object)?;
        // SAFETY: `give` made it with Box, and this is its one end.
        drop(unsafe { Box::from_raw(raw.cast::<O>()) });
        Ok(0)
    };
    enter_free(end)
}

#[cold]
#[inline(never)]
fn refuse<R: Code>(error: &Error) -> R {
    if !error.is_ordinary() {
        let level = if error.is_the_users() { Level::Warn } else { Level::Info };
        log::write(level, format_args!("refused: {error}"));
    }
    R::failed(error.errno())
}

#[cold]
#[inline(never)]
fn panicked<R: Code>(panic: &(dyn Any + Send)) -> R {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    log::write(Level::Warn, format_args!("internal error, please report it: {text}"));
    R::failed(FI_EOTHER)
}

/// Declares C entries. Each names its object, and its body runs by [`enter`].
macro_rules! entries {
    ($(fn $name:ident($this:ident: $object:ty as $raw:ty $(, $arg:ident: $kind:ty)* $(,)?) -> $ret:ty $body:block)*) => {$(
        unsafe extern "C" fn $name($this: *mut $raw $(, $arg: $kind)*) -> $ret {
            let body = |$this: &$object| -> Result<$ret, $crate::error::Error> { $body };
            // SAFETY: C passes back what this library gave it for this table.
            unsafe { $crate::door::enter($this, body) }
        }
    )*};
}

/// Declares C entries that are not supported.
macro_rules! refusals {
    ($(fn $name:ident($($kind:ty),* $(,)?) -> $ret:ty;)*) => {$(
        unsafe extern "C" fn $name($(_: $kind),*) -> $ret {
            <$ret as $crate::door::Code>::failed(libc::ENOSYS)
        }
    )*};
}

pub(crate) use {entries, refusals};

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Thing {
        raw: fid,
        guard: Guard,
    }

    // SAFETY: `repr(C)`, starting with the fid.
    unsafe impl Object for Thing {
        fn guard(&self) -> &Guard {
            &self.guard
        }
    }

    fn thing() -> *mut fid {
        let raw = fid { fclass: 0, context: std::ptr::null_mut(), ops: std::ptr::null_mut() };
        let mut out: *mut fid = std::ptr::null_mut();
        // SAFETY: `out` is writable.
        unsafe { give(Thing { raw, guard: Guard::new() }, &mut out) }.expect("a pointer");
        out
    }

    fn call(raw: *mut fid, body: impl FnOnce(&Thing) -> Result<i32, Error>) -> i32 {
        // SAFETY: the tests pass null or what `thing` returned.
        unsafe { enter(raw, body) }
    }

    #[test]
    fn null_is_refused() {
        assert_eq!(call(std::ptr::null_mut(), |_| Ok(0)), -libc::EINVAL);
    }

    #[test]
    fn typed_errors_become_errnos() {
        let raw = thing();
        assert_eq!(call(raw, |_| Ok(7)), 7);
        assert_eq!(call(raw, |_| Err(Error::TooSmall)), -257);
        // SAFETY: made by `thing`, used no more.
        assert_eq!(unsafe { close(raw, |_: &Thing| Ok(())) }, 0);
    }

    #[test]
    fn a_panic_poisons_its_object() {
        let raw = thing();
        assert_eq!(call(raw, |_| panic!("a test of the door")), -FI_EOTHER);
        assert_eq!(call(raw, |_| Ok(7)), -FI_EOTHER);
    }
}
