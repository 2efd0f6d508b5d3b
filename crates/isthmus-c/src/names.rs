//! Calls for names at a router.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::time::Duration;

use isthmus_substrate::rendezvous::{self, Published};
use parking_lot::Mutex;

use crate::door::{Refusal, enter, give, invalid, text};
use crate::table::next_name;
use crate::types::{NameHandle, Status};

static PUBLISHED: Mutex<Option<HashMap<u64, Published>>> = Mutex::new(None);

/// # Safety
/// `from` is null, or points to a text that ends in NUL.
unsafe fn needed<'a>(from: *const c_char) -> Result<&'a str, Refusal> {
    // SAFETY: by this function's contract.
    unsafe { text(from) }?.ok_or_else(|| invalid("a null pointer where a text is to be read"))
}

/// `isthmus_publish`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_publish(
    place: *const c_char,
    name: *const c_char,
    text: *const c_char,
    published: *mut NameHandle,
) -> c_int {
    let body = || {
        let handle = NameHandle { id: next_name() };
        // SAFETY: C's promise.
        unsafe { give(published, NameHandle { id: 0 }) }?;
        // SAFETY: C's promise.
        let (place, name, text) = unsafe { (needed(place)?, needed(name)?, needed(text)?) };
        let kept = rendezvous::publish(place, name, text)?;
        PUBLISHED.lock().get_or_insert_default().insert(handle.id, kept);
        // SAFETY: C's promise.
        unsafe { give(published, handle) }
    };
    enter(body, || ())
}

/// `isthmus_withdraw`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_withdraw(published: NameHandle) -> c_int {
    let body = || {
        let kept = PUBLISHED.lock().as_mut().and_then(|all| all.remove(&published.id));
        kept.map(drop)
            .ok_or_else(|| Refusal(Status::Stale, "this name was not published, or is withdrawn".to_owned()))
    };
    enter(body, || ())
}

/// `isthmus_look_up`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_look_up(
    place: *const c_char,
    name: *const c_char,
    patience_us: u64,
    text: *mut c_char,
    len: usize,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let (place, name) = unsafe { (needed(place)?, needed(name)?) };
        let found = rendezvous::look_up(place, name, Duration::from_micros(patience_us))?;
        if text.is_null() {
            return Err(invalid("a null pointer where a text is to go"));
        }
        if found.len() >= len {
            let needs =
                format!("the name's text has {} bytes and a NUL, and there is room for {len}", found.len());
            return Err(Refusal(Status::TooLong, needs));
        }
        // SAFETY: C's promise: `len` bytes can be written.
        let room = unsafe { std::slice::from_raw_parts_mut(text.cast::<u8>(), len) };
        room[..found.len()].copy_from_slice(found.as_bytes());
        room[found.len()] = 0;
        Ok(())
    };
    enter(body, || ())
}
