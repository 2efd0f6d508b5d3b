//! Probe bandwidth.

use super::round::Round;
use super::*;

const ROUNDS: usize = 8;
const CRUISE_ROUNDS: u32 = 6;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Part {
    #[default]
    Cruise,
    Up,
    Hold,
    Down,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Model {
    rates: [f64; ROUNDS],
    pub(super) part: Part,
    /// In which what is heard of now was sent.
    sent: Part,
    rounds: u32,
    pub(super) step: f64,
    last: f64,
    before: f64,
    is_empty: bool,
    overflows: bool,
    up_excess: bool,
    /// The last attempt to send more has failed.
    failed: bool,
    /// By how much less is sent for the queue to drain.
    less: f64,
    next_step: f64,
    /// What arrived when more than chance was lost.
    cut: Option<(f64, f64)>,
}

impl Model {
    fn best(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }
    fn push(&mut self, rate: f64) {
        self.rates.rotate_right(1);
        self.rates[0] = rate;
    }
    fn force(&mut self, rate: f64) {
        self.rates = [0.0; ROUNDS];
        self.rates[0] = rate;
    }
    pub(super) fn gain(&self, chance: f64) -> f64 {
        match self.part {
            Part::Cruise if self.is_empty && !self.overflows => 1.02,
            Part::Cruise | Part::Hold => 1.0,
            Part::Up => 1.0 + self.step,
            Part::Down if chance < 0.005 => 1.0,
            Part::Down => 1.0 - (1.25 * chance).clamp(0.02, 0.5),
        }
    }
}

impl Rate {
    pub(super) fn up_step(&self) -> f64 {
        (STEP_QUEUE_US / self.rtt_least_us.max(1) as f64).min(std::env::var("UPSTEP").ok().and_then(|v| v.parse().ok()).unwrap_or(0.25))
    }

    pub(super) fn model_begin(&mut self) {
        let (loss, begin_loss) = (self.trial.is_some(), self.trial.map_or(0.0, |trial| trial.excess));
        let part = if loss { Part::Down } else if self.step > 0.2 || self.unsure { Part::Up } else { Part::Cruise };
        let step = if self.step > 0.2 { self.step } else { self.up_step() };
        self.model = Model { part, sent: if loss { part } else { Part::Cruise }, step, ..Default::default() };
        let chance = self.chance();
        self.model.force(self.capacity);
        if loss { self.model.cut = Some((self.capacity * (1.0 - chance), begin_loss)); }
        self.model.next_step = self.up_step();
        self.model.last = self.capacity;
        self.trial = None;
    }

    pub(super) fn model_round(&mut self, sample: &AckSample, round: &Round, queue: Micros, rate: f64) {
        if self.capacity != self.model.last {
            self.model.force(self.capacity);
            self.model.part = Part::Cruise;
        }
        let by_reader = self.cruise_by_reader(round);
        if by_reader {
            self.model.force(self.capacity);
            self.model.last = self.capacity;
            return;
        }
        let losses = round.losses();
        let above = self.excess_above(losses.all, sample.loss_run);
        let excess = losses.ratio() > above;
        let sent = self.model.sent;
        let mut again = false;
        if sent == Part::Down {
            let far_less = losses.ratio() < 2.0 * self.chance() - above;
            let answers = match self.model.cut {
                Some((_, before)) if excess => losses.ratio() - self.chance() < 0.7 * (before - self.chance()),
                _ => false,
            };
            if answers {
                again = true;
            } else {
                if excess || far_less { self.accept_chance(losses) } else { self.learn_chance(losses) }
                if let Some((cut, _)) = self.model.cut.take() {
                    let chance = self.chance();
                    self.model.push(cut / (1.0 - chance));
                }
            }
        }
        let raw = rate;
        let rate = if excess { rate / (1.0 - self.chance()) } else { rate / (1.0 - losses.ratio()) };
        let best = self.model.best();
        if round.app_limited {
            if rate > best { self.model.rates[0] = rate; }
        } else if again || excess && matches!(sent, Part::Cruise | Part::Hold) {
            self.model.force(rate);
            self.model.cut = Some((raw, losses.ratio()));
        } else {
            self.model.push(rate);
        }
        self.capacity = self.model.best().min(self.limits.cap as f64);
        self.model.last = self.capacity;
        self.line = self.line.max(self.capacity);
        self.known = self.capacity;
        // the cycle
        self.model.sent = self.model.part;
        self.model.rounds += 1;
        self.model.is_empty = queue < self.queue_us() / 2 && !excess;
        self.model.less = queue as f64 / sample.rtt_us.max(1) as f64;
        self.model.part = match self.model.part {
            _ if round.app_limited => Part::Cruise,
            Part::Cruise | Part::Down if again => { self.model.rounds = 0; Part::Down }
            Part::Up => { self.model.before = best; self.model.up_excess = excess; Part::Hold }
            Part::Hold => {
                if rate >= self.model.before * (1.0 + self.model.step / 2.0) {
                    self.model.failed = false;
                    self.model.step = (2.0 * self.model.step).min(1.0);
                    Part::Up
                } else {
                    self.model.next_step = if excess { (self.model.step / 2.0).max(0.02) } else { (2.0 * self.model.step).min(self.up_step()) };
                    self.model.step = self.model.next_step.min(self.up_step());
                    self.model.failed = true;
                    self.model.overflows = excess || self.model.up_excess;
                    Part::Down
                }
            }
            Part::Down => { self.model.rounds = 0; Part::Cruise }
            Part::Cruise if sent == Part::Cruise && (excess || queue >= 3 * self.queue_us() + self.slack_us() && self.model.rounds > 2) => { self.model.rounds = 0; Part::Down }
            Part::Cruise if !self.model.failed && !excess && queue < self.queue_us() / 2 => Part::Up,
            Part::Cruise if self.model.rounds >= CRUISE_ROUNDS => Part::Up,
            Part::Cruise => Part::Cruise,
        };
        if sent == Part::Down && !round.app_limited {
            let foreign = queue >= 3 * self.queue_us() + self.slack_us();
            let lifted = !is_short(self.rtt_least_us) && round.extra_least_us.unwrap_or(0) > self.rtt_least_us / 8 && queue > self.queue_us();
            if foreign {
                let bytes = sample.in_flight.max(4 * self.packet_bytes);
                let cubic = Cubic::with_window(self.limits, bytes, sample.rtt_us, self.packet_bytes);
                self.alone_after_us = 4 * sample.rtt_us;
                return self.enter(sample.now, Phase::Shared(cubic));
            }
            if lifted && sample.now - self.drained_at > self.drain_after_us {
                self.drained_at = sample.now;
                self.drain_after_us = (2 * self.drain_after_us).max(DRAIN_FIRST_ROUNDS * sample.rtt_us).min(DRAIN_EVERY_US);
                self.begin_probe(sample, queue, None);
            }
        }
    }
}
