//! The setting `congestion`: congestion control of TCP lanes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// Longest name of a congestion control that Linux has. Bytes.
const NAME_MAX: usize = 15;

/// The congestion control of TCP lanes that leave the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TcpCongestion {
    /// Chosen by measurements of the path.
    #[default]
    Auto,
    /// The kernel's default.
    System,
    /// One that uses the capacity that other traffic leaves, if the kernel offers it.
    Background,
    /// One that the kernel offers.
    Named(String),
}

impl fmt::Display for TcpCongestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::System => "system",
            Self::Background => "background",
            Self::Named(name) => name,
        })
    }
}

impl FromStr for TcpCongestion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        match text {
            "auto" => Ok(Self::Auto),
            "system" => Ok(Self::System),
            "background" => Ok(Self::Background),
            name if (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(fits) => {
                Ok(Self::Named(name.to_owned()))
            }
            _ => Err(format!(
                "`{text}` is no congestion control of TCP; expected auto, system or one that the kernel offers, such as bbr"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for TcpCongestion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
