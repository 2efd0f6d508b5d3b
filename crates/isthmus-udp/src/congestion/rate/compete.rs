//! Compete: how the control sends beside a flow that fills the queue and does not give way to losses, such as BBR's
//! version 1.
//!
//! CUBIC (`shared.rs`) keeps a sixth of the path beside such a flow: it sends less after each overflow of the queue, and
//! the neighbour takes that part. In this state the window grows to half of what all have in flight. It becomes smaller
//! only if a round loses more than [`LOSS_MAX`], so several flows that compete bound what they lose.
//!
//! If the queue becomes much shorter and stays so, the neighbours have given way, as CUBIC does. Then CUBIC decides
//! again.

use super::round::Round;
use super::*;

/// A flow starves that has less than this share of the path.
const SHARE_MIN: f64 = 0.35;
/// How much longer the flow must have starved than not before it competes. Microseconds. With 1 s, flows of CUBIC that
/// begin together compete before they are equal (`flows_that_were_opened_before_share_what_each_had_for_itself`). The
/// time doubles each time neighbours give way, up to the second value.
const STARVED_US: Micros = 2_000_000;
const STARVED_MAX_US: Micros = 64_000_000;
/// Share by which the window grows in a round, as in BBR's `Up`, and share by which it becomes smaller.
const MORE: f64 = 0.25;
const LESS: f64 = 0.125;
/// Largest share of loss that does not make the window smaller. Two flows of BBR lose 10 to 17 % beside each other where
/// the queue holds a quarter of a round trip.
const LOSS_MAX: f64 = 0.2;
/// A queue has become shorter if it stays below this part of its longest for these round trips, and for this time. CUBIC
/// takes 0.3 of what it has in flight away, which is 0.6 of a queue of one round trip. BBR's cycle lowers the queue for a
/// round or two, and its ProbeRTT for 200 ms and a round trip.
const SHORTER: f64 = 0.6;
const SHORTER_ROUNDS: Micros = 4;
const SHORTER_US: Micros = 400_000;

/// State of a flow that competes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compete {
    /// Bytes (wire) that may be in flight.
    pub(super) window: f64,
    /// Longest queue since it began. Microseconds.
    queue_us: Micros,
    /// How long the queue has been much shorter. Microseconds.
    shorter_us: Micros,
}

/// What a flow knows about its share of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Highest rate that the flow has had. Bytes/s (wire).
    most: f64,
    /// How much longer it has starved than not, and at which value it begins to compete. Microseconds.
    starved_us: Micros,
    patience_us: Micros,
    /// Whether it competed until the queue became short.
    competed: bool,
}

impl Default for Share {
    fn default() -> Self {
        Self { most: 0.0, starved_us: 0, patience_us: STARVED_US, competed: false }
    }
}

impl Share {
    pub(super) fn note(&mut self, rate: f64) {
        self.most = self.most.max(rate);
    }
}

impl Rate {
    /// Rate of the path, if it carries at most twice what this flow has had. Bytes/s (wire).
    fn line_at_least(&self) -> f64 {
        self.line.min(2.0 * self.share.most)
    }

    /// Notes the rate of a round. True if the flow has begun to compete.
    pub(super) fn begins_to_compete(&mut self, sample: &AckSample, round: &Round, rate: f64) -> bool {
        self.share.note(rate);
        if !matches!(self.phase, Phase::Shared(_) | Phase::Cruise) || !self.may_doubt() {
            return false;
        }
        if round.app_limited || rate >= SHARE_MIN * self.line_at_least() {
            self.share.starved_us = self.share.starved_us.saturating_sub(sample.rtt_us);
            self.share.competed &= self.share.starved_us > 0;
            return false;
        }
        if round.queue_most_us < self.long_queue_us() {
            return false;
        }
        self.share.starved_us += sample.rtt_us;
        // Until the path counts as shared, it may only have become slower.
        let is_shared = self.share.competed || matches!(self.phase, Phase::Shared(_));
        if !is_shared || self.share.starved_us < self.share.patience_us {
            return false;
        }
        (self.share.starved_us, self.share.competed) = (0, false);
        let window = sample.in_flight.max(4 * self.packet_bytes) as f64;
        self.enter(sample.now, Phase::Compete(Compete { window, queue_us: 0, shorter_us: 0 }));
        true
    }

    /// Judges a round.
    pub(super) fn compete(&mut self, sample: &AckSample, round: &Round, rate: f64, mut state: Compete) {
        self.capacity = rate / (1.0 - self.chance());
        if round.queue_most_us < self.queue_us() / 2 {
            // BBR empties the queue for a moment every 10 s. If it returns, so does this state.
            (self.share.starved_us, self.share.competed) = (self.share.patience_us, true);
            return self.enter(sample.now, Phase::Cruise);
        }
        state.queue_us = state.queue_us.max(round.queue_most_us);
        let is_shorter = (round.queue_most_us as f64) < SHORTER * state.queue_us as f64;
        state.shorter_us = if is_shorter { state.shorter_us + sample.rtt_us } else { 0 };
        if state.shorter_us >= SHORTER_US.max(SHORTER_ROUNDS * sample.rtt_us) {
            self.share.patience_us = (2 * self.share.patience_us).min(STARVED_MAX_US);
            let cubic =
                Cubic::with_window(self.limits, state.window as u64, sample.rtt_us, self.packet_bytes);
            return self.enter(sample.now, Phase::Shared(cubic));
        }
        if round.loss() > LOSS_MAX {
            state.window *= 1.0 - LESS;
        } else if !round.app_limited {
            let half = self.line_at_least() * self.rtt_us as f64 / 2e6;
            state.window = (state.window * (1.0 + MORE)).min(half);
        }
        self.phase = Phase::Compete(state);
    }
}
