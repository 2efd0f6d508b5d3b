//! The setting `encrypt`: which lanes are sealed with keys that only the two ends have.

use std::str::FromStr;

use serde::Deserialize;

/// The lanes that are sealed, among those that others could read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypt {
    /// Those that leave the subnet or whose round trip is 1 ms or more.
    #[default]
    Far,
    /// All; plain ones are refused.
    Always,
    /// None but lanes by UDP and Ethernet.
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
