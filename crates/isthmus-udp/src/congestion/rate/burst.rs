//! What bursts show in start-up of a path that is faster than what is sent so far.
//!
//! A flight that makes no queue arrives as fast as it left: the path carries that much, at least for as
//! long as the flight was. So the next one goes at the rate at which this one came, and is a few
//! times as long, until flights fill the round trip. Were the rate of one wrong, the queue would show it
//! before the next, longer one has left.

use crate::Micros;
use crate::congestion::{AckSample, Limits};

/// How many times as long as what has arrived the next flight is, less one.
const GROWTH: f64 = 7.0;
/// Time without an arrival that ends a burst, and part of a round trip: the lesser of them. Microseconds.
const GAP_US: Micros = 2_000;
const GAP_PART: Micros = 4;
/// Queue by which the first flight shows a slower path. Microseconds.
const SHOWN_US: Micros = 2 * super::start::START_QUEUE_US;

/// See the module's text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bursts {
    /// The rate at which the fastest arrived. Bytes/s (wire); 0 if there was none.
    rate: f64,
    /// What has arrived in bursts. Bytes (wire).
    arrived: u64,
    /// The present burst, its first acknowledgement left out: bytes (wire), receiver's time, and what
    /// its first packets waited.
    bytes: u64,
    span_us: Micros,
    waited_us: Micros,
}

impl Bursts {
    /// Takes in an acknowledgement; of bursts below `least` bytes (wire), and where a queue stands, nothing
    /// is learned.
    pub(super) fn note(&mut self, sample: &AckSample, is_clear: bool, least: u64) {
        if sample.resumed || !is_clear || ends_burst(sample) {
            (self.bytes, self.span_us) = (0, 0);
            self.waited_us = sample.queue_us.unwrap_or(0);
            return;
        }
        self.bytes += sample.acked_bytes;
        self.span_us += sample.span_us;
        let Some(queue_us) = sample.queue_us.filter(|_| self.bytes >= least) else { return };
        // What arrives faster than it left has waited together.
        let left_in_us = self.span_us + self.waited_us.saturating_sub(queue_us);
        self.arrived += if self.arrived > 0 { sample.acked_bytes } else { self.bytes };
        self.rate = self.rate.max(super::per_second(self.bytes, left_in_us));
    }

    /// The rate at which the fastest arrived, if there was one that is faster than what the first flight
    /// shows by the queue that it makes. Bytes/s (wire).
    pub(super) fn rate(&self, limits: &Limits) -> Option<f64> {
        let first_us = limits.first_window * 1_000_000 / limits.first_pace.max(1);
        let shown = super::per_second(limits.first_window, first_us + SHOWN_US);
        Some(self.rate).filter(|rate| *rate > shown)
    }

    /// How much may be under way where that takes `round_us`. Bytes (wire).
    pub(super) fn window(&self, limits: &Limits, round_us: Micros) -> f64 {
        let Some(rate) = self.rate(limits) else { return 0.0 };
        let filled = rate * round_us as f64 / 1e6;
        filled.min(limits.first_window as f64 + GROWTH * self.arrived as f64)
    }
}

/// How fast packets arrive that arrive together, however many of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    /// The present burst, its first acknowledgement left out: bytes (wire), packets, and receiver's time.
    bytes: u64,
    packets: u64,
    span_us: Micros,
    /// The fastest burst. Bytes/s (wire); 0: there was none.
    pub(super) fastest: f64,
}

impl Arrival {
    /// Takes in an acknowledgement. A burst of fewer than `least` packets does not count.
    pub(super) fn note(&mut self, sample: &AckSample, least: u64) {
        if sample.resumed || ends_burst(sample) {
            *self = Self { fastest: self.fastest, ..Self::default() };
            return;
        }
        self.bytes += sample.acked_bytes;
        self.packets += sample.acked_packets;
        self.span_us += sample.span_us;
        if self.packets >= least {
            self.fastest = self.fastest.max(super::per_second(self.bytes, self.span_us));
        }
    }
}

fn ends_burst(sample: &AckSample) -> bool {
    sample.span_us > GAP_US.min(sample.rtt_least_us / GAP_PART)
}

/// Whether nothing had arrived for most of a round trip, so that no queue stood meanwhile: in a shorter time
/// others' packets may have been before ours.
pub(super) fn was_empty(sample: &AckSample) -> bool {
    4 * sample.span_us > 3 * sample.rtt_least_us.max(GAP_US)
}

/// Whether the sender paused for a good part of a long round trip before what arrived now, though it had not run
/// out of data: its window was full. What left before would have made this wait.
pub(super) fn was_held_up(sample: &AckSample) -> bool {
    let is_long = sample.span_us > sample.rtt_least_us / GAP_PART && sample.rtt_least_us >= GAP_PART * GAP_US;
    is_long && sample.queue_us.is_some_and(|queue| 2 * queue < sample.span_us)
}
