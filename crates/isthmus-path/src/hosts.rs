//! The state of all hosts, bounded in total.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::evidence::{LaneSample, UdpLook};
use crate::losses::Trace;
use crate::segments::{Cause, Stuck};
use crate::sharing::Sharing;
use crate::thresholds::transport::HOSTS_MAX;
use crate::trial::Change;
use crate::{Bulk, Carrier, Finding, LossVerdict, Micros, PathState, Plan, Policy, Weakness, decide};

/// A change of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct News {
    /// The host.
    pub host: IpAddr,
    /// The reason.
    pub why: Finding,
    /// How much of the bulk data is for UDP lanes to it from now on, if that has changed.
    pub bulk: Option<Bulk>,
}

/// What is known about the paths to all hosts.
#[derive(Debug)]
pub struct Hosts {
    policy: Policy,
    states: HashMap<IpAddr, PathState>,
    news: VecDeque<News>,
    unknown: PathState,
}

impl Hosts {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, states: HashMap::new(), news: VecDeque::new(), unknown: PathState::default() }
    }

    /// The plan for a host.
    #[must_use]
    pub fn plan(&self, now: Micros, host: IpAddr) -> Plan {
        decide(self.states.get(&host).unwrap_or(&self.unknown), self.policy, now)
    }

    /// The next change, for the log and for the lanes that it concerns.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// The state of a host. If there is no room for another one, the host that was used longest ago is forgotten.
    fn state(&mut self, now: Micros, host: IpAddr) -> &mut PathState {
        if self.states.len() >= HOSTS_MAX && !self.states.contains_key(&host) {
            self.forget_oldest();
        }
        let state = self.states.entry(host).or_default();
        state.used = now;
        state
    }

    fn forget_oldest(&mut self) {
        let oldest = self.states.iter().min_by_key(|(_, state)| state.used).map(|(host, _)| *host);
        let Some((host, state)) = oldest.and_then(|host| self.states.remove_entry(&host)) else { return };
        if state.bulk() != Bulk::All {
            self.news.push_back(News { host, why: Finding::Forgotten, bulk: Some(Bulk::All) });
        }
    }

    /// Takes in a finding about a host.
    pub fn learn(&mut self, now: Micros, host: IpAddr, finding: Finding) {
        if self.state(now, host).learn(now, finding) {
            self.news.push_back(News { host, why: finding, bulk: None });
        }
    }

    /// Lanes to this host take another route from now on.
    pub fn forget_findings(&mut self, host: IpAddr) {
        self.states.get_mut(&host).into_iter().for_each(PathState::forget_findings);
    }

    /// Takes in a look at the UDP lanes to a host.
    pub fn on_udp(&mut self, now: Micros, host: IpAddr, look: UdpLook) {
        if self.policy.may_choose {
            let change = self.state(now, host).on_udp(now, look);
            self.tell(host, change);
        }
    }

    /// Takes in a look at a TCP lane to a host: the bytes that have arrived since the last one. `idled` says that the
    /// lane did not always have something to send.
    pub fn on_tcp_bulk(&mut self, now: Micros, host: IpAddr, arrived: u64, idled: bool) {
        let change = self.states.get_mut(&host).and_then(|state| state.on_tcp_bulk(now, arrived, idled));
        self.tell(host, change);
    }

    /// Takes in a sample of a TCP lane; `trace` is the lane's last one.
    pub fn on_tcp_sample(
        &mut self,
        now: Micros,
        host: IpAddr,
        trace: &mut Trace,
        sample: LaneSample,
    ) -> LossVerdict {
        self.state(now, host).on_tcp_sample(trace, sample)
    }

    /// A TCP lane to a host stands still, while `answers` new connections to its peer succeeded. The cause, once that
    /// tells.
    pub fn on_stuck(&mut self, now: Micros, host: IpAddr, answers: u32, stuck: Stuck) -> Option<Cause> {
        self.state(now, host).on_stuck(now, answers, stuck)
    }

    /// The lanes to a host that share its path with other endpoints.
    pub fn sharing(&mut self, now: Micros, host: IpAddr) -> &mut Sharing {
        &mut self.state(now, host).sharing
    }

    /// TCP is weak on the path to this host. True if further lanes should be dialled, by UDP.
    pub fn on_weakness(&mut self, now: Micros, host: IpAddr, weakness: Weakness) -> bool {
        if !self.policy.may_choose {
            return false;
        }
        let finding = match weakness {
            Weakness::Lossy => {
                let change = self.state(now, host).on_lossy(now);
                if change.is_some() {
                    // The UDP lanes that are there carry the bulk data again, so no more are needed.
                    self.tell(host, change);
                    return false;
                }
                Finding::LostWithoutQueue
            }
            // If the processor limits UDP, TCP still does better.
            Weakness::Overflows { .. } if self.plan(now, host).bulk != Bulk::All => return false,
            Weakness::Overflows { .. } => Finding::Overflows,
        };
        match self.plan(now, host).carrier {
            Some(Carrier::TcpOnly) => return false,
            Some(Carrier::Udp | Carrier::UdpIfItPasses) => {}
            Some(Carrier::Tcp) | None => self.learn(now, host, finding),
        }
        true
    }

    fn tell(&mut self, host: IpAddr, change: Option<Change>) {
        let news = |change: Change| News { host, why: Finding::Trial(change), bulk: Some(change.bulk()) };
        self.news.extend(change.map(news));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::UdpWork;
    use crate::thresholds::transport::VALID_US;

    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 1));
    const LOOK_US: Micros = 250_000;

    fn hosts() -> Hosts {
        Hosts::new(Policy { may_choose: true })
    }

    /// Looks for 10 s from `from` on at UDP lanes that keep the processor busy for a share `busy` of the time.
    fn carry(hosts: &mut Hosts, from: Micros, busy: f64) {
        let busy_us = (busy * LOOK_US as f64) as Micros;
        let work = UdpWork { bytes: 400_000_000, packets: 50_000, busy_us, ..UdpWork::default() };
        for look in 1..=40 {
            let seen = UdpLook { rtt_us: 24_000, packet: 8_972, work };
            hosts.on_udp(from + look * LOOK_US, HOST, seen);
        }
    }

    #[test]
    fn bulk_data_leaves_udp_where_the_processor_is_busy_unless_an_administrator_chose() {
        for may_choose in [true, false] {
            let mut hosts = Hosts::new(Policy { may_choose });
            hosts.learn(0, HOST, Finding::Far { rtt_us: 24_000 });
            assert_eq!(hosts.poll_news().map(|news| news.bulk), Some(None));
            carry(&mut hosts, 0, 0.5);
            assert_eq!((hosts.plan(10_000_000, HOST).bulk, hosts.poll_news()), (Bulk::All, None));
            carry(&mut hosts, 10_000_000, 0.97);
            let now = 20_000_000;
            let plan = hosts.plan(now, HOST);
            assert_eq!(plan.bulk, if may_choose { Bulk::None } else { Bulk::All });
            assert_eq!(plan.carrier == Some(Carrier::Tcp), may_choose);
            let bulk = hosts.poll_news().and_then(|news| news.bulk);
            assert_eq!(bulk, may_choose.then_some(Bulk::None));
            // A race that ends now changes nothing.
            hosts.learn(now, HOST, Finding::Far { rtt_us: 24_000 });
            assert_eq!(hosts.plan(now, HOST).carrier == Some(Carrier::Tcp), may_choose);
            assert!(!hosts.on_weakness(now, HOST, Weakness::Lossy), "the UDP lanes that there are carry");
            let bulk = hosts.poll_news().and_then(|news| news.bulk);
            assert_eq!(bulk, may_choose.then_some(Bulk::All));
            assert_eq!(hosts.plan(now, HOST).carrier, Some(Carrier::Udp));
        }
    }

    #[test]
    fn what_was_found_holds_for_a_minute_and_is_told_once() {
        let mut hosts = hosts();
        assert_eq!(hosts.plan(0, HOST).carrier, None, "a race will tell");
        hosts.learn(0, HOST, Finding::Near { below_us: 2_000 });
        hosts.learn(1_000, HOST, Finding::Near { below_us: 2_000 });
        let news = hosts.poll_news().expect("it is new");
        assert_eq!((news.host, news.why), (HOST, Finding::Near { below_us: 2_000 }));
        assert_eq!(hosts.poll_news(), None);
        assert_eq!(hosts.plan(1_000 + VALID_US - 1, HOST).carrier, Some(Carrier::Tcp));
        assert_eq!(hosts.plan(1_000 + VALID_US, HOST).carrier, None);
        hosts.learn(2_000, HOST, Finding::NoAnswer);
        hosts.forget_findings(HOST);
        assert_eq!(hosts.plan(3_000, HOST).carrier, None, "it takes another route");
    }

    #[test]
    fn weak_tcp_makes_udp_wanted_unless_udp_is_blocked() {
        let overflows = Weakness::Overflows { rate: 1 << 20, rtt_us: 300 };
        for weakness in [Weakness::Lossy, overflows] {
            let mut hosts = hosts();
            hosts.learn(0, HOST, Finding::Near { below_us: 2_000 });
            assert!(hosts.on_weakness(1, HOST, weakness));
            assert_eq!(hosts.plan(1, HOST).carrier, Some(Carrier::UdpIfItPasses));
            hosts.learn(2, HOST, Finding::GetsThrough);
            assert!(hosts.on_weakness(3, HOST, weakness), "further lanes go by UDP");
            assert_eq!(hosts.plan(3, HOST).why, Some(Finding::GetsThrough));
            hosts.learn(4, HOST, Finding::Silent { ms: 3_040 });
            assert!(!hosts.on_weakness(5, HOST, weakness));
            assert_eq!(hosts.plan(5, HOST).carrier, Some(Carrier::TcpOnly));
        }
    }

    #[test]
    fn the_host_that_was_used_longest_ago_is_forgotten_and_its_lanes_carry_as_if_nothing_were_known() {
        let mut hosts = hosts();
        carry(&mut hosts, 0, 0.97);
        let host = |n: usize| IpAddr::from([10, 3, (n >> 8) as u8, n as u8]);
        for n in 1..HOSTS_MAX {
            hosts.learn(20_000_000 + n as Micros, host(n), Finding::Far { rtt_us: 24_000 });
        }
        assert_eq!(hosts.plan(20_001_024, HOST).bulk, Bulk::None);
        while hosts.poll_news().is_some() {}
        hosts.learn(21_000_000, host(HOSTS_MAX), Finding::Far { rtt_us: 24_000 });
        assert_eq!((hosts.states.len(), hosts.plan(21_000_000, HOST).bulk), (HOSTS_MAX, Bulk::All));
        let forgotten = hosts.poll_news().expect("its lanes have to be told");
        assert_eq!((forgotten.host, forgotten.bulk), (HOST, Some(Bulk::All)));
    }
}
