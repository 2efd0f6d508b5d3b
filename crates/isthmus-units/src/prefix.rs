//! Ranges of IP addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};

/// A range of IP addresses, such as `10.3.0.0/16`; without a slash, one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u32,
}

/// A text that is no [`Prefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no range of addresses; write it as \"10.3.0.0/16\"")]
pub struct PrefixError(String);

impl Prefix {
    /// Whether `ip` is in the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let differing = own.to_bits() ^ ip.to_bits();
                differing.checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let differing = own.to_bits() ^ ip.to_bits();
                differing.checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// How many of their first bits the addresses have in common.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Whether it is one address.
    pub fn is_one(&self) -> bool {
        self.bits == bits_of(self.address)
    }
}

/// How many bits such an address has.
fn bits_of(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self { address, bits: bits_of(address) }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let wrong = || PrefixError(text.to_owned());
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = bits_of(address);
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits <= most { Ok(Self { address, bits }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_one() {
            true => self.address.fmt(f),
            false => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_hold_what_they_say() {
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(prefix("10.3.0.0/16").contains(ip("10.3.255.1")));
        assert!(!prefix("10.3.0.0/16").contains(ip("10.4.0.1")));
        assert!(prefix("0.0.0.0/0").contains(ip("200.1.1.1")) && !prefix("0.0.0.0/0").contains(ip("::1")));
        assert!(prefix("10.3.0.7").contains(ip("10.3.0.7")) && !prefix("10.3.0.7").contains(ip("10.3.0.6")));
        assert!(prefix("fd00::/8").contains(ip("fd12::1")));
        assert_eq!(prefix("10.3.0.0/16").to_string(), "10.3.0.0/16");
        assert_eq!(
            (prefix("10.3.0.7/32").to_string(), Prefix::from(ip("fd00::1"))),
            ("10.3.0.7".to_owned(), prefix("fd00::1"))
        );
    }

    #[test]
    fn what_is_no_prefix_is_refused_with_the_form() {
        for text in ["10.0.0.0/33", "10.0.0.0/", "host", ""] {
            let error = text.parse::<Prefix>().expect_err(text).to_string();
            assert!(error.contains("10.3.0.0/16"), "{error}");
        }
    }
}
