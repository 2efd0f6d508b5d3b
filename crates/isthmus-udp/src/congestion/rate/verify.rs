//! Verify: sends a little less than arrives, to see which losses are random. For paths whose queue is known to be
//! short.
//!
//! An overflowing queue then loses nothing, and random loss keeps its share. Without this test a short queue, which
//! overflows before it shows, would pass for a lossy path. The capacity makes up for random losses, and would rise
//! without end. The model tests random loss in the same way (`Down`), as BBR probes down.

use super::round::{Losses, Round};
use super::*;

/// Part of the delivery rate that is sent.
pub(super) const PART: f64 = 0.95;
/// Rounds without a raise after congestion losses. BBRv3 waits up to 63 rounds, and 2 to 3 s. With more than these,
/// flows that began together take over too slowly from flows that ended
/// (`flows_that_were_opened_before_share_what_each_had_for_itself`, when all paths were verified).
const QUIET_ROUNDS: u32 = 8;
/// Part of the losses that has to vanish for them to be congestion.
const CONGESTION: f64 = 0.5;

impl Rate {
    /// Begins if a round lost more than random loss, or if random loss has grown since it was verified. `excess` is
    /// what a round lost too much.
    pub(super) fn begins_verify(&mut self, sample: &AckSample, rate: f64, excess: Option<Losses>) -> bool {
        let drifted = Some(self.chance()).filter(|_| self.is_unverified(sample.loss_run));
        // A path that carries much less than its capacity is not full: its losses are no congestion.
        let is_full = |loss: &f64| rate >= USED * self.capacity * (1.0 - loss);
        let Some(loss) = excess.map(|losses| losses.ratio()).or(drifted).filter(is_full) else {
            self.model.push(rate);
            return false;
        };
        if drifted.is_some() {
            self.chance.0 = self.verified * self.chance.1;
        }
        self.skip = 1;
        self.verify(sample.now, PART * rate / (1.0 - self.chance()), rate, loss);
        true
    }

    /// Begins to send at `pace`. Before, the share `loss` was lost, and the rest arrived at `arrived`.
    pub(super) fn verify(&mut self, now: Micros, pace: f64, arrived: f64, loss: f64) {
        self.enter(now, Phase::Verify { pace, arrived, loss });
    }

    /// Whether the random loss learned round by round exceeds the verified one. A short queue that overflows a little
    /// in each round would otherwise raise the capacity without end.
    fn is_unverified(&self, run: f64) -> bool {
        let (p, packets) = (self.chance(), self.chance.1);
        let deviation = (p * (1.0 - p) / packets.max(1.0) * runs(run)).sqrt();
        p > self.verified + EXCESS_MIN.max(4.0 * deviation)
    }

    /// Judges losses while less was sent than arrived: they are random. If fewer are lost than before, the others were
    /// congestion. If many are lost, others overflow the queue. The pair is the delivery rate and share lost before.
    pub(super) fn end_verify(
        &mut self,
        sample: &AckSample,
        round: &Round,
        rate: f64,
        (arrived, loss): (f64, f64),
    ) {
        self.skip = 1;
        let (losses, known) = (round.losses(), self.chance());
        if round.app_limited {
            return self.enter(sample.now, Phase::Cruise);
        }
        if losses.ratio() > start::CHANCE_MAX {
            self.quiet = QUIET_ROUNDS;
            self.capacity = rate;
        } else {
            let noise = self.excess_above(losses.all, sample.loss_run) - known;
            if (losses.ratio() - known).abs() > noise {
                self.accept_chance(losses);
            } else {
                self.learn_chance(losses);
                self.verified = self.chance();
            }
            if self.chance() - known < CONGESTION * (loss - known) {
                self.overflow = loss;
                self.quiet = QUIET_ROUNDS;
            }
            // The losses of that one round may have been random: the rounds since the last test show what the path
            // carries.
            self.capacity = self.model.best().clamp(arrived, arrived / USED) / (1.0 - self.chance());
            self.model.replace(arrived);
        }
        self.note_known();
        self.enter(sample.now, Phase::Cruise);
    }
}
