//! The rtnetlink requests that the lab needs (rtnetlink(7)), so that it needs no `ip` command.
//!
//! Each request acts on the calling thread's network namespace.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::sys::interface_index;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWNEIGH: u16 = 28;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

const AF_INET: u8 = 2;
const IFF_UP: u32 = 1;
const IFF_RUNNING: u32 = 0x40;
/// The multicast group that hears of changes of interfaces.
const RTMGRP_LINK: u32 = 1;
/// Longest that the kernel may take to count an interface as running. It looks once a second.
const RUNNING_MAX: Duration = Duration::from_secs(5);
const NUD_PERMANENT: u16 = 0x80;

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// A request under construction.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        Self(bytes)
    }

    /// `struct ifinfomsg`.
    fn link(mut self, index: u32, up: bool) -> Self {
        self.0.extend([0; 4]);
        self.0.extend(index.to_ne_bytes());
        let flags = if up { IFF_UP } else { 0 };
        self.0.extend(flags.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        put_attribute(&mut self.0, kind, value);
        self
    }

    /// Sends the request and waits for the kernel's answer.
    fn send(self) -> io::Result<()> {
        let socket = route_socket()?;
        self.send_by(&socket)?;
        answer(&socket)
    }

    fn send_by(mut self, socket: &OwnedFd) -> io::Result<()> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        rustix::net::send(socket, &self.0, SendFlags::empty())?;
        Ok(())
    }
}

fn route_socket() -> io::Result<OwnedFd> {
    let protocol = None; // NETLINK_ROUTE
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?)
}

fn answer(socket: &OwnedFd) -> io::Result<()> {
    let mut buffer = [0_u8; 8192];
    let (len, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
    let kind = u16::from_ne_bytes([buffer[4], buffer[5]]);
    if len < 20 || kind != NLMSG_ERROR {
        return Err(io::Error::other("an unexpected answer from rtnetlink"));
    }
    match i32::from_ne_bytes([buffer[16], buffer[17], buffer[18], buffer[19]]) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

fn put_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(((value.len() + 4) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, value) in parts {
        put_attribute(&mut out, *kind, value);
    }
    out
}

fn name_bytes(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

/// Sets address, MTU and transmit queue length of `name` and brings it up.
///
/// # Errors
/// `ENODEV` if there is no such interface, `EINVAL` for an MTU it cannot have.
pub(crate) fn bring_up(name: &str, mac: Option<Mac>, mtu: u32, queue_packets: u32) -> io::Result<()> {
    let index = interface_index(name)?;
    let mut request = Request::new(RTM_NEWLINK, 0)
        .link(index, true)
        .attribute(IFLA_MTU, &mtu.to_ne_bytes())
        .attribute(IFLA_TXQLEN, &queue_packets.to_ne_bytes());
    if let Some(mac) = mac {
        request = request.attribute(IFLA_ADDRESS, &mac);
    }
    request.send()
}

/// Waits until the kernel counts `name` as running. Some kinds of interface get there up to a second after they are up,
/// and programs overlook them until then, such as those that use libfabric's `tcp`.
///
/// # Errors
/// `EAGAIN` after `RUNNING_MAX`.
pub(crate) fn wait_until_running(name: &str) -> io::Result<()> {
    let index = interface_index(name)?;
    let socket = route_socket()?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(RUNNING_MAX))?;
    // Newer kernels look at once when they are asked. Others tell the group later.
    Request::new(RTM_GETLINK, 0).link(index, false).send_by(&socket)?;
    let mut buffer = [0_u8; 8192];
    loop {
        let (len, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let word =
            |at: usize| u32::from_ne_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]]);
        // `struct ifinfomsg` begins at 16: its index is at 20, and its flags are at 24.
        let is_link = len >= 32 && u16::from_ne_bytes([buffer[4], buffer[5]]) == RTM_NEWLINK;
        if is_link && word(20) == index && word(24) & IFF_RUNNING != 0 {
            return Ok(());
        }
    }
}

/// Gives the interface `name` the address `address`/`prefix`.
///
/// # Errors
/// `EEXIST` if the interface has it already.
pub(crate) fn add_address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let index = interface_index(name)?;
    Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL)
        .bytes(&[AF_INET, prefix, 0, 0])
        .bytes(&index.to_ne_bytes())
        .attribute(2, &address.octets()) // IFA_LOCAL
        .attribute(1, &address.octets()) // IFA_ADDRESS
        .send()
}

/// Makes `gateway` the default gateway.
///
/// # Errors
/// `ENETUNREACH` if the gateway is on no interface's network.
pub(crate) fn add_default_route(gateway: Ipv4Addr) -> io::Result<()> {
    let (table_main, protocol_static, scope_universe, unicast) = (254, 4, 0, 1);
    Request::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL)
        .bytes(&[AF_INET, 0, 0, 0, table_main, protocol_static, scope_universe, unicast, 0, 0, 0, 0])
        .attribute(5, &gateway.octets()) // RTA_GATEWAY
        .send()
}

/// Enters `address` as a permanent neighbour at `mac` on `name`, so that no ARP crosses the link.
///
/// # Errors
/// `ENODEV` if there is no such interface.
pub(crate) fn add_neighbour(name: &str, address: Ipv4Addr, mac: Mac) -> io::Result<()> {
    let index = interface_index(name)?;
    Request::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE)
        .bytes(&[AF_INET, 0, 0, 0])
        .bytes(&index.to_ne_bytes())
        .bytes(&NUD_PERMANENT.to_ne_bytes())
        .bytes(&[0, 0])
        .attribute(1, &address.octets()) // NDA_DST
        .attribute(2, &mac) // NDA_LLADDR
        .send()
}

/// Makes a bridge.
///
/// # Errors
/// `EOPNOTSUPP` if the kernel has no bridges.
pub(crate) fn add_bridge(name: &str) -> io::Result<()> {
    Request::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)
        .link(0, false)
        .attribute(IFLA_IFNAME, &name_bytes(name))
        .attribute(IFLA_LINKINFO, &nested(&[(IFLA_INFO_KIND, b"bridge\0")]))
        .send()
}

/// Makes a veth pair: `name` here, `peer` in the network namespace `peer_namespace`.
///
/// # Errors
/// `EOPNOTSUPP` if the kernel has no veth.
pub(crate) fn add_veth(name: &str, peer: &str, peer_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let peer_fd = (peer_namespace.as_raw_fd() as u32).to_ne_bytes();
    let attributes = nested(&[(IFLA_IFNAME, &name_bytes(peer)), (IFLA_NET_NS_FD, &peer_fd)]);
    let peer_link = [vec![0; 16], attributes].concat();
    let data = nested(&[(VETH_INFO_PEER, &peer_link)]);
    Request::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)
        .link(0, false)
        .attribute(IFLA_IFNAME, &name_bytes(name))
        .attribute(IFLA_LINKINFO, &nested(&[(IFLA_INFO_KIND, b"veth\0"), (IFLA_INFO_DATA, &data)]))
        .send()
}

/// Makes `name` a port of the bridge `bridge`.
///
/// # Errors
/// `ENODEV` if either interface is missing.
pub(crate) fn set_bridge(name: &str, bridge: &str) -> io::Result<()> {
    let (index, bridge) = (interface_index(name)?, interface_index(bridge)?);
    Request::new(RTM_NEWLINK, 0).link(index, true).attribute(IFLA_MASTER, &bridge.to_ne_bytes()).send()
}
