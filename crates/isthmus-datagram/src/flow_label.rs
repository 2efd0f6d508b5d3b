//! IPv6 flow labels that a program chooses (`Documentation/networking/ip-sysctl.rst`, RFC 6437).
//!
//! A label goes in `sin6_flowinfo` of a destination, on a socket with `IPV6_FLOWINFO_SEND`. No privilege is needed.
//! Linux before 5.3 takes only labels that the socket has leased (`IPV6_FLOWLABEL_MGR`). So do later kernels while a
//! program of the same network namespace holds a label for itself alone.

#![allow(unsafe_code, reason = "options that no crate sets")]

use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

/// The bits of a flow label.
const MASK: u32 = 0xf_ffff;
/// The bit of labels that cannot be leased if `net.ipv6.flowlabel_state_ranges` is 1.
pub const STATELESS: u32 = 0x8_0000;

/// `linux/in6.h`.
const IPV6_FLOWLABEL_MGR: libc::c_int = 32;
const IPV6_FLOWINFO_SEND: libc::c_int = 33;
/// The action "get a label".
const GET: u8 = 0;
/// Flags: create the label if nobody has it; answer with the label of the packets that came.
const CREATE: u16 = 1;
const REFLECT: u16 = 4;
/// Anyone may lease the same label. With narrower shares, the kernel would make all programs lease theirs.
const ANYONE: u8 = 255;
/// Seconds for which a lease stays after its last user. Count; the least that the kernel takes.
const LINGER_S: u16 = 6;

/// `struct in6_flowlabel_req`.
#[repr(C)]
struct Request {
    destination: [u8; 16],
    label: u32,
    action: u8,
    share: u8,
    flags: u16,
    expires: u16,
    linger: u16,
    reserved: u32,
}

fn set<T>(socket: &impl AsFd, name: libc::c_int, value: &T) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value is plain data of the length that is passed along, and the kernel only reads it.
    let status = unsafe { libc::setsockopt(fd, libc::IPPROTO_IPV6, name, (&raw const *value).cast(), len) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The destination `to` with this label; an IPv4 destination has none.
#[must_use]
pub fn with_label(to: SocketAddr, label: u32) -> SocketAddr {
    match to {
        SocketAddr::V6(mut to) => {
            to.set_flowinfo((label & MASK).to_be());
            to.into()
        }
        SocketAddr::V4(_) => to,
    }
}

/// Makes the kernel use the labels of destinations ([`with_label`]) on this IPv6 socket.
///
/// # Errors
/// The system's.
pub fn send_labels(socket: &impl AsFd) -> io::Result<()> {
    set(socket, IPV6_FLOWINFO_SEND, &1_i32)
}

/// Leases a label for a socket until it is closed.
///
/// # Errors
/// The system's: `EPERM` if another program has it for itself, `ENOBUFS` if there are too many.
pub fn lease(socket: &impl AsFd, to: Ipv6Addr, label: u32) -> io::Result<()> {
    let request = Request {
        destination: to.octets(),
        label: (label & MASK).to_be(),
        action: GET,
        share: ANYONE,
        flags: CREATE,
        expires: 0,
        linger: LINGER_S,
        reserved: 0,
    };
    set(socket, IPV6_FLOWLABEL_MGR, &request)
}

/// Makes connections that this listener accepts send with the label of the packets that they receive.
///
/// # Errors
/// The system's: `EPERM` while `net.ipv6.flowlabel_consistency` is 1, as it is by default.
pub fn reflect_labels(listener: &impl AsFd) -> io::Result<()> {
    let request = Request {
        destination: [0; 16],
        label: 0,
        action: GET,
        share: 0,
        flags: REFLECT,
        expires: 0,
        linger: 0,
        reserved: 0,
    };
    set(listener, IPV6_FLOWLABEL_MGR, &request)
}

/// Whether a socket of this network namespace may send with this label now without a lease.
///
/// # Errors
/// The system's, such as that there is no IPv6.
pub fn is_free(label: u32) -> io::Result<bool> {
    let tried = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    send_labels(&tried)?;
    let to = with_label((Ipv6Addr::LOCALHOST, 9).into(), label);
    match tried.connect(to) {
        Err(error) if is_unleased(&error) => Ok(false),
        // Whether there is a route is another question.
        _ => Ok(true),
    }
}

/// Whether the system refused a label that was not leased.
#[must_use]
pub fn is_unleased(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_20_bits_in_network_order_and_leaves_the_rest_of_the_address() {
        let to: SocketAddr = "[fe80::1%3]:7".parse().expect("valid");
        let SocketAddr::V6(labelled) = with_label(to, 0xff1_2345) else { panic!("IPv6 stays IPv6") };
        assert_eq!(labelled.flowinfo().to_ne_bytes(), [0, 0x01, 0x23, 0x45]);
        assert_eq!((labelled.scope_id(), labelled.port()), (3, 7));
        let v4: SocketAddr = "10.0.0.1:7".parse().expect("valid");
        assert_eq!(with_label(v4, 1), v4);
    }

    #[test]
    fn a_lease_is_shared_and_an_ordinary_user_gets_it() {
        let open = || UdpSocket::bind((Ipv6Addr::LOCALHOST, 0));
        let (Ok(a), Ok(b)) = (open(), open()) else { return };
        let label = 0x1_2345;
        lease(&a, Ipv6Addr::LOCALHOST, label).expect("nobody has it for itself");
        lease(&b, Ipv6Addr::LOCALHOST, label).expect("it is shared");
        assert!(is_free(label).expect("there is IPv6"));
    }
}
