//! What is behind an endpoint: the conversation, the engine, and how news go between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_io::{RegionTable, TlsMode, process_number};
use isthmus_proto::{Completion, Micros, PeerId};
use isthmus_wire::Address;
use isthmus_wire::conversation::ConnectionId;
use parking_lot::{Mutex, MutexGuard};

use crate::bell::Bell;
use crate::datagrams::Datagrams;
use crate::event::Connection;
use crate::memory::InUse;
use crate::ports::{Port, PortState, Slot, peer_at, port_of, within};
use crate::route::{addresses, ways};
use crate::talk::{Host, OpId, Parcel, Post, Talk};
use crate::{EndpointCounters, EndpointOptions, Error, Failure, Level};

/// What an endpoint shares with the events that hold its buffers.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) serial: u32,
    /// Its places, those of the highest priority first; never none.
    pub(crate) ports: Vec<Port>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) bell: Bell,
    pub(crate) epoch: Instant,
    pub(crate) closed: AtomicBool,
    /// The process that opened it, by [`process_number`]; others have only a copy.
    pub(crate) process: u32,
    pub(crate) state: Mutex<State>,
}

/// What changes.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) talk: Talk,
    pub(crate) ports: Vec<PortState>,
    /// How many buffers each port is to have.
    pub(crate) recv_buffers: u32,
    /// Polls for which datagrams are still expected, and the engine is turned less often.
    pub(crate) datagrams_first: u32,
    pub(crate) done: Vec<Completion>,
    /// What operations use until they end.
    pub(crate) held: HashMap<OpId, Held>,
    /// Ends of operations that a thread waits for.
    pub(crate) awaited: HashMap<OpId, Option<Result<(), Failure>>>,
    /// Gaps in the order of messages that nothing on its way would fill at the last look.
    pub(crate) gaps: Vec<(ConnectionId, u64)>,
    pub(crate) options: EndpointOptions,
    /// Somebody may sleep on the bell.
    pub(crate) armed: bool,
    pub(crate) looked_at: Instant,
    pub(crate) counters: EndpointCounters,
}

/// What an operation uses until it ends.
#[derive(Debug)]
#[allow(dead_code, reason = "held, not read")]
pub(crate) enum Held {
    Bytes(Vec<Bytes>),
    Region(InUse),
}

/// Contexts of receives have this bit.
pub(crate) const RECEIVE: u64 = 1 << 63;
/// How often the device is looked at.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// How long closing waits for the I/O thread to let go.
const LET_GO: Duration = Duration::from_secs(1);

impl State {
    /// How many buffers a port is to have: for messages that wait for writes of their peers
    /// there are others, so that nobody can take all.
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
        // After a fork nobody might ever unlock it.
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

    /// A socket for datagrams, where the system gives one: without it, and where lanes are
    /// encrypted, they go by the lanes.
    pub(crate) fn open_datagrams(&self, state: &mut State, at: usize) {
        let Port { device, address, .. } = &self.ports[at];
        if state.ports[at].datagrams.is_some() || device.settings().tls == TlsMode::Required {
            return;
        }
        let waiting_max = state.recv_buffers as usize;
        let frames = device.frames();
        state.ports[at].datagrams = Datagrams::open(address.locator.ip(), waiting_max, frames.as_ref())
            .and_then(|datagrams| datagrams.watch(|fd| self.bell.watch(fd)).map(|()| datagrams))
            .ok();
    }

    /// The ways to an endpoint, the best first. What has one device and one address leaves
    /// the judgement to the engine.
    pub(crate) fn ways(&self, uri: &str) -> Result<Vec<(usize, Address)>, Error> {
        let addresses = addresses(uri)?;
        if let (1, [address]) = (self.ports.len(), &addresses[..]) {
            return Ok(vec![(0, *address)]);
        }
        let devices: Vec<_> = self.ports.iter().map(|port| &port.device).collect();
        ways(&devices, &addresses)
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

    /// What is told of a peer by its port: where its endpoint is.
    pub(crate) fn peer_address(&self, peer: PeerId) -> Address {
        self.ports[port_of(peer)].engine.peer_address(within(peer))
    }

    /// What datagrams with a peer at this address go by: our port, and the longest of them.
    pub(crate) fn datagrams_with(&self, state: &State, at: usize, address: &Address) -> (u16, u32) {
        let own = &self.ports[at].address;
        let near = (address.as_id, address.subnet) == (own.as_id, own.subnet);
        match &state.ports[at].datagrams {
            Some(datagrams) => (datagrams.port(), if near { datagrams.packet_max() } else { 0 }),
            None => (0, 0),
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
        // One that is gone meanwhile needs no answer.
        let _ = state.talk.reject(id, reason, payload);
        self.flush(&mut state);
    }

    /// A message's buffer comes back from the program.
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

    /// Makes as many buffers as there are to be.
    ///
    /// # Errors
    /// [`Error::Memory`] where there are fewer now.
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

    /// Lends a buffer to its engine, or frees it where there are too many.
    pub(crate) fn offer(&self, state: &mut State, port: usize, slot: u32) {
        let wanted = state.buffers_wanted();
        let buffers = &mut state.ports[port].buffers;
        // Not taken: the endpoint closes.
        if buffers.count() > wanted || self.post_buffer(port, buffers, slot).is_err() {
            buffers.remove(slot);
        }
    }

    /// Does what the conversation asks.
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

    /// What the engine did not take ends at once.
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

    /// This end of a connection with a peer, by one of the ports.
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
            // Each delivers what was sent, and no longer than its own time for that.
            for port in &self.ports[1..] {
                scope.spawn(|| port.engine.close());
            }
            self.ports[0].engine.close();
        });
        let mut state = self.state.lock();
        state.held.clear();
        // The I/O thread may be in the middle of a turn.
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
