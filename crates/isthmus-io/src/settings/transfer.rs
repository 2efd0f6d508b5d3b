//! How messages are transferred, as a setting.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use isthmus_proto::Transfer;
use serde::{Deserialize, Deserializer, de};

use super::PerHost;

/// Protocols for the transfer of messages, by name: for service levels of connections, for single hosts, and
/// for all else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageTransfer {
    /// By host.
    pub hosts: PerHost<Transfer>,
    /// Of connections of the service level RU, before what is said of hosts, if anything is.
    pub ru: Option<Transfer>,
    /// The same of RO.
    pub ro: Option<Transfer>,
}

impl MessageTransfer {
    /// The same with another choice for one host.
    #[must_use]
    pub fn with_host(self, host: IpAddr, transfer: Transfer) -> Self {
        Self { hosts: self.hosts.with_host(host, transfer), ..self }
    }
}

/// As the setting has it, with nothing left out.
impl fmt::Display for MessageTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (level, transfer) in [("RU", self.ru), ("RO", self.ro)] {
            transfer.map_or(Ok(()), |transfer| write!(f, "{level}={transfer}, "))?;
        }
        self.hosts.fmt(f)
    }
}

impl FromStr for MessageTransfer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut set, mut hosts) = (Self::default(), Vec::new());
        for entry in text.split(',') {
            let (name, transfer) = entry.split_once('=').unwrap_or(("", entry));
            let level = match name.trim().to_ascii_uppercase().as_str() {
                "RU" => &mut set.ru,
                "RO" => &mut set.ro,
                "UU" => return Err("messages of UU are datagrams: there is nothing to choose".to_owned()),
                _ => {
                    hosts.push(entry);
                    continue;
                }
            };
            if level.replace(transfer.trim().parse()?).is_some() {
                return Err(format!("`{}`: what holds for a service level is said twice", entry.trim()));
            }
        }
        Ok(Self { hosts: hosts.join(",").parse()?, ..set })
    }
}

impl<'de> Deserialize<'de> for MessageTransfer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_goes_by_its_name() {
        for (kind, name) in Transfer::ALL {
            let all: MessageTransfer = name.parse().expect("valid");
            assert_eq!((all.hosts.get([10, 2, 0, 1].into()), all.to_string()), (kind, name.to_owned()));
        }
        let error = "rendez-vous".parse::<MessageTransfer>().expect_err("no such protocol");
        assert!(error.contains("adaptive, eager, rendezvous, mixed"), "{error}");
    }

    #[test]
    fn hosts_and_service_levels_have_their_own() {
        let set: MessageTransfer = "10.2.0.1 = eager, mixed, ru=rendezvous".parse().expect("valid");
        let of = |host: [u8; 4]| set.hosts.get(host.into());
        assert_eq!((of([10, 2, 0, 1]), of([10, 2, 0, 2])), (Transfer::Eager, Transfer::Mixed));
        assert_eq!((set.ru, set.ro), (Some(Transfer::Rendezvous), None));
        assert_eq!(set.to_string(), "RU=rendezvous, 10.2.0.1=eager, mixed");
        assert_eq!(set.to_string().parse(), Ok(set.clone()));
        let error = |text: &str| text.parse::<MessageTransfer>().expect_err("invalid");
        assert!(error("UU=eager").contains("datagrams"));
        assert!(error("RO=eager, ro=mixed").contains("said twice"));
        assert!(error("RX=eager").contains("an IP address before =, not `RX`"));
    }
}
