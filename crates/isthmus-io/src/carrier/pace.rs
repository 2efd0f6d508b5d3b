//! How fast a lane by TCP sends over a short path that loses packets.
//!
//! The queue of a link within a site holds little more than one of TCP's bursts and overflows from them, most
//! of all where data flows both ways, for then acknowledgements come in heaps. Sent no faster than the path
//! has delivered, bursts fit. What is lost then all the same is lost by chance, which BBR does not mind;
//! and the pace keeps BBR from overflowing the queue while it starts, which it would take for a policer and
//! answer by sending slowly for seconds.
//!
//! Lanes that lose nothing are not paced: it costs the processor. Where the path is slow as well, UDP takes over: it
//! goes at a pace from the beginning, repairs what is lost within a round trip or two, and costs little of the processor
//! there.

use std::time::Duration;

use super::congestion::Look;

/// How often a lane is looked at.
pub(super) const GLANCE: Duration = Duration::from_millis(1);
/// Paths with longer round trips are not short. Microseconds.
const SHORT_US: u64 = 1_000;
/// So many packets sent again, and one in so many of all, show that bursts do not fit.
const LOST: u64 = 3;
const LOST_PART: u64 = 1_000;
/// One in so many of those that were paced shows that they are lost by chance.
const CHANCE_PART: u64 = 300;
/// Paths that have not delivered so much are slow. Bytes/s (2 Gb/s).
const SLOW: u64 = 250_000_000;
/// A round trip above the least by so much tells of a queue: what a lane delivers is not all that its program sends.
/// Microseconds.
const QUEUE_US: u64 = 400;
/// A lane is let send faster than was delivered by such a part, so that more can show.
const MORE_PART: u64 = 20;
/// From look to look what was delivered counts less by such a part.
const FADES_PART: u64 = 10_000;

/// What was seen of a lane over a short path.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// The best that was delivered, lately. Bytes/s.
    best: u64,
    /// Packets sent, and sent again, until it was paced.
    before: Option<(u64, u64)>,
}

/// What follows for the lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    /// What it may send. Bytes/s.
    pub(super) pace: u64,
    /// It loses packets by chance.
    pub(super) lossy: bool,
}

/// Whether a path is short.
pub(super) fn is_short(look: &Look) -> bool {
    look.least_rtt_us < SHORT_US
}

impl Pacing {
    /// Whether UDP would do better: something was sent again, a queue stands, and the path that it stands at is so slow
    /// that packets of our own cost little of the processor. If so, what it has delivered. Bytes/s.
    pub(super) fn is_outdone(&self, look: &Look) -> Option<u64> {
        let queue_us = look.path.rtt_us.saturating_sub(look.least_rtt_us);
        let overflows = look.path.retransmissions > 0 && queue_us >= QUEUE_US;
        (overflows && (1..SLOW).contains(&self.best)).then_some(self.best)
    }

    /// Takes note of a look at the lane; `None` while nothing is to hold it.
    pub(super) fn hear(&mut self, look: &Look) -> Option<Held> {
        self.best = look.rate.max(self.best - self.best / FADES_PART);
        let (packets, lost) = (look.path.packets, look.path.retransmissions);
        let many = |packets: u64, lost: u64, part: u64| lost >= LOST && lost * part > packets;
        if self.best == 0 || self.before.is_none() && !many(packets, lost, LOST_PART) {
            return None;
        }
        let (packets_before, lost_before) = *self.before.get_or_insert((packets, lost));
        let lossy = many(packets - packets_before, lost - lost_before, CHANCE_PART);
        Some(Held { pace: self.best + self.best / MORE_PART, lossy })
    }
}

#[cfg(test)]
mod tests {
    use super::super::congestion::Sample;
    use super::*;

    fn look(packets: u64, retransmissions: u64, rate: u64) -> Look {
        let path = Sample { rtt_us: 900, packets, retransmissions };
        let lane = isthmus_proto::LaneSample::default();
        Look { path, lane, arrived: 0, in_flight: 0, least_rtt_us: 100, rate }
    }

    #[test]
    fn a_lane_that_loses_next_to_nothing_is_not_held() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.hear(&look(100, 2, 50_000)), None);
        assert_eq!(pacing.hear(&look(10_000, 9, 100_000)), None);
    }

    #[test]
    fn bursts_that_do_not_fit_are_held_to_what_was_delivered_at_best() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.hear(&look(100, 0, 100_000)), None);
        let pace = |pacing: &mut Pacing, look: Look| pacing.hear(&look).map(|held| (held.pace, held.lossy));
        assert_eq!(pace(&mut pacing, look(200, 3, 120_000)), Some((126_000, false)));
        assert_eq!(pace(&mut pacing, look(1_000, 5, 140_000)), Some((147_000, false)), "two are no proof");
        let slower = (0..50_000).filter_map(|_| pace(&mut pacing, look(1_200, 5, 50_000))).last();
        assert_eq!(slower, Some((52_500, false)), "the path has become slower");
    }

    #[test]
    fn udp_does_better_where_a_packet_was_lost_and_less_than_two_gigabits_a_second_arrive() {
        let outdone = |lost, rate| {
            let (mut pacing, look) = (Pacing::default(), look(200, lost, rate));
            pacing.hear(&look);
            pacing.is_outdone(&look).is_some()
        };
        assert_eq!([outdone(1, 120_000_000), outdone(1, 1_100_000_000)], [true, false]);
        assert!(!outdone(0, 120_000_000) && !outdone(1, 0));
        // Of a program that sends little now and then the rate says nothing.
        let (mut pacing, mut little) = (Pacing::default(), look(200, 1, 1_000_000));
        little.path.rtt_us = 200;
        pacing.hear(&little);
        assert_eq!(pacing.is_outdone(&little), None);
    }

    #[test]
    fn what_is_lost_at_that_pace_is_lost_by_chance() {
        let mut pacing = Pacing::default();
        let lossy = |pacing: &mut Pacing, look| pacing.hear(&look).is_some_and(|held| held.lossy);
        assert!(!lossy(&mut pacing, look(200, 50, 100_000)), "before it was held");
        assert!(!lossy(&mut pacing, look(300, 52, 100_000)));
        assert!(lossy(&mut pacing, look(400, 54, 100_000)));
        assert!(!lossy(&mut pacing, look(4_000, 54, 100_000)));
    }
}
