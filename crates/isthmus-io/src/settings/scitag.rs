//! The settings `scitag` and `firefly`: which experiment and activity flows belong to (scitags.org), and who is told.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use isthmus_units::{HostPort, HostPortError};
use serde::{Deserialize, Deserializer, de};

/// Numbers of experiments. A flow label has 9 bits for them, and the registry begins at 1.
const EXPERIMENTS: RangeInclusive<u16> = 1..=511;
/// Numbers of activities. A flow label has 6 bits for them.
const ACTIVITIES: RangeInclusive<u8> = 1..=63;

/// Experiment and activity of a flow, by their numbers in the registry of scitags.org.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// 1..=511.
    pub(crate) experiment: u16,
    /// 1..=63.
    pub(crate) activity: u8,
}

/// The setting `scitag`: a tag, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scitag(pub(crate) Option<Tag>);

impl FromStr for Scitag {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let parts = text.split_once('.').and_then(|(experiment, activity)| {
            let experiment = number(experiment).filter(|number| EXPERIMENTS.contains(number))?;
            let activity = number(activity).filter(|number| ACTIVITIES.contains(number))?;
            Some(Tag { experiment, activity })
        });
        let expected = || {
            format!(
                "expected EXPERIMENT.ACTIVITY, numbers from {} to {} and from {} to {} (https://scitags.org/api.json), \
                 such as \"2.15\"",
                EXPERIMENTS.start(),
                EXPERIMENTS.end(),
                ACTIVITIES.start(),
                ACTIVITIES.end()
            )
        };
        parts.map(|tag| Self(Some(tag))).ok_or_else(expected)
    }
}

/// A number in digits, without a sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Where fireflies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FireflyTo {
    /// To the host at the flow's other end.
    Destination,
    /// To a collector.
    Collector(SocketAddr),
}

/// The setting `firefly`: where fireflies go, if anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Firefly(pub(crate) Option<FireflyTo>);

impl FromStr for Firefly {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "" | "off" => None,
            "destination" => Some(FireflyTo::Destination),
            _ => {
                let at: HostPort = text.parse().map_err(|error: HostPortError| {
                    format!("expected \"off\", \"destination\" or HOST:PORT: {error}")
                })?;
                let found = at.resolve().map_err(|error| error.to_string())?.into_iter().next();
                found.map(FireflyTo::Collector)
            }
        }))
    }
}

impl<'de> Deserialize<'de> for Scitag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Text(String),
            /// Not a tag: 2.1 and 2.10 are one number.
            Number(f64),
        }
        match Given::deserialize(deserializer)? {
            Given::Text(text) => text.parse().map_err(de::Error::custom),
            Given::Number(number) => Err(de::Error::custom(format!(
                "{number} is a number; expected EXPERIMENT.ACTIVITY in quotes, such as \"2.15\""
            ))),
        }
    }
}

impl<'de> Deserialize<'de> for Firefly {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn read(line: &str) -> Result<Settings, String> {
        Settings::from_toml(&format!("[device]\n{line}\n"), "x").map_err(|error| error.0)
    }

    #[test]
    fn a_tag_is_two_numbers_and_an_error_names_their_ranges() {
        let tag = |text: &str| text.parse::<Scitag>().expect("valid").0;
        assert_eq!(tag(""), None);
        assert_eq!(tag("2.15"), Some(Tag { experiment: 2, activity: 15 }));
        assert_eq!(tag("511.63"), Some(Tag { experiment: 511, activity: 63 }));
        for wrong in ["2", "0.1", "512.1", "2.0", "2.64", "+2.1", "2.1.3", "2. 1", "atlas.default"] {
            let error = wrong.parse::<Scitag>().expect_err(wrong);
            assert!(error.contains("from 1 to 511 and from 1 to 63"), "{wrong}: {error}");
        }
        assert_eq!(read("scitag = \"2.10\"").expect("valid").scitag.0.expect("a tag").activity, 10);
        let error = read("scitag = 2.10").expect_err("a number");
        assert!(error.contains("in quotes"), "{error}");
        let error = read("scitag = \"700.1\"").expect_err("too large");
        assert!(error.starts_with("x:2:") && error.contains("1 to 511"), "{error}");
    }

    #[test]
    fn fireflies_go_to_a_collector_to_the_destination_or_nowhere() {
        let to = |text: &str| text.parse::<Firefly>().expect("valid").0;
        assert_eq!([to(""), to("off")], [None, None]);
        assert_eq!(to("destination"), Some(FireflyTo::Destination));
        let at: SocketAddr = "[fd00::1]:10514".parse().expect("valid");
        assert_eq!(to("[fd00::1]:10514"), Some(FireflyTo::Collector(at)));
        for wrong in ["on", "10.0.0.1", "10.0.0.1:70000"] {
            let error = wrong.parse::<Firefly>().expect_err(wrong);
            assert!(error.contains("\"destination\" or HOST:PORT"), "{wrong}: {error}");
        }
    }
}
