//! Background flow: less than best effort (RFC 6297), which uses what other flows leave of a path.
//!
//! This is LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus) by rate instead of window. Its target is a queue of
//! 1/[`TARGET_PART`] of a round trip. Other controls keep longer ones, so it gives way to all of them. A longer queue
//! has one of two causes:
//!
//! - *Own*: the flow sends less for one round trip (`Drain`), and then [`PART`] of what arrived, for [`WATCH_ROUNDS`].
//!   Its own queue goes and does not come back. LEDBAT++ calls this a slowdown.
//! - *Others'*: a longer queue stands in one of these rounds. The flow halves its rate, which is the most that LEDBAT++
//!   takes off, every second round trip until the queue has gone, down to [`PACKETS_PER_S`].
//!
//! Without a queue the rate grows by what makes a quarter of the target in a round trip ([`STEP`]).
//!
//! Delay that is not a queue, such as jitter or a longer route, slows it down as well: the model is not used.

use super::round::Round;
use super::*;
use crate::pacer::QUANTUM_MIN_US;

/// Target of the queue, as a part of a round trip.
const TARGET_PART: Micros = 64;
/// Bounds of the target: two quanta, so that its own bursts are no queue, and half of what [`Rate::queue_us`] keeps
/// otherwise. Microseconds.
const TARGET_US: std::ops::RangeInclusive<Micros> = 2 * QUANTUM_MIN_US..=1_000;
/// Least target in packets, within the same bounds: a queue is seen in whole packets.
const TARGET_PACKETS: u64 = 4;
/// Part of what arrived that is sent after the own queue has drained. Rates vary by less than the rest between rounds.
const PART: f64 = 0.98;
/// Rounds for which that lasts.
const WATCH_ROUNDS: u32 = 4;
/// Part of the target that a step makes in a round trip. With a half, the flow takes more than a twentieth of a link
/// beside a CUBIC flow that grows back after losses.
pub(super) const STEP: f64 = 0.25;
/// Rounds until a drain shows: the pacer first catches up on what the window held back.
pub(super) const DRAINED_ROUNDS: u32 = 2;
/// Half of the time for which the least round trip counts, as in LEDBAT's base history of 10 minutes (RFC
/// 6817, 4.2). The path's own memory ends while another flow's queue stands. Microseconds.
const HALF_HISTORY_US: Micros = 300_000_000;
/// Least rate. Packets/s.
const PACKETS_PER_S: u64 = 10;
/// Initial window (RFC 6928). Bytes (wire).
const FIRST_BYTES: u64 = 15_000;

/// State of a background flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Background {
    /// Least round trip of this half of the history and of the one before, and when this one began. Microseconds.
    least_us: Micros,
    before_us: Option<Micros>,
    since: Option<Micros>,
    /// Rounds left in which a queue longer than the target counts as others'.
    pub(super) watch: u32,
    /// The queue when the flow last gave way. Microseconds.
    pub(super) queue_us: Micros,
}

impl Background {
    fn base_us(&mut self, now: Micros, rtt_least_us: Micros) -> Micros {
        match self.since {
            Some(since) if now - since < HALF_HISTORY_US => self.least_us = self.least_us.min(rtt_least_us),
            since => {
                self.before_us = since.map(|_| self.least_us);
                (self.least_us, self.since) = (rtt_least_us, Some(now));
            }
        }
        self.before_us.map_or(self.least_us, |before| before.min(self.least_us))
    }

    /// Notes an acknowledgement. Returns it with the history's least round trip, and the queue beyond that.
    pub(super) fn note(&mut self, sample: &AckSample) -> AckSample {
        let base_us = self.base_us(sample.now, sample.rtt_least_us);
        let forgotten_us = sample.rtt_least_us - base_us;
        let queue_us = sample.queue_us.map(|queue| queue + forgotten_us);
        AckSample { queue_us, rtt_least_us: base_us, ..*sample }
    }
}

impl Rate {
    /// A background flow that knows nothing of its path.
    pub fn background(limits: Limits) -> Self {
        let first_window = limits.first_window.min(FIRST_BYTES);
        Self { background: Some(Background::default()), ..Self::new(Limits { first_window, ..limits }) }
    }

    /// The queue that a background flow keeps standing. Microseconds.
    pub(super) fn target_us(&self) -> Micros {
        let packets_us = (TARGET_PACKETS * self.packet_bytes) as f64 * 1e6 / self.line.max(1.0);
        (self.rtt_least_us / TARGET_PART)
            .max(packets_us as Micros)
            .clamp(*TARGET_US.start(), *TARGET_US.end())
    }

    /// Gives way if a queue longer than the target stood for the whole round, or a router has marked packets. Returns whether
    /// it did.
    pub(super) fn gives_way(&mut self, sample: &AckSample, round: &Round) -> bool {
        let (target, may) = (self.queue_us(), self.skip == 0 && matches!(self.phase, Phase::Cruise));
        let (Some(background), Some(queue), true) = (&mut self.background, round.queue_least_us, may) else {
            return false;
        };
        let is_watching = background.watch > 0;
        background.watch = background.watch.saturating_sub(u32::from(round.tells_rate()));
        if queue <= target && round.marked == 0 || !is_watching && !round.tells_rate() {
            return false;
        }
        (background.watch, background.queue_us, self.rates) = (WATCH_ROUNDS, queue, [0.0; 3]);
        if is_watching {
            self.capacity = (self.capacity / 2.0).max((PACKETS_PER_S * self.packet_bytes) as f64);
            self.skip = 1;
        } else {
            self.capacity = self.capacity.min(PART * self.rate_of(sample.now, round) / (1.0 - self.chance()));
            self.enter(sample.now, Phase::Drain);
        }
        true
    }
}
