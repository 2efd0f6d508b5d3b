//! Calls for registered memory, and for reads and writes of a peer's memory.

use std::ffi::{c_int, c_void};

use isthmus_substrate::{Access, Connection, MemoryHandle, Region, RemoteOptions};

use crate::door::{Refusal, bytes, enter, give, give_if, invalid, look};
use crate::messages::{BLOCKING, FENCE, SILENT};
use crate::table;
use crate::types::{ConnectionName, EndpointName, MemoryBytes, RegionName, Status};

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

/// The local and the remote range of a write or read.
struct Places {
    connection: ConnectionName,
    region: RegionName,
    local_offset: u64,
    remote_offset: u64,
    len: u64,
}

fn run(
    endpoint: EndpointName,
    places: &Places,
    memory: &MemoryBytes,
    options: &RemoteOptions<'_>,
    flags: u32,
    write: bool,
) -> Result<(), Refusal> {
    if flags & !(SILENT | BLOCKING | FENCE) != 0 {
        return Err(invalid("flags that operations on remote memory do not have"));
    }
    let memory = MemoryHandle::from_bytes(&memory.bytes)
        .ok_or_else(|| invalid("bytes that are no isthmus_memory; send all 32 as they are"))?;
    let how = RemoteOptions {
        silent: flags & SILENT != 0,
        blocking: flags & BLOCKING != 0,
        fence: flags & FENCE != 0,
        ..*options
    };
    let entry = table::find(endpoint)?;
    let at = &entry.endpoint;
    let Places { connection, local_offset, remote_offset, len, .. } = *places;
    let to = Connection::from_bits(connection.id);
    // A blocking operation must not keep the table of regions locked.
    let waiting = {
        let regions = entry.regions.lock();
        let region: &Region = regions.get(&places.region.id).ok_or_else(no_region)?;
        match write {
            true => at.post_write(to, region, local_offset, &memory, remote_offset, len, &how),
            false => at.post_read(to, region, local_offset, &memory, remote_offset, len, &how),
        }?
    };
    Ok(at.wait_for(waiting)?)
}

/// Defines the C call of a write or a read.
macro_rules! remote_call {
    ($name:ident, $write:literal) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
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
            let places = Places { connection, region, local_offset, remote_offset, len };
            let body = || {
                // SAFETY: C's promise.
                let (memory, words) = unsafe { (look(memory)?, bytes(message, message_len)?) };
                let message = (!message.is_null()).then_some(words);
                let how = RemoteOptions { context: operation as u64, message, ..Default::default() };
                run(endpoint, &places, memory, &how, flags, $write)
            };
            enter(body, || table::poison(endpoint))
        }
    };
}

remote_call!(isthmus_write, true);
remote_call!(isthmus_read, false);
