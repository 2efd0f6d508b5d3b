//! Addresses that this host loses while lanes use them: a lease that was not renewed, another wireless network, a VPN
//! that ended.
//!
//! TCP does not notice. It goes on to retransmit from the lost address until its timeout, and a bound UDP socket can send
//! nothing any more. So the I/O thread compares the addresses of lanes with those of the host ([`is_lost`]), once a
//! second and as soon as the kernel tells of a change ([`Changes`]). Lanes from a lost address are dialled again.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` of `rtnetlink.h`: changes of addresses.
const GROUPS: u32 = 0x10 | 0x100;
/// Time after the kernel's message at which addresses are compared once more: it sends the message a moment before the
/// address is gone.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The kernel's messages that addresses have come or gone (rtnetlink(7)).
#[derive(Debug)]
pub(crate) struct Changes(OwnedFd);

impl Changes {
    /// # Errors
    /// The system's: containers may forbid such sockets.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol means NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self(socket))
    }

    /// Takes the messages that have come.
    pub(crate) fn clear(&self) {
        // What they say does not matter, nor whether some were lost.
        let mut room = [0; 4096];
        loop {
            match recv(&self.0, &mut room[..], RecvFlags::DONTWAIT) {
                Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether this host does not have the address. If the kernel does not say so, it counts as present.
pub(crate) fn is_lost(ip: IpAddr) -> bool {
    let may_be = !ip.is_loopback() && !ip.is_unspecified();
    may_be && UdpSocket::bind((ip, 0)).is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_interface_has_is_lost_and_no_other() {
        let of = |text: &str| text.parse::<IpAddr>().expect("an address");
        // RFC 5737 and RFC 3849: for documentation.
        for (ip, lost) in
            [("198.51.100.77", true), ("2001:db8::77", true), ("127.0.0.1", false), ("0.0.0.0", false)]
        {
            assert_eq!(is_lost(of(ip)), lost, "{ip}");
        }
        let own = crate::interface::source_to(of("198.51.100.77"));
        assert!(own.is_none_or(|own| !is_lost(own)), "{own:?}");
    }
}
