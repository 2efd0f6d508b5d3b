//! Bursts in start-up: what they show of a path that is faster than the rate sent so far.
//!
//! A flight that makes no queue arrives as fast as it left. So the path carries that rate, at least for the length of
//! the flight. The next flight leaves at the rate at which this one arrived and is several times as long, until flights
//! fill the round trip. If a rate is wrong, the queue shows it before the next, longer flight has left.

use crate::Micros;
use crate::congestion::{AckSample, Limits};

/// Bytes that the window gains for each byte that has arrived in bursts.
const GROWTH: f64 = 7.0;
/// A gap between arrivals that ends a burst. Microseconds.
const GAP_US: Micros = 2_000;
/// The same as a part of the round trip. The shorter one counts.
const GAP_PART: Micros = 4;
/// Queue by which the first flight shows a slower path. Microseconds.
const SHOWN_US: Micros = 2 * super::start::START_QUEUE_US;

/// What the bursts of start-up have shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bursts {
    /// Rate of the fastest burst. Bytes/s (wire); 0 if there was none.
    rate: f64,
    /// Bytes (wire) that have arrived in bursts.
    arrived: u64,
    /// The present burst without its first acknowledgement: bytes (wire), receiver's time, and the queueing delay of
    /// its first packets.
    bytes: u64,
    span_us: Micros,
    waited_us: Micros,
}

impl Bursts {
    /// Notes an acknowledgement. It learns nothing from bursts below `least` bytes (wire), or while a queue stands.
    pub(super) fn note(&mut self, sample: &AckSample, is_clear: bool, least: u64) {
        if sample.resumed || !is_clear || ends_burst(sample) {
            (self.bytes, self.span_us) = (0, 0);
            self.waited_us = sample.queue_us.unwrap_or(0);
            return;
        }
        self.bytes += sample.acked_bytes;
        self.span_us += sample.span_us;
        let Some(queue_us) = sample.queue_us.filter(|_| self.bytes >= least) else { return };
        // Packets that arrive faster than they left have waited together.
        let left_in_us = self.span_us + self.waited_us.saturating_sub(queue_us);
        self.arrived += if self.arrived > 0 { sample.acked_bytes } else { self.bytes };
        self.rate = self.rate.max(super::per_second(self.bytes, left_in_us));
    }

    /// Rate of the fastest burst, if it exceeds the rates that the first flight shows by its queue. Bytes/s (wire).
    pub(super) fn rate(&self, limits: &Limits) -> Option<f64> {
        let first_us = limits.first_window * 1_000_000 / limits.first_pace.max(1);
        let shown = super::per_second(limits.first_window, first_us + SHOWN_US);
        Some(self.rate).filter(|rate| *rate > shown)
    }

    /// Bytes (wire) that may be in flight if the round trip takes `round_us`.
    pub(super) fn window(&self, limits: &Limits, round_us: Micros) -> f64 {
        let Some(rate) = self.rate(limits) else { return 0.0 };
        let filled = rate * round_us as f64 / 1e6;
        filled.min(limits.first_window as f64 + GROWTH * self.arrived as f64)
    }
}

/// Arrival rate within bursts of any length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    /// The present burst without its first acknowledgement: bytes (wire), packets, and receiver's time.
    bytes: u64,
    packets: u64,
    span_us: Micros,
    /// Rate of the fastest burst. Bytes/s (wire); 0 if there was none.
    pub(super) fastest: f64,
}

impl Arrival {
    /// Notes an acknowledgement. A burst of fewer than `least` packets does not count.
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

/// Whether nothing arrived for most of a round trip, so that no queue stood meanwhile. In a shorter time others'
/// packets may have been ahead of ours.
pub(super) fn was_empty(sample: &AckSample) -> bool {
    4 * sample.span_us > 3 * sample.rtt_least_us.max(GAP_US)
}

/// Whether the sender paused for a good part of a long round trip because its window was full. A busy path would have
/// made the packets that arrived now wait.
pub(super) fn was_held_up(sample: &AckSample) -> bool {
    let is_long = sample.span_us > sample.rtt_least_us / GAP_PART && sample.rtt_least_us >= GAP_PART * GAP_US;
    is_long && sample.queue_us.is_some_and(|queue| 2 * queue < sample.span_us)
}
