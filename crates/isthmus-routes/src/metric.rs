//! Metrics: the cost of a route is the sum over its subnets, the first and the last included.

use std::fmt;
use std::str::FromStr;

use crate::map::Subnet;
use crate::measured::{LinkState, Measured};

/// Most that one subnet costs, so that no sum over a route overflows.
const COST_MAX: u64 = 1 << 44;

/// Rate at which a subnet would cost 1 under [`Metric::Bandwidth`]. Bits per second.
const RATE_OF_COST_1: u64 = 1_000_000_000_000;

/// The amount of data whose transfer time is the cost under [`Metric::Measured`]. Bits; 1 MiB.
const MEASURED_BITS: f64 = 8.0 * 1_048_576.0;

/// A measure of routes: the cheapest one wins. Every subnet costs at least 1, so that a detour
/// never makes a route cheaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Metric {
    /// 1000 divided by the link rate in Gb/s, rounded down and at least 1; doubled unless the
    /// subnet has both zero-copy and OS bypass.
    #[default]
    Bandwidth,
    /// One-way latency. Nanoseconds.
    Latency,
    /// 1, and 1 more for each of zero-copy, OS bypass and RMA that is missing.
    Capability,
    /// 1 for each subnet.
    Hops,
    /// Nanoseconds that 1 MiB takes one way at the measured rate, round-trip time and loss. Without
    /// measurements, the map's rate and latency count.
    Measured,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Bandwidth, Self::Latency, Self::Capability, Self::Hops, Self::Measured];

    /// The cost of `subnet`; `None` if nothing gets through.
    pub(crate) fn cost(self, subnet: &Subnet, measured: Option<&Measured>) -> Option<u64> {
        let cost = match self {
            Self::Bandwidth => bandwidth(subnet),
            Self::Latency => subnet.latency.0,
            Self::Capability => 4 - u64::from(subnet.capabilities.count()),
            Self::Hops => 1,
            Self::Measured => {
                let state = measured.and_then(|m| m.links.get(&subnet.id).copied());
                transfer_ns(state.unwrap_or_else(|| LinkState::expected(subnet)))?
            }
        };
        Some(cost.clamp(1, COST_MAX))
    }

    /// The unit of its costs, for people.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "1000 / (Gb/s), twice that without zero-copy and OS bypass",
            Self::Latency => "ns one way",
            Self::Capability => "1 for each subnet and each capability that it lacks",
            Self::Hops => "subnets",
            Self::Measured => "ns that 1 MiB takes one way",
        }
    }
}

fn bandwidth(subnet: &Subnet) -> u64 {
    let cost = (RATE_OF_COST_1 / subnet.rate.0.max(1)).max(1);
    let direct = subnet.capabilities.zero_copy && subnet.capabilities.os_bypass;
    if direct { cost } else { 2 * cost }
}

/// Time for propagation, serialisation and retransmission: a share `loss / (1 - loss)` of the
/// data is sent again, a round trip later.
fn transfer_ns(state: LinkState) -> Option<u64> {
    let arrives = (1.0 - state.loss.0).clamp(0.0, 1.0);
    // A loss that is not a number closes the link, too.
    if arrives.is_nan() || arrives == 0.0 {
        return None;
    }
    let rtt_ns = state.rtt.0 as f64;
    let serialisation_ns = MEASURED_BITS * 1e9 / (state.rate.0.max(1) as f64 * arrives);
    Some((rtt_ns / 2.0 + rtt_ns * (1.0 - arrives) / arrives + serialisation_ns) as u64)
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bandwidth => "bandwidth",
            Self::Latency => "latency",
            Self::Capability => "capability",
            Self::Hops => "hops",
            Self::Measured => "measured",
        })
    }
}

/// A text that names no metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no metric {0:?}; use bandwidth, latency, capability, hops or measured")]
pub struct UnknownMetric(String);

impl FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(text: &str) -> Result<Self, UnknownMetric> {
        let named = Self::ALL.into_iter().find(|metric| metric.to_string() == text);
        named.ok_or_else(|| UnknownMetric(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use isthmus_units::{Percent, Rate, Span};
    use isthmus_wire::SubnetId;

    use super::*;
    use crate::map::{Capabilities, Role};

    fn subnet(rate: &str, capabilities: Capabilities) -> Subnet {
        let rate = rate.parse().expect("a rate");
        let name = "campus".to_owned();
        Subnet { id: SubnetId(1), name, rate, latency: Span::from_ms(12), capabilities, role: Role::Transit }
    }

    const DIRECT: Capabilities = Capabilities { zero_copy: true, os_bypass: true, rma: false };

    #[test]
    fn bandwidth_costs_are_the_papers() {
        let cost = |rate, capabilities| Metric::Bandwidth.cost(&subnet(rate, capabilities), None);
        assert_eq!(cost("10Gbit", DIRECT), Some(100));
        assert_eq!(cost("100Gbit", DIRECT), Some(10));
        assert_eq!(cost("64Gbit", DIRECT), Some(15));
    }

    #[test]
    fn bandwidth_counts_double_unless_zero_copy_and_os_bypass_are_both_there() {
        let cost = |capabilities| Metric::Bandwidth.cost(&subnet("64Gbit", capabilities), None);
        assert_eq!(cost(Capabilities::default()), Some(30));
        assert_eq!(cost(Capabilities { os_bypass: false, ..DIRECT }), Some(30));
        assert_eq!(cost(Capabilities { zero_copy: false, ..DIRECT }), Some(30));
    }

    #[test]
    fn no_subnet_is_free() {
        let mut fast = subnet("1600Gbit", DIRECT);
        fast.latency = Span(0);
        for metric in Metric::ALL {
            assert!(metric.cost(&fast, None) >= Some(1), "{metric}");
        }
        assert_eq!(Metric::Bandwidth.cost(&fast, None), Some(1));
    }

    #[test]
    fn capability_costs_one_more_for_each_that_is_missing() {
        let cost = |capabilities| Metric::Capability.cost(&subnet("1Gbit", capabilities), None);
        assert_eq!(cost(Capabilities { rma: true, ..DIRECT }), Some(1));
        assert_eq!(cost(DIRECT), Some(2));
        assert_eq!(cost(Capabilities::default()), Some(4));
    }

    #[test]
    fn a_link_that_loses_everything_carries_no_route() {
        let lossy = |share| {
            let state = LinkState { rate: Rate(1_000_000_000), rtt: Span::from_ms(24), loss: Percent(share) };
            let mut measured = Measured::default();
            measured.links.insert(SubnetId(1), state);
            Metric::Measured.cost(&subnet("1Gbit", DIRECT), Some(&measured))
        };
        assert_eq!(lossy(1.0), None);
        assert_eq!(lossy(f64::NAN), None);
        // 12 ms of propagation, 8.39 ms of serialisation.
        assert_eq!(lossy(0.0), Some(20_388_608));
        // Half of all packets are lost: one round trip more, and half the rate.
        assert_eq!(lossy(0.5), Some(12_000_000 + 24_000_000 + 2 * 8_388_608));
    }

    #[test]
    fn what_was_not_measured_is_as_the_map_says() {
        assert_eq!(Metric::Measured.cost(&subnet("1Gbit", DIRECT), None), Some(20_388_608));
    }

    #[test]
    fn names_of_metrics_read_back() {
        for metric in Metric::ALL {
            assert_eq!(metric.to_string().parse(), Ok(metric));
        }
        assert!("speed".parse::<Metric>().is_err());
    }
}
