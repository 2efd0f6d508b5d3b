//! The tables of handles: what each number of C stands for.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isthmus_substrate::{Endpoint, Event, Failure, Region, Substrate};
use parking_lot::{Mutex, RwLock};

use crate::door::{Refusal, c_text};
use crate::types::{ConnectionName, EndpointName, EventRecord, Status};

/// An endpoint, with the events and regions that C holds.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) endpoint: Endpoint,
    pub(crate) events: Mutex<HashMap<u64, PendingEvent>>,
    pub(crate) regions: Mutex<HashMap<u64, Region>>,
    poisoned: AtomicBool,
}

/// An event and the memory that it points to, until C returns it.
#[derive(Debug)]
pub(crate) struct PendingEvent {
    pub(crate) event: Option<Event>,
    text: CString,
    /// A request's payload. It stays valid after the request is decided.
    words: Vec<u8>,
}

static SUBSTRATE: RwLock<Option<Substrate>> = RwLock::new(None);
static ENDPOINTS: RwLock<Option<HashMap<u64, Arc<Entry>>>> = RwLock::new(None);
/// The next number. Numbers are never used twice, so old handles stay invalid.
static NEXT: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_name() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Reads the configuration, once.
pub(crate) fn init() -> Result<(), Refusal> {
    let mut substrate = SUBSTRATE.write();
    if substrate.is_none() {
        *substrate = Some(Substrate::init()?);
    }
    Ok(())
}

/// Closes everything.
pub(crate) fn finalize() {
    *SUBSTRATE.write() = None;
    let all = ENDPOINTS.write().take();
    for entry in all.into_iter().flat_map(HashMap::into_values) {
        entry.endpoint.close();
    }
}

pub(crate) fn with_substrate<T>(with: impl FnOnce(&Substrate) -> Result<T, Refusal>) -> Result<T, Refusal> {
    match &*SUBSTRATE.read() {
        Some(substrate) => with(substrate),
        None => Err(Status::Uninitialised.into()),
    }
}

pub(crate) fn insert(endpoint: Endpoint) -> EndpointName {
    let entry = Entry {
        endpoint,
        events: Mutex::default(),
        regions: Mutex::default(),
        poisoned: AtomicBool::new(false),
    };
    let id = next_name();
    ENDPOINTS.write().get_or_insert_default().insert(id, Arc::new(entry));
    EndpointName { id }
}

pub(crate) fn find(name: EndpointName) -> Result<Arc<Entry>, Refusal> {
    let found = ENDPOINTS.read().as_ref().and_then(|all| all.get(&name.id).cloned());
    let entry = found.ok_or_else(|| Refusal(Status::Stale, "there is no such endpoint".to_owned()))?;
    if entry.poisoned.load(Ordering::Relaxed) {
        return Err(Status::Internal.into());
    }
    Ok(entry)
}

pub(crate) fn poison(name: EndpointName) {
    if let Ok(entry) = find(name) {
        entry.poisoned.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn remove(name: EndpointName) -> Result<Arc<Entry>, Refusal> {
    let found = ENDPOINTS.write().as_mut().and_then(|all| all.remove(&name.id));
    found.ok_or_else(|| Refusal(Status::Stale, "there is no such endpoint".to_owned()))
}

impl Entry {
    /// Keeps an event until C returns it, and describes it.
    pub(crate) fn keep(&self, event: Event) -> EventRecord {
        let mut record = describe(&event);
        let (text, words) = match &event {
            Event::Requested(request) => (Some(request.peer().to_owned()), request.payload().to_vec()),
            other => (explanation(other), Vec::new()),
        };
        let text = c_text(&text.unwrap_or_default());
        record.token = next_name();
        let mut events = self.events.lock();
        let held = events.entry(record.token).or_insert(PendingEvent { event: Some(event), text, words });
        let data = match &held.event {
            Some(Event::Received(message)) => message,
            Some(Event::ConnectFailed { payload, .. }) => &payload[..],
            _ => &held.words,
        };
        // The bytes do not move when the table grows.
        record.text = held.text.as_ptr();
        (record.data, record.len) = (data.as_ptr().cast(), data.len());
        record
    }
}

fn explanation(event: &Event) -> Option<String> {
    match event {
        Event::ConnectFailed { why, .. }
        | Event::AcceptFailed { why, .. }
        | Event::Sent { end: Err(why), .. }
        | Event::Disconnected { why, .. } => Some(why.to_string()),
        Event::DeviceFailed { why } => Some(why.clone()),
        _ => None,
    }
}

fn describe(event: &Event) -> EventRecord {
    let mut record = EventRecord {
        kind: 0,
        status: 0,
        connection: ConnectionName::default(),
        context: std::ptr::null_mut(),
        operation: std::ptr::null_mut(),
        data: std::ptr::null(),
        len: 0,
        level: 0,
        reason: 0,
        text: std::ptr::null(),
        token: 0,
    };
    let mut set = |kind, connection: Option<isthmus_substrate::Connection>, context: u64| {
        record.kind = kind;
        record.connection.id = connection.map_or(0, |connection| connection.to_bits());
        record.context = context as *mut c_void;
    };
    let mut end = Ok(());
    match event {
        Event::Requested(_) => set(1, None, 0),
        Event::Connected { connection, context } => set(2, Some(*connection), *context),
        Event::ConnectFailed { context, why, .. } => {
            set(2, None, *context);
            end = Err(why);
        }
        Event::Accepted { connection, context } => set(3, Some(*connection), *context),
        Event::AcceptFailed { context, why } => {
            set(3, None, *context);
            end = Err(why);
        }
        Event::Received(message) => set(4, Some(message.connection()), message.context()),
        Event::Sent { connection, context, end: how, .. } => {
            set(5, Some(*connection), *context);
            end = how.as_ref().copied();
        }
        Event::Disconnected { connection, context, why } => {
            set(6, Some(*connection), *context);
            end = Err(why);
        }
        Event::KeepaliveExpired { connection, context } => set(7, Some(*connection), *context),
        _ => set(8, None, 0),
    }
    if let Event::Requested(request) = event {
        record.level = request.level() as u32;
    }
    if let Event::Sent { operation, .. } = event {
        record.operation = *operation as *mut c_void;
    }
    if let Err(why) = end {
        record.status = Status::from(why) as i32;
        if let Failure::Rejected(reason) = why {
            record.reason = *reason;
        }
    }
    record
}
