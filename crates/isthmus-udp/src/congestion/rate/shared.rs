//! A path that is shared with somebody who fills queues: how that shows, and what is done then.
//!
//! CUBIC's window is not taken for more than half of what all have under way. A queue that overflows takes a
//! packet or two, and whose they are is chance: what is lost of ours can be hidden among what is lost by chance
//! anyway, and then the others alone would give way. But as they do the queue becomes shorter, and the half of
//! what is under way with it; so two become equal within some round trips of each overflow, and neither has
//! to wait until CUBIC has grown back, which takes seconds.

use super::round::Round;
use super::*;

/// Rounds with a queue that is not ours after which the path counts as shared.
const SHARED_ROUNDS: u32 = 3;
/// Between attempts to find out whether it still is. Microseconds.
pub(super) const ALONE_EVERY_US: Micros = 8_000_000;
/// Round trips before the first such attempt.
pub(super) const ALONE_FIRST_ROUNDS: Micros = 4;

impl Rate {
    /// A queue that our own window cannot make is somebody else's.
    pub(super) fn look_for_others(&mut self, sample: &AckSample, round: &Round, queue: Micros) {
        let foreign = queue >= self.long_queue_us() && !round.app_limited;
        self.window_before =
            if foreign { self.window_before.max(sample.in_flight) } else { sample.in_flight };
        self.shared_rounds = if foreign { self.shared_rounds + 1 } else { 0 };
        if self.shared_rounds >= SHARED_ROUNDS {
            let bytes = self.window_before.max(4 * self.packet_bytes);
            let cubic = Cubic::with_window(self.limits, bytes, sample.rtt_us, self.packet_bytes);
            self.alone_after_us =
                if self.may_doubt() { ALONE_FIRST_ROUNDS * sample.rtt_us } else { ALONE_EVERY_US };
            self.enter(sample.now, Phase::Shared(cubic));
        } else if self.is_drain_due(sample) {
            self.enter(sample.now, Phase::Drain);
        }
    }

    /// What may be under way beside others. Bytes (wire).
    pub(super) fn beside_others(&self, cubic: &Cubic) -> f64 {
        (cubic.window_bytes() as f64).min(self.half_of_queue())
    }

    /// Half of what all have under way, as long as they fill the path. Bytes (wire).
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

    /// Tells the loss-based control of the shared path: losses only if they are congestion.
    pub(super) fn feed(&mut self, sample: &AckSample, congestion: bool) {
        // The others get as much for theirs.
        let acked_bytes = (sample.acked_bytes as f64 / self.own_share()) as u64;
        let half = self.half_of_queue();
        if let Phase::Shared(cubic) = &mut self.phase {
            // What is not used of it does not grow.
            let app_limited = sample.app_limited || cubic.window_bytes() as f64 > half;
            let lost_packets = u64::from(congestion);
            cubic.on_ack(&AckSample { lost_packets, acked_bytes, app_limited, ..*sample });
        }
    }
}
