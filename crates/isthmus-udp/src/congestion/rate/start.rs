//! Start-up of the rate control: what the first flights tell of their path.

use super::burst::{Arrival, was_empty, was_held_up};
use super::round::Round;
use super::*;

/// Queue that shows the bottleneck during start-up. Microseconds.
pub(super) const START_QUEUE_US: Micros = 1_000;
/// Packets of the first flight that tell of it: of few, one that is lost is a large share.
const START_PACKETS: u64 = 32;
/// Flights in start-up that may have arrived at less than half of what a train has shown: the sender may
/// have paused within them.
const DOUBTS_MOST: u32 = 8;
/// Loss in start-up beyond which what arrives says nothing of the path.
const LOST_START: f64 = 0.5;
/// A queue that overflows and was never longer is short: it has no room for the 1 to 4 ms that are kept standing.
/// Microseconds.
const SHALLOW_US: Micros = 4_000;
/// Loss in start-up beyond which it is hardly chance alone.
pub(super) const CHANCE_MOST: f64 = 0.2;
/// Most by which one round trip may raise the capacity in start-up.
const LEAP: f64 = 64.0;
/// The part of what bursts have shown at which the path counts as full, and the first step beyond.
const FULL: f64 = 0.8;
const STEP_FULL: f64 = 0.25;
/// Rounds in which the rate does not grow by so much show that the path is full, as of BBR's start-up; so many of them.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// Most rounds after start-up in which packets of its last flight arrive.
const FLIGHT_ROUNDS: u32 = 2;
/// What a path is taken for that showed nothing because others filled it. Bytes/s (1 Gb/s).
const LINE_UNKNOWN: f64 = 125e6;

impl Rate {
    /// Start-up: looks at the flight as it arrives.
    pub(super) fn on_start(&mut self, sample: &AckSample) {
        self.watch_queue(sample);
        self.watch_overflow(sample);
        // Who is not held up by the queue tells nothing of it: others may have made it.
        if !self.had_enough(&self.train, self.by_others(&self.train)) && !self.train.is_train {
            self.train = Round::default();
        }
        let long = self.tells_of_all(sample, &self.train);
        if long && self.train.tells_rate() && self.train.losses().all >= START_PACKETS {
            self.take_train(sample);
        } else if sample.round_ended && (self.round.span_us >= TRAIN_US || !is_short(sample.rtt_least_us)) {
            self.end_round_of_start(sample);
        }
    }

    /// Start-up of a flow that follows. It learns from what arrives, for it may lead next.
    pub(super) fn on_start_of_all(&mut self, sample: &AckSample) {
        self.round.note(sample, 3 * self.queue_us(), self.delivered());
        self.watch_queue(sample);
        self.watch_overflow(sample);
        if sample.round_ended {
            self.round = Round::default();
        }
    }

    /// Sees what arrives behind a queue.
    fn watch_queue(&mut self, sample: &AckSample) {
        if let Some(queue) = sample.queue_us {
            let rtt_us = sample.rtt_least_us;
            // What little goes at first on a short path makes no more.
            let least_us = if is_short(rtt_us) { quantum_us(rtt_us) / 2 } else { START_QUEUE_US };
            self.queued = if queue >= least_us { self.queued + 1 } else { 0 };
        }
        // The bottleneck's rate shows in what arrives while the queue stands; what came before
        // it stood may have left with pauses.
        let empty = self.bursts.rate(&self.limits).is_some() && was_empty(sample);
        let held_up = was_held_up(sample);
        // Where a queue overflows others may be what kept it back.
        if empty || self.round.lost == 0 && held_up {
            self.queued = self.queued.min(1);
        }
        // The others' deliveries are divided by the time since the train began, which a pause would lengthen.
        let paused = sample.resumed && self.by_others(&self.train) > 0;
        if self.queued < 2 || paused {
            self.train = Round::default();
            self.beginning = self.round.losses();
            self.bursts.note(sample, self.queued == 0, self.first_window() / 4);
        } else {
            // Whatever was lost, no queue of ours stood for so long before the first of it.
            let pauses = held_up && self.train.since.is_none();
            let sample = &AckSample { resumed: sample.resumed || pauses, ..*sample };
            self.train.note(sample, 3 * self.queue_us(), self.delivered());
        }
        self.learn_of_others(sample);
    }

    /// A short queue drops much of a flight that leaves at once. If it is shorter than [`START_QUEUE_US`] it does not show
    /// either, and what arrived tells the bottleneck's rate all the same.
    fn watch_overflow(&mut self, sample: &AckSample) {
        self.arrival.note(sample, TRAIN_PACKETS);
        let packets = self.round.losses().all.max(1) as f64;
        let noise = 4.0 * (CHANCE_MOST * (1.0 - CHANCE_MOST) / packets).sqrt();
        let overflows = self.round.loss() > CHANCE_MOST + noise && sample.lost_packets > 0;
        let was_heard = sample.now - self.overflowed_at >= sample.rtt_us;
        if !overflows || !was_heard || self.queue_most_us > SHALLOW_US || self.arrival.fastest == 0.0 {
            return;
        }
        if self.has_short_queue() || self.hint == 0.0 {
            // Where the receiver reads in batches they seem to come faster than they do.
            let before = if self.hint > 0.0 { self.hint } else { self.pace() as f64 };
            self.hint = if self.arrival.fastest < 0.9 * before { self.arrival.fastest } else { before / 2.0 };
        }
        (self.overflowed_at, self.arrival) = (sample.now, Arrival::default());
        self.overflow = self.round.loss();
    }

    fn end_round_of_start(&mut self, sample: &AckSample) {
        let round = std::mem::take(&mut self.round);
        let rate = per_second(round.bytes, round.span_us);
        if round.tells_rate() && rate > self.capacity && self.had_enough(&round, 0) && !round.is_train {
            let most = LEAP * per_second(round.bytes, sample.rtt_us);
            self.capacity = rate.min(most).max(self.capacity);
        }
        if round.tells_rate() && self.had_enough(&round, 0) && !round.is_train {
            self.full_rounds = if rate > FULL_GROWTH * self.full_rate { 0 } else { self.full_rounds + 1 };
            self.full_rate = self.full_rate.max(rate);
            if self.full_rounds >= FULL_ROUNDS && round.loss() > CHANCE_MOST && self.may_doubt() {
                self.capacity = self.of_all(sample.now, &round, rate);
                self.trial = Some(Trial::new(round.loss(), 0.0, self.capacity));
                self.model_path(sample.now);
                self.skip = FLIGHT_ROUNDS;
                return;
            }
        }
        let most = self.bursts.rate(&self.limits).unwrap_or(f64::MAX).min(self.limits.cap as f64);
        let most = if self.has_short_queue() && self.hint > 0.0 { most.min(self.hint) } else { most };
        if self.capacity >= FULL * most {
            self.fill(sample.now, most);
        }
    }

    /// Learns from what all flows of the host delivered together, though each delivered too little to tell the path's rate.
    /// The next leader, and so all flows, begin with it. Behind a queue it is a lower bound of the bottleneck's rate. Where
    /// no queue stood, the window doubles (slow start, RFC 5681).
    fn learn_of_others(&mut self, sample: &AckSample) {
        if self.group.is_none() {
            return;
        }
        if self.train.tells_rate() && !self.train.is_train {
            let own = per_second(self.train.bytes, self.train.span_us);
            self.hint = self.hint.max(own).max(self.of_all_at_least(sample.now, &self.train));
        }
        if self.round.lost == 0 && self.queued == 0 {
            let all = (self.round.acked_bytes + self.by_others(&self.round)) as f64;
            self.proven = self.proven.max(2.0 * all.min(self.window_of_all()));
        }
    }

    /// What arrived behind a queue tells the bottleneck's rate; start-up ends with it, unless there is reason to doubt it.
    fn take_train(&mut self, sample: &AckSample) {
        let own = per_second(self.train.bytes, self.train.span_us);
        let rate = if self.train.is_train { own } else { self.of_all(sample.now, &self.train, own) };
        let starved = self.train.loss() > LOST_START;
        self.line = self.line.max(if starved { LINE_UNKNOWN } else { rate });
        if self.train.is_train {
            self.hint = self.hint.max(rate);
            self.train = Round::default();
            self.queued = 0;
            return;
        }
        if !starved && 2.0 * rate < self.hint && self.doubts < DOUBTS_MOST {
            self.doubts += 1;
            self.train = Round::default();
            return;
        }
        // The path carries what the flows of the group delivered before, also if packets of others came between this
        // flow's meanwhile.
        let shared = self.group.is_some_and(|group| group.count > 1);
        // No flow saw all of the path, so it may carry more.
        self.unsure = shared && rate >= self.hint;
        let rate = if shared && !starved { rate.max(self.hint) } else { rate };
        // Who comes while another's queue overflows sees next to nothing arrive.
        let flight = per_second(self.first_window() / 4, sample.rtt_us);
        let loss = self.train.loss().min(LOST_START);
        // What the first flight lost it may have lost for being fast; what follows is not. If
        // that loses as much, the path was capable of what arrived and what was lost.
        let whole = rate / (1.0 - loss);
        self.capacity = match self.train.loss() > LOST_START {
            true => rate.max(flight),
            false if loss < CHANCE_MOST && self.lost_evenly() => whole,
            false => rate,
        };
        self.known = self.capacity;
        self.rates = [rate, 0.0, 0.0];
        let packets = (self.train.acked + self.train.lost).max(1) as f64;
        let variance = loss * (1.0 - loss) / packets * runs(sample.loss_run);
        let excess = (loss - 2.0 * variance.sqrt()).max(0.0);
        self.trial = Some(Trial::new(excess, self.chance(), whole)).filter(|_| loss > EXCESS_LEAST);
        self.reset_step();
        if self.unsure {
            self.step = STEP_FULL;
        }
        self.round = Round::default();
        // Of a round that has just begun nothing left in start-up.
        let began = sample.now - self.round_at < sample.rtt_us / 8;
        self.skip = if began { FLIGHT_ROUNDS - 1 } else { FLIGHT_ROUNDS };
        if self.has_short_queue() && self.trial.take().is_some() && !starved {
            self.capacity = rate;
            return self.verify(sample.now, verify::PART * rate, rate, 0.0);
        }
        self.enter(sample.now, Phase::Cruise);
    }

    /// Whether as much was there to be sent as might have gone, with so many bytes of others: of less the rate says
    /// nothing. Where the end of much was lost, it was rather a short queue that dropped it.
    fn had_enough(&self, round: &Round, others: u64) -> bool {
        let little = 4 * round.bytes < self.first_window();
        let limited = round.app_limited || round.app_limited_lost && little;
        !limited || round.bytes + others >= self.first_window()
    }

    /// The path is as full as bursts have shown that it can be, or as it may be, and no queue stands: what more it
    /// carries is tried in steps.
    pub(super) fn fill(&mut self, now: Micros, rate: f64) {
        self.line = self.line.max(rate);
        self.step = STEP_FULL;
        self.round = Round::default();
        self.skip = 1;
        self.enter(now, Phase::Cruise);
    }

    /// Whether the first flight's beginning lost about as much as its end: a queue that overflows
    /// takes the end of it alone.
    pub(super) fn lost_evenly(&self) -> bool {
        let (before, end) = (self.beginning, self.train.losses());
        let ratio = (before.lost + end.lost) as f64 / (before.all + end.all).max(1) as f64;
        let packets = 1.0 / before.all.max(1) as f64 + 1.0 / end.all.max(1) as f64;
        let deviation = (ratio * (1.0 - ratio) * packets).sqrt();
        before.lost > 0 && end.ratio() - before.ratio() <= 1.5 * deviation
    }

    /// Whether, in start-up, the burst that is to tell the rate has gone.
    pub(super) fn is_past_burst(&self, in_flight: u64) -> bool {
        let hinted = matches!(self.phase, Phase::Start) && self.hint > self.capacity;
        hinted && in_flight > self.first_window()
    }
}
