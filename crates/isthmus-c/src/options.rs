//! Calls for options of endpoints and connections.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use isthmus_substrate::{Connection, EndpointOptions};

use crate::door::{Refusal, bytes, enter, give, invalid, look};
use crate::endpoints::put_text;
use crate::table::{self, Entry};
use crate::types::{ConnectionName, CountersRecord, EndpointName, Status};

const URI: u32 = 1;
const RECV_BUFFERS: u32 = 2;
const SEND_BUFFERS: u32 = 3;
const SEND_TIMEOUT_US: u32 = 4;
const KEEPALIVE_US: u32 = 5;
const ALIGNMENT: u32 = 6;
const UDP_PROTOCOLS: u32 = 7;
const TRANSFER: u32 = 8;
const PROTOCOLS: u32 = 9;
const CONN_SEND_TIMEOUT_US: u32 = 16;
const CONN_KEEPALIVE_US: u32 = 17;
const CONN_LEVEL: u32 = 18;
const CONN_MESSAGE_MAX: u32 = 19;
const CONN_URI: u32 = 20;
const CONN_DEVICE: u32 = 21;
const CONN_UDP_PROTOCOLS: u32 = 22;
const CONN_TRANSFER: u32 = 23;
const CONN_PROTOCOLS: u32 = 24;

/// The value of an option in its C type.
enum Value {
    Short(u32),
    Long(u64),
    Text(String),
}

/// `isthmus_get_option`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_get_option(
    endpoint: EndpointName,
    connection: ConnectionName,
    option: u32,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let room = *unsafe { look(len) }?;
        let entry = table::find(endpoint)?;
        let found = read(&entry, Connection::from_bits(connection.id), option)?;
        // SAFETY: C's promise: `value` has `room` bytes.
        unsafe {
            let used = match found {
                Value::Short(number) => put_bytes(&number.to_ne_bytes(), value, room)?,
                Value::Long(number) => put_bytes(&number.to_ne_bytes(), value, room)?,
                Value::Text(text) => {
                    put_text(&text, value.cast(), room)?;
                    text.len() + 1
                }
            };
            give(len, used)
        }
    };
    enter(body, || table::poison(endpoint))
}

fn read(entry: &Entry, connection: Connection, option: u32) -> Result<Value, Refusal> {
    let endpoint = &entry.endpoint;
    let micros = |time: Duration| Value::Long(time.as_micros().min(u128::from(u64::MAX)) as u64);
    Ok(match option {
        URI => Value::Text(endpoint.uri()),
        RECV_BUFFERS => Value::Short(endpoint.options().recv_buffers),
        SEND_BUFFERS => Value::Short(endpoint.options().send_buffers),
        SEND_TIMEOUT_US => micros(endpoint.options().send_timeout),
        KEEPALIVE_US => micros(endpoint.options().keepalive),
        ALIGNMENT => Value::Short(1),
        UDP_PROTOCOLS => Value::Text(endpoint.udp_protocols()?),
        TRANSFER => Value::Text(endpoint.transfer()),
        PROTOCOLS => Value::Text(endpoint.protocols()),
        CONN_SEND_TIMEOUT_US => micros(endpoint.times(connection)?.0),
        CONN_KEEPALIVE_US => micros(endpoint.times(connection)?.1),
        CONN_LEVEL => Value::Short(endpoint.level(connection)? as u32),
        CONN_MESSAGE_MAX => Value::Short(endpoint.message_max(connection)?),
        CONN_URI => Value::Text(endpoint.peer_uri(connection)?),
        CONN_DEVICE => Value::Text(endpoint.device_of(connection)?.name().to_owned()),
        CONN_UDP_PROTOCOLS => Value::Text(endpoint.udp_protocols_of(connection)?),
        CONN_TRANSFER => Value::Text(endpoint.transfer_of(connection)?),
        CONN_PROTOCOLS => Value::Text(endpoint.protocols_of(connection)?),
        _ => return Err(invalid("no such option")),
    })
}

/// `isthmus_get_counters`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_get_counters(
    endpoint: EndpointName,
    connection: ConnectionName,
    counters: *mut CountersRecord,
) -> c_int {
    let body = || {
        // SAFETY: C's promise. A program with a later header has a longer structure, so `size` must be at least ours.
        if unsafe { look(counters) }?.size < size_of::<CountersRecord>() {
            return Err(invalid("counters.size is not sizeof(isthmus_counters)"));
        }
        let endpoint = &table::find(endpoint)?.endpoint;
        let traffic = match connection.id {
            0 => endpoint.traffic(),
            id => endpoint.traffic_with(Connection::from_bits(id))?,
        };
        let record = CountersRecord {
            size: size_of::<CountersRecord>(),
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
            messages_sent: traffic.messages_sent,
            datagrams_sent: traffic.datagrams_sent,
            datagrams_received: traffic.datagrams_received,
            fragments_resent: traffic.fragments_resent,
            lanes: traffic.lanes,
            rtt_us: traffic.rtt.map_or(0, |rtt| rtt.as_micros() as u64),
        };
        // SAFETY: C's promise.
        unsafe { give(counters, record) }
    };
    enter(body, || table::poison(endpoint))
}

/// # Safety
/// `to` is null or writable for `room` bytes.
unsafe fn put_bytes(from: &[u8], to: *mut c_void, room: usize) -> Result<usize, Refusal> {
    if to.is_null() {
        return Err(invalid("a null pointer where a value is to go"));
    }
    if room < from.len() {
        return Err(Refusal(Status::TooLong, format!("the value has {} bytes", from.len())));
    }
    // SAFETY: there is room, by this function's contract.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len()) };
    Ok(from.len())
}

/// `isthmus_set_option`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_set_option(
    endpoint: EndpointName,
    connection: ConnectionName,
    option: u32,
    value: *const c_void,
    len: usize,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let value = unsafe { bytes(value, len) }?;
        let entry = table::find(endpoint)?;
        write(&entry, Connection::from_bits(connection.id), option, value)
    };
    enter(body, || table::poison(endpoint))
}

fn write(entry: &Entry, connection: Connection, option: u32, value: &[u8]) -> Result<(), Refusal> {
    let endpoint = &entry.endpoint;
    let short = || value.try_into().map(u32::from_ne_bytes).map_err(|_| invalid("the value is a uint32_t"));
    let time = || {
        let number = value.try_into().map(u64::from_ne_bytes);
        number.map(Duration::from_micros).map_err(|_| invalid("the value is a uint64_t"))
    };
    let text = || {
        let text = value.strip_suffix(b"\0").unwrap_or(value);
        std::str::from_utf8(text).map_err(|_| invalid("the value is a text"))
    };
    let change = |with: &dyn Fn(&mut EndpointOptions) -> Result<(), Refusal>| {
        let mut options = endpoint.options();
        with(&mut options)?;
        Ok(endpoint.set_options(&options)?)
    };
    match option {
        RECV_BUFFERS => change(&|options| short().map(|count| options.recv_buffers = count)),
        SEND_BUFFERS => change(&|options| short().map(|count| options.send_buffers = count)),
        SEND_TIMEOUT_US => change(&|options| time().map(|time| options.send_timeout = time)),
        KEEPALIVE_US => change(&|options| time().map(|time| options.keepalive = time)),
        CONN_SEND_TIMEOUT_US => Ok(endpoint.set_send_timeout(connection, time()?)?),
        CONN_KEEPALIVE_US => Ok(endpoint.set_keepalive(connection, time()?)?),
        UDP_PROTOCOLS => Ok(endpoint.set_udp_protocols(text()?)?),
        TRANSFER => Ok(endpoint.set_transfer(text()?)?),
        PROTOCOLS => Ok(endpoint.set_protocols(text()?)?),
        CONN_UDP_PROTOCOLS => Ok(endpoint.set_udp_protocols_of(connection, text()?)?),
        CONN_TRANSFER => Ok(endpoint.set_transfer_of(connection, text()?)?),
        CONN_PROTOCOLS => Ok(endpoint.set_protocols_of(connection, text()?)?),
        URI | ALIGNMENT | CONN_LEVEL | CONN_MESSAGE_MAX | CONN_URI | CONN_DEVICE => {
            Err(invalid("an option that can only be read"))
        }
        _ => Err(invalid("no such option")),
    }
}
