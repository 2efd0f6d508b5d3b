//! How fast lanes by TCP may send where an administrator says so (`rate_limit`): those that carry have an equal
//! part each, which the kernel keeps to. Lanes by UDP keep to theirs by themselves ([`isthmus_udp::Cap`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::congestion::LOOK_MS;
use crate::settings::RateLimits;

/// A lane that carries is looked at again before so many looks are due, and what the kernel has of it is sent.
const LOOKS: u64 = 3;
/// Most that the kernel may have of it meanwhile. Bytes.
const HELD: u64 = 256 << 10;

/// What lanes by TCP share of it.
#[derive(Debug)]
pub(super) struct Limit {
    limits: RateLimits,
    /// By entry: lanes, by their descriptors, and until when each counts.
    carrying: HashMap<usize, HashMap<RawFd, Instant>>,
}

impl Limit {
    pub(super) fn new(limits: RateLimits) -> Self {
        Self { limits, carrying: HashMap::new() }
    }

    /// What a lane to `host` that carries may send, where so many endpoints of this host use the path; `None` where
    /// nothing limits it. Bytes/s.
    pub(super) fn part(&mut self, now: Instant, host: IpAddr, lane: RawFd, endpoints: u32) -> Option<u64> {
        self.part_for(now, (host, lane, endpoints), |part| {
            let sent_in_us = (u128::from(HELD) * 1_000_000 / u128::from(part)) as u64;
            Duration::from_millis(LOOKS * LOOK_MS) + Duration::from_micros(sent_in_us)
        })
    }

    /// The same of a lane that has come up and may never carry: it counts until those that do look again.
    pub(super) fn first_part(&mut self, now: Instant, host: IpAddr, lane: RawFd) -> Option<u64> {
        self.part_for(now, (host, lane, 1), |_| Duration::from_millis(LOOK_MS))
    }

    /// The part of a lane, which counts for so long.
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
        let soon = at + Duration::from_millis(LOOK_MS);
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
        let next = at + Duration::from_millis(LOOK_MS + 1);
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
