//! The DSCP, and the sign for ECN, with which packets of lanes arrive.

mod support;

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_io::{Endpoint, Settings, Transport};
use socket2::SockRef;
use support::*;

const HOSTS: [&str; 2] = ["127.0.0.1", "::1"];

/// A socket tells how packets to it were marked.
fn hear_marks(socket: &impl std::os::fd::AsFd, host: IpAddr) {
    let socket = SockRef::from(socket);
    match host {
        IpAddr::V4(_) => socket.set_recv_tos_v4(true).expect("it has IP"),
        IpAddr::V6(_) => socket.set_recv_tclass_v6(true).expect("it has IPv6"),
    }
}

/// The traffic class in control messages. Its DSCP is its first 6 bits.
fn class_in(mut control: &[u8]) -> Option<u8> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    while control.len() > HEADER {
        let int = |at: usize| i32::from_ne_bytes(control[at..at + 4].try_into().expect("4 bytes"));
        let len = usize::from_ne_bytes(control[..8].try_into().expect("8 bytes"));
        if matches!(
            (int(8), int(12)),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        ) {
            return Some(control[HEADER]);
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    None
}

/// An endpoint that dials `to`, and the buffer that it sends.
fn dial(to: SocketAddr, transport: Transport, settings: Settings) -> Arc<Endpoint> {
    let linger = "0s".parse().expect("a time");
    let settings = Settings { transport, interface: to.ip().to_string(), linger, ..settings };
    let endpoint = Endpoint::open(&settings, None, Arc::default()).expect("loopback");
    let peer =
        endpoint.peer(&isthmus_wire::Address { locator: to, ..with_key_of(&endpoint) }).expect("same subnet");
    send(&endpoint, peer, 1, Box::leak(Box::new([0; 8])));
    endpoint
}

fn with_key_of(endpoint: &Endpoint) -> isthmus_wire::Address {
    isthmus_wire::Address { key: isthmus_wire::Key([1; 32]), ..endpoint.address() }
}

fn wait<T>(endpoint: &Endpoint, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        endpoint.poll(&mut Vec::new());
        if let Some(found) = look() {
            return found;
        }
        in_time(start.elapsed() < LIMIT, || "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The traffic class of the first packet by UDP.
fn class_by_udp(host: &str, settings: Settings) -> u8 {
    let host: IpAddr = host.parse().expect("an address");
    let socket = UdpSocket::bind((host, 0)).expect("loopback");
    hear_marks(&socket, host);
    let endpoint = dial(socket.local_addr().expect("bound"), Transport::UdpEverywhere, settings);
    let class = wait(&endpoint, || {
        let (mut bytes, mut control) = ([0_u8; 9_000], [0_u8; 128]);
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all zero is a message header without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), control.len());
        // SAFETY: the header names buffers that live until this returns.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        (got > 0).then(|| class_in(&control[..message.msg_controllen]).expect("the system tells"))
    });
    endpoint.close();
    class
}

/// The traffic class of the first packet by TCP.
fn class_by_tcp(host: &str, settings: Settings) -> u8 {
    /// `IPV6_2292PKTOPTIONS` and `IP_PKTOPTIONS`: what came with the newest packet of a TCP connection.
    const PACKET_OPTIONS: [(libc::c_int, libc::c_int); 2] = [(libc::IPPROTO_IPV6, 6), (libc::IPPROTO_IP, 9)];
    let host: IpAddr = host.parse().expect("an address");
    let listener = TcpListener::bind((host, 0)).expect("loopback");
    listener.set_nonblocking(true).expect("a socket");
    hear_marks(&listener, host);
    let endpoint = dial(listener.local_addr().expect("bound"), Transport::Tcp, settings);
    let (socket, _) = wait(&endpoint, || listener.accept().ok());
    let (level, option) = PACKET_OPTIONS[usize::from(host.is_ipv4())];
    let mut control = [0_u8; 128];
    let mut len = control.len() as libc::socklen_t;
    // SAFETY: the buffer has the length that is given.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, control.as_mut_ptr().cast(), &raw mut len)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    endpoint.close();
    class_in(&control[..len as usize]).expect("the system tells")
}

fn from(toml: &str) -> Settings {
    let given = Settings::from_toml(toml, "test").expect("valid");
    let Settings { traffic_priority, dscp, ecn, .. } = given;
    Settings { traffic_priority, dscp, ecn, ..settings() }
}

#[test]
fn packets_by_udp_have_the_dscp_that_is_set_or_implied() {
    for host in HOSTS {
        let class = |toml: &str| class_by_udp(host, from(toml));
        assert_eq!(class("[device]\n"), 0, "{host}");
        assert_eq!(class("[device]\ndscp = \"af11\"\n"), 10 << 2, "{host}");
        assert_eq!(class("[device]\ntraffic_priority = \"background\"\n"), 1 << 2, "{host}");
        assert_eq!(class("[device]\ntraffic_priority = \"background\"\ndscp = \"cs1\"\n"), 8 << 2, "{host}");
    }
}

/// ECT(0) of RFC 3168 is the class's last two bits, 2.
#[test]
fn packets_by_udp_may_be_marked_by_routers_if_that_is_set() {
    for host in HOSTS {
        let class = |toml: &str| class_by_udp(host, from(toml));
        assert_eq!(class("[device]\necn = true\n"), 2, "{host}");
        assert_eq!(class("[device]\necn = true\ndscp = \"af11\"\n"), 10 << 2 | 2, "{host}");
        assert_eq!(class("[device]\necn = false\n"), 0, "{host}");
    }
}

#[test]
fn packets_by_tcp_have_the_dscp_that_is_set_or_implied() {
    for host in HOSTS {
        let class = |toml: &str| class_by_tcp(host, from(toml));
        assert_eq!(class("[device]\n"), 0, "{host}");
        assert_eq!(class("[device]\ndscp = 10\n"), 10 << 2, "{host}");
        assert_eq!(class("[device]\ntraffic_priority = \"background\"\n"), 1 << 2, "{host}");
    }
}
