//! One reliable, ordered stream of bytes in each direction between two addresses.
//!
//! The order in which packets cross the small protocols. Going out: the pacer and the
//! congestion control's window open; a probe for the path MTU, a piece that was lost, a copy
//! that is due or new data is put behind whatever acknowledgement is due; the packet gets a
//! fresh number, is sealed and noted. Coming in: opened, its number noted, frames taken; an
//! acknowledgement gives fates; losses are detected; then congestion control, path MTU and
//! the send queue hear of both.

mod incoming;
mod outgoing;

pub(crate) use incoming::Incoming;

use std::sync::Arc;

use bytes::Bytes;
use isthmus_ledger::Flow;
use isthmus_seal::Secret;

use crate::Micros;
use crate::answers::Answers;
use crate::congestion::{CongestionControl, Limits};
use crate::detection::LossDetection;
use crate::mtu::{IP_UDP_BYTES, PAYLOAD_BASE, PathMtu};
use crate::pacer::{Cap, Pacer, QUANTUM_LEAST_US, quantum_us};
use crate::parity::Parity;
use crate::path::{Common, Learned, Path};
use crate::protection::{Initial, Protection, Sealed, Session};
use crate::receiving::{Receiving, StreamFault};
use crate::redundancy::{Matter, Redundancy};
use crate::repeats::Repeats;
use crate::sending::Sending;
use crate::sent::{Fates, Sent};
use crate::sharing::{Load, Sharing};
use crate::spec::{Composition, CongestionKind};
use crate::wire::{ConnectionId, Strain, TOKEN_LEN, Token};

/// What a packet takes of an Ethernet besides its UDP payload: IPv4 and UDP headers 28,
/// frame 18, preamble and gap 20. Bytes.
pub(crate) const WIRE_OVERHEAD: u32 = 66;
/// What may be sent before the peer has granted anything, and is kept of a stranger. Bytes.
pub(crate) const EARLY_BYTES: u64 = 1 << 20;
/// How many times the bytes that came from an address that has not proved itself may be sent
/// there (RFC 9000, 8.1).
const AMPLIFICATION: u64 = 3;
/// Longest wait between probes where the round trip is shorter. Microseconds.
const PROBE_MOST_US: Micros = 50_000;
/// Silence for which they are no longer than half a round trip, nor shorter than this. Microseconds.
const PROBE_OFTEN_US: Micros = 4_000_000;
const PROBE_SPACE_US: Micros = 5_000;
/// Probes after which the waits begin to grow: what they bring may itself be lost.
const PROBES_EARLY: u32 = 3;
/// Packets of a probe, and most that are added where losses come in runs.
const PROBES_LEAST: u8 = 2;
const PROBES_MORE: u8 = 4;
/// How much may wait unsent, at least, and as the time in which it leaves: new small messages
/// must not wait behind much. Bytes, microseconds.
const UNSENT_BYTES: u64 = 256 << 10;
const UNSENT_US: u64 = 4_000;
/// The part of the window that parity may take beyond it.
const PARITY_PART: u64 = 8;
/// Room below which whoever writes may wait for more. Bytes.
const FULL_BYTES: u64 = 64 << 10;

/// Settings of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamConfig {
    /// The small protocols.
    pub composition: Composition,
    /// What holds for every congestion control.
    pub limits: Limits,
    /// Most bytes that wait to be read. Default 384 MiB: three bandwidth-delay products of
    /// 10 Gb/s and 100 ms, as what is sent behind a lost packet waits for it for a round trip more.
    pub receive_max: u64,
    /// Most bytes that wait to be acknowledged. Default 384 MiB.
    pub send_max: u64,
    /// Largest UDP payload that the interface takes. Bytes. Default 1,472.
    pub payload_max: u32,
    /// IP and UDP bytes before the payload. Default 28 (IPv4).
    pub overhead: u32,
    /// Silence after which a packet asks whether the peer is still there. Microseconds.
    /// Default 8 s.
    pub keepalive_us: Micros,
    /// Silence after which the peer counts as gone. Microseconds. Default 20 s.
    pub patience_us: Micros,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            composition: Composition::default(),
            limits: Limits::default(),
            receive_max: 384 << 20,
            send_max: 384 << 20,
            payload_max: 1_472,
            overhead: IP_UDP_BYTES - 20,
            keepalive_us: 8_000_000,
            patience_us: 20_000_000,
        }
    }
}

/// Why a stream ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing was heard for [`StreamConfig::patience_us`].
    #[error("the peer is silent")]
    Silent,
    /// The peer knows nothing of the stream: its process has ended, or gave it up.
    #[error("the peer knows nothing of the stream")]
    Reset,
    /// The peer closed it at once.
    #[error("the peer closed the stream")]
    Closed,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Fault(#[from] StreamFault),
}

/// Which side one is, and what of the handshake is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    /// We opened; until the peer answers, each packet asks.
    Opening {
        token: Token,
    },
    /// The peer opened; until it uses our id, each packet tells it.
    Accepting,
    Done,
}

/// What is held of whoever opens a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    /// The address is known to be its own.
    pub(crate) proved: bool,
    /// It may send as much as anybody.
    pub(crate) generous: bool,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets received, without those that came twice.
    pub packets_received: u64,
    /// Packets that came twice, or too late to tell.
    pub packets_stale: u64,
    /// Packets that count as lost.
    pub packets_lost: u64,
    /// Packets that counted as lost and came after all.
    pub packets_late: u64,
    /// Stream bytes sent again because they were lost.
    pub bytes_again: u64,
    /// Stream bytes sent as copies, before anything was known.
    pub bytes_copied: u64,
    /// Stream bytes sent for the first time.
    pub bytes_fresh: u64,
    /// Times that nothing was acknowledged and a probe went.
    pub silences: u64,
    /// Acknowledgements that told of packets of ours: these get through, and answers do.
    pub answers: u64,
    /// Of the packets that count as lost, those that the peer's socket had no room for.
    pub packets_refused: u64,
    /// For how long packets waited for the peer to read them, of times in which they mostly did. Microseconds.
    pub peer_busy_us: Micros,
}

/// A stream's state, for whoever watches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// Round trip, smoothed. Microseconds; `None` before the first.
    pub rtt_us: Option<Micros>,
    /// Share of packets lost lately.
    pub loss: f64,
    /// Pace. Bytes/s (wire).
    pub pace: u64,
    /// Congestion window, and what of it is under way. Bytes (wire).
    pub window: u64,
    /// See `window`.
    pub in_flight: u64,
    /// UDP payload of a full packet. Bytes.
    pub payload: u32,
    /// Congestion control, and what it is doing.
    pub congestion: &'static str,
    /// See `congestion`; empty where there is nothing to tell.
    pub phase: &'static str,
    /// Least round trip of the last seconds. Microseconds.
    pub rtt_least_us: Option<Micros>,
    /// Bytes written that wait: to be sent, and to be acknowledged.
    pub unsent: u64,
    /// See `unsent`.
    pub held: u64,
    /// Bytes received that wait to be read.
    pub readable: u64,
    /// What was counted.
    pub counters: Counters,
}

/// See the module's text.
#[derive(Debug)]
pub struct Stream {
    config: StreamConfig,
    local: ConnectionId,
    remote: Option<ConnectionId>,
    handshake: Handshake,
    failure: Option<Failure>,
    /// A Close frame is to go.
    closing: Option<u8>,
    /// Bytes that may still go to an address that has not proved itself.
    allowance: Option<u64>,
    /// Of a later stream to the same peer: the token that it gave, and its first window.
    token: Token,
    peer_window: u64,

    sending: Sending,
    receiving: Receiving,
    answers: Answers,
    sent: Sent,
    fates: Fates,
    path: Path,
    pacer: Pacer,
    congestion: Box<dyn CongestionControl>,
    detection: Box<dyn LossDetection>,
    redundancy: Box<dyn Redundancy>,
    /// Its part among the flows of this host.
    sharing: Option<Sharing>,
    repeats: Repeats,
    parity: Parity,
    /// Since when nothing waits to be sent for the first time, and might.
    drained_at: Option<Micros>,
    /// Bytes that go only to see how they arrive; `None` before that was decided.
    train: Option<u32>,
    mtu: Box<dyn PathMtu>,
    protection: Box<dyn Protection>,
    /// By what keys it began, if packets are sealed.
    sealed: Option<By>,

    /// The first number of the present round.
    round_from: u64,
    /// When the newest packet that has arrived had left.
    newest_sent_at: Micros,
    /// The receiver's time of the newest arrival that was told.
    arrived: Option<u64>,
    /// Nothing waited to be sent behind the last piece.
    dry: bool,
    /// The piece that goes now was not there when it might have gone.
    resumed: bool,
    /// When a probe goes, unless something is heard.
    probe_at: Option<Micros>,
    /// Probes since something was heard, and those that are to go now.
    probes: u32,
    probes_due: u8,
    heard_at: Micros,
    /// A Ping is to go.
    ping: bool,
    /// So many copies of one by which the stream is asked for are to follow, and when the next is due.
    greetings: u8,
    greeting_at: Micros,
    floor_told: u64,
    counters: Counters,
    ours: OwnStrain,
    peers: PeerStrain,
}

/// By what keys a stream's packets are sealed when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Address,
    Session,
}

/// What protects a stream that is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Guard<'a> {
    None,
    Address(&'a Initial),
    Session(&'a Session),
}

/// What the peer is told of our host ([`Strain`]).
#[derive(Clone, Copy, Debug, Default)]
struct OwnStrain {
    /// Where the stream began.
    from: Strain,
    news: Option<Strain>,
    told: Strain,
    told_at: Micros,
}

/// What the peer told of its host.
#[derive(Clone, Copy, Debug, Default)]
struct PeerStrain {
    last: Strain,
    heard_at: Micros,
    /// Until when it holds.
    until: Micros,
    /// Packets that it dropped and that do not count as lost yet.
    dropped: u64,
    /// When, by its clock, it had read what the last acknowledgement told of.
    read_at: u64,
}

impl Stream {
    /// A stream that asks for a connection. `local` is an id that nobody can guess.
    pub(crate) fn open(
        now: Micros,
        config: StreamConfig,
        local: ConnectionId,
        learned: Option<&Learned>,
        guard: Guard<'_>,
    ) -> Self {
        let mut token = learned.map_or([0; TOKEN_LEN], |learned| learned.token);
        let mut stream = Self::new(now, config, local, learned);
        match guard {
            Guard::None => {}
            Guard::Address(initial) => stream.seal(initial.for_opener(local)),
            Guard::Session(session) => {
                token = session.token;
                stream.seal(session.for_opener());
            }
        }
        stream.handshake = Handshake::Opening { token };
        let known =
            learned.filter(|learned| learned.token != [0; TOKEN_LEN]).map(|learned| learned.peer_window);
        stream.sending.raise_limit(known.unwrap_or(0).max(EARLY_BYTES));
        stream.ping = true;
        stream
    }

    /// A stream that somebody asked for, who has `peer`'s id and window.
    pub(crate) fn accept(
        now: Micros,
        config: StreamConfig,
        local: ConnectionId,
        peer: (ConnectionId, u64),
        (trust, token): (Trust, Token),
        learned: Option<&Learned>,
    ) -> Self {
        let mut stream = Self::new(now, config, local, learned);
        stream.remote = Some(peer.0);
        stream.sending.raise_limit(peer.1);
        stream.token = token;
        if !trust.proved {
            stream.allowance = Some(0);
        }
        if trust.generous {
            stream.receiving.widen(stream.config.receive_max);
        }
        stream.ping = true;
        stream
    }

    fn new(now: Micros, config: StreamConfig, local: ConnectionId, learned: Option<&Learned>) -> Self {
        let composition = config.composition;
        let mut stream = Self {
            local,
            remote: None,
            handshake: Handshake::Accepting,
            failure: None,
            closing: None,
            allowance: None,
            token: [0; TOKEN_LEN],
            peer_window: 0,
            sending: Sending::default(),
            receiving: Receiving::new(EARLY_BYTES.min(config.receive_max)),
            answers: Answers::default(),
            sent: Sent::default(),
            fates: Fates::default(),
            path: Path::default(),
            pacer: Pacer::default(),
            congestion: composition.congestion(config.limits),
            detection: composition.detection(),
            redundancy: composition.redundancy(),
            sharing: None,
            repeats: Repeats::default(),
            parity: Parity::default(),
            drained_at: None,
            train: None,
            mtu: composition.mtu(config.payload_max, config.overhead),
            protection: composition.checksum(),
            sealed: None,
            round_from: 0,
            newest_sent_at: 0,
            arrived: None,
            dry: true,
            resumed: false,
            probe_at: None,
            probes: 0,
            probes_due: 0,
            heard_at: now,
            ping: false,
            greetings: 0,
            greeting_at: 0,
            floor_told: 0,
            counters: Counters::default(),
            ours: OwnStrain::default(),
            peers: PeerStrain { heard_at: now, ..PeerStrain::default() },
            config,
        };
        if let Some(learned) = learned {
            stream.recall(learned);
        }
        stream
    }

    fn recall(&mut self, learned: &Learned) {
        self.path.recall(learned);
        self.mtu.recall(learned.mtu);
        if learned.capacity > 0 {
            self.congestion.recall(learned.capacity, learned.rtt_us);
        }
    }

    /// Another process has found the path to lose so much.
    pub(crate) fn suppose_loss(&mut self, loss: f64) {
        self.path.suppose_loss(loss);
    }

    /// Another process has found the path to carry so much, by such a round trip, which is no measurement of this one's.
    pub(crate) fn suppose(&mut self, capacity: u64, rtt_us: Micros) {
        if self.congestion.capacity().is_none() {
            self.congestion.recall(capacity, rtt_us);
        }
    }

    /// Appends to the stream. Returns how many of the bytes were taken, see [`Stream::room`].
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let len = self.room().min(bytes.len() as u64) as usize;
        self.sending.write(&bytes[..len]);
        len
    }

    /// As [`Stream::write`], of bytes that stay where they are: they are sent, and sent again, from there, and let go
    /// when they have arrived, or been copied ([`Stream::own`]).
    pub fn lend(&mut self, mut bytes: Bytes) -> usize {
        let len = self.room().min(bytes.len() as u64) as usize;
        bytes.truncate(len);
        self.sending.keep(bytes);
        len
    }

    /// Bytes written and lent so far.
    pub fn written(&self) -> u64 {
        self.sending.written()
    }

    /// Copies what was lent of the first `upto` bytes and has not arrived, which is let go by that; of a stream that has failed
    /// nothing is copied.
    pub fn own(&mut self, upto: u64) {
        if self.failure.is_some() { self.sending.let_go() } else { self.sending.own(upto) }
    }

    /// How many bytes [`Stream::write`] takes now.
    pub fn room(&self) -> u64 {
        if self.sending.has_ended() || self.failure.is_some() {
            return 0;
        }
        let unsent = UNSENT_BYTES.max(self.congestion.pace() / (1_000_000 / UNSENT_US));
        self.room_to_hold().min(unsent.min(self.config.send_max).saturating_sub(self.sending.unsent()))
    }

    /// How many bytes more may wait to be acknowledged.
    fn room_to_hold(&self) -> u64 {
        self.config.send_max.saturating_sub(self.sending.held())
    }

    /// Nothing more can be written before something is acknowledged: what is under way is not the end of what
    /// there is to send, however long nothing follows.
    fn is_full(&self) -> bool {
        !self.sending.has_ended() && self.room_to_hold() < FULL_BYTES
    }

    /// Nothing more will be written; the peer reads up to here and then learns of the end.
    pub fn finish(&mut self) {
        self.sending.end();
    }

    /// Whether all that was written has been acknowledged.
    pub fn is_settled(&self) -> bool {
        self.sending.is_settled()
    }

    /// Whether nothing more than the end of the stream is unacknowledged, and the peer is not
    /// owed an acknowledgement, after it ended its direction too: who goes now leaves nobody in doubt about data.
    pub fn may_part(&self) -> bool {
        self.sending.held() == 0 && self.is_finished() && self.receiving.ack_due().is_none()
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> u64 {
        self.receiving.readable()
    }

    /// Whether all has been read up to the end that the peer set.
    pub fn is_finished(&self) -> bool {
        self.receiving.is_finished()
    }

    /// The next bytes that lie together, at most `most`; empty if there are none.
    pub fn peek(&self, most: usize) -> &[u8] {
        self.receiving.peek(most)
    }

    /// So many bytes, which [`Stream::readable`] said were there, have been read.
    pub fn consume(&mut self, now: Micros, len: u64) {
        self.receiving.consume(now, len);
    }

    /// So many bytes of packets without data go behind what is written first, while the peer's answer is
    /// on its way: how they arrive tells of the path. Bytes (wire). For who knows that much more than that
    /// will follow; to be called before anything is sent.
    pub fn measure(&mut self, bytes: u32) {
        if matches!(self.handshake, Handshake::Opening { .. }) {
            self.train = Some(bytes);
        }
    }

    /// Whether the peer has answered.
    pub fn is_open(&self) -> bool {
        self.remote.is_some()
    }

    /// Why the stream has ended, if it was not by both sides' wish.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether all has come that the peer had to say, up to its end.
    pub(crate) fn has_heard_all(&self) -> bool {
        self.receiving.is_complete()
    }

    /// Whether both directions have ended and all is acknowledged.
    pub fn is_done(&self) -> bool {
        self.sending.has_ended() && self.sending.is_settled() && self.has_heard_all()
    }

    /// Ends the stream at once; what is under way is lost. Packets tell the peer.
    pub fn abort(&mut self) {
        if self.failure.is_none() {
            self.failure = Some(Failure::Closed);
            self.closing = Some(0);
        }
    }

    /// Memory of what has come and was not read, and what is kept for such. Bytes.
    pub(crate) fn received_memory(&self) -> usize {
        self.receiving.memory()
    }

    /// Memory of what has come and was not read. Bytes.
    pub(crate) fn received_held(&self) -> usize {
        self.receiving.held()
    }

    /// Keeps no memory for what may come.
    pub(crate) fn trim_received(&mut self) {
        self.receiving.trim();
    }

    /// Ends the stream at once, and what has come of it is dropped.
    pub(crate) fn shed(&mut self) {
        self.receiving = Receiving::new(0);
        if self.failure.is_none() {
            self.failure = Some(Failure::Fault(StreamFault::Guests));
            self.closing = Some(2);
        }
    }

    /// Uses other small protocols from now on. What is under way keeps its place.
    pub fn compose(&mut self, composition: Composition) {
        let before = self.config.composition;
        if composition.congestion != before.congestion {
            let known = self.congestion.capacity().zip(self.path.rtt_least_us());
            self.congestion = composition.congestion(self.config.limits);
            if let Some((capacity, rtt_us)) = known {
                self.congestion.recall(capacity, rtt_us);
            }
        }
        if composition.detection != before.detection {
            self.detection = composition.detection();
        }
        if composition.redundancy != before.redundancy {
            self.redundancy = composition.redundancy();
        }
        if composition.mtu != before.mtu {
            self.mtu = composition.mtu(self.config.payload_max, self.config.overhead);
        }
        if composition.checksum != before.checksum && !self.is_sealed() {
            self.protection = composition.checksum();
        }
        self.config.composition = composition;
    }

    /// Whether it uses only what other flows leave of the path.
    pub(crate) fn is_in_background(&self) -> bool {
        self.config.composition.congestion == CongestionKind::Background
    }

    /// Uses this congestion control from now on, in place of the composition's: one of the caller's own.
    pub fn control_by(&mut self, congestion: Box<dyn CongestionControl>) {
        self.congestion = congestion;
    }

    /// Sends no faster than this from now on, together with all streams under the same cap.
    pub fn hold(&mut self, cap: &Cap) {
        self.config.limits.cap = cap.bytes_per_s();
        self.congestion.hold(cap.bytes_per_s());
        self.pacer.hold(cap.clone());
    }

    /// Goes to the same host as others of its port, whose losses are known to it from now on.
    pub(crate) fn join(&mut self, common: Arc<Common>) {
        self.path.join(common);
    }

    /// What is told of our host counts from here.
    pub(crate) fn count_strain_from(&mut self, strain: Strain) {
        self.ours.from = strain;
    }

    /// What of our host the peer is to be told, if anything.
    pub(crate) fn tell_strain(&mut self, strain: Option<Strain>) {
        let from = self.ours.from;
        self.ours.news = strain.map(|strain| Strain {
            busy_us: strain.busy_us.wrapping_sub(from.busy_us),
            dropped: strain.dropped.wrapping_sub(from.dropped),
        });
    }

    /// Is planned for together with other flows of this host from now on.
    pub(crate) fn share(&mut self, flow: Flow) {
        self.sharing = Some(Sharing::new(flow));
    }

    /// Looks at what other flows of this host do; `at_once` where something has happened.
    fn look_around(&mut self, now: Micros, at_once: bool) {
        let Some(sharing) = &mut self.sharing else { return };
        // Until it has told something, what goes only for that counts as well.
        let train = self.train.filter(|_| self.congestion.wants_train());
        let train = train.map_or(0, |left| u64::from(left).max(u64::from(self.sent.open() > 0)));
        let load = Load {
            waiting: self.sending.waiting() + train,
            in_flight: self.sent.in_flight(),
            rtt_us: self.path.rtt_least_us(),
            loss: self.path.loss_known(),
        };
        sharing.look(now, load, at_once, &mut *self.congestion);
    }

    /// Seals packets. Both sides do so before the first.
    pub(crate) fn seal(&mut self, by: Sealed) {
        self.sealed = Some(if by.is_of_session() { By::Session } else { By::Address });
        self.protection = Box::new(by);
    }

    /// Whether packets are sealed.
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether they are sealed by a session's keys.
    pub fn is_in_session(&self) -> bool {
        self.sealed == Some(By::Session)
    }

    /// From now on packets are sealed by keys that come from this secret, which both ends share, or will once our next
    /// words have arrived. Nothing changes where packets are not sealed, or are within a session.
    pub fn rekey(&mut self, secret: &Secret) {
        self.protection.rekey(secret);
    }

    /// What the next stream to the same host can begin with.
    pub fn learned(&self, now: Micros) -> Option<Learned> {
        let rtt_us = self.path.rtt_least_us()?;
        Some(Learned {
            at: now,
            capacity: self.congestion.capacity().unwrap_or(0),
            rtt_us,
            loss: self.path.loss_known(),
            mtu: self.mtu.payload(),
            token: if self.peer_window > 0 { self.token } else { [0; TOKEN_LEN] },
            peer_window: self.peer_window,
        })
    }

    /// The least round trip that was measured on it. Microseconds.
    pub fn rtt_least_us(&self) -> Option<Micros> {
        self.path.rtt_least_us()
    }

    /// What is known of it.
    pub fn status(&self) -> Status {
        Status {
            rtt_us: self.path.rtt_us(),
            loss: self.path.loss(),
            pace: self.congestion.pace(),
            window: self.congestion.window_bytes(),
            in_flight: self.sent.in_flight(),
            payload: self.mtu.payload(),
            congestion: self.congestion.name(),
            phase: self.congestion.phase(),
            rtt_least_us: self.path.rtt_least_us(),
            unsent: self.sending.unsent(),
            held: self.sending.held(),
            readable: self.receiving.readable(),
            counters: self.counters,
        }
    }

    /// Bytes of memory that its data takes.
    pub fn memory(&self) -> usize {
        self.sending.memory() + self.receiving.memory()
    }

    /// UDP payload of a full packet. Bytes.
    pub(crate) fn payload(&self) -> usize {
        let payload = if self.allowance.is_some() { PAYLOAD_BASE } else { self.mtu.payload() };
        payload as usize
    }

    pub(crate) fn local(&self) -> ConnectionId {
        self.local
    }

    /// What the peer wants to be addressed by, once it is known.
    pub(crate) fn remote(&self) -> Option<ConnectionId> {
        self.remote
    }

    /// Whether the peer's address is known to be its own.
    pub(crate) fn is_proved(&self) -> bool {
        self.allowance.is_none()
    }

    /// When [`Stream::on_timeout`] or another attempt to transmit is due.
    pub(crate) fn poll_timeout(&mut self, now: Micros) -> Option<Micros> {
        if self.failure.is_some() {
            return self.closing.map(|_| now);
        }
        if !self.may_answer() {
            return Some(self.patience_ends());
        }
        if self.has_urgent() {
            return Some(now);
        }
        if self.probe_at.is_none() && self.awaits_answer() {
            self.arm_probe(now);
        }
        let window = self.window_is_open();
        let for_parity = self.window_is_open_for_parity();
        let work =
            self.sending.has_work() || self.repeats.is_pending() || self.train.is_some_and(|left| left > 0);
        let parity = for_parity && self.parity.is_pending();
        let sending = (window && work || parity).then(|| self.pacer.opens_at());
        let coding = self.coding_due().filter(|_| for_parity).map(|due| due.max(self.pacer.opens_at()));
        let copies = self.sending.copy_due().filter(|_| window).map(|due| due.max(self.pacer.opens_at()));
        let room = self.sharing.as_ref().filter(|_| work && !window).and_then(Sharing::wake_at);
        let quiet = self.heard_at + self.config.keepalive_us;
        let keepalive = Some(if self.awaits_answer() { self.patience_ends() } else { quiet });
        [
            sending,
            room,
            copies,
            coding,
            self.greeting_due(),
            self.receiving.ack_due(),
            self.probe_at,
            self.mtu.poll_timeout(),
            keepalive,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether the peer owes an acknowledgement, or room.
    fn awaits_answer(&self) -> bool {
        self.sent.open() > 0 || self.sending.awaits_room()
    }

    fn patience_ends(&self) -> Micros {
        self.heard_at + self.config.patience_us
    }

    /// False where more went to an address than may before it has proved itself.
    fn may_answer(&self) -> bool {
        self.allowance.is_none_or(|allowance| allowance >= u64::from(PAYLOAD_BASE))
    }

    fn has_urgent(&self) -> bool {
        self.ping || self.probes_due > 0
    }

    /// Does what is due by time.
    pub(crate) fn on_timeout(&mut self, now: Micros) {
        if self.failure.is_some() {
            return;
        }
        if !self.awaits_answer() {
            if now >= self.heard_at + self.config.keepalive_us {
                self.ping = true;
                self.sending.rest();
                self.receiving.rest();
            }
        } else if now >= self.patience_ends() {
            self.failure = Some(Failure::Silent);
            self.closing = Some(1);
        } else if self.probe_at.is_some_and(|at| now >= at) {
            self.probes += 1;
            // As long as the round trip is a guess, what was asked in copies is rather on its way than lost.
            let copied = self.redundancy.packets(Matter::Tail, self.path.loss_supposed()) > 1;
            let guessed = self.path.rtt_us().is_none() && self.sending.sent_to() == 0;
            let least = if guessed && copied && self.probes <= PROBES_EARLY { 1 } else { PROBES_LEAST };
            // Where losses come in runs, a run is not to swallow them all.
            let tail = self.redundancy.packets(Matter::Tail, self.path.loss());
            self.probes_due = tail.max(least) + (self.path.run() as u8 - 1).min(PROBES_MORE);
            self.counters.silences += 1;
            self.arm_probe(now);
        }
    }

    /// A probe goes unless something is heard. The waits grow, but not much: a link that
    /// comes back must be noticed within a round trip.
    fn arm_probe(&mut self, now: Micros) {
        let once = self.path.probe_after_us(self.quantum_us());
        let doublings = self.probes.saturating_sub(PROBES_EARLY).min(6);
        let most = match self.path.rtt_least_us() {
            Some(rtt) if now.saturating_sub(self.heard_at) < PROBE_OFTEN_US => (rtt / 2).max(PROBE_SPACE_US),
            _ => once.max(PROBE_MOST_US),
        };
        let wait = if self.probes < PROBES_EARLY { once } else { (once << doublings).min(most) };
        self.probe_at = Some(now + wait);
    }

    /// How long what goes at once takes at the pace. Microseconds.
    fn pace_quantum_us(&self) -> Micros {
        if self.congestion.is_shallow() { QUANTUM_LEAST_US } else { self.quantum_us() }
    }

    /// The same where no queue is known to be short, and for how long an acknowledgement waits at most. Microseconds.
    fn quantum_us(&self) -> Micros {
        quantum_us(self.path.rtt_least_us().unwrap_or(0))
    }

    fn window_is_open(&self) -> bool {
        self.window_has_room(self.congestion.window_bytes())
    }

    /// The same for what makes good the losses of what is under way: a message that fills the window is not to wait
    /// a round trip for that.
    fn window_is_open_for_parity(&self) -> bool {
        let window = self.congestion.window_bytes();
        self.window_has_room(window + window / PARITY_PART)
    }

    fn window_has_room(&self, window: u64) -> bool {
        let packet = u64::from(self.mtu.payload() + WIRE_OVERHEAD);
        !self.sent.is_full() && self.sent.in_flight() + packet <= window
    }
}
