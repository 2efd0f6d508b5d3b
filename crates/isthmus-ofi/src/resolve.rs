//! Converts addresses that users type, and socket addresses, to our addresses. They have no incarnation, so they are
//! wildcards: they stand for whichever endpoint listens there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use isthmus_wire::Address;

use crate::error::Error;

/// The address that a node and a service name. `numeric`: no name look-up.
pub(crate) fn resolve(node: Option<&str>, service: Option<&str>, numeric: bool) -> Result<Address, Error> {
    if let Some(uri) = node.filter(|node| node.contains("://")) {
        return uri.parse().map_err(|error| Error::InvalidText(format!("{error}")));
    }
    let port = service.map_or(Ok(0), port)?;
    let ip = match node {
        None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Some(node) => host(node, numeric)?,
    };
    Ok(Address::from(SocketAddr::new(ip, port)))
}

fn port(service: &str) -> Result<u16, Error> {
    service.parse().map_err(|_| {
        Error::InvalidText(format!("`{service}` is not a port; expected a number from 0 to 65535"))
    })
}

fn host(node: &str, numeric: bool) -> Result<IpAddr, Error> {
    if let Ok(ip) = node.trim_matches(['[', ']']).parse() {
        return Ok(ip);
    }
    if numeric {
        return Err(Error::NotFound(format!("`{node}` is not a numeric address")));
    }
    let found = (node, 0).to_socket_addrs();
    let found = found.map_err(|cause| Error::NotFound(format!("no address of host `{node}`: {cause}")))?;
    let all: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let first = all.iter().find(|ip| ip.is_ipv4()).or_else(|| all.first());
    first.copied().ok_or_else(|| Error::NotFound(format!("host `{node}` has no address")))
}

/// The address in `bytes`: ours, or a `sockaddr_in` or `sockaddr_in6`.
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Address, Error> {
    match sockaddr(bytes) {
        Some(locator) => Ok(Address::from(locator)),
        None => Address::from_bytes(bytes).map_err(|error| Error::InvalidText(error.to_string())),
    }
}

/// A `sockaddr_in` or `sockaddr_in6`: family in the host's order, then port, then address.
pub(crate) fn sockaddr(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    if i32::from(family) == libc::AF_INET {
        let octets: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
        return Some(SocketAddr::new(Ipv4Addr::from(octets).into(), port));
    }
    if i32::from(family) == libc::AF_INET6 {
        let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
        return Some(SocketAddr::new(Ipv6Addr::from(octets).into(), port));
    }
    None
}

/// The bytes of an address: a socket address if the program asked for those (`sockets`), which stands for whichever
/// endpoint listens there; else our whole address.
pub(crate) fn to_bytes(address: Address, sockets: bool) -> Vec<u8> {
    if !sockets {
        return address.to_bytes().to_vec();
    }
    let (family, len) = match address.locator {
        SocketAddr::V4(_) => (libc::AF_INET, size_of::<libc::sockaddr_in>()),
        SocketAddr::V6(_) => (libc::AF_INET6, size_of::<libc::sockaddr_in6>()),
    };
    let mut bytes = vec![0; len];
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.locator.port().to_be_bytes());
    match address.locator.ip() {
        IpAddr::V4(ip) => bytes[4..8].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[8..24].copy_from_slice(&ip.octets()),
    }
    bytes
}

/// The `nth` neighbour of a node (`fi_av_insertsym`): its IP address, or the number at the end of its name, plus `nth`.
pub(crate) fn neighbour(name: &str, nth: usize) -> Result<String, Error> {
    let beyond = || Error::InvalidText(format!("`{name}` has no {nth}th neighbour"));
    if nth == 0 {
        return Ok(name.to_owned());
    }
    if let Ok(ip) = name.parse::<Ipv4Addr>() {
        let step = u32::try_from(nth).map_err(|_| beyond())?;
        let next = u32::from(ip).checked_add(step).ok_or_else(beyond)?;
        return Ok(Ipv4Addr::from(next).to_string());
    }
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = name.split_at(name.len() - digits);
    let next = number.parse::<usize>().ok().and_then(|n| n.checked_add(nth)).ok_or_else(beyond)?;
    Ok(format!("{stem}{next:0digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_and_a_service_make_a_wildcard() {
        let address = resolve(Some("10.0.0.9"), Some("4000"), true).expect("an address");
        assert_eq!(address.to_string(), "isthmus://0.0/10.0.0.9:4000");
        assert!(address.is_wildcard());
    }

    #[test]
    fn uris_are_taken_whole() {
        let text = format!("isthmus://3.7/10.1.2.3:4567#deadbeef.{}", "7f".repeat(32));
        assert_eq!(resolve(Some(&text), Some("1"), false).expect("an address").uri(), text);
        assert!(resolve(Some("tcp://10.1.2.3"), None, false).is_err());
    }

    #[test]
    fn names_are_not_looked_up_where_numbers_are_promised() {
        assert!(matches!(resolve(Some("localhost"), None, true), Err(Error::NotFound(_))));
        assert!(resolve(Some("10.0.0.1"), Some("http"), false).is_err());
    }

    #[test]
    fn socket_addresses_are_understood() {
        let mut v4 = [0u8; 16];
        v4[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        v4[2..8].copy_from_slice(&[0x0f, 0xa0, 127, 0, 0, 1]);
        assert_eq!(from_bytes(&v4).expect("an address").locator.to_string(), "127.0.0.1:4000");
        assert!(from_bytes(&[7; 32]).is_err());
    }

    #[test]
    fn socket_addresses_come_back_as_they_were() {
        for text in ["127.0.0.1:4000", "[fd00::7]:4001"] {
            let locator: SocketAddr = text.parse().expect("an address");
            let bytes = to_bytes(Address { incarnation: 7, ..Address::from(locator) }, true);
            assert_eq!(from_bytes(&bytes).expect("an address"), Address::from(locator));
        }
        assert_eq!(to_bytes(Address::default(), false).len(), Address::LEN);
    }

    #[test]
    fn neighbours_count_on() {
        assert_eq!(neighbour("10.0.0.255", 1).expect("next"), "10.0.1.0");
        assert_eq!(neighbour("node09", 2).expect("next"), "node11");
        assert!(neighbour("node", 1).is_err());
    }
}
