//! Enforces the administrator's `rate_limit` on TCP lanes. Lanes that carry data have equal parts, and the kernel paces
//! each. UDP lanes enforce theirs themselves ([`isthmus_udp::Cap`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use isthmus_path::thresholds::sharing::LOOK_US;

use crate::settings::RateLimits;

/// A lane counts as carrying for this many looks after the last one. Count.
const LOOKS: u64 = 3;
/// It counts longer by the time that the kernel needs to send this much at the lane's rate. Bytes: the most that it
/// holds.
const HELD: u64 = 256 << 10;

/// The limits, and the TCP lanes that share each.
#[derive(Debug)]
pub(super) struct Limit {
    limits: RateLimits,
    /// For each entry of the setting: lanes, by descriptor, and until when each counts.
    carrying: HashMap<usize, HashMap<RawFd, Instant>>,
}

impl Limit {
    pub(super) fn new(limits: RateLimits) -> Self {
        Self { limits, carrying: HashMap::new() }
    }

    /// Rate limit of a carrying lane to `host` while `endpoints` endpoints of this host use the path. Bytes/s; `None`:
    /// no limit.
    pub(super) fn part(&mut self, now: Instant, host: IpAddr, lane: RawFd, endpoints: u32) -> Option<u64> {
        self.part_for(now, (host, lane, endpoints), |part| {
            let sent_in_us = (u128::from(HELD) * 1_000_000 / u128::from(part)) as u64;
            Duration::from_micros(LOOKS * LOOK_US) + Duration::from_micros(sent_in_us)
        })
    }

    /// The same for a lane that has just come up and may never carry data. It counts until the next look at the others.
    pub(super) fn first_part(&mut self, now: Instant, host: IpAddr, lane: RawFd) -> Option<u64> {
        self.part_for(now, (host, lane, 1), |_| Duration::from_micros(LOOK_US))
    }

    /// The part of a lane, which counts for the time that `counts` gives.
    fn part_for(
        &mut self,
        now: Instant,
        (host, lane, endpoints): (IpAddr, RawFd, u32),
        counts: impl FnOnce(u64) -> Duration,
    ) -> Option<u64> {
        let (place, most) = self.limits.of(host)?;
        let carrying = self.carrying.entry(place).or_default();
        carrying.insert(lane, now);
        carrying.retain(|_, until| *until >= now);
        let part = (most / carrying.len() as u64 / u64::from(endpoints.max(1))).max(1);
        carrying.insert(lane, now + counts(part));
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 2));

    #[test]
    fn lanes_that_carry_have_equal_parts_and_those_that_ceased_leave_theirs() {
        let mut limit = Limit::new("10.2.0.0/16=800Mbit".parse().expect("valid"));
        let at = Instant::now();
        assert_eq!(limit.part(at, HOST, 3, 1), Some(100_000_000));
        assert_eq!(limit.part(at, OTHER, 4, 1), Some(50_000_000), "the range's lanes together");
        assert_eq!(limit.part(at, HOST, 3, 2), Some(25_000_000), "beside another endpoint");
        let soon = at + Duration::from_micros(LOOK_US);
        assert_eq!(limit.part(soon, HOST, 3, 1), Some(50_000_000));
        let later = at + Duration::from_secs(1);
        assert_eq!(limit.part(later, OTHER, 4, 1), Some(100_000_000));
        assert_eq!(limit.part(at, [10, 3, 0, 1].into(), 5, 1), None);
    }

    #[test]
    fn a_lane_that_has_come_up_and_does_not_carry_leaves_its_part_by_the_next_look_at_those_that_do() {
        let mut limit = Limit::new("800Mbit".parse().expect("valid"));
        let at = Instant::now();
        assert_eq!(limit.first_part(at, HOST, 3), Some(100_000_000));
        assert_eq!(limit.first_part(at, HOST, 4), Some(50_000_000), "both may begin to carry at once");
        assert_eq!(limit.part(at, HOST, 3, 1), Some(50_000_000));
        let next = at + Duration::from_micros(LOOK_US + 1);
        assert_eq!(limit.part(next, HOST, 3, 1), Some(100_000_000));
        assert_eq!(limit.part(next, HOST, 4, 1), Some(50_000_000), "it carries after all");
    }

    #[test]
    fn a_slow_lane_that_the_kernel_still_sends_of_counts_though_it_is_seldom_looked_at() {
        let mut limit = Limit::new("800kbit".parse().expect("valid"));
        let at = Instant::now();
        assert_eq!(limit.part(at, HOST, 3, 1), Some(100_000));
        assert_eq!(limit.part(at + Duration::from_secs(2), HOST, 4, 1), Some(50_000));
    }
}
