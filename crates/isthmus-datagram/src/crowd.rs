//! Which connection is closed if too many wait that have not proved who they are.
//!
//! A host may have many IPv6 addresses, but rarely more than one /64 network (RFC 6177). So the network with the most
//! connections loses one of the address that has the most in it, the oldest first. A crowd from one host displaces only
//! itself, and hardly touches honest hosts of its own network.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// The network that one host may have for itself: a /64 network of IPv6, a single address of IPv4.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// Index of the connection that is closed, among those that came from these hosts, the oldest first. `None`: there are
/// none. A connection whose host is not known counts as one of a network of its own, which all such connections share.
pub fn displaced(hosts: impl Iterator<Item = Option<IpAddr>> + Clone) -> Option<usize> {
    let (mut networks, mut addresses) = (HashMap::new(), HashMap::new());
    for host in hosts.clone() {
        *networks.entry(host.map(network)).or_insert(0_usize) += 1;
        *addresses.entry(host).or_insert(0_usize) += 1;
    }
    let count = |host: &Option<IpAddr>| (networks.get(&host.map(network)), addresses.get(host));
    let most = hosts.clone().map(|host| count(&host)).max()?;
    hosts.into_iter().position(|host| count(&host) == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(network: u16, host: u16) -> Option<IpAddr> {
        Some(Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host).into())
    }

    fn v4(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    fn goes(hosts: &[Option<IpAddr>]) -> Option<usize> {
        displaced(hosts.iter().copied())
    }

    #[test]
    fn the_address_with_the_most_loses_its_oldest() {
        assert_eq!(goes(&[]), None);
        assert_eq!(goes(&[v4(1), v4(2), v4(3), v4(2)]), Some(1));
        assert_eq!(goes(&[v4(1), v4(2), v4(3)]), Some(0), "of equals the oldest");
        assert_eq!(goes(&[v4(1), None, None]), Some(1));
    }

    #[test]
    fn a_host_with_a_network_of_its_own_displaces_itself() {
        let crowd = (1..=1000).map(|host| v6(7, host));
        let hosts: Vec<_> = [v6(1, 1), v4(1)].into_iter().chain(crowd).collect();
        assert_eq!(goes(&hosts), Some(2));
    }

    #[test]
    fn a_crowd_from_one_address_spares_the_rest_of_its_network() {
        let hosts = [v6(7, 1), v6(7, 2), v6(7, 3), v6(7, 2), v6(1, 1), v6(1, 1)];
        assert_eq!(goes(&hosts), Some(1));
    }

    #[test]
    fn an_ipv4_address_is_no_network_however_it_is_written() {
        let mapped = |last: u8| Some(Ipv6Addr::from_bits(0xffff_0a00_0000 | u128::from(last)).into());
        assert_eq!(goes(&[v4(1), mapped(2), mapped(3), mapped(3)]), Some(2));
    }
}
