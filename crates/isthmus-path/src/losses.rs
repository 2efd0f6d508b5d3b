//! Whether a path loses packets by itself: the choice of a TCP lane's congestion control.
//!
//! CUBIC fills a clean path and shares it well, but takes every loss for a full queue: on a path that loses packets by
//! itself it stalls. BBR does not mind such losses. But several BBR flows in a queue of one bandwidth-delay product
//! lose packets all the time, and may take that for a policer, which slows a flow down for seconds.
//!
//! So a lane starts with CUBIC, and changes to BBR when the losses of all lanes to that host prove to be the path's
//! own. These come while the round trip shows no queue, and they are few. (A flow that starts too fast loses many
//! packets at once, and repairs them after the queue has drained.) On long round trips a lane starts with BBR, which is
//! up to speed in half the time. If the path then loses nothing for long, it counts as clean again for new lanes.
//!
//! On a short path the round trip does not show a queue, so the lane is paced first (`pacing.rs`). If UDP is allowed, a
//! UDP lane takes over on lossy paths that are not short (`hosts.rs`).

use crate::evidence::LaneSample;
use crate::thresholds::losses::{BURST, CLEAN_PACKETS, EVIDENCE};
use crate::{Micros, queue};

/// The last sample of a lane, for [`PathLosses`].
#[derive(Debug, Default)]
pub struct Trace {
    least_rtt_us: Option<Micros>,
    packets: u64,
    retransmissions: u64,
}

/// Judges the path to one host by the losses of all lanes to it. Each lane alone sees too little.
#[derive(Debug, Default)]
pub struct PathLosses {
    evidence: i32,
    /// Packets since the last loss without a queue.
    clean: u64,
}

impl PathLosses {
    /// Takes in a sample of a lane. `trace` is the lane's last one.
    pub fn on_sample(&mut self, trace: &mut Trace, sample: LaneSample) {
        let least = trace.least_rtt_us.map_or(sample.rtt_us, |least| least.min(sample.rtt_us));
        trace.least_rtt_us = Some(least);
        let lost = sample.resent.saturating_sub(trace.retransmissions);
        let sent = sample.packets.saturating_sub(trace.packets);
        (trace.packets, trace.retransmissions) = (sample.packets, sample.resent);
        let own = queue::is_at_all(sample.rtt_us, least) || lost * BURST > sent;
        self.clean = if lost > 0 && !own { 0 } else { self.clean + sent };
        if self.is_lossy() && self.clean >= CLEAN_PACKETS {
            *self = Self::default();
        } else if lost > 0 && !self.is_lossy() {
            self.evidence = (self.evidence + if own { -1 } else { 1 }).max(-EVIDENCE);
        }
    }

    /// Whether the path loses packets by itself.
    pub fn is_lossy(&self) -> bool {
        self.evidence >= EVIDENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of one lane after another, 100 packets apart, each a round trip and all
    /// retransmissions so far.
    fn verdict(lanes: &[&[(u64, u64)]]) -> bool {
        let mut judge = PathLosses::default();
        for lane in lanes {
            let mut trace = Trace::default();
            for (&(rtt_us, resent), packets) in lane.iter().zip((100..).step_by(100)) {
                judge.on_sample(&mut trace, LaneSample { rtt_us, packets, resent, ..LaneSample::default() });
            }
        }
        judge.is_lossy()
    }

    #[test]
    fn losses_without_a_queue_are_the_paths() {
        assert!(verdict(&[&[(24_000, 0), (24_300, 1), (24_100, 1), (25_000, 2), (24_200, 5)]]));
        let one: &[_] = &[(24_000, 0), (24_100, 1)];
        assert!(verdict(&[one, one, one]) && !verdict(&[one, one]), "lanes testify together");
    }

    #[test]
    fn losses_with_a_queue_are_our_own() {
        let full = [(24_000, 0), (47_000, 40), (35_000, 60), (44_000, 61), (30_000, 62), (47_000, 70)];
        assert!(!verdict(&[&full]));
        // One retransmission that comes when the queue has drained proves nothing.
        assert!(!verdict(&[&[(24_000, 0), (47_000, 40), (24_500, 41), (46_000, 80), (24_500, 81)]]));
    }

    #[test]
    fn a_burst_that_is_repaired_when_the_queue_has_drained_is_our_own() {
        let burst =
            [(100_000, 0), (180_000, 60), (102_000, 110), (101_000, 150), (100_500, 190), (100_100, 220)];
        assert!(!verdict(&[&burst]) && !verdict(&[&burst, &burst, &burst]));
    }

    #[test]
    fn a_path_that_loses_nothing_for_long_is_clean_again() {
        let (mut judge, mut trace) = (PathLosses::default(), Trace::default());
        let mut seen = (0, 0);
        let mut on_sample = |packets: u64, lost: u64, rtt_us| {
            seen = (seen.0 + packets, seen.1 + lost);
            let sample = LaneSample { rtt_us, packets: seen.0, resent: seen.1, ..LaneSample::default() };
            judge.on_sample(&mut trace, sample);
            judge.is_lossy()
        };
        assert!((0..EVIDENCE).map(|_| on_sample(100, 1, 24_000)).last().expect("some"));
        // Delay from our own queue proves nothing.
        assert!(on_sample(CLEAN_PACKETS / 2, 50, 48_000));
        assert!(on_sample(100, 1, 24_000), "one that is lost keeps it so");
        assert!(on_sample(CLEAN_PACKETS - 1, 0, 24_000));
        assert!(!on_sample(1, 0, 24_000));
        assert!(!on_sample(100, 1, 24_000), "and it takes as much evidence as before");
    }

    #[test]
    fn a_path_without_losses_is_clean_whatever_its_round_trip() {
        assert!(!verdict(&[&[(24_000, 0), (300_000, 0), (24_000, 0)]]));
    }
}
