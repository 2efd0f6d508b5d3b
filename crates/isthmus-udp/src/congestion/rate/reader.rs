//! A receiver whose processor does not read packets as fast as they come.
//!
//! The queue is in its socket then, where the one-way delay does not show it, but the time does that passes before an
//! acknowledgement leaves. A small queue is kept standing there, so that the receiver is never without work, and
//! what it reads meanwhile is the capacity: what it drops is no loss of the path, and is not sent in addition.

use super::round::Round;
use super::*;

/// The queue that shows that the receiver has more than it can read, and is kept there; half of it each time that it
/// drops some of it, but not less than this. Microseconds.
const QUEUE_US: Micros = 4_000;
const QUEUE_LEAST_US: Micros = 500;
/// Least time of reading without a pause that tells its rate. Microseconds.
const SPAN_US: Micros = 20_000;
/// Where its socket holds less than such a queue only drops tell: least that is sent of what was, a round later.
const LESS_MOST: f64 = 0.8;
/// Drops that tell nothing, as a share of what arrives.
const REFUSED_LEAST: f64 = 0.01;
/// Most that the time counts for in which it read nothing; and in how many times that it is forgotten. Microseconds.
const PAUSE_MOST_US: Micros = 50_000;
const PAUSE_PART: Micros = 8;

/// What is seen of such a receiver.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reader {
    /// It has said lately that it is one.
    strained: bool,
    /// What is taken off the queue, as its socket holds less. Microseconds.
    less_us: Micros,
    /// For how long it reads nothing, at times: the system has others run.
    pause_us: Micros,
    /// All that was heard since then had waited long.
    since: Option<Micros>,
    /// What it read meanwhile, and how long that took by its clock: bytes (wire), packets.
    bytes: u64,
    packets: u64,
    span_us: Micros,
    /// The least that was under way meanwhile. Bytes (wire).
    in_flight: u64,
}

impl Reader {
    /// What may be under way for its sake beside what the path holds. Microseconds.
    pub(super) fn queue_us(&self) -> Micros {
        if self.strained { QUEUE_US - self.less_us + self.pause_us } else { 0 }
    }

    fn shorten(&mut self) {
        self.less_us = QUEUE_US - ((QUEUE_US - self.less_us) / 2).max(QUEUE_LEAST_US);
    }

    /// Rounds to wait for what a little more sent shows there, while it is one.
    pub(super) fn patience(&self, rtt_us: Micros) -> Option<u32> {
        self.strained.then_some((SPAN_US / rtt_us.max(ROUND_US).max(self.pause_us)) as u32)
    }

    /// Takes in an acknowledgement; how fast it reads, once that is known. Bytes/s (wire).
    fn note(&mut self, sample: &AckSample) -> Option<f64> {
        self.strained = sample.wait_us.is_some() || self.strained && sample.queue_us.is_none();
        if !self.strained {
            *self = Self::default();
            return None;
        }
        let forgotten = self.pause_us.saturating_sub(sample.read_span_us / PAUSE_PART);
        self.pause_us = sample.read_span_us.min(PAUSE_MOST_US).max(forgotten);
        let queue_us = QUEUE_US - self.less_us;
        // What somebody who has no more to send gets through says nothing.
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
        // Where it waits for the sender's window it pauses, and has read all that came.
        let held = rate * (sample.rtt_least_us + queue_us / 2) as f64 / 1e6;
        let in_flight = self.in_flight as f64;
        *self = self.again(sample.now);
        Some(rate).filter(|_| in_flight >= held)
    }

    /// What it reads is counted from now on.
    fn again(&self, now: Micros) -> Self {
        Self { since: Some(now), bytes: 0, packets: 0, span_us: 0, in_flight: u64::MAX, ..*self }
    }
}

impl Rate {
    /// Takes in what an acknowledgement tells of the receiver's processor.
    pub(super) fn hear_reader(&mut self, sample: &AckSample) {
        if let Some(rate) = self.reader.note(sample) {
            // All are read by the same host.
            self.take_reading(sample.now, rate / self.own_share());
        } else if sample.refused_packets > 0 && matches!(self.phase, Phase::Start) && self.round.tells_rate()
        {
            let took = self.round.since.map_or(0, |since| sample.now - since);
            self.take_reading(sample.now, per_second(self.round.acked_bytes, took.max(sample.rtt_us)));
        }
    }

    /// So much is read at the receiver, and no more.
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

    /// A round in which the receiver's processor was the bottleneck tells nothing of the path but what that loses.
    pub(super) fn cruise_by_reader(&mut self, round: &Round) -> bool {
        let refused =
            round.refused as f64 / (round.acked + round.losses().lost + round.refused).max(1) as f64;
        let stands = self.reader.since.is_some();
        if !stands && refused < REFUSED_LEAST {
            return false;
        }
        if let Some(calm) = round.calm() {
            self.learn_chance(calm);
        }
        if refused >= REFUSED_LEAST {
            self.reader.shorten();
        }
        if !stands {
            self.capacity *= (1.0 - refused).max(LESS_MOST);
            self.note_known();
            self.hold = HOLD_ROUNDS;
        }
        self.trial = None;
        true
    }
}
