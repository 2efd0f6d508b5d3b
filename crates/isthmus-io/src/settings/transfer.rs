//! The setting `transfer`: how messages are transferred.

use std::fmt;
use std::str::FromStr;

use isthmus_proto::{ServiceLevel, Transfer, Transfers};
use isthmus_units::PerHost;
use serde::{Deserialize, Deserializer, de};

/// Protocols for the transfer of messages, for service levels, for ranges of hosts, and for everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageTransfer(pub Transfers);

/// Writes the setting's text, with defaults filled in.
impl fmt::Display for MessageTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for level in ServiceLevel::ALL {
            for (hosts, transfer) in self.0.level(level).map_or(&[][..], PerHost::entries) {
                let hosts = hosts.map_or_else(String::new, |hosts| format!("@{hosts}"));
                write!(f, "{level}{hosts}={transfer}, ")?;
            }
        }
        self.0.all.fmt(f)
    }
}

impl FromStr for MessageTransfer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut set, mut hosts) = (Transfers::default(), Vec::new());
        for entry in text.split(',') {
            let (name, transfer) = entry.split_once('=').unwrap_or(("", entry));
            let (level, range) =
                name.split_once('@').map_or((name, None), |(level, range)| (level, Some(range)));
            let Ok(level) = level.trim().parse() else {
                hosts.push(entry);
                continue;
            };
            let range = range.map(|range| range.trim().parse()).transpose();
            let range = range.map_err(|error: isthmus_units::PrefixError| error.to_string())?;
            if !level_of(&mut set, level)?.add(range, transfer.trim().parse()?) {
                return Err(format!("`{}`: what holds for a service level is said twice", entry.trim()));
            }
        }
        set.all = hosts.join(",").parse()?;
        Ok(Self(set))
    }
}

/// The entries for a level's messages.
pub(super) fn level_of(set: &mut Transfers, level: ServiceLevel) -> Result<&mut PerHost<Transfer>, String> {
    match level {
        ServiceLevel::Ru => Ok(&mut set.ru),
        ServiceLevel::Ro => Ok(&mut set.ro),
        ServiceLevel::Uu => Err("messages of UU are datagrams: there is nothing to choose".to_owned()),
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
            assert_eq!((all.0.of(None, [10, 2, 0, 1].into()).0, all.to_string()), (kind, name.to_owned()));
        }
        let error = "rendez-vous".parse::<MessageTransfer>().expect_err("no such protocol");
        assert!(error.contains("adaptive, eager, rendezvous, mixed"), "{error}");
    }

    #[test]
    fn hosts_and_service_levels_have_their_own() {
        let set: MessageTransfer =
            "10.2.0.1 = eager, mixed, ru=rendezvous, RO@10.2.0.0/16=mixed".parse().expect("valid");
        let of = |level, host: [u8; 4]| set.0.of(level, host.into()).0;
        assert_eq!((of(None, [10, 2, 0, 1]), of(None, [10, 2, 0, 2])), (Transfer::Eager, Transfer::Mixed));
        assert_eq!(of(Some(ServiceLevel::Ru), [10, 2, 0, 1]), Transfer::Rendezvous);
        assert_eq!(of(Some(ServiceLevel::Ro), [10, 2, 0, 1]), Transfer::Mixed);
        assert_eq!(set.to_string(), "RU=rendezvous, RO@10.2.0.0/16=mixed, 10.2.0.1=eager, mixed");
        assert_eq!(
            set.to_string().parse::<MessageTransfer>().map(|set| set.to_string()),
            Ok(set.to_string())
        );
        let error = |text: &str| text.parse::<MessageTransfer>().expect_err("invalid");
        assert!(error("UU=eager").contains("datagrams"));
        assert!(error("RO=eager, ro=mixed").contains("said twice"));
        assert!(error("RX=eager").contains("before =, \"RX\" is no range of addresses"));
    }
}
