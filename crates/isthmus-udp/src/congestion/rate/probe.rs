//! Probe: sends half for two round trips, to see whether a delay is a queue.
//!
//! A queue becomes shorter when less is sent, whoever fills it. Jitter and a longer route stay, and count as the path's
//! own delay from then on (`floor.rs`). BBR's ProbeRTT sends half as well (draft-ietf-ccwg-bbr, 5.3.4). It runs by the
//! clock; this probe runs when there is a doubt.

use super::round::Round;
use super::shared::ALONE_EVERY_US;
use super::*;

/// The delay is a queue if at least this part of the expected decrease happens.
const ANSWER: f64 = 0.5;
/// Least expected decrease that tells anything, as a part of the delay: one flow of many takes little off their queue
/// (`flows_that_start_together_fill_the_path_and_none_starves`).
const SHARE_MIN: f64 = 0.2;

/// On a path with a shorter round trip, delay is not doubted: bursts are the queue. Microseconds.
const DOUBT_MIN_US: Micros = 5_000;

/// State of a probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// The queue in doubt, above the floor. Microseconds.
    queue_us: Micros,
    /// Bytes (wire) that may be in flight meanwhile.
    pub(super) window: f64,
    /// CUBIC's state to return to if others share the queue.
    pub(super) cubic: Option<Cubic>,
    /// The probe is so early that an empty queue does not prove the others gone.
    is_early: bool,
}

impl Rate {
    /// Whether delay can be in doubt. On a very short path bursts are the queue, and flows of a group see each other's
    /// queues. A slow receiver makes delay that the path does not. A background flow gives way in doubt.
    pub(super) fn may_doubt(&self) -> bool {
        self.reader.queue_us() == 0
            && self.background.is_none()
            && !(1..DOUBT_MIN_US).contains(&self.rtt_least_us)
            && self.group.is_none_or(|group| group.count == 1)
    }

    /// Mean round trip beyond the least. Microseconds.
    pub(super) fn delay_us(&self, sample: &AckSample) -> Micros {
        sample.rtt_us.saturating_sub(self.rtt_least_us)
    }

    /// Whether delay remains after our own queue should have drained.
    pub(super) fn is_in_doubt(&self, sample: &AckSample, queue: Micros) -> bool {
        queue >= self.queue_us().max(QUANTUM_US)
            || self.delay_us(sample) >= (2 * self.queue_us()).max(3 * QUANTUM_US / 2)
    }

    /// Begins to send half, to test a queue of this length.
    pub(super) fn begin_probe(&mut self, sample: &AckSample, queue: Micros, cubic: Option<Cubic>) {
        let (now, queue_us) = (sample.now, queue.max(self.delay_us(sample)));
        let window = self.window_of_all() / 2.0;
        let is_early = self.alone_after_us < ALONE_EVERY_US;
        self.alone_after_us = ALONE_EVERY_US;
        self.enter(now, Phase::Probe(Probe { queue_us, window, cubic, is_early }));
        self.skip = 1;
    }

    /// Judges a round in which half was in flight.
    pub(super) fn end_probe(
        &mut self,
        sample: &AckSample,
        round: &Round,
        queue: Micros,
        rate: f64,
        probe: Probe,
    ) {
        let left = queue.max(self.delay_us(sample));
        let should_us =
            (probe.window * 1e6 / self.line.max(self.capacity).max(1.0)).min(probe.queue_us as f64);
        let went_us = probe.queue_us.saturating_sub(left) as f64;
        self.skip = 1;
        if !self.is_in_doubt(sample, queue) {
            self.drain_after_us = DRAIN_EVERY_US;
            if let Some(cubic) = probe.cubic
                && probe.is_early
            {
                return self.enter(sample.now, Phase::Shared(cubic));
            }
            if let Some(cubic) = probe.cubic {
                self.window_before = 0;
                self.capacity = (cubic.window_bytes() as f64 * 1e6 / sample.rtt_us.max(1) as f64).max(rate);
            }
            self.enter(sample.now, Phase::Cruise);
        } else if went_us < ANSWER * should_us && should_us >= SHARE_MIN * probe.queue_us as f64 {
            if queue >= self.queue_us() {
                self.floor.rtt_us = self.floor.way_us + round.extra_least_us.unwrap_or(queue);
                self.floor.way_us += queue;
            }
            self.reset_step();
            // What start-up took for the capacity may have been this delay.
            self.unsure = true;
            self.model_path(sample.now);
        } else if let Some(cubic) = probe.cubic {
            self.enter(sample.now, Phase::Shared(cubic));
        } else {
            self.enter(sample.now, Phase::Cruise);
        }
    }
}
