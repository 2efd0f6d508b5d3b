//! The setting `protocols`: the protocols of service levels, messages and lanes, as one text.
//!
//! Entries are separated by commas. Each is `WHAT: NAMES` or `WHAT@HOSTS: NAMES`. WHAT is a service level (UU, RU, RO),
//! `messages` (of all levels and of programs without levels), or a kind of lane (`udp`, `tcp`). HOSTS is an IP address
//! or a range of them. NAMES are small protocols joined by `+`. The narrowest range counts; for messages of a service
//! level, an entry for that level goes before `messages`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use isthmus_proto::{Order, Reliability, ServiceLevel, Transfer, Transfers};
use isthmus_udp::Composition;
use isthmus_units::{PerHost, Prefix, PrefixError};
use serde::{Deserialize, Deserializer, de};

use super::transfer::level_of;
use super::{Priority, Settings, TcpCongestion};

/// The small protocols that are set; all others are the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protocols {
    /// For messages.
    pub transfers: Transfers,
    /// For lanes by UDP or Ethernet frames.
    pub udp: PerHost<Composition>,
    /// For TCP lanes.
    pub tcp: PerHost<TcpCongestion>,
}

/// The subject of an entry.
#[derive(Clone, Copy, Debug)]
enum Scope {
    Level(ServiceLevel),
    Messages,
    Udp,
    Tcp,
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(level) = text.parse() {
            return Ok(Self::Level(level));
        }
        match text {
            "messages" => Ok(Self::Messages),
            "udp" => Ok(Self::Udp),
            "tcp" => Ok(Self::Tcp),
            "ethernet" => Err("lanes of frames are made up as those by UDP: write `udp:`".to_owned()),
            "memory" | "fabric" => Err(format!("in lanes by {text} there is nothing to choose")),
            _ => Err(format!(
                "`{text}` has no protocols; expected UU, RU, RO, messages, udp or tcp, as in `udp@10.2.0.0/16: cubic`"
            )),
        }
    }
}

impl Protocols {
    /// The settings for one host, in the form of settings for all.
    pub fn of_host(&self, host: IpAddr) -> Self {
        let mut of = Self::default();
        keep(&self.transfers.all, host, &mut of.transfers.all);
        keep(&self.transfers.ru, host, &mut of.transfers.ru);
        keep(&self.transfers.ro, host, &mut of.transfers.ro);
        keep(&self.udp, host, &mut of.udp);
        keep(&self.tcp, host, &mut of.tcp);
        of
    }

    /// Sets for one host the protocols that `choice` sets for all. All others stay.
    ///
    /// # Errors
    /// If `choice` has entries for hosts.
    pub fn set_for(&mut self, host: IpAddr, choice: &Self) -> Result<(), String> {
        set(&mut self.transfers.all, host, &choice.transfers.all)?;
        set(&mut self.transfers.ru, host, &choice.transfers.ru)?;
        set(&mut self.transfers.ro, host, &choice.transfers.ro)?;
        set(&mut self.udp, host, &choice.udp)?;
        set(&mut self.tcp, host, &choice.tcp)
    }

    /// Adds the entries of `below` for hosts that have no such entry here.
    fn lay_over(&mut self, below: &Self) {
        add(&mut self.transfers.all, &below.transfers.all);
        add(&mut self.transfers.ru, &below.transfers.ru);
        add(&mut self.transfers.ro, &below.transfers.ro);
        add(&mut self.udp, &below.udp);
        add(&mut self.tcp, &below.tcp);
    }

    /// Adds an entry.
    fn enter(&mut self, entry: &str) -> Result<(), String> {
        let (what, names) = entry.rsplit_once(':').ok_or_else(|| {
            format!("`{entry}`: expected what it is for, a colon and names, as in `udp: cubic+once`")
        })?;
        let (what, hosts) = what.split_once('@').map_or((what, None), |(what, hosts)| (what, Some(hosts)));
        let scope = what.trim().parse()?;
        let hosts: Option<Prefix> = hosts
            .map(|hosts| hosts.trim().parse())
            .transpose()
            .map_err(|error: PrefixError| format!("behind @, {error}, or as \"10.3.0.7\""))?;
        let names: Vec<&str> = names.split('+').map(str::trim).filter(|name| !name.is_empty()).collect();
        let new = match scope {
            Scope::Level(level) => match of_level(level, &names)? {
                Some(transfer) => level_of(&mut self.transfers, level)?.add(hosts, transfer),
                None => true,
            },
            Scope::Messages => self.transfers.all.add(hosts, one(&names, of_messages)?),
            Scope::Udp => self.udp.add(hosts, of_udp(&names)?),
            Scope::Tcp => self.tcp.add(hosts, one(&names, of_tcp)?),
        };
        if new { Ok(()) } else { Err(format!("`{entry}`: what holds for these hosts is said twice")) }
    }
}

fn keep<T: Clone>(from: &PerHost<T>, host: IpAddr, onto: &mut PerHost<T>) {
    if let Some((_, choice)) = from.find(host) {
        onto.set(None, choice.clone());
    }
}

fn set<T: Clone>(onto: &mut PerHost<T>, host: IpAddr, choice: &PerHost<T>) -> Result<(), String> {
    for (hosts, choice) in choice.entries() {
        if let Some(hosts) = hosts {
            return Err(format!("`@{hosts}`: it is for the host of one connection; leave this out"));
        }
        onto.set(Some(host.into()), choice.clone());
    }
    Ok(())
}

fn add<T: Clone>(onto: &mut PerHost<T>, below: &PerHost<T>) {
    below.entries().iter().for_each(|(hosts, choice)| {
        onto.add(*hosts, choice.clone());
    });
}

/// Reads the only name that may be there.
fn one<T>(names: &[&str], read: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    match names {
        [name] => read(name),
        [] => Err("a protocol is missing behind the colon".to_owned()),
        [name, other, ..] => Err(format!("`{name}` and `{other}`: one of them can be chosen")),
    }
}

/// The transfer of a level's messages, if the entry names one. The promises of a level cannot be set.
fn of_level(level: ServiceLevel, names: &[&str]) -> Result<Option<Transfer>, String> {
    let (reliability, order) = level.made_of();
    let (mut transfer, own) = (None, [reliability.name(), order.name()]);
    for name in names.iter().filter(|name| !own.contains(name)) {
        let instead = match *name {
            name if name == Reliability::Datagrams.name() => "UU",
            name if name == Reliability::Acknowledged.name() => "RU or RO",
            name if name == Order::Unordered.name() => {
                "RU, or send single messages out of order (ISTHMUS_UNORDERED)"
            }
            name if name == Order::Ordered.name() => "RO",
            name => {
                let read = of_messages(name)?;
                if let Some(before) = transfer.replace(read) {
                    return Err(format!("`{before}` and `{read}`: one of them can be chosen"));
                }
                continue;
            }
        };
        let own = own.join("+");
        return Err(format!(
            "{level} promises to be {own}, which peers rely on: for `{name}` connect by {instead}"
        ));
    }
    Ok(transfer)
}

fn of_messages(name: &str) -> Result<Transfer, String> {
    name.parse().map_err(|error| match name.parse::<Composition>() {
        Ok(_) => format!("`{name}` is of lanes, which messages of all levels share: write `udp: {name}`"),
        Err(_) => format!("`{name}` transfers no messages; {error}"),
    })
}

fn of_udp(names: &[&str]) -> Result<Composition, String> {
    let text = names.join("+");
    text.parse().map_err(|error| match names.iter().find(|name| name.parse::<Transfer>().is_ok()) {
        Some(name) => {
            format!("`{name}` is of messages, by whichever lanes they go: write `messages: {name}`")
        }
        None => format!("{error}"),
    })
}

fn of_tcp(name: &str) -> Result<TcpCongestion, String> {
    // Names that TCP and UDP share mean the kernel's algorithm here.
    match name.parse::<Composition>() {
        Ok(_) if !matches!(name, "cubic" | "reno" | "background") => {
            Err(format!("`{name}` is of lanes by UDP, which the kernel's TCP has not: write `udp: {name}`"))
        }
        _ => name.parse(),
    }
}

/// Writes all entries, with defaults filled in.
impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entries = Vec::new();
        for level in ServiceLevel::ALL {
            let (reliability, order) = level.made_of();
            let own = format!("{}+{}", reliability.name(), order.name());
            let set = self.transfers.level(level).map_or(&[][..], PerHost::entries);
            write(&mut entries, &level, set, |transfer| format!("{own}+{transfer}"), &own);
        }
        let all = &self.transfers.all;
        write(&mut entries, &"messages", all.entries(), Transfer::to_string, &Transfer::default());
        write(&mut entries, &"udp", self.udp.entries(), Composition::to_string, &Composition::default());
        write(&mut entries, &"tcp", self.tcp.entries(), TcpCongestion::to_string, &TcpCongestion::default());
        f.write_str(&entries.join(", "))
    }
}

/// Writes the entries, and the default for all other hosts if there is no entry for them.
fn write<T>(
    out: &mut Vec<String>,
    what: &dyn fmt::Display,
    set: &[(Option<Prefix>, T)],
    text: impl Fn(&T) -> String,
    default: &dyn fmt::Display,
) {
    out.extend(set.iter().map(|(hosts, choice)| match hosts {
        Some(hosts) => format!("{what}@{hosts}: {}", text(choice)),
        None => format!("{what}: {}", text(choice)),
    }));
    if set.iter().all(|(hosts, _)| hosts.is_some()) {
        out.push(format!("{what}: {default}"));
    }
}

impl FromStr for Protocols {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        let mut entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.try_for_each(|entry| all.enter(entry))?;
        Ok(all)
    }
}

impl<'de> Deserialize<'de> for Protocols {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Settings {
    /// The result of all settings that name protocols: [`Settings::protocols`], and for hosts that it does not mention
    /// the settings of single layers.
    pub fn all_protocols(&self) -> Protocols {
        let mut all = self.protocols.clone();
        let mut tcp = PerHost::default();
        tcp.set(None, self.congestion.clone());
        let (transfers, udp) = (self.transfer.0.clone(), self.udp_protocols.clone());
        all.lay_over(&Protocols { transfers, udp, tcp });
        if self.traffic_priority == Priority::Background {
            all.go_into_background();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Protocols {
        text.parse().expect("valid")
    }

    #[test]
    fn what_all_is_made_of_is_a_text() {
        let made_of = "UU: datagrams+unordered, RU: acknowledged+unordered, RO: acknowledged+ordered, \
                       messages: adaptive, udp: rate+adaptive+measured+search, tcp: auto";
        assert_eq!(Protocols::default().to_string(), made_of);
        assert_eq!(read(made_of).to_string(), made_of);
        let set = read(
            "ro: adaptive + ordered, RU@10.2.0.1: eager, tcp: bbr, tcp@fd00::/8: system, udp@10.2.0.0/16: cubic+once+crc32c",
        );
        let text = "UU: datagrams+unordered, RU@10.2.0.1: acknowledged+unordered+eager, RU: acknowledged+unordered, \
                    RO: acknowledged+ordered+adaptive, messages: adaptive, \
                    udp@10.2.0.0/16: cubic+adaptive+once+search+crc32c, udp: rate+adaptive+measured+search, \
                    tcp: bbr, tcp@fd00::/8: system";
        assert_eq!(set.to_string(), text);
        assert_eq!(read(text).to_string(), text);
        assert_eq!(read(""), Protocols::default());
    }

    #[test]
    fn the_narrowest_entry_counts_and_a_level_before_all_messages() {
        let set = read(
            "udp: reno, udp@10.2.0.0/16: cubic, udp@10.2.0.1: once, tcp@10.2.0.0/16: bbr, \
             messages@10.2.0.1: rendezvous, messages: mixed, RO: eager, RO@10.2.0.1: adaptive",
        );
        let udp = |host: [u8; 4]| set.udp.of(host.into()).0.to_string();
        assert_eq!(udp([10, 2, 0, 1]), "rate+adaptive+once+search");
        assert_eq!(udp([10, 2, 0, 2]), "cubic+adaptive+measured+search");
        assert_eq!(udp([10, 3, 0, 1]), "reno+adaptive+measured+search");
        assert_eq!(set.tcp.of([10, 2, 0, 1].into()).0, TcpCongestion::Named("bbr".to_owned()));
        assert_eq!(set.tcp.of([10, 3, 0, 1].into()), (TcpCongestion::Auto, "as nothing else is set"));
        let of = |level, host: [u8; 4]| set.transfers.of(level, host.into()).0;
        assert_eq!(of(Some(ServiceLevel::Ro), [10, 2, 0, 1]), Transfer::Adaptive);
        assert_eq!(of(Some(ServiceLevel::Ro), [10, 2, 0, 2]), Transfer::Eager);
        assert_eq!(of(Some(ServiceLevel::Ru), [10, 2, 0, 1]), Transfer::Rendezvous);
        assert_eq!(of(None, [10, 2, 0, 2]), Transfer::Mixed);
    }

    #[test]
    fn one_host_has_what_is_set_for_it_alone() {
        let mut set = read("udp@10.2.0.0/16: cubic, RO: eager, tcp: bbr");
        let host = [10, 2, 0, 1].into();
        set.set_for(host, &read("udp: reno+once, messages: mixed")).expect("of no hosts");
        let text = "UU: datagrams+unordered, RU: acknowledged+unordered, RO: acknowledged+ordered+eager, \
                    messages: mixed, udp: reno+adaptive+once+search, tcp: bbr";
        assert_eq!(set.of_host(host).to_string(), text);
        assert_eq!(set.of_host([10, 2, 0, 2].into()).transfers.all, PerHost::default());
        let error = set.set_for(host, &read("tcp@10.2.0.7: cubic")).expect_err("of hosts");
        assert!(error.contains("`@10.2.0.7`: it is for the host of one connection"), "{error}");
    }

    #[test]
    fn settings_of_single_layers_hold_where_the_one_text_says_nothing_of_the_same_hosts() {
        let toml = "[device]\nprotocols = \"udp: cubic, RU: eager\"\nudp_protocols = \"10.2.0.1=once, reno\"\n\
                    transfer = \"RU=mixed, rendezvous\"\ncongestion = \"bbr\"\n";
        let all = Settings::from_toml(toml, "x").expect("valid").all_protocols();
        let text = "UU: datagrams+unordered, RU: acknowledged+unordered+eager, RO: acknowledged+ordered, \
                    messages: rendezvous, udp: cubic+adaptive+measured+search, \
                    udp@10.2.0.1: rate+adaptive+once+search, tcp: bbr";
        assert_eq!(all.to_string(), text);
        assert_eq!(Settings::default().all_protocols().to_string(), Protocols::default().to_string());
    }

    #[test]
    fn what_cannot_work_is_refused_with_what_to_write() {
        for (text, part) in [
            ("RO: unordered", "RO promises to be acknowledged+ordered"),
            ("RO: unordered", "for `unordered` connect by RU"),
            ("RU: eager+ordered", "connect by RO"),
            ("RU: datagrams", "connect by UU"),
            ("UU: acknowledged", "connect by RU or RO"),
            ("UU: eager", "datagrams: there is nothing to choose"),
            ("RO: eager+mixed", "`eager` and `mixed`: one of them"),
            ("RO: cubic", "write `udp: cubic`"),
            ("messages: eager+mixed", "one of them can be chosen"),
            ("messages: ", "missing behind the colon"),
            ("messages: whole", "adaptive, eager, rendezvous, mixed"),
            ("udp: eager", "write `messages: eager`"),
            ("udp: cubic+reno", "`cubic` and `reno`"),
            ("udp: bbr", "`bbr` is no protocol of a udp lane"),
            ("tcp: rate", "write `udp: rate`"),
            ("tcp: b b r", "no congestion control of TCP"),
            ("tcp: a-name-that-is-too-long", "no congestion control of TCP"),
            ("ethernet: cubic", "write `udp:`"),
            ("memory: once", "nothing to choose"),
            ("mpi: eager", "expected UU, RU, RO, messages, udp or tcp"),
            ("cubic", "as in `udp: cubic+once`"),
            ("udp@host-b: cubic", "\"host-b\" is no range of addresses"),
            ("udp: cubic, udp: reno", "said twice"),
            ("RU@10.2.0.1: eager, RU@10.2.0.1: mixed", "said twice"),
        ] {
            let error = text.parse::<Protocols>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
