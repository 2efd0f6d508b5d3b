//! Which TCP congestion control a lane runs.
//!
//! CUBIC fills a clean path and shares it well, but takes every loss for a full queue: on a
//! path that loses packets by itself it stalls. BBR does not mind such losses, but several
//! BBR flows in a queue of one bandwidth-delay product lose packets without end and may take
//! that for a policer, which holds a flow down for seconds. So a lane starts with the former,
//! and goes over to the latter when the losses of all lanes to that host prove to be the path's:
//! when they come while the round trip shows that there is no queue, and are few: what starts too
//! fast loses much at once, and repairs it when the queue has drained. Over long round trips
//! it starts with the latter, which is up to speed in half the time. A path that then loses nothing for long counts
//! as clean again, for new lanes. On a short path it is first held to a
//! pace, for there no round trip tells a queue from none (`pace.rs`). Where UDP may be used, a lane
//! by that takes over on lossy paths of some length (`race.rs`).

use isthmus_proto::LaneSample;

/// How often a lane is looked at. Milliseconds.
pub(super) const LOOK_MS: u64 = 100;
/// So much more often must losses have come without a queue than with one.
const EVIDENCE: i32 = 3;
/// Where more than one in so many packets is sent again, a burst is being repaired.
const BURST: u64 = 4;
/// After so many packets, of all lanes, of which none was lost without a queue, a path counts as clean again: what
/// loses less than one in that many costs CUBIC little.
const CLEAN_PACKETS: u64 = 1_000_000;
/// A round trip above the least one by more than an eighth, and by more than so many
/// microseconds, tells of a queue.
const QUEUE_US: u64 = 500;

/// What a lane starts with, and what it goes over to.
pub(super) const CLEAN: &str = "cubic";
pub(super) const LOSSY: &str = "bbr";

/// From this round trip on a lane starts with [`LOSSY`]. Microseconds.
const LONG_US: u64 = 50_000;

/// Whether a path of this round trip is better served by [`LOSSY`] from the start.
pub(super) fn is_long(sample: Sample) -> bool {
    sample.rtt_us >= LONG_US
}

/// From this round trip on losses cost TCP more than packets of our own cost the processor.
/// Microseconds.
const REPAIR_US: u64 = 5_000;

/// Whether the path, if it loses packets, is better served by UDP.
pub(super) fn is_slow_to_repair(sample: Sample) -> bool {
    sample.rtt_us >= REPAIR_US
}

/// What the kernel says of a lane (`tcpi_rtt`, `tcpi_data_segs_out` and `tcpi_total_retrans` of
/// `tcp(7)`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) rtt_us: u64,
    /// Packets with data, those sent again included.
    pub(super) packets: u64,
    pub(super) retransmissions: u64,
}

/// What the kernel says of a lane, for whoever chooses its congestion control, and for the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) path: Sample,
    pub(super) lane: LaneSample,
    /// What has arrived, in order or not. Bytes.
    pub(super) arrived: u64,
    /// Sent, and not known to have arrived. Bytes.
    pub(super) in_flight: u64,
    /// The least round trip. Microseconds.
    pub(super) least_rtt_us: u64,
    /// What was delivered of late. Bytes/s.
    pub(super) rate: u64,
}

/// What was seen of a lane.
#[derive(Debug, Default)]
pub(super) struct Trace {
    least_rtt_us: Option<u64>,
    packets: u64,
    retransmissions: u64,
}

/// What all lanes to one host tell of the path to it: each alone sees too little.
#[derive(Debug, Default)]
pub(super) struct Judge {
    evidence: i32,
    /// Packets since the last one that was lost without a queue.
    clean: u64,
}

impl Judge {
    /// Takes note of a sample of a lane that was seen as `trace`.
    pub(super) fn hear(&mut self, trace: &mut Trace, sample: Sample) {
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

    /// Whether the path has proved to lose packets by itself.
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
        let mut judge = Judge::default();
        for lane in lanes {
            let mut trace = Trace::default();
            for (&(rtt_us, retransmissions), packets) in lane.iter().zip((100..).step_by(100)) {
                judge.hear(&mut trace, Sample { rtt_us, packets, retransmissions });
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
        let (mut judge, mut trace) = (Judge::default(), Trace::default());
        let mut seen = (0, 0);
        let mut hear = |packets: u64, lost: u64, rtt_us| {
            seen = (seen.0 + packets, seen.1 + lost);
            judge.hear(&mut trace, Sample { rtt_us, packets: seen.0, retransmissions: seen.1 });
            judge.is_lossy()
        };
        assert!((0..EVIDENCE).map(|_| hear(100, 1, 24_000)).last().expect("some"));
        // What a queue of our own takes proves nothing either way.
        assert!(hear(CLEAN_PACKETS / 2, 50, 48_000));
        assert!(hear(100, 1, 24_000), "one that is lost keeps it so");
        assert!(hear(CLEAN_PACKETS - 1, 0, 24_000));
        assert!(!hear(1, 0, 24_000));
        assert!(!hear(100, 1, 24_000), "and it takes as much evidence as before");
    }

    #[test]
    fn a_path_without_losses_is_clean_whatever_its_round_trip() {
        assert!(!verdict(&[&[(24_000, 0), (300_000, 0), (24_000, 0)]]));
    }
}
