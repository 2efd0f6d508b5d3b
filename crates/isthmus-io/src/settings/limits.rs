//! The setting that says how fast lanes may send.

use std::net::IpAddr;
use std::str::FromStr;

use isthmus_units::{Prefix, Rate};
use serde::Deserialize;
use serde::de::{self, Deserializer};

/// Most that lanes to other hosts send: to those of a range, and to all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimits(Vec<(Option<Prefix>, Rate)>);

impl RateLimits {
    /// The entry that holds for lanes to `host`, by its place, and what these may send together. Bytes/s.
    pub(crate) fn of(&self, host: IpAddr) -> Option<(usize, u64)> {
        let fitting =
            self.0.iter().enumerate().filter(|(_, (prefix, _))| prefix.is_none_or(|is| is.contains(host)));
        // The narrowest, as of routes.
        let found = fitting.max_by_key(|(_, (prefix, _))| prefix.map(|is| is.bits()));
        found.map(|(place, (_, Rate(bits)))| (place, (bits / 8).max(1)))
    }
}

impl FromStr for RateLimits {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (hosts, rate) = match entry.split_once('=') {
                Some((hosts, rate)) => {
                    let hosts: Prefix = hosts
                        .trim()
                        .parse()
                        .map_err(|error| format!("before =, {error}, or as \"10.3.0.7\""))?;
                    (Some(hosts), rate.trim())
                }
                None => (None, entry),
            };
            if limits.0.iter().any(|(before, _)| *before == hosts) {
                return Err(format!("`{entry}`: what holds for these hosts is said twice"));
            }
            limits
                .0
                .push((hosts, rate.parse().map_err(|error: isthmus_units::UnitError| error.to_string())?));
        }
        Ok(limits)
    }
}

impl<'de> Deserialize<'de> for RateLimits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
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
