//! Choices that hold for all hosts, or for ranges of them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};

use crate::Prefix;

/// A choice for ranges of hosts, and for all others; of the ranges that a host is in the narrowest counts. As text:
/// entries separated by commas, those of ranges behind these and `=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerHost<T>(Vec<(Option<Prefix>, T)>);

impl<T> Default for PerHost<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> PerHost<T> {
    /// The entry that holds for a host, with its place among all.
    pub fn find(&self, host: IpAddr) -> Option<(usize, &T)> {
        let (place, (_, choice)) = self.fitting(host)?;
        Some((place, choice))
    }

    fn fitting(&self, host: IpAddr) -> Option<(usize, &(Option<Prefix>, T))> {
        let fits = |hosts: &Option<Prefix>| hosts.is_none_or(|is| is.contains(host));
        let fitting = self.0.iter().enumerate().filter(|(_, (hosts, _))| fits(hosts));
        // The narrowest, as of routes.
        fitting.max_by_key(|(_, (hosts, _))| hosts.map(|is| is.bits()))
    }

    /// All entries: for which hosts, `None` for all others, and what is chosen.
    pub fn entries(&self) -> &[(Option<Prefix>, T)] {
        &self.0
    }

    /// Chooses for these hosts, `None` for all others, in place of what was chosen for just these.
    pub fn set(&mut self, hosts: Option<Prefix>, choice: T) {
        match self.0.iter_mut().find(|(before, _)| *before == hosts) {
            Some((_, before)) => *before = choice,
            None => self.0.push((hosts, choice)),
        }
    }

    /// The same where nothing was chosen for just these; whether that was so.
    pub fn add(&mut self, hosts: Option<Prefix>, choice: T) -> bool {
        let new = self.0.iter().all(|(before, _)| *before != hosts);
        if new {
            self.0.push((hosts, choice));
        }
        new
    }
}

impl<T: Clone + Default> PerHost<T> {
    /// What is chosen for a host, and why.
    pub fn of(&self, host: IpAddr) -> (T, &'static str) {
        match self.fitting(host) {
            Some((_, (Some(hosts), choice))) if hosts.is_one() => (choice.clone(), "as set for this host"),
            Some((_, (Some(_), choice))) => (choice.clone(), "as set for its range of hosts"),
            Some((_, (None, choice))) => (choice.clone(), "as set for all hosts"),
            None => (T::default(), "as nothing else is set"),
        }
    }

    /// What is chosen for hosts that are in no range.
    pub fn others(&self) -> T {
        let found = self.0.iter().find(|(hosts, _)| hosts.is_none());
        found.map_or_else(T::default, |(_, choice)| choice.clone())
    }
}

/// With nothing left out: what holds for all others is the last.
impl<T: Clone + Default + fmt::Display> fmt::Display for PerHost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.iter().filter_map(|(hosts, choice)| hosts.map(|hosts| (hosts, choice)));
        for (hosts, choice) in ranges {
            write!(f, "{hosts}={choice}, ")?;
        }
        self.others().fmt(f)
    }
}

impl<T: FromStr<Err: fmt::Display>> FromStr for PerHost<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (hosts, choice) = match entry.split_once('=') {
                Some((hosts, choice)) => {
                    let hosts = hosts.trim().parse();
                    (Some(hosts.map_err(|error| format!("before =, {error}, or as \"10.3.0.7\""))?), choice)
                }
                None => (None, entry),
            };
            let choice = choice.trim().parse().map_err(|error: T::Err| error.to_string())?;
            if !all.add(hosts, choice) {
                return Err(format!("`{entry}`: what holds for these hosts is said twice"));
            }
        }
        Ok(all)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for PerHost<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(choices: &PerHost<u32>, host: &str) -> String {
        let (choice, why) = choices.of(host.parse().expect("an address"));
        format!("{choice} {why}")
    }

    #[test]
    fn the_narrowest_range_that_a_host_is_in_holds_for_it_else_what_is_said_of_all() {
        let mut choices: PerHost<u32> =
            "10.2.3.4 = 1, 10.0.0.0/8=2, 7, 10.2.0.0/16=3".parse().expect("valid");
        assert_eq!(of(&choices, "10.2.3.4"), "1 as set for this host");
        assert_eq!(of(&choices, "10.2.3.5"), "3 as set for its range of hosts");
        assert_eq!(of(&choices, "10.3.3.5"), "2 as set for its range of hosts");
        assert_eq!(of(&choices, "fd00::1"), "7 as set for all hosts");
        assert_eq!(of(&PerHost::default(), "fd00::1"), "0 as nothing else is set");
        assert_eq!(choices.find([10, 2, 9, 9].into()), Some((3, &3)));
        assert_eq!(choices.to_string(), "10.2.3.4=1, 10.0.0.0/8=2, 10.2.0.0/16=3, 7");
        assert_eq!(
            choices.to_string().parse::<PerHost<u32>>().map(|again| again.to_string()),
            Ok(choices.to_string())
        );
        choices.set("10.2.3.4".parse().ok(), 9);
        assert!(choices.add("10.2.3.5".parse().ok(), 8) && !choices.add(None, 8));
        assert_eq!((of(&choices, "10.2.3.4"), choices.others()), ("9 as set for this host".to_owned(), 7));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_expected() {
        let error = |text: &str| text.parse::<PerHost<u32>>().expect_err("invalid");
        assert!(error("host-b=1").contains("\"host-b\" is no range of addresses"));
        assert!(error("10.2.0.0/40=1").contains("10.3.0.0/16"));
        assert!(error("1, 2").contains("said twice"));
        assert!(error("10.2.0.1=x").contains("invalid digit"));
    }
}
