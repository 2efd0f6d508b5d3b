//! Messages and remote memory.

use std::ffi::{c_int, c_void};

use isthmus_substrate::{
    Access, Connection, Endpoint, Level, MemoryHandle, Region, RemoteOptions, SendOptions,
};

use crate::door::{Refusal, bytes, enter, give, give_if, invalid, look};
use crate::table;
use crate::types::{ConnectionName, EndpointName, MemoryBytes, RegionName, Status};

pub(crate) const SILENT: u32 = 1;
pub(crate) const BLOCKING: u32 = 2;
pub(crate) const NO_COPY: u32 = 4;
pub(crate) const FENCE: u32 = 8;

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
        if flags & !(SILENT | BLOCKING | NO_COPY) != 0 {
            return Err(invalid("flags that messages do not have"));
        }
        let entry = table::find(endpoint)?;
        let to = Connection::from_bits(connection.id);
        let options = SendOptions {
            context: operation as u64,
            silent: flags & SILENT != 0,
            blocking: flags & BLOCKING != 0,
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

/// Who lends memory has to hear when it comes back.
fn check_silence(endpoint: &Endpoint, to: Connection, flags: u32) -> Result<(), Refusal> {
    if flags & SILENT != 0 && flags & BLOCKING == 0 && endpoint.level(to)? != Level::Ro {
        return Err(invalid("ISTHMUS_NO_COPY with ISTHMUS_SILENT needs RO: nothing would tell the end"));
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

/// `isthmus_register`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_register(
    endpoint: EndpointName,
    start: *mut c_void,
    len: usize,
    access: u32,
    region: *mut RegionName,
    memory: *mut MemoryBytes,
) -> c_int {
    let body = || {
        if access & !3 != 0 {
            return Err(invalid("access that memory does not have"));
        }
        if region.is_null() {
            return Err(invalid("a null pointer where the region is to go"));
        }
        let entry = table::find(endpoint)?;
        let access = Access { remote_read: access & 1 != 0, remote_write: access & 2 != 0 };
        // SAFETY: C's promise: valid until isthmus_deregister has succeeded.
        let made = unsafe { entry.endpoint.register_lent(start.cast(), len, access) }?;
        let handle = MemoryBytes { bytes: made.handle().to_bytes() };
        let id = table::next_name();
        entry.regions.lock().insert(id, made);
        // SAFETY: C's promise.
        unsafe {
            give(region, RegionName { id })?;
            give_if(memory, handle);
        }
        Ok(())
    };
    enter(body, || table::poison(endpoint))
}

/// `isthmus_deregister`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_deregister(endpoint: EndpointName, region: RegionName) -> c_int {
    let body = || {
        let entry = table::find(endpoint)?;
        let mut regions = entry.regions.lock();
        match regions.get(&region.id) {
            None => Err(no_region()),
            Some(found) if found.is_in_use() => Err(Refusal(
                Status::Memory,
                "operations still use this memory; wait for their events".to_owned(),
            )),
            Some(_) => {
                regions.remove(&region.id);
                Ok(())
            }
        }
    };
    enter(body, || table::poison(endpoint))
}

fn no_region() -> Refusal {
    Refusal(Status::Stale, "no region of this endpoint has this name".to_owned())
}

/// One operation on remote memory, as C asks for it.
struct Asked<'a> {
    connection: Connection,
    region: RegionName,
    local_offset: u64,
    remote_offset: u64,
    len: u64,
    memory: MemoryHandle,
    options: RemoteOptions<'a>,
}

/// # Safety
/// As the header says of the pointers.
#[allow(clippy::too_many_arguments, reason = "as C passes them")]
unsafe fn asked<'a>(
    connection: ConnectionName,
    region: RegionName,
    local_offset: u64,
    memory: *const MemoryBytes,
    remote_offset: u64,
    len: u64,
    message: *const c_void,
    message_len: usize,
    operation: *mut c_void,
    flags: u32,
) -> Result<Asked<'a>, Refusal> {
    // SAFETY: by this function's contract.
    let (memory, words) = unsafe { (look(memory)?, bytes(message, message_len)?) };
    if flags & !(SILENT | BLOCKING | FENCE) != 0 {
        return Err(invalid("flags that operations on remote memory do not have"));
    }
    let memory = MemoryHandle::from_bytes(&memory.bytes)
        .ok_or_else(|| invalid("bytes that are no isthmus_memory; send all 32 as they are"))?;
    let options = RemoteOptions {
        context: operation as u64,
        silent: flags & SILENT != 0,
        blocking: flags & BLOCKING != 0,
        fence: flags & FENCE != 0,
        message: (!message.is_null()).then_some(words),
    };
    let connection = Connection::from_bits(connection.id);
    Ok(Asked { connection, region, local_offset, remote_offset, len, memory, options })
}

fn run(endpoint: EndpointName, asked: &Asked<'_>, write: bool) -> Result<(), Refusal> {
    let entry = table::find(endpoint)?;
    // A blocking operation must not hold the table of regions.
    let post = |how: &RemoteOptions<'_>| {
        let regions = entry.regions.lock();
        let region: &Region = regions.get(&asked.region.id).ok_or_else(no_region)?;
        let Asked { connection, local_offset, remote_offset, len, ref memory, .. } = *asked;
        let posted = match write {
            true => {
                entry.endpoint.post_write(connection, region, local_offset, memory, remote_offset, len, how)
            }
            false => {
                entry.endpoint.post_read(connection, region, local_offset, memory, remote_offset, len, how)
            }
        };
        Ok::<_, Refusal>(posted?)
    };
    let waiting = post(&asked.options)?;
    Ok(entry.endpoint.wait_for(waiting)?)
}

/// `isthmus_write`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_write(
    endpoint: EndpointName,
    connection: ConnectionName,
    region: RegionName,
    local_offset: u64,
    memory: *const MemoryBytes,
    remote_offset: u64,
    len: u64,
    message: *const c_void,
    message_len: usize,
    operation: *mut c_void,
    flags: u32,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let asked = unsafe {
            asked(
                connection,
                region,
                local_offset,
                memory,
                remote_offset,
                len,
                message,
                message_len,
                operation,
                flags,
            )
        }?;
        run(endpoint, &asked, true)
    };
    enter(body, || table::poison(endpoint))
}

/// `isthmus_read`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_read(
    endpoint: EndpointName,
    connection: ConnectionName,
    region: RegionName,
    local_offset: u64,
    memory: *const MemoryBytes,
    remote_offset: u64,
    len: u64,
    message: *const c_void,
    message_len: usize,
    operation: *mut c_void,
    flags: u32,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let asked = unsafe {
            asked(
                connection,
                region,
                local_offset,
                memory,
                remote_offset,
                len,
                message,
                message_len,
                operation,
                flags,
            )
        }?;
        run(endpoint, &asked, false)
    };
    enter(body, || table::poison(endpoint))
}
