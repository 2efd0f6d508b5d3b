//! The setting `admission`: who may connect.

use std::str::FromStr;

use serde::Deserialize;

/// The rules for who may connect to an endpoint, and to whom it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// Peers that were given its whole address; both ends prove who they are.
    #[default]
    Closed,
    /// Everybody who reaches its port, without a proof.
    Open,
}

impl FromStr for Admission {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "closed" => Ok(Self::Closed),
            "open" => Ok(Self::Open),
            _ => Err("expected closed or open".to_owned()),
        }
    }
}
