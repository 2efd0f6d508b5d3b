//! The settings `traffic_priority` and `dscp`: whether a lane gives way to other traffic, and the DSCP of its packets.

use std::str::FromStr;

use isthmus_udp::CongestionKind;
use isthmus_units::PerHost;
use serde::{Deserialize, Deserializer, de};

use super::{Protocols, Settings, TcpCongestion};

/// The priority of lanes beside other traffic on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// They compete as equals.
    #[default]
    Normal,
    /// They use the capacity that other traffic leaves (RFC 6297).
    Background,
}

impl FromStr for Priority {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "normal" => Ok(Self::Normal),
            "background" => Ok(Self::Background),
            _ => Err("expected normal or background".to_owned()),
        }
    }
}

/// A differentiated services code point (RFC 2474), 0..=63; `None`: as `traffic_priority` implies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dscp(Option<u8>);

/// LE of RFC 8622.
const LE: u8 = 1;
/// Class selectors, CS0 to CS7 (RFC 2474), are multiples of this.
const CLASS: u8 = 8;

impl FromStr for Dscp {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_lowercase();
        let digits = |from: usize| name.as_bytes()[from..].iter().map(|digit| digit.wrapping_sub(b'0'));
        let found = match name.as_str() {
            "" => return Ok(Self(None)),
            "df" => Some(0),
            "le" => Some(LE),
            "va" => Some(44),
            "ef" => Some(46),
            _ if name.starts_with("cs") && name.len() == 3 => {
                digits(2).next().filter(|class| *class <= 7).map(|class| class * CLASS)
            }
            // AFxy of RFC 2597: class x of 4, drop precedence y of 3.
            _ if name.starts_with("af") && name.len() == 4 => {
                let xy: Vec<u8> = digits(2).collect();
                let fits = (1..=4).contains(&xy[0]) && (1..=3).contains(&xy[1]);
                fits.then(|| xy[0] * CLASS + 2 * xy[1])
            }
            number => number.parse().ok().filter(|number| *number <= 63),
        };
        let error =
            || "expected le, cs0 to cs7, af11 to af43, ef, va, df, or a number from 0 to 63".to_owned();
        found.map(|found| Self(Some(found))).ok_or_else(error)
    }
}

impl<'de> Deserialize<'de> for Dscp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Number(u64),
            Text(String),
        }
        let text = match Given::deserialize(deserializer)? {
            Given::Number(number) => number.to_string(),
            Given::Text(text) => text,
        };
        text.parse().map_err(de::Error::custom)
    }
}

impl Settings {
    /// The DSCP of packets to other hosts, 0..=63.
    pub(crate) fn code_point(&self) -> u8 {
        let implied = if self.traffic_priority == Priority::Background { LE } else { 0 };
        self.dscp.0.unwrap_or(implied)
    }
}

impl Protocols {
    /// Makes lanes use the capacity that other traffic leaves, unless another congestion control is chosen for them.
    pub(super) fn go_into_background(&mut self) {
        replace(&mut self.udp, |composition| {
            if composition.congestion == CongestionKind::Rate {
                composition.congestion = CongestionKind::Background;
            }
        });
        replace(&mut self.tcp, |congestion| {
            if *congestion == TcpCongestion::Auto {
                *congestion = TcpCongestion::Background;
            }
        });
    }
}

/// Changes every choice, also that for all other hosts.
fn replace<T: Clone + Default>(choices: &mut PerHost<T>, change: impl Fn(&mut T)) {
    choices.add(None, T::default());
    for (hosts, mut choice) in choices.entries().to_vec() {
        change(&mut choice);
        choices.set(hosts, choice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_point(toml: &str) -> u8 {
        Settings::from_toml(&format!("[device]\n{toml}"), "x").expect("valid").code_point()
    }

    #[test]
    fn a_code_point_is_a_name_or_a_number_and_background_implies_le() {
        let numbers = ["le", "CS1", "cs7", "af11", "AF43", "ef", "va", "df", "63"]
            .map(|name| code_point(&format!("dscp = \"{name}\"")));
        assert_eq!(numbers, [1, 8, 56, 10, 38, 46, 44, 0, 63]);
        assert_eq!(
            [code_point(""), code_point("dscp = 10"), code_point("traffic_priority = \"background\"")],
            [0, 10, 1]
        );
        assert_eq!(code_point("traffic_priority = \"background\"\ndscp = \"cs1\""), 8);
        assert_eq!(code_point("traffic_priority = \"background\"\ndscp = 0"), 0);
        for wrong in ["cs8", "af14", "af51", "csx", "64", "-1", "gold"] {
            let error = wrong.parse::<Dscp>().expect_err("invalid");
            assert!(error.contains("af11 to af43"), "{wrong}: {error}");
        }
    }

    #[test]
    fn background_replaces_only_what_is_chosen_by_default() {
        let toml = "[device]\ntraffic_priority = \"background\"\nudp_protocols = \"10.2.0.1=cubic, 10.2.0.2=once\"\n\
                    congestion = \"bbr\"\n";
        let all = Settings::from_toml(toml, "x").expect("valid").all_protocols();
        let udp = |host: [u8; 4]| all.udp.of(host.into()).0.congestion.name();
        assert_eq!(
            [udp([10, 2, 0, 1]), udp([10, 2, 0, 2]), udp([10, 3, 0, 1])],
            ["cubic", "background", "background"]
        );
        assert_eq!(all.tcp.others(), TcpCongestion::Named("bbr".to_owned()));
        let plain =
            Settings { traffic_priority: Priority::Background, ..Settings::default() }.all_protocols();
        assert_eq!(plain.tcp.others(), TcpCongestion::Background);
    }
}
