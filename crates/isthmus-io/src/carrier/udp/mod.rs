//! Lanes of packets, by UDP or as Ethernet frames: what those of one endpoint share.
//!
//! A socket at the same address and port as the listener, and the streams on it
//! ([`isthmus_udp`]). Nothing comes by a lane's own descriptor: [`Udp::turn`] reads the
//! socket and says whom it concerns, [`Udp::flush`] sends what is due. Whoever sleeps until
//! [`Udp::fd`] is readable sleeps no longer than [`Udp::deadline`].

mod burden;
mod lane;
mod loans;
mod question;
mod silence;
mod trial;

use std::collections::{HashMap, VecDeque};
use std::fmt::Arguments;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use isthmus_datagram::{PacketSocket, SEND_BYTES, Sent, is_frames_only};
use isthmus_ledger::Ledger;
use isthmus_udp::{
    Cap, Composition, Counters, Dropped, Event, Initial, Micros, Port, PortConfig, Session, Stream, StreamId,
    Transmit,
};
use isthmus_units::PerHost;
use isthmus_wire::{AsId, Key};

use super::plain;
use crate::ledger;
use crate::log::{debug_log, info_log};
use crate::poller::Ready;
use crate::settings::{RateLimits, Settings, TlsMode, Transport};
use burden::{Burden, Change, Work};
pub(crate) use lane::UdpLane;
use question::Questions;
use silence::Silence;
pub(crate) use trial::Outdone;
use trial::{Found, Trial};

/// Reads of the socket in one turn.
const READS: usize = 8;
/// Messages sent in one turn.
const SENDS: usize = 64;
/// Pause of a socket that had no room. Microseconds.
const BLOCKED_US: Micros = 500;
/// How often questions are looked at, and lanes for signs of life. Microseconds.
const LOOK_US: Micros = 5_000;
const WATCH_US: Micros = 250_000;
/// Silence after which a lane asks whether the peer is still there: one whose process has
/// ended shows by that alone. Microseconds.
const KEEPALIVE_US: Micros = 5_000_000;
/// A lane is not given up sooner than this. Microseconds.
const PATIENCE_LEAST_US: Micros = 1_000_000;
/// A lane that was not answered for so long shows that packets do not get through. Microseconds.
const NO_ANSWER_US: Micros = 3_000_000;
/// How long what was found out of a host is held to be so: TCP is used to one that UDP does not
/// get through to for so long. Microseconds (1 min).
const KNOWN_US: Micros = 60_000_000;
/// How long an address where nobody listened is not tried again by UDP. Microseconds.
const REFUSED_US: Micros = 10_000_000;
/// Hosts, and addresses, of which something is remembered.
const KNOWN_MAX: usize = 1_024;

/// A stream that is, or was, a lane.
#[derive(Debug)]
struct Seat {
    /// The lane's.
    index: usize,
    peer: SocketAddr,
    dialled: bool,
    since: Micros,
    /// How long nothing comes.
    silence: Silence,
    /// The host said that nobody listens at some port of it.
    denied: bool,
    /// It carries before it is known whether it should.
    trial: Option<Trial>,
    /// Why it is over, where that is known better than by the stream itself.
    verdict: Option<Verdict>,
    /// What it has done that was accounted for.
    accounted: Counters,
}

/// By what lanes to a host go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// By TCP, which does well.
    Tcp,
    /// By UDP, which gets through.
    Udp,
    /// By UDP if it gets through.
    Wanted,
    /// By TCP, since UDP does not get through.
    Blocked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nobody listens there.
    Refused,
    /// UDP does not get through.
    NoAnswer,
    /// The path is so short that TCP does better.
    Near,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: PacketSocket,
    port: Port,
    epoch: Instant,
    seats: HashMap<StreamId, Seat>,
    /// Streams that others opened and that are no lanes yet.
    accepted: Vec<(StreamId, SocketAddr)>,
    /// Streams that were lanes and have something to deliver yet.
    leaving: Vec<StreamId>,
    /// Lanes that something has happened to.
    news: VecDeque<Ready>,
    /// Packets that there was no room for, to whom and until when they wait.
    waiting: Option<(Transmit, Micros)>,
    packets: Vec<u8>,
    questions: Questions,
    watch_at: Micros,
    /// Where nobody listened, and when.
    refused: HashMap<SocketAddr, Micros>,
    /// What was found out of hosts, and when.
    known: HashMap<IpAddr, (Known, Micros)>,
    /// The socket has shown to be readable.
    stirred: bool,
    /// What streams are to be made up of, and what was chosen for how many.
    protocols: PerHost<Composition>,
    chosen: Vec<(Composition, u64)>,
    /// What streams may send, and what keeps those under one entry to it.
    limits: RateLimits,
    caps: HashMap<usize, Cap>,
    /// That they are plain is not worth saying.
    plain_is_fine: bool,
    /// Time spent with packets, since it was last accounted for. Microseconds.
    busy_us: Micros,
    /// What is known of hosts to which there is bulk; `None` where nobody is to choose.
    burdens: Option<HashMap<IpAddr, Burden>>,
    /// Lanes that are to rest from now on, or to carry again, by index.
    rested: Vec<(usize, bool)>,
}

impl Udp {
    /// Streams by this socket, given up when nothing is heard for as long as peers have.
    pub(crate) fn open(
        socket: PacketSocket,
        mut config: PortConfig,
        settings: &Settings,
    ) -> io::Result<Self> {
        let patience = settings.peer_timeout.to_duration();
        config.sessions_only = settings.tls == TlsMode::Required;
        config.stream.keepalive_us = KEEPALIVE_US;
        config.stream.patience_us =
            (patience.as_micros() as Micros).clamp(PATIENCE_LEAST_US, config.stream.patience_us);
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            socket,
            port: Port::new(config, key),
            epoch: Instant::now(),
            seats: HashMap::new(),
            accepted: Vec::new(),
            leaving: Vec::new(),
            news: VecDeque::new(),
            waiting: None,
            packets: Vec::new(),
            questions: Questions::default(),
            watch_at: 0,
            refused: HashMap::new(),
            known: HashMap::new(),
            stirred: false,
            protocols: settings.all_protocols().udp,
            chosen: Vec::new(),
            limits: settings.rate_limit.clone(),
            caps: HashMap::new(),
            plain_is_fine: false,
            busy_us: 0,
            burdens: (settings.transport == Transport::Auto).then(HashMap::new),
            rested: Vec::new(),
        })
    }

    /// Lanes from now on, whose packets leave by the address `from`, are planned for together with others of this
    /// host.
    pub(super) fn share(&mut self, ledger: &Ledger, from: IpAddr) {
        let ahead_us = ledger::now().saturating_sub(self.now());
        self.port.share(ledger.ahead_by(ahead_us), from);
    }

    /// That they are plain is not worth saying.
    pub(super) fn let_plain(&mut self) {
        self.plain_is_fine = true;
    }

    /// What packets go by, for people.
    pub(crate) fn name(&self) -> &'static str {
        self.socket.name()
    }

    /// The same of lanes that are encrypted.
    pub(crate) fn sealed_name(&self) -> &'static str {
        match self.socket {
            PacketSocket::Udp(_) => "UDP, encrypted",
            PacketSocket::Ethernet(_) => "Ethernet, encrypted",
        }
    }

    /// Readable when [`Udp::turn`] is wanted.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    fn name_of(&self, known: Known) -> &'static str {
        match known {
            Known::Tcp | Known::Blocked => "TCP",
            Known::Udp | Known::Wanted => self.name(),
        }
    }

    /// What to do where no packet comes back.
    pub(super) fn advice(&self) -> &'static str {
        match self.socket {
            PacketSocket::Udp(_) => {
                "no answer by UDP: open the port for UDP in firewalls, or set transport to tcp at both ends"
            }
            PacketSocket::Ethernet(_) => {
                "no answer by Ethernet: set transport to ethernet at both ends, in one broadcast domain \
                 whose switches let frames of type 0x88b6 through; else to tcp"
            }
        }
    }

    fn now(&self) -> Micros {
        self.epoch.elapsed().as_micros() as Micros
    }

    /// Whether it was found out just now that nobody listens there: TCP says so again at once.
    pub(super) fn was_refused(&self, at: SocketAddr) -> bool {
        self.refused.get(&at).is_some_and(|since| self.now() < since + REFUSED_US)
    }

    /// What was found out of this host lately.
    pub(super) fn known(&self, host: IpAddr) -> Option<Known> {
        if self.rests(host) {
            return Some(Known::Tcp);
        }
        let (known, at) = self.known.get(&host)?;
        (self.now() < at + KNOWN_US).then_some(*known)
    }

    /// Remembers something of a host, and says it where it is new.
    pub(super) fn learn(&mut self, host: IpAddr, known: Known, what: Arguments<'_>) {
        if self.rests(host) && matches!(known, Known::Udp | Known::Wanted) {
            return; // that it would do is known
        }
        let now = self.now();
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, (_, at)| now < *at + KNOWN_US);
        }
        if self.known.len() < KNOWN_MAX {
            let before = self.known.insert(host, (known, now));
            if before.map(|(before, _)| before) != Some(known) {
                info_log!("lanes to {host} go by {}: {what}", self.name_of(known));
            }
        }
    }

    /// Whether lanes to this host leave bulk to TCP, though UDP gets through.
    pub(super) fn rests(&self, host: IpAddr) -> bool {
        self.burdens.as_ref().and_then(|burdens| burdens.get(&host)).is_some_and(Burden::is_by_tcp)
    }

    /// So many bytes have arrived at this host by a lane by TCP since the last look at it; `idled`: meanwhile there was
    /// not always something to send.
    pub(super) fn hear_bulk_by_tcp(&mut self, host: IpAddr, arrived: u64, idled: bool) {
        self.reconsider(host, |burden, now| burden.hear_tcp(now, arrived, idled));
    }

    /// The path to this host delivers so much by TCP. Bytes/s, and its least round trip in microseconds.
    pub(super) fn suppose(&mut self, host: IpAddr, rate: u64, rtt_us: Micros) {
        self.port.suppose(self.now(), host, rate, rtt_us);
    }

    /// The path to this host loses packets by itself.
    pub(super) fn hear_lossy(&mut self, host: IpAddr) {
        self.reconsider(host, Burden::hear_lossy);
    }

    fn reconsider(&mut self, host: IpAddr, hear: impl FnOnce(&mut Burden, Micros) -> Option<Change>) {
        let now = self.now();
        let burden = self.burdens.as_mut().and_then(|burdens| burdens.get_mut(&host));
        if let Some(change) = burden.and_then(|burden| hear(burden, now)) {
            self.change(host, &change);
        }
    }

    /// Has lanes to this host rest, or carry again.
    fn change(&mut self, host: IpAddr, change: &Change) {
        let rests = matches!(change, Change::Tcp { .. });
        self.learn(host, if rests { Known::Tcp } else { Known::Udp }, format_args!("{change}"));
        let seats = self.seats.values().filter(|seat| seat.peer.ip() == host);
        self.rested.extend(seats.map(|seat| (seat.index, rests)));
    }

    /// Lanes that are to rest from now on, or to carry again, by index.
    pub(super) fn take_rested(&mut self) -> Vec<(usize, bool)> {
        std::mem::take(&mut self.rested)
    }

    /// Looks whether the processor holds lanes up.
    fn account(&mut self, now: Micros) {
        let busy_us = std::mem::take(&mut self.busy_us);
        let Some(burdens) = &mut self.burdens else { return };
        let mut hosts = HashMap::new();
        for (stream, seat) in &mut self.seats {
            let Some(known) = self.port.stream(*stream) else { continue };
            let status = known.status();
            let before = std::mem::replace(&mut seat.accounted, status.counters);
            // What the peer's host has dropped, the path did not lose.
            let lost = |counters: &Counters| {
                counters.packets_lost.saturating_sub(counters.packets_late + counters.packets_refused)
            };
            let host = hosts.entry(seat.peer.ip()).or_insert((0, 0, Work { busy_us, ..Work::default() }));
            host.0 = status.rtt_least_us.unwrap_or(0).max(host.0);
            host.1 = status.payload.max(host.1);
            host.2.bytes += status.counters.bytes_fresh - before.bytes_fresh;
            host.2.packets += status.counters.packets_sent - before.packets_sent;
            host.2.lost += lost(&status.counters).saturating_sub(lost(&before));
            let far_us = status.counters.peer_busy_us - before.peer_busy_us;
            host.2.far_busy_us = host.2.far_busy_us.max(far_us);
        }
        let mut changes = Vec::new();
        for (host, (rtt_us, packet, work)) in hosts {
            if burdens.len() >= KNOWN_MAX && !burdens.contains_key(&host) {
                continue;
            }
            let change = burdens.entry(host).or_default().look(now, rtt_us, packet, work);
            changes.extend(change.map(|change| (host, change)));
        }
        changes.iter().for_each(|(host, change)| self.change(*host, change));
    }

    /// Only those may open lanes from now on, but for sessions, who know this key.
    pub(crate) fn admit(&mut self, key: &Key) {
        self.port.admit(Initial::new(&key.0));
    }

    /// Opens a lane to the endpoint there, whose key this is: none where it admits everybody.
    pub(super) fn dial(&mut self, to: SocketAddr, key: &Key) -> UdpLane {
        let now = self.now();
        let stream = if key.is_none() {
            self.port.open(now, to)
        } else {
            self.port.open_known(now, to, &Initial::new(&key.0))
        };
        self.set_up(stream, to.ip());
        UdpLane::new(stream, to, true)
    }

    /// Opens a lane that carries at once, though it ends if the round trip is shorter than `long`, or if
    /// nothing gets through while TCP does. `train` bytes behind its first words measure the path.
    pub(super) fn try_out(&mut self, to: SocketAddr, key: &Key, long: Duration, train: u32) -> UdpLane {
        let lane = self.dial(to, key);
        if train > 0 {
            self.port.with(self.now(), lane.stream(), |stream| stream.measure(train));
        }
        lane.on_trial(long)
    }

    /// Opens a lane within a session.
    pub(super) fn dial_within(&mut self, to: SocketAddr, session: &Session) -> UdpLane {
        let stream = self.port.open_within(self.now(), to, session);
        self.set_up(stream, to.ip());
        UdpLane::new(stream, to, true)
    }

    /// Has a new stream do what the settings say.
    fn set_up(&mut self, stream: StreamId, host: IpAddr) {
        self.compose(stream, host);
        let now = self.now();
        if let Some((entry, most)) = self.limits.of(host) {
            let cap = self.caps.entry(entry).or_insert_with(|| Cap::new(most));
            self.port.with(now, stream, |stream| stream.hold(cap));
            info_log!("a lane by UDP with {host} has its part of {} B/s: rate_limit", cap.bytes_per_s());
        }
    }

    /// Makes a stream up of what the settings say.
    fn compose(&mut self, stream: StreamId, host: IpAddr) {
        let (composition, why) = self.protocols.of(host);
        self.port.compose(self.epoch.elapsed().as_micros() as Micros, stream, composition);
        info_log!("a lane by UDP with {host} is {composition}, {why}");
        match self.chosen.iter_mut().find(|(before, _)| *before == composition) {
            Some((_, count)) => *count += 1,
            None => self.chosen.push((composition, 1)),
        }
    }

    /// Makes streams up of these from now on, those that there are too, while data flows.
    pub(super) fn set_protocols(&mut self, protocols: PerHost<Composition>) {
        if self.protocols == protocols {
            return;
        }
        let before = std::mem::replace(&mut self.protocols, protocols);
        let lanes = self.seats.iter().map(|(stream, seat)| (*stream, seat.peer.ip()));
        let accepted = self.accepted.iter().map(|(stream, peer)| (*stream, peer.ip()));
        let changed: Vec<_> = lanes
            .chain(accepted)
            .filter(|(_, host)| before.of(*host).0 != self.protocols.of(*host).0)
            .collect();
        changed.into_iter().for_each(|(stream, host)| self.compose(stream, host));
    }

    /// What streams were made up of, and how many.
    pub(super) fn chosen(&self) -> &[(Composition, u64)] {
        &self.chosen
    }

    /// Somebody at this host calls by TCP: whoever dialled a lane that has fallen silent asks so whether we are here.
    pub(super) fn hear_tcp(&mut self, host: IpAddr) {
        for (stream, seat) in
            self.seats.iter_mut().filter(|(_, seat)| !seat.dialled && seat.peer.ip() == host)
        {
            let rtt_us = self.port.stream(*stream).and_then(|known| known.status().rtt_us);
            seat.silence.hear_tcp(rtt_us.unwrap_or(0));
        }
    }

    /// A lane may be opened within this session from now on.
    pub(super) fn expect(&mut self, from: IpAddr, session: Session) {
        self.port.expect(self.now(), from, session);
    }

    /// The AS at a stream's other end, if it has shown its certificate.
    fn peer_as(&self, stream: StreamId) -> Option<AsId> {
        let certified = self.port.stream(stream)?.is_in_session();
        certified.then(|| AsId(self.port.label(stream) as u32))
    }

    /// Packets that were passed over.
    pub(super) fn dropped(&self) -> Dropped {
        self.port.dropped()
    }

    /// A lane that somebody opened.
    pub(super) fn accept(&mut self) -> Option<UdpLane> {
        let (stream, peer) = self.accepted.pop()?;
        Some(UdpLane::new(stream, peer, false))
    }

    /// Who is at the other end has proved who it is: what it sends does not count as a stranger's any more.
    pub(super) fn admit_lane(&mut self, lane: &UdpLane) {
        self.port.admit_stream(lane.stream());
    }

    /// From now on news of the stream are news of the lane of this index.
    fn seat(
        &mut self,
        stream: StreamId,
        peer: SocketAddr,
        dialled: bool,
        trial: Option<Duration>,
        index: usize,
    ) {
        let now = self.now();
        self.seats.entry(stream).or_insert_with(|| Seat {
            index,
            peer,
            dialled,
            since: now,
            silence: Silence::default(),
            denied: false,
            trial: trial.map(|long| Trial::new(now, long)),
            verdict: None,
            accounted: Counters::default(),
        });
    }

    /// The stream is no lane any more; what was written to it still goes.
    fn leave(&mut self, stream: StreamId) {
        let now = self.now();
        if let Some(seat) = self.seats.remove(&stream) {
            if let Some(known) = self.port.stream(stream) {
                debug_log!("a lane by {} with {} ends: {:?}", self.name(), seat.peer, known.status());
            }
            if seat.verdict.is_some() {
                self.port.with(now, stream, Stream::abort);
            }
        }
        // What was lent goes back with the lane.
        self.port.with(now, stream, |stream| stream.own(u64::MAX));
        self.port.release(now, stream);
        self.leaving.push(stream);
        self.is_settled();
    }

    fn verdict(&self, stream: StreamId) -> Option<io::Error> {
        match self.seats.get(&stream)?.verdict? {
            Verdict::Refused => Some(io::ErrorKind::ConnectionRefused.into()),
            Verdict::NoAnswer => Some(io::Error::other(self.advice())),
            Verdict::Near => Some(io::Error::other(Outdone)),
        }
    }

    /// Whether neither packets nor the time can bring anything, but new streams.
    pub(super) fn is_idle(&self) -> bool {
        self.port.is_empty() && self.questions.is_empty() && !self.stirred
    }

    /// The socket is readable.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Whether what lanes left behind has arrived.
    pub(super) fn is_settled(&mut self) -> bool {
        let port = &self.port;
        self.leaving.retain(|stream| {
            let over = |stream: &Stream| {
                let parts = if stream.is_finished() { stream.may_part() } else { stream.is_settled() };
                parts || stream.failure().is_some()
            };
            port.stream(*stream).is_some_and(|stream| !over(stream))
        });
        self.leaving.is_empty()
    }

    /// Whether something was written that has not been sent once.
    pub(super) fn has_unsent(&self) -> bool {
        let mut streams =
            self.seats.keys().chain(&self.leaving).filter_map(|stream| self.port.stream(*stream));
        self.waiting.is_some()
            || streams.any(|stream| stream.failure().is_none() && stream.status().unsent > 0)
    }

    /// Takes in what has come, does what is due, and adds to `ready` whom it concerns.
    pub(super) fn turn(&mut self, ready: &mut Vec<Ready>) {
        self.stirred = false;
        let began = self.now();
        if self.receive() {
            self.note_busy(began);
        }
        let now = self.now();
        if now >= self.watch_at {
            self.watch(now);
        }
        self.flush();
        self.note_events();
        ready.extend(self.news.drain(..));
    }

    /// All the time since then went into packets.
    fn note_busy(&mut self, since: Micros) {
        self.busy_us += self.now() - since;
    }

    /// True where something came.
    fn receive(&mut self) -> bool {
        let came = self.read();
        if came {
            let now = self.now();
            self.port.note_drops(now, || self.socket.take_dropped());
        }
        came
    }

    /// Reads what has come; true where something had.
    fn read(&mut self) -> bool {
        for read in 0..READS {
            let (port, epoch) = (&mut self.port, self.epoch);
            let since = |at: Instant| at.saturating_duration_since(epoch).as_micros() as Micros;
            let mut now = None;
            let came = self.socket.receive(|from, arrived, packet| {
                let now = *now.get_or_insert_with(|| since(Instant::now()));
                port.on_packet(now, since(arrived), from, packet);
            });
            match came {
                Ok(true) => {}
                Ok(false) => return read > 0,
                Err(_) => self.hear_refusals(),
            }
        }
        true
    }

    /// A host said that nobody listens at a port of it: is it one of ours?
    fn hear_refusals(&mut self) {
        let (seats, questions) = (&mut self.seats, &mut self.questions);
        self.socket.refusals(|host| {
            for seat in seats.values_mut().filter(|seat| seat.peer.ip() == host) {
                seat.denied = true;
                questions.ask(seat.peer);
            }
        });
        self.watch_at = 0;
    }

    /// Sends what may go now.
    pub(super) fn flush(&mut self) {
        // Most often there is nothing, which is not worth a look at the clock.
        if self.waiting.is_none() && self.port.poll_timeout().is_none() {
            return;
        }
        let began = self.now();
        if self.send_due() {
            self.note_busy(began);
        }
    }

    /// Sends what is due; true where something went.
    fn send_due(&mut self) -> bool {
        for sent in 0..SENDS {
            let now = self.now();
            let transmit = match self.waiting {
                Some((_, until)) if now < until => return sent > 0,
                Some((transmit, _)) => transmit,
                None => {
                    if self.port.poll_timeout().is_none_or(|at| at > now) {
                        return sent > 0;
                    }
                    self.packets.clear();
                    let most = self.socket.packets_max();
                    let Some(next) = self.port.poll_transmit(now, most, SEND_BYTES, &mut self.packets) else {
                        return sent > 0;
                    };
                    next
                }
            };
            self.waiting = None;
            match self.socket.send(transmit.to, transmit.segment, &self.packets) {
                Sent::Yes => {}
                Sent::Partly(bytes) => {
                    self.packets.drain(..bytes);
                    self.waiting = Some((transmit, now + BLOCKED_US));
                }
                Sent::Dropped => self.hear_refusals(),
            }
        }
        true
    }

    fn note_events(&mut self) {
        while let Some(event) = self.port.poll_event() {
            let (stream, readable, writable) = match event {
                Event::Accepted(stream, from) => {
                    self.set_up(stream, from.ip());
                    self.accepted.push((stream, from));
                    continue;
                }
                Event::Opened(stream) | Event::Writable(stream) => (stream, false, true),
                Event::Readable(stream) | Event::Failed(stream, _) => (stream, true, false),
            };
            if matches!(event, Event::Opened(_)) {
                self.judge(stream);
            }
            if let Some(seat) = self.seats.get(&stream) {
                self.news.push_back(Ready { key: seat.index as u64, readable, writable });
            }
        }
    }

    /// Looks what came of a lane that is on trial.
    fn judge(&mut self, stream: StreamId) {
        let now = self.now();
        let Some(seat) = self.seats.get_mut(&stream) else { return };
        let (Some(trial), Some(known)) = (&mut seat.trial, self.port.stream(stream)) else { return };
        // As it is now: the smoothed one may begin with what was remembered of another time.
        let (found, long_ms) = (trial.look(now, known.status().rtt_least_us), trial.long_ms());
        let (peer, host) = (seat.peer, seat.peer.ip());
        let verdict = match found {
            Found::NotYet => return,
            Found::Doubt => return self.questions.ask(peer),
            Found::Far => None,
            Found::Near => Some(Verdict::Near),
            Found::Blocked => Some(Verdict::NoAnswer),
        };
        seat.trial = None;
        if verdict.is_some() {
            seat.verdict = seat.verdict.or(verdict);
            self.news.push_back(Ready { key: seat.index as u64, readable: true, writable: false });
        }
        match found {
            Found::Near => self.learn(host, Known::Tcp, format_args!("the round trip is below {long_ms} ms")),
            Found::Far => {
                self.learn(host, Known::Udp, format_args!("the round trip is {long_ms} ms or more"))
            }
            _ => self.learn(host, Known::Blocked, format_args!("{}", self.advice())),
        }
    }

    /// Looks for lanes that have fallen silent, and for answers to questions about them.
    fn watch(&mut self, now: Micros) {
        let (mut answers, mut silent) = (Vec::new(), Vec::new());
        self.questions.look(|at, listens| answers.push((at, listens)));
        for (stream, seat) in &mut self.seats {
            let Some(known) = self.port.stream(*stream) else { continue };
            let counters = known.status().counters;
            let rtt_us = known.status().rtt_us.unwrap_or(0);
            seat.silence.look(now, counters.answers, counters.silences);
            if let (Some(rtt_us), false) =
                (known.status().rtt_least_us, known.is_sealed() || self.plain_is_fine)
            {
                plain::tell(seat.peer.ip(), rtt_us);
            }
            let answer = answers.iter().find(|(at, _)| *at == seat.peer).map(|(_, listens)| *listens);
            if answer == Some(true) {
                seat.trial.iter_mut().for_each(|trial| trial.hear(now));
                seat.silence.hear_tcp(rtt_us);
            }
            let overdue = answer.is_some() && seat.denied || now >= seat.since + NO_ANSWER_US;
            // Whoever dialled us need not be reachable at the address that we see, and may refuse us there.
            let verdict = if answer == Some(false) && (seat.dialled || seat.denied) {
                Some(Verdict::Refused)
            } else if seat.dialled && !known.is_open() && overdue
                || known.is_open() && seat.silence.is_blocked(rtt_us, seat.dialled)
            {
                Some(Verdict::NoAnswer)
            } else {
                if seat.silence.asks(rtt_us) {
                    self.questions.ask(seat.peer);
                }
                None
            };
            if verdict.is_some() && seat.verdict.is_none() {
                seat.verdict = verdict;
                self.news.push_back(Ready { key: seat.index as u64, readable: true, writable: false });
            }
            if verdict == Some(Verdict::Refused) {
                self.refused.retain(|_, since| now < *since + REFUSED_US);
                if self.refused.len() < KNOWN_MAX {
                    self.refused.insert(seat.peer, now);
                }
            }
            if verdict == Some(Verdict::NoAnswer) {
                let host = Some(seat.peer.ip()).filter(|host| !is_frames_only(*host));
                silent.extend(host.map(|host| (host, known.is_open().then_some(seat.silence.ms()))));
            }
        }
        let tried = self.seats.iter().filter(|(_, seat)| seat.trial.is_some());
        tried
            .map(|(stream, _)| *stream)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|stream| self.judge(stream));
        for (host, since_ms) in silent {
            let advice = self.advice();
            match since_ms {
                None => self.learn(host, Known::Blocked, format_args!("{advice}")),
                Some(ms) => {
                    self.learn(
                        host,
                        Known::Blocked,
                        format_args!("no answer came for {ms} ms, but by TCP: {advice}"),
                    );
                }
            }
        }
        self.account(now);
        self.watch_at = now + if self.questions.is_empty() { WATCH_US } else { LOOK_US };
    }

    /// When [`Udp::turn`] is wanted even if nothing comes.
    pub(super) fn deadline(&mut self) -> Option<Duration> {
        self.note_events();
        if !self.news.is_empty() || !self.accepted.is_empty() {
            return Some(Duration::ZERO);
        }
        let sends = match self.waiting {
            Some((_, until)) => Some(until),
            None => self.port.poll_timeout(),
        };
        // A lane that waits for an answer has timeouts of its own, at which it is watched too.
        let watch = (!self.questions.is_empty()).then_some(self.watch_at);
        let at = sends.into_iter().chain(watch).min()?;
        Some(Duration::from_micros(at.saturating_sub(self.now())))
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        if !self.is_settled() {
            for stream in self.leaving.iter().filter_map(|stream| self.port.stream(*stream)) {
                debug_log!(
                    "a lane of packets is left before its end has arrived: finished {} {:?}",
                    stream.is_finished(),
                    stream.status()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
