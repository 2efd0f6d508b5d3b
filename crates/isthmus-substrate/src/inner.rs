//! What is behind an endpoint: the conversation, the engine, and how news go between them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_io::{Endpoint as Engine, RegionTable, TlsMode};
use isthmus_proto::{Completion, Micros};
use isthmus_wire::Address;
use isthmus_wire::conversation::ConnectionId;
use parking_lot::{Mutex, MutexGuard};

use crate::bell::Bell;
use crate::buffers::Buffers;
use crate::datagrams::Datagrams;
use crate::event::{Connection, Data, Event, Message, Request};
use crate::memory::InUse;
use crate::talk::{Host, News, OpId, Parcel, Post, Talk};
use crate::{Device, EndpointCounters, EndpointOptions, Error, Failure, Level};

/// What an endpoint shares with the events that hold its buffers.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) serial: u32,
    pub(crate) address: Address,
    pub(crate) device: Device,
    pub(crate) engine: Arc<Engine>,
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
    pub(crate) buffers: Buffers,
    /// How many buffers there are to be.
    pub(crate) recv_buffers: u32,
    pub(crate) datagrams: Option<Datagrams>,
    /// Polls for which datagrams are still expected, and the engine is turned less often.
    pub(crate) datagrams_first: u32,
    pub(crate) done: Vec<Completion>,
    /// What operations use until they end.
    pub(crate) held: HashMap<OpId, Held>,
    /// Ends of operations that a thread waits for.
    pub(crate) awaited: HashMap<OpId, Option<Result<(), Failure>>>,
    pub(crate) options: EndpointOptions,
    /// Somebody may sleep on the bell.
    pub(crate) armed: bool,
    pub(crate) device_up: bool,
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

/// Slots of datagrams have this bit.
const DATAGRAM_SLOT: u32 = 1 << 31;
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
    /// How many buffers there are to be: for messages that wait for writes of their peers
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
    pub(crate) fn open_datagrams(&self, state: &mut State) {
        if state.datagrams.is_some() || self.device.settings().tls == TlsMode::Required {
            return;
        }
        let waiting_max = state.recv_buffers as usize;
        let frames = self.device.frames();
        let opened = Datagrams::open(self.address.locator.ip(), waiting_max, frames.as_ref())
            .and_then(|datagrams| datagrams.watch(|fd| self.bell.watch(fd)).map(|()| datagrams));
        if let Ok(datagrams) = opened {
            let limits = state.talk.limits_mut();
            (limits.udp_port, limits.packet_max) = (datagrams.port(), datagrams.packet_max());
            state.datagrams = Some(datagrams);
        }
    }

    pub(crate) fn accept(&self, id: ConnectionId, level: Level, context: u64) -> Result<Connection, Error> {
        let mut state = self.open_state()?;
        if level == Level::Uu {
            self.open_datagrams(&mut state);
        }
        let peer = state.talk.describe(id).map_err(|_| Error::Stale("request"))?.peer;
        let host = self.host(&state, context, &self.engine.peer_address(peer))?;
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
    pub(crate) fn give_back(&self, slot: u32) {
        let Ok(mut state) = self.open_state() else { return };
        self.offer(&mut state, slot);
    }

    pub(crate) fn give_back_datagram(&self, bytes: Vec<u8>) {
        if let Ok(mut state) = self.open_state()
            && let Some(datagrams) = &mut state.datagrams
        {
            datagrams.give_back(bytes);
        }
    }

    pub(crate) fn fill_buffers(&self, state: &mut State) {
        for _ in state.buffers.count()..state.buffers_wanted() {
            let slot = state.buffers.add();
            self.offer(state, slot);
        }
    }

    /// Lends a buffer to the engine, or frees it where there are too many.
    pub(crate) fn offer(&self, state: &mut State, slot: u32) {
        if state.buffers.count() > state.buffers_wanted() {
            return state.buffers.remove(slot);
        }
        if self.post_buffer(&state.buffers, slot).is_err() {
            state.buffers.remove(slot); // the endpoint closes
        }
    }

    /// Does what the conversation asks.
    pub(crate) fn flush(&self, state: &mut State) {
        while let Some(post) = state.talk.poll_post() {
            match post {
                Post::Drop(parcel) => self.drop_parcel(state, parcel),
                Post::Disown { op } => {
                    let now = self.now();
                    match self.engine.disown(op.to_bits()) {
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
        if parcel.slot & DATAGRAM_SLOT == 0 {
            return self.offer(state, parcel.slot);
        }
        if let Some(datagrams) = &mut state.datagrams {
            let bytes = datagrams.take(parcel.slot & !DATAGRAM_SLOT);
            datagrams.give_back(bytes);
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
            self.turn_engine(state, now);
        }
        if state.talk.poll_timeout().is_some_and(|at| at <= now) {
            state.talk.handle_timeout(now);
        }
        self.look_at_device(state);
        self.flush(state);
    }

    pub(crate) fn turn_engine(&self, state: &mut State, now: Micros) {
        let mut done = std::mem::take(&mut state.done);
        let beside = state.datagrams.as_ref().map(Datagrams::as_fd);
        if self.engine.poll_beside(&mut done, beside) > 0 {
            for completion in done.drain(..) {
                self.take_completion(state, now, &completion);
            }
        }
        state.done = done;
        while let Some((peer, error)) = self.engine.poll_lost() {
            state.talk.on_lost(peer, &error);
        }
    }

    pub(crate) fn take_datagrams(&self, state: &mut State, now: Micros) {
        let State { datagrams: Some(datagrams), talk, .. } = state else { return };
        // As many as may wait; more are the kernel's to keep or drop.
        while let Some((header, slot, len)) = datagrams.receive() {
            let parcel = Parcel { slot: slot | DATAGRAM_SLOT, len };
            if !talk.on_datagram(now, header, parcel) {
                let bytes = datagrams.take(slot);
                datagrams.give_back(bytes);
            }
            if talk.has_news() {
                state.datagrams_first = DATAGRAM_POLLS;
                self.engine.note_found();
                return;
            }
        }
    }

    pub(crate) fn look_at_device(&self, state: &mut State) {
        if state.looked_at.elapsed() < LOOK {
            return;
        }
        state.looked_at = Instant::now();
        let up = self.device.has_address(self.address.locator.ip());
        if std::mem::replace(&mut state.device_up, up) && !up {
            state.talk.device_failed();
        }
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
                let peer = state.talk.describe(link).map(|d| self.engine.peer_address(d.peer).to_string());
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
            News::DeviceFailed => Event::DeviceFailed {
                why: format!(
                    "the address {} has left the host; bring interface {} up again",
                    self.address.locator.ip(),
                    self.device.interface()
                ),
            },
            News::KeepaliveExpired { link, context } => {
                Event::KeepaliveExpired { connection: self.name(link), context }
            }
        }
    }

    pub(crate) fn data(&self, state: &mut State, parcel: Parcel) -> Data {
        if parcel.slot & DATAGRAM_SLOT == 0 {
            let at = state.buffers.address(parcel.slot);
            return Data::Slot { at, len: parcel.len as usize, slot: parcel.slot };
        }
        let slot = parcel.slot & !DATAGRAM_SLOT;
        Data::Own(state.datagrams.as_mut().map(|datagrams| datagrams.take(slot)).unwrap_or_default())
    }

    /// Remembers that a thread waits for an operation's end.
    pub(crate) fn await_op(&self, state: &mut State, op: OpId) {
        state.awaited.insert(op, None);
    }

    /// Where datagrams to a peer at this address go.
    pub(crate) fn datagram_target(ip: IpAddr, port: u16) -> SocketAddr {
        SocketAddr::new(ip, port)
    }

    /// This end of a connection with a peer.
    pub(crate) fn host(&self, state: &State, context: u64, peer: &Address) -> Result<Host, Error> {
        Ok(Host {
            context,
            token: token()?,
            near: (peer.as_id, peer.subnet) == (self.address.as_id, self.address.subnet),
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
        self.engine.close();
        let mut state = self.state.lock();
        state.held.clear();
        // The I/O thread may be in the middle of a turn.
        let start = Instant::now();
        while Arc::strong_count(&self.engine) > 1 {
            if start.elapsed() > LET_GO {
                state.buffers.leak();
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
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
