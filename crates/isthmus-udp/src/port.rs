//! All streams of one UDP socket: who a packet is for, who may open, who sends next.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use isthmus_ledger::{Kind, Ledger, PathKey};
use slab::Slab;

use crate::Micros;
use crate::intake::Intake;
use crate::mtu::{IP_UDP_BYTES, PAYLOAD_BASE};
use crate::path::{Common, Learned};
use crate::protection::{Initial, Protection, Sealing, Session, without_checksum};
use crate::receiving::Hold;
use crate::spec::Composition;
use crate::stream::{Failure, Guard, Incoming, Stream, StreamConfig, Trust};
use crate::token::Mint;
use crate::wire::{ConnectionId, Header, Packet, Token};

/// Largest IP packet of an Ethernet with jumbo frames. Bytes.
const JUMBO_BYTES: u32 = 9_000;
/// Answers to strangers that may wait to be sent; more are not made.
const ANSWERS_MAX: usize = 64;
/// Hosts of which is remembered what their paths are like.
const LEARNED_MAX: usize = 1_024;
/// How long that is of use. Microseconds (10 min).
const LEARNED_LIFE_US: Micros = 600_000_000;
/// Round trip below which what another process found out of a path's capacity is used. Microseconds.
const TOLD_RTT_US: Micros = 50_000;
/// How long a packet that was held up on the way may still come. Microseconds (60 s).
const GRAVE_US: Micros = 60_000_000;
/// Ended streams whose late packets are known for what they are.
const GRAVES_MAX: usize = 4_096;
/// How long a stranger may take to prove its address. Microseconds.
const STRANGER_US: Micros = 5_000_000;
/// How long an ended stream answers what the peer sends again, and repeats its own end. Microseconds.
const LINGER_US: Micros = 1_000_000;
/// How long the peer may take to end its direction of a stream that was given up.
const PARTING_US: Micros = 10_000_000;
/// Sessions within which a stream may be opened and was not yet.
const EXPECTED_MAX: usize = 1_024;
/// How long it may. Microseconds (30 s).
const EXPECTED_US: Micros = 30_000_000;
/// Pause of a stream that was due and had nothing to do. Microseconds.
const IDLE_US: Micros = 1_000;

/// A stream of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(ConnectionId);

/// What happened to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody opened it.
    Accepted(StreamId, SocketAddr),
    /// The peer answered.
    Opened(StreamId),
    /// There is something to read, or the peer ended its direction.
    Readable(StreamId),
    /// There is room again after a write that found too little.
    Writable(StreamId),
    /// It failed.
    Failed(StreamId, Failure),
}

/// Settings of a port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// Of its streams.
    pub stream: StreamConfig,
    /// Whether others may open streams. Default true.
    pub accepts: bool,
    /// Whether they may only within a session, see [`Port::expect`]. Strangers get no answer
    /// at all then. Default false.
    pub sessions_only: bool,
    /// Whether only those may who know this, which is what an opener outside of a session is to know of us. Strangers get
    /// no answer at all then. Default: everybody may.
    pub initial: Option<Initial>,
    /// Most streams. Default 65,536.
    pub streams_max: usize,
    /// Most streams of addresses that have not proved to be their owners' (each may hold
    /// 1 MiB); more are asked for a token first. Default 64.
    pub strangers_max: usize,
    /// Of so many of them the whole window is taken at once, so that nobody waits for another
    /// round trip who comes when few do. Default 4.
    pub strangers_trusted: usize,
    /// Most memory that data takes of streams whose other end the application has not admitted ([`Port::admit_stream`]).
    /// Beyond it the stream that takes most fails. Bytes. Default: no bound; with [`PortConfig::at`] and
    /// [`PortConfig::framed`] [`GUESTS_MEMORY`].
    pub guests_memory: usize,
    /// Most that is held of such a stream behind the first byte that is missing. Packets with more are dropped, as if
    /// they had been lost. Bytes. Default: no bound; with [`PortConfig::at`] and [`PortConfig::framed`] [`GUEST_GAP`].
    pub guest_gap: u64,
    /// About as much memory as data of all streams may take that the application has not read. From half of that on, a
    /// stream that takes more than its share of the half holds 64 KiB beyond what was read, and packets with more are
    /// dropped. Bytes. Default: no bound; with [`PortConfig::at`] and [`PortConfig::framed`] [`PORT_MEMORY`].
    pub memory_max: usize,
}

/// `GUEST_GAP`: held of a guest behind a gap (64 KiB). Its first packet says who it is, and is read when it comes.
pub const GUEST_GAP: u64 = 64 << 10;
/// `PORT_MEMORY`: for what was not read of all streams of a port (1 GiB). What is sent behind a lost packet waits for it:
/// this is three times what a path of 10 Gb/s and 250 ms carries at once.
pub const PORT_MEMORY: usize = 1 << 30;
/// Who has yet to prove who it is sends a few KiB: this is for hundreds at once whose packets come out of order. Bytes.
pub const GUESTS_MEMORY: usize = 64 << 20;

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            stream: StreamConfig::default(),
            accepts: true,
            sessions_only: false,
            initial: None,
            streams_max: 65_536,
            strangers_max: 64,
            strangers_trusted: 4,
            guests_memory: usize::MAX,
            guest_gap: u64::MAX,
            memory_max: usize::MAX,
        }
    }
}

impl PortConfig {
    /// With bounds on what others may make it hold.
    fn bounded() -> Self {
        Self {
            guests_memory: GUESTS_MEMORY,
            guest_gap: GUEST_GAP,
            memory_max: PORT_MEMORY,
            ..Self::default()
        }
    }

    /// For a socket bound to `at`, of an interface that carries `mtu` bytes, where that is known: packets up to that,
    /// and to what an Ethernet with jumbo frames carries. What the path carries of it is found by probing.
    pub fn at(at: SocketAddr, mtu: Option<u32>) -> Self {
        let mut config = Self::bounded();
        config.stream.overhead = if at.is_ipv4() { IP_UDP_BYTES - 20 } else { IP_UDP_BYTES };
        let ip_bytes = mtu.map_or(JUMBO_BYTES, |mtu| mtu.clamp(PAYLOAD_BASE + IP_UDP_BYTES, JUMBO_BYTES));
        config.stream.payload_max = ip_bytes - config.stream.overhead;
        config
    }

    /// For packets that are frames of an interface that carries `mtu` bytes, `overhead` of
    /// them before each packet.
    ///
    /// # Panics
    /// Where less is left than every path carries.
    pub fn framed(mtu: u32, overhead: u32) -> Self {
        assert!(mtu >= PAYLOAD_BASE + overhead, "an MTU below what every path carries");
        let mut config = Self::bounded();
        config.stream.overhead = overhead;
        config.stream.payload_max = mtu.min(JUMBO_BYTES) - overhead;
        config
    }
}

/// Packets to one address: all of `segment` bytes, except that the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where they go.
    pub to: SocketAddr,
    /// Bytes altogether.
    pub len: usize,
    /// Bytes of each.
    pub segment: usize,
}

/// Packets that were passed over. Those that come twice are among a stream's
/// [`crate::Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// No packets of ours, or cut short.
    pub garbled: u64,
    /// Of no stream, and not opening one by the keys of a session that is expected.
    pub strange: u64,
    /// Altered, or sealed by other keys.
    pub forged: u64,
    /// Altered, as their checksums show.
    pub damaged: u64,
}

/// A session within which somebody may open a stream.
#[derive(Debug)]
struct Expected {
    session: Session,
    host: IpAddr,
    since: Micros,
}

#[derive(Debug)]
struct Entry {
    stream: Stream,
    /// Its session's.
    label: u64,
    peer: SocketAddr,
    /// The id by which the peer opened it.
    opened_by: Option<ConnectionId>,
    since: Micros,
    due: Option<(Micros, u64)>,
    stranger: bool,
    /// Who opened it has not proved to the application who it is.
    guest: bool,
    /// What its data takes that was not read. Bytes.
    memory: usize,
    /// The application has given it up, and when.
    released: Option<Micros>,
    wants_room: bool,
    told_readable: bool,
    told_open: bool,
    told_failed: bool,
}

impl Entry {
    /// Of one that was given up, whether it need not last for what it has left to say: it has failed, or
    /// the peer has ended its direction too, after which nobody may be there.
    fn has_parted(&self) -> bool {
        self.stream.failure().is_some() || self.stream.has_heard_all()
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Port {
    config: PortConfig,
    mint: Mint,
    streams: Slab<Entry>,
    by_id: HashMap<ConnectionId, usize>,
    by_opener: HashMap<(SocketAddr, ConnectionId), usize>,
    /// When each stream is next to be looked at; those of the same time in order of age.
    due: BTreeSet<(Micros, u64, usize)>,
    turn: u64,
    strangers: usize,
    /// What the data of all guests takes that was not read. Bytes.
    guests_memory: usize,
    /// The same of all streams. Bytes.
    memory: usize,
    answers: VecDeque<(SocketAddr, Packet)>,
    events: VecDeque<Event>,
    learned: HashMap<IpAddr, Learned>,
    /// What streams lose, by the hosts that they go to.
    common: HashMap<IpAddr, Weak<Common>>,
    graves: VecDeque<(Micros, SocketAddr, ConnectionId)>,
    buried: HashSet<(SocketAddr, ConnectionId)>,
    expected: HashMap<Token, Expected>,
    dropped: Dropped,
    intake: Intake,
    /// What this host's flows tell each other, and the address that ours leave by.
    ledger: Option<(Ledger, IpAddr)>,
}

impl Port {
    /// A port. `key` is random and secret: ids and tokens come from it.
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
            guests_memory: 0,
            memory: 0,
            answers: VecDeque::new(),
            events: VecDeque::new(),
            learned: HashMap::new(),
            common: HashMap::new(),
            graves: VecDeque::new(),
            buried: HashSet::new(),
            expected: HashMap::new(),
            dropped: Dropped::default(),
            intake: Intake::default(),
            ledger: None,
        }
    }

    /// Streams from now on are planned for together with others of this host that use the same path, which
    /// they find by this ledger; packets leave by the address `from`. The ledger is to go by the clock of this port.
    pub fn share(&mut self, ledger: Ledger, from: IpAddr) {
        self.ledger = Some((ledger, from));
    }

    /// Opens a stream; what is written to it goes with the first flight.
    pub fn open(&mut self, now: Micros, to: SocketAddr) -> StreamId {
        self.open_with(now, to, Guard::None)
    }

    /// The same to one of which nobody knows this who may not open streams to it: packets are sealed.
    pub fn open_known(&mut self, now: Micros, to: SocketAddr, initial: &Initial) -> StreamId {
        self.open_with(now, to, Guard::Address(initial))
    }

    /// The same within a session, whose other end expects it. Packets are sealed. One stream
    /// is opened within a session, never a second one.
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

    /// From now on only those may open streams, but for sessions, who know this ([`PortConfig::initial`]).
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
                self.guests_memory -= entry.memory;
            }
        }
    }

    /// What the data of all streams takes that was not read. Bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// What the data of streams takes whose other ends have not been admitted. Bytes.
    pub fn guests_memory(&self) -> usize {
        self.guests_memory
    }

    /// Something has come on a stream, or was read. The caller refreshes it.
    fn note_memory(&mut self, now: Micros, key: usize) {
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

    /// How much a stream may hold of what comes now.
    fn hold(&self, key: usize) -> Hold {
        let entry = &self.streams[key];
        if entry.guest {
            return Hold::Gap(self.config.guest_gap);
        }
        let half = self.config.memory_max / 2;
        let is_over = self.memory > half && entry.stream.received_held() > half / self.streams.len();
        if is_over { Hold::Little } else { Hold::All }
    }

    /// The label of the session within which a stream was opened; 0 where there is none.
    pub fn label(&self, id: StreamId) -> u64 {
        self.by_id.get(&id.0).map_or(0, |key| self.streams[*key].label)
    }

    /// What was passed over so far.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Takes up a stream; `origin` is the id by which the peer opened it, and its session's label.
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
        let common = self.common.get(&peer.ip()).and_then(Weak::upgrade).unwrap_or_default();
        self.common.insert(peer.ip(), Arc::downgrade(&common));
        stream.join(common);
        stream.count_strain_from(self.intake.strain());
        if let Some((ledger, from)) = &self.ledger {
            let key = path_key(&stream, *from, peer);
            // On a long path no more than a first flight may go before the peer has answered, which tells as much, and
            // what no longer holds costs round trips.
            if let Some(plan) = ledger.known(now, key).filter(|plan| plan.rtt_us < TOLD_RTT_US) {
                stream.suppose(plan.capacity, plan.rtt_us);
            }
            ledger.known_loss(now, key).iter().for_each(|loss| stream.suppose_loss(*loss));
            stream.share(ledger.flow(key, Kind::Paced));
        }
        self.strangers += usize::from(stranger);
        let told_open = opened_by.is_some();
        let key = self.streams.insert(Entry {
            stream,
            label,
            peer,
            opened_by,
            since: now,
            due: None,
            stranger,
            guest: opened_by.is_some() && label == 0,
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

    /// The stream, to be looked at.
    pub fn stream(&self, id: StreamId) -> Option<&Stream> {
        self.by_id.get(&id.0).map(|key| &self.streams[*key].stream)
    }

    /// Lets `change` use the stream: write, read, end.
    pub fn with<R>(&mut self, now: Micros, id: StreamId, change: impl FnOnce(&mut Stream) -> R) -> Option<R> {
        let key = *self.by_id.get(&id.0)?;
        let entry = &mut self.streams[key];
        let result = change(&mut entry.stream);
        entry.told_readable = false;
        entry.wants_room = entry.stream.room() == 0;
        self.note_memory(now, key);
        self.refresh(now, key);
        Some(result)
    }

    /// Uses other small protocols for a stream from now on. Who waits for room is told if that
    /// makes some.
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

    /// The stream is of no more use: what was written still goes, then it ends. Where the peer has ended its
    /// direction too, that is tried for a second and no longer.
    pub fn release(&mut self, now: Micros, id: StreamId) {
        let Some(&key) = self.by_id.get(&id.0) else { return };
        let entry = &mut self.streams[key];
        entry.stream.finish();
        entry.released = Some(now);
        self.refresh(now, key);
    }

    /// What the path to a host was like, if that was seen lately.
    pub fn learned(&self, now: Micros, host: IpAddr) -> Option<Learned> {
        let fresh = |learned: &&Learned| now.saturating_sub(learned.at) < LEARNED_LIFE_US;
        self.learned.get(&host).filter(fresh).copied()
    }

    /// Others have found the path to a host to carry so much, in bytes/s, by such a round trip, in microseconds: streams
    /// begin with that unless one has found out more lately.
    pub fn suppose(&mut self, now: Micros, host: IpAddr, capacity: u64, rtt_us: Micros) {
        let before = self.learned(now, host);
        if before.is_none_or(|learned| learned.capacity == 0) {
            let token = Token::default();
            let nothing = Learned { at: now, capacity, rtt_us, loss: None, mtu: 0, token, peer_window: 0 };
            self.remember(host, Learned { capacity, ..before.unwrap_or(nothing) });
        }
    }

    /// Streams that exist.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Port::poll_transmit`] is to be called again though nothing has come.
    pub fn poll_timeout(&self) -> Option<Micros> {
        if self.answers.is_empty() { self.due.first().map(|due| due.0) } else { Some(0) }
    }

    /// Takes in a packet. `arrived` is when the system got it, by the clock of `now`.
    pub fn on_packet(&mut self, now: Micros, arrived: Micros, from: SocketAddr, bytes: &mut [u8]) {
        self.intake.note(now, arrived);
        match Packet::decode(bytes) {
            Ok(Packet::Numbered { header, number, ack_now, checked, body }) => {
                let bytes = if checked { without_checksum(bytes) } else { Some(bytes) };
                let Some(bytes) = bytes else {
                    self.dropped.damaged += 1;
                    return;
                };
                let mut packet =
                    Incoming { header, number, ack_now, body, bytes, opened: None, hold: Hold::All };
                let Some(key) = self.find(now, from, &mut packet) else { return };
                packet.hold = self.hold(key);
                if self.streams[key].peer != from {
                    self.dropped.strange += 1;
                } else if self.streams[key].stream.on_packet(now, arrived, packet) {
                    self.note_memory(now, key);
                    self.refresh(now, key);
                } else {
                    self.dropped.forged += 1;
                }
            }
            Ok(Packet::Challenge { target, token }) => {
                self.tell(now, from, target, |stream| stream.on_challenge(now, token));
            }
            Ok(Packet::Reset { target }) => self.on_reset(now, from, target),
            Err(_) => self.dropped.garbled += 1,
        }
    }

    /// Whoever has the socket has read it. Where something that came since the last call had waited to be read, `dropped`
    /// is asked how many packets more the system has dropped there for want of room.
    pub fn note_drops(&mut self, now: Micros, dropped: impl FnOnce() -> u64) {
        if self.intake.take_lag() {
            let packets = dropped();
            if packets > 0 {
                self.intake.note_dropped(now, packets);
            }
        }
    }

    fn tell(&mut self, now: Micros, from: SocketAddr, id: ConnectionId, what: impl FnOnce(&mut Stream)) {
        if let Some(&key) = self.by_id.get(&id)
            && self.streams[key].peer == from
        {
            what(&mut self.streams[key].stream);
            self.refresh(now, key);
        }
    }

    /// The id is the one that we address the peer by, which only somebody on the path knows.
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

    /// Accepts the stream that a packet opens, if somebody may.
    fn find_opened(&mut self, now: Micros, from: SocketAddr, packet: &mut Incoming<'_>) -> Option<usize> {
        let Header::Open { source, token, window } = packet.header else { return None };
        self.forget_graves(now);
        let full = self.streams.len() >= self.config.streams_max;
        if full || !self.config.accepts || self.buried.contains(&(from, source)) {
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
        let learned = self.learned(now, from.ip());
        let config = self.config.stream.clone();
        let trust = Trust { proved, generous: proved || self.strangers < self.config.strangers_trusted };
        let next = (trust, self.mint.issue(now, from.ip()));
        let mut stream = Stream::accept(now, config, id, (source, window), next, learned.as_ref());
        if let Some(sealed) = sealed {
            stream.seal(sealed);
        }
        // Within a session one stream is opened, never a second one.
        let label = self.expected.remove(&token).map_or(0, |expected| expected.session.label);
        self.enter(now, stream, from, (Some(source), label));
        self.events.push_back(Event::Accepted(StreamId(id), from));
        self.by_opener.get(&(from, source)).copied()
    }

    fn answer(&mut self, to: SocketAddr, packet: Packet) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((to, packet));
        }
    }

    /// Appends packets that may go now to `out`: at most `packets` of them and `bytes`
    /// altogether, all to one address.
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
        // Each stream that is due is looked at once; it is due again only if it has sent.
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

    /// Appends packets of one stream. Returns the length of the first, 0 if there was none.
    fn fill(&mut self, now: Micros, key: usize, packets: usize, bytes: usize, out: &mut Vec<u8>) -> usize {
        let stream = &mut self.streams[key].stream;
        let start = out.len();
        let Some(segment) = stream.poll_transmit(now, None, out) else { return 0 };
        if !stream.is_whole(segment) {
            return segment; // others are not to be as short
        }
        for _ in 1..packets {
            if out.len() - start + segment > bytes {
                break;
            }
            match stream.poll_transmit(now, Some(segment), out) {
                Some(len) if len == segment => {}
                _ => break, // a shorter one is the last
            }
        }
        segment
    }

    /// After something may have changed about a stream.
    fn refresh(&mut self, now: Micros, key: usize) {
        self.schedule(now, key, true);
        self.notice(now, key);
    }

    /// Sets when a stream is to be looked at.
    fn schedule(&mut self, now: Micros, key: usize, active: bool) {
        let entry = &mut self.streams[key];
        let ends = if entry.has_parted() { LINGER_US } else { PARTING_US };
        let parting = entry.released.map(|at| at + ends);
        let stranger = entry.stranger.then_some(entry.since + STRANGER_US);
        let timeout = [entry.stream.poll_timeout(now), parting, stranger].into_iter().flatten().min();
        let soonest = if active { now } else { now + IDLE_US };
        let at = timeout.map(|at| at.max(soonest));
        let mut turn = self.turn + 1;
        if let Some((before, its_turn)) = entry.due {
            if at == Some(before) {
                return;
            }
            self.due.remove(&(before, its_turn, key));
            // Who was kept from sending by others under the same cap comes before them the next time.
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

    /// Tells what has become of a stream, and removes it when it is over.
    fn notice(&mut self, now: Micros, key: usize) {
        let entry = &mut self.streams[key];
        let id = StreamId(entry.stream.local());
        if entry.stranger && entry.stream.is_proved() {
            entry.stranger = false;
            self.strangers -= 1;
        }
        if entry.released.is_none() {
            Self::tell_application(entry, id, &mut self.events);
        }
        let over = match entry.released {
            None => entry.stranger && now >= entry.since + STRANGER_US,
            Some(at) if entry.has_parted() => now >= at + LINGER_US,
            Some(at) => entry.stream.is_settled() && now >= at + PARTING_US,
        };
        if over {
            self.remove(now, key);
        }
    }

    fn tell_application(entry: &mut Entry, id: StreamId, events: &mut VecDeque<Event>) {
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
            self.guests_memory -= entry.memory;
        }
        self.by_id.remove(&entry.stream.local());
        if let Some((at, turn)) = entry.due {
            self.due.remove(&(at, turn, key));
        }
        self.strangers -= usize::from(entry.stranger);
        if let Some(opener) = entry.opened_by {
            self.by_opener.remove(&(entry.peer, opener));
            self.bury(now, entry.peer, opener);
        }
        let host = entry.peer.ip();
        if let Some(learned) = entry.stream.learned(now).filter(|_| !entry.stranger) {
            self.remember(host, learned);
        }
        drop(entry);
        if self.common.get(&host).is_some_and(|common| common.strong_count() == 0) {
            self.common.remove(&host);
        }
    }

    /// What was learned of a host replaces what was known; of many hosts, the oldest goes.
    fn remember(&mut self, host: IpAddr, mut learned: Learned) {
        if let Some(before) = self.learned.get(&host) {
            if learned.capacity == 0 {
                learned.capacity = before.capacity;
            }
            learned.loss = learned.loss.or(before.loss);
            if learned.token.iter().all(|byte| *byte == 0) {
                (learned.token, learned.peer_window) = (before.token, before.peer_window);
            }
        } else if self.learned.len() >= LEARNED_MAX {
            let oldest = self.learned.iter().min_by_key(|(_, learned)| learned.at).map(|(host, _)| *host);
            oldest.map(|host| self.learned.remove(&host));
        }
        self.learned.insert(host, learned);
    }

    fn bury(&mut self, now: Micros, peer: SocketAddr, opener: ConnectionId) {
        if self.graves.len() >= GRAVES_MAX
            && let Some((_, peer, opener)) = self.graves.pop_front()
        {
            self.buried.remove(&(peer, opener));
        }
        self.graves.push_back((now, peer, opener));
        self.buried.insert((peer, opener));
    }

    fn forget_graves(&mut self, now: Micros) {
        while let Some(&(at, peer, opener)) = self.graves.front() {
            if now < at + GRAVE_US {
                return;
            }
            self.graves.pop_front();
            self.buried.remove(&(peer, opener));
        }
    }
}
/// The path of a stream in the ledger.
fn path_key(stream: &Stream, from: IpAddr, peer: SocketAddr) -> PathKey {
    let key = PathKey::new(Some(from), peer.ip());
    if stream.is_in_background() { key.in_background() } else { key }
}
