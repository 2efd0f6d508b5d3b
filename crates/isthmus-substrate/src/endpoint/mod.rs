//! An endpoint, as programs use it.

mod describing;
mod events;
mod operations;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use isthmus_io::{Endpoint as Engine, RegionTable};
use parking_lot::Mutex;

pub use describing::{EndpointCounters, Traffic};
pub use operations::Posted;

use crate::bell::Bell;
use crate::buffers::Buffers;
use crate::datagrams::{DATAGRAM_MAX, Datagrams};
use crate::event::{Connection, Request};
use crate::inner::{Inner, State, micros};
use crate::ports::{PORTS_MAX, Port, PortState, port_of};
use crate::talk::{Caller, Limits, Other, Talk};
use crate::{ConnectOptions, Device, EndpointOptions, Error, Level};

/// A program's instance of a device: its connections, its buffers, and its one queue of
/// events. All calls may be made from any thread. Dropping it closes it.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) inner: Arc<Inner>,
}

/// Time for which a waiting call polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Longest wait of the I/O thread for the endpoint's lock, to count datagrams for `isthmus top`.
const FIGURES_PATIENCE: Duration = Duration::from_millis(100);

static SERIALS: AtomicU32 = AtomicU32::new(0);

/// Opens an engine on each device, in the order of their priorities.
fn open_ports(
    devices: &[&Device],
    options: &EndpointOptions,
    regions: &Arc<RegionTable>,
) -> Result<Vec<Port>, Error> {
    let mut devices = devices.to_vec();
    devices.sort_by_key(|device| std::cmp::Reverse(device.priority()));
    let mut ports = Vec::new();
    for device in devices {
        device.check_up()?;
        let mut settings = device.settings().clone();
        if options.port != 0 {
            settings.port = options.port;
        }
        let engine = Engine::open(&settings, None, regions.clone())
            .map_err(|error| Error::System(error.to_string()))?;
        engine.watch_peers();
        ports.push(Port { device: device.clone(), address: engine.address(), engine });
    }
    Ok(ports)
}

/// Lets `isthmus top` see the counts of datagrams too.
fn count_datagrams(inner: &Arc<Inner>) {
    for (at, port) in inner.ports.iter().enumerate() {
        let inner = Arc::downgrade(inner);
        port.engine.tell_datagrams(move || {
            let Some(inner) = inner.upgrade() else { return Vec::new() };
            // While the program holds it for longer, the figures are without datagrams.
            let Some(state) = inner.state.try_lock_for(FIGURES_PATIENCE) else { return Vec::new() };
            state.ports[at].datagrams.iter().flat_map(Datagrams::counts).collect()
        });
    }
}

impl Endpoint {
    /// Opens an endpoint on a device.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is down; [`Error::Value`]; [`Error::System`];
    /// [`Error::Memory`] where there is not enough for its buffers.
    pub fn create(device: &Device, options: &EndpointOptions) -> Result<Self, Error> {
        Self::create_on(&[device], options)
    }

    /// Opens one endpoint on several devices, at most 8. It listens on all of them, and its address names all. It
    /// connects by the device of the highest priority that leads to the peer ([`Endpoint::connect`]). The devices share
    /// connections, registered memory and the queue of events. `recv_buffers` is for each device.
    ///
    /// # Errors
    /// [`Error::Device`] if one is down, or there are none or too many; [`Error::Value`]; [`Error::System`].
    pub fn create_on(devices: &[&Device], options: &EndpointOptions) -> Result<Self, Error> {
        options.check()?;
        if devices.is_empty() || devices.len() > PORTS_MAX {
            let count = devices.len();
            return Err(Error::Device(format!(
                "an endpoint on {count} devices; it can be on 1 to {PORTS_MAX}"
            )));
        }
        let system = |error: &dyn std::fmt::Display| Error::System(error.to_string());
        let regions = Arc::new(RegionTable::default());
        let ports = open_ports(devices, options, &regions)?;
        let seed = getrandom::u64().map_err(|e| system(&e))?;
        let limits = Limits {
            send_buffers: options.send_buffers,
            requests: options.backlog,
            message_max: options.message_max,
            datagram_max: options.message_max.min(DATAGRAM_MAX),
        };
        let engines: Vec<&Engine> = ports.iter().map(|port| &*port.engine).collect();
        let bell = Bell::new(&engines).map_err(|e| system(&e))?;
        let buffer = options.message_max.max(isthmus_wire::conversation::LETTER_MAX as u32);
        let port = |port: &Port| {
            let trouble = port.device.trouble(port.address.locator.ip());
            PortState { buffers: Buffers::new(buffer), datagrams: None, trouble, fabric_failed: false }
        };
        let now = Instant::now();
        let state = State {
            talk: Talk::new(limits, seed),
            ports: ports.iter().map(port).collect(),
            recv_buffers: options.recv_buffers,
            datagrams_first: 0,
            done: Vec::new(),
            held: HashMap::new(),
            awaited: HashMap::new(),
            gaps: Vec::new(),
            options: options.clone(),
            armed: false,
            looked_at: now,
            counters: EndpointCounters::default(),
        };
        // With 0, a connection could be 0 as a number.
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed) % 0xffff + 1;
        let inner = Arc::new(Inner {
            serial,
            ports,
            regions,
            bell,
            epoch: now,
            closed: AtomicBool::new(false),
            process: isthmus_io::process_number(),
            state: Mutex::new(state),
        });
        count_datagrams(&inner);
        let mut state = inner.state.lock();
        let filled = inner.fill_buffers(&mut state);
        drop(state);
        if let Err(error) = filled {
            inner.close();
            return Err(error);
        }
        Ok(Self { inner })
    }

    /// The address that peers need: `isthmus://AS.SUBNET/IP:PORT#INCARNATION.KEY`. An endpoint on several devices has
    /// one for each, joined by commas; peers may use all or one of them. A peer that has the address may connect, so it
    /// is a secret, unless the setting `admission` is "open".
    pub fn uri(&self) -> String {
        let all: Vec<String> = self.inner.ports.iter().map(|port| port.address.uri()).collect();
        all.join(",")
    }

    /// Its device; with several, the one of the highest priority.
    pub fn device(&self) -> &Device {
        &self.inner.ports[0].device
    }

    /// All its devices, those of higher priority first.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.inner.ports.iter().map(|port| &port.device)
    }

    /// The device of a connection.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn device_of(&self, connection: Connection) -> Result<&Device, Error> {
        let id = self.inner.id(connection)?;
        let peer = self.inner.open_state()?.talk.describe(id)?.peer;
        Ok(&self.inner.ports[port_of(peer)].device)
    }

    /// Asks the endpoint at `uri` for a connection. [`Event::Connected`](crate::Event::Connected) or
    /// [`Event::ConnectFailed`](crate::Event::ConnectFailed) follows; all events of the connection carry `context`.
    ///
    /// If this endpoint or the other one is on several devices, there may be several routes: from a device directly to
    /// an address of its AS and subnet, and by its routers to others. The route of the device with the highest priority
    /// is tried first, and the direct one before routers. If nobody answers, the next route is tried, until all have
    /// failed. If the request has not arrived after 3 s, the next route is tried at the same time, and the first answer
    /// counts. A connection stays with its device.
    ///
    /// # Errors
    /// [`Error::Uri`], [`Error::Unreachable`] if no route leads there, [`Error::TooLong`] for a payload of more than
    /// 1,024 bytes.
    pub fn connect(
        &self,
        uri: &str,
        payload: &[u8],
        level: Level,
        context: u64,
        options: &ConnectOptions,
    ) -> Result<Connection, Error> {
        let inner = &self.inner;
        let mut routes = inner.routes(uri)?.into_iter();
        let mut state = inner.open_state()?;
        let Some((port, address)) = routes.next() else { return Err(Error::Unreachable(uri.to_owned())) };
        let peer = inner.enter_peer(&mut state, port, &address, level)?;
        let host = inner.host(&state, context, port, &address)?;
        let mut others = Vec::new();
        for (port, address) in routes {
            let Ok(peer) = inner.enter_peer(&mut state, port, &address, level) else { continue };
            let (udp_port, packet_max) = inner.datagrams_with(&state, port, &address);
            others.push(Other { peer, udp_port, packet_max });
        }
        let caller = Caller { peer, level, timeout_us: options.timeout.map(micros), host, others };
        let id = state.talk.connect(inner.now(), &caller, payload)?;
        inner.flush(&mut state);
        Ok(inner.name(id))
    }

    /// Accepts a request. [`Event::Accepted`](crate::Event::Accepted) follows, and all events of the connection carry `context`.
    ///
    /// # Errors
    /// [`Error::Stale`] if the peer is gone by now, or the request belongs to another endpoint.
    pub fn accept(&self, mut request: Request, context: u64) -> Result<Connection, Error> {
        self.check_request(&request)?;
        request.decided = true;
        self.inner.accept(request.id, request.level, context)
    }

    /// Rejects a request. The other program learns the reason, which is a number that you choose, and the payload of at
    /// most 1,024 bytes.
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

    /// Ends a connection. Its name is invalid from now on. What was sent before is still delivered, and its events
    /// come. The other program learns of the end after it has received everything.
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

    /// Closes the endpoint: delivers what was sent, within the device's `linger`, and tells the peers. Events that the
    /// program still holds stay valid.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.inner.close();
    }
}
