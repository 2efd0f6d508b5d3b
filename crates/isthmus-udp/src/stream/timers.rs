//! What a stream does by time: probes while nothing is acknowledged, keepalives, and giving up.

use super::{Failure, Stream};
use crate::Micros;

/// Least packets of a probe, and most that are added on paths that lose packets in runs. Count.
const PROBES_MIN: u8 = 2;
const PROBES_MORE: u8 = 4;
/// Part of the window that a probe takes at most, if that is more than the least packets. A short queue may drop the rest,
/// and those packets fill the window until they count as lost.
const PROBE_PART: u64 = 2;

impl Stream {
    /// When [`Stream::on_timeout`] or another attempt to transmit is due.
    pub(crate) fn poll_timeout(&mut self, now: Micros) -> Option<Micros> {
        if self.ending.has_failed() {
            return self.ending.tells().then_some(now);
        }
        if !self.handshake.may_send() {
            return Some(self.liveness.patience_ends());
        }
        if self.liveness.wants_ping() || self.probing.is_due() {
            return Some(now);
        }
        if self.probing.at().is_none() && self.awaits_answer() {
            self.arm_probe(now);
        }
        let window = self.window_is_open(now);
        let for_parity = self.window_is_open_for_parity();
        let work = self.sending.has_work() || self.repair.has_repeats() || self.rate.has_train();
        let parity = for_parity && self.repair.has_parity();
        let pacer_at = self.rate.opens_at();
        let opens_at = if window || parity { Some(now) } else { self.silence_opens_at() };
        let sending = opens_at.filter(|_| work || parity).map(|at| at.max(pacer_at));
        let (repair, flight) = self.repair();
        let coding = repair.coding_due(&flight).filter(|_| for_parity).map(|due| due.max(pacer_at));
        let copies = self.sending.copy_due().filter(|_| window).map(|due| due.max(pacer_at));
        let room = self.rate.share_wakes_at().filter(|_| work && !window);
        let liveness = &self.liveness;
        let keepalive =
            Some(if self.awaits_answer() { liveness.patience_ends() } else { liveness.quiet_ends() });
        [
            sending,
            room,
            copies,
            coding,
            self.handshake.copy_due(),
            self.acks.due(),
            self.probing.at(),
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

    /// Does what is due by time.
    pub(crate) fn on_timeout(&mut self, now: Micros) {
        if self.ending.has_failed() {
            return;
        }
        if !self.awaits_answer() {
            if self.liveness.see_to_quiet(now) {
                self.sending.rest();
                self.receiving.rest();
            }
        } else if now >= self.liveness.patience_ends() {
            self.ending.fail_and_tell(Failure::Silent);
        } else if self.probing.begin(now) {
            let packets = self.probe_packets();
            self.probing.set_packets(packets);
            self.counters.silences += 1;
            self.arm_probe(now);
        }
    }

    /// Number of packets of the probe that begins now.
    fn probe_packets(&self) -> u8 {
        // While the RTT is a guess, an opening that was sent in copies is more likely under way than lost.
        let copied = self.repair.tail_packets(self.path.loss_supposed()) > 1;
        let guessed = self.path.rtt_us().is_none() && self.sending.sent_to() == 0;
        let least = if guessed && copied && self.probing.is_early() { 1 } else { PROBES_MIN };
        // If losses come in runs, one run must not lose the whole probe.
        let tail = self.repair.tail_packets(self.path.loss());
        let wanted = tail.max(least) + (self.path.run() as u8 - 1).min(PROBES_MORE);
        let most = self.rate.congestion().window_bytes() / PROBE_PART / self.packet_bytes();
        wanted.min(most.min(u64::from(u8::MAX)) as u8).max(least)
    }

    /// Sets when a probe is sent, unless an acknowledgement comes first.
    pub(super) fn arm_probe(&mut self, now: Micros) {
        let once_us = self.path.probe_after_us(self.quantum_us().max(self.spacing.asked_us()));
        self.probing.arm(now, once_us, self.path.rtt_least_us(), self.liveness.silent_us(now));
    }
}
