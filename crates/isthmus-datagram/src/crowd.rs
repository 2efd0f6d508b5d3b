//! Which connection is closed if too many wait that have not proved who they are.
//!
//! A host may have many IPv6 addresses, and a site many /64 networks of them (RFC 6177). Most sites have a /48 at most.
//! So the /48 with the most connections loses one, of its /64 network with the most, and there of the address with the
//! most. The oldest of these goes. A crowd displaces only itself, and hardly touches honest hosts of its own network or
//! site.

use std::net::{IpAddr, Ipv6Addr};

/// Bits of an IPv6 address that all hosts of a site have in common.
const SITE_BITS: u32 = 48;
/// Bits of an IPv6 address that all hosts of a network have in common.
const NETWORK_BITS: u32 = 64;
/// Bits of an IPv6 address.
const ADDRESS_BITS: u32 = 128;

/// The first `bits` of an IPv6 address. A host has few IPv4 addresses, so these are left whole.
fn prefix(ip: IpAddr, bits: u32) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (ADDRESS_BITS - bits))).into(),
        IpAddr::V4(_) => ip,
    }
}

/// The connection that is closed, among these with the hosts that they came from, the oldest first. `None`: there are
/// none. A connection whose host is not known counts as one of a network of its own, which all such connections share.
pub fn displaced<T>(connections: impl Iterator<Item = (T, Option<IpAddr>)>) -> Option<T> {
    let mut left: Vec<_> =
        connections.map(|(which, host)| (which, host.map(|ip| ip.to_canonical()))).collect();
    for bits in [SITE_BITS, NETWORK_BITS, ADDRESS_BITS] {
        let of = |host: Option<IpAddr>| host.map(|ip| prefix(ip, bits));
        let mut sorted: Vec<_> = left.iter().map(|(_, host)| of(*host)).collect();
        sorted.sort_unstable();
        let most = sorted.chunk_by(|one, next| one == next).map(<[_]>::len).max()?;
        let first = |key: Option<IpAddr>| sorted.partition_point(|other| *other < key);
        left.retain(|(_, host)| {
            let key = of(*host);
            sorted.get(first(key) + most - 1) == Some(&key)
        });
    }
    left.into_iter().next().map(|(which, _)| which)
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
        displaced(hosts.iter().copied().enumerate())
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
    fn a_crowd_from_many_networks_of_a_site_displaces_itself() {
        let at = |network: u16| -> Option<IpAddr> {
            Some(Ipv6Addr::new(0x2001, 0xdb8, 9, network, 0, 0, 0, 1).into())
        };
        let honest = [v6(1, 1), v6(1, 1), v6(2, 1), v4(1), v4(1)];
        let hosts: Vec<_> = honest.into_iter().chain((0..1000).map(at)).chain([at(7)]).collect();
        assert_eq!(goes(&hosts), Some(honest.len() + 7), "of its site the network that has the most");
    }

    #[test]
    fn an_ipv4_address_is_no_network_however_it_is_written() {
        let mapped = |last: u8| Some(Ipv6Addr::from_bits(0xffff_0a00_0000 | u128::from(last)).into());
        assert_eq!(goes(&[v4(1), mapped(2), mapped(3), mapped(3)]), Some(2));
        assert_eq!(goes(&[v4(1), v4(2), mapped(2)]), Some(1));
    }
}
