//! Which of the host's addresses an endpoint uses.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use if_addrs::Interface;
use isthmus_datagram::{LinkState, link_state};

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// That of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Why no address was found.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The system did not list its interfaces.
    #[error("cannot list network interfaces: {0}")]
    List(std::io::Error),
    /// The setting names none of them.
    #[error(
        "no interface or address `{wanted}` on this host; it has {present}. Correct the setting `interface`"
    )]
    Unknown {
        /// The setting.
        wanted: String,
        /// What there is.
        present: String,
    },
    /// More than there may be, or with a transport that has one interface.
    #[error(
        "`rails` takes at most 3 interfaces, and none where `transport` is ethernet; correct one of the two"
    )]
    Rails,
    /// It carries no frames.
    #[error(transparent)]
    Ethernet(#[from] isthmus_datagram::EthernetError),
}

/// The address to listen on: that of the interface `wanted` (a name or an address), or
/// with an empty `wanted` the one of the default route, else the first that is not
/// loopback, else loopback.
pub(crate) fn choose(wanted: &str) -> Result<IpAddr, InterfaceError> {
    let all = if_addrs::get_if_addrs().map_err(InterfaceError::List)?;
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    pick(&all, &routes, wanted)
}

/// The same where an address of one family is wanted; `None`: the host has no such.
pub(crate) fn choose_of(family: Family, wanted: &str) -> Option<IpAddr> {
    let mut all = if_addrs::get_if_addrs().ok()?;
    all.retain(|interface| Family::of(interface.ip()) == family);
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    pick(&all, &routes, wanted).ok().filter(|ip| all.iter().any(|interface| interface.ip() == *ip))
}

/// The interface of the host that has this address.
pub fn interface_of(ip: IpAddr) -> Option<String> {
    let all = if_addrs::get_if_addrs().ok()?;
    all.into_iter().find(|interface| interface.ip() == ip).map(|interface| interface.name)
}

/// The largest IP packet that the interface with this address carries. Bytes.
pub(crate) fn mtu_at(ip: IpAddr) -> Option<u32> {
    interface_of(ip).and_then(|name| isthmus_datagram::mtu_of(&name).ok())
}

/// How many leading bits of an address of this host tell which addresses are on the same
/// network as it; `None`: it has no such address.
pub fn network_bits_of(ip: IpAddr) -> Option<u8> {
    let all = if_addrs::get_if_addrs().ok()?;
    let found = all.into_iter().find(|interface| interface.ip() == ip)?;
    Some(match found.addr {
        if_addrs::IfAddr::V4(v4) => v4.prefixlen,
        if_addrs::IfAddr::V6(v6) => v6.prefixlen,
    })
}

/// Why nothing goes by this interface from the address that it had, and what to do; `None`: as
/// far as the system knows, it does.
pub fn interface_trouble(interface: &str, ip: IpAddr) -> Option<String> {
    let state = link_state(interface);
    let has_left = || !isthmus_datagram::is_frames_only(ip) && interface_of(ip).is_none();
    match state {
        LinkState::Gone => {
            Some(format!("the interface {interface}, with the address {ip}, has left the host"))
        }
        LinkState::Down => {
            Some(format!("the interface {interface} is down: bring it up again (ip link set {interface} up)"))
        }
        _ if has_left() => Some(format!(
            "the address {ip} has left the host: give it back to the interface {interface} (ip addr add)"
        )),
        LinkState::NoCarrier => Some(format!(
            "the interface {interface} has no carrier: look after its cable, and what is at the other end"
        )),
        LinkState::Up => None,
    }
}

fn pick(all: &[Interface], routes: &str, wanted: &str) -> Result<IpAddr, InterfaceError> {
    if !wanted.is_empty() {
        let named = |i: &&Interface| i.name == wanted || wanted.parse() == Ok(i.ip());
        return by_preference(all.iter().filter(named)).ok_or_else(|| InterfaceError::Unknown {
            wanted: wanted.to_owned(),
            present: all.iter().map(|i| format!("{} ({})", i.name, i.ip())).collect::<Vec<_>>().join(", "),
        });
    }
    let routed =
        default_interface(routes).and_then(|name| by_preference(all.iter().filter(|i| i.name == name)));
    let outward = || by_preference(all.iter().filter(|i| !i.is_loopback()));
    let any = || by_preference(all.iter());
    Ok(routed.or_else(outward).or_else(any).unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

/// IPv4 before IPv6; link-local IPv6 addresses need a scope and do not travel.
fn by_preference<'a>(interfaces: impl Iterator<Item = &'a Interface>) -> Option<IpAddr> {
    let usable = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    interfaces.map(|i| i.ip()).filter(usable).min_by_key(IpAddr::is_ipv6)
}

/// The interface of the default route with the least metric, from `/proc/net/route`.
fn default_interface(routes: &str) -> Option<&str> {
    routes
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (name, destination, metric) =
                (*fields.first()?, *fields.get(1)?, fields.get(6)?.parse::<u32>().ok()?);
            (destination == "00000000").then_some((metric, name))
        })
        .min_by_key(|(metric, _)| *metric)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_with_a_version_of_ip_has_a_loopback_of_it() {
        assert_eq!(choose_of(Family::V4, "lo"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(choose_of(Family::V4, "no-such-interface"), None);
        if network_bits_of(std::net::Ipv6Addr::LOCALHOST.into()).is_some() {
            assert_eq!(choose_of(Family::V6, "lo"), Some(std::net::Ipv6Addr::LOCALHOST.into()));
        }
    }

    #[test]
    fn the_default_route_with_the_least_metric_counts() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n\
                      mgmt\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                      slow\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\n\
                      wan0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\n";
        assert_eq!(default_interface(routes), Some("wan0"));
        assert_eq!(default_interface(""), None);
    }

    #[test]
    fn an_unknown_interface_is_named_with_what_there_is() {
        let error = choose("nonesuch0").expect_err("unknown").to_string();
        assert!(error.contains("`nonesuch0`") && error.contains("lo (127.0.0.1)"), "{error}");
        assert_eq!(choose("lo").expect("every host has one"), IpAddr::from(Ipv4Addr::LOCALHOST));
        assert_eq!(choose("127.0.0.1").expect("by address"), IpAddr::from(Ipv4Addr::LOCALHOST));
    }
}
