//! Start-up of the rate control: learns the path's rate from the first flights.

use super::burst::{Arrival, was_empty, was_held_up};
use super::round::Round;
use super::*;

/// Queue that shows the bottleneck during start-up. Microseconds.
pub(super) const START_QUEUE_US: Micros = 1_000;
/// Packets that a first flight needs to tell a rate. In a smaller one a single loss is a large share.
const START_PACKETS: u64 = 32;
/// Flights that start-up may doubt because they arrived at less than half of a train's rate: the sender may have paused
/// within them.
const DOUBTS_MAX: u32 = 8;
/// Share of loss in start-up beyond which what arrives says nothing of the path.
const LOST_START: f64 = 0.5;
/// An overflowing queue that was never longer is short: it has no room for a standing queue of 1 to 4 ms. Microseconds.
const SHALLOW_US: Micros = 4_000;
/// Share of loss beyond which it is hardly random alone.
pub(super) const CHANCE_MAX: f64 = 0.2;
/// Largest capacity that a round of start-up may show, as a multiple of its bytes per round trip.
const LEAP: f64 = 64.0;
/// The path counts as full at this part of the rate that bursts have shown.
const FULL: f64 = 0.8;
/// First step beyond it.
const STEP_FULL: f64 = 0.25;
/// Growth of the rate in a round that shows that the path is not full, as in BBR's start-up.
const FULL_GROWTH: f64 = 1.25;
/// Rounds without that growth after which the path counts as full.
const FULL_ROUNDS: u32 = 3;
/// Most rounds after start-up in which packets of its last flight arrive.
const FLIGHT_ROUNDS: u32 = 2;
/// Shorter pauses are those of a receiver that acknowledges several packets at once. Microseconds.
const PAUSE_US: Micros = 2_500;
/// A flight that comes in lumps must last for this many times its longest pause to tell a rate. One lump more or less
/// then changes that by an eighth at most.
const PAUSES: Micros = 8;
/// The same for a flight that is over.
const PAUSES_OVER: Micros = 4;
/// A flight that arrives at more than this part of the rate at which it left shows no bottleneck. Start-up sends at twice
/// the rate that the last flight has shown.
const AS_FAST: f64 = 0.9;
/// Assumed rate of a path that showed none because others filled it. Bytes/s (1 Gb/s).
const LINE_UNKNOWN: f64 = 125e6;

impl Rate {
    /// Start-up: examines the flight as it arrives.
    pub(super) fn on_start(&mut self, sample: &AckSample) {
        let before = self.train;
        self.watch_queue(sample);
        self.watch_overflow(sample);
        // A flow that sends too little to fill the window tells nothing of the queue: others may have made it.
        if !self.had_enough(&self.train, self.by_others(&self.train)) && !self.train.is_train {
            self.train = Round::default();
        }
        if self.shows_rate(sample, &self.train, PAUSES) {
            return self.take_train(sample);
        }
        // Once the queue has gone, no more of this flight will come. The path carries at least this.
        let is_over = before.since.is_some() && self.train.since.is_none();
        if is_over && self.is_held(&before) && self.shows_rate(sample, &before, PAUSES_OVER) {
            self.capacity = self.capacity.max(per_second(before.bytes, before.span_us));
        }
        if sample.round_ended && (self.round.span_us >= TRAIN_US || !is_short(sample.rtt_least_us)) {
            self.end_round_of_start(sample);
        }
    }

    /// Whether a flight was long enough to show the bottleneck's rate. One that something else holds back must last for
    /// this many times its longest pause.
    fn shows_rate(&self, sample: &AckSample, train: &Round, pauses: Micros) -> bool {
        let long =
            self.tells_of_all(sample, train) && train.tells_rate() && train.losses().all >= START_PACKETS;
        long && (!self.is_held(train) || train.span_us >= pauses * self.pause_us(train))
    }

    /// Whether something else than a bottleneck seems to hold a flight back: it came in lumps. If much of it was lost,
    /// a queue overflowed, and the pauses are what is missing.
    fn is_held(&self, train: &Round) -> bool {
        self.may_doubt() && self.pause_us(train) >= PAUSE_US && train.loss() <= CHANCE_MAX
    }

    /// The longest pause of a flight. The first one leaves in one go: if its sender paused, that is not the path's doing.
    /// Later ones leave as acknowledgements come, so those that come in lumps leave in lumps.
    fn pause_us(&self, train: &Round) -> Micros {
        if self.capacity == 0.0 { train.held_us } else { train.pause_us }
    }

    /// Whether flights leave at twice the rate that the last one has shown.
    fn doubles(&self) -> bool {
        self.capacity > 0.0 && !self.has_short_queue() && self.bursts.rate(&self.limits).is_none()
    }

    /// Start-up of a flow that follows. It learns from arrivals too, because it may lead next.
    pub(super) fn on_start_of_all(&mut self, sample: &AckSample) {
        self.round.note(sample, 3 * self.queue_us(), self.delivered());
        self.watch_queue(sample);
        self.watch_overflow(sample);
        if sample.round_ended {
            self.round = Round::default();
        }
    }

    /// Collects packets that arrive behind a queue.
    fn watch_queue(&mut self, sample: &AckSample) {
        if let Some(queue) = sample.queue_us {
            let rtt_us = sample.rtt_least_us;
            // The small first flight of a short path makes no longer queue.
            let least_us = if is_short(rtt_us) { quantum_us(rtt_us) / 2 } else { START_QUEUE_US };
            self.queued = if queue >= least_us { self.queued + 1 } else { 0 };
        }
        // Packets behind the queue arrive at the bottleneck's rate. Packets before it may have left with pauses.
        let empty = self.bursts.rate(&self.limits).is_some() && was_empty(sample);
        let held_up = was_held_up(sample);
        // If packets were lost, others' overflowing queue may have held these back.
        if empty || self.round.lost == 0 && held_up {
            self.queued = self.queued.min(1);
        }
        // The others' deliveries are divided by the time since the train began. A pause would lengthen that.
        let paused = sample.resumed && self.by_others(&self.train) > 0;
        if self.queued < 2 || paused {
            self.train = Round::default();
            self.beginning = self.round.losses();
            self.bursts.note(sample, self.queued == 0, self.first_window() / 4);
        } else {
            // Even if packets were lost, no queue of ours stood for so long before the first of the train.
            let pauses = held_up && self.train.since.is_none();
            let sample = &AckSample { resumed: sample.resumed || pauses, ..*sample };
            self.train.note(sample, 3 * self.queue_us(), self.delivered());
        }
        self.learn_of_others(sample);
    }

    /// Notes that a short queue drops much of a flight that leaves at once. A queue under [`START_QUEUE_US`] does not
    /// show, but the packets that arrived still tell the bottleneck's rate.
    fn watch_overflow(&mut self, sample: &AckSample) {
        self.arrival.note(sample, TRAIN_PACKETS);
        let packets = self.round.losses().all.max(1) as f64;
        let noise = 4.0 * (CHANCE_MAX * (1.0 - CHANCE_MAX) / packets).sqrt();
        let overflows = self.round.loss() > CHANCE_MAX + noise && sample.lost_packets > 0;
        let was_heard = sample.now - self.overflowed_at >= sample.rtt_us;
        if !overflows || !was_heard || self.queue_most_us > SHALLOW_US || self.arrival.fastest == 0.0 {
            return;
        }
        if self.has_short_queue() || self.hint == 0.0 {
            // If the receiver reads in batches, packets seem to arrive faster than they do.
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
            if self.full_rounds >= FULL_ROUNDS && self.is_uneven && round.loss() <= CHANCE_MAX {
                return self.fill(sample.now, self.full_rate);
            }
            if self.full_rounds >= FULL_ROUNDS && round.loss() > CHANCE_MAX && self.may_doubt() {
                self.capacity = self.of_all(sample.now, &round, rate);
                self.trial = Some(LossTrial::new(round.loss(), 0.0, self.capacity));
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

    /// Learns from what all flows of the host delivered together, though each delivered too little to tell the path's
    /// rate. The next leader begins with it, and so do all flows. Behind a queue it is a lower bound of the
    /// bottleneck's rate. Without a queue the window doubles (slow start, RFC 5681).
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

    /// Takes the rate of packets behind a queue for the bottleneck's. This ends start-up, unless the rate is in doubt.
    fn take_train(&mut self, sample: &AckSample) {
        let own = per_second(self.train.bytes, self.train.span_us);
        let rate = if self.train.is_train { own } else { self.of_all(sample.now, &self.train, own) };
        let starved = self.train.loss() > LOST_START;
        self.line = self.line.max(if starved { LINE_UNKNOWN } else { rate });
        self.share.note(rate);
        if self.train.is_train {
            self.hint = self.hint.max(rate);
            self.train = Round::default();
            self.queued = 0;
            return;
        }
        if !starved && 2.0 * rate < self.hint && self.doubts < DOUBTS_MAX {
            self.doubts += 1;
            self.train = Round::default();
            return;
        }
        // A flight that arrives as fast as it left shows no bottleneck, however late it is.
        let as_fast = self.train.span_us as f64 * AS_FAST < self.train.sent_span_us as f64;
        let unhindered = self.pause_us(&self.train) >= PAUSE_US && self.doubles() && as_fast;
        if !starved && self.may_doubt() && (unhindered || self.train.is_uneven()) {
            // Something else than a queue holds packets back. The path carries at least this.
            self.capacity = self.capacity.max(rate);
            self.is_uneven = true;
            self.train = Round::default();
            return;
        }
        // The flows of the group have shown that the path carries this, even if others' packets came between this
        // flow's now.
        let shared = self.group.is_some_and(|group| group.count > 1);
        // No flow saw all of the path, so it may carry more.
        self.unsure = shared && rate >= self.hint;
        let rate = if shared && !starved { rate.max(self.hint) } else { rate };
        // A flow that starts while another's queue overflows sees next to nothing arrive.
        let flight = per_second(self.first_window() / 4, sample.rtt_us);
        let loss = self.train.loss().min(LOST_START);
        // The first flight may have lost packets because it left fast; what follows is slower. If that loses as much,
        // the path carries what arrived and what was lost.
        let whole = rate / (1.0 - loss);
        self.capacity = match self.train.loss() > LOST_START {
            true => rate.max(flight),
            false if loss < CHANCE_MAX && self.lost_evenly() => whole,
            false => rate,
        };
        self.known = self.capacity;
        self.rates = [rate, 0.0, 0.0];
        let packets = (self.train.acked + self.train.lost).max(1) as f64;
        let variance = loss * (1.0 - loss) / packets * runs(sample.loss_run);
        let excess = (loss - 2.0 * variance.sqrt()).max(0.0);
        self.trial = Some(LossTrial::new(excess, self.chance(), whole)).filter(|_| loss > EXCESS_MIN);
        self.reset_step();
        if self.unsure {
            self.step = STEP_FULL;
        }
        self.round = Round::default();
        // If this round has just begun, the next one has no packets of start-up.
        let began = sample.now - self.round_at < sample.rtt_us / 8;
        self.skip = if began { FLIGHT_ROUNDS - 1 } else { FLIGHT_ROUNDS };
        if self.has_short_queue() && self.trial.take().is_some() && !starved {
            self.capacity = rate;
            return self.verify(sample.now, verify::PART * rate, rate, 0.0);
        }
        self.enter(sample.now, Phase::Cruise);
    }

    /// Whether the sender filled the window, with `others` bytes of other flows; else the rate says nothing. If much
    /// was sent and its end was lost, a short queue probably dropped it.
    fn had_enough(&self, round: &Round, others: u64) -> bool {
        let little = 4 * round.bytes < self.first_window();
        let limited = round.app_limited || round.app_limited_lost && little;
        !limited || round.bytes + others >= self.first_window()
    }

    /// The path is as full as bursts have shown or the limit allows, and no queue stands. From now on small steps try
    /// for more.
    pub(super) fn fill(&mut self, now: Micros, rate: f64) {
        self.line = self.line.max(rate);
        self.step = STEP_FULL;
        self.round = Round::default();
        self.skip = 1;
        self.enter(now, Phase::Cruise);
    }

    /// Whether the first flight lost about as much at its beginning as at its end: an overflowing queue takes only the
    /// end.
    pub(super) fn lost_evenly(&self) -> bool {
        let (before, end) = (self.beginning, self.train.losses());
        let ratio = (before.lost + end.lost) as f64 / (before.all + end.all).max(1) as f64;
        let packets = 1.0 / before.all.max(1) as f64 + 1.0 / end.all.max(1) as f64;
        let deviation = (ratio * (1.0 - ratio) * packets).sqrt();
        before.lost > 0 && end.ratio() - before.ratio() <= 1.5 * deviation
    }

    /// Whether, in start-up, the burst that measures the rate has left.
    pub(super) fn is_past_burst(&self, in_flight: u64) -> bool {
        let hinted = matches!(self.phase, Phase::Start) && self.hint > self.capacity;
        hinted && in_flight > self.first_window()
    }
}
