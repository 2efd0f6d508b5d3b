//! Asks the kernel about routes (rtnetlink(7)): whether one leads to a host by one interface, for packets from one
//! address; and from which address packets to a host leave.
//!
//! The first answer follows the rules and tables that hold for this source (`ip rule`), and knows all interfaces of a route
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
/// `RTA_DST`, `RTA_SRC`, `RTA_OIF` and `RTA_PREFSRC`.
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const INTERFACE: u16 = 4;
const PREFERRED_SOURCE: u16 = 7;
/// Length of the headers of a message. Bytes.
const HEADERS: usize = 28;
/// Length of the head of an attribute: its length and its type. Bytes.
const ATTRIBUTE_HEAD: usize = 4;

/// Whether a route leads to `host` by the interface with this index, for packets from `source`. False if the kernel does
/// not say, as in containers that forbid such questions.
pub(crate) fn leads(host: IpAddr, source: IpAddr, index: u32) -> bool {
    let (from, index) = (octets(source), index.to_ne_bytes());
    let attributes = [(SOURCE, &from[..]), (INTERFACE, &index[..])];
    let question = question(host, from.len(), FIB_MATCH, &attributes);
    ask(&question).is_ok_and(|answer| is_route(&answer))
}

/// The address from which the kernel sends packets to `host`. `None` if no route leads there, or the kernel does not
/// say.
pub(crate) fn source_to(host: IpAddr) -> Option<IpAddr> {
    let answer = ask(&question(host, 0, 0, &[])).ok().filter(|answer| is_route(answer))?;
    let mut rest = answer.get(HEADERS..)?;
    while let Some((head, more)) = rest.split_first_chunk::<ATTRIBUTE_HEAD>() {
        let [len, kind] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_ne_bytes);
        let value = more.get(..usize::from(len).checked_sub(ATTRIBUTE_HEAD)?)?;
        if kind == PREFERRED_SOURCE {
            let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
            return v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok();
        }
        rest = more.get(value.len().next_multiple_of(4)..)?;
    }
    None
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// A question for the route to `host`. `source_bytes` is the length of the address among the attributes that packets
/// come from.
fn question(host: IpAddr, source_bytes: usize, flags: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let to = octets(host);
    let family = if host.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut out = Vec::with_capacity(HEADERS + 48);
    // The header of the message: length (below), type, flags, number and sender.
    out.extend([0; 4]);
    out.extend(GET_ROUTE.to_ne_bytes());
    out.extend(REQUEST.to_ne_bytes());
    out.extend([0; 8]);
    // The header of the route: family, lengths of destination and source in bits, six fields that are not used, flags.
    out.extend([family.as_raw() as u8, to.len() as u8 * 8, source_bytes as u8 * 8]);
    out.extend([0; 5]);
    out.extend(flags.to_ne_bytes());
    for (kind, value) in [(DESTINATION, &to[..])].iter().chain(attributes) {
        out.extend(((value.len() + ATTRIBUTE_HEAD) as u16).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(*value);
    }
    let len = out.len() as u32;
    out[..4].copy_from_slice(&len.to_ne_bytes());
    out
}

/// The kernel's answer.
fn ask(question: &[u8]) -> io::Result<Vec<u8>> {
    // No protocol means NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, question, SendFlags::empty())?;
    // The kernel has answered when `send` returns.
    let mut answer = vec![0_u8; 4096];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    answer.truncate(len);
    Ok(answer)
}

/// Whether an answer is a route, and no error.
fn is_route(answer: &[u8]) -> bool {
    answer.get(4..6) == Some(&NEW_ROUTE.to_ne_bytes())
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

    #[test]
    fn the_source_of_packets_is_that_of_a_connected_socket() {
        for host in ["127.1.2.3", "::1", "198.51.100.77", "2001:db8::77"] {
            let host: IpAddr = host.parse().expect("an address");
            assert_eq!(source_to(host), crate::interface::source_to(host), "{host}");
        }
    }
}
