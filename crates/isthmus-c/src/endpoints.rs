//! Calls for devices, endpoints, connections and events.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use isthmus_substrate::{ConnectOptions, Connection, Device, Endpoint, EndpointOptions, Event, Level};

use crate::door::{Refusal, bytes, enter, give, give_if, invalid, last_text, look, text};
use crate::table;
use crate::types::{
    ABI_VERSION, ConnectionName, DeviceRecord, EndpointName, EventRecord, OptionsRecord, Status, status_text,
};

/// `isthmus_init`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_init(abi_version: u32) -> c_int {
    let body = || {
        if abi_version != ABI_VERSION {
            let text = format!(
                "the program was compiled for version {abi_version} of isthmus.h, this library is version {ABI_VERSION}; compile it again"
            );
            return Err(Refusal(Status::Uninitialised, text));
        }
        crate::log::install();
        table::init()
    };
    enter(body, || {})
}

/// `isthmus_finalize`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_finalize() -> c_int {
    let body = || {
        table::finalize();
        Ok(())
    };
    enter(body, || {})
}

/// `isthmus_strerror`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_strerror(status: c_int) -> *const c_char {
    status_text(status).as_ptr()
}

/// `isthmus_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_last_error() -> *const c_char {
    last_text()
}

/// `isthmus_devices`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_devices(devices: *mut DeviceRecord, max: usize, count: *mut usize) -> c_int {
    let body = || {
        table::with_substrate(|substrate| {
            let all = substrate.devices();
            // SAFETY: C's promise.
            unsafe { give(count, all.len()) }?;
            for (index, device) in all.iter().take(max).enumerate() {
                // SAFETY: C's promise: there is room for `max`.
                unsafe { give(devices.wrapping_add(index), record_of(device)) }?;
            }
            Ok(())
        })
    };
    enter(body, || {})
}

fn record_of(device: &Device) -> DeviceRecord {
    let (address, why) = match device.address() {
        Ok(ip) => (ip.to_string(), String::new()),
        Err(why) => (String::new(), why.to_owned()),
    };
    DeviceRecord {
        name: fixed(device.name()),
        transport: fixed(device.transport()),
        interface: fixed(device.interface()),
        address: fixed(&address),
        why: fixed(&why),
        rate_bps: device.rate_bps().unwrap_or(0),
        as_id: device.as_id(),
        subnet: device.subnet(),
        priority: device.priority(),
        up: u32::from(device.is_up()),
        routers: device.routers().len() as u32,
        reserved: 0,
    }
}

/// A text in an array of `N` bytes, cut if necessary, with a NUL at its end.
fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

/// `isthmus_create_endpoint`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_create_endpoint(
    device: *const c_char,
    options: *const OptionsRecord,
    endpoint: *mut EndpointName,
    os_handle: *mut c_int,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let (name, given) = unsafe { (text(device)?, options.as_ref()) };
        if endpoint.is_null() {
            return Err(invalid("a null pointer where the endpoint is to go"));
        }
        let options = given.map_or(Ok(EndpointOptions::default()), options_of)?;
        let opened = table::with_substrate(|substrate| {
            let devices = match name {
                Some(names) => substrate.devices_named(names)?,
                None => vec![substrate.default_device()?],
            };
            Ok(Endpoint::create_on(&devices, &options)?)
        })?;
        let fd = opened.os_handle();
        // SAFETY: C's promise.
        unsafe {
            give(endpoint, table::insert(opened))?;
            give_if(os_handle, fd);
        }
        Ok(())
    };
    enter(body, || {})
}

fn options_of(record: &OptionsRecord) -> Result<EndpointOptions, Refusal> {
    if record.size != size_of::<OptionsRecord>() {
        return Err(invalid("options.size is not sizeof(isthmus_endpoint_options)"));
    }
    let default = EndpointOptions::default();
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    Ok(EndpointOptions {
        recv_buffers: or(record.recv_buffers, default.recv_buffers),
        send_buffers: or(record.send_buffers, default.send_buffers),
        message_max: or(record.message_max, default.message_max),
        backlog: or(record.backlog, default.backlog),
        send_timeout: Duration::from_micros(record.send_timeout_us),
        keepalive: Duration::from_micros(record.keepalive_us),
        port: u16::try_from(record.port).map_err(|_| invalid("port is above 65535"))?,
    })
}

/// `isthmus_destroy_endpoint`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_destroy_endpoint(endpoint: EndpointName) -> c_int {
    let body = || {
        let entry = table::remove(endpoint)?;
        entry.endpoint.close();
        entry.events.lock().clear();
        entry.regions.lock().clear();
        Ok(())
    };
    enter(body, || {})
}

/// `isthmus_uri`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_uri(endpoint: EndpointName, uri: *mut c_char, len: usize) -> c_int {
    let body = || {
        let own = table::find(endpoint)?.endpoint.uri();
        // SAFETY: C's promise.
        unsafe { put_text(&own, uri, len) }
    };
    enter(body, || table::poison(endpoint))
}

/// # Safety
/// `to` is null or writable for `len` bytes.
pub(crate) unsafe fn put_text(from: &str, to: *mut c_char, len: usize) -> Result<(), Refusal> {
    if to.is_null() {
        return Err(invalid("a null pointer where a text is to go"));
    }
    if len <= from.len() {
        let text = format!("{} bytes, of which at most {len} fit; give a longer buffer", from.len() + 1);
        return Err(Refusal(Status::TooLong, text));
    }
    // SAFETY: there is room for the text and its NUL, by this function's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len());
        to.add(from.len()).write(0);
    }
    Ok(())
}

/// `isthmus_arm`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_arm(endpoint: EndpointName) -> c_int {
    let body = || match table::find(endpoint)?.endpoint.arm()? {
        true => Ok(()),
        false => Err(Status::Again.into()),
    };
    enter(body, || table::poison(endpoint))
}

/// `isthmus_get_event`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_get_event(endpoint: EndpointName, event: *mut EventRecord) -> c_int {
    // SAFETY: as this function's own.
    unsafe { event_by(endpoint, event, Endpoint::get_event) }
}

/// `isthmus_wait_event`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_wait_event(
    endpoint: EndpointName,
    timeout_us: i64,
    event: *mut EventRecord,
) -> c_int {
    let limit = u64::try_from(timeout_us).ok().map(Duration::from_micros);
    // SAFETY: as this function's own.
    unsafe { event_by(endpoint, event, |endpoint| endpoint.next_event(limit)) }
}

/// # Safety
/// `event` is null or writable.
unsafe fn event_by(
    endpoint: EndpointName,
    event: *mut EventRecord,
    get: impl FnOnce(&Endpoint) -> Result<Option<Event>, isthmus_substrate::Error>,
) -> c_int {
    let body = || {
        if event.is_null() {
            return Err(invalid("a null pointer where the event is to go"));
        }
        let entry = table::find(endpoint)?;
        match get(&entry.endpoint)? {
            // SAFETY: not null, and C's promise.
            Some(found) => unsafe { give(event, entry.keep(found)) },
            None => Err(Status::Again.into()),
        }
    };
    enter(body, || table::poison(endpoint))
}

/// `isthmus_return_event`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_return_event(endpoint: EndpointName, event: *const EventRecord) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let token = unsafe { look(event) }?.token;
        let entry = table::find(endpoint)?;
        let held = entry.events.lock().remove(&token);
        held.map(drop).ok_or_else(|| {
            let text = "the event was returned before, or is of another endpoint";
            Refusal(Status::Stale, text.to_owned())
        })
    };
    enter(body, || table::poison(endpoint))
}

/// `isthmus_connect`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_connect(
    endpoint: EndpointName,
    uri: *const c_char,
    payload: *const c_void,
    len: usize,
    level: u32,
    context: *mut c_void,
    timeout_us: u64,
    connection: *mut ConnectionName,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let (uri, payload) = unsafe { (text(uri)?, bytes(payload, len)?) };
        let uri = uri.ok_or_else(|| invalid("a null pointer where an address is to be read"))?;
        let level = match level {
            0 => Level::Uu,
            1 => Level::Ru,
            2 => Level::Ro,
            _ => return Err(invalid("no such service level")),
        };
        let timeout = (timeout_us > 0).then(|| Duration::from_micros(timeout_us));
        let entry = table::find(endpoint)?;
        let options = ConnectOptions { timeout };
        let made = entry.endpoint.connect(uri, payload, level, context as u64, &options)?;
        // SAFETY: C's promise.
        unsafe { give_if(connection, ConnectionName { id: made.to_bits() }) };
        Ok(())
    };
    enter(body, || table::poison(endpoint))
}

/// `isthmus_accept`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_accept(
    endpoint: EndpointName,
    request: *const EventRecord,
    context: *mut c_void,
    connection: *mut ConnectionName,
) -> c_int {
    let body = || {
        let entry = table::find(endpoint)?;
        // SAFETY: C's promise.
        let asked = unsafe { take_request(&entry, request) }?;
        let made = entry.endpoint.accept(asked, context as u64)?;
        // SAFETY: C's promise.
        unsafe { give_if(connection, ConnectionName { id: made.to_bits() }) };
        Ok(())
    };
    enter(body, || table::poison(endpoint))
}

/// `isthmus_reject`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_reject(
    endpoint: EndpointName,
    request: *const EventRecord,
    reason: u32,
    payload: *const c_void,
    len: usize,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let payload = unsafe { bytes(payload, len) }?;
        if payload.len() > isthmus_substrate::PAYLOAD_MAX {
            return Err(Refusal(Status::TooLong, "a payload of more than 1024 bytes".to_owned()));
        }
        let entry = table::find(endpoint)?;
        // SAFETY: C's promise.
        let asked = unsafe { take_request(&entry, request) }?;
        Ok(entry.endpoint.reject(asked, reason, payload)?)
    };
    enter(body, || table::poison(endpoint))
}

/// Takes the request of an event. It can be taken only once.
///
/// # Safety
/// `event` is null or readable.
unsafe fn take_request(
    entry: &table::Entry,
    event: *const EventRecord,
) -> Result<isthmus_substrate::Request, Refusal> {
    // SAFETY: by this function's contract.
    let token = unsafe { look(event) }?.token;
    let mut events = entry.events.lock();
    let held = events.get_mut(&token);
    match held.and_then(|held| held.event.take_if(|event| matches!(event, Event::Requested(_)))) {
        Some(Event::Requested(request)) => Ok(request),
        _ => Err(Refusal(Status::Stale, "no request, or one that was decided or returned".to_owned())),
    }
}

/// `isthmus_disconnect`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_disconnect(endpoint: EndpointName, connection: ConnectionName) -> c_int {
    let body = || Ok(table::find(endpoint)?.endpoint.disconnect(Connection::from_bits(connection.id))?);
    enter(body, || table::poison(endpoint))
}
