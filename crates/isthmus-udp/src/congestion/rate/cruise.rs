//! Cruise: keeps a small queue standing, and judges each round by it.
//!
//! A queue that stands shows the capacity: it becomes what arrives. Without one the rate grows by a step, and by larger ones
//! while no queue shows. More loss than the random one begins a trial that sends less (`try_less`).

use super::round::Losses;
use super::*;

impl Rate {
    /// Judges a round.
    pub(super) fn cruise(&mut self, sample: &AckSample, round: &Round, queue: Micros, rate: f64) {
        if self.cruise_by_reader(round) {
            return;
        }
        let loses_much = round.loss() > start::CHANCE_MAX && queue < self.queue_us();
        if loses_much && !round.app_limited && self.may_doubt() {
            // A policer, or a queue that holds next to nothing.
            self.trial = Some(LossTrial::new(round.loss(), 0.0, 0.0));
            self.chance = (0.0, 0.0);
            self.capacity = rate;
            return self.model_path(sample.now);
        }
        let calm = round.calm();
        let above = |losses: Losses| self.excess_above(losses.all, sample.loss_run);
        let excess = calm.filter(|calm| calm.ratio() > above(*calm));
        let overflow = calm.is_none() && round.loss() > above(round.losses());
        let stands = queue >= self.queue_least_us();
        match calm {
            // Far fewer losses than the known random ones.
            Some(calm) if calm.ratio() < 2.0 * self.chance() - above(calm) => self.accept_chance(calm),
            Some(calm) if excess.is_none() => self.learn_chance(calm),
            _ => {}
        }
        self.quiet = self.quiet.saturating_sub(1);
        if self.has_short_queue() && !round.app_limited && self.begins_verify(sample, rate, excess) {
            return;
        }
        let excess = excess.filter(|_| !self.has_short_queue());
        if let (Some(calm), Some(trial)) = (calm, &mut self.trial) {
            trial.note(calm);
        }
        if round.app_limited {
            self.capacity = self.capacity.max(rate / (1.0 - self.chance()));
        } else if let Some(losses) = excess {
            self.try_less(losses, rate);
        } else if stands {
            let usual = self.usual(rate);
            // If the queue is long, others send too: then only the present rate counts.
            let seen = if queue < 3 * self.queue_us() { usual } else { rate } / (1.0 - self.chance());
            self.line = seen.max(self.line * (-(sample.rtt_us as f64) / LINE_LASTS_US).exp());
            let more = (seen * (1.0 + self.step_among())).min(self.fair(queue));
            self.capacity = match self.background {
                Some(_) => seen.min(self.capacity),
                None if overflow => seen,
                None => seen.max(more),
            };
            self.note_known();
        } else if round.late_least_us.is_some_and(|late| late >= self.queue_us()) {
            // The last raise makes a queue now: a larger raise would be too much.
            self.reset_step();
        } else if !overflow {
            self.raise(rate);
        }
        self.look_for_others(sample, round, queue);
    }

    /// Notes that a queue stood at this capacity. It is not more, whatever was assumed before.
    pub(super) fn note_known(&mut self) {
        self.unsure = false;
        self.known = self.capacity;
        self.trial =
            self.trial.map(|trial| LossTrial { capacity: trial.capacity.min(self.capacity), ..trial });
        self.reset_step();
    }

    /// The usual rate of the last rounds with a queue, this one included. A single higher or lower rate comes of a busy
    /// processor.
    fn usual(&mut self, rate: f64) -> f64 {
        self.rates = [rate, self.rates[0], self.rates[1]];
        let [a, b, c] = self.rates;
        // With two rates the larger one counts; 0 stands for none.
        if c > 0.0 { a.max(b).min(a.max(c)).min(b.max(c)) } else { a.max(b) }
    }

    /// Answers to more than random loss without a long queue: begins a trial, or judges one.
    pub(super) fn try_less(&mut self, losses: Losses, rate: f64) {
        let more = losses.ratio() - self.chance();
        match self.trial {
            // Sending less has not helped: the losses are random.
            Some(trial) if more >= 0.7 * trial.excess => {
                self.accept_chance(losses);
                self.capacity = trial.capacity.max(rate / (1.0 - self.chance()));
                self.hold = self.patience();
            }
            _ => {
                let (chance, capacity) = (self.chance(), self.capacity);
                self.trial = Some(LossTrial::new(more, chance, capacity));
                // A path that is too slow for the capacity carries what was sent at it and not lost. Less may have
                // arrived because less was sent.
                let carried = capacity * (1.0 - LESS_MIN.max(2.0 * more));
                self.capacity = carried.max(rate / (1.0 - chance));
                self.hold = HOLD_ROUNDS;
            }
        }
        self.reset_step();
    }

    pub(super) fn raise(&mut self, rate: f64) {
        if self.quiet > 0 || self.background.is_some_and(|background| background.watch > 0) {
            return;
        }
        if self.hold > 0 {
            self.hold -= 1;
            return;
        }
        if let Some(trial) = self.trial.take().filter(LossTrial::was_in_vain) {
            self.capacity = self.capacity.max(trial.capacity);
            self.hold = self.patience();
            return;
        }
        let seen = rate / (1.0 - self.chance());
        // On a long path the last raise must have shown first.
        if self.patience() > 0 && seen < USED * self.capacity {
            return;
        }
        // If the sender's own processor is the bottleneck, no queue forms. The guess must not run away: a later burst
        // at that rate would be lost.
        let most = self.capacity.max(RAISE_MAX * seen);
        let grown = match self.background {
            Some(_) => self.capacity.max(seen) + self.step_near() * self.line,
            None => self.capacity.max(seen) * (1.0 + self.step),
        };
        // The path most likely carries no more than it was ever seen to carry.
        let line = if self.capacity < self.line { self.line } else { f64::MAX };
        self.capacity = grown.min(most).min(line).min(self.limits.cap as f64);
        let near_line = self.capacity < NEAR * self.line && self.capacity > self.line / NEAR;
        let near = !self.unsure && (near_line || self.capacity < NEAR * self.known);
        self.hold = self.patience();
        self.step = (self.step * 2.0).min(if near { self.step_near() } else { 1.0 });
        if let Some(patience) = self.reader.patience(self.rtt_least_us) {
            self.hold = self.hold.max(patience);
            self.reset_step();
        }
    }
}
