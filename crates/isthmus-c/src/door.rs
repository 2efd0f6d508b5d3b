//! Every C call enters here. Panics are caught here, and refusals get their text.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use isthmus_substrate::Error;

use crate::types::Status;

/// Why a call is refused: the status, and its text.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Status, pub(crate) String);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self((&error).into(), error.to_string())
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self(status, crate::types::status_text(status as i32).to_string_lossy().into_owned())
    }
}

/// An argument is wrong.
pub(crate) fn invalid(text: &str) -> Refusal {
    Refusal(Status::Invalid, text.to_owned())
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of a call. After a panic it calls `damaged`.
pub(crate) fn enter(body: impl FnOnce() -> Result<(), Refusal>, damaged: impl FnOnce()) -> i32 {
    let refusal = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Success as i32,
        Ok(Err(refusal)) => refusal,
        Err(panic) => {
            damaged();
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Refusal(Status::Internal, format!("internal error, please report it: {text}"))
        }
    };
    let Refusal(status, text) = refusal;
    // "No event" is no error, so it gets no text.
    if status != Status::Again {
        let text = c_text(&text);
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    }
    status as i32
}

/// The text of this thread's last refusal.
pub(crate) fn last_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// A C string. A NUL inside `text` ends it.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// Writes through a pointer that must not be null.
///
/// # Safety
/// `to` is null or writable.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Refusal> {
    if to.is_null() {
        return Err(invalid("a null pointer where a result is to go"));
    }
    // SAFETY: not null, and writable by this function's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// Like [`give`], but a null pointer means that the value is not wanted.
///
/// # Safety
/// As for [`give`].
pub(crate) unsafe fn give_if<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as above.
        unsafe { to.write(value) };
    }
}

/// Reads through a pointer that must not be null.
///
/// # Safety
/// `from` is null or readable.
pub(crate) unsafe fn look<'a, T>(from: *const T) -> Result<&'a T, Refusal> {
    // SAFETY: by this function's contract.
    unsafe { from.as_ref() }.ok_or_else(|| invalid("a null pointer where something is to be read"))
}

/// Bytes that C points to.
///
/// # Safety
/// `from` is null, or readable for `len` bytes during the call.
pub(crate) unsafe fn bytes<'a>(from: *const c_void, len: usize) -> Result<&'a [u8], Refusal> {
    if len == 0 {
        return Ok(&[]);
    }
    if from.is_null() || len > isize::MAX as usize {
        return Err(invalid("a null pointer with a length, or a length that nothing has"));
    }
    // SAFETY: by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(from.cast(), len) })
}

/// A text that C points to.
///
/// # Safety
/// `from` is null, or points to a text that ends in NUL.
pub(crate) unsafe fn text<'a>(from: *const c_char) -> Result<Option<&'a str>, Refusal> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map(Some).map_err(|_| invalid("a text that is not UTF-8"))
}

/// A path that C points to, which need not be UTF-8.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(from: *const c_char) -> Option<&'a Path> {
    // SAFETY: not null, and a text by this function's contract.
    let path = (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) })?;
    Some(Path::new(OsStr::from_bytes(path.to_bytes())))
}
