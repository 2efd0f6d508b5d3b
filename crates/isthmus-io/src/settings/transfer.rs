//! How messages are transferred, as a setting.

use std::str::FromStr;

use isthmus_proto::Transfer;
use serde::{Deserialize, Deserializer, de};

/// A protocol for the transfer of messages, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTransfer(pub Transfer);

impl FromStr for MessageTransfer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
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
            assert_eq!(name.parse(), Ok(MessageTransfer(kind)));
        }
        let error = "rendez-vous".parse::<MessageTransfer>().expect_err("no such protocol");
        assert!(error.contains("adaptive, eager, rendezvous, mixed"), "{error}");
    }
}
