//! Shared path: how a path with others that fill its queue shows, and how the control then sends.
//!
//! It sends by CUBIC's window, but has at most half of what all have in flight. An overflowing queue drops a packet or
//! two, and chance decides whose. Our losses may hide among random losses, and then only the others would give way. But
//! as they do, the queue becomes shorter, and half of what is in flight with it. So two flows become equal within some
//! round trips of each overflow, and neither waits seconds until CUBIC has grown back.

use super::round::Round;
use super::*;

/// Successive rounds with a queue that is not ours after which the path counts as shared.
const SHARED_ROUNDS: u32 = 3;
/// Interval between tests whether it still is. Microseconds.
pub(super) const ALONE_EVERY_US: Micros = 8_000_000;
/// Round trips before the first such test.
pub(super) const ALONE_FIRST_ROUNDS: Micros = 4;

impl Rate {
    /// Judges whether others share the path: our own window cannot make a long queue.
    pub(super) fn look_for_others(&mut self, sample: &AckSample, round: &Round, queue: Micros) {
        let foreign = queue >= self.long_queue_us() && !round.app_limited;
        self.window_before =
            if foreign { self.window_before.max(sample.in_flight) } else { sample.in_flight };
        self.shared_rounds = if foreign { self.shared_rounds + 1 } else { 0 };
        if self.delay_us(sample) <= 2 * (self.slack_us() + self.back_us + self.queue_us()) {
            self.delayed_rounds = 0;
        } else if !round.app_limited {
            self.delayed_rounds += 1;
        }
        if self.shared_rounds >= SHARED_ROUNDS {
            let bytes = self.window_before.max(4 * self.packet_bytes);
            let cubic = Cubic::with_window(self.limits, bytes, sample.rtt_us, self.packet_bytes);
            self.alone_after_us =
                if self.may_doubt() { ALONE_FIRST_ROUNDS * sample.rtt_us } else { ALONE_EVERY_US };
            self.enter(sample.now, Phase::Shared(cubic));
        } else if self.is_drain_due(sample) {
            self.enter(sample.now, Phase::Drain);
        } else if self.is_uneven && self.delayed_rounds >= SHARED_ROUNDS && self.may_doubt() {
            self.delayed_rounds = 0;
            self.begin_probe(sample, queue, None);
        }
    }

    /// Bytes (wire) that may be in flight beside others.
    pub(super) fn beside_others(&self, cubic: &Cubic) -> f64 {
        (cubic.window_bytes() as f64).min(self.half_of_queue())
    }

    /// Half of what all have in flight while they fill the path. Bytes (wire).
    fn half_of_queue(&self) -> f64 {
        self.line * self.rtt_us as f64 / 2e6
    }

    pub(super) fn share(
        &mut self,
        sample: &AckSample,
        round: &Round,
        queue: Micros,
        rate: f64,
        cubic: Cubic,
    ) {
        if queue < self.queue_us() / 2 {
            self.capacity = rate / (1.0 - self.chance());
            self.enter(sample.now, Phase::Cruise);
        } else if sample.now - self.phase_since >= self.alone_after_us {
            self.begin_probe(sample, queue, Some(cubic));
        } else {
            let excess = round.loss() > self.excess_above(round.losses().all, sample.loss_run);
            self.feed(sample, excess);
        }
    }

    /// Updates CUBIC on a shared path. It hears of losses only if they are congestion.
    pub(super) fn feed(&mut self, sample: &AckSample, congestion: bool) {
        // The window is for all flows of the host, whose deliveries are in proportion.
        let acked_bytes = (sample.acked_bytes as f64 / self.own_share()) as u64;
        let half = self.half_of_queue();
        if let Phase::Shared(cubic) = &mut self.phase {
            // A window that is not used must not grow.
            let app_limited = sample.app_limited || cubic.window_bytes() as f64 > half;
            let lost_packets = u64::from(congestion);
            cubic.on_ack(&AckSample { lost_packets, acked_bytes, app_limited, ..*sample });
        }
    }
}
