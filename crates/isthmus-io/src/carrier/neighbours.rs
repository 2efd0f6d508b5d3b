//! What endpoints of this host that send by TCP tell each other of the paths that they use.
//!
//! A path is one to all of them, and each would bring as many connections as it takes alone: so
//! each tells the ledger while it has bulk under way, and learns how many others do. BBR sends nearly three times what
//! arrives until it knows better, and several at once lose so much that they take the path for one with a
//! policer and stay slow for seconds. So once the round trip tells of a queue, each is held to its part
//! of what arrives by all, and to more again while there is none.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use isthmus_ledger::{Flow, Kind, Ledger, PathKey, Report};

use super::congestion::LOOK_MS;
use crate::ledger;

/// Shorter paths are not told of. Microseconds.
const NEAR_US: u64 = 1_000;
/// A round trip above the least one by more than such a part, and by more than so many microseconds, tells of a
/// queue, if that holds for every second lane.
const QUEUE_PART: u64 = 4;
const QUEUE_US: u64 = 1_000;
/// What arrived at best counts for so long.
const BEST_FOR: Duration = Duration::from_secs(5);
/// While there is a queue, lanes have together so many times what arrives; without one, so many times
/// more from look to look, until nothing holds them.
const HELD: f64 = 1.0;
const LOOSER: f64 = 1.02;
const FREE: f64 = 1.3;

/// The endpoint's part in the ledger, as far as lanes by TCP go.
#[derive(Debug)]
pub(super) struct Neighbours {
    own: IpAddr,
    ledger: Option<Ledger>,
    hosts: HashMap<IpAddr, Bulk>,
}

/// What a look at a lane that is kept busy has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Microseconds.
    pub(super) rtt_us: u64,
    pub(super) least_rtt_us: u64,
    /// Bytes that have arrived since the last look.
    pub(super) acked: u64,
    /// Bytes under way.
    pub(super) in_flight: u64,
}

/// What follows for the lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// Endpoints that have bulk on the way to there, this one among them.
    pub(super) endpoints: u32,
    /// What this lane may send. Bytes/s.
    pub(super) pace: Option<u64>,
}

/// What all lanes to one host carry.
#[derive(Debug)]
struct Bulk {
    flow: Option<(Flow, PathKey)>,
    since: Option<Instant>,
    least_rtt_us: u64,
    /// Since then: bytes that arrived, bytes that lanes had under way, lanes that were looked at and those of
    /// them that have a queue.
    acked: u64,
    in_flight: u64,
    lanes: u32,
    queued: u32,
    /// Lanes in the time before that.
    lanes_before: u32,
    /// The most that arrived by all endpoints together, lately, and until when that counts. Bytes/s.
    best: f64,
    best_until: Option<Instant>,
    /// What all may send, in terms of that; `None` while nothing holds them.
    hold: Option<f64>,
    part: Part,
}

impl Neighbours {
    /// `own`: this endpoint's address; without a ledger each endpoint is alone.
    pub(super) fn new(own: IpAddr, ledger: Option<Ledger>) -> Self {
        Self { own, ledger, hosts: HashMap::new() }
    }

    /// A lane to `host` was looked at.
    pub(super) fn hear(&mut self, host: IpAddr, seen: Seen) -> Part {
        if seen.rtt_us < NEAR_US {
            return Part { endpoints: 1, pace: None };
        }
        let (own, ledger) = (self.own, self.ledger.as_ref());
        let bulk = self.hosts.entry(host).or_insert_with(|| Bulk::new(ledger, own, host));
        bulk.note(seen);
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
            part: Part { endpoints: 1, pace: None },
        }
    }

    fn note(&mut self, seen: Seen) {
        self.least_rtt_us = self.least_rtt_us.min(seen.least_rtt_us.max(1));
        let queue = seen.rtt_us > self.least_rtt_us + (self.least_rtt_us / QUEUE_PART).max(QUEUE_US);
        self.acked += seen.acked;
        self.in_flight += seen.in_flight;
        self.lanes += 1;
        self.queued += u32::from(queue);
    }

    /// Tells the others; how many endpoints use the path, and what arrives by all of them. Bytes/s.
    fn tell(&mut self, ledger: Option<&Ledger>, rate: f64) -> (u32, f64) {
        let (Some(ledger), Some((flow, key))) = (ledger, &mut self.flow) else { return (1, rate) };
        let now = ledger::now();
        let report =
            Report { rate: rate as u64, in_flight: self.in_flight, flows: self.lanes, sends_little: false };
        flow.tell(now, report);
        let all = ledger.path_use(now, *key);
        (all.endpoints.max(1), (all.rate as f64).max(rate))
    }

    /// The end of a time in which lanes were looked at.
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
            Part { endpoints, pace: self.hold.map(|hold| (hold * each) as u64).filter(|pace| *pace > 0) };
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

    fn seen(rtt_us: u64) -> Seen {
        Seen { rtt_us, least_rtt_us: RTT_US, acked: 1 << 20, in_flight: 1 << 20 }
    }

    /// A time at whose end `all` bytes/s arrived by so many endpoints, of which this one has four lanes.
    fn time(bulk: &mut Bulk, at: Instant, rtt_us: u64, endpoints: u32, all: f64) -> Part {
        (0..4).for_each(|_| bulk.note(seen(rtt_us)));
        bulk.conclude(at, endpoints, all);
        bulk.part
    }

    #[test]
    fn lanes_are_held_to_their_part_from_the_first_queue_on_and_let_go_without_one() {
        let (mut bulk, at) = (Bulk::new(None, HOST, HOST), Instant::now());
        assert_eq!(time(&mut bulk, at, RTT_US, 2, 80e6), Part { endpoints: 2, pace: None });
        // What arrived best counts: this was before.
        time(&mut bulk, at, 2 * RTT_US, 2, 120e6);
        let held = time(&mut bulk, at, 2 * RTT_US, 2, 60e6);
        assert_eq!(held, Part { endpoints: 2, pace: Some(15_000_000) });
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
        let mut neighbours = Neighbours::new(HOST, None);
        let near = Seen { rtt_us: NEAR_US - 1, least_rtt_us: 100, ..seen(0) };
        assert_eq!(neighbours.hear(HOST, near), Part { endpoints: 1, pace: None });
        assert!(neighbours.hosts.is_empty());
        assert_eq!(neighbours.hear(HOST, seen(RTT_US)).endpoints, 1);
    }
}
