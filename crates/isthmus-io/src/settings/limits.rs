//! The setting `rate_limit`: how fast lanes may send.

use std::net::IpAddr;
use std::str::FromStr;

use isthmus_units::{PerHost, Rate};
use serde::Deserialize;

/// The highest rate of lanes to other hosts, for ranges of hosts and for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RateLimits(PerHost<Rate>);

impl RateLimits {
    /// The rate of lanes to `host` together. Bytes/s; `None`: no limit.
    pub fn bytes_per_s(&self, host: IpAddr) -> Option<u64> {
        self.of(host).map(|(_, rate)| rate)
    }

    /// The index of the entry that applies to lanes to `host`, and the rate of these together. Bytes/s.
    pub(crate) fn of(&self, host: IpAddr) -> Option<(usize, u64)> {
        let (place, Rate(bits)) = self.0.find(host)?;
        Some((place, (bits / 8).max(1)))
    }
}

impl FromStr for RateLimits {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_range_that_a_host_is_in_holds_for_it_else_what_is_said_of_all() {
        let limits: RateLimits = "10.2.0.0/16 = 500Mbit, 2Gbit, 10.2.3.4=80kbit".parse().expect("valid");
        let of = |host: &str| limits.of(host.parse().expect("an address"));
        assert_eq!(of("10.2.9.9"), Some((0, 62_500_000)));
        assert_eq!(of("10.2.3.4"), Some((2, 10_000)));
        assert_eq!(of("10.3.0.1"), Some((1, 250_000_000)));
        assert_eq!(of("fd00::1"), Some((1, 250_000_000)));
        let one: RateLimits = "10.2.3.4=1Gbit".parse().expect("valid");
        assert_eq!(one.of("10.2.3.5".parse().expect("an address")), None);
        assert_eq!(RateLimits::default().of("10.2.3.5".parse().expect("an address")), None);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_expected() {
        let error = |text: &str| text.parse::<RateLimits>().expect_err("invalid");
        assert!(error("10MiB").contains("1Gbit"), "{}", error("10MiB"));
        assert!(
            error("host-b=1Gbit").contains("\"host-b\" is no range of addresses"),
            "{}",
            error("host-b=1Gbit")
        );
        assert!(error("10.2.0.0/40=1Gbit").contains("10.3.0.0/16"));
        assert!(error("1Gbit, 2Gbit").contains("said twice"));
        assert!(error("10.2.0.1=0").contains("nothing"), "{}", error("10.2.0.1=0"));
    }
}
