//! What is behind an endpoint: the conversation, the engine, and how news go between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_io::{RegionTable, TlsMode};
use isthmus_proto::{Completion, Micros, PeerId};
use isthmus_wire::Address;
use isthmus_wire::conversation::ConnectionId;
use parking_lot::{Mutex, MutexGuard};

use crate::bell::Bell;
use crate::datagrams::Datagrams;
use crate::event::{Connection, Data, Event, Message, Request};
use crate::memory::InUse;
use crate::ports::{Port, PortState, Slot, peer_at, port_of, within};
use crate::route::{addresses, ways};
use crate::talk::{Host, News, OpId, Parcel, Post, Talk};
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
    /// The process that opened it; others have only a copy.
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
/// For so many polls after a datagram the engine is turned at each eighth only.
const DATAGRAM_POLLS: u32 = 255;
const DATAGRAM_TURNS: u32 = 8;
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
        self.closed.load(Ordering::Acquire) || self.process != std::process::id()
    }

    pub(crate) fn open_state(&self) -> Result<MutexGuard<'_, State>, Error> {
        // After a fork nobody might ever unlock it.
        if self.process != std::process::id() {
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
        if level == Level::Uu {
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
        if level == Level::Uu {
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

    pub(crate) fn fill_buffers(&self, state: &mut State) {
        for port in 0..self.ports.len() {
            for _ in state.ports[port].buffers.count()..state.buffers_wanted() {
                let slot = state.ports[port].buffers.add();
                self.offer(state, port, slot);
            }
        }
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

    /// Takes in what has come, and does what is due.
    pub(crate) fn progress(&self, state: &mut State) {
        if state.armed {
            // The engine no longer rings: who sleeps must look, and arm again.
            state.armed = false;
            self.bell.ring();
            state.datagrams_first = 0;
        }
        let now = self.now();
        self.take_datagrams(state, now);
        state.datagrams_first = state.datagrams_first.saturating_sub(1);
        if state.datagrams_first.is_multiple_of(DATAGRAM_TURNS) {
            self.turn_engines(state, now);
            self.look_around(state);
        }
        if state.talk.poll_timeout().is_some_and(|at| at <= now) {
            state.talk.handle_timeout(now);
        }
        self.flush(state);
    }

    fn turn_engines(&self, state: &mut State, now: Micros) {
        let mut done = std::mem::take(&mut state.done);
        let mut found = None;
        for (at, port) in self.ports.iter().enumerate() {
            let beside = match self.ports.len() {
                1 => state.ports[at].datagrams.as_ref().map(Datagrams::as_fd),
                _ => Some(self.bell.beside()),
            };
            if port.engine.poll_beside(&mut done, beside) > 0 {
                found = Some(at);
                for completion in done.drain(..) {
                    self.take_completion(state, now, at, &completion);
                }
            }
            while let Some((peer, error)) = port.engine.poll_lost() {
                if let Ok(peer) = peer_at(at, peer) {
                    state.talk.on_lost(peer, &error);
                }
            }
        }
        state.done = done;
        if let Some(found) = found {
            self.note_found(Some(found));
        }
    }

    /// Prepares to sleep on the bell; false where an engine has news.
    pub(crate) fn arm_engines(&self) -> bool {
        self.ports.iter().all(|port| port.engine.arm())
    }

    /// Polls of the other ports are not in vain.
    fn note_found(&self, by: Option<usize>) {
        for (at, port) in self.ports.iter().enumerate() {
            if by != Some(at) {
                port.engine.note_found();
            }
        }
    }

    fn take_datagrams(&self, state: &mut State, now: Micros) {
        for port in 0..self.ports.len() {
            let State { ports, talk, .. } = state;
            let Some(datagrams) = &mut ports[port].datagrams else { continue };
            // As many as may wait; more are the kernel's to keep or drop.
            while let Some((header, slot, len)) = datagrams.receive() {
                let parcel = Parcel { slot: Slot::Datagram { port, slot }.to_bits(), len };
                if !talk.on_datagram(now, header, parcel) {
                    let bytes = datagrams.take(slot);
                    datagrams.give_back(bytes);
                }
                if talk.has_news() {
                    state.datagrams_first = DATAGRAM_POLLS;
                    return self.note_found(None);
                }
            }
        }
    }

    /// Looks at the devices and at gaps in the order of messages, now and then. All that has
    /// come is with the conversation.
    fn look_around(&self, state: &mut State) {
        if state.looked_at.elapsed() < LOOK {
            return;
        }
        state.looked_at = Instant::now();
        for (at, port) in self.ports.iter().enumerate() {
            let up = port.device.has_address(port.address.locator.ip());
            if std::mem::replace(&mut state.ports[at].up, up) && !up {
                state.talk.device_failed(at);
            }
        }
        // Messages are matched in the order in which they were sent: where none of the peer is
        // on its way, what is missing before a message that is here now will never come. It
        // may have come since the turn: so a gap must still be there at the next look.
        for (link, place) in std::mem::take(&mut state.gaps) {
            state.talk.cut_gap(link, place);
        }
        let receiving = |peer| self.ports[port_of(peer)].engine.is_receiving(within(peer));
        state.gaps = state.talk.gaps(|peer| !receiving(peer));
    }

    /// Sets aside the ends that threads wait for.
    pub(crate) fn pass_news(&self, state: &mut State) {
        if state.awaited.is_empty() {
            return;
        }
        let State { talk, awaited, .. } = state;
        talk.take_ends(|op, end| match awaited.get_mut(&op) {
            Some(slot) => {
                *slot = Some(end.clone());
                true
            }
            None => false,
        });
    }

    pub(crate) fn next_event(self: &Arc<Self>, state: &mut State) -> Option<Event> {
        self.pass_news(state);
        let news = state.talk.poll_news()?;
        Some(self.shape(state, news))
    }

    pub(crate) fn shape(self: &Arc<Self>, state: &mut State, news: News) -> Event {
        match news {
            News::Requested { link, level, payload } => {
                let peer = state.talk.describe(link).map(|d| self.peer_address(d.peer).to_string());
                let (inner, peer) = (self.clone(), peer.unwrap_or_default());
                Event::Requested(Request { inner, id: link, level, payload, peer, decided: false })
            }
            News::Connected { link, context, end: Ok(()), .. } => {
                Event::Connected { connection: self.name(link), context }
            }
            News::Connected { context, end: Err(why), payload, .. } => {
                Event::ConnectFailed { context, why, payload }
            }
            News::Accepted { link, context, end: Ok(()) } => {
                Event::Accepted { connection: self.name(link), context }
            }
            News::Accepted { context, end: Err(why), .. } => Event::AcceptFailed { context, why },
            News::Received { link, context, parcel } => {
                state.counters.received += 1;
                let data = self.data(state, parcel);
                Event::Received(Message { inner: self.clone(), connection: self.name(link), context, data })
            }
            News::Sent { link, context, word, end, .. } => {
                Event::Sent { connection: self.name(link), context, operation: word, end }
            }
            News::Disconnected { link, context, why } => {
                Event::Disconnected { connection: self.name(link), context, why }
            }
            News::DeviceFailed { port } => {
                let Port { device, address, .. } = &self.ports[port];
                let (name, ip, interface) = (device.name(), address.locator.ip(), device.interface());
                let why = format!(
                    "device {name}: the address {ip} has left the host; bring interface {interface} up again"
                );
                Event::DeviceFailed { why }
            }
            News::KeepaliveExpired { link, context } => {
                Event::KeepaliveExpired { connection: self.name(link), context }
            }
        }
    }

    fn data(&self, state: &mut State, parcel: Parcel) -> Data {
        match Slot::from_bits(parcel.slot) {
            Slot::Lent { port, slot } => {
                let at = state.ports[port].buffers.address(slot);
                Data::Slot { at, len: parcel.len as usize, port, slot }
            }
            Slot::Datagram { port, slot } => {
                let taken = state.ports[port].datagrams.as_mut().map(|datagrams| datagrams.take(slot));
                Data::Own { bytes: taken.unwrap_or_default(), port }
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
        if self.process != std::process::id() {
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
