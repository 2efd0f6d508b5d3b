//! Pacing of TCP lanes on short paths that lose packets.
//!
//! The queue of a link within a site holds little more than one of TCP's bursts, and bursts overflow it. That is worst
//! if data flows both ways, since acknowledgements then come in clusters. If a lane sends no faster than the path has
//! delivered, its bursts fit. Further losses are by chance, and BBR does not mind those. The pace also keeps BBR from
//! overflowing the queue while it starts: BBR would take that for a policer and send slowly for seconds.
//!
//! Lanes that lose nothing are not paced, since pacing costs processor time. If the path is slow as well, UDP takes
//! over: it paces from the beginning, repairs losses within one or two round trips, and costs little on a slow path.
//!
//! A lane with a rate limit is given little at once, so that what comes later need not wait ([`quantum`]).

use std::num::NonZeroU64;

use crate::Micros;
use crate::evidence::TcpLook;
use crate::thresholds::pacing::{
    CHANCE_PART, FADES_PART, LOST, LOST_PART, MIN_QUANTUM, MORE_PART, QUANTA, QUANTUM_US, SLOW,
};
use crate::thresholds::queue::SITE_US;

/// The most that a lane with this rate limit, in bytes/s, takes at once. Bytes.
#[must_use]
pub fn quantum(limit: NonZeroU64) -> u64 {
    (limit.get() / (1_000_000 / QUANTUM_US)).max(MIN_QUANTUM)
}

/// The time that data waits in such a lane before it is sent, at most. Microseconds.
#[must_use]
pub fn backlog_us(limit: NonZeroU64) -> Micros {
    (u128::from(QUANTA * 1_000_000) * u128::from(quantum(limit)) / u128::from(limit.get())) as Micros
}

/// Measurements of a lane on a short path.
#[derive(Debug, Default)]
pub struct Pacing {
    /// The highest recent delivery rate. Bytes/s.
    best: u64,
    /// Packets sent and retransmitted until the lane was paced.
    before: Option<(u64, u64)>,
}

/// The conclusion for the lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaceVerdict {
    /// Its rate limit. Bytes/s.
    pub pace: u64,
    /// It loses packets by chance.
    pub lossy: bool,
}

impl Pacing {
    /// Whether UDP would do better: something was retransmitted, there is a queue, and the path is so slow that UDP
    /// costs little processor time. If so, returns the rate that the path has delivered. Bytes/s.
    pub fn is_outdone(&self, look: &TcpLook) -> Option<u64> {
        let queue_us: Micros = look.lane.rtt_us.saturating_sub(look.least_rtt_us);
        let overflows = look.lane.resent > 0 && queue_us >= SITE_US;
        (overflows && (1..SLOW).contains(&self.best)).then_some(self.best)
    }

    /// Takes in a look at the lane. `None` while the lane need not be paced.
    pub fn on_look(&mut self, look: &TcpLook) -> Option<PaceVerdict> {
        self.best = look.rate.max(self.best - self.best / FADES_PART);
        let (packets, lost) = (look.lane.packets, look.lane.resent);
        let many = |packets: u64, lost: u64, part: u64| lost >= LOST && lost * part > packets;
        if self.best == 0 || self.before.is_none() && !many(packets, lost, LOST_PART) {
            return None;
        }
        let (packets_before, lost_before) = *self.before.get_or_insert((packets, lost));
        let lossy = many(packets - packets_before, lost - lost_before, CHANCE_PART);
        Some(PaceVerdict { pace: self.best + self.best / MORE_PART, lossy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::LaneSample;

    fn look(packets: u64, resent: u64, rate: u64) -> TcpLook {
        let lane = LaneSample { rtt_us: 900, packets, resent, ..LaneSample::default() };
        TcpLook { lane, least_rtt_us: 100, rate, ..TcpLook::default() }
    }

    #[test]
    fn a_limited_lane_takes_what_it_sends_in_20_ms_but_not_tiny_pieces() {
        let at = |limit| NonZeroU64::new(limit).map(|limit| (quantum(limit), backlog_us(limit)));
        assert_eq!(at(12_500_000), Some((250_000, 80_000)));
        assert_eq!(at(250_000), Some((16_384, 262_144)));
        assert_eq!(at(1), Some((16_384, 65_536_000_000)));
        assert_eq!(at(u64::MAX).map(|(bytes, _)| bytes), Some(u64::MAX / 50));
    }

    #[test]
    fn a_lane_that_loses_next_to_nothing_is_not_held() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.on_look(&look(100, 2, 50_000)), None);
        assert_eq!(pacing.on_look(&look(10_000, 9, 100_000)), None);
    }

    #[test]
    fn bursts_that_do_not_fit_are_held_to_what_was_delivered_at_best() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.on_look(&look(100, 0, 100_000)), None);
        let pace =
            |pacing: &mut Pacing, look: TcpLook| pacing.on_look(&look).map(|held| (held.pace, held.lossy));
        assert_eq!(pace(&mut pacing, look(200, 3, 120_000)), Some((126_000, false)));
        assert_eq!(pace(&mut pacing, look(1_000, 5, 140_000)), Some((147_000, false)), "two are no proof");
        let slower = (0..50_000).filter_map(|_| pace(&mut pacing, look(1_200, 5, 50_000))).last();
        assert_eq!(slower, Some((52_500, false)), "the path has become slower");
    }

    #[test]
    fn udp_does_better_where_a_packet_was_lost_and_less_than_two_gigabits_a_second_arrive() {
        let outdone = |lost, rate| {
            let (mut pacing, look) = (Pacing::default(), look(200, lost, rate));
            pacing.on_look(&look);
            pacing.is_outdone(&look).is_some()
        };
        assert_eq!([outdone(1, 120_000_000), outdone(1, 1_100_000_000)], [true, false]);
        assert!(!outdone(0, 120_000_000) && !outdone(1, 0));
        // The rate of a program that sends little says nothing of the path.
        let (mut pacing, mut little) = (Pacing::default(), look(200, 1, 1_000_000));
        little.lane.rtt_us = 200;
        pacing.on_look(&little);
        assert_eq!(pacing.is_outdone(&little), None);
    }

    #[test]
    fn what_is_lost_at_that_pace_is_lost_by_chance() {
        let mut pacing = Pacing::default();
        let lossy = |pacing: &mut Pacing, look| pacing.on_look(&look).is_some_and(|held| held.lossy);
        assert!(!lossy(&mut pacing, look(200, 50, 100_000)), "before it was held");
        assert!(!lossy(&mut pacing, look(300, 52, 100_000)));
        assert!(lossy(&mut pacing, look(400, 54, 100_000)));
        assert!(!lossy(&mut pacing, look(4_000, 54, 100_000)));
    }
}
