//! Service levels.

use std::fmt;
use std::str::FromStr;

/// What a connection promises. Chosen by the side that connects; the other may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Unreliable, unordered: a message may be lost or come twice, and completes as soon as
    /// it has left the program's hands. No access to remote memory.
    Uu = 0,
    /// Reliable, unordered: each message arrives exactly once; its completion means that the
    /// other endpoint has it.
    Ru = 1,
    /// Reliable, ordered: as [`Level::Ru`]; besides, messages arrive, and complete, in the
    /// order in which they were sent. A completion implies all earlier silent ones.
    Ro = 2,
}

impl Level {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Uu, Self::Ru, Self::Ro].into_iter().find(|level| *level as u8 == code)
    }

    /// Whether every message arrives, exactly once.
    pub fn is_reliable(self) -> bool {
        self != Self::Uu
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uu => "UU",
            Self::Ru => "RU",
            Self::Ro => "RO",
        })
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Uu, Self::Ru, Self::Ro]
            .into_iter()
            .find(|level| level.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("`{text}` is not a service level; expected UU, RU or RO"))
    }
}
