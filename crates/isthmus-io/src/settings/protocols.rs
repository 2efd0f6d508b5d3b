//! The setting that says what lanes by UDP are made up of.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use isthmus_udp::Composition;
use serde::Deserialize;
use serde::de::{self, Deserializer};

/// Compositions of lanes by UDP: for single hosts, and for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protocols {
    hosts: Vec<(IpAddr, Composition)>,
    others: Option<Composition>,
}

impl Protocols {
    /// What lanes with this host are made up of, and why.
    pub(crate) fn of(&self, host: IpAddr) -> (Composition, &'static str) {
        let named = self.hosts.iter().find(|(named, _)| *named == host);
        match (named, self.others) {
            (Some((_, composition)), _) => (*composition, "as set for this host"),
            (None, Some(composition)) => (composition, "as set for all hosts"),
            (None, None) => (Composition::default(), "as nothing else is set"),
        }
    }
}

impl Protocols {
    /// What lanes with this host are made up of.
    pub fn composition(&self, host: IpAddr) -> Composition {
        self.of(host).0
    }

    /// The same with other protocols for lanes with one host.
    #[must_use]
    pub fn with_host(mut self, host: IpAddr, composition: Composition) -> Self {
        self.hosts.retain(|(named, _)| *named != host);
        self.hosts.push((host, composition));
        self
    }
}

/// As the setting has it, with nothing left out.
impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hosts.iter().try_for_each(|(host, composition)| write!(f, "{host}={composition}, "))?;
        self.others.unwrap_or_default().fmt(f)
    }
}

impl FromStr for Protocols {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut protocols = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (host, names) =
                entry.split_once('=').map_or((None, entry), |(host, names)| (Some(host.trim()), names));
            let composition = names.parse().map_err(|error: isthmus_udp::UnknownName| error.to_string())?;
            match host {
                None if protocols.others.is_some() => {
                    return Err(format!("`{entry}`: what holds for all hosts is said twice"));
                }
                None => protocols.others = Some(composition),
                Some(host) => {
                    let host =
                        host.parse().map_err(|_| format!("expected an IP address before =, not `{host}`"))?;
                    protocols.hosts.push((host, composition));
                }
            }
        }
        Ok(protocols)
    }
}

impl<'de> Deserialize<'de> for Protocols {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_its_own_protocols_or_those_of_all() {
        let protocols: Protocols = "10.2.0.1 = cubic+once, reno".parse().expect("valid");
        let of = |host: &str| {
            let (composition, why) = protocols.of(host.parse().expect("an address"));
            format!("{composition} {why}")
        };
        assert_eq!(of("10.2.0.1"), "cubic+adaptive+once+search as set for this host");
        assert_eq!(of("10.2.0.2"), "reno+adaptive+measured+search as set for all hosts");
        assert_eq!(Protocols::default().of([10, 2, 0, 1].into()).0, Composition::default());
        assert_eq!(protocols.to_string().parse(), Ok(protocols.clone()));
        let changed = protocols.with_host([10, 2, 0, 1].into(), Composition::default());
        assert_eq!(changed.composition([10, 2, 0, 1].into()), Composition::default());
        let text = "10.2.0.1=rate+adaptive+measured+search, reno+adaptive+measured+search";
        assert_eq!(changed.to_string(), text);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| text.parse::<Protocols>().expect_err("invalid");
        assert!(error("vegas").contains("`vegas` is no protocol"));
        assert!(error("host-b=cubic").contains("an IP address before =, not `host-b`"));
        assert!(error("cubic, reno").contains("said twice"));
    }
}
