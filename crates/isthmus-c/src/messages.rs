//! Calls that send messages.

use std::ffi::{c_int, c_void};

use isthmus_substrate::{Connection, Endpoint, Level, SendOptions, Transfer};

use crate::door::{Refusal, bytes, enter, invalid, look};
use crate::table;
use crate::types::{ConnectionName, EndpointName};

pub(crate) const SILENT: u32 = 1;
pub(crate) const BLOCKING: u32 = 2;
pub(crate) const NO_COPY: u32 = 4;
pub(crate) const FENCE: u32 = 8;
pub(crate) const EAGER: u32 = 16;
pub(crate) const RENDEZVOUS: u32 = 32;
pub(crate) const UNORDERED: u32 = 64;
pub(crate) const MIXED: u32 = 128;
/// The flags that messages may have.
const OF_MESSAGES: u32 = SILENT | BLOCKING | NO_COPY | EAGER | RENDEZVOUS | MIXED | UNORDERED;

/// `isthmus_send`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_send(
    endpoint: EndpointName,
    connection: ConnectionName,
    message: *const c_void,
    len: usize,
    operation: *mut c_void,
    flags: u32,
) -> c_int {
    let piece = libc::iovec { iov_base: message.cast_mut(), iov_len: len };
    // SAFETY: as this function's own.
    unsafe { isthmus_sendv(endpoint, connection, &piece, 1, operation, flags) }
}

/// `isthmus_sendv`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_sendv(
    endpoint: EndpointName,
    connection: ConnectionName,
    pieces: *const libc::iovec,
    count: usize,
    operation: *mut c_void,
    flags: u32,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let pieces = unsafe { pieces_of(pieces, count) }?;
        if flags & !OF_MESSAGES != 0 {
            return Err(invalid("flags that messages do not have"));
        }
        let entry = table::find(endpoint)?;
        let to = Connection::from_bits(connection.id);
        let options = SendOptions {
            context: operation as u64,
            silent: flags & SILENT != 0,
            blocking: flags & BLOCKING != 0,
            transfer: transfer_of(flags)?,
            unordered: flags & UNORDERED != 0,
        };
        if flags & NO_COPY != 0 {
            check_silence(&entry.endpoint, to, flags)?;
            // SAFETY: C leaves the pieces alone until the event.
            return Ok(unsafe { entry.endpoint.send_lent(to, pieces, &options) }?);
        }
        // SAFETY: the pieces were checked, and are C's promise during the call.
        let slices: Result<Vec<_>, _> =
            pieces.iter().map(|piece| unsafe { bytes(piece.iov_base, piece.iov_len) }).collect();
        Ok(entry.endpoint.send_pieces(to, &slices?, &options)?)
    };
    enter(body, || table::poison(endpoint))
}

/// The transfer that a message's flags ask for.
fn transfer_of(flags: u32) -> Result<Transfer, Refusal> {
    match flags & (EAGER | RENDEZVOUS | MIXED) {
        0 => Ok(Transfer::Adaptive),
        EAGER => Ok(Transfer::Eager),
        RENDEZVOUS => Ok(Transfer::Rendezvous),
        MIXED => Ok(Transfer::Mixed),
        _ => Err(invalid("ISTHMUS_EAGER, ISTHMUS_RENDEZVOUS, ISTHMUS_MIXED: a message goes one way only")),
    }
}

/// Refuses `ISTHMUS_SILENT` if the program would not learn when its memory is free again.
fn check_silence(endpoint: &Endpoint, to: Connection, flags: u32) -> Result<(), Refusal> {
    let told = endpoint.level(to)? == Level::Ro && flags & UNORDERED == 0;
    if flags & SILENT != 0 && flags & BLOCKING == 0 && !told {
        return Err(invalid(
            "ISTHMUS_NO_COPY with ISTHMUS_SILENT needs RO's order: nothing would tell the end",
        ));
    }
    Ok(())
}

/// # Safety
/// `pieces` is null, or readable for `count` entries, each of which is readable.
unsafe fn pieces_of<'a>(pieces: *const libc::iovec, count: usize) -> Result<&'a [libc::iovec], Refusal> {
    if count > 1024 {
        return Err(invalid("more than 1024 pieces"));
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: by this function's contract.
    let first = unsafe { look(pieces) }?;
    // SAFETY: by this function's contract.
    let pieces = unsafe { std::slice::from_raw_parts(first, count) };
    let mut total = 0usize;
    for piece in pieces {
        // SAFETY: by this function's contract.
        unsafe { bytes(piece.iov_base, piece.iov_len) }?;
        total = total.checked_add(piece.iov_len).ok_or_else(|| invalid("a length that nothing has"))?;
    }
    Ok(pieces)
}
