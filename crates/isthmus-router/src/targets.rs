//! The addresses at which endpoints may be. A router connects to no others, so nobody reaches other services through
//! it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use isthmus_units::Prefix;
use serde::de::{self, Deserialize, Deserializer};

/// Addresses, and the ports at them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    hosts: Prefix,
    ports: RangeInclusive<u16>,
}

impl Targets {
    /// Whether an endpoint may be at `at`.
    pub fn contains(&self, at: SocketAddr) -> bool {
        self.hosts.contains(at.ip()) && self.ports.contains(&at.port())
    }
}

impl FromStr for Targets {
    type Err = String;

    /// `10.1.0.0/16`, `10.1.0.0/16:5000-5100`, `10.1.0.7:5000`, `[fd00::/8]:5000-5100`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (hosts, ports) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((hosts, "")) => (hosts, None),
            Some((hosts, rest)) => (hosts, Some(rest.strip_prefix(':').unwrap_or(rest))),
            // An address with more colons is IPv6 without a port.
            None if text.matches(':').count() == 1 => {
                text.split_once(':').map_or((text, None), |(hosts, ports)| (hosts, Some(ports)))
            }
            None => (text, None),
        };
        let hosts = hosts.parse::<Prefix>().map_err(|error| error.to_string())?;
        let Some(ports) = ports else { return Ok(Self { hosts, ports: 1..=u16::MAX }) };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        match (first.parse(), last.parse()) {
            (Ok(first @ 1..=u16::MAX), Ok(last)) if first <= last => Ok(Self { hosts, ports: first..=last }),
            _ => Err(format!(
                "{text:?} ends in no range of ports; expected RANGE:FIRST-LAST, such as 10.1.0.0/16:5000-5100, or \
                 [fd00::/8]:5000-5100"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_both_bounds() {
        let holds = |targets: &str, at: &str| {
            let targets: Targets = targets.parse().expect(targets);
            targets.contains(at.parse().expect(at))
        };
        assert!(holds("10.1.0.0/16", "10.1.2.3:22"));
        assert!(holds("10.1.0.0/16:5000-5100", "10.1.2.3:5100"));
        assert!(!holds("10.1.0.0/16:5000-5100", "10.1.2.3:22"));
        assert!(!holds("10.1.0.0/16:5000-5100", "10.2.2.3:5000"));
        assert!(holds("10.1.0.7:5000", "10.1.0.7:5000") && !holds("10.1.0.7:5000", "10.1.0.7:5001"));
        assert!(holds("fd00::/8", "[fd00::1]:1") && holds("[fd00::/8]:5-6", "[fd00::1]:6"));
        assert!(!holds("[fd00::/8]:5-6", "[fd00::1]:7"));
    }

    #[test]
    fn what_is_no_range_is_refused_with_an_example() {
        for text in
            ["10.1.0.0/16:", "10.1.0.0/16:0", "10.1.0.0/16:9-8", "[fd00::/8]:x", "10.1.0.0/16:1-70000"]
        {
            let error = text.parse::<Targets>().expect_err(text);
            assert!(error.contains(":5000-5100"), "{text}: {error}");
        }
        assert!("10.1.0.0/33:5".parse::<Targets>().is_err());
    }
}
