//! Asks the kernel whether a route leads to a host by one interface, for packets from one address (rtnetlink(7)).
//!
//! The answer follows the rules and tables that hold for this source (`ip rule`), and knows all interfaces of a route
//! that is split between several. The tables in `/proc` have neither.

use std::io;
use std::net::IpAddr;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// `RTM_NEWROUTE` and `RTM_GETROUTE` of `rtnetlink.h`.
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `RTM_F_FIB_MATCH`: the answer is an entry of a table. Without it the kernel answers that a host is in the network of
/// any interface that no entry covers.
const FIB_MATCH: u32 = 0x2000;
/// `RTA_DST`, `RTA_SRC` and `RTA_OIF`.
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const INTERFACE: u16 = 4;
/// Length of the headers of a request. Bytes.
const HEADERS: usize = 28;

/// Whether a route leads to `host` by the interface with this index, for packets from `source`. False if the kernel does
/// not say, as in containers that forbid such questions.
pub(super) fn leads(host: IpAddr, source: IpAddr, index: u32) -> bool {
    ask(&question(host, source, index)).unwrap_or(false)
}

fn question(host: IpAddr, source: IpAddr, index: u32) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (to, from) = (octets(host), octets(source));
    let family = if host.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut out = Vec::with_capacity(HEADERS + 48);
    // The header of the message: length (below), type, flags, number and sender.
    out.extend([0; 4]);
    out.extend(GET_ROUTE.to_ne_bytes());
    out.extend(REQUEST.to_ne_bytes());
    out.extend([0; 8]);
    // The header of the route: family, lengths of destination and source in bits, six fields that are not used, flags.
    out.extend([family.as_raw() as u8, to.len() as u8 * 8, from.len() as u8 * 8]);
    out.extend([0; 5]);
    out.extend(FIB_MATCH.to_ne_bytes());
    for (kind, value) in [(DESTINATION, &to[..]), (SOURCE, &from), (INTERFACE, &index.to_ne_bytes())] {
        out.extend((value.len() as u16 + 4).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(value);
    }
    let len = out.len() as u32;
    out[..4].copy_from_slice(&len.to_ne_bytes());
    out
}

fn ask(question: &[u8]) -> io::Result<bool> {
    // No protocol means NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, question, SendFlags::empty())?;
    // The kernel has answered when `send` returns.
    let mut answer = [0_u8; 4096];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    Ok(len >= 6 && u16::from_ne_bytes([answer[4], answer[5]]) == NEW_ROUTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_leads_to_itself_and_nowhere_else() {
        let lo = 1;
        let of = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(leads(of("127.0.0.1"), of("127.0.0.1"), lo));
        // RFC 5737: for documentation. No entry leads there by the loopback.
        assert!(!leads(of("198.51.100.77"), of("127.0.0.1"), lo));
    }
}
