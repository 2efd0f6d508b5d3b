//! Settings that hold for all hosts, or for single ones.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use isthmus_udp::Composition;
use serde::Deserialize;
use serde::de::{self, Deserializer};

/// A choice for single hosts, and for all others. As text: entries separated by commas, those of single hosts
/// behind an IP address and `=`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerHost<T> {
    hosts: Vec<(IpAddr, T)>,
    others: Option<T>,
}

/// Compositions of lanes by UDP.
pub type Protocols = PerHost<Composition>;

impl<T: Copy + Default> PerHost<T> {
    /// What is chosen for this host, and why.
    pub(crate) fn of(&self, host: IpAddr) -> (T, &'static str) {
        let named = self.hosts.iter().find(|(named, _)| *named == host);
        match (named, self.others) {
            (Some((_, choice)), _) => (*choice, "as set for this host"),
            (None, Some(choice)) => (choice, "as set for all hosts"),
            (None, None) => (T::default(), "as nothing else is set"),
        }
    }

    /// What is chosen for this host.
    pub fn get(&self, host: IpAddr) -> T {
        self.of(host).0
    }

    /// What is chosen for hosts that are not named.
    pub fn others(&self) -> T {
        self.others.unwrap_or_default()
    }

    /// The hosts that are named, with what is chosen for them.
    pub fn hosts(&self) -> &[(IpAddr, T)] {
        &self.hosts
    }

    /// The same with another choice for one host.
    #[must_use]
    pub fn with_host(mut self, host: IpAddr, choice: T) -> Self {
        self.hosts.retain(|(named, _)| *named != host);
        self.hosts.push((host, choice));
        self
    }
}

/// As the setting has it, with nothing left out.
impl<T: Copy + Default + fmt::Display> fmt::Display for PerHost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hosts.iter().try_for_each(|(host, choice)| write!(f, "{host}={choice}, "))?;
        self.others().fmt(f)
    }
}

impl<T: FromStr<Err: fmt::Display> + Default> FromStr for PerHost<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (host, choice) = entry
                .split_once('=')
                .map_or((None, entry), |(host, choice)| (Some(host.trim()), choice.trim()));
            let choice = choice.parse().map_err(|error: T::Err| error.to_string())?;
            match host {
                None if all.others.is_some() => {
                    return Err(format!("`{entry}`: what holds for all hosts is said twice"));
                }
                None => all.others = Some(choice),
                Some(host) => {
                    let host =
                        host.parse().map_err(|_| format!("expected an IP address before =, not `{host}`"))?;
                    all.hosts.push((host, choice));
                }
            }
        }
        Ok(all)
    }
}

impl<'de, T: FromStr<Err: fmt::Display> + Default> Deserialize<'de> for PerHost<T> {
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
        assert_eq!(changed.get([10, 2, 0, 1].into()), Composition::default());
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
