//! Sharing of paths among the endpoints of this host that send by TCP.
//!
//! Each endpoint would bring as many connections to a path as one endpoint needs. So each tells the ledger while it has
//! bulk data under way, and learns how many others do.
//!
//! BBR sends at nearly three times the delivery rate until it has measured the path. Several at once lose so many
//! packets that they assume a policer and stay slow for seconds. So once the round trip shows a queue, each endpoint is
//! paced to its part of their common delivery rate, and to more again while there is no queue.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use isthmus_ledger::{Flow, Kind, Ledger, PathKey, Report};

use super::congestion::LOOK_MS;
use crate::ledger;

/// Paths with a shorter round trip are not shared. Microseconds.
const NEAR_US: u64 = 1_000;
/// A lane's round trip shows a queue if it exceeds the shortest one by this fraction (1/4).
const QUEUE_PART: u64 = 4;
/// It must also exceed it by this. Microseconds. The path has a queue if every second lane shows one.
const QUEUE_US: u64 = 1_000;
/// The best rate counts for this long.
const BEST_FOR: Duration = Duration::from_secs(5);
/// While there is a queue, all lanes together may send at this multiple of their delivery rate.
const HELD: f64 = 1.0;
/// Without a queue, that factor grows by this from look to look.
const LOOSER: f64 = 1.02;
/// From this factor on, lanes are no longer paced.
const FREE: f64 = 1.3;

/// The TCP lanes of this endpoint, as the ledger knows them.
#[derive(Debug)]
pub(super) struct PathSharing {
    own: IpAddr,
    ledger: Option<Ledger>,
    hosts: HashMap<IpAddr, Bulk>,
}

/// A look at a busy lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathLook {
    /// The round trip now. Microseconds.
    pub(super) rtt_us: u64,
    /// The shortest round trip. Microseconds.
    pub(super) least_rtt_us: u64,
    /// Bytes that have arrived since the last look.
    pub(super) acked: u64,
    /// Bytes under way.
    pub(super) in_flight: u64,
}

/// The lane's part of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PathPart {
    /// Endpoints, including this one, that send bulk data on the path. Count.
    pub(super) endpoints: u32,
    /// Rate limit of this lane. Bytes/s.
    pub(super) pace: Option<u64>,
}

/// The rate that all lanes to one host carry together.
#[derive(Debug)]
struct Bulk {
    flow: Option<(Flow, PathKey)>,
    since: Option<Instant>,
    least_rtt_us: u64,
    /// Bytes that arrived since then.
    acked: u64,
    /// Bytes that lanes had under way, summed over the looks since then.
    in_flight: u64,
    /// Lanes that were looked at since then.
    lanes: u32,
    /// Those lanes that showed a queue.
    queued: u32,
    /// Lanes of the period before.
    lanes_before: u32,
    /// The highest recent rate of all endpoints together. Bytes/s.
    best: f64,
    /// End of the time for which that counts.
    best_until: Option<Instant>,
    /// The rate that all may send, as a multiple of that; `None` while they are not paced.
    hold: Option<f64>,
    part: PathPart,
}

impl PathSharing {
    /// `own` is this endpoint's address. Without a ledger, each endpoint counts as alone.
    pub(super) fn new(own: IpAddr, ledger: Option<Ledger>) -> Self {
        Self { own, ledger, hosts: HashMap::new() }
    }

    /// Takes in a look at a lane to `host`; returns the lane's part of the path.
    pub(super) fn on_look(&mut self, host: IpAddr, look: PathLook) -> PathPart {
        if look.rtt_us < NEAR_US {
            return PathPart { endpoints: 1, pace: None };
        }
        let (own, ledger) = (self.own, self.ledger.as_ref());
        let bulk = self.hosts.entry(host).or_insert_with(|| Bulk::new(ledger, own, host));
        bulk.note(look);
        let now = Instant::now();
        let took = bulk.since.map(|since| now.saturating_duration_since(since));
        if took.is_none_or(|took| took.as_millis() >= u128::from(LOOK_MS)) {
            let rate = took.map_or(0.0, |took| bulk.acked as f64 / took.as_secs_f64());
            let (endpoints, all) = bulk.tell(ledger, rate);
            bulk.conclude(now, endpoints, all);
        }
        bulk.part
    }
}

impl Bulk {
    fn new(ledger: Option<&Ledger>, own: IpAddr, host: IpAddr) -> Self {
        let key = PathKey::new(Some(own), host);
        Self {
            flow: ledger.map(|ledger| (ledger.flow(key, Kind::System), key)),
            since: None,
            least_rtt_us: u64::MAX,
            acked: 0,
            in_flight: 0,
            lanes: 0,
            queued: 0,
            lanes_before: 0,
            best: 0.0,
            best_until: None,
            hold: None,
            part: PathPart { endpoints: 1, pace: None },
        }
    }

    fn note(&mut self, look: PathLook) {
        self.least_rtt_us = self.least_rtt_us.min(look.least_rtt_us.max(1));
        let queue = look.rtt_us > self.least_rtt_us + (self.least_rtt_us / QUEUE_PART).max(QUEUE_US);
        self.acked += look.acked;
        self.in_flight += look.in_flight;
        self.lanes += 1;
        self.queued += u32::from(queue);
    }

    /// Tells the other endpoints; returns how many use the path, and the rate of all of them (bytes/s).
    fn tell(&mut self, ledger: Option<&Ledger>, rate: f64) -> (u32, f64) {
        let (Some(ledger), Some((flow, key))) = (ledger, &mut self.flow) else { return (1, rate) };
        let now = ledger::now();
        let report =
            Report { rate: rate as u64, in_flight: self.in_flight, flows: self.lanes, sends_little: false };
        flow.tell(now, report);
        let all = ledger.path_use(now, *key);
        (all.endpoints.max(1), (all.rate as f64).max(rate))
    }

    /// Ends a period of looks at lanes, and computes the lanes' parts.
    fn conclude(&mut self, now: Instant, endpoints: u32, all: f64) {
        if all >= self.best || self.best_until.is_none_or(|until| now > until) {
            self.best = all;
            self.best_until = Some(now + BEST_FOR);
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

    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 8, 7));
    const RTT_US: u64 = 100_000;

    fn look(rtt_us: u64) -> PathLook {
        PathLook { rtt_us, least_rtt_us: RTT_US, acked: 1 << 20, in_flight: 1 << 20 }
    }

    /// A period with a rate of `all` bytes/s by `endpoints` endpoints; this one has four lanes.
    fn time(bulk: &mut Bulk, at: Instant, rtt_us: u64, endpoints: u32, all: f64) -> PathPart {
        (0..4).for_each(|_| bulk.note(look(rtt_us)));
        bulk.conclude(at, endpoints, all);
        bulk.part
    }

    #[test]
    fn lanes_are_held_to_their_part_from_the_first_queue_on_and_let_go_without_one() {
        let (mut bulk, at) = (Bulk::new(None, HOST, HOST), Instant::now());
        assert_eq!(time(&mut bulk, at, RTT_US, 2, 80e6), PathPart { endpoints: 2, pace: None });
        // The best arrival rate counts; this sample is older.
        time(&mut bulk, at, 2 * RTT_US, 2, 120e6);
        let held = time(&mut bulk, at, 2 * RTT_US, 2, 60e6);
        assert_eq!(held, PathPart { endpoints: 2, pace: Some(15_000_000) });
        let looser = time(&mut bulk, at, RTT_US, 2, 100e6).pace.expect("it is still held");
        assert!((15_000_001..18_000_000).contains(&looser), "{looser}");
        let free = (0..100).map(|_| time(&mut bulk, at, RTT_US, 2, 100e6).pace).last();
        assert_eq!(free, Some(None));
    }

    #[test]
    fn a_path_that_carries_less_than_it_did_is_known_to_after_a_while() {
        let (mut bulk, at) = (Bulk::new(None, HOST, HOST), Instant::now());
        assert_eq!(time(&mut bulk, at, 2 * RTT_US, 1, 120e6).pace, Some(30_000_000));
        let later = at + BEST_FOR + Duration::from_millis(1);
        assert_eq!(time(&mut bulk, later, 2 * RTT_US, 1, 40e6).pace, Some(10_000_000));
    }

    #[test]
    fn near_hosts_are_not_told_of_and_alone_one_has_all() {
        let mut sharing = PathSharing::new(HOST, None);
        let near = PathLook { rtt_us: NEAR_US - 1, least_rtt_us: 100, ..look(0) };
        assert_eq!(sharing.on_look(HOST, near), PathPart { endpoints: 1, pace: None });
        assert!(sharing.hosts.is_empty());
        assert_eq!(sharing.on_look(HOST, look(RTT_US)).endpoints, 1);
    }
}
