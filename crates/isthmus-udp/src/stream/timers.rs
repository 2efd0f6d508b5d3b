//! What a stream does by time: probes while nothing is acknowledged, keepalives, and giving up.

use super::{Failure, PAYLOAD_BASE, Stream};
use crate::Micros;
use crate::redundancy::Matter;
use crate::sharing::Sharing;

/// Longest wait between probes in a long silence or without an RTT; a longer probe timeout wins. Microseconds (50 ms).
const PROBE_MAX_US: Micros = 50_000;
/// Silence (4 s) during which probes are at most RTT/2 apart, or 5 ms if that is more. Microseconds.
const PROBE_OFTEN_US: Micros = 4_000_000;
const PROBE_SPACE_US: Micros = 5_000;
/// Data that pauses for this long may not find the way any more, if a NAT before the receiver has forgotten it. A Ping
/// then shows the sender where the receiver is. Microseconds (1 s).
const QUIET_US: Micros = 1_000_000;
/// Probes before the waits begin to grow: the answers to the first ones may themselves be lost. Count.
const PROBES_EARLY: u32 = 3;
/// Least packets of a probe, and most that are added on paths that lose packets in runs. Count.
const PROBES_MIN: u8 = 2;
const PROBES_MORE: u8 = 4;
/// Part of the window that a probe takes at most, if that is more than the least packets. A short queue may drop the rest,
/// and those packets fill the window until they count as lost.
const PROBE_PART: u64 = 2;

impl Stream {
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
        let window = self.window_is_open(now);
        let for_parity = self.window_is_open_for_parity();
        let work =
            self.sending.has_work() || self.repeats.is_pending() || self.train.is_some_and(|left| left > 0);
        let parity = for_parity && self.parity.is_pending();
        let opens_at = if window || parity { Some(now) } else { self.silence_opens_at() };
        let sending = opens_at.filter(|_| work || parity).map(|at| at.max(self.pacer.opens_at()));
        let coding = self.coding_due().filter(|_| for_parity).map(|due| due.max(self.pacer.opens_at()));
        let copies = self.sending.copy_due().filter(|_| window).map(|due| due.max(self.pacer.opens_at()));
        let room = self.sharing.as_ref().filter(|_| work && !window).and_then(Sharing::wake_at);
        let keepalive = Some(if self.awaits_answer() { self.patience_ends() } else { self.quiet_ends() });
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

    /// Whether we wait for the peer's acknowledgement, or for a larger window.
    pub(super) fn awaits_answer(&self) -> bool {
        self.sent.open() > 0 || self.sending.awaits_room()
    }

    /// When to ask whether the peer is still there, if nothing comes.
    pub(super) fn quiet_ends(&self) -> Micros {
        let keepalive = self.heard_at + self.config.keepalive_us;
        self.data_at.map_or(keepalive, |at| keepalive.min(at + QUIET_US))
    }

    pub(super) fn patience_ends(&self) -> Micros {
        self.heard_at + self.config.patience_us
    }

    /// False if the amplification limit of an address that is not validated forbids another packet.
    pub(super) fn may_answer(&self) -> bool {
        self.allowance.is_none_or(|allowance| allowance >= u64::from(PAYLOAD_BASE))
    }

    pub(super) fn has_urgent(&self) -> bool {
        self.ping || self.probes_due > 0
    }

    /// Does what is due by time.
    pub(crate) fn on_timeout(&mut self, now: Micros) {
        if self.failure.is_some() {
            return;
        }
        if !self.awaits_answer() {
            if now >= self.quiet_ends() {
                self.ping = true;
                self.data_at = None;
            }
            if now >= self.heard_at + self.config.keepalive_us {
                self.sending.rest();
                self.receiving.rest();
            }
        } else if now >= self.patience_ends() {
            self.failure = Some(Failure::Silent);
            self.closing = Some(1);
        } else if self.probe_at.is_some_and(|at| now >= at) {
            self.probes += 1;
            // While the RTT is a guess, an opening that was sent in copies is more likely under way than lost.
            let copied = self.redundancy.packets(Matter::Tail, self.path.loss_supposed()) > 1;
            let guessed = self.path.rtt_us().is_none() && self.sending.sent_to() == 0;
            let least = if guessed && copied && self.probes <= PROBES_EARLY { 1 } else { PROBES_MIN };
            // If losses come in runs, one run must not lose the whole probe.
            let tail = self.redundancy.packets(Matter::Tail, self.path.loss());
            let wanted = tail.max(least) + (self.path.run() as u8 - 1).min(PROBES_MORE);
            let most = self.congestion.window_bytes() / PROBE_PART / self.packet_bytes();
            self.probes_due = wanted.min(most.min(u64::from(u8::MAX)) as u8).max(least);
            self.probe_from = 0;
            self.counters.silences += 1;
            self.arm_probe(now);
        }
    }

    /// Sets when a probe is sent, unless an acknowledgement comes first. The waits grow only a little: the stream
    /// should notice within a round trip that a link is back.
    pub(super) fn arm_probe(&mut self, now: Micros) {
        let once = self.path.probe_after_us(self.quantum_us().max(self.spacing.asked_us()));
        let doublings = self.probes.saturating_sub(PROBES_EARLY).min(6);
        let most = match self.path.rtt_least_us() {
            Some(rtt) if now.saturating_sub(self.heard_at) < PROBE_OFTEN_US => (rtt / 2).max(PROBE_SPACE_US),
            _ => once.max(PROBE_MAX_US),
        };
        let wait = if self.probes < PROBES_EARLY { once } else { (once << doublings).min(most) };
        self.probe_at = Some(now + wait);
    }
}
