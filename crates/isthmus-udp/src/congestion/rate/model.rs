//! The model: rate control of a path whose delay or loss is not steady, by probing for bandwidth.
//!
//! It follows BBR (draft-ietf-ccwg-bbr): the capacity is the largest delivery rate of the last rounds, and up to two
//! round trips of it may be in flight. Delay does not slow it. It goes through [`Part`]s of a round trip or more each:
//!
//! ```text
//! Cruise --cruise_rounds, or no queue--> Up --> Hold --more arrived--> Up
//!    ^  \                                          \--no more arrived--> Down
//!    |   \--more than random loss, or a long queue stands--> Down
//!    \-------------- random loss is known, queue has drained ------/
//! ```
//!
//! `Down` sends less than arrives: its losses are random. If losses became fewer, they were congestion, and the
//! capacity is what was delivered.

use super::round::{Losses, Round};
use super::shared::ALONE_FIRST_ROUNDS;
use super::*;

/// Rounds whose largest delivery rate is the capacity. Fewer than BBR's 10: a cycle is 9 rounds.
const RATE_ROUNDS: usize = 8;
/// Constants of the model.
struct Tuning {
    /// Rounds between an `Up` that failed and the next. BBR's cycle has 6 such rounds of 8.
    cruise_rounds: u32,
    /// Largest share by which `Up` sends more at first. BBR's gain is 1.25.
    step_most: f64,
    /// Smallest such share, after it has overflowed queues. It bounds what they lose to 0.2 %.
    step_least: f64,
    /// Share by which `Cruise` sends more if no queue stands, so that a full path shows one.
    more: f64,
    /// Share by which `Down` sends less, as a multiple of random loss. Above 1, so that congestion losses vanish.
    down_of_chance: f64,
    /// Largest such share. Half is enough to see a difference.
    down_most: f64,
    /// Smallest such share, if random loss is above `chance_least`.
    down_least: f64,
    /// Random loss below which `Down` does not send less.
    chance_least: f64,
    /// Part of the excess losses that must remain in `Down` for them to be random. Below 1 because of noise.
    remains: f64,
    /// Round trips' worth of capacity that may be in flight. BBR's `cwnd_gain`.
    window_rtts: Micros,
    /// A round trip may exceed its least by this part without a doubt.
    doubt_part: Micros,
}

const TUNING: Tuning = Tuning {
    cruise_rounds: 6,
    step_most: 0.25,
    step_least: 0.02,
    more: 0.02,
    down_of_chance: 1.25,
    down_most: 0.5,
    down_least: 0.02,
    chance_least: 0.005,
    remains: 0.7,
    window_rtts: 2,
    doubt_part: 8,
};

/// Parts of the cycle. Each lasts a round trip or more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Part {
    /// Sends at the capacity.
    #[default]
    Cruise,
    /// Sends more.
    Up,
    /// Waits for the acknowledgements of `Up`.
    Hold,
    /// Sends less, and has no more in flight than fills the path.
    Down,
}

/// State of the model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Model {
    /// Delivery rates of the last rounds, with random losses made up for, newest first. Bytes/s (wire).
    rates: [f64; RATE_ROUNDS],
    part: Part,
    /// The part in which the packets left that this round acknowledges.
    sent: Part,
    /// Rounds since `Down`.
    rounds: u32,
    /// Share by which `Up` sends more.
    step: f64,
    /// Capacity after the last round, and best rate before `Up`. Bytes/s (wire).
    last: f64,
    before: f64,
    /// No queue stands, and no more than random loss is seen.
    is_empty: bool,
    /// The last `Up` brought no more (`failed`), and overflowed a queue (`overflows`).
    failed: bool,
    overflows: bool,
    up_excess: bool,
    /// Delivery rate (bytes/s) and share lost when more than random loss was seen.
    cut: Option<(f64, f64)>,
}

impl Model {
    /// The largest rate of the last rounds.
    pub(super) fn best(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    pub(super) fn push(&mut self, rate: f64) {
        self.rates.rotate_right(1);
        self.rates[0] = rate;
    }

    pub(super) fn replace(&mut self, rate: f64) {
        self.rates = [0.0; RATE_ROUNDS];
        self.rates[0] = rate;
    }

    /// Send rate as a multiple of the capacity. `chance` is the random loss.
    pub(super) fn gain(&self, chance: f64) -> f64 {
        match self.part {
            Part::Cruise if self.is_empty && !self.overflows => 1.0 + TUNING.more,
            Part::Cruise | Part::Hold => 1.0,
            Part::Up => 1.0 + self.step,
            Part::Down if chance < TUNING.chance_least => 1.0,
            Part::Down => 1.0 - (TUNING.down_of_chance * chance).clamp(TUNING.down_least, TUNING.down_most),
        }
    }

    /// Window as a time at the capacity. A full path holds `full_us`. Microseconds.
    pub(super) fn window_us(&self, full_us: Micros, rtt_least_us: Micros) -> Micros {
        if self.part == Part::Down { full_us } else { full_us.max(TUNING.window_rtts * rtt_least_us) }
    }
}

impl Rate {
    /// From the next round on the model decides.
    pub(super) fn begin_model(&mut self) {
        let loss = self.trial.take().map(|trial| trial.excess);
        let part = match loss {
            Some(_) => Part::Down,
            None if self.step > TUNING.step_most / 2.0 || self.unsure => Part::Up,
            None => Part::Cruise,
        };
        self.model = Model {
            part,
            sent: if part == Part::Down { part } else { Part::Cruise },
            step: if self.unsure && self.is_uneven {
                TUNING.step_most
            } else {
                self.step_of_model().max(self.step)
            },
            last: self.capacity,
            cut: loss.map(|loss| (self.capacity * (1.0 - self.chance()), loss)),
            ..Model::default()
        };
        self.model.replace(self.capacity);
    }

    /// The share by which `Up` sends more: it makes a queue of [`STEP_QUEUE_US`] at most.
    fn step_of_model(&self) -> f64 {
        (STEP_QUEUE_US / self.rtt_least_us.max(1) as f64).min(TUNING.step_most)
    }

    /// Judges a round.
    pub(super) fn cruise_by_model(&mut self, sample: &AckSample, round: &Round, queue: Micros, rate: f64) {
        let by_reader = self.cruise_by_reader(round);
        if self.capacity != self.model.last {
            // The capacity was changed elsewhere, by a slow receiver or a plan.
            self.model.replace(self.capacity);
            (self.model.last, self.model.part) = (self.capacity, Part::Cruise);
        }
        if by_reader {
            return;
        }
        let losses = round.losses();
        let excess = losses.ratio() > self.excess_above(losses.all, sample.loss_run);
        let sent = self.model.sent;
        let again = sent == Part::Down && self.judge_losses(losses, sample.loss_run, excess);
        let before = self.model.best();
        // Losses beyond the random ones are never made up for, however noisy they are. Else a policer that carries 400 Mb/s
        // would pass for a path of 500 Mb/s that loses a fifth.
        let whole = rate / (1.0 - losses.ratio().min(self.chance()));
        if round.app_limited {
            self.model.rates[0] = if whole > before { whole } else { self.model.rates[0] };
        } else if again || excess && matches!(sent, Part::Cruise | Part::Hold) {
            // More is sent than arrives: the capacity is only what arrives.
            self.model.replace(whole);
            self.model.cut = Some((rate, losses.ratio()));
        } else {
            self.model.push(whole);
        }
        self.capacity = self.model.best().min(self.limits.cap as f64);
        (self.model.last, self.known) = (self.capacity, self.capacity);
        self.line = self.line.max(self.capacity);
        self.model.is_empty = queue < self.queue_us() / 2 && !excess;
        self.go_on(round, queue, whole, before, excess, again);
        if sent == Part::Down && !round.app_limited {
            self.look_at_rest(sample, round, queue);
        }
    }

    /// Learns random loss from what `Down` lost. True if the losses before were congestion.
    fn judge_losses(&mut self, losses: Losses, run: f64, excess: bool) -> bool {
        let (chance, ratio) = (self.chance(), losses.ratio());
        if let Some((_, before)) = self.model.cut
            && excess
            && ratio - chance < TUNING.remains * (before - chance)
        {
            return true;
        }
        if excess || ratio < 2.0 * chance - self.excess_above(losses.all, run) {
            self.accept_chance(losses);
        } else {
            self.learn_chance(losses);
        }
        if let Some((rate, _)) = self.model.cut.take() {
            self.model.push(rate / (1.0 - self.chance()));
        }
        false
    }

    /// Chooses the next part.
    fn go_on(&mut self, round: &Round, queue: Micros, rate: f64, before: f64, excess: bool, again: bool) {
        let (most, is_long) = (self.step_of_model(), queue >= self.long_queue_us());
        let model = &mut self.model;
        let sent = std::mem::replace(&mut model.sent, model.part);
        model.rounds += 1;
        model.part = match model.part {
            _ if round.app_limited => Part::Cruise,
            Part::Cruise | Part::Down if again => Part::Down,
            Part::Up => {
                (model.before, model.up_excess) = (before, excess);
                Part::Hold
            }
            Part::Hold if rate >= model.before * (1.0 + model.step / 2.0) => {
                model.failed = false;
                model.step = (2.0 * model.step).min(1.0);
                Part::Up
            }
            Part::Hold => {
                let step = if excess { model.step / 2.0 } else { 2.0 * model.step };
                model.step = step.max(TUNING.step_least).min(most);
                model.failed = true;
                model.overflows = excess || model.up_excess;
                Part::Down
            }
            Part::Down => {
                model.rounds = 0;
                Part::Cruise
            }
            Part::Cruise if sent == Part::Cruise && (excess || is_long && model.rounds > 2) => Part::Down,
            Part::Cruise if !model.failed && model.is_empty => Part::Up,
            Part::Cruise if model.rounds >= TUNING.cruise_rounds => Part::Up,
            Part::Cruise => Part::Cruise,
        };
    }

    /// Our own queue has drained: what remains is others' queue, or the path's delay.
    fn look_at_rest(&mut self, sample: &AckSample, round: &Round, queue: Micros) {
        let is_longer =
            round.extra_least_us.is_some_and(|extra| extra > self.rtt_least_us / TUNING.doubt_part);
        if queue >= self.long_queue_us() {
            let bytes = sample.in_flight.max(4 * self.packet_bytes);
            let cubic = Cubic::with_window(self.limits, bytes, sample.rtt_us, self.packet_bytes);
            self.alone_after_us = ALONE_FIRST_ROUNDS * sample.rtt_us;
            self.enter(sample.now, Phase::Shared(cubic));
        } else if is_longer && queue > self.queue_us() && self.is_drain_due(sample) {
            self.begin_probe(sample, queue, None);
        }
    }
}
