//! Chooses the congestion control of a TCP lane.
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
//! On a short path the round trip does not show a queue, so the lane is paced first (`pace.rs`). If UDP is allowed, a
//! UDP lane takes over on lossy paths that are not short (`race.rs`).

use isthmus_proto::LaneSample;

/// Time between two looks at a lane. Milliseconds.
pub(super) const LOOK_MS: u64 = 100;
/// A path is lossy after this many more losses without a queue than with one. Count.
const EVIDENCE: i32 = 3;
/// If more than one in this many packets is retransmitted, a burst is being repaired. Count.
const BURST: u64 = 4;
/// A lossy path counts as clean again after this many packets of all lanes without a loss that had no queue. Count; a
/// lower loss rate costs CUBIC little.
const CLEAN_PACKETS: u64 = 1_000_000;
/// A round trip shows a queue if it exceeds the shortest one by an eighth, and by at least this. Microseconds.
const QUEUE_US: u64 = 500;

/// Congestion control on clean paths.
pub(super) const CLEAN: &str = "cubic";
/// Congestion control on lossy paths.
pub(super) const LOSSY: &str = "bbr";

/// Congestion control that uses what other traffic leaves: TCP-LP (Kuzmanovic and Knightly, 2006).
pub(super) const BACKGROUND: &str = "lp";

/// From this round trip on, a lane starts with [`LOSSY`]. Microseconds.
const LONG_US: u64 = 50_000;

/// Whether a lane on this path starts with [`LOSSY`].
pub(super) fn is_long(sample: Sample) -> bool {
    sample.rtt_us >= LONG_US
}

/// From this round trip on, losses cost TCP more than UDP costs the processor. Microseconds.
const REPAIR_US: u64 = 5_000;

/// Whether UDP does better on this path if it loses packets.
pub(super) fn is_slow_to_repair(sample: Sample) -> bool {
    sample.rtt_us >= REPAIR_US
}

/// The kernel's counts for a lane that tell of its path (`tcpi_rtt`, `tcpi_data_segs_out` and `tcpi_total_retrans` of
/// `tcp(7)`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) rtt_us: u64,
    /// Packets with data, including retransmissions.
    pub(super) packets: u64,
    pub(super) retransmissions: u64,
}

/// All that the kernel says of a lane, for the choice of its congestion control and for the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) path: Sample,
    pub(super) lane: LaneSample,
    /// Bytes that have arrived, in order or not.
    pub(super) arrived: u64,
    /// Sent and unacknowledged. Bytes.
    pub(super) in_flight: u64,
    /// The shortest round trip. Microseconds.
    pub(super) least_rtt_us: u64,
    /// The recent delivery rate. Bytes/s.
    pub(super) rate: u64,
}

/// The last sample of a lane.
#[derive(Debug, Default)]
pub(super) struct Trace {
    least_rtt_us: Option<u64>,
    packets: u64,
    retransmissions: u64,
}

/// Judges the path to one host by the losses of all lanes to it. Each lane alone sees too little.
#[derive(Debug, Default)]
pub(super) struct PathJudge {
    evidence: i32,
    /// Packets since the last loss without a queue.
    clean: u64,
}

impl PathJudge {
    /// Takes in a sample of a lane. `trace` is the lane's last one.
    pub(super) fn on_sample(&mut self, trace: &mut Trace, sample: Sample) {
        let least = trace.least_rtt_us.map_or(sample.rtt_us, |least| least.min(sample.rtt_us));
        trace.least_rtt_us = Some(least);
        let lost = sample.retransmissions.saturating_sub(trace.retransmissions);
        let sent = sample.packets.saturating_sub(trace.packets);
        (trace.packets, trace.retransmissions) = (sample.packets, sample.retransmissions);
        let queue = sample.rtt_us > least + (least / 8).max(QUEUE_US);
        let own = queue || lost * BURST > sent;
        self.clean = if lost > 0 && !own { 0 } else { self.clean + sent };
        if self.is_lossy() && self.clean >= CLEAN_PACKETS {
            *self = Self::default();
        } else if lost > 0 && !self.is_lossy() {
            self.evidence = (self.evidence + if own { -1 } else { 1 }).max(-EVIDENCE);
        }
    }

    /// Whether the path loses packets by itself.
    pub(super) fn is_lossy(&self) -> bool {
        self.evidence >= EVIDENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of one lane after another, 100 packets apart, each a round trip and all
    /// retransmissions so far.
    fn verdict(lanes: &[&[(u64, u64)]]) -> bool {
        let mut judge = PathJudge::default();
        for lane in lanes {
            let mut trace = Trace::default();
            for (&(rtt_us, retransmissions), packets) in lane.iter().zip((100..).step_by(100)) {
                judge.on_sample(&mut trace, Sample { rtt_us, packets, retransmissions });
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
        let (mut judge, mut trace) = (PathJudge::default(), Trace::default());
        let mut seen = (0, 0);
        let mut on_sample = |packets: u64, lost: u64, rtt_us| {
            seen = (seen.0 + packets, seen.1 + lost);
            judge.on_sample(&mut trace, Sample { rtt_us, packets: seen.0, retransmissions: seen.1 });
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
