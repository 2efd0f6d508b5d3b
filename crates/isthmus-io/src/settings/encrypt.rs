//! The setting that says which lanes are sealed with keys that only the two ends have.

use std::str::FromStr;

use serde::Deserialize;

/// Which lanes are sealed, of those that could be read by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypt {
    /// Those that leave the subnet or whose round trip is 1 ms or more.
    #[default]
    Far,
    /// All; who offers a plain one is refused.
    Always,
    /// None but lanes of packets.
    Never,
}

impl FromStr for Encrypt {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "far" => Ok(Self::Far),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err("expected far, always or never".to_owned()),
        }
    }
}
