//! Lanes by UDP or Ethernet frames. Those of one endpoint share a socket at the same address and port as the TCP
//! listener, and the streams on it ([`isthmus_udp`]).
//!
//! Such a lane has no descriptor of its own. [`Udp::run_pass`] reads the socket and tells which lanes are concerned;
//! [`Udp::flush`] sends what is due. A thread that sleeps until [`Udp::fd`] is readable must not sleep longer than
//! [`Udp::deadline`].

mod lane;
mod loans;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use isthmus_datagram::{PacketSocket, Received, SEND_BYTES, Sent, is_frames_only, scarcity};
use isthmus_ledger::Ledger;
use isthmus_path::blackhole::Blackhole;
use isthmus_path::provisional::{Outlook, Provisional};
use isthmus_path::{Finding, Hosts, UdpLook, UdpWork};
use isthmus_udp::{
    Cap, Composition, Counters, Dropped, Event, Initial, Micros, Outbox, Port, PortConfig, Session, Stream,
    StreamId,
};
use isthmus_units::PerHost;
use isthmus_wire::{AsId, Key};

use super::header_fields::HeaderFields;
use super::tcp::TcpLane;
use super::tcp_probe::TcpProbes;
use super::unencrypted;
use crate::interface::{any, source_to};
use crate::ledger;
use crate::log::{self, Sparing, debug_log, info_few, info_log};
use crate::poller::Ready;
use crate::settings::{RateLimits, Settings, TlsMode};
pub(crate) use lane::UdpLane;

/// Most reads of the socket in one pass. Count.
const READS: usize = 8;
/// Most batches of packets sent in one pass. Count.
const SENDS: usize = 64;
/// Pause after the socket had no room. Microseconds.
const BLOCKED_US: Micros = 500;
/// Time between two looks at open TCP probes. Microseconds.
const LOOK_US: Micros = 5_000;
/// Time between two looks at lanes for signs of life. Microseconds.
const WATCH_US: Micros = 250_000;
/// Silence after which a lane sends a keepalive: only that shows that the peer's process has ended. Microseconds.
const KEEPALIVE_US: Micros = 5_000_000;
/// The end that was dialled gives up a lane whose packets are too long this much later. Microseconds.
const LATER_US: Micros = 1_000_000;
/// UDP is blocked if a new lane gets no answer for this long. Microseconds.
const NO_ANSWER_US: Micros = 3_000_000;
/// An address where nobody listened is not tried again by UDP for this long. Microseconds.
const REFUSED_US: Micros = 10_000_000;
/// Most addresses that are remembered. Count.
const REFUSED_MAX: usize = 1_024;

/// A stream that is, or was, a lane.
#[derive(Debug)]
struct LaneRecord {
    /// The lane's index.
    index: usize,
    peer: SocketAddr,
    dialled: bool,
    /// The address of this host that its packets come from, if that is known.
    own: Option<IpAddr>,
    since: Micros,
    /// The time without an acknowledgement.
    blackhole: Blackhole,
    /// The host has reported that nobody listens at one of its ports (ICMP).
    denied: bool,
    /// When the interface first refused packets of the shortest length as too long, and how many acknowledgements there
    /// were until then.
    too_long: Option<(Micros, u64)>,
    /// Set while it carries data before it is known whether UDP suits the path.
    provisional: Option<Provisional>,
    /// The path was found to be short, and TCP not to connect.
    is_only_udp: bool,
    /// Why it has ended, if that is known better than from the stream itself.
    verdict: Option<Verdict>,
    /// The stream's counters at the last look.
    accounted: Counters,
}

impl LaneRecord {
    /// Whether to give the lane up because the interface refuses its packets. The end that dialled does so at once and
    /// dials again by TCP; the other end gives it time for that.
    fn is_too_long(&self, now: Micros) -> bool {
        let patience = if self.dialled { 0 } else { LATER_US };
        self.too_long.is_some_and(|(since, _)| now >= since + patience)
    }
}

/// The reason for a lane's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nobody listens there.
    Refused,
    /// UDP does not get through.
    NoAnswer,
    /// The interface carries no packets of the length that UDP lanes need.
    TooLong,
    /// The path is so short that TCP does better.
    Near,
    /// The peer goes on from another address.
    Moved,
}

/// The error of a lane that ends because its path turned out short.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the round trip is short: TCP does better")]
pub(crate) struct Outdone;

/// The state that the UDP lanes of one endpoint share.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: PacketSocket,
    port: Port,
    epoch: Instant,
    lanes: HashMap<StreamId, LaneRecord>,
    /// Silence after which a stream is given up.
    patience: Duration,
    /// Incoming streams that are no lanes yet.
    accepted: Vec<(StreamId, SocketAddr)>,
    /// Streams that were lanes and still have something to deliver.
    leaving: Vec<StreamId>,
    /// Events of lanes.
    news: VecDeque<Ready>,
    outbox: Outbox,
    /// If the socket had no room for packets, they wait until then.
    blocked_until: Micros,
    tcp_probes: TcpProbes,
    /// When lanes are next looked at.
    watch_at: Micros,
    /// Addresses where nobody listened, and when.
    refused: HashMap<SocketAddr, Micros>,
    /// The socket is readable.
    stirred: bool,
    /// The compositions that are set.
    protocols: PerHost<Composition>,
    /// The compositions that streams had, and how many streams each.
    chosen: Vec<(Composition, u64)>,
    /// The setting `rate_limit`.
    limits: RateLimits,
    /// For each entry of it, the cap that enforces it on the streams.
    caps: HashMap<usize, Cap>,
    /// Plain lanes need no warning.
    plain_allowed: bool,
    /// Time spent with packets since the last look. Microseconds.
    busy_us: Micros,
    /// Fields in the IP headers of packets, and whether routers may mark them.
    fields: (HeaderFields, bool),
}

impl Udp {
    /// Streams on this socket. They are given up after [`Settings::patience`] of silence.
    pub(crate) fn open(
        socket: PacketSocket,
        mut config: PortConfig,
        settings: &Settings,
    ) -> io::Result<Self> {
        config.sessions_only = settings.tls == TlsMode::Required;
        config.stream.keepalive_us = KEEPALIVE_US;
        let patience = settings.patience();
        config.stream.patience_us = patience.as_micros() as Micros;
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            socket,
            port: Port::new(config, key),
            epoch: Instant::now(),
            lanes: HashMap::new(),
            patience,
            accepted: Vec::new(),
            leaving: Vec::new(),
            news: VecDeque::new(),
            outbox: Outbox::default(),
            blocked_until: 0,
            tcp_probes: TcpProbes::kept(),
            watch_at: 0,
            refused: HashMap::new(),
            stirred: false,
            protocols: settings.all_protocols().udp,
            chosen: Vec::new(),
            limits: settings.rate_limit.clone(),
            caps: HashMap::new(),
            plain_allowed: false,
            busy_us: 0,
            fields: (HeaderFields::of(settings), settings.ecn),
        })
    }

    /// Plans lanes from now on together with others of this host. Their packets leave by the address `from`.
    pub(super) fn share(&mut self, ledger: &Ledger, from: IpAddr) {
        let ahead_us = ledger::now().saturating_sub(self.now());
        self.port.share(ledger.ahead_by(ahead_us), from);
    }

    /// Allows plain lanes without a warning.
    pub(super) fn allow_plain(&mut self) {
        self.plain_allowed = true;
    }

    /// Name of the packets' carrier, for people.
    pub(crate) fn name(&self) -> &'static str {
        self.socket.name()
    }

    /// The same for encrypted lanes.
    pub(crate) fn sealed_name(&self) -> &'static str {
        match self.socket {
            PacketSocket::Udp(_) => "UDP, encrypted",
            PacketSocket::Ethernet(_) => "Ethernet, encrypted",
        }
    }

    /// A descriptor that is readable when [`Udp::run_pass`] is needed.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Advice for when no packet comes back.
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

    /// Whether nobody listened there a moment ago. TCP will then say so again at once.
    pub(super) fn was_refused(&self, at: SocketAddr) -> bool {
        self.refused.get(&at).is_some_and(|since| self.now() < since + REFUSED_US)
    }

    /// The start of the clock of [`Udp::now`].
    pub(super) fn epoch(&self) -> Instant {
        self.epoch
    }

    /// The lanes to this host, by index.
    pub(super) fn lanes_to(&self, host: IpAddr) -> impl Iterator<Item = usize> {
        let lanes = self.lanes.values().filter(move |lane_record| lane_record.peer.ip() == host);
        lanes.map(|lane_record| lane_record.index)
    }

    /// Makes packets to this host leave by `interface`; `None`: by the kernel's route, unless lanes use another one.
    pub(super) fn leave_by(&mut self, host: IpAddr, interface: Option<&str>) {
        let mut lanes = self.lanes.values();
        if interface.is_none() && lanes.any(|lane_record| lane_record.peer.ip() == host) {
            return;
        }
        if let Err(error) = self.socket.leave_by(host, interface) {
            info_log!("packets to {host} take the kernel's route: {error}");
        }
    }

    /// Tells the rate of the path to this host by TCP (bytes/s) and its shortest round trip, for new streams.
    pub(super) fn suppose(&mut self, host: IpAddr, rate: u64, rtt_us: Micros) {
        self.port.suppose(self.now(), host, rate, rtt_us);
    }

    /// Tells what UDP lanes have done since the last look.
    fn account(&mut self, now: Micros, hosts: &mut Hosts) {
        let busy_us = std::mem::take(&mut self.busy_us);
        let mut looks = HashMap::new();
        for (stream, lane_record) in &mut self.lanes {
            let Some(known) = self.port.stream(*stream) else { continue };
            let status = known.status();
            let before = std::mem::replace(&mut lane_record.accounted, status.counters);
            // Packets that the peer's host dropped were not lost on the path.
            let lost = |counters: &Counters| {
                counters.packets_lost.saturating_sub(counters.packets_late + counters.packets_refused)
            };
            let first = UdpLook { work: UdpWork { busy_us, ..UdpWork::default() }, ..UdpLook::default() };
            let look = looks.entry(lane_record.peer.ip()).or_insert(first);
            look.rtt_us = status.rtt_least_us.unwrap_or(0).max(look.rtt_us);
            look.packet = status.payload.max(look.packet);
            let work = &mut look.work;
            work.bytes += status.counters.bytes_fresh - before.bytes_fresh;
            work.packets += status.counters.packets_sent - before.packets_sent;
            work.lost += lost(&status.counters).saturating_sub(lost(&before));
            let far_us = status.counters.peer_busy_us - before.peer_busy_us;
            work.far_busy_us = work.far_busy_us.max(far_us);
            work.is_held |= status.is_policed && status.unsent > 0;
        }
        for (host, mut look) in looks {
            // What an administrator limits is not the path's doing.
            look.work.is_held &= self.limits.of(host).is_none();
            hosts.on_udp(now, host, look);
        }
    }

    /// From now on, only peers that know this key may open lanes, except within TLS sessions.
    pub(crate) fn admit(&mut self, key: &Key) {
        self.port.admit(Initial::new(&key.0));
    }

    /// Opens a lane to the endpoint there. `key` is its key; none if it admits everybody.
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

    /// Opens a lane that carries data at once. It ends if the round trip turns out shorter than `long` and TCP connects,
    /// or if nothing gets through while TCP does. A packet train of `train` bytes behind its first data measures the
    /// path.
    pub(super) fn dial_provisionally(
        &mut self,
        to: SocketAddr,
        key: &Key,
        long: Duration,
        train: u32,
    ) -> UdpLane {
        let lane = self.dial(to, key);
        if train > 0 {
            self.port.with(self.now(), lane.stream(), |stream| stream.measure(train));
        }
        lane.provisionally(long)
    }

    /// Opens a lane within a session.
    pub(super) fn dial_within(&mut self, to: SocketAddr, session: &Session) -> UdpLane {
        let stream = self.port.open_within(self.now(), to, session);
        self.set_up(stream, to.ip());
        UdpLane::new(stream, to, true)
    }

    /// Applies the settings to a new stream.
    fn set_up(&mut self, stream: StreamId, host: IpAddr) {
        self.compose(stream, host);
        let now = self.now();
        if let Some((entry, most)) = self.limits.of(host) {
            let cap = self.caps.entry(entry).or_insert_with(|| Cap::new(most));
            self.port.with(now, stream, |stream| stream.hold(cap));
            info_few!("a lane by UDP with {host} has its part of {} B/s: rate_limit", cap.bytes_per_s());
        }
    }

    /// Composes a stream of the protocols that are set.
    fn compose(&mut self, stream: StreamId, host: IpAddr) {
        let (composition, why) = self.protocols.of(host);
        self.port.compose(self.epoch.elapsed().as_micros() as Micros, stream, composition);
        info_few!("a lane by UDP with {host} is {composition}, {why}");
        match self.chosen.iter_mut().find(|(before, _)| *before == composition) {
            Some((_, count)) => *count += 1,
            None => self.chosen.push((composition, 1)),
        }
    }

    /// Changes the protocols of streams, new and existing ones, while data flows.
    pub(super) fn set_protocols(&mut self, protocols: PerHost<Composition>) {
        if self.protocols == protocols {
            return;
        }
        let before = std::mem::replace(&mut self.protocols, protocols);
        let lanes = self.lanes.iter().map(|(stream, lane_record)| (*stream, lane_record.peer.ip()));
        let accepted = self.accepted.iter().map(|(stream, peer)| (*stream, peer.ip()));
        let changed: Vec<_> = lanes
            .chain(accepted)
            .filter(|(_, host)| before.of(*host).0 != self.protocols.of(*host).0)
            .collect();
        changed.into_iter().for_each(|(stream, host)| self.compose(stream, host));
    }

    /// The compositions that streams had, and how many streams each.
    pub(super) fn chosen(&self) -> &[(Composition, u64)] {
        &self.chosen
    }

    /// This host connects by TCP. The end that dialled a silent lane probes us that way, so this counts as an answer.
    pub(super) fn on_tcp_answer(&mut self, host: IpAddr) {
        for (stream, lane_record) in self
            .lanes
            .iter_mut()
            .filter(|(_, lane_record)| !lane_record.dialled && lane_record.peer.ip() == host)
        {
            let rtt_us = self.port.stream(*stream).and_then(|known| known.status().rtt_us);
            lane_record.blackhole.on_tcp_answer(rtt_us.unwrap_or(0));
        }
    }

    /// A connection to `to` that a TCP probe has made.
    pub(super) fn take_probe(&mut self, to: SocketAddr) -> Option<TcpLane> {
        self.tcp_probes.take(to)
    }

    /// The peer of this lane has made a lane by TCP.
    pub(super) fn on_tcp_lane(&mut self, lane: &UdpLane) {
        if let Some(lane_record) = self.lanes.get_mut(&lane.stream()) {
            lane_record.blackhole.on_tcp_lane();
            self.watch_at = 0;
        }
    }

    /// The peer of this lane has made a lane from another address.
    pub(super) fn on_move(&mut self, lane: &UdpLane) {
        let now = self.now();
        if let (Some(lane_record), Some(known)) =
            (self.lanes.get_mut(&lane.stream()), self.port.stream(lane.stream()))
        {
            let counters = known.status().counters;
            lane_record.blackhole.on_move(now, counters.answers, counters.silences);
        }
    }

    /// Allows the host to open a lane within this session.
    pub(super) fn expect(&mut self, from: IpAddr, session: Session) {
        self.port.expect(self.now(), from, session);
    }

    /// The AS at a stream's other end, if it has shown its certificate.
    fn peer_as(&self, stream: StreamId) -> Option<AsId> {
        let certified = self.port.stream(stream)?.is_in_session();
        certified.then(|| AsId(self.port.label(stream) as u32))
    }

    /// Packets that were dropped.
    pub(super) fn dropped(&self) -> Dropped {
        self.port.dropped()
    }

    /// The next incoming lane.
    pub(super) fn accept(&mut self) -> Option<UdpLane> {
        let (stream, peer) = self.accepted.pop()?;
        Some(UdpLane::new(stream, peer, false))
    }

    /// Notes that the other end has authenticated: its data no longer counts towards the bound for strangers.
    pub(super) fn admit_lane(&mut self, lane: &UdpLane) {
        self.port.admit_stream(lane.stream());
    }

    /// Makes a stream the lane of this index: events of the stream are events of that lane.
    fn attach_lane(
        &mut self,
        stream: StreamId,
        peer: SocketAddr,
        dialled: bool,
        provisional: Option<Duration>,
        index: usize,
    ) {
        let now = self.now();
        // A socket at all addresses leaves the choice to the kernel.
        let own = self.bound_ip().map(|ip| if ip.is_unspecified() { source_to(peer.ip()) } else { Some(ip) });
        self.lanes.entry(stream).or_insert_with(|| LaneRecord {
            index,
            peer,
            dialled,
            own: own.flatten(),
            since: now,
            blackhole: Blackhole::default(),
            denied: false,
            too_long: None,
            provisional: provisional.map(|long| Provisional::new(now, long.as_micros() as Micros)),
            is_only_udp: false,
            verdict: None,
            accounted: Counters::default(),
        });
    }

    /// The address that the socket is bound to. `None` for frames.
    pub(super) fn bound_ip(&self) -> Option<IpAddr> {
        match &self.socket {
            PacketSocket::Udp(socket) => socket.local_ip(),
            PacketSocket::Ethernet(_) => None,
        }
    }

    /// Binds the socket to this address, else to all addresses of the host.
    pub(super) fn rebind(&mut self, ip: Option<IpAddr>) -> io::Result<()> {
        let PacketSocket::Udp(socket) = &mut self.socket else { return Ok(()) };
        let Some(before) = socket.local_ip() else { return Ok(()) };
        let mut new = socket.successor(ip.unwrap_or(any(before)), |what| info_log!("{what}"))?;
        let (fields, ecn) = self.fields;
        fields.apply_to_packets(&mut new, ecn, SocketAddr::new(before, 0));
        *socket = new;
        self.stirred = true;
        Ok(())
    }

    /// The address of this host that a lane's packets come from, if that is known.
    pub(super) fn own_ip(&self, lane: &UdpLane) -> Option<IpAddr> {
        self.lanes.get(&lane.stream())?.own
    }

    /// Drops what was written to a lane.
    pub(super) fn abort(&mut self, lane: &UdpLane) {
        self.port.with(self.now(), lane.stream(), Stream::abort);
    }

    /// Ends the lane of a stream. The data written to it is still delivered.
    fn leave(&mut self, stream: StreamId) {
        let now = self.now();
        if let Some(lane_record) = self.lanes.remove(&stream) {
            if let Some(known) = self.port.stream(stream) {
                debug_log!("a lane by {} with {} ends: {:?}", self.name(), lane_record.peer, known.status());
            }
            if lane_record.verdict.is_some() {
                self.port.with(now, stream, Stream::abort);
            }
        }
        // Copy lent memory, which goes back to the program with the lane.
        self.port.with(now, stream, |stream| stream.own(u64::MAX));
        self.port.release(now, stream);
        self.leaving.push(stream);
        self.is_settled();
    }

    fn verdict(&self, stream: StreamId) -> Option<io::Error> {
        match self.lanes.get(&stream)?.verdict? {
            Verdict::Refused => Some(io::ErrorKind::ConnectionRefused.into()),
            Verdict::NoAnswer => Some(io::Error::other(self.advice())),
            Verdict::TooLong => Some(scarcity::too_long()),
            Verdict::Near => Some(io::Error::other(Outdone)),
            Verdict::Moved => Some(io::Error::other("the peer goes on from another address")),
        }
    }

    /// Whether there is nothing to do until a new stream is opened.
    pub(super) fn is_idle(&self) -> bool {
        self.port.is_empty() && self.tcp_probes.is_empty() && !self.stirred
    }

    /// The socket is readable.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Whether all data of ended lanes has arrived. Forgets streams that are done.
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

    /// Whether data was written that has not been sent once.
    pub(super) fn has_unsent(&self) -> bool {
        let mut streams =
            self.lanes.keys().chain(&self.leaving).filter_map(|stream| self.port.stream(*stream));
        !self.outbox.is_empty()
            || streams.any(|stream| stream.failure().is_none() && stream.status().unsent > 0)
    }

    /// Reads packets, does what is due, and adds the lanes that this concerns to `ready`.
    pub(super) fn run_pass(&mut self, ready: &mut Vec<Ready>, hosts: &mut Hosts) {
        self.stirred = false;
        let began = self.now();
        if self.receive() {
            self.note_busy(began);
        }
        let now = self.now();
        if now >= self.watch_at {
            self.watch(now, hosts);
        }
        self.flush();
        self.note_events(hosts);
        ready.extend(self.news.drain(..));
    }

    /// Counts the time from `since` on as spent with packets.
    fn note_busy(&mut self, since: Micros) {
        self.busy_us += self.now() - since;
    }

    /// Reads packets, and notes those that the kernel dropped. True if something came.
    fn receive(&mut self) -> bool {
        let came = self.read();
        if came {
            let now = self.now();
            self.port.note_drops(now, || self.socket.take_dropped());
        }
        came
    }

    /// Reads the socket. True if something came.
    fn read(&mut self) -> bool {
        for read in 0..READS {
            let (port, epoch) = (&mut self.port, self.epoch);
            let since = |at: Instant| at.saturating_duration_since(epoch).as_micros() as Micros;
            let mut now = None;
            let came = self.socket.receive(|Received { from, arrived, marked }, packet| {
                let now = *now.get_or_insert_with(|| since(Instant::now()));
                port.on_datagram(now, since(arrived), from, marked, packet);
            });
            match came {
                Ok(true) => {}
                Ok(false) => return read > 0,
                Err(_) => self.on_refusals(),
            }
        }
        true
    }

    /// Reports came that packets did not get through (ICMP). Each counts for the lanes to the address that its packet was
    /// for. If the host there says that nobody listens, its port is probed by TCP.
    fn on_refusals(&mut self) {
        let now = self.now();
        let Self { lanes, tcp_probes, port, .. } = self;
        self.socket.refusals(|report| {
            let is_meant = |peer: SocketAddr| {
                (peer.ip().to_canonical(), peer.port()) == (report.to.ip(), report.to.port())
            };
            for (stream, lane_record) in lanes.iter_mut().filter(|(_, record)| is_meant(record.peer)) {
                lane_record.blackhole.on_refusal(now);
                port.with(now, *stream, Stream::ask);
                if report.is_port && report.from == report.to.ip() {
                    lane_record.denied = true;
                    tcp_probes.ask(lane_record.peer);
                }
            }
        });
        self.watch_at = 0;
    }

    /// Sends what is due.
    pub(super) fn flush(&mut self) {
        // Most often there is nothing to send; then do not even read the clock.
        if self.outbox.is_empty() && self.port.poll_timeout().is_none() {
            return;
        }
        let began = self.now();
        if self.send_due() {
            self.note_busy(began);
        }
    }

    /// Sends what is due. True if anything was sent.
    fn send_due(&mut self) -> bool {
        for sent in 0..SENDS {
            let now = self.now();
            let is_due = if self.outbox.is_empty() {
                self.port.poll_timeout().is_some_and(|at| at <= now)
            } else {
                now >= self.blocked_until
            };
            let most = (self.socket.packets_max(), SEND_BYTES);
            if !is_due || !self.outbox.fill(now, &mut self.port, 1, most) {
                return sent > 0;
            }
            let Some((batch, packets)) = self.outbox.front() else { return sent > 0 };
            let taken = match self.socket.send(batch.to, batch.segment, packets) {
                Sent::Yes => batch.len,
                Sent::Partly(bytes) => {
                    self.blocked_until = now + BLOCKED_US;
                    bytes
                }
                Sent::TooLong => {
                    if !self.port.on_too_long(now, &batch) {
                        self.note_too_long(now, batch.to);
                        tell_refused(batch.to, Some(scarcity::too_long()));
                    }
                    batch.len
                }
                Sent::Dropped => {
                    tell_refused(batch.to, self.socket.take_own_refusal());
                    self.on_refusals();
                    batch.len
                }
            };
            self.outbox.advance(taken);
        }
        true
    }

    /// Not even the shortest packets to this address leave.
    fn note_too_long(&mut self, now: Micros, to: SocketAddr) {
        for (stream, lane_record) in self.lanes.iter_mut().filter(|(_, lane_record)| lane_record.peer == to) {
            let answers = self.port.stream(*stream).map_or(0, |known| known.status().counters.answers);
            lane_record.too_long.get_or_insert((now, answers));
        }
        self.watch_at = 0;
    }

    fn note_events(&mut self, hosts: &mut Hosts) {
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
                self.judge(stream, hosts);
            }
            if let Some(lane_record) = self.lanes.get(&stream) {
                self.news.push_back(Ready { key: lane_record.index as u64, readable, writable });
            }
        }
    }

    /// Decides on a lane that carries data before it is known whether UDP suits the path.
    fn judge(&mut self, stream: StreamId, hosts: &mut Hosts) {
        let now = self.now();
        let Some(lane_record) = self.lanes.get_mut(&stream) else { return };
        let (Some(provisional), Some(known)) = (&mut lane_record.provisional, self.port.stream(stream))
        else {
            return;
        };
        // Use the measured round trip: the smoothed one may begin with a remembered value.
        let rtt_us = known.status().rtt_least_us;
        let (found, below_us) = (provisional.look(now, rtt_us), provisional.long_us());
        let (peer, host) = (lane_record.peer, lane_record.peer.ip());
        let verdict = match found {
            Outlook::NotYet => return,
            Outlook::Doubt => {
                self.watch_at = self.watch_at.min(now + LOOK_US);
                if self.tcp_probes.ask(peer) {
                    provisional.on_tcp_asked(now);
                }
                return;
            }
            Outlook::Far | Outlook::OnlyUdp => None,
            Outlook::Near => Some(Verdict::Near),
            Outlook::Blocked => Some(Verdict::NoAnswer),
        };
        lane_record.provisional = None;
        lane_record.is_only_udp = found == Outlook::OnlyUdp;
        if verdict.is_some() {
            lane_record.verdict = lane_record.verdict.or(verdict);
            self.news.push_back(Ready { key: lane_record.index as u64, readable: true, writable: false });
        }
        let finding = match found {
            Outlook::Near => Finding::Near { below_us },
            Outlook::Far => Finding::Far { rtt_us: rtt_us.unwrap_or(below_us) },
            Outlook::OnlyUdp => Finding::OnlyUdp,
            _ => Finding::NoAnswer,
        };
        hosts.learn(now, host, finding);
    }

    /// Looks for silent lanes, and for answers to TCP probes.
    fn watch(&mut self, now: Micros, hosts: &mut Hosts) {
        let (mut answers, mut found) = (Vec::new(), Vec::new());
        self.tcp_probes.look(|at, listens| answers.push((at, listens)));
        for (stream, lane_record) in &mut self.lanes {
            let Some(known) = self.port.stream(*stream) else { continue };
            let counters = known.status().counters;
            let rtt_us = known.status().rtt_us.unwrap_or(0);
            lane_record.blackhole.look(now, counters.answers, counters.silences);
            // A later acknowledgement shows that packets get through again.
            lane_record.too_long = lane_record.too_long.filter(|(_, answers)| *answers == counters.answers);
            if let (Some(rtt_us), false) =
                (known.status().rtt_least_us, known.is_sealed() || self.plain_allowed)
            {
                unencrypted::warn(lane_record.peer.ip(), rtt_us);
            }
            let answer = answers.iter().find(|(at, _)| *at == lane_record.peer).map(|(_, listens)| *listens);
            if answer == Some(true) {
                lane_record.provisional.iter_mut().for_each(|provisional| provisional.on_tcp_answer(now));
                lane_record.blackhole.on_tcp_answer(rtt_us);
            }
            let is_refused = answer == Some(false);
            if is_refused {
                lane_record.provisional.iter_mut().for_each(Provisional::on_tcp_refusal);
            }
            // Where UDP gets through, a refused probe only tells that TCP does not; later, too, if nobody denies it.
            let is_only_udp = lane_record.is_only_udp && !lane_record.denied;
            let gets_through =
                known.status().rtt_least_us.is_some() && (lane_record.provisional.is_some() || is_only_udp);
            let overdue = answer.is_some() && lane_record.denied || now >= lane_record.since + NO_ANSWER_US;
            // A peer that dialled us may not listen at the address that we see, so a refusal there says nothing.
            let verdict = if is_refused && !gets_through && (lane_record.dialled || lane_record.denied) {
                Some(Verdict::Refused)
            } else if lane_record.dialled && !known.is_open() && overdue
                || known.is_open() && lane_record.blackhole.is_blocked(rtt_us, lane_record.dialled)
            {
                Some(Verdict::NoAnswer)
            } else if lane_record.is_too_long(now) {
                Some(Verdict::TooLong)
            } else if known.is_open() && lane_record.blackhole.is_left(known.status().rtt_us) {
                Some(Verdict::Moved)
            } else {
                if lane_record.blackhole.asks(rtt_us) {
                    self.tcp_probes.ask(lane_record.peer);
                }
                None
            };
            if verdict.is_some() && lane_record.verdict.is_none() {
                lane_record.verdict = verdict;
                self.news.push_back(Ready { key: lane_record.index as u64, readable: true, writable: false });
            }
            if verdict == Some(Verdict::Refused) {
                self.refused.retain(|_, since| now < *since + REFUSED_US);
                if self.refused.len() < REFUSED_MAX {
                    self.refused.insert(lane_record.peer, now);
                }
            }
            let finding = match verdict {
                Some(Verdict::NoAnswer) if known.is_open() => {
                    Some(Finding::Silent { ms: lane_record.blackhole.ms() })
                }
                Some(Verdict::NoAnswer) => Some(Finding::NoAnswer),
                Some(Verdict::TooLong) => Some(Finding::TooLong),
                _ => None,
            };
            if let Some(finding) = finding.filter(|_| !is_frames_only(lane_record.peer.ip())) {
                found.push((lane_record.peer.ip(), finding));
            }
        }
        let tried = self.lanes.iter().filter(|(_, lane_record)| lane_record.provisional.is_some());
        tried
            .map(|(stream, _)| *stream)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|stream| self.judge(stream, hosts));
        for (host, finding) in found {
            hosts.learn(now, host, finding);
        }
        self.account(now, hosts);
        self.watch_at = now + if self.tcp_probes.is_empty() { WATCH_US } else { LOOK_US };
    }

    /// When [`Udp::run_pass`] is needed even if nothing comes.
    pub(super) fn deadline(&mut self, hosts: &mut Hosts) -> Option<Duration> {
        self.note_events(hosts);
        if !self.news.is_empty() || !self.accepted.is_empty() {
            return Some(Duration::ZERO);
        }
        let sends = if self.outbox.is_empty() { self.port.poll_timeout() } else { Some(self.blocked_until) };
        // A lane that waits for an answer has timeouts of its own, at which it is looked at, too.
        let watch = (!self.tcp_probes.is_empty() || self.watch_at == 0).then_some(self.watch_at);
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

/// Warns of packets to `to` that did not leave, if this host is the cause.
fn tell_refused(to: SocketAddr, error: Option<io::Error>) {
    static SPARING: Sparing = Sparing::new();
    SPARING.tell_of_packets(to, error, log::warn);
}

#[cfg(test)]
mod tests;
