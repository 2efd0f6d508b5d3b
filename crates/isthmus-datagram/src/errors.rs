//! The queue of errors of a UDP socket (`IP_RECVERR` of `ip(7)`, `IPV6_RECVERR` of `ipv6(7)`). Each report tells where
//! its packet was for.
#![allow(unsafe_code, reason = "no crate reads the control messages with the destination")]

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{MsgHdrMut, SockAddr, Socket};

/// Length of `cmsghdr`: a length of a machine word, a level and a type. Bytes.
const HEAD_LEN: usize = size_of::<libc::cmsghdr>();
/// Length of `sock_extended_err`. The address of the host that reported the error follows. Bytes.
const ERROR_LEN: usize = size_of::<libc::sock_extended_err>();
/// Room for the control messages of one report. Bytes; a few messages of less than 100 bytes come.
const CONTROL_LEN: usize = 512;

/// A report that a packet did not get through (ICMP, RFC 792 and 4443). Anybody who guesses a port can forge one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Where the packet was for.
    pub to: SocketAddr,
    /// The host that reported it: the one that the packet was for, or a router or firewall on the way.
    pub from: IpAddr,
    /// No process listens at the port, or a firewall says so. Otherwise the packet may not pass, or there is no route.
    pub is_port: bool,
}

/// Takes the next error from the queue. `None`: it is no report that a packet did not get through.
///
/// # Errors
/// The system's; [`io::ErrorKind::WouldBlock`] if the queue is empty.
pub(crate) fn take(socket: &Socket) -> io::Result<Option<Unreachable>> {
    let mut control = [MaybeUninit::new(0); CONTROL_LEN];
    let mut to = SockAddr::from(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
    let mut message = MsgHdrMut::new().with_addr(&mut to).with_control(&mut control);
    socket.recvmsg(&mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)?;
    let len = message.control_len().min(CONTROL_LEN);
    // SAFETY: all bytes were set to 0 above, and the kernel only writes others over them.
    let control = control.map(|byte| unsafe { byte.assume_init() });
    Ok(to.as_socket().and_then(|to| unreachable(&control[..len], to)))
}

/// The report in these control messages, about a packet for `to`.
fn unreachable(mut control: &[u8], to: SocketAddr) -> Option<Unreachable> {
    loop {
        let (len, rest) = control.split_first_chunk()?;
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, _) = rest.split_first_chunk()?;
        let len = usize::from_ne_bytes(*len);
        let data = control.get(HEAD_LEN..len)?;
        let about = (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind));
        if [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)].contains(&about) {
            return report(data, to);
        }
        control = control.get(len.next_multiple_of(size_of::<usize>())..)?;
    }
}

/// The report in a `sock_extended_err`. Errors of this host itself are none.
fn report(error: &[u8], to: SocketAddr) -> Option<Unreachable> {
    let (errno, rest) = error.split_first_chunk()?;
    let is_port = match i32::from_ne_bytes(*errno) {
        libc::ECONNREFUSED => true,
        libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENOPROTOOPT | libc::EACCES => false,
        _ => return None,
    };
    if ![libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6].contains(rest.first()?) {
        return None;
    }
    let from = address(error.get(ERROR_LEN..)?)?.to_canonical();
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    Some(Unreachable { to, from, is_port })
}

/// The address in a `sockaddr_in` or `sockaddr_in6`.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(u16::from_ne_bytes(*bytes.first_chunk()?)) {
        libc::AF_INET => bytes.get(4..)?.first_chunk().map(|ip| Ipv4Addr::from(*ip).into()),
        libc::AF_INET6 => bytes.get(8..)?.first_chunk().map(|ip| Ipv6Addr::from(*ip).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// A socket that hears of errors.
    fn socket(at: IpAddr) -> Socket {
        let socket = Socket::from(UdpSocket::bind((at, 0)).expect("bound"));
        let state = quinn_udp::UdpSocketState::new((&socket).into()).expect("set");
        state.enable_transport_errors((&socket).into()).expect("set");
        // To receive waits for the error.
        socket.set_nonblocking(false).expect("set");
        socket
    }

    #[test]
    fn a_report_tells_where_the_packet_was_for() {
        for (bound, host) in [
            (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv4Addr::LOCALHOST)),
            (Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        ] {
            let socket = socket(bound);
            let closed = UdpSocket::bind((host, 0)).expect("bound").local_addr().expect("bound");
            let to = match (bound, closed) {
                (IpAddr::V6(_), SocketAddr::V4(at)) => {
                    SocketAddr::from((at.ip().to_ipv6_mapped(), at.port()))
                }
                _ => closed,
            };
            socket.send_to(b"x", &to.into()).expect("sent");
            let told = socket.recv(&mut [MaybeUninit::uninit()]).expect_err("nobody answers");
            assert_eq!(told.kind(), io::ErrorKind::ConnectionRefused);
            let report = take(&socket).expect("a report").expect("of the network");
            assert_eq!(report, Unreachable { to: closed, from: host, is_port: true });
            assert_eq!(take(&socket).expect_err("no other").kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn what_is_cut_short_is_no_report() {
        let to = SocketAddr::from(([10, 0, 0, 1], 1));
        let mut control = Vec::new();
        let data = [&libc::ECONNREFUSED.to_ne_bytes()[..], &[libc::SO_EE_ORIGIN_ICMP], &[0; 11]].concat();
        let from = [&(libc::AF_INET as u16).to_ne_bytes()[..], &[0, 0, 10, 0, 0, 2], &[0; 8]].concat();
        let len = HEAD_LEN + data.len() + from.len();
        control.extend(len.to_ne_bytes());
        control.extend(libc::SOL_IP.to_ne_bytes());
        control.extend(libc::IP_RECVERR.to_ne_bytes());
        control.extend([data, from].concat());
        let from = [10, 0, 0, 2].into();
        assert_eq!(unreachable(&control, to), Some(Unreachable { to, from, is_port: true }));
        assert!((0..len).all(|cut| unreachable(&control[..cut], to).is_none()));
        control[..size_of::<usize>()].copy_from_slice(&0_usize.to_ne_bytes());
        assert_eq!(unreachable(&control, to), None, "a length that ends before the head");
    }
}
