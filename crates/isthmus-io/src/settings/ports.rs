//! The setting `port_range`: the ports at which endpoints may listen, as firewalls need to know them.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{self, Deserializer};

/// A range of ports; `None`: any port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRange(pub Option<RangeInclusive<u16>>);

impl PortRange {
    /// All ports of the range once, beginning `start` ports after its first. Processes that begin at different ports
    /// seldom try the same one. Without a range, only port 0, for which the system chooses one.
    pub(crate) fn from(&self, start: u32) -> impl Iterator<Item = u16> + use<> {
        let (first, count) = match &self.0 {
            Some(range) => (u32::from(*range.start()), u32::from(range.end() - range.start()) + 1),
            None => (0, 1),
        };
        (0..count).map(move |step| (first + (start % count + step) % count) as u16)
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self(None));
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first @ 1..=u16::MAX), Ok(last)) if first <= last => Ok(Self(Some(first..=last))),
            _ => Err("expected the first and last of a range of ports, such as 5000-5100".to_owned()),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(range) => write!(f, "{}-{}", range.start(), range.end()),
            None => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_others_refused_with_an_example() {
        assert_eq!("5000-5100".parse(), Ok(PortRange(Some(5000..=5100))));
        assert_eq!("5000".parse(), Ok(PortRange(Some(5000..=5000))));
        assert_eq!(" ".parse(), Ok(PortRange(None)));
        for text in ["5100-5000", "0-10", "5000-", "x", "5000-70000", "5000:5100"] {
            let error = text.parse::<PortRange>().expect_err(text);
            assert!(error.contains("5000-5100"), "{text}: {error}");
        }
    }

    #[test]
    fn every_port_of_a_range_is_tried_once_wherever_it_begins() {
        let range: PortRange = "65530-65535".parse().expect("a range");
        for start in [0, 3, 6, u32::MAX] {
            let mut ports: Vec<u16> = range.from(start).collect();
            ports.sort_unstable();
            assert_eq!(ports, (65530..=65535).collect::<Vec<u16>>());
        }
        assert_eq!(PortRange::default().from(9).collect::<Vec<_>>(), [0]);
    }
}
