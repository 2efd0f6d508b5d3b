//! Sharing of paths among the endpoints of this host that send by TCP.
//!
//! Each endpoint would bring as many connections to a path as one endpoint needs. So each tells the ledger while it has
//! bulk data under way, and learns how many others do. What follows is decided in [`isthmus_path::sharing`].

use std::collections::HashMap;
use std::net::IpAddr;

use isthmus_ledger::{Flow, Kind, Ledger, PathKey, Report};
use isthmus_path::sharing::{PathLook, PathPart, PathReport};
use isthmus_path::thresholds::distance::FAR_US;
use isthmus_path::thresholds::transport::HOSTS_MAX;
use isthmus_path::{Hosts, Micros};

use crate::ledger;

/// The TCP lanes of this endpoint, as the ledger knows them.
#[derive(Debug)]
pub(super) struct PathSharing {
    own: IpAddr,
    ledger: Option<Ledger>,
    flows: HashMap<IpAddr, (Flow, PathKey)>,
}

impl PathSharing {
    /// `own` is this endpoint's address. Without a ledger, each endpoint counts as alone.
    pub(super) fn new(own: IpAddr, ledger: Option<Ledger>) -> Self {
        Self { own, ledger, flows: HashMap::new() }
    }

    /// Takes in a look at a lane to `host`; returns the lane's part of the path.
    pub(super) fn on_look(
        &mut self,
        now: Micros,
        hosts: &mut Hosts,
        host: IpAddr,
        look: PathLook,
    ) -> PathPart {
        if look.rtt_us < FAR_US {
            return PathPart::default();
        }
        let sharing = hosts.sharing(now, host);
        if let Some(report) = sharing.on_look(now, look) {
            let (endpoints, all) = self.tell(host, report);
            sharing.conclude(now, endpoints, all);
        }
        sharing.part()
    }

    /// Tells the other endpoints; returns how many use the path, and the rate of all of them (bytes/s).
    fn tell(&mut self, host: IpAddr, report: PathReport) -> (u32, f64) {
        let PathReport { rate, in_flight, lanes } = report;
        let Some(ledger) = &self.ledger else { return (1, rate) };
        if self.flows.len() >= HOSTS_MAX && !self.flows.contains_key(&host) {
            // Those that still carry come back at their next report.
            self.flows.clear();
        }
        let (flow, key) = self.flows.entry(host).or_insert_with(|| {
            let key = PathKey::new(Some(self.own), host);
            (ledger.flow(key, Kind::System), key)
        });
        let now = ledger::now();
        flow.tell(now, Report { rate: rate as u64, in_flight, flows: lanes, sends_little: false });
        let all = ledger.path_use(now, *key);
        (all.endpoints.max(1), (all.rate as f64).max(rate))
    }
}

#[cfg(test)]
mod tests {
    use isthmus_path::Policy;

    use super::*;

    #[test]
    fn an_endpoint_that_is_alone_has_all_of_a_path_and_near_hosts_are_not_told_of() {
        let host = IpAddr::from([10, 9, 8, 7]);
        let mut hosts = Hosts::new(Policy { may_choose: true });
        let mut sharing = PathSharing::new(host, None);
        let look = |rtt_us| PathLook { rtt_us, least_rtt_us: rtt_us, acked: 1 << 20, in_flight: 1 << 20 };
        assert_eq!(sharing.on_look(0, &mut hosts, host, look(FAR_US - 1)), PathPart::default());
        assert_eq!(hosts.plan(0, host).part, PathPart::default());
        assert_eq!(sharing.on_look(0, &mut hosts, host, look(100_000)).endpoints, 1);
        assert!(sharing.flows.is_empty());
    }
}
