//! An endpoint: the conversation, the engine below it, and their buffers.

mod describing;
mod events;
mod operations;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use isthmus_io::{Endpoint as Engine, RegionTable};
use isthmus_wire::Address;
use parking_lot::Mutex;

pub use describing::EndpointCounters;
pub use operations::Posted;

use crate::bell::Bell;
use crate::buffers::Buffers;
use crate::datagrams::DATAGRAM_MAX;
use crate::event::{Connection, Request};
use crate::inner::{Inner, State, micros};
use crate::talk::{Caller, Limits, Talk};
use crate::{ConnectOptions, Device, EndpointOptions, Error, Level};

/// A program's instance of a device: its connections, its buffers, and its one queue of
/// events. All calls may be made from any thread. Dropping it closes it.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) inner: Arc<Inner>,
}

/// How long a call that waits polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

static SERIALS: AtomicU32 = AtomicU32::new(0);

impl Endpoint {
    /// Opens an endpoint on a device.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is down; [`Error::Value`]; [`Error::System`].
    pub fn create(device: &Device, options: &EndpointOptions) -> Result<Self, Error> {
        options.check()?;
        device.check_up()?;
        let regions = Arc::new(RegionTable::default());
        let mut settings = device.settings().clone();
        if options.port != 0 {
            settings.port = options.port;
        }
        let system = |error: &dyn std::fmt::Display| Error::System(error.to_string());
        let engine = Engine::open(&settings, None, regions.clone()).map_err(|e| system(&e))?;
        engine.watch_peers();
        let address = engine.address();
        let seed = getrandom::u64().map_err(|e| system(&e))?;
        let limits = Limits {
            send_buffers: options.send_buffers,
            requests: options.backlog,
            message_max: options.message_max,
            datagram_max: options.message_max.min(DATAGRAM_MAX),
            packet_max: DATAGRAM_MAX,
            udp_port: 0,
        };
        let bell = Bell::new(engine.wait_fd()).map_err(|e| system(&e))?;
        let now = Instant::now();
        let state = State {
            talk: Talk::new(limits, seed),
            buffers: Buffers::new(options.message_max.max(isthmus_wire::conversation::LETTER_MAX as u32)),
            recv_buffers: options.recv_buffers,
            datagrams: None,
            datagrams_first: 0,
            done: Vec::new(),
            held: HashMap::new(),
            awaited: HashMap::new(),
            options: options.clone(),
            armed: false,
            device_up: true,
            looked_at: now,
            counters: EndpointCounters::default(),
        };
        // 0 would make connections that are 0 as a number.
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed) % 0xffff + 1;
        let inner = Arc::new(Inner {
            serial,
            address,
            device: device.clone(),
            engine,
            regions,
            bell,
            epoch: now,
            closed: AtomicBool::new(false),
            process: std::process::id(),
            state: Mutex::new(state),
        });
        let mut state = inner.state.lock();
        inner.fill_buffers(&mut state);
        drop(state);
        Ok(Self { inner })
    }

    /// The address that peers need: `isthmus://AS.SUBNET/IP:PORT#INCARNATION`.
    pub fn uri(&self) -> String {
        self.inner.address.to_string()
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Asks the endpoint at `uri` for a connection. [`Event::Connected`] or
    /// [`Event::ConnectFailed`] follows; all events of the connection carry `context`.
    ///
    /// # Errors
    /// [`Error::Uri`], [`Error::Unreachable`] where no route leads there,
    /// [`Error::TooLong`] for a payload of more than 1,024 bytes.
    pub fn connect(
        &self,
        uri: &str,
        payload: &[u8],
        level: Level,
        context: u64,
        options: &ConnectOptions,
    ) -> Result<Connection, Error> {
        let inner = &self.inner;
        let address: Address = uri.parse().map_err(|e| Error::Uri(format!("{e}")))?;
        let mut state = inner.open_state()?;
        let peer = inner.engine.peer(&address).map_err(|e| Error::Unreachable(e.to_string()))?;
        if level == Level::Uu {
            inner.open_datagrams(&mut state);
        }
        let host = inner.host(&state, context, &address)?;
        let caller = Caller { peer, level, timeout_us: options.timeout.map(micros), host };
        let id = state.talk.connect(inner.now(), &caller, payload)?;
        inner.flush(&mut state);
        Ok(inner.name(id))
    }

    /// Grants a request. [`Event::Accepted`] follows, and all events of the connection
    /// carry `context`.
    ///
    /// # Errors
    /// [`Error::Stale`] where the peer is gone meanwhile, or the request is another
    /// endpoint's.
    pub fn accept(&self, mut request: Request, context: u64) -> Result<Connection, Error> {
        self.check_request(&request)?;
        request.decided = true;
        self.inner.accept(request.id, request.level, context)
    }

    /// Turns a request down. The other program learns the reason, a number of yours, and
    /// the payload of at most 1,024 bytes.
    ///
    /// # Errors
    /// As for [`Endpoint::accept`]; [`Error::TooLong`].
    pub fn reject(&self, mut request: Request, reason: u32, payload: &[u8]) -> Result<(), Error> {
        self.check_request(&request)?;
        let mut state = self.inner.open_state()?;
        state.talk.reject(request.id, reason, payload)?;
        request.decided = true;
        self.inner.flush(&mut state);
        Ok(())
    }

    fn check_request(&self, request: &Request) -> Result<(), Error> {
        if Arc::ptr_eq(&request.inner, &self.inner) { Ok(()) } else { Err(Error::Stale("request")) }
    }

    /// Ends a connection. Its name is void from now on; what was sent before is still
    /// delivered, and its events come. The other program learns it after it has received
    /// what was sent.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn disconnect(&self, connection: Connection) -> Result<(), Error> {
        let mut state = self.inner.open_state()?;
        let id = self.inner.id(connection)?;
        state.talk.disconnect(id)?;
        self.inner.flush(&mut state);
        Ok(())
    }

    /// Closes the endpoint: what was sent is delivered, within the device's `linger`, and
    /// peers are told. Events that the program still holds stay valid.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.inner.close();
    }
}
