//! Service levels: the promises of a substrate connection. Each level is a composition of two small protocols.

use std::fmt;
use std::str::FromStr;

/// Whether messages are sure to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reliability {
    /// Not sure: a message may be lost or arrive twice. It goes as a datagram if it can, and completes when it has
    /// left.
    Datagrams,
    /// Exactly once: unacknowledged messages are sent again.
    Acknowledged,
}

/// The order in which messages arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In any order.
    Unordered,
    /// In the order of sending; they also complete in that order.
    Ordered,
}

/// The promise of a connection. The side that connects chooses it; the other side may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ServiceLevel {
    /// Unreliable, unordered: a message may be lost or come twice. It completes as soon as it has left. No access to
    /// remote memory.
    Uu = 0,
    /// Reliable, unordered: each message arrives exactly once. Its completion means that the other endpoint has it.
    Ru = 1,
    /// Reliable, ordered: like [`ServiceLevel::Ru`]; besides, messages arrive, and complete, in the order of sending. A
    /// completion implies all earlier silent ones.
    Ro = 2,
}

impl ServiceLevel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Uu, Self::Ru, Self::Ro];

    /// The protocols that a level is made of. This table is the only place that says so.
    pub const fn made_of(self) -> (Reliability, Order) {
        match self {
            Self::Uu => (Reliability::Datagrams, Order::Unordered),
            Self::Ru => (Reliability::Acknowledged, Order::Unordered),
            Self::Ro => (Reliability::Acknowledged, Order::Ordered),
        }
    }

    /// The level by its number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|level| *level as u8 == code)
    }

    /// Whether every message arrives, exactly once.
    pub const fn is_reliable(self) -> bool {
        matches!(self.made_of().0, Reliability::Acknowledged)
    }

    /// Whether messages arrive in the order of sending.
    pub const fn is_ordered(self) -> bool {
        matches!(self.made_of().1, Order::Ordered)
    }
}

impl Reliability {
    /// Its name in compositions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Datagrams => "datagrams",
            Self::Acknowledged => "acknowledged",
        }
    }
}

impl Order {
    /// Its name in compositions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unordered => "unordered",
            Self::Ordered => "ordered",
        }
    }
}

impl fmt::Display for ServiceLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uu => "UU",
            Self::Ru => "RU",
            Self::Ro => "RO",
        })
    }
}

impl FromStr for ServiceLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|level| level.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("`{text}` is not a service level; expected UU, RU or RO"))
    }
}
