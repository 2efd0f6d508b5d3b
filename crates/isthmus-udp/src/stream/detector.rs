//! Finds out the fates of sent packets: acknowledged, lost, or late.

use crate::Micros;
use crate::detection::LossDetection;
use crate::sent::{Fate, Fates, Sent};
use crate::wire::Ack;

/// Loss detection by a rule that can be replaced. It lends out one set of fates, so that none is allocated for each
/// acknowledgement.
#[derive(Debug)]
pub(super) struct LossDetector {
    rule: Box<dyn LossDetection>,
    /// Empty lists for the next fates.
    spare: Fates,
}

impl LossDetector {
    pub(super) fn new(rule: Box<dyn LossDetection>) -> Self {
        Self { rule, spare: Fates::default() }
    }

    /// Uses another rule from now on.
    pub(super) fn change(&mut self, rule: Box<dyn LossDetection>) {
        self.rule = rule;
    }

    /// The fates that an acknowledgement shows. A packet that was sent `stale_us` before the newest acknowledged one
    /// is lost without the peer's word.
    pub(super) fn on_ack(&mut self, sent: &mut Sent, ack: &Ack<'_>, stale_us: Micros) -> Fates {
        let mut fates = std::mem::take(&mut self.spare);
        sent.acknowledge(ack, &mut fates);
        sent.detect(&*self.rule, stale_us, &mut fates);
        fates
    }

    /// Declares everything in flight lost.
    pub(super) fn give_up(&mut self, sent: &mut Sent) -> Fates {
        let mut fates = std::mem::take(&mut self.spare);
        sent.give_up(&mut fates);
        fates
    }

    /// Takes back the lists of fates that have been dealt with.
    pub(super) fn reuse(&mut self, mut fates: Fates) {
        fates.clear();
        self.spare = fates;
    }

    /// A packet that counted as lost has arrived.
    pub(super) fn on_late(&mut self, sent: &Sent, fate: &Fate, rtt_us: Micros) {
        let (packets, behind_us) = sent.behind(fate);
        self.rule.on_late(packets, behind_us, rtt_us);
    }

    /// A round trip has passed.
    pub(super) fn on_round(&mut self) {
        self.rule.on_round();
    }
}
