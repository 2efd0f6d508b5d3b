//! The inside of an endpoint: the conversation, the engines, and what passes between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_io::{Encrypt, RegionTable, Settings, TlsMode, process_number};
use isthmus_proto::{Completion, Config, Micros, PeerId};
use isthmus_wire::Address;
use isthmus_wire::conversation::ConnectionId;
use parking_lot::{Mutex, MutexGuard};

use crate::bell::Bell;
use crate::datagrams::Datagrams;
use crate::event::Connection;
use crate::memory::InUse;
use crate::ports::{Port, PortState, Slot, peer_at, port_of, within};
use crate::route::{addresses, routes};
use crate::talk::{Host, OpId, Parcel, Post, Talk};
use crate::{EndpointCounters, EndpointOptions, Error, Failure, Level};

/// The part of an endpoint that the events share that hold its buffers.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) serial: u32,
    /// Its ports, those of higher priority first; at least one.
    pub(crate) ports: Vec<Port>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) bell: Bell,
    pub(crate) epoch: Instant,
    pub(crate) closed: AtomicBool,
    /// The process that opened it, by [`process_number`]; forked children only have a copy.
    pub(crate) process: u32,
    pub(crate) state: Mutex<State>,
}

/// The part of an endpoint that changes, under its lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) talk: Talk,
    pub(crate) ports: Vec<PortState>,
    /// Buffers that each port should have. Count.
    pub(crate) recv_buffers: u32,
    /// Further polls in which datagrams are expected, so that the engine is driven less often. Count.
    pub(crate) datagrams_first: u32,
    pub(crate) done: Vec<Completion>,
    /// Memory that operations use until they end.
    pub(crate) held: HashMap<OpId, HeldMemory>,
    /// Ends of operations that a thread waits for.
    pub(crate) awaited: HashMap<OpId, Option<Result<(), Failure>>>,
    /// Gaps in the order of messages that nothing under way could fill at the last look.
    pub(crate) gaps: Vec<(ConnectionId, u64)>,
    pub(crate) options: EndpointOptions,
    /// A thread may sleep on the bell.
    pub(crate) armed: bool,
    pub(crate) looked_at: Instant,
    pub(crate) counters: EndpointCounters,
}

/// Memory that an operation uses until it ends.
#[derive(Debug)]
#[allow(dead_code, reason = "held, not read")]
pub(crate) enum HeldMemory {
    Bytes(Vec<Bytes>),
    Region(InUse),
}

/// Bit in the contexts of receives, which distinguishes them from other operations.
pub(crate) const RECEIVE: u64 = 1 << 63;
/// Time between two looks at the devices.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// Longest wait of closing until the I/O thread releases the endpoint.
const LET_GO: Duration = Duration::from_secs(1);

impl State {
    /// The number of buffers that a port should have. Messages that wait for writes of their peers do not count, so
    /// that no peer can take all buffers.
    fn buffers_wanted(&self) -> u32 {
        self.recv_buffers + self.talk.held()
    }
}

impl Inner {
    pub(crate) fn now(&self) -> Micros {
        self.epoch.elapsed().as_micros() as Micros
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) || self.process != process_number()
    }

    pub(crate) fn open_state(&self) -> Result<MutexGuard<'_, State>, Error> {
        // After a fork, the lock may be held by a thread that does not exist here.
        if self.process != process_number() {
            return Err(Error::Closed);
        }
        let state = self.state.lock();
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(state) }
    }

    pub(crate) fn name(&self, id: ConnectionId) -> Connection {
        Connection { endpoint: self.serial as u16, id }
    }

    pub(crate) fn id(&self, connection: Connection) -> Result<ConnectionId, Error> {
        if connection.endpoint != self.serial as u16 {
            return Err(Error::Stale("connection"));
        }
        Ok(connection.id)
    }

    /// Opens the socket for datagrams. If the system gives none, or lanes are encrypted, UU messages go by the lanes.
    pub(crate) fn open_datagrams(&self, state: &mut State, at: usize) {
        let Port { device, address, .. } = &self.ports[at];
        let Settings { tls, encrypt, .. } = device.settings();
        if state.ports[at].datagrams.is_some() || *tls == TlsMode::Required || *encrypt == Encrypt::Always {
            return;
        }
        let waiting_max = state.recv_buffers as usize;
        let frames = device.frames();
        state.ports[at].datagrams = Datagrams::open(address.locator.ip(), waiting_max, frames.as_ref())
            .and_then(|datagrams| datagrams.watch(|fd| self.bell.watch(fd)).map(|()| datagrams))
            .ok();
    }

    /// The routes to an endpoint, the best first. With one device and one address, the engine decides.
    pub(crate) fn routes(&self, uri: &str) -> Result<Vec<(usize, Address)>, Error> {
        let addresses = addresses(uri)?;
        if let (1, [address]) = (self.ports.len(), &addresses[..]) {
            return Ok(vec![(0, *address)]);
        }
        let devices: Vec<_> = self.ports.iter().map(|port| &port.device).collect();
        routes(&devices, &addresses)
    }

    /// A peer at this address, in the table of a port.
    pub(crate) fn enter_peer(
        &self,
        state: &mut State,
        port: usize,
        address: &Address,
        level: Level,
    ) -> Result<PeerId, Error> {
        let peer = self.ports[port].engine.peer(address).map_err(|e| Error::Unreachable(e.to_string()))?;
        if !level.is_reliable() {
            self.open_datagrams(state, port);
        }
        peer_at(port, peer)
    }

    /// The address of a peer, from its port's engine.
    pub(crate) fn peer_address(&self, peer: PeerId) -> Address {
        self.ports[port_of(peer)].engine.peer_address(within(peer))
    }

    /// Our UDP port for datagrams with a peer at this address, and the longest message in one. Bytes.
    pub(crate) fn datagrams_with(&self, state: &State, at: usize, address: &Address) -> (u16, u32) {
        let own = &self.ports[at].address;
        let near = (address.as_id, address.subnet) == (own.as_id, own.subnet);
        match &state.ports[at].datagrams {
            Some(datagrams) => (datagrams.port(), if near { datagrams.packet_max() } else { 0 }),
            None => (0, 0),
        }
    }

    /// Whether datagrams, which are not encrypted, may go to this peer. `None` as long as that depends on a round trip
    /// that was not measured yet.
    fn may_go_in_clear(&self, peer: PeerId) -> Option<bool> {
        let Port { device, engine, .. } = &self.ports[port_of(peer)];
        match device.settings().encrypt {
            Encrypt::Never => Some(true),
            Encrypt::Always => Some(false),
            Encrypt::Far => {
                let far = Duration::from_micros(Config::FAR_US);
                engine.round_trip(within(peer)).map(|round_trip| round_trip < far)
            }
        }
    }

    /// Decides whether UU messages of this connection go as datagrams. As long as the peer's distance is not known,
    /// they go by its lanes.
    pub(crate) fn decide_on_datagrams(&self, state: &mut State, id: ConnectionId) {
        let Some(peer) = state.talk.asks_for_datagrams(id) else { return };
        match self.may_go_in_clear(peer) {
            Some(true) => state.talk.allow_datagrams(id),
            Some(false) => state.talk.leave_datagrams(id),
            None => {}
        }
    }

    pub(crate) fn accept(&self, id: ConnectionId, level: Level, context: u64) -> Result<Connection, Error> {
        let mut state = self.open_state()?;
        let peer = state.talk.describe(id).map_err(|_| Error::Stale("request"))?.peer;
        if !level.is_reliable() {
            self.open_datagrams(&mut state, port_of(peer));
        }
        let host = self.host(&state, context, port_of(peer), &self.peer_address(peer))?;
        state.talk.accept(self.now(), id, &host)?;
        self.flush(&mut state);
        Ok(self.name(id))
    }

    pub(crate) fn reject(&self, id: ConnectionId, reason: u32, payload: &[u8]) {
        let Ok(mut state) = self.open_state() else { return };
        // A request whose peer is gone by now needs no answer.
        let _ = state.talk.reject(id, reason, payload);
        self.flush(&mut state);
    }

    /// Takes back a message's buffer from the program.
    pub(crate) fn give_back(&self, port: usize, slot: u32) {
        let Ok(mut state) = self.open_state() else { return };
        self.offer(&mut state, port, slot);
    }

    pub(crate) fn give_back_datagram(&self, port: usize, bytes: Vec<u8>) {
        if let Ok(mut state) = self.open_state()
            && let Some(datagrams) = &mut state.ports[port].datagrams
        {
            datagrams.give_back(bytes);
        }
    }

    /// Adds buffers up to the number that there should be.
    ///
    /// # Errors
    /// [`Error::Memory`] if there are fewer.
    pub(crate) fn fill_buffers(&self, state: &mut State) -> Result<(), Error> {
        for port in 0..self.ports.len() {
            for _ in state.ports[port].buffers.count()..state.buffers_wanted() {
                let slot = state.ports[port].buffers.add().ok_or(Error::Memory(
                    "the system has not got the memory for as many buffers; lower recv_buffers or message_max",
                ))?;
                self.offer(state, port, slot);
            }
        }
        Ok(())
    }

    /// Lends a buffer to its engine, or frees it if there are too many.
    pub(crate) fn offer(&self, state: &mut State, port: usize, slot: u32) {
        let wanted = state.buffers_wanted();
        let buffers = &mut state.ports[port].buffers;
        // If the engine does not take it, the endpoint is closing.
        if buffers.count() > wanted || self.post_buffer(port, buffers, slot).is_err() {
            buffers.remove(slot);
        }
    }

    /// Carries out what the conversation asks for.
    pub(crate) fn flush(&self, state: &mut State) {
        while let Some(post) = state.talk.poll_post() {
            match post {
                Post::Drop(parcel) => self.drop_parcel(state, parcel),
                Post::Disown { op, peer } => {
                    let now = self.now();
                    match self.ports[port_of(peer)].engine.disown(op.to_bits()) {
                        true => state.talk.disowned(op),
                        false => state.talk.not_disowned(now, op),
                    }
                }
                Post::Message { op, peer, tag, data, bytes } => {
                    let posted = self.post_copy(op, peer, tag, data, &bytes);
                    self.note_posted(state, op, posted);
                }
                Post::Ping { op, peer } => {
                    let posted = self.post_ping(op, peer);
                    self.note_posted(state, op, posted);
                }
            }
        }
        if state.armed && state.talk.has_news() {
            self.bell.ring();
        }
    }

    /// Ends an operation at once that the engine did not take.
    pub(crate) fn note_posted(&self, state: &mut State, op: OpId, posted: Result<(), isthmus_io::PostError>) {
        if let Err(error) = posted {
            let error = isthmus_proto::OpError::Unreachable(error.to_string());
            let now = self.now();
            state.talk.withdraw(now, op, &error);
        }
    }

    pub(crate) fn drop_parcel(&self, state: &mut State, parcel: Parcel) {
        match Slot::from_bits(parcel.slot) {
            Slot::Lent { port, slot } => self.offer(state, port, slot),
            Slot::Datagram { port, slot } => {
                if let Some(datagrams) = &mut state.ports[port].datagrams {
                    let bytes = datagrams.take(slot);
                    datagrams.give_back(bytes);
                }
            }
        }
    }

    /// Remembers that a thread waits for an operation's end.
    pub(crate) fn await_op(&self, state: &mut State, op: OpId) {
        state.awaited.insert(op, None);
    }

    /// The description of this end, for a connection with a peer by one of the ports.
    pub(crate) fn host(
        &self,
        state: &State,
        context: u64,
        port: usize,
        peer: &Address,
    ) -> Result<Host, Error> {
        let (udp_port, packet_max) = self.datagrams_with(state, port, peer);
        Ok(Host {
            context,
            token: token()?,
            udp_port,
            packet_max,
            send_timeout_us: micros(state.options.send_timeout),
            keepalive_us: micros(state.options.keepalive),
        })
    }

    pub(crate) fn close(&self) {
        if self.process != process_number() {
            return;
        }
        {
            let mut state = self.state.lock();
            if self.closed.swap(true, Ordering::AcqRel) {
                return;
            }
            state.talk.say_goodbye();
            self.flush(&mut state);
        }
        std::thread::scope(|scope| {
            // Each port delivers what was sent, for at most its own `linger`.
            let mut own = vec![&self.ports[0]];
            for port in &self.ports[1..] {
                let thread = std::thread::Builder::new().spawn_scoped(scope, || port.engine.close());
                // Without a thread they close one after the other.
                own.extend(thread.is_err().then_some(port));
            }
            own.iter().for_each(|port| port.engine.close());
        });
        let mut state = self.state.lock();
        state.held.clear();
        // The I/O thread may be driving the endpoint.
        let start = Instant::now();
        for (port, changing) in self.ports.iter().zip(&mut state.ports) {
            while Arc::strong_count(&port.engine) > 1 {
                if start.elapsed() > LET_GO {
                    changing.buffers.leak();
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        self.bell.ring();
    }
}

pub(crate) fn token() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| Error::System(error.to_string()))
}

pub(crate) fn micros(time: Duration) -> Micros {
    u64::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}

#[cfg(test)]
mod tests {
    use crate::{Endpoint, EndpointOptions, Level, Substrate};

    /// Datagrams are not encrypted, so there are none where all is to be.
    #[test]
    fn an_endpoint_that_encrypts_everything_takes_no_datagrams() {
        for (encrypt, takes) in [("far", true), ("never", true), ("always", false)] {
            let text = format!("[device]\ninterface = \"127.0.0.1\"\nencrypt = \"{encrypt}\"\n");
            let substrate = Substrate::from_toml(&text, "test").expect("valid");
            let device = substrate.default_device().expect("up");
            let endpoint = Endpoint::create(device, &EndpointOptions::default()).expect("loopback");
            let inner = &endpoint.inner;
            let mut state = inner.open_state().expect("open");
            inner.open_datagrams(&mut state, 0);
            assert_eq!(state.ports[0].datagrams.is_some(), takes, "{encrypt}");
        }
    }

    /// A peer that was never spoken to may be far.
    #[test]
    fn no_datagrams_go_in_clear_to_a_peer_of_unknown_distance() {
        for (encrypt, goes) in [("far", None), ("never", Some(true)), ("always", Some(false))] {
            let text = format!("[device]\ninterface = \"127.0.0.1\"\nencrypt = \"{encrypt}\"\n");
            let substrate = Substrate::from_toml(&text, "test").expect("valid");
            let create = || {
                let device = substrate.default_device().expect("up");
                Endpoint::create(device, &EndpointOptions::default()).expect("loopback")
            };
            let (a, b) = (create(), create());
            let (port, address) = a.inner.routes(&b.uri()).expect("near")[0];
            let mut state = a.inner.open_state().expect("open");
            let peer = a.inner.enter_peer(&mut state, port, &address, Level::Uu).expect("near");
            assert_eq!(a.inner.may_go_in_clear(peer), goes, "{encrypt}");
        }
    }
}
