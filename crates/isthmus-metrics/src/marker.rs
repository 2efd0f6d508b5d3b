//! Markers of the addresses of this host at which daemons tell of themselves.
//!
//! A marker is a Unix socket in the abstract namespace (unix(7)), whose name has the address. The kernel lists these
//! names, and removes a marker when its process ends. Nobody connects to a marker.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

const NAME: &str = "isthmus-status-";
/// The kernel's list of Unix sockets of this network namespace. The names of the abstract namespace begin with "@".
const LIST: &str = "/proc/net/unix";
/// Most addresses that are read from that list. Count; any process can add names.
const MARKED_MAX: usize = 256;

/// Marks `address` as long as the marker lives.
pub(crate) fn mark(address: SocketAddr) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(format!("{NAME}{address}"))?)
}

/// The marked addresses of this network namespace, in order. An address without a host becomes one on loopback.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn marked() -> io::Result<Vec<SocketAddr>> {
    Ok(in_list(&std::fs::read_to_string(LIST)?))
}

fn in_list(list: &str) -> Vec<SocketAddr> {
    let named = |line: &str| {
        line.split_whitespace().last()?.strip_prefix('@')?.strip_prefix(NAME)?.parse::<SocketAddr>().ok()
    };
    let near = |mut address: SocketAddr| {
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        address
    };
    let mut found: Vec<_> = list.lines().filter_map(named).map(near).take(MARKED_MAX).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_marked_until_its_marker_goes() {
        let address = SocketAddr::from(([127, 7, 7, 7], std::process::id() as u16));
        let marker = mark(address).expect("free");
        assert!(marked().expect("the kernel lists it").contains(&address));
        drop(marker);
        assert!(!marked().expect("the kernel lists it").contains(&address));
    }

    #[test]
    fn other_names_are_passed_over() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n\
                    0: 2 0 10000 0001 01 1 @isthmus-status-0.0.0.0:9410\n\
                    0: 2 0 10000 0001 01 2 @isthmus-status-[::1]:9411\n\
                    0: 2 0 10000 0001 01 3 @isthmus-status-\u{1b}[2J\n\
                    0: 2 0 10000 0001 01 4 /run/isthmus-status-127.0.0.1:1\n\
                    0: 2 0 10000 0001 01 5 @isthmus-state-7-0\n\
                    0: 2 0 10000 0001 01 6\n";
        let found: Vec<_> = in_list(list).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["127.0.0.1:9410", "[::1]:9411"]);
    }
}
