//! All streams of one UDP socket: finds a packet's stream, decides who may open one, and chooses who sends next.

mod config;
mod ended;
mod hosts;
mod too_long;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use isthmus_ledger::{Kind, Ledger, PathKey};
use slab::Slab;

use crate::Micros;
use crate::intake::Intake;
use crate::path::Learned;
use crate::protection::{Initial, Protection, Sealing, Session, without_checksum};
use crate::receiving::Hold;
use crate::spec::Composition;
use crate::stream::{Failure, Guard, Incoming, Stream, Trust};
use crate::token::Mint;
use crate::wire::{ConnectionId, Header, Packet, Token};

pub use config::{GUEST_GAP, GUESTS_MAX, GUESTS_MEMORY, PORT_MEMORY, PortConfig};
use ended::EndedStreams;
use hosts::Hosts;

/// Most Challenge and Reset packets that wait to be sent. Count; further ones are dropped.
const ANSWERS_MAX: usize = 64;
/// Another process's capacity measurement is used if the path's round trip is below this. Microseconds (50 ms).
const TOLD_RTT_US: Micros = 50_000;
/// Time in which a peer must validate its address. Microseconds (5 s).
const STRANGER_US: Micros = 5_000_000;
/// Time in which an ended stream answers the peer's retransmissions and repeats its own end. Microseconds (1 s).
const LINGER_US: Micros = 1_000_000;
/// Time in which the peer may end its direction of a released stream, and in which a guest may acknowledge what was
/// written before its release. Microseconds (10 s).
const SHUTDOWN_US: Micros = 10_000_000;
/// Most sessions that wait for their stream. Count; a further one replaces the oldest.
const EXPECTED_MAX: usize = 1_024;
/// Time for which a session waits for its stream. Microseconds (30 s).
const EXPECTED_US: Micros = 30_000_000;
/// Wait before a stream that was due and sent nothing is looked at again. Microseconds (1 ms).
const IDLE_US: Micros = 1_000;

/// Identifies a stream of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(ConnectionId);

/// An event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer opened the stream.
    Accepted(StreamId, SocketAddr),
    /// The peer answered.
    Opened(StreamId),
    /// There is something to read, or the peer ended its direction.
    Readable(StreamId),
    /// There is room again after a write that found too little.
    Writable(StreamId),
    /// The stream failed.
    Failed(StreamId, Failure),
}

/// Packets to one address: all of `segment` bytes, except that the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Destination of the packets.
    pub to: SocketAddr,
    /// Bytes of all packets.
    pub len: usize,
    /// Bytes of each packet.
    pub segment: usize,
}

/// Counts of packets that were ignored. Duplicates are in [`crate::Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Packets that are not ours, or truncated.
    pub garbled: u64,
    /// Packets of no stream, or not from the address of its peer. They opened no stream either.
    pub strange: u64,
    /// Packets that failed authentication.
    pub forged: u64,
    /// Packets with a wrong checksum.
    pub damaged: u64,
}

/// A session within which a peer may open a stream.
#[derive(Debug)]
struct Expected {
    session: Session,
    host: IpAddr,
    since: Micros,
}

#[derive(Debug)]
struct Entry {
    stream: Stream,
    /// The session's label; 0 without a session.
    label: u64,
    peer: SocketAddr,
    /// The id by which the peer opened the stream.
    opened_by: Option<ConnectionId>,
    since: Micros,
    due: Option<(Micros, u64)>,
    stranger: bool,
    /// The peer has not proved to the application who it is.
    guest: bool,
    /// Memory of unread data. Bytes.
    memory: usize,
    /// When the application released the stream.
    released: Option<Micros>,
    wants_room: bool,
    told_readable: bool,
    told_open: bool,
    told_failed: bool,
}

impl Entry {
    /// Whether the stream goes on with packets from this address, if this one opens: a NAT that has forgotten the
    /// peer's mapping gives it another port of the same host (RFC 9000, 9.3.3). Only keys that nobody but the peer has
    /// tell who it is, and only the newest packet where it is, since a repeated one may come from anywhere.
    fn may_move(&self, from: SocketAddr, packet: &Incoming<'_>) -> bool {
        let proves = matches!(packet.header, Header::Data { keyed, .. } if self.stream.proves_peer(keyed));
        proves && self.peer.ip() == from.ip() && self.stream.is_newest(packet.number)
    }

    /// Whether a released stream need not wait longer to deliver its data: it has failed, or the peer has ended its
    /// direction too and may be gone.
    fn may_end_soon(&self) -> bool {
        self.stream.failure().is_some() || self.stream.has_heard_all()
    }
}

/// The streams of one socket; the module's text says what it does.
#[derive(Debug)]
pub struct Port {
    config: PortConfig,
    mint: Mint,
    streams: Slab<Entry>,
    by_id: HashMap<ConnectionId, usize>,
    by_opener: HashMap<(SocketAddr, ConnectionId), usize>,
    /// When each stream is next looked at. Streams of the same time are in the order of their turns.
    due: BTreeSet<(Micros, u64, usize)>,
    turn: u64,
    strangers: usize,
    guests: usize,
    /// Guests that the application has released, the first one first. Some of them may have ended since.
    released_guests: VecDeque<ConnectionId>,
    /// Memory of unread data of all guests. Bytes.
    guests_memory: usize,
    /// Memory of unread data of all streams. Bytes.
    memory: usize,
    answers: VecDeque<(SocketAddr, Packet)>,
    events: VecDeque<Event>,
    hosts: Hosts,
    ended: EndedStreams,
    expected: HashMap<Token, Expected>,
    dropped: Dropped,
    intake: Intake,
    /// Ledger of this host's flows, and the address that our packets leave by.
    ledger: Option<(Ledger, IpAddr)>,
}

impl Port {
    /// Makes a port. `key` must be random and secret: ids and tokens are derived from it.
    pub fn new(config: PortConfig, key: [u8; 16]) -> Self {
        Self {
            config,
            mint: Mint::new(key),
            streams: Slab::new(),
            by_id: HashMap::new(),
            by_opener: HashMap::new(),
            due: BTreeSet::new(),
            turn: 0,
            strangers: 0,
            guests: 0,
            released_guests: VecDeque::new(),
            guests_memory: 0,
            memory: 0,
            answers: VecDeque::new(),
            events: VecDeque::new(),
            hosts: Hosts::default(),
            ended: EndedStreams::default(),
            expected: HashMap::new(),
            dropped: Dropped::default(),
            intake: Intake::default(),
            ledger: None,
        }
    }

    /// From now on, streams share a path with other flows of this host, as the ledger plans. Packets leave by the
    /// address `from`. The ledger must use the clock of this port.
    pub fn share(&mut self, ledger: Ledger, from: IpAddr) {
        self.ledger = Some((ledger, from));
    }

    /// Opens a stream. Data that is written before the next transmission goes out with the first flight.
    pub fn open(&mut self, now: Micros, to: SocketAddr) -> StreamId {
        self.open_with(now, to, Guard::None)
    }

    /// Opens an encrypted stream to an acceptor that demands this secret ([`PortConfig::initial`]).
    pub fn open_known(&mut self, now: Micros, to: SocketAddr, initial: &Initial) -> StreamId {
        self.open_with(now, to, Guard::Address(initial))
    }

    /// Opens an encrypted stream within a session, which the other end expects. A session is good for one stream, never
    /// for a second one.
    pub fn open_within(&mut self, now: Micros, to: SocketAddr, session: &Session) -> StreamId {
        self.open_with(now, to, Guard::Session(session))
    }

    fn open_with(&mut self, now: Micros, to: SocketAddr, guard: Guard<'_>) -> StreamId {
        let learned = self.learned(now, to.ip());
        let id = self.mint.draw();
        let stream = Stream::open(now, self.config.stream.clone(), id, learned.as_ref(), guard);
        let label = if let Guard::Session(session) = guard { session.label } else { 0 };
        self.enter(now, stream, to, (None, label));
        StreamId(id)
    }

    /// From now on, a peer without a session must know this secret to open a stream ([`PortConfig::initial`]).
    pub fn admit(&mut self, initial: Initial) {
        self.config.initial = Some(initial);
    }

    /// From now on, for 30 s, `host` may open a stream within this session.
    pub fn expect(&mut self, now: Micros, host: IpAddr, session: Session) {
        self.expected.retain(|_, expected| now < expected.since + EXPECTED_US);
        if self.expected.len() >= EXPECTED_MAX {
            let oldest = self.expected.iter().min_by_key(|(_, expected)| expected.since);
            oldest.map(|(token, _)| *token).map(|token| self.expected.remove(&token));
        }
        self.expected.insert(session.token, Expected { session, host, since: now });
    }

    /// The other end of a stream has proved to the application who it is.
    pub fn admit_stream(&mut self, id: StreamId) {
        if let Some(&key) = self.by_id.get(&id.0) {
            let entry = &mut self.streams[key];
            if std::mem::take(&mut entry.guest) {
                self.guests -= 1;
                self.guests_memory -= entry.memory;
            }
        }
    }

    /// Memory of unread data of all streams. Bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Memory of unread data of all guests. Bytes.
    pub fn guests_memory(&self) -> usize {
        self.guests_memory
    }

    /// Updates the memory of a stream that received or read data. The caller must refresh the stream.
    fn update_memory(&mut self, now: Micros, key: usize) {
        let entry = &mut self.streams[key];
        let mut memory = entry.stream.received_memory();
        if memory > entry.memory && self.memory > self.config.memory_max / 2 {
            entry.stream.trim_received();
            memory = entry.stream.received_memory();
        }
        let guest = entry.guest;
        self.set_memory(key, memory);
        if !guest || self.guests_memory <= self.config.guests_memory {
            return;
        }
        let guests = self.streams.iter().filter(|(_, entry)| entry.guest);
        let Some(largest) = guests.max_by_key(|(_, entry)| entry.memory).map(|(key, _)| key) else { return };
        self.streams[largest].stream.shed();
        self.set_memory(largest, 0);
        if largest != key {
            self.refresh(now, largest);
        }
    }

    fn set_memory(&mut self, key: usize, memory: usize) {
        let entry = &mut self.streams[key];
        let before = std::mem::replace(&mut entry.memory, memory);
        self.memory = self.memory - before + memory;
        if entry.guest {
            self.guests_memory = self.guests_memory - before + memory;
        }
    }

    /// Limit on the data of a stream's next packet.
    fn hold(&self, key: usize) -> Hold {
        let entry = &self.streams[key];
        if entry.guest {
            return Hold::Gap(self.config.guest_gap);
        }
        let half = self.config.memory_max / 2;
        let is_over = self.memory > half && entry.stream.received_held() > half / self.streams.len();
        if is_over { Hold::Little } else { Hold::All }
    }

    /// The label of the session within which a stream was opened; 0 if there is none.
    pub fn label(&self, id: StreamId) -> u64 {
        self.by_id.get(&id.0).map_or(0, |key| self.streams[*key].label)
    }

    /// Counts of packets that were ignored.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Adds a stream. `origin` is the id by which the peer opened it, and its session's label.
    fn enter(
        &mut self,
        now: Micros,
        mut stream: Stream,
        peer: SocketAddr,
        origin: (Option<ConnectionId>, u64),
    ) {
        let id = stream.local();
        let (opened_by, label) = origin;
        let stranger = !stream.is_proved();
        stream.join(self.hosts.common(peer.ip()));
        stream.count_strain_from(self.intake.strain());
        if let Some((ledger, from)) = &self.ledger {
            let key = path_key(&stream, *from, peer);
            // On a longer path the answer to the first flight tells as much, and nothing more may be sent before it. A
            // capacity that no longer holds would cost round trips.
            if let Some(plan) = ledger.known(now, key).filter(|plan| plan.rtt_us < TOLD_RTT_US) {
                stream.suppose(plan.capacity, plan.rtt_us);
            }
            ledger.known_loss(now, key).iter().for_each(|loss| stream.suppose_loss(*loss));
            stream.share(ledger.flow(key, Kind::Paced));
        }
        self.strangers += usize::from(stranger);
        let guest = opened_by.is_some() && label == 0;
        self.guests += usize::from(guest);
        let told_open = opened_by.is_some();
        let key = self.streams.insert(Entry {
            stream,
            label,
            peer,
            opened_by,
            since: now,
            due: None,
            stranger,
            guest,
            memory: 0,
            released: None,
            wants_room: false,
            told_readable: false,
            told_open,
            told_failed: false,
        });
        self.by_id.insert(id, key);
        if let Some(opener) = opened_by {
            self.by_opener.insert((peer, opener), key);
        }
        self.refresh(now, key);
    }

    /// Reads a stream's state.
    pub fn stream(&self, id: StreamId) -> Option<&Stream> {
        self.by_id.get(&id.0).map(|key| &self.streams[*key].stream)
    }

    /// Lets `change` write to, read from or end the stream.
    pub fn with<R>(&mut self, now: Micros, id: StreamId, change: impl FnOnce(&mut Stream) -> R) -> Option<R> {
        let key = *self.by_id.get(&id.0)?;
        let entry = &mut self.streams[key];
        let result = change(&mut entry.stream);
        entry.told_readable = false;
        entry.wants_room = entry.stream.room() == 0;
        self.update_memory(now, key);
        self.refresh(now, key);
        Some(result)
    }

    /// Replaces parts of a stream from now on. An application that waits for room gets an event if that makes some.
    pub fn compose(&mut self, now: Micros, id: StreamId, composition: Composition) {
        if let Some(&key) = self.by_id.get(&id.0) {
            let Entry { stream, peer, .. } = &mut self.streams[key];
            let was_in_background = stream.is_in_background();
            stream.compose(composition);
            if let Some((ledger, from)) = &self.ledger
                && stream.is_in_background() != was_in_background
            {
                let path = path_key(stream, *from, *peer);
                stream.share(ledger.flow(path, Kind::Paced));
            }
            self.refresh(now, key);
        }
    }

    /// Gives up a stream: written data is still sent, then the stream ends. If the peer has ended its direction too,
    /// the port tries that for one second only.
    pub fn release(&mut self, now: Micros, id: StreamId) {
        let Some(&key) = self.by_id.get(&id.0) else { return };
        let entry = &mut self.streams[key];
        entry.stream.finish();
        entry.released = Some(now);
        if entry.guest {
            let lives = |id: &ConnectionId| self.by_id.contains_key(id);
            while self.released_guests.pop_front_if(|first| !lives(first)).is_some() {}
            self.released_guests.push_back(id.0);
        }
        self.refresh(now, key);
    }

    /// Makes room for one more guest. False if there is none.
    fn make_room_for_guest(&mut self, now: Micros) -> bool {
        while self.guests >= self.config.guests_max {
            let Some(first) = self.released_guests.pop_front() else { return false };
            // It may have been admitted after its release.
            if let Some(&key) = self.by_id.get(&first)
                && self.streams[key].guest
            {
                self.remove(now, key);
            }
        }
        true
    }

    /// Knowledge of the path to a host, if a stream used it in the last 10 min.
    pub fn learned(&self, now: Micros, host: IpAddr) -> Option<Learned> {
        self.hosts.learned(now, host)
    }

    /// Others have measured the path to a host: its capacity in bytes/s and its round trip. Streams begin with that,
    /// unless one has measured the capacity lately.
    pub fn suppose(&mut self, now: Micros, host: IpAddr, capacity: u64, rtt_us: Micros) {
        self.hosts.suppose(now, host, capacity, rtt_us);
    }

    /// Number of streams.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there are no streams.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Port::poll_transmit`] again if no packet comes.
    pub fn poll_timeout(&self) -> Option<Micros> {
        if self.answers.is_empty() { self.due.first().map(|due| due.0) } else { Some(0) }
    }

    /// Takes in a packet. `arrived` is when the system received it, by the clock of `now`.
    pub fn on_packet(&mut self, now: Micros, arrived: Micros, from: SocketAddr, bytes: &mut [u8]) {
        self.on_datagram(now, arrived, from, false, bytes);
    }

    /// The same for a packet of which it is known whether a router has `marked` it, since its queue grows (CE of RFC 3168).
    pub fn on_datagram(
        &mut self,
        now: Micros,
        arrived: Micros,
        from: SocketAddr,
        marked: bool,
        bytes: &mut [u8],
    ) {
        self.intake.note(now, arrived);
        match Packet::decode(bytes) {
            Ok(Packet::Numbered { header, number, ack_now, checked, body }) => {
                let bytes = if checked { without_checksum(bytes) } else { Some(bytes) };
                let Some(bytes) = bytes else {
                    self.dropped.damaged += 1;
                    return;
                };
                let mut packet =
                    Incoming { header, number, ack_now, marked, body, bytes, opened: None, hold: Hold::All };
                let Some(key) = self.find(now, from, &mut packet) else { return };
                packet.hold = self.hold(key);
                let moves = self.streams[key].peer != from;
                if moves && !self.streams[key].may_move(from, &packet) {
                    self.dropped.strange += 1;
                } else if self.streams[key].stream.on_packet(now, arrived, packet) {
                    if moves {
                        self.move_stream(key, from);
                    }
                    self.update_memory(now, key);
                    self.refresh(now, key);
                } else {
                    self.dropped.forged += 1;
                }
            }
            Ok(Packet::Challenge { target, token }) => {
                self.with_stream_of(now, from, target, |stream| stream.on_challenge(now, token));
            }
            Ok(Packet::Reset { target }) => self.on_reset(now, from, target),
            Err(_) => self.dropped.garbled += 1,
        }
    }

    /// The stream's peer has another port from now on.
    fn move_stream(&mut self, key: usize, to: SocketAddr) {
        let entry = &mut self.streams[key];
        let before = std::mem::replace(&mut entry.peer, to);
        if let Some(source) = entry.opened_by {
            self.by_opener.remove(&(before, source));
            self.by_opener.insert((to, source), key);
        }
    }

    /// The caller has read the socket. If a packet since the last call had waited to be read, this asks `dropped` how
    /// many more packets the system has dropped for lack of room.
    pub fn note_drops(&mut self, now: Micros, dropped: impl FnOnce() -> u64) {
        if self.intake.take_lag() {
            let packets = dropped();
            if packets > 0 {
                self.intake.note_dropped(now, packets);
            }
        }
    }

    fn with_stream_of(
        &mut self,
        now: Micros,
        from: SocketAddr,
        id: ConnectionId,
        what: impl FnOnce(&mut Stream),
    ) {
        if let Some(&key) = self.by_id.get(&id)
            && self.streams[key].peer == from
        {
            what(&mut self.streams[key].stream);
            self.refresh(now, key);
        }
    }

    /// The reset names the id by which we address the peer. Only somebody on the path knows it.
    fn on_reset(&mut self, now: Micros, from: SocketAddr, target: ConnectionId) {
        let hit = |entry: &Entry| entry.peer == from && entry.stream.remote() == Some(target);
        let found = self.streams.iter().find(|(_, entry)| hit(entry)).map(|(key, _)| key);
        if let Some(key) = found {
            self.streams[key].stream.on_reset();
            self.refresh(now, key);
        }
    }

    fn find(&mut self, now: Micros, from: SocketAddr, packet: &mut Incoming<'_>) -> Option<usize> {
        let key = match packet.header {
            Header::Data { target, .. } | Header::Accept { target, .. } => {
                let key = self.by_id.get(&target).copied();
                if key.is_none() && !self.config.sessions_only && self.config.initial.is_none() {
                    self.answer(from, Packet::Reset { target });
                }
                key
            }
            Header::Open { source, .. } => {
                let known = self.by_opener.get(&(from, source)).copied();
                known.or_else(|| self.find_opened(now, from, packet))
            }
        };
        self.dropped.strange += u64::from(key.is_none());
        key
    }

    /// Accepts the stream that an Open asks for, if the peer may open one.
    fn find_opened(&mut self, now: Micros, from: SocketAddr, packet: &mut Incoming<'_>) -> Option<usize> {
        let Header::Open { source, token, window } = packet.header else { return None };
        let full = self.streams.len() >= self.config.streams_max;
        if full
            || !self.config.accepts
            || self.ended.recall(now, (from, source))
            || self.is_echo(from, source)
        {
            return None;
        }
        let expected = self.expected.get(&token).filter(|expected| now < expected.since + EXPECTED_US);
        let id = self.mint.draw();
        let mut sealed = match (expected, &self.config.initial) {
            (Some(expected), _) => Some(expected.session.for_acceptor()),
            (None, _) if self.config.sessions_only => return None,
            (None, initial) => initial.as_ref().map(|initial| initial.for_acceptor(source, id)),
        };
        if let Some(sealed) = &mut sealed {
            let of = Sealing::new(&packet.header, packet.number);
            packet.opened = Some(packet.body + sealed.open(of, packet.bytes, packet.body)?.len());
        }
        let proved = match expected {
            Some(expected) => expected.host == from.ip(),
            None => self.mint.is_good(&token, now, from.ip()),
        };
        if !proved && self.strangers >= self.config.strangers_max {
            let token = self.mint.issue(now, from.ip());
            self.answer(from, Packet::Challenge { target: source, token });
            return None;
        }
        if expected.is_none() && !self.make_room_for_guest(now) {
            return None;
        }
        let learned = self.learned(now, from.ip());
        let config = self.config.stream.clone();
        let trust = Trust { proved, generous: proved || self.strangers < self.config.strangers_trusted };
        let next = (trust, self.mint.issue(now, from.ip()));
        let mut stream = Stream::accept(now, config, id, (source, window), next, learned.as_ref());
        if let Some(sealed) = sealed {
            stream.seal(sealed);
        }
        // A session is good for one stream, never for a second one.
        let label = self.expected.remove(&token).map_or(0, |expected| expected.session.label);
        self.enter(now, stream, from, (Some(source), label));
        self.events.push_back(Event::Accepted(StreamId(id), from));
        self.by_opener.get(&(from, source)).copied()
    }

    /// Whether an Open from this address is our own, which an echo service sent back. Accepted, it would pass this
    /// endpoint off as the peer there.
    fn is_echo(&self, from: SocketAddr, source: ConnectionId) -> bool {
        self.by_id.get(&source).is_some_and(|key| self.streams[*key].peer == from)
    }

    fn answer(&mut self, to: SocketAddr, packet: Packet) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((to, packet));
        }
    }

    /// Appends packets that may be sent now to `out`: at most `packets` of them and `bytes` in all, all to one address.
    pub fn poll_transmit(
        &mut self,
        now: Micros,
        packets: usize,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let start = out.len();
        if let Some((to, packet)) = self.answers.pop_front() {
            packet.encode(out);
            let len = out.len() - start;
            return Some(Transmit { to, len, segment: len });
        }
        // Looks at each due stream once: it is due again now only if it has sent.
        while let Some(&(at, _, key)) = self.due.first() {
            if at > now {
                return None;
            }
            let stream = &mut self.streams[key].stream;
            stream.on_timeout(now);
            stream.tell_strain(self.intake.news(now));
            let segment = self.fill(now, key, packets, bytes, out);
            let to = self.streams[key].peer;
            self.schedule(now, key, segment > 0);
            self.notice(now, key);
            if segment > 0 {
                return Some(Transmit { to, len: out.len() - start, segment });
            }
        }
        None
    }

    /// Appends packets of one stream. Returns the length of the first one, 0 if there is none.
    fn fill(&mut self, now: Micros, key: usize, packets: usize, bytes: usize, out: &mut Vec<u8>) -> usize {
        let stream = &mut self.streams[key].stream;
        let start = out.len();
        let Some(segment) = stream.poll_transmit(now, None, out) else { return 0 };
        if !stream.is_whole(segment) {
            return segment; // a short first packet would make all others as short
        }
        for _ in 1..packets {
            if out.len() - start + segment > bytes {
                break;
            }
            match stream.poll_transmit(now, Some(segment), out) {
                Some(len) if len == segment => {}
                _ => break, // a shorter packet must be the last
            }
        }
        segment
    }

    /// Must be called when anything about a stream may have changed.
    fn refresh(&mut self, now: Micros, key: usize) {
        self.schedule(now, key, true);
        self.notice(now, key);
    }

    /// Sets when a stream is looked at next.
    fn schedule(&mut self, now: Micros, key: usize, active: bool) {
        let entry = &mut self.streams[key];
        let ends = if entry.may_end_soon() { LINGER_US } else { SHUTDOWN_US };
        let end = entry.released.map(|at| at + ends);
        let stranger = entry.stranger.then_some(entry.since + STRANGER_US);
        let timeout = [entry.stream.poll_timeout(now), end, stranger].into_iter().flatten().min();
        let soonest = if active { now } else { now + IDLE_US };
        let at = timeout.map(|at| at.max(soonest));
        let mut turn = self.turn + 1;
        if let Some((before, its_turn)) = entry.due {
            if at == Some(before) {
                return;
            }
            self.due.remove(&(before, its_turn, key));
            // A stream that could not send, for example because of a shared cap, keeps its turn.
            if !active {
                turn = its_turn;
            }
        }
        self.turn = self.turn.max(turn);
        entry.due = at.map(|at| (at, turn));
        if let Some(at) = at {
            self.due.insert((at, turn, key));
        }
    }

    /// Passes the application news of a stream, and removes the stream when it is over.
    fn notice(&mut self, now: Micros, key: usize) {
        let entry = &mut self.streams[key];
        let id = StreamId(entry.stream.local());
        if entry.stranger && entry.stream.is_proved() {
            entry.stranger = false;
            self.strangers -= 1;
        }
        if entry.released.is_none() {
            Self::push_events(entry, id, &mut self.events);
        }
        let over = match entry.released {
            None => entry.stranger && now >= entry.since + STRANGER_US,
            Some(at) if entry.may_end_soon() => now >= at + LINGER_US,
            // Nobody waits for what a guest has not acknowledged by then.
            Some(at) => (entry.stream.is_settled() || entry.guest) && now >= at + SHUTDOWN_US,
        };
        if over {
            self.remove(now, key);
        }
    }

    fn push_events(entry: &mut Entry, id: StreamId, events: &mut VecDeque<Event>) {
        if !entry.told_open && entry.stream.is_open() {
            entry.told_open = true;
            events.push_back(Event::Opened(id));
        }
        if !entry.told_readable && (entry.stream.readable() > 0 || entry.stream.is_finished()) {
            entry.told_readable = true;
            events.push_back(Event::Readable(id));
        }
        if entry.wants_room && entry.stream.room() > 0 {
            entry.wants_room = false;
            events.push_back(Event::Writable(id));
        }
        if let Some(failure) = entry.stream.failure()
            && !entry.told_failed
        {
            entry.told_failed = true;
            events.push_back(Event::Failed(id, failure));
        }
    }

    fn remove(&mut self, now: Micros, key: usize) {
        let entry = self.streams.remove(key);
        self.memory -= entry.memory;
        if entry.guest {
            self.guests -= 1;
            self.guests_memory -= entry.memory;
        }
        self.by_id.remove(&entry.stream.local());
        if let Some((at, turn)) = entry.due {
            self.due.remove(&(at, turn, key));
        }
        self.strangers -= usize::from(entry.stranger);
        if let Some(opener) = entry.opened_by {
            self.by_opener.remove(&(entry.peer, opener));
        }
        // An echo of an Open of ours may arrive late, too.
        self.ended.add(now, (entry.peer, entry.opened_by.unwrap_or(entry.stream.local())));
        let host = entry.peer.ip();
        if let Some(learned) = entry.stream.learned(now).filter(|_| !entry.stranger) {
            self.hosts.remember(host, learned);
        }
        drop(entry);
        self.hosts.drop_unused(host);
    }
}

/// The key of a stream's path in the ledger.
fn path_key(stream: &Stream, from: IpAddr, peer: SocketAddr) -> PathKey {
    let key = PathKey::new(Some(from), peer.ip());
    if stream.is_in_background() { key.in_background() } else { key }
}
