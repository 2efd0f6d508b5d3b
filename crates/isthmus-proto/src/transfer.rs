//! The protocols of message transfer by name, and the settings that choose one for messages that do not ask for one.
//! `engine/transfer` has the protocols.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use isthmus_units::PerHost;

use crate::ServiceLevel;

/// Protocols of message transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfer {
    /// Decides for each message by measurements of the peer.
    #[default]
    Adaptive,
    /// Everything at once. When the credit is used up, a message waits for more.
    Eager,
    /// Nothing of messages beyond 8 KiB before the receiver has answered.
    Rendezvous,
    /// The first 16 KiB, and the rest when the receiver has answered.
    Mixed,
}

impl Transfer {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Adaptive, "adaptive"),
        (Self::Eager, "eager"),
        (Self::Rendezvous, "rendezvous"),
        (Self::Mixed, "mixed"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transfer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        let names = Self::ALL.map(|(_, name)| name).join(", ");
        found.map(|(kind, _)| *kind).ok_or_else(|| format!("expected one of {names}"))
    }
}

/// The [`Transfer`] of messages that do not ask for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// For all messages.
    pub all: PerHost<Transfer>,
    /// For connections of the service level RU; it takes precedence over `all`.
    pub ru: PerHost<Transfer>,
    /// For connections of the service level RO; it takes precedence over `all`.
    pub ro: PerHost<Transfer>,
}

impl Transfers {
    /// The setting for a service level alone. `None` for UU, whose messages mostly go as datagrams.
    pub fn level(&self, level: ServiceLevel) -> Option<&PerHost<Transfer>> {
        match level {
            ServiceLevel::Uu => None,
            ServiceLevel::Ru => Some(&self.ru),
            ServiceLevel::Ro => Some(&self.ro),
        }
    }

    /// The transfer of messages to a host, of a connection of this service level if any; and the reason.
    pub fn of(&self, level: Option<ServiceLevel>, host: IpAddr) -> (Transfer, &'static str) {
        let own = level.and_then(|level| self.level(level)).and_then(|level| level.find(host));
        own.map_or_else(|| self.all.of(host), |(_, transfer)| (*transfer, "as set for its service level"))
    }
}

/// The same transfer for all messages.
impl From<Transfer> for Transfers {
    fn from(transfer: Transfer) -> Self {
        let mut all = PerHost::default();
        all.set(None, transfer);
        Self { all, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_level_goes_before_what_is_said_of_hosts() {
        let per_host = |text: &str| text.parse().expect("valid");
        let transfers = Transfers {
            all: per_host("10.2.0.1=mixed, 10.2.0.0/16=rendezvous"),
            ru: per_host("10.2.0.1=adaptive"),
            ro: per_host("10.2.0.0/24=mixed, eager"),
        };
        let of = |level, host: [u8; 4]| transfers.of(level, host.into());
        let (ru, ro) = (Some(ServiceLevel::Ru), Some(ServiceLevel::Ro));
        let by_level = "as set for its service level";
        assert_eq!(of(ru, [10, 2, 0, 1]), (Transfer::Adaptive, by_level), "one may go back to measuring");
        assert_eq!(of(ru, [10, 2, 0, 2]), (Transfer::Rendezvous, "as set for its range of hosts"));
        assert_eq!(of(ro, [10, 2, 0, 2]), (Transfer::Mixed, by_level));
        assert_eq!(of(ro, [10, 2, 1, 2]), (Transfer::Eager, by_level));
        for level in [None, Some(ServiceLevel::Uu)] {
            assert_eq!(of(level, [10, 2, 0, 1]), (Transfer::Mixed, "as set for this host"));
            assert_eq!(of(level, [10, 3, 0, 1]), (Transfer::Adaptive, "as nothing else is set"));
        }
    }
}
