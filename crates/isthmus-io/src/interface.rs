//! Chooses which of the host's addresses an endpoint uses.

use std::cell::OnceCell;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use if_addrs::Interface;
use isthmus_datagram::{LinkState, is_bridge, is_frames_only, link_state};

use crate::route_query;

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The version of an address.
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
        /// The interfaces of this host.
        present: String,
    },
    /// The setting names an interface that has no address without a zone.
    #[error(
        "interface `{0}` has only link-local IPv6 addresses, which need a zone. Give it another address, or correct \
         the setting `interface`"
    )]
    LinkLocal(String),
    /// Too many rails, or rails with a transport that uses one interface.
    #[error(
        "`rails` takes at most 3 interfaces, and none where `transport` is ethernet; correct one of the two"
    )]
    Rails,
    /// It carries no frames.
    #[error(transparent)]
    Ethernet(#[from] isthmus_datagram::EthernetError),
}

/// An address of this host, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The address.
    pub ip: IpAddr,
    /// The interface that has it; empty if the system lists none.
    pub interface: String,
    /// Why.
    pub why: Why,
}

/// Why an interface was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The setting `interface` names it.
    Named,
    /// The kernel sends packets to other networks from its address. They may leave by another interface: hosts that
    /// announce their routes themselves have their address on the loopback interface.
    Route,
    /// The kernel has no route to other networks; this one is up and has a carrier.
    Carrier,
    /// The interface by which the kernel's route to other networks leaves has no carrier; this one has.
    RouteDown,
    /// Nothing else is up.
    Loopback,
    /// What else is up has only link-local IPv6 addresses.
    LinkLocalOnly,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "the setting `interface` names it",
            Self::Route => "the kernel sends packets to other networks from its address",
            Self::Carrier => "it is up and has a carrier, and no route leads to other networks",
            Self::RouteDown => {
                "it is up and has a carrier, and the interface of the kernel's route to other networks has none"
            }
            Self::Loopback => "no other interface is up and has a carrier",
            Self::LinkLocalOnly => {
                "the other interfaces that are up have only link-local IPv6 addresses, which need a zone"
            }
        })
    }
}

/// The kernel's state of routes and links.
trait Kernel {
    /// The address of this host from which packets to `to` are sent; `None` if there is no route.
    fn source_to(&self, to: IpAddr) -> Option<IpAddr>;
    fn link(&self, interface: &str) -> LinkState;
    /// Whether it is a hardware device, not a bridge, a tunnel or another virtual interface.
    fn is_device(&self, interface: &str) -> bool;
    /// Whether it is a bridge, such as those of containers and virtual machines.
    fn is_bridge(&self, interface: &str) -> bool;
    /// How long the address stays.
    fn lasts(&self, ip: Ipv6Addr) -> Lasting;
}

/// How long an IPv6 address stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lasting {
    Yes,
    /// A privacy address, which is replaced after a day or so (RFC 8981).
    Temporary,
    /// It is about to leave, so new connections should not use it (RFC 4862).
    Deprecated,
    /// Nothing can be sent from it: the kernel does not know yet that no other host has it, or one has it.
    Unusable,
}

/// The kernel of this host.
#[derive(Default)]
struct Host {
    /// Its table of IPv6 addresses, once something of it was asked.
    addresses: OnceCell<String>,
}

impl Kernel for Host {
    fn source_to(&self, to: IpAddr) -> Option<IpAddr> {
        source_to(to)
    }

    fn link(&self, interface: &str) -> LinkState {
        link_state(interface)
    }

    fn is_device(&self, interface: &str) -> bool {
        Path::new("/sys/class/net").join(interface).join("device").exists()
    }

    fn is_bridge(&self, interface: &str) -> bool {
        is_bridge(interface)
    }

    fn lasts(&self, ip: Ipv6Addr) -> Lasting {
        let read = || std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        lasts(self.addresses.get_or_init(read), ip)
    }
}

/// Flags of IPv6 addresses (`IFA_F_TEMPORARY` and so on of `if_addr.h`).
const TEMPORARY: u32 = 0x01;
const OPTIMISTIC: u32 = 0x04;
const FAILED: u32 = 0x08;
const DEPRECATED: u32 = 0x20;
const TENTATIVE: u32 = 0x40;

/// Reads how long an address lasts from the kernel's table of IPv6 addresses. An address that is not there lasts.
fn lasts(table: &str, ip: Ipv6Addr) -> Lasting {
    let flags = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = u128::from_str_radix(fields.first()?, 16) == Ok(ip.to_bits());
        is_it.then(|| u32::from_str_radix(fields.get(4)?, 16).ok()).flatten()
    });
    match flags.unwrap_or(0) {
        // An optimistic address is usable before the kernel knows (RFC 4429).
        flags if flags & FAILED != 0 || flags & (TENTATIVE | OPTIMISTIC) == TENTATIVE => Lasting::Unusable,
        flags if flags & DEPRECATED != 0 => Lasting::Deprecated,
        flags if flags & TEMPORARY != 0 => Lasting::Temporary,
        _ => Lasting::Yes,
    }
}

/// The address of this host from which the kernel sends packets to `to`; `None` if it has no route there.
///
/// The kernel looks the route up as for any packet: by policy, prefix length and metric, for both versions of IP.
/// Connecting a UDP socket makes it do that and sends nothing. If all local ports are taken, netlink tells the same;
/// containers may forbid it.
pub fn source_to(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = match UdpSocket::bind((any, 0)) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return route_query::source_to(to),
        Err(_) => return None,
    };
    // The port does not matter; 9 is "discard".
    socket.connect((to, 9)).ok()?;
    socket.local_addr().ok().map(|at| at.ip())
}

/// Addresses whose route is that to "everywhere else". There are two of each version of IP: some hosts have no route to
/// the addresses for documentation (RFC 5737), and some tunnels take one half of all addresses.
const ELSEWHERE: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)),
    IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 0xfe)),
];

/// The address to listen on: that of the interface `wanted` (a name or an address), or
/// with an empty `wanted` the one that the kernel reaches other networks from, else the first
/// that has a carrier, else loopback.
pub(crate) fn choose(wanted: &str) -> Result<Chosen, InterfaceError> {
    let all = if_addrs::get_if_addrs().map_err(InterfaceError::List)?;
    pick(&all, &Host::default(), wanted)
}

/// The interface's name without the label that IPv4 addresses may have: "eth0" of "eth0:1". Services that move between
/// hosts label their addresses. The system lists each address by its label, and has no interface of that name.
pub(crate) fn device_of(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
}

/// The interface that has this address. Several may have one, as where links have no addresses of their own. Then one
/// whose link is up comes first, and the loopback interface last.
fn holder<'a>(all: &'a [Interface], kernel: &impl Kernel, ip: IpAddr) -> Option<&'a Interface> {
    let rank = |one: &&Interface| {
        let name = device_of(&one.name);
        (name == "lo", kernel.link(name) != LinkState::Up)
    };
    all.iter().filter(|one| one.ip() == ip).min_by_key(rank)
}

/// Like [`choose`], for an address of one family; `None` if the host has none.
pub(crate) fn choose_of(family: Family, wanted: &str) -> Option<IpAddr> {
    let mut all = if_addrs::get_if_addrs().ok()?;
    all.retain(|interface| Family::of(interface.ip()) == family);
    let chosen = pick(&all, &Host::default(), wanted).ok()?;
    all.iter().any(|interface| interface.ip() == chosen.ip).then_some(chosen.ip)
}

/// The interface of the host that has this address.
pub fn interface_of(ip: IpAddr) -> Option<String> {
    let all = if_addrs::get_if_addrs().ok()?;
    holder(&all, &Host::default(), ip).map(|found| device_of(&found.name).to_owned())
}

/// The largest IP packet that the interface with this address carries. Bytes.
pub(crate) fn mtu_at(ip: IpAddr) -> Option<u32> {
    interface_of(ip).and_then(|name| isthmus_datagram::mtu_of(&name).ok())
}

/// The prefix length of the network of an address of this host; `None` if the host has no such address. Bits.
pub fn network_bits_of(ip: IpAddr) -> Option<u8> {
    let all = if_addrs::get_if_addrs().ok()?;
    let found = all.into_iter().find(|interface| interface.ip() == ip)?;
    Some(match found.addr {
        if_addrs::IfAddr::V4(v4) => v4.prefixlen,
        if_addrs::IfAddr::V6(v6) => v6.prefixlen,
    })
}

/// Why nothing can be sent by this interface from this address, and what to do; `None` if the system knows of no
/// trouble.
pub fn interface_trouble(interface: &str, ip: IpAddr) -> Option<String> {
    let holder = interface_of(ip);
    // It may have another name since, its address may have moved, or another link that has it may be up.
    let interface = holder.as_deref().unwrap_or(interface);
    let state = link_state(interface);
    let has_left = || !isthmus_datagram::is_frames_only(ip) && holder.is_none();
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

fn pick<'a>(all: &'a [Interface], kernel: &impl Kernel, wanted: &str) -> Result<Chosen, InterfaceError> {
    let chosen =
        |found: &Interface, why| Chosen { ip: found.ip(), interface: device_of(&found.name).to_owned(), why };
    let by_preference = |found: &mut dyn Iterator<Item = &'a Interface>| by_preference(found, kernel);
    if !wanted.is_empty() {
        let named =
            |i: &&Interface| i.name == wanted || device_of(&i.name) == wanted || wanted.parse() == Ok(i.ip());
        let found =
            by_preference(&mut all.iter().filter(named)).ok_or_else(|| unusable(all, wanted, &named))?;
        return Ok(chosen(found, Why::Named));
    }
    let has_link = |i: &&Interface| !i.is_loopback() && kernel.link(device_of(&i.name)) == LinkState::Up;
    let is_usable = |ip: IpAddr| !matches!(ip, IpAddr::V6(ip) if kernel.lasts(ip) == Lasting::Unusable);
    let is_up = |i: &&Interface| has_link(i) && is_usable(i.ip());
    let routed = ELSEWHERE.iter().find_map(|to| holder(all, kernel, kernel.source_to(*to)?).filter(is_up));
    if let Some(found) = routed {
        return Ok(chosen(found, Why::Route));
    }
    let travels = |i: &&Interface| is_up(i) && !is_link_local_v4(i.ip());
    let is_device = |i: &&Interface| kernel.is_device(device_of(&i.name));
    let is_no_bridge = |i: &&Interface| !kernel.is_bridge(device_of(&i.name));
    let by_device = by_preference(&mut all.iter().filter(travels).filter(is_device));
    let by_other = || by_preference(&mut all.iter().filter(travels).filter(is_no_bridge));
    let by_bridge = || by_preference(&mut all.iter().filter(travels));
    let by_any = || by_preference(&mut all.iter().filter(is_up));
    // Nothing can be sent from what remains yet, such as a tentative address while the host starts. To listen there
    // fails, so the user hears of it.
    let by_unready = || by_preference(&mut all.iter().filter(has_link));
    let found = by_device.or_else(by_other).or_else(by_bridge).or_else(by_any).or_else(by_unready);
    if let Some(found) = found {
        // The kernel names an interface without a carrier, too.
        let has_route = ELSEWHERE.iter().any(|to| {
            let source = kernel.source_to(*to);
            all.iter().any(|i| !i.is_loopback() && Some(i.ip()) == source)
        });
        return Ok(chosen(found, if has_route { Why::RouteDown } else { Why::Carrier }));
    }
    let why = if all.iter().any(|i| has_link(&i)) { Why::LinkLocalOnly } else { Why::Loopback };
    let own = by_preference(&mut all.iter().filter(|i| i.is_loopback()));
    let nothing = Chosen { ip: Ipv4Addr::LOCALHOST.into(), interface: String::new(), why };
    Ok(own.map_or(nothing, |found| chosen(found, why)))
}

/// Why `wanted`, which these interfaces are, names no address to use.
fn unusable(all: &[Interface], wanted: &str, named: &dyn Fn(&&Interface) -> bool) -> InterfaceError {
    if all.iter().any(|i| named(&i)) {
        return InterfaceError::LinkLocal(wanted.to_owned());
    }
    let present = all.iter().map(|i| format!("{} ({})", i.name, i.ip())).collect::<Vec<_>>().join(", ");
    InterfaceError::Unknown { wanted: wanted.to_owned(), present }
}

/// Whether it is an IPv4 address that no router forwards (169.254.0.0/16). Servers have such an address at the
/// interface of their management controller, for example.
fn is_link_local_v4(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(v4) if v4.is_link_local())
}

/// IPv4 before IPv6, and link-local IPv4 last. Link-local IPv6 addresses need a scope and do not travel. Of IPv6
/// addresses, those that last come first.
fn by_preference<'a>(
    interfaces: &mut dyn Iterator<Item = &'a Interface>,
    kernel: &impl Kernel,
) -> Option<&'a Interface> {
    let lasts = |ip: IpAddr| match ip {
        IpAddr::V4(_) => Some(Lasting::Yes),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => None,
        IpAddr::V6(ip) => Some(kernel.lasts(ip)),
    };
    let usable = interfaces.filter_map(|i| Some((lasts(i.ip())?, i)));
    let best = usable.min_by_key(|(lasting, i)| (is_link_local_v4(i.ip()), i.ip().is_ipv6(), *lasting));
    best.map(|(_, found)| found)
}

/// All addresses of the host, of the same version of IP.
pub(crate) fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The address for TCP instead of an own address. An address of an interface without IP is only reachable within the
/// host, so TCP uses loopback for it.
pub(crate) fn for_tcp(own: SocketAddr) -> SocketAddr {
    if is_frames_only(own.ip()) { SocketAddr::new(Ipv4Addr::LOCALHOST.into(), own.port()) } else { own }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn every_host_with_a_version_of_ip_has_a_loopback_of_it() {
        assert_eq!(choose_of(Family::V4, "lo"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(choose_of(Family::V4, "no-such-interface"), None);
        if network_bits_of(std::net::Ipv6Addr::LOCALHOST.into()).is_some() {
            assert_eq!(choose_of(Family::V6, "lo"), Some(std::net::Ipv6Addr::LOCALHOST.into()));
        }
    }

    /// A made-up kernel with these routes and links.
    #[derive(Default)]
    struct Made {
        /// Source addresses of packets to other networks, for each version of IP.
        v4: Option<&'static str>,
        v6: Option<&'static str>,
        down: &'static [&'static str],
        bare: &'static [&'static str],
        devices: &'static [&'static str],
        bridges: &'static [&'static str],
        /// IPv6 addresses that do not simply last.
        lasting: &'static [(&'static str, Lasting)],
    }

    impl Kernel for Made {
        fn source_to(&self, to: IpAddr) -> Option<IpAddr> {
            let source = if to.is_ipv4() { self.v4 } else { self.v6 };
            source.map(|ip| ip.parse().expect("an address"))
        }

        fn link(&self, interface: &str) -> LinkState {
            match (self.down.contains(&interface), self.bare.contains(&interface)) {
                (true, _) => LinkState::Down,
                (_, true) => LinkState::NoCarrier,
                _ => LinkState::Up,
            }
        }

        fn is_device(&self, interface: &str) -> bool {
            self.devices.contains(&interface)
        }

        fn is_bridge(&self, interface: &str) -> bool {
            self.bridges.contains(&interface)
        }

        fn lasts(&self, ip: Ipv6Addr) -> Lasting {
            let found = self.lasting.iter().find(|(other, _)| *other == ip.to_string());
            found.map_or(Lasting::Yes, |(_, lasting)| *lasting)
        }
    }

    /// An interface with this address.
    pub(crate) fn interface(name: &str, ip: &str) -> Interface {
        let addr = match ip.parse().expect("an address") {
            IpAddr::V4(ip) => if_addrs::IfAddr::V4(if_addrs::Ifv4Addr {
                ip,
                netmask: Ipv4Addr::new(255, 255, 255, 0),
                prefixlen: 24,
                broadcast: None,
            }),
            IpAddr::V6(ip) => if_addrs::IfAddr::V6(if_addrs::Ifv6Addr {
                ip,
                netmask: Ipv6Addr::UNSPECIFIED,
                prefixlen: 64,
                broadcast: None,
            }),
        };
        Interface { name: name.to_owned(), addr, index: None }
    }

    fn picked(all: &[(&str, &str)], kernel: &Made) -> (String, Why) {
        let lo = interface("lo", "127.0.0.1");
        let all: Vec<_> =
            std::iter::once(lo).chain(all.iter().map(|(name, ip)| interface(name, ip))).collect();
        let chosen = pick(&all, kernel, "").expect("one is always found");
        (chosen.ip.to_string(), chosen.why)
    }

    #[test]
    fn a_bridge_without_a_carrier_that_comes_first_is_not_taken() {
        let all = [("docker0", "172.17.0.1"), ("virbr0", "192.168.122.1"), ("ib0", "10.1.0.1")];
        for kernel in [
            Made { bare: &["docker0", "virbr0"], ..Made::default() },
            Made { down: &["docker0", "virbr0"], ..Made::default() },
            // They are up, as containers run: a device goes before them.
            Made { devices: &["ib0"], ..Made::default() },
            // A bridge that never had a port has a carrier, as far as the kernel says.
            Made { bridges: &["docker0", "virbr0"], ..Made::default() },
        ] {
            assert_eq!(picked(&all, &kernel), ("10.1.0.1".to_owned(), Why::Carrier));
        }
        // The kernel still has a route by an interface that lost its carrier.
        let lost = Made { v4: Some("172.17.0.1"), bare: &["docker0", "virbr0"], ..Made::default() };
        assert_eq!(picked(&all, &lost), ("10.1.0.1".to_owned(), Why::RouteDown));
        let only = Made { down: &["ib0", "virbr0"], bridges: &["docker0"], ..Made::default() };
        assert_eq!(picked(&all, &only), ("172.17.0.1".to_owned(), Why::Carrier), "a host may have no other");
        let all_down = Made { down: &["docker0", "virbr0"], bare: &["ib0"], ..Made::default() };
        assert_eq!(picked(&all, &all_down), ("127.0.0.1".to_owned(), Why::Loopback));
    }

    #[test]
    fn link_local_addresses_come_last() {
        let server = [("usb0", "169.254.3.1"), ("bond0", "10.1.0.1"), ("eth0", "fd00::1")];
        for (all, expected) in
            [(&server[..], "fd00::1"), (&server[..2], "10.1.0.1"), (&server[..1], "169.254.3.1")]
        {
            let kernel = Made { devices: &["usb0", "eth0"], ..Made::default() };
            assert_eq!(picked(all, &kernel), (expected.to_owned(), Why::Carrier));
        }
        let error = pick(&[interface("eth0", "fe80::1")], &Made::default(), "eth0").expect_err("no address");
        assert!(error.to_string().contains("`eth0` has only link-local IPv6"), "{error}");
        let only = picked(&[("eth0", "fe80::1")], &Made::default());
        assert_eq!(only, ("127.0.0.1".to_owned(), Why::LinkLocalOnly));
    }

    #[test]
    fn the_kernels_route_decides_of_whichever_version_of_ip() {
        let all = [("eth0", "10.1.0.1"), ("tun0", "10.8.0.2"), ("eth1", "fd00::1"), ("eth1", "10.2.0.1")];
        // A VPN with 0.0.0.0/1 and 128.0.0.0/1 goes before a default route, which the kernel knows.
        let vpn = Made { v4: Some("10.8.0.2"), devices: &["eth0"], ..Made::default() };
        assert_eq!(picked(&all, &vpn), ("10.8.0.2".to_owned(), Why::Route));
        let v6 = Made { v6: Some("fd00::1"), ..Made::default() };
        assert_eq!(picked(&all, &v6), ("fd00::1".to_owned(), Why::Route));
        let v4 = Made { v4: Some("10.2.0.1"), v6: Some("fd00::1"), ..Made::default() };
        assert_eq!(picked(&all, &v4), ("10.2.0.1".to_owned(), Why::Route));
    }

    #[test]
    fn an_address_that_links_share_with_the_loopback_interface_is_of_a_link() {
        let all = [("lo:0", "10.255.0.7"), ("swp1", "10.255.0.7"), ("swp2", "10.255.0.7")];
        let kernel = Made { v4: Some("10.255.0.7"), down: &["swp1"], ..Made::default() };
        let shared = all.map(|(name, ip)| interface(name, ip));
        let chosen = pick(&shared, &kernel, "").expect("one is up");
        assert_eq!((&chosen.interface[..], chosen.why), ("swp2", Why::Route));
        assert_eq!(picked(&all[..1], &kernel), ("10.255.0.7".to_owned(), Why::Route));
    }

    #[test]
    fn an_address_with_a_label_belongs_to_its_interface() {
        let all = [("docker0", "172.17.0.1"), ("eth0:vip", "10.1.0.1")];
        let kernel = Made { devices: &["eth0"], bridges: &["docker0"], ..Made::default() };
        assert_eq!(picked(&all, &kernel), ("10.1.0.1".to_owned(), Why::Carrier));
        let all = all.map(|(name, ip)| interface(name, ip));
        for wanted in ["", "eth0", "eth0:vip", "10.1.0.1"] {
            let chosen = pick(&all, &kernel, wanted).expect("it is there");
            assert_eq!((chosen.ip.to_string(), chosen.interface), ("10.1.0.1".to_owned(), "eth0".to_owned()));
        }
    }

    #[test]
    fn ipv6_addresses_that_last_are_taken_before_those_that_leave_or_cannot_be_used() {
        const LASTING: &[(&str, Lasting)] = &[
            ("fd00::1", Lasting::Unusable),
            ("fd00::2", Lasting::Deprecated),
            ("fd00::3", Lasting::Temporary),
        ];
        let kernel = Made { lasting: LASTING, ..Made::default() };
        let all = ["fd00::1", "fd00::2", "fd00::3", "fd00::4"].map(|ip| ("eth0", ip));
        let best = |count: usize| picked(&all[..count], &kernel).0;
        assert_eq!([4, 3, 2].map(best), ["fd00::4", "fd00::3", "fd00::2"]);
        // To listen there fails, which is better than to listen where nobody comes.
        assert_eq!(picked(&all[..1], &kernel), ("fd00::1".to_owned(), Why::Carrier));
    }

    #[test]
    fn the_kernels_table_tells_how_long_an_address_lasts() {
        const TABLE: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000010 02 40 00 a0     eth0
20010db8000000000000000000000020 02 40 00 40     eth0
20010db8000000000000000000000030 02 40 00 48     eth0
20010db8000000000000000000000040 02 40 00 01     eth0
20010db8000000000000000000000050 02 40 00 44     eth0
";
        let found = |end: &str| lasts(TABLE, format!("2001:db8::{end}").parse().expect("an address"));
        assert_eq!(found("10"), Lasting::Deprecated);
        assert_eq!(["20", "30"].map(found), [Lasting::Unusable; 2], "another host may have it");
        assert_eq!(found("40"), Lasting::Temporary);
        assert_eq!(["50", "99"].map(found), [Lasting::Yes; 2]);
    }

    #[test]
    fn the_kernel_tells_where_packets_are_sent_from() {
        assert_eq!(source_to(Ipv4Addr::new(127, 1, 2, 3).into()), Some(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn an_unknown_interface_is_named_with_what_there_is() {
        let error = choose("nonesuch0").expect_err("unknown").to_string();
        assert!(error.contains("`nonesuch0`") && error.contains("lo (127.0.0.1)"), "{error}");
        assert_eq!(choose("lo").expect("every host has one").ip, IpAddr::from(Ipv4Addr::LOCALHOST));
        let by_address = choose("127.0.0.1").expect("by address");
        assert_eq!((by_address.ip, by_address.why), (IpAddr::from(Ipv4Addr::LOCALHOST), Why::Named));
    }
}
