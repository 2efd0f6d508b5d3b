//! Slow receiver: its processor does not read packets as fast as they come.
//!
//! The queue then stands in its socket. The one-way delay does not show it, but the delay of acknowledgements does. The
//! control keeps a small queue there, so that the receiver always has work. The rate at which it reads is the capacity.
//! What it drops is no loss of the path, and the capacity does not make up for it.

use super::round::Round;
use super::*;

/// The queue that shows a slow receiver and is kept there. Each time that the receiver drops packets, it is halved.
/// Microseconds.
const QUEUE_US: Micros = 4_000;
/// Shortest such queue. Microseconds.
const QUEUE_MIN_US: Micros = 500;
/// Least time of reading without a pause that tells a rate. Microseconds.
const SPAN_US: Micros = 20_000;
/// If the socket holds less than such a queue, only drops tell. At least this part of the capacity then remains.
const LESS_MAX: f64 = 0.8;
/// Drops below this share of what arrives tell nothing.
const REFUSED_MIN: f64 = 0.01;
/// Longest pause of reading that counts. A longer one, and longer than a round trip, is a standstill and tells nothing of
/// the rate. Microseconds.
const PAUSE_MAX_US: Micros = 50_000;
/// A pause is forgotten in this many times its length.
const PAUSE_PART: Micros = 8;

/// State of a slow receiver.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reader {
    /// It has reported lately that it is slow.
    strained: bool,
    /// Taken off the queue, as the socket holds less. Microseconds.
    less_us: Micros,
    /// How long it reads nothing, at times, because its system runs others. Microseconds.
    pause_us: Micros,
    /// Since when all acknowledged packets have waited long.
    since: Option<Micros>,
    /// Bytes (wire) and packets read since then, and how long that took by its clock.
    bytes: u64,
    packets: u64,
    span_us: Micros,
    /// Least bytes (wire) in flight since then.
    in_flight: u64,
}

impl Reader {
    /// What may be in flight for the receiver's queue, beside what the path holds. Microseconds.
    pub(super) fn queue_us(&self) -> Micros {
        if self.strained { QUEUE_US - self.less_us + self.pause_us } else { 0 }
    }

    pub(super) fn is_strained(&self) -> bool {
        self.strained
    }

    fn shorten(&mut self) {
        self.less_us = QUEUE_US - ((QUEUE_US - self.less_us) / 2).max(QUEUE_MIN_US);
    }

    /// Rounds to wait until a raise shows at the receiver; `None` if it is not slow.
    pub(super) fn patience(&self, rtt_us: Micros) -> Option<u32> {
        self.strained.then_some((SPAN_US / rtt_us.max(ROUND_US).max(self.pause_us)) as u32)
    }

    /// Notes an acknowledgement. Returns how fast the receiver reads, once that is known. Bytes/s (wire).
    fn note(&mut self, sample: &AckSample) -> Option<f64> {
        self.strained = sample.wait_us.is_some() || self.strained && sample.queue_us.is_none();
        if !self.strained {
            *self = Self::default();
            return None;
        }
        let forgotten = self.pause_us.saturating_sub(sample.read_span_us / PAUSE_PART);
        if sample.read_span_us > PAUSE_MAX_US.max(sample.rtt_least_us) {
            *self = Self { since: None, pause_us: forgotten, ..self.again(sample.now) };
            return None;
        }
        self.pause_us = sample.read_span_us.min(PAUSE_MAX_US).max(forgotten);
        let queue_us = QUEUE_US - self.less_us;
        // The reading rate says nothing if the sender has no more to send.
        if sample.app_limited || sample.wait_us.is_some_and(|wait| wait < queue_us) {
            *self = Self { since: None, ..self.again(sample.now) };
            return None;
        }
        if self.since.is_none() {
            *self = self.again(sample.now);
            return None;
        }
        self.bytes += sample.acked_bytes;
        self.packets += sample.acked_packets;
        self.span_us += sample.read_span_us;
        self.in_flight = self.in_flight.min(sample.in_flight);
        if self.span_us < SPAN_US.max(sample.rtt_least_us) || self.packets < TRAIN_PACKETS {
            return None;
        }
        let rate = per_second(self.bytes, self.span_us);
        // A receiver that waits for the sender's window pauses: it has read all that came.
        let held = rate * (sample.rtt_least_us + queue_us / 2) as f64 / 1e6;
        let in_flight = self.in_flight as f64;
        *self = self.again(sample.now);
        Some(rate).filter(|_| in_flight >= held)
    }

    /// Counts from now on.
    fn again(&self, now: Micros) -> Self {
        Self { since: Some(now), bytes: 0, packets: 0, span_us: 0, in_flight: u64::MAX, ..*self }
    }
}

impl Rate {
    /// Processes what an acknowledgement tells of the receiver's processor.
    pub(super) fn hear_reader(&mut self, sample: &AckSample) {
        if let Some(rate) = self.reader.note(sample) {
            // The same host reads the packets of all flows.
            self.take_reading(sample.now, rate / self.own_share());
        } else if sample.refused_packets > 0 && matches!(self.phase, Phase::Start) && self.round.tells_rate()
        {
            let took = self.round.since.map_or(0, |since| sample.now - since);
            self.take_reading(sample.now, per_second(self.round.acked_bytes, took.max(sample.rtt_us)));
        }
    }

    /// Takes the reading rate for the capacity.
    fn take_reading(&mut self, now: Micros, rate: f64) {
        if !matches!(self.phase, Phase::Cruise) {
            self.line = self.line.max(rate);
            self.round = Round::default();
            self.skip = 1;
            self.enter(now, Phase::Cruise);
        }
        self.capacity = (rate / (1.0 - self.chance())).min(self.limits.cap as f64);
        self.trial = None;
        self.note_known();
    }

    /// Judges a round if the receiver's processor was the bottleneck: it then tells only the path's losses.
    pub(super) fn cruise_by_reader(&mut self, round: &Round) -> bool {
        let refused =
            round.refused as f64 / (round.acked + round.losses().lost + round.refused).max(1) as f64;
        let stands = self.reader.since.is_some();
        if !stands && refused < REFUSED_MIN {
            return false;
        }
        if let Some(calm) = round.calm() {
            self.learn_chance(calm);
        }
        if refused >= REFUSED_MIN {
            self.reader.shorten();
        }
        if !stands {
            self.capacity *= (1.0 - refused).max(LESS_MAX);
            self.note_known();
            self.hold = HOLD_ROUNDS;
        }
        self.trial = None;
        true
    }
}
