//! One stream between two addresses: reliable, ordered bytes in each direction.
//!
//! To send, the pacer and the congestion window must be open. The stream then chooses a path MTU probe, a lost piece, a
//! copy that is due, or new data, and puts it behind any acknowledgement that is due. Each packet gets a fresh number,
//! is sealed, and is noted. A received packet is opened, its number is noted, and its frames are handled. An
//! acknowledgement says which packets arrived, and loss detection says which are lost. Congestion control, path MTU
//! search and send queue learn of both.

mod detector;
mod ending;
mod handshake;
mod incoming;
mod liveness;
mod outgoing;
mod overload;
mod probing;
mod progress;
mod rate;
mod repair;
mod timers;

pub(crate) use incoming::Incoming;

use std::sync::Arc;

use bytes::Bytes;
use isthmus_ledger::Flow;
use isthmus_seal::Secret;

use crate::Micros;
use crate::acks::Acks;
use crate::congestion::{CongestionControl, Limits};
use crate::mtu::{IP_UDP_BYTES, PAYLOAD_BASE, PathMtu};
use crate::pacer::{Cap, quantum_us};
use crate::path::{Common, Learned, Path};
use crate::protection::{Initial, Protection, Sealed, Session};
use crate::receiving::{Receiving, StreamFault};
use crate::sending::Sending;
use crate::sent::Sent;
use crate::spacing::Spacing;
use crate::spec::{Composition, CongestionKind};
use crate::wire::{ConnectionId, Strain, TOKEN_LEN, Token};
use detector::LossDetector;
use ending::Ending;
use handshake::Handshake;
use liveness::Liveness;
use overload::{OwnReports, PeerReports};
use probing::Probing;
use progress::Progress;
use rate::SendRate;
use repair::{Flight, Repair};

/// Length on an Ethernet besides the UDP payload: IPv4 and UDP headers 28, frame 18, preamble and gap 20. Bytes.
pub(crate) const WIRE_OVERHEAD: u32 = 66;
/// Data sent before the peer grants a window, and held of a peer whose address is not validated. Bytes (1 MiB).
pub(crate) const EARLY_BYTES: u64 = 1 << 20;
/// Limit of unsent data, as bytes and as time at the pace; the larger holds. It keeps the queue in front of a new small
/// message short. Bytes (256 KiB), microseconds (4 ms).
const UNSENT_BYTES: u64 = 256 << 10;
const UNSENT_US: u64 = 4_000;
/// Parity may exceed the congestion window by the window divided by this.
const PARITY_PART: u64 = 8;
/// With less room than this, the writer may be waiting for room. Bytes (64 KiB).
const FULL_BYTES: u64 = 64 << 10;
/// As many packets must be overdue for an acknowledgement to be. Count. Fewer may have been lost, at the end of a burst.
const SILENT_PACKETS: u64 = 8;

/// Settings of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamConfig {
    /// The parts that make up the stream.
    pub composition: Composition,
    /// Limits that apply to every congestion control.
    pub limits: Limits,
    /// Most received bytes that wait to be read. Default 384 MiB: three bandwidth-delay products of 10 Gb/s and 100 ms,
    /// because data behind a lost packet waits one more round trip.
    pub receive_max: u64,
    /// Most written bytes that wait to be acknowledged. Default 384 MiB.
    pub send_max: u64,
    /// Largest UDP payload that the interface takes. Bytes. Default 1,472.
    pub payload_max: u32,
    /// Length of the IP and UDP headers before the payload. Bytes. Default 28 (IPv4).
    pub overhead: u32,
    /// Silence after which a packet asks whether the peer is still there. Microseconds. Default 8 s.
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

/// Why a stream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing came from the peer for [`StreamConfig::patience_us`].
    #[error("the peer is silent")]
    Silent,
    /// The peer does not know the stream: its process has ended, or has dropped the stream.
    #[error("the peer knows nothing of the stream")]
    Reset,
    /// The peer aborted the stream.
    #[error("the peer closed the stream")]
    Closed,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Fault(#[from] StreamFault),
}

/// Trust in a peer that opens a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    /// The peer's address is validated (RFC 9000, 8).
    pub(crate) proved: bool,
    /// The peer gets the whole receive window at once.
    pub(crate) generous: bool,
}

/// Counters of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets received, without duplicates.
    pub packets_received: u64,
    /// Packets received that were duplicates, or so old that nobody can tell.
    pub packets_stale: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets declared lost that arrived after all.
    pub packets_late: u64,
    /// Stream bytes retransmitted after a loss.
    pub bytes_again: u64,
    /// Stream bytes sent as copies or parity before any loss was known.
    pub bytes_copied: u64,
    /// Stream bytes sent for the first time.
    pub bytes_fresh: u64,
    /// Times that no acknowledgement came and a probe was sent.
    pub silences: u64,
    /// Acknowledgements of new packets of ours. They show that packets get through in both directions.
    pub answers: u64,
    /// Lost packets that the peer's host dropped because its socket had no room.
    pub packets_refused: u64,
    /// Time that packets waited for the peer to read them, in periods in which they mostly did. Microseconds.
    pub peer_busy_us: Micros,
    /// Packets of ours that a router has marked, by the peer's count (CE of RFC 3168).
    pub packets_marked: u64,
}

/// State of a stream, for monitoring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// Smoothed round trip. Microseconds; `None` before the first sample.
    pub rtt_us: Option<Micros>,
    /// Share of packets lost lately.
    pub loss: f64,
    /// Pacing rate. Bytes/s (wire).
    pub pace: u64,
    /// Congestion window. Bytes (wire).
    pub window: u64,
    /// Bytes in flight (wire).
    pub in_flight: u64,
    /// UDP payload of a full packet. Bytes.
    pub payload: u32,
    /// Name of the congestion control.
    pub congestion: &'static str,
    /// Phase of the congestion control; empty if it has none.
    pub phase: &'static str,
    /// The path seems to police this flow ([`CongestionControl::is_policed`]).
    pub is_policed: bool,
    /// Least round trip of the last seconds. Microseconds.
    pub rtt_least_us: Option<Micros>,
    /// Bytes written that were never sent.
    pub unsent: u64,
    /// Bytes written that are not acknowledged up to the first gap; includes `unsent`.
    pub held: u64,
    /// Bytes received that wait to be read.
    pub readable: u64,
    /// The counters.
    pub counters: Counters,
}

/// One stream; the module's text says how it works. Its parts keep their own state; the stream passes events on.
#[derive(Debug)]
pub struct Stream {
    config: StreamConfig,
    handshake: Handshake,
    ending: Ending,
    liveness: Liveness,
    protection: Box<dyn Protection>,
    mtu: Box<dyn PathMtu>,
    path: Path,

    receiving: Receiving,
    acks: Acks,
    spacing: Spacing,

    sending: Sending,
    sent: Sent,
    detector: LossDetector,
    progress: Progress,
    probing: Probing,
    repair: Repair,
    rate: SendRate,

    own_reports: OwnReports,
    peer_reports: PeerReports,
    counters: Counters,
}

/// Protection of a stream that we open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Guard<'a> {
    None,
    Address(&'a Initial),
    Session(&'a Session),
}

impl Stream {
    /// Makes a stream that asks for a connection. `local` is an id that nobody can guess.
    pub(crate) fn open(
        now: Micros,
        config: StreamConfig,
        local: ConnectionId,
        learned: Option<&Learned>,
        guard: Guard<'_>,
    ) -> Self {
        let mut token = learned.map_or([0; TOKEN_LEN], |learned| learned.token);
        let by: Option<Sealed> = match guard {
            Guard::None => None,
            Guard::Address(initial) => Some(initial.for_opener(local)),
            Guard::Session(session) => {
                token = session.token;
                Some(session.for_opener())
            }
        };
        let mut stream = Self::new(now, config, Handshake::open(local, token), learned);
        by.into_iter().for_each(|by| stream.seal(by));
        let known =
            learned.filter(|learned| learned.token != [0; TOKEN_LEN]).map(|learned| learned.peer_window);
        stream.sending.raise_limit(known.unwrap_or(0).max(EARLY_BYTES));
        stream
    }

    /// Makes a stream that a peer asked for. `peer` is the peer's id and window.
    pub(crate) fn accept(
        now: Micros,
        config: StreamConfig,
        local: ConnectionId,
        peer: (ConnectionId, u64),
        (trust, token): (Trust, Token),
        learned: Option<&Learned>,
    ) -> Self {
        let handshake = Handshake::accept(local, peer.0, token, trust.proved);
        let mut stream = Self::new(now, config, handshake, learned);
        stream.sending.raise_limit(peer.1);
        if trust.generous {
            stream.receiving.widen(stream.config.receive_max);
        }
        stream
    }

    fn new(now: Micros, config: StreamConfig, handshake: Handshake, learned: Option<&Learned>) -> Self {
        let composition = config.composition;
        let mut stream = Self {
            handshake,
            ending: Ending::default(),
            liveness: Liveness::new(now, config.keepalive_us, config.patience_us),
            protection: composition.checksum(),
            mtu: composition.mtu(config.payload_max, config.overhead),
            path: Path::default(),
            receiving: Receiving::new(EARLY_BYTES.min(config.receive_max)),
            acks: Acks::default(),
            spacing: Spacing::default(),
            sending: Sending::default(),
            sent: Sent::default(),
            detector: LossDetector::new(composition.detection()),
            progress: Progress::new(now),
            probing: Probing::default(),
            repair: Repair::new(composition.redundancy()),
            rate: SendRate::new(composition.congestion(config.limits)),
            own_reports: OwnReports::default(),
            peer_reports: PeerReports::new(now),
            counters: Counters::default(),
            config,
        };
        if let Some(learned) = learned {
            stream.path.recall(learned);
            stream.mtu.recall(learned.mtu);
            stream.rate.recall(learned.capacity, learned.rtt_us);
        }
        stream
    }

    /// The own interface does not carry packets with this UDP payload. Bytes.
    pub(crate) fn on_too_long(&mut self, size: usize) {
        self.mtu.on_too_long(size as u32);
    }

    /// Another process has found this share of packets to be lost on the path.
    pub(crate) fn suppose_loss(&mut self, loss: f64) {
        self.path.suppose_loss(loss);
    }

    /// Another process has measured the path's capacity, and a round trip that counts as no sample here.
    pub(crate) fn suppose(&mut self, capacity: u64, rtt_us: Micros) {
        self.rate.suppose(capacity, rtt_us);
    }

    /// Appends to the stream. Returns how many of the bytes were taken, see [`Stream::room`].
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let len = self.room().min(bytes.len() as u64) as usize;
        self.sending.write(&bytes[..len]);
        len
    }

    /// Appends as [`Stream::write`] does, but without a copy: sends and retransmits directly from `bytes`. They are
    /// released when they are acknowledged, or copied ([`Stream::own`]).
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

    /// Copies lent buffers that begin below offset `upto` and are not acknowledged, and releases them. A failed stream
    /// releases all of them without a copy.
    pub fn own(&mut self, upto: u64) {
        if self.ending.has_failed() { self.sending.let_go() } else { self.sending.own(upto) }
    }

    /// Number of bytes that [`Stream::write`] takes now.
    pub fn room(&self) -> u64 {
        if self.sending.has_ended() || self.ending.has_failed() {
            return 0;
        }
        let unsent = UNSENT_BYTES.max(self.rate.congestion().pace() / (1_000_000 / UNSENT_US));
        self.room_to_hold().min(unsent.min(self.config.send_max).saturating_sub(self.sending.unsent()))
    }

    /// Number of further bytes that may wait to be acknowledged.
    fn room_to_hold(&self) -> u64 {
        self.config.send_max.saturating_sub(self.sending.held())
    }

    /// Whether the limit of unacknowledged data keeps the application from writing. If so, more may follow what is in
    /// flight, however long nothing does.
    fn is_full(&self) -> bool {
        !self.sending.has_ended() && self.room_to_hold() < FULL_BYTES
    }

    /// Ends our direction: nothing more will be written. The peer reads up to here and then learns of the end.
    pub fn finish(&mut self) {
        self.sending.end();
    }

    /// Whether everything that was written has been acknowledged.
    pub fn is_settled(&self) -> bool {
        self.sending.is_settled()
    }

    /// Whether a program may leave without doubt about data: only the end of our direction may be unacknowledged, the
    /// peer's direction has been read to its end, and we owe no acknowledgement.
    pub fn may_part(&self) -> bool {
        self.sending.held() == 0 && self.is_finished() && self.acks.due().is_none()
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> u64 {
        self.receiving.readable()
    }

    /// Whether everything up to the end of the peer's direction has been read.
    pub fn is_finished(&self) -> bool {
        self.receiving.is_finished()
    }

    /// The next bytes that are contiguous in memory, at most `most`; empty if there are none.
    pub fn peek(&self, most: usize) -> &[u8] {
        self.receiving.peek(most)
    }

    /// Marks `len` bytes as read; [`Stream::readable`] must have said that they were there.
    pub fn consume(&mut self, now: Micros, len: u64) {
        if self.receiving.consume(len) {
            self.acks.bring_forward(now);
        }
    }

    /// Measures the path with `bytes` (wire) of packets without data, sent behind what is written first, while the
    /// peer's answer is on its way. For a caller that knows that at least that much will follow. Call it before
    /// anything is sent.
    pub fn measure(&mut self, bytes: u32) {
        if self.handshake.is_opening() {
            self.rate.measure(bytes);
        }
    }

    /// Whether the peer has answered.
    pub fn is_open(&self) -> bool {
        self.handshake.remote().is_some()
    }

    /// Why the stream failed; `None` if it has not.
    pub fn failure(&self) -> Option<Failure> {
        self.ending.failure()
    }

    /// Whether the peer's direction has arrived completely, up to its end.
    pub(crate) fn has_heard_all(&self) -> bool {
        self.receiving.is_complete()
    }

    /// Whether both directions have ended and everything is acknowledged.
    pub fn is_done(&self) -> bool {
        self.sending.has_ended() && self.sending.is_settled() && self.has_heard_all()
    }

    /// Ends the stream at once and tells the peer. Data in flight is lost.
    pub fn abort(&mut self) {
        self.ending.fail_and_tell(Failure::Closed);
    }

    /// Memory of received data that was not read, and of free chunks kept for more. Bytes.
    pub(crate) fn received_memory(&self) -> usize {
        self.receiving.memory()
    }

    /// Memory of received data that was not read. Bytes.
    pub(crate) fn received_held(&self) -> usize {
        self.receiving.held()
    }

    /// Releases free memory that was kept for received data.
    pub(crate) fn trim_received(&mut self) {
        self.receiving.trim();
    }

    /// Fails the stream at once and drops what was received.
    pub(crate) fn shed(&mut self) {
        (self.receiving, self.acks) = (Receiving::new(0), Acks::default());
        self.ending.fail_and_tell(Failure::Fault(StreamFault::Guests));
    }

    /// Replaces parts of the stream from now on. Packets in flight stay valid.
    pub fn compose(&mut self, composition: Composition) {
        let before = self.config.composition;
        if composition.congestion != before.congestion {
            self.rate.change(composition.congestion(self.config.limits), self.path.rtt_least_us());
        }
        if composition.detection != before.detection {
            self.detector.change(composition.detection());
        }
        if composition.redundancy != before.redundancy {
            self.repair.change(composition.redundancy());
        }
        if composition.mtu != before.mtu {
            self.mtu = composition.mtu(self.config.payload_max, self.config.overhead);
        }
        if composition.checksum != before.checksum && !self.is_sealed() {
            self.protection = composition.checksum();
        }
        self.config.composition = composition;
    }

    /// Whether the stream uses only what other flows leave of the path.
    pub(crate) fn is_in_background(&self) -> bool {
        self.config.composition.congestion == CongestionKind::Background
    }

    /// Uses the caller's own congestion control from now on, in place of the composition's.
    pub fn control_by(&mut self, congestion: Box<dyn CongestionControl>) {
        self.rate.replace(congestion);
    }

    /// Limits the rate from now on to `cap`, which all streams under the same cap share.
    pub fn hold(&mut self, cap: &Cap) {
        self.config.limits.cap = cap.bytes_per_s();
        self.rate.hold(cap);
    }

    /// Shares loss statistics with the port's other streams to the same host.
    pub(crate) fn join(&mut self, common: Arc<Common>) {
        self.path.join(common);
    }

    /// Counts our host's overload from these counters on.
    pub(crate) fn count_strain_from(&mut self, strain: Strain) {
        self.own_reports.count_from(strain);
    }

    /// Sets what to tell the peer about our host's overload; `None` for nothing.
    pub(crate) fn tell_strain(&mut self, strain: Option<Strain>) {
        self.own_reports.set(strain);
    }

    /// Shares the path with other flows of this host from now on, as the ledger plans.
    pub(crate) fn share(&mut self, flow: Flow) {
        self.rate.share(flow);
    }

    /// Reads what other flows of this host do; `at_once` after an event that changes the plan.
    fn look_around(&mut self, now: Micros, at_once: bool) {
        let load = (self.sending.waiting(), self.sent.in_flight());
        self.rate.look_around(now, load, &self.path, at_once);
    }

    /// The repair of losses, and what it depends on.
    fn repair(&mut self) -> (&mut Repair, Flight<'_>) {
        let (is_full, payload) = (self.is_full(), self.payload());
        let Self { repair, sending, sent, path, rate, .. } = self;
        (repair, Flight { sending, sent, path, congestion: rate.congestion(), is_full, payload })
    }

    /// Encrypts packets. Both ends must call this before the first packet.
    pub(crate) fn seal(&mut self, by: Sealed) {
        self.protection = Box::new(by);
    }

    /// Whether packets are encrypted.
    pub fn is_sealed(&self) -> bool {
        self.protection.is_sealed()
    }

    /// Whether packets are encrypted with a session's keys.
    pub fn is_in_session(&self) -> bool {
        self.protection.is_of_session()
    }

    /// Changes to keys derived from this secret. Both ends share it, or will once our next message has arrived. No
    /// effect if packets are not encrypted, or use a session's keys.
    pub fn rekey(&mut self, secret: &Secret) {
        self.protection.rekey(secret);
    }

    /// Knowledge for the next stream to the same host; `None` before the first round trip.
    pub fn learned(&self, now: Micros) -> Option<Learned> {
        let rtt_us = self.path.rtt_least_us()?;
        let (token, peer_window) = self.handshake.later();
        Some(Learned {
            at: now,
            capacity: self.rate.congestion().capacity().unwrap_or(0),
            rtt_us,
            loss: self.path.loss_known(),
            mtu: self.mtu.payload(),
            token,
            peer_window,
        })
    }

    /// The least round trip of the last seconds. Microseconds.
    pub fn rtt_least_us(&self) -> Option<Micros> {
        self.path.rtt_least_us()
    }

    /// Asks the peer to acknowledge something, unless an acknowledgement is awaited anyway. So a stream that only
    /// receives finds out whether its packets still arrive.
    pub fn ask(&mut self) {
        if !self.awaits_answer() {
            self.liveness.want_ping();
        }
    }

    /// The state, for monitoring.
    pub fn status(&self) -> Status {
        let congestion = self.rate.congestion();
        Status {
            rtt_us: self.path.rtt_us(),
            loss: self.path.loss(),
            pace: congestion.pace(),
            window: congestion.window_bytes(),
            in_flight: self.sent.in_flight(),
            payload: self.mtu.payload(),
            congestion: congestion.name(),
            phase: congestion.phase(),
            is_policed: congestion.is_policed(),
            rtt_least_us: self.path.rtt_least_us(),
            unsent: self.sending.unsent(),
            held: self.sending.held(),
            readable: self.receiving.readable(),
            counters: self.counters,
        }
    }

    /// Memory of data sent and received. Bytes.
    pub fn memory(&self) -> usize {
        self.sending.memory() + self.receiving.memory()
    }

    /// UDP payload of a full packet. Bytes.
    pub(crate) fn payload(&self) -> usize {
        let payload = if self.is_proved() { self.mtu.payload() } else { PAYLOAD_BASE };
        payload as usize
    }

    pub(crate) fn local(&self) -> ConnectionId {
        self.handshake.local()
    }

    /// Whether a Data packet that opens, sealed with the stream's own keys if `keyed`, comes from the peer itself.
    pub(crate) fn proves_peer(&self, keyed: bool) -> bool {
        self.protection.proves_peer(keyed)
    }

    /// Whether no packet with this number or a larger one has come.
    pub(crate) fn is_newest(&self, number: u64) -> bool {
        self.acks.is_newest(number)
    }

    /// The id by which the peer wants to be addressed, once it is known.
    pub(crate) fn remote(&self) -> Option<ConnectionId> {
        self.handshake.remote()
    }

    /// Whether the peer's address is validated.
    pub(crate) fn is_proved(&self) -> bool {
        self.handshake.is_proved()
    }

    /// The pacing quantum unless a short queue is known. It is also the longest delay of an acknowledgement, unless the
    /// peer asks for more. Microseconds.
    fn quantum_us(&self) -> Micros {
        quantum_us(self.path.rtt_least_us().unwrap_or(0))
    }

    fn window_is_open(&self, now: Micros) -> bool {
        let silent_us = self.silent_since().map_or(0, |since| now.saturating_sub(since));
        let silence = if silent_us > 0 { self.rate.congestion().in_silence() } else { None };
        let more = silence.map_or(0, |silence| silence.bytes(silent_us));
        self.window_has_room(self.rate.congestion().window_bytes() + more)
    }

    /// Since when, or from when on, the next acknowledgement is overdue. `None` if there is no new data to send.
    fn silent_since(&self) -> Option<Micros> {
        if self.sending.unsent() == 0 {
            return None;
        }
        let due_at = self.sent.beyond_acknowledged(SILENT_PACKETS)?.sent_at + self.path.rtt_least_us()?;
        Some(due_at.max(self.progress.answered_at()))
    }

    /// When a window that is closed opens, if no acknowledgement comes before.
    fn silence_opens_at(&self) -> Option<Micros> {
        let congestion = self.rate.congestion();
        let needed = (self.sent.in_flight() + self.packet_bytes()).saturating_sub(congestion.window_bytes());
        let after_us = congestion.in_silence()?.after_us(needed)?;
        self.silent_since().filter(|_| !self.sent.is_full()).map(|since| since + after_us)
    }

    /// Whether parity may be sent. It may exceed the window: otherwise the losses of a message that fills the window
    /// would wait a round trip for repair.
    fn window_is_open_for_parity(&self) -> bool {
        let window = self.rate.congestion().window_bytes();
        self.window_has_room(window + window / PARITY_PART)
    }

    /// Size of a full packet. Bytes (wire).
    fn packet_bytes(&self) -> u64 {
        u64::from(self.mtu.payload() + WIRE_OVERHEAD)
    }

    fn window_has_room(&self, window: u64) -> bool {
        !self.sent.is_full() && self.sent.in_flight() + self.packet_bytes() <= window
    }
}
