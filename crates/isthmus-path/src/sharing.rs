//! The part of a path that one of several endpoints of a host takes by TCP.
//!
//! BBR sends at nearly three times the delivery rate until it has measured the path. Several at once lose so many
//! packets that they assume a policer and stay slow for seconds. So once the round trip shows a queue, each endpoint is
//! paced to its part of their common delivery rate, and to more again while there is no queue.

use crate::thresholds::sharing::{BEST_US, FREE, HELD, LOOK_US, LOOSER};
use crate::{Micros, queue};

/// A look at a busy lane.
#[derive(Clone, Copy, Debug)]
pub struct PathLook {
    /// The round trip now. Microseconds.
    pub rtt_us: Micros,
    /// The shortest round trip. Microseconds.
    pub least_rtt_us: Micros,
    /// Bytes that have arrived since the last look.
    pub acked: u64,
    /// Bytes under way.
    pub in_flight: u64,
}

/// The work of this endpoint's lanes to one host in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathReport {
    /// Bytes/s.
    pub rate: f64,
    /// Bytes that lanes had under way, summed over the looks.
    pub in_flight: u64,
    /// Lanes that carried. Count.
    pub lanes: u32,
}

/// The lane's part of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathPart {
    /// Endpoints, including this one, that send bulk data on the path. Count.
    pub endpoints: u32,
    /// Rate limit of each lane. Bytes/s.
    pub pace: Option<u64>,
}

impl Default for PathPart {
    fn default() -> Self {
        Self { endpoints: 1, pace: None }
    }
}

/// The rate that all lanes to one host carry together.
#[derive(Debug)]
pub struct Sharing {
    since: Option<Micros>,
    least_rtt_us: Micros,
    /// Of this period.
    acked: u64,
    in_flight: u64,
    lanes: u32,
    /// Those lanes that showed a queue.
    queued: u32,
    /// Lanes of the period before.
    lanes_before: u32,
    /// The highest recent rate of all endpoints together. Bytes/s.
    best: f64,
    /// End of the time for which that counts.
    best_until: Option<Micros>,
    /// The rate that all may send, as a multiple of that; `None` while they are not paced.
    hold: Option<f64>,
    part: PathPart,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            since: None,
            least_rtt_us: Micros::MAX,
            acked: 0,
            in_flight: 0,
            lanes: 0,
            queued: 0,
            lanes_before: 0,
            best: 0.0,
            best_until: None,
            hold: None,
            part: PathPart::default(),
        }
    }
}

impl Sharing {
    /// The part of each lane.
    #[must_use]
    pub fn part(&self) -> PathPart {
        self.part
    }

    /// Takes in a look at a lane. At the end of a period, returns its report, for the other endpoints; then call
    /// [`Sharing::conclude`].
    pub fn on_look(&mut self, now: Micros, look: PathLook) -> Option<PathReport> {
        self.least_rtt_us = self.least_rtt_us.min(look.least_rtt_us.max(1));
        self.acked += look.acked;
        self.in_flight += look.in_flight;
        self.lanes += 1;
        self.queued += u32::from(queue::is_large(look.rtt_us, self.least_rtt_us));
        let took = self.since.map(|since| now.saturating_sub(since));
        if took.is_some_and(|took| took < LOOK_US) {
            return None;
        }
        let rate = took.map_or(0.0, |took| self.acked as f64 * 1e6 / took as f64);
        Some(PathReport { rate, in_flight: self.in_flight, lanes: self.lanes })
    }

    /// Ends a period, in which `endpoints` endpoints of this host together carried `all` bytes/s.
    pub fn conclude(&mut self, now: Micros, endpoints: u32, all: f64) {
        if all >= self.best || self.best_until.is_none_or(|until| now > until) {
            self.best = all;
            self.best_until = Some(now + BEST_US);
        }
        self.hold = if 2 * self.queued >= self.lanes {
            Some(HELD)
        } else {
            self.hold.map(|hold| LOOSER * hold).filter(|hold| *hold < FREE)
        };
        let lanes = self.lanes.max(self.lanes_before).max(1);
        let each = self.best / f64::from(endpoints) / f64::from(lanes);
        self.part =
            PathPart { endpoints, pace: self.hold.map(|hold| (hold * each) as u64).filter(|pace| *pace > 0) };
        self.since = Some(now);
        self.lanes_before = self.lanes;
        (self.acked, self.in_flight, self.lanes, self.queued) = (0, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_US: Micros = 100_000;

    fn look(rtt_us: Micros) -> PathLook {
        PathLook { rtt_us, least_rtt_us: RTT_US, acked: 1 << 20, in_flight: 1 << 20 }
    }

    /// A period with a rate of `all` bytes/s by `endpoints` endpoints; this one has four lanes.
    fn time(sharing: &mut Sharing, at: Micros, rtt_us: Micros, endpoints: u32, all: f64) -> PathPart {
        (0..4).for_each(|_| {
            sharing.on_look(at, look(rtt_us));
        });
        sharing.conclude(at, endpoints, all);
        sharing.part()
    }

    #[test]
    fn lanes_are_held_to_their_part_from_the_first_queue_on_and_let_go_without_one() {
        let (mut sharing, at) = (Sharing::default(), 1_000);
        assert_eq!(time(&mut sharing, at, RTT_US, 2, 80e6), PathPart { endpoints: 2, pace: None });
        // The best arrival rate counts; this sample is older.
        time(&mut sharing, at, 2 * RTT_US, 2, 120e6);
        let held = time(&mut sharing, at, 2 * RTT_US, 2, 60e6);
        assert_eq!(held, PathPart { endpoints: 2, pace: Some(15_000_000) });
        let looser = time(&mut sharing, at, RTT_US, 2, 100e6).pace.expect("it is still held");
        assert!((15_000_001..18_000_000).contains(&looser), "{looser}");
        let free = (0..100).map(|_| time(&mut sharing, at, RTT_US, 2, 100e6).pace).last();
        assert_eq!(free, Some(None));
    }

    #[test]
    fn a_path_that_carries_less_than_it_did_is_known_to_after_a_while() {
        let (mut sharing, at) = (Sharing::default(), 0);
        assert_eq!(time(&mut sharing, at, 2 * RTT_US, 1, 120e6).pace, Some(30_000_000));
        let later = at + BEST_US + 1_000;
        assert_eq!(time(&mut sharing, later, 2 * RTT_US, 1, 40e6).pace, Some(10_000_000));
    }

    #[test]
    fn a_period_ends_with_the_rate_of_its_lanes() {
        let mut sharing = Sharing::default();
        assert_eq!(sharing.on_look(0, look(RTT_US)).map(|report| report.rate), Some(0.0));
        sharing.conclude(0, 1, 0.0);
        assert_eq!(sharing.on_look(LOOK_US / 2, look(RTT_US)), None);
        let report = sharing.on_look(LOOK_US, look(RTT_US)).expect("the period is over");
        assert_eq!(report, PathReport { rate: (2 << 20) as f64 * 10.0, in_flight: 2 << 20, lanes: 2 });
    }
}
