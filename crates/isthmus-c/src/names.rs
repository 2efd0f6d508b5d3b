//! Calls for names at a router, and for other meeting places.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use isthmus_substrate::meeting::{Announced, At, Meeting, NotFound};
use isthmus_substrate::rendezvous::{self, Published};
use parking_lot::Mutex;

use crate::door::{Refusal, enter, give, invalid, text};
use crate::table::next_name;
use crate::types::{NameHandle, Status};

/// Pause between two looks at a meeting place.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The job's name that both sides of a handshake at HOST:PORT use with their secret.
const JOB: &str = "isthmus.h";

/// A published name or an announcement, kept until it is withdrawn.
enum Kept {
    Name(#[allow(dead_code, reason = "kept for its end")] Published),
    Place(#[allow(dead_code, reason = "kept for its end")] Announced),
}

static PUBLISHED: Mutex<Option<HashMap<u64, Kept>>> = Mutex::new(None);

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
        let kept = Kept::Name(rendezvous::publish(place, name, text)?);
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
        // SAFETY: C's promise: `len` bytes can be written.
        unsafe { give_text(&found, text, len) }
    };
    enter(body, || ())
}

/// # Safety
/// `text` is null, or `len` bytes can be written there.
unsafe fn give_text(found: &str, text: *mut c_char, len: usize) -> Result<(), Refusal> {
    if text.is_null() {
        return Err(invalid("a null pointer where a text is to go"));
    }
    if found.len() >= len {
        let needs = format!("the text has {} bytes and a NUL, and there is room for {len}", found.len());
        return Err(Refusal(Status::TooLong, needs));
    }
    // SAFETY: by this function's contract.
    let room = unsafe { std::slice::from_raw_parts_mut(text.cast::<u8>(), len) };
    room[..found.len()].copy_from_slice(found.as_bytes());
    room[found.len()] = 0;
    Ok(())
}

/// # Safety
/// Each is null, or points to a text that ends in NUL.
unsafe fn meeting(at: *const c_char, secret: *const c_char) -> Result<Meeting, Refusal> {
    // SAFETY: by this function's contract.
    let (at, secret) = unsafe { (needed(at)?, text(secret)?) };
    let at: At = at.parse().map_err(|why: String| invalid(&why))?;
    if matches!(&at, At::Router { name: None, .. }) {
        return Err(invalid(&format!("{at} has no name; expected router:isthmus://AS.SUBNET/IP:PORT/NAME")));
    }
    Meeting::new(at, JOB, String::new(), secret.map(Path::new)).map_err(|why| invalid(&why))
}

/// `isthmus_announce`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_announce(
    at: *const c_char,
    secret: *const c_char,
    uri: *const c_char,
    announced: *mut NameHandle,
) -> c_int {
    let body = || {
        let handle = NameHandle { id: next_name() };
        // SAFETY: C's promise.
        unsafe { give(announced, NameHandle { id: 0 }) }?;
        // SAFETY: C's promise.
        let (meeting, uri) = unsafe { (meeting(at, secret)?, needed(uri)?) };
        if !uri.starts_with("isthmus://") {
            return Err(invalid("no address of an endpoint; expected what isthmus_uri gives"));
        }
        let kept = meeting.announce(uri).map_err(|why| Refusal(Status::System, why))?;
        PUBLISHED.lock().get_or_insert_default().insert(handle.id, Kept::Place(kept));
        // SAFETY: C's promise.
        unsafe { give(announced, handle) }
    };
    enter(body, || ())
}

/// `isthmus_find`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_find(
    at: *const c_char,
    secret: *const c_char,
    patience_us: u64,
    uri: *mut c_char,
    len: usize,
) -> c_int {
    let body = || {
        let began = Instant::now();
        // SAFETY: C's promise.
        let meeting = unsafe { meeting(at, secret) }?;
        let found = loop {
            match meeting.find() {
                Ok(found) => break found,
                Err(NotFound::Never(why)) => return Err(Refusal(Status::Rejected, why)),
                Err(NotFound::Later(why)) if began.elapsed() >= Duration::from_micros(patience_us) => {
                    return Err(Refusal(Status::TimedOut, why));
                }
                Err(NotFound::Later(_)) => thread::sleep(LOOK_AGAIN),
            }
        };
        // SAFETY: C's promise: `len` bytes can be written.
        unsafe { give_text(&found, uri, len) }
    };
    enter(body, || ())
}
