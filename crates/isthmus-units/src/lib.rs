//! Quantities as people write them: `1Gbit`, `24ms`, `64MiB`, `0.1%`; ranges of addresses, and choices for them.
//!
//! Each type parses its own text and refuses the units of its neighbours by name, so that
//! an error says what was written and what was meant.
#![forbid(unsafe_code)]

mod host_port;
mod per_host;
mod prefix;

pub use host_port::{Choice, HostPort, HostPortError, ResolveError};
pub use per_host::PerHost;
pub use prefix::{Prefix, PrefixError};

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A data rate. Bits per second, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

/// A length of time. Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub u64);

/// An amount of data. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A share of the whole, 0.0..=1.0, written in per cent.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Percent(pub f64);

/// Why a text is not the quantity that was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} {fault}; expected {expected}")]
pub struct UnitError {
    value: String,
    fault: String,
    expected: &'static str,
}

/// The kinds of quantity, with their units and how many base units each holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rate,
    Span,
    Size,
    Percent,
}

const UNITS: &[(&str, Kind, f64)] = &[
    ("bit", Kind::Rate, 1.0),
    ("kbit", Kind::Rate, 1e3),
    ("mbit", Kind::Rate, 1e6),
    ("gbit", Kind::Rate, 1e9),
    ("tbit", Kind::Rate, 1e12),
    ("ns", Kind::Span, 1.0),
    ("us", Kind::Span, 1e3),
    ("µs", Kind::Span, 1e3),
    ("ms", Kind::Span, 1e6),
    ("s", Kind::Span, 1e9),
    ("min", Kind::Span, 60e9),
    ("b", Kind::Size, 1.0),
    ("kb", Kind::Size, 1e3),
    ("mb", Kind::Size, 1e6),
    ("gb", Kind::Size, 1e9),
    ("kib", Kind::Size, 1024.0),
    ("mib", Kind::Size, 1_048_576.0),
    ("gib", Kind::Size, 1_073_741_824.0),
    ("%", Kind::Percent, 0.01),
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Rate => "a rate",
            Self::Span => "a time",
            Self::Size => "a size",
            Self::Percent => "a percentage",
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Rate => "a rate, such as \"1Gbit\"",
            Self::Span => "a time, such as \"24ms\"",
            Self::Size => "a size, such as \"64MiB\"",
            Self::Percent => "a percentage, such as \"0.1%\"",
        }
    }

    fn error(self, value: &str, fault: impl Into<String>) -> UnitError {
        UnitError { value: value.to_owned(), fault: fault.into(), expected: self.expected() }
    }
}

/// The unit in lower case, and how many of it one of what is written is: `1Gb/s`, `1Gbit/s` and `1Gbps` all mean
/// `1gbit`; `1GB/s`, with the B of a size, is eight times that.
fn canonical_unit(unit: &str) -> (String, f64) {
    let unit = unit.trim();
    let lower = unit.to_ascii_lowercase();
    let Some(per_second) = ["ps", "/s"].iter().find_map(|end| lower.strip_suffix(end)) else {
        return (lower, 1.0);
    };
    let is_bytes = unit[..per_second.len()].ends_with('B');
    match UNITS.iter().find(|(name, kind, _)| *kind == Kind::Size && *name == per_second) {
        Some((_, _, bytes)) if is_bytes => ("bit".to_owned(), bytes * 8.0),
        _ if per_second.ends_with("bit") => (per_second.to_owned(), 1.0),
        _ if per_second.ends_with('b') => (format!("{per_second}it"), 1.0),
        _ => (lower, 1.0),
    }
}

/// Parses `text` as `kind`; the result is in base units.
fn parse(text: &str, kind: Kind) -> Result<f64, UnitError> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: f64 = digits.parse().map_err(|_| kind.error(text, "does not start with a number"))?;
    if unit.is_empty() {
        return unitless(text, number, kind);
    }
    let (unit, times) = canonical_unit(unit);
    match UNITS.iter().find(|(name, ..)| *name == unit) {
        Some((_, found, scale)) if *found == kind => Ok(number * times * scale),
        Some((_, found, _)) => Err(kind.error(text, format!("is {}", found.name()))),
        None => Err(kind.error(text, format!("has an unknown unit {unit:?}"))),
    }
}

/// Zero needs no unit, and a bare number is a size in bytes.
fn unitless(text: &str, number: f64, kind: Kind) -> Result<f64, UnitError> {
    if number == 0.0 || kind == Kind::Size { Ok(number) } else { Err(kind.error(text, "has no unit")) }
}

fn whole(text: &str, kind: Kind) -> Result<u64, UnitError> {
    let value = parse(text, kind)?.round();
    if value > 1e18 { Err(kind.error(text, "is too large")) } else { Ok(value as u64) }
}

impl Span {
    /// As the standard library's type.
    pub const fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// From whole milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        match whole(text, Kind::Rate)? {
            0 => Err(Kind::Rate.error(text, "would let nothing pass")),
            bits => Ok(Self(bits)),
        }
    }
}

impl FromStr for Span {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        whole(text, Kind::Span).map(Self)
    }
}

impl FromStr for Size {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        whole(text, Kind::Size).map(Self)
    }
}

impl FromStr for Percent {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let share = parse(text, Kind::Percent)?;
        if share > 1.0 { Err(Kind::Percent.error(text, "is more than 100%")) } else { Ok(Self(share)) }
    }
}

/// Writes `value` in the largest unit that leaves it at or above one.
fn scaled(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (name, scale) = units.iter().rev().find(|(_, s)| value >= *s).unwrap_or(&units[0]);
    let number = (value as f64 / *scale as f64 * 1000.0).round() / 1000.0;
    write!(f, "{number}{name}")
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, &[("bit", 1), ("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)])
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)])
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)])
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", (self.0 * 1e8).round() / 1e6)
    }
}

/// Lets a TOML value be text with a unit, or a bare number where that has one meaning.
struct TextOrNumber<T>(std::marker::PhantomData<T>, Kind);

impl<T: FromStr<Err = UnitError>> Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1.expected())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

macro_rules! deserialize_from_text {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(TextOrNumber(std::marker::PhantomData, Kind::$name))
            }
        }
    )*};
}

deserialize_from_text!(Rate, Span, Size, Percent);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_people_write_them() {
        for text in ["1Gbit", "1Gbit/s", "1 Gb/s", "1000Mbit", "1Gbps"] {
            assert_eq!(text.parse(), Ok(Rate(1_000_000_000)), "{text}");
        }
        for text in ["80MB/s", "80 MBps", "640Mbit", "640Mb/s", "640mbps", "0.64Gb/s"] {
            assert_eq!(text.parse(), Ok(Rate(640_000_000)), "{text}");
        }
        assert_eq!("1MiB/s".parse(), Ok(Rate(8 << 20)));
        assert_eq!("100B/s".parse(), Ok(Rate(800)));
        assert!("1İ/s".parse::<Rate>().is_err());
        assert!(
            "s/s".parse::<Rate>().is_err()
                && "1/s".parse::<Rate>().is_err()
                && "1ps".parse::<Rate>().is_err()
        );
        assert_eq!("1.5ms".parse(), Ok(Span(1_500_000)));
        assert_eq!("0".parse(), Ok(Span(0)));
        assert_eq!("64MiB".parse(), Ok(Size(64 << 20)));
        assert_eq!("9000".parse(), Ok(Size(9000)));
        assert_eq!("0.1%".parse(), Ok(Percent(0.001)));
    }

    #[test]
    fn a_wrong_unit_is_named_with_the_remedy() {
        let said = |e: UnitError| e.to_string();
        assert_eq!(
            "64MiB".parse::<Rate>().map_err(said),
            Err("\"64MiB\" is a size; expected a rate, such as \"1Gbit\"".into())
        );
        assert_eq!(
            "64Mbit".parse::<Size>().map_err(said),
            Err("\"64Mbit\" is a rate; expected a size, such as \"64MiB\"".into())
        );
        assert_eq!(
            "24".parse::<Span>().map_err(said),
            Err("\"24\" has no unit; expected a time, such as \"24ms\"".into())
        );
        assert!("0.5".parse::<Percent>().is_err());
        assert!("101%".parse::<Percent>().is_err());
        assert!("-1ms".parse::<Span>().is_err());
        assert!("0Gbit".parse::<Rate>().is_err());
    }

    #[test]
    fn what_is_printed_parses_back() {
        assert_eq!(Rate(1_500_000_000).to_string(), "1.5Gbit");
        assert_eq!(Span(12_000_000).to_string(), "12ms");
        assert_eq!(Size(3 << 20).to_string(), "3MiB");
        assert_eq!(Percent(0.001).to_string(), "0.1%");
    }
}
