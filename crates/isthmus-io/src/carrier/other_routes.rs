//! Other routes to a host that does not answer by the kernel's first one.
//!
//! The kernel sends by the most specific route, whether or not anything comes back: into a VPN that claims more
//! networks than it leads to, or by an interface whose cable is out while another one leads to the same network. If a
//! host does not answer a TCP lane that way, and the kernel's table has a route to it by another interface, the next
//! attempt to connect is bound to that interface (`SO_BINDTODEVICE`). Attempts by the first route and by the others
//! alternate until one answers. Lanes with that host then stay with it. UDP lanes take the interface that TCP found:
//! their packets name it (`IP_PKTINFO`).
//!
//! A route may depend on the source (`ip rule`), or be split between interfaces. Then the kernel is asked about each
//! interface ([`route_query`]), and an attempt is bound to the address of the interface, too.
//!
//! If the user named an interface, the setting decides, and nothing else is tried.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use isthmus_datagram::{LinkState, is_bridge, link_state};
use isthmus_path::thresholds::transport::HOSTS_MAX;

use crate::interface::{device_of, interface_of, source_to};
use crate::log::sparingly;
use crate::route_query;

/// Longest time for a host to answer if another route leads to it. TCP sends its second packet after 1 s, and its third
/// after 3 s.
pub(crate) const OTHER_ROUTE_AFTER: Duration = Duration::from_secs(3);
/// A route that answered is used for this long before the kernel's first one is tried again.
const VALID: Duration = Duration::from_secs(600);
/// The absence of other routes is remembered for this long.
const NONE_VALID: Duration = Duration::from_secs(10);

/// Most interfaces that a message names. Count.
const NAMED_MAX: usize = 3;

/// The kernel's table of IPv4 routes.
const ROUTES_V4: &str = "/proc/self/net/route";
/// The kernel's table of IPv6 routes.
const ROUTES_V6: &str = "/proc/self/net/ipv6_route";
/// `RTF_UP` of `route.h`.
const UP: u32 = 1;
/// `RTF_REJECT` of `route.h`: packets are refused.
const REJECT: u32 = 0x200;

/// The route of an attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
enum By {
    /// The interface that the setting `interface` names.
    Named(String),
    /// The kernel's first route.
    Kernel(Option<String>),
    /// Another route, by this interface.
    Other(String),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, " by {name}, which the setting `interface` names"),
            Self::Kernel(Some(name)) => write!(f, " by {name}, where the kernel's route leads"),
            Self::Kernel(None) => Ok(()),
            Self::Other(name) => write!(f, " by {name}, where another route leads"),
        }
    }
}

/// Another route than the kernel's first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) interface: String,
    /// The address that packets must come from, if the route depends on that.
    pub(super) source: Option<IpAddr>,
}

impl Other {
    fn by(interface: String) -> Self {
        Self { interface, source: None }
    }
}

/// The routes to one host.
#[derive(Debug)]
struct Routes {
    /// The interface of the kernel's first route.
    first: Option<String>,
    /// Other routes, the most specific first, and those last that depend on the source.
    others: Vec<Other>,
    /// Interfaces that may lead there too, although the kernel does not say so. They are not tried, but named.
    unrouted: Vec<String>,
    /// The number of the attempt. Even ones go by the first route.
    attempt: u32,
    since: Instant,
    told: bool,
}

impl Routes {
    fn to(host: IpAddr) -> Self {
        let first = source_to(host).and_then(interface_of);
        let table = match host {
            IpAddr::V4(_) => std::fs::read_to_string(ROUTES_V4).map(|table| routes_v4(&table)),
            IpAddr::V6(_) => std::fs::read_to_string(ROUTES_V6).map(|table| routes_v6(&table)),
        };
        let mut others: Vec<Other> =
            others(&table.unwrap_or_default(), host, first.as_deref(), &link_state).map(Other::by).collect();
        let known =
            |name: &str| first.as_deref() == Some(name) || others.iter().any(|one| one.interface == name);
        let leads = |name: &str| !known(name) && link_state(name) == LinkState::Up;
        let more = more(&if_addrs::get_if_addrs().unwrap_or_default(), host, &leads);
        let (by_source, others_up): (Vec<_>, Vec<_>) = more.into_iter().partition(|(_, source, index)| {
            index.is_some_and(|index| route_query::leads(host, *source, index))
        });
        others.extend(
            by_source.into_iter().map(|(interface, source, _)| Other { interface, source: Some(source) }),
        );
        let named = others_up.into_iter().map(|(name, ..)| name).filter(|name| !is_bridge(name));
        Self {
            first,
            others,
            unrouted: named.take(NAMED_MAX).collect(),
            attempt: 0,
            since: Instant::now(),
            told: false,
        }
    }

    /// The route of the present attempt, if it is not the kernel's choice.
    fn other(&self) -> Option<&Other> {
        let is_other = self.attempt % 2 == 1 && !self.others.is_empty();
        is_other.then(|| &self.others[(self.attempt / 2) as usize % self.others.len()])
    }

    fn is_valid(&self) -> bool {
        self.since.elapsed() < if self.others.is_empty() { NONE_VALID } else { VALID }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct OtherRoutes {
    /// The interface that the user named; then no other is tried.
    named: Option<String>,
    hosts: HashMap<IpAddr, Routes>,
}

impl OtherRoutes {
    /// `named` is the address of the interface that the user named, if any.
    pub(super) fn new(named: Option<IpAddr>) -> Self {
        let named = named.map(|ip| interface_of(ip).unwrap_or_else(|| ip.to_string()));
        Self { named, hosts: HashMap::new() }
    }

    fn known(&self, host: IpAddr) -> Option<&Routes> {
        self.hosts.get(&host).filter(|routes| routes.is_valid())
    }

    /// The route to bind the next attempt to; `None` if the kernel decides.
    pub(super) fn other(&self, host: IpAddr) -> Option<&Other> {
        self.known(host)?.other()
    }

    /// The number of the present attempt, for [`OtherRoutes::on_failure`].
    pub(super) fn attempt(&self, host: IpAddr) -> u32 {
        self.known(host).map_or(0, |routes| routes.attempt)
    }

    /// Whether there is another route to a host that has not answered yet.
    pub(super) fn has_other(&mut self, host: IpAddr) -> bool {
        self.look_up(host).is_some_and(|routes| !routes.others.is_empty())
    }

    fn look_up(&mut self, host: IpAddr) -> Option<&mut Routes> {
        if self.named.is_some() || host.is_loopback() {
            return None;
        }
        self.hosts.retain(|_, routes| routes.is_valid());
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&host) {
            return None;
        }
        Some(self.hosts.entry(host).or_insert_with(|| Routes::to(host)))
    }

    /// The attempt of this number brought no answer: the next one goes by another route, if there is one. Returns the
    /// route of this one, for people.
    pub(super) fn on_failure(&mut self, host: IpAddr, attempt: u32) -> String {
        if let Some(name) = &self.named {
            return By::Named(name.clone()).to_string();
        }
        let Some(routes) = self.look_up(host) else { return String::new() };
        let by = match routes.other() {
            Some(other) => By::Other(other.interface.clone()),
            None => By::Kernel(routes.first.clone()),
        };
        let setting = match (&routes.first, &routes.unrouted[..]) {
            (None, _) | (_, []) => String::new(),
            (Some(_), names) => {
                format!("; if {} leads there, set `interface` to it", names.join(" or "))
            }
        };
        // Lanes that were dialled at the same time fail at the same time.
        if routes.attempt == attempt && !routes.others.is_empty() {
            routes.attempt += 1;
        }
        format!("{by}{setting}")
    }

    /// The host has answered the attempt of this number: further ones go as it went. True if another route than the
    /// kernel's was found.
    pub(super) fn on_answer(&mut self, host: IpAddr, attempt: u32) -> bool {
        let Some(routes) = self.hosts.get_mut(&host) else { return false };
        routes.attempt = attempt;
        let Some(other) = routes.other().map(|other| other.interface.clone()) else { return false };
        let is_new = !std::mem::replace(&mut routes.told, true);
        if is_new {
            let first = routes.first.as_deref().unwrap_or("no interface");
            sparingly!(
                crate::log::FEW,
                Warn,
                "{host} does not answer by {first}, where the kernel's route leads, but by {other}: lanes take that for \
                 10 minutes; correct the route (ip route get {host}), or set interface to {other}"
            );
        }
        is_new
    }
}

/// A route: its network, the length of its prefix (bits), and its interface.
type Route = (IpAddr, u32, String);

/// Interfaces with a route to `host`, the most specific first, without `first` and those that carry nothing.
fn others(
    table: &[Route],
    host: IpAddr,
    first: Option<&str>,
    state: &dyn Fn(&str) -> LinkState,
) -> impl Iterator<Item = String> {
    let leads = |(network, bits, name): &&Route| {
        covers(*network, *bits, host) && name != "lo" && Some(name.as_str()) != first
    };
    let mut found: Vec<&Route> = table.iter().filter(leads).collect();
    found.sort_by_key(|(_, bits, _)| std::cmp::Reverse(*bits));
    let mut names: Vec<String> = Vec::new();
    for (_, _, name) in found {
        if !names.contains(name) && state(name) == LinkState::Up {
            names.push(name.clone());
        }
    }
    names.into_iter()
}

/// Interfaces with an address of the same version of IP as `host` for which `leads` holds: the name, the first such
/// address and the index of each.
fn more(
    all: &[if_addrs::Interface],
    host: IpAddr,
    leads: &dyn Fn(&str) -> bool,
) -> Vec<(String, IpAddr, Option<u32>)> {
    let is_of = |one: &&if_addrs::Interface| one.ip().is_ipv4() == host.is_ipv4() && !one.is_loopback();
    let usable = |one: &&if_addrs::Interface| match one.ip() {
        IpAddr::V4(_) => true,
        // Every interface has a link-local address, which leads to no other network.
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    let mut found: Vec<(String, IpAddr, Option<u32>)> = Vec::new();
    for one in all.iter().filter(is_of).filter(usable) {
        let name = device_of(&one.name);
        if found.iter().all(|(known, ..)| known != name) && leads(name) {
            found.push((name.to_owned(), one.ip(), one.index));
        }
    }
    found
}

/// Whether a network contains an address.
fn covers(network: IpAddr, bits: u32, host: IpAddr) -> bool {
    let differ = match (network, host) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return false,
    };
    differ >= bits
}

/// Reads the table of IPv4 routes. Its numbers are as memory has them, so their bytes are in network order.
fn routes_v4(table: &str) -> Vec<Route> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (network, flags, mask) =
            (number(fields.get(1)?)?, number(fields.get(3)?)?, number(fields.get(7)?)?);
        let usable = flags & UP != 0 && flags & REJECT == 0;
        usable.then(|| {
            let network = Ipv4Addr::from(network.to_ne_bytes());
            (network.into(), mask.count_ones(), fields[0].to_owned())
        })
    };
    table.lines().skip(1).filter_map(route).collect()
}

/// Reads the table of IPv6 routes.
fn routes_v6(table: &str) -> Vec<Route> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let network = u128::from_str_radix(fields.first()?, 16).ok()?;
        let number = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        let (bits, flags) = (number(1)?, number(8)?);
        let usable = flags & UP != 0 && flags & REJECT == 0;
        let name = fields.get(9).filter(|_| usable)?;
        Some((Ipv6Addr::from(network).into(), bits, (*name).to_owned()))
    };
    table.lines().filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::tests::interface;

    /// A VPN that claims one half of all addresses, a default route by eth0, the network of eth1, and a route that is
    /// down.
    const V4: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth1\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth2\t00000000\t00000000\t0000\t0\t0\t0\t00000000\t0\t0\t0
";
    const V6: &str = "\
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth1
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo
";

    fn found(table: &[Route], host: &str, first: &str, bare: &str) -> Vec<String> {
        let state = |name: &str| if name == bare { LinkState::NoCarrier } else { LinkState::Up };
        others(table, host.parse().expect("an address"), Some(first), &state).collect()
    }

    #[test]
    fn other_interfaces_with_a_route_to_the_host_are_found_the_most_specific_first() {
        let table = routes_v4(V4);
        assert_eq!(found(&table, "9.9.9.9", "tun0", ""), ["eth0"]);
        assert_eq!(found(&table, "10.0.2.7", "tun0", ""), ["eth1", "eth0"]);
        assert_eq!(found(&table, "10.0.2.7", "tun0", "eth1"), ["eth0"], "it carries nothing");
        assert_eq!(found(&table, "200.1.1.1", "eth0", ""), [""; 0], "the VPN claims the other half");
        let table = routes_v6(V6);
        assert_eq!(found(&table, "fd00::7", "eth1", ""), ["eth0"]);
        assert_eq!(found(&table, "2001:db8::1", "eth1", ""), [""; 0]);
        assert_eq!(found(&table, "10.0.2.7", "eth1", ""), [""; 0]);
    }

    #[test]
    fn attempts_by_the_first_route_and_by_others_alternate_until_one_answers() {
        let host: IpAddr = "192.0.2.1".parse().expect("an address");
        let mut routes = OtherRoutes::new(None);
        let others = ["eth1", "eth2"].map(|name| Other::by(name.to_owned())).to_vec();
        let first = Some("tun0".to_owned());
        let unrouted = vec!["eth3".to_owned()];
        let known = Routes { first, others, unrouted, attempt: 0, since: Instant::now(), told: false };
        routes.hosts.insert(host, known);
        let mut taken = Vec::new();
        for _ in 0..6 {
            taken.push(routes.other(host).map_or("kernel".to_owned(), |other| other.interface.clone()));
            let attempt = routes.attempt(host);
            // Two lanes that fail together are one attempt.
            let by = routes.on_failure(host, attempt);
            assert!(taken.len() > 1 || by.contains("by tun0, where the kernel's route leads"), "{by}");
            assert!(by.ends_with("; if eth3 leads there, set `interface` to it"), "{by}");
            routes.on_failure(host, attempt);
        }
        assert_eq!(taken, ["kernel", "eth1", "kernel", "eth2", "kernel", "eth1"]);
        routes.on_failure(host, 6);
        assert!(routes.on_answer(host, 7), "another route was found");
        assert!(!routes.on_answer(host, 7), "it is known");
        assert_eq!(routes.other(host), Some(&Other::by("eth2".to_owned())), "what answered is dialled again");
        // A lane that was dialled before by the first route has answered late.
        assert!(!routes.on_answer(host, 6));
        assert_eq!(routes.other(host), None);
    }

    #[test]
    fn further_interfaces_are_those_with_an_address_that_may_lead_to_the_host() {
        let all = [
            interface("lo", "127.0.0.1"),
            interface("eth0", "10.0.0.1"),
            interface("eth1", "10.0.1.1"),
            interface("eth1", "10.0.1.2"),
            interface("eth1", "fe80::1"),
            interface("eth2", "10.0.2.1"),
            interface("eth3", "fd00::1"),
        ];
        let leads = |name: &str| name != "eth0" && name != "eth2";
        let found = |host: &str| more(&all, host.parse().expect("an address"), &leads);
        let one = |name: &str, ip: &str| (name.to_owned(), ip.parse().expect("an address"), None);
        assert_eq!(found("192.0.2.1"), [one("eth1", "10.0.1.1")]);
        assert_eq!(found("2001:db8::1"), [one("eth3", "fd00::1")]);
    }

    #[test]
    fn an_interface_that_the_user_named_is_the_only_one() {
        let mut routes = OtherRoutes::new(Some(Ipv4Addr::LOCALHOST.into()));
        let host: IpAddr = "192.0.2.1".parse().expect("an address");
        assert!(!routes.has_other(host));
        assert_eq!(routes.on_failure(host, 0), " by lo, which the setting `interface` names");
        assert_eq!(routes.other(host), None);
    }
}
