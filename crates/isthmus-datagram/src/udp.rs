//! A UDP socket. It sends and receives packets in batches, never fragmented, with their time of arrival.

use std::collections::HashMap;
use std::fmt::Arguments;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::net::netdevice::name_to_index;
use socket2::{Domain, MsgHdr, Protocol, Socket, Type};

use crate::clocks::Clocks;
use crate::errors::{self, Unreachable};
use crate::labels::Labels;
use crate::memory::Drops;
use crate::{OwnRefusal, Received, Sent, enlarge, is_full};

/// Most messages read at once. With GRO each may be many packets. Count.
const MESSAGES: usize = 8;
/// Longest message. Bytes.
const MESSAGE_BYTES: usize = 1 << 16;
/// Longest message to send, which may be many packets. Bytes.
pub const SEND_BYTES: usize = 64_000;

/// Failed attempts in a row, for want of a system buffer, after which a message counts as dropped. Count. With half a
/// millisecond between attempts this is 10 ms, more than a 10 Gb/s interface takes for the longest usual queue.
const REFUSALS_MAX: u32 = 20;

/// A UDP socket that never blocks.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    state: UdpSocketState,
    /// Buffers for the messages of one read.
    room: Vec<u8>,
    metas: Box<[RecvMeta; MESSAGES]>,
    clocks: Clocks,
    drops: Drops,
    refused: Refused,
    own_refusal: OwnRefusal,
    /// Most packets in one message. Count; 1 once the system has refused to cut a message.
    packets_max: AtomicUsize,
    /// Hosts whose packets leave by an interface other than that of the kernel's route, and the index of it.
    by: HashMap<IpAddr, u32>,
    /// The flow labels of packets by IPv6; none are chosen by default.
    labels: Labels,
}

/// Counts attempts in a row for which the system had no buffer (`ENOBUFS`, `ENOMEM`).
#[derive(Debug, Default)]
struct Refused(AtomicU32);

impl Refused {
    /// Result of an attempt. `none`: the system had no buffer. An interface's queue is full only for moments, so the
    /// packets wait. If an interface refuses them [`REFUSALS_MAX`] times in a row, they count as dropped.
    fn note(&self, none: bool, sent: Sent) -> Sent {
        let before = if none { self.0.load(Ordering::Relaxed) } else { 0 };
        let gives_up = before + 1 == REFUSALS_MAX;
        self.0.store(if none && !gives_up { before + 1 } else { 0 }, Ordering::Relaxed);
        if none && gives_up { Sent::Dropped } else { sent }
    }
}

impl UdpSocket {
    /// Binds a socket to `at`. It never blocks. `say` is told which features are missing.
    ///
    /// # Errors
    /// The system's, such as `AddrInUse`.
    pub fn bind(at: SocketAddr, say: impl Fn(Arguments<'_>)) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&at.into())?;
        Self::of(socket, say)
    }

    /// The address that it is bound to, if the system tells.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.socket.local_addr().ok()?.as_socket().map(|at| at.ip())
    }

    /// A new socket at `ip` and the port of this one, which the caller closes; at any other port if another process has
    /// that one at `ip`. It has no marks, labels or chosen interfaces yet.
    ///
    /// # Errors
    /// As of [`UdpSocket::bind`].
    pub fn successor(&self, ip: IpAddr, say: impl Fn(Arguments<'_>)) -> io::Result<Self> {
        let before = self.socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        let at = SocketAddr::new(ip, before.port());
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
        // Both sockets have the port for a moment. After that, no other process may take it.
        self.socket.set_reuse_address(true)?;
        socket.set_reuse_address(true)?;
        let bound = socket.bind(&at.into());
        socket.set_reuse_address(false)?;
        if let Err(error) = bound {
            self.socket.set_reuse_address(false)?;
            if error.kind() != io::ErrorKind::AddrInUse {
                return Err(error);
            }
            say(format_args!("another process has the UDP port {at}: packets leave from another port"));
            socket.bind(&SocketAddr::new(ip, 0).into())?;
        }
        Self::of(socket, say)
    }

    fn of(socket: Socket, say: impl Fn(Arguments<'_>)) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // With this, the socket learns from ICMP errors that no process listens at a port any more.
        if let Err(error) = state.enable_transport_errors(UdpSockRef::from(&socket)) {
            say(format_args!("ended processes will be noticed late: {error}"));
        }
        enlarge(&socket, "UDP", say);
        let room = vec![0; MESSAGES * MESSAGE_BYTES];
        let packets_max = AtomicUsize::new(state.max_gso_segments());
        Ok(Self {
            socket,
            state,
            room,
            metas: Default::default(),
            clocks: Clocks::new(),
            drops: Drops::default(),
            refused: Refused::default(),
            own_refusal: OwnRefusal::default(),
            packets_max,
            by: HashMap::new(),
            labels: Labels::default(),
        })
    }

    /// Sends packets with this DSCP (RFC 2474), 0..=63, from now on. With `ecn`, routers may mark them instead of
    /// dropping them (ECT(0) of RFC 3168).
    ///
    /// # Errors
    /// The system's.
    pub fn mark(&mut self, dscp: u8, ecn: bool) -> io::Result<()> {
        set_class(&self.socket, dscp << 2 | if ecn { ECT_0 } else { 0 })
    }

    /// Sends packets by IPv6 with flow labels ([`Labels`]) from now on. `bits` are the fixed bits, and those that differ
    /// between destinations. `say` hears it if the kernel takes them no more.
    ///
    /// # Errors
    /// The system's; then packets go as before.
    pub fn label(&mut self, bits: (u32, u32), say: fn(Arguments<'_>)) -> io::Result<()> {
        self.labels = Labels::on(&self.socket, bits, say)?;
        Ok(())
    }

    /// Makes packets to `host` leave by `interface` from now on; `None`: by the kernel's route.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn leave_by(&mut self, host: IpAddr, interface: Option<&str>) -> io::Result<()> {
        match interface {
            None => self.by.remove(&host),
            Some(name) => self.by.insert(host, name_to_index(&self.socket, name)?),
        };
        Ok(())
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Most packets in one message.
    pub fn packets_max(&self) -> usize {
        self.packets_max.load(Ordering::Relaxed)
    }

    /// Reads a bounded number of packets. Gives each to `take`, with its sender, the time at which the system received it,
    /// and whether a router has marked it (CE of RFC 3168). `Ok(false)`: there were none.
    ///
    /// # Errors
    /// The system's error, which concerns packets sent earlier; see [`UdpSocket::refusals`].
    pub fn receive(&mut self, mut take: impl FnMut(Received, &mut [u8])) -> io::Result<bool> {
        let mut chunks = self.room.chunks_mut(MESSAGE_BYTES);
        let mut slices: [IoSliceMut<'_>; MESSAGES] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let count = match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut self.metas[..]) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        self.clocks.compare();
        let now = Instant::now();
        for (message, meta) in slices.iter_mut().zip(&self.metas[..count]) {
            let arrived = meta.timestamp.map_or(now, |at| self.clocks.arrived(now, at));
            let marked = meta.ecn == Some(quinn_udp::EcnCodepoint::Ce);
            self.drops.note(meta.len.div_ceil(meta.stride.max(1)));
            for packet in message[..meta.len].chunks_mut(meta.stride.max(1)) {
                take(Received { from: meta.addr, arrived, marked }, packet);
            }
        }
        Ok(count > 0)
    }

    /// About how many packets the system has dropped since the last call because the receive buffer was full.
    pub fn take_dropped(&mut self) -> u64 {
        self.drops.take(self.socket.as_fd())
    }

    /// Sends packets of `segment` bytes each. The last one may be shorter.
    pub fn send(&self, to: SocketAddr, segment: usize, packets: &[u8]) -> Sent {
        let by = if self.by.is_empty() { None } else { self.by.get(&to.ip()) };
        let control = |to: SocketAddr| match by {
            // Whatever the kernel's route is. The source address stays that of the socket.
            Some(interface) => Control::NONE.leaving_by(*interface, to.is_ipv4()),
            None => Control::NONE,
        };
        let sent = self.labels.send(to, |to| self.send_cut(&|| control(to), to, segment, packets));
        let (sent, error) = match sent {
            Ok(()) => (Sent::Yes, None),
            Err(error) if is_full(&error) => (Sent::BLOCKED, Some(error)),
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => (Sent::TooLong, None),
            Err(error) => (Sent::Dropped, Some(error)),
        };
        let none = sent == Sent::BLOCKED
            && error.as_ref().is_some_and(|error| error.kind() != io::ErrorKind::WouldBlock);
        let sent = self.refused.note(none, sent);
        if let (Sent::Dropped, Some(error)) = (sent, &error) {
            self.own_refusal.note(error);
        }
        sent
    }

    /// The error with which this host itself refused packets since the last call, such as a firewall's, if it has a
    /// remedy ([`crate::scarcity::remedy`]).
    pub fn take_own_refusal(&self) -> Option<io::Error> {
        self.own_refusal.take()
    }

    /// Sends packets in one message, which the system cuts, or one by one where the system refuses that message. EINVAL
    /// may also be about something else, such as an address that the host has lost: then single packets are refused
    /// too, and later messages may be cut again. Older kernels say EINVAL for packets that are longer than the
    /// interface carries, and of single ones that they are too long.
    fn send_cut(
        &self,
        control: &dyn Fn() -> Control,
        to: SocketAddr,
        segment: usize,
        packets: &[u8],
    ) -> io::Result<()> {
        match self.send_with(control(), to, segment, packets) {
            Err(error) if cannot_segment(&error) && packets.len() > segment => {
                let mut each = packets.chunks(segment);
                each.try_for_each(|packet| self.send_with(control(), to, segment, packet))?;
                self.packets_max.store(1, Ordering::Relaxed);
                Ok(())
            }
            sent => sent,
        }
    }

    fn send_with(&self, control: Control, to: SocketAddr, segment: usize, packets: &[u8]) -> io::Result<()> {
        let control = if packets.len() > segment { control.segmented(segment as u16) } else { control };
        let (address, pieces) = (to.into(), [IoSlice::new(packets)]);
        let mut message = MsgHdr::new().with_addr(&address).with_buffers(&pieces);
        if control.len > 0 {
            message = message.with_control(&control.bytes[..control.len]);
        }
        self.socket.sendmsg(&message, 0).map(|_| ())
    }

    /// Empties the system's queue of errors. Gives `tell` the reports that packets did not get through.
    pub fn refusals(&self, mut tell: impl FnMut(Unreachable)) {
        while let Ok(report) = errors::take(&self.socket) {
            report.into_iter().for_each(&mut tell);
        }
    }
}

/// Sets the DSCP (RFC 2474) of later packets, 0..=63. It also holds for IPv4 on a socket of both families.
///
/// # Errors
/// The system's.
pub fn mark(socket: &Socket, dscp: u8) -> io::Result<()> {
    set_class(socket, dscp << 2)
}

/// Bits of the traffic class: routers may mark this packet.
const ECT_0: u8 = 2;

/// Sets the traffic class of later packets.
fn set_class(socket: &Socket, class: u8) -> io::Result<()> {
    let field = u32::from(class);
    if socket.domain()? == Domain::IPV6 {
        socket.set_tclass_v6(field)?;
        if socket.only_v6()? {
            return Ok(());
        }
    }
    socket.set_tos_v4(field)
}

/// Whether an error may mean that the interface cannot cut messages into packets.
fn cannot_segment(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

/// Control messages to send with packets (`cmsg(3)`).
struct Control {
    bytes: [u8; CONTROL_BYTES],
    len: usize,
}

/// Room for the two that there are. Bytes.
const CONTROL_BYTES: usize = 32 + 40;

impl Control {
    const NONE: Self = Self { bytes: [0; CONTROL_BYTES], len: 0 };

    /// UDP_SEGMENT (`udp(7)`): the system cuts a message into packets of this many bytes.
    fn segmented(self, segment: u16) -> Self {
        self.with(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes())
    }

    /// IP_PKTINFO (`ip(7)`) or IPV6_PKTINFO (`ipv6(7)`): the packets leave by the interface of this index.
    fn leaving_by(self, interface: u32, is_v4: bool) -> Self {
        // `struct in_pktinfo` begins with the index, and `struct in6_pktinfo` ends with it. No address is given.
        let mut info = [0; 20];
        if is_v4 {
            info[..4].copy_from_slice(&interface.to_ne_bytes());
            self.with(libc::IPPROTO_IP, libc::IP_PKTINFO, &info[..12])
        } else {
            info[16..].copy_from_slice(&interface.to_ne_bytes());
            self.with(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
        }
    }

    fn with(mut self, level: i32, kind: i32, data: &[u8]) -> Self {
        let len = size_of::<libc::cmsghdr>() + data.len();
        let (level, kind) = (level.to_ne_bytes(), kind.to_ne_bytes());
        let mut at = self.len;
        for field in [&len.to_ne_bytes()[..], &level, &kind, data] {
            self.bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        self.len += len.next_multiple_of(size_of::<usize>());
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use socket2::SockRef;

    use super::*;

    fn wait(socket: &UdpSocket) {
        let mut entry = [rustix::event::PollFd::new(&socket.socket, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert!(rustix::event::poll(&mut entry, Some(&limit)).expect("polled") > 0, "nothing came");
    }

    #[test]
    fn a_message_of_many_packets_arrives_as_those_packets() {
        [0, 1].into_iter().for_each(many_packets_arrive);
    }

    fn many_packets_arrive(dscp: u8) {
        let bind = || UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        let (mut a, mut b) = (bind(), bind());
        a.mark(dscp, dscp > 0).expect("0 to 63");
        let to = b.socket.local_addr().expect("bound").as_socket().expect("IP");
        let bytes: Vec<u8> = (0..30_500_u32).map(|i| (i % 251) as u8).collect();
        assert!(!b.receive(|_, _| panic!("nothing was sent")).expect("no error"));
        let began = Instant::now() - Duration::from_millis(1);
        assert_eq!(a.send(to, 1_000, &bytes), Sent::Yes);
        let mut got = Vec::new();
        let mut sizes = Vec::new();
        while got.len() < bytes.len() {
            wait(&b);
            b.receive(|Received { arrived, .. }, packet| {
                assert!(arrived >= began && arrived <= Instant::now());
                sizes.push(packet.len());
                got.extend_from_slice(packet);
            })
            .expect("no error");
        }
        assert!(got == bytes);
        assert!(sizes[..30].iter().all(|size| *size == 1_000) && sizes[30] == 500, "{sizes:?}");
    }

    #[test]
    fn a_successor_whose_port_is_taken_sends_from_another() {
        let first = UdpSocket::bind("127.0.0.2:0".parse().expect("valid"), |_| {}).expect("loopback");
        let port =
            |socket: &UdpSocket| socket.socket.local_addr().expect("bound").as_socket().expect("IP").port();
        let _other = std::net::UdpSocket::bind(("127.0.0.3", port(&first))).expect("free");
        let second = first.successor("0.0.0.0".parse().expect("valid"), |_| {}).expect("another port");
        assert_ne!(port(&second), port(&first));
    }

    #[test]
    fn a_successor_receives_at_the_same_port_on_another_address() {
        let bind = |at: &str| UdpSocket::bind(at.parse().expect("valid"), |_| {});
        let first = bind("127.0.0.2:0").expect("loopback");
        let port = first.socket.local_addr().expect("bound").as_socket().expect("IP").port();
        let mut second = first.successor("0.0.0.0".parse().expect("valid"), |_| {}).expect("the same port");
        let third = bind(&format!("127.0.0.3:{port}"));
        assert!(third.is_err(), "nobody else may have the port");
        drop(first);
        let from = bind("127.0.0.1:0").expect("loopback");
        assert_eq!(from.send(format!("127.0.0.2:{port}").parse().expect("valid"), 3, b"abc"), Sent::Yes);
        wait(&second);
        let mut got = Vec::new();
        second.receive(|_, packet| got.extend_from_slice(packet)).expect("no error");
        assert_eq!(got, b"abc");
    }

    /// There is one interface that leads to loopback addresses, so another one shows that the choice reaches the kernel.
    #[test]
    fn packets_leave_by_the_interface_that_was_chosen_for_their_host() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let bind = || UdpSocket::bind(own.parse().expect("valid"), |_| {});
            let (Ok(mut a), Ok(mut b)) = (bind(), bind()) else { continue };
            let to = b.socket.local_addr().expect("bound").as_socket().expect("IP");
            assert!(a.leave_by(to.ip(), Some("nonesuch0")).is_err());
            a.leave_by(to.ip(), Some("lo")).expect("every host has it");
            let bytes = [7; 2500];
            assert_eq!(a.send(to, 1_000, &bytes), Sent::Yes);
            let mut sizes = Vec::new();
            while sizes.iter().sum::<usize>() < bytes.len() {
                wait(&b);
                b.receive(|_, packet| sizes.push(packet.len())).expect("no error");
            }
            assert_eq!(sizes, [1_000, 1_000, 500]);
            // No interface has the highest index.
            a.by.insert(to.ip(), i32::MAX as u32);
            assert_eq!(a.send(to, 1_000, &bytes), Sent::Dropped, "{own}");
            a.leave_by(to.ip(), None).expect("always possible");
            assert_eq!(a.send(to, 1_000, &bytes), Sent::Yes);
        }
    }

    #[test]
    fn what_there_was_no_room_for_is_told_once() {
        let bind = || UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        let (a, mut b) = (bind(), bind());
        b.socket.set_recv_buffer_size(64 << 10).expect("less is always possible");
        let to = b.socket.local_addr().expect("bound").as_socket().expect("IP");
        assert_eq!(b.take_dropped(), 0);
        (0..1_000).for_each(|_| assert_eq!(a.send(to, 1_000, &[7; 1_000]), Sent::Yes));
        let mut came = 0;
        while b.receive(|_, _| came += 1).expect("no error") {}
        let dropped = b.take_dropped();
        assert!(came > 0 && came + dropped == 1_000, "{came} came, {dropped} were dropped");
        assert_eq!(b.take_dropped(), 0);
    }

    #[test]
    fn what_the_interface_does_not_carry_is_dropped_and_harms_nothing() {
        let a = UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        assert_eq!(a.send("127.0.0.1:9".parse().expect("valid"), 70_000, &[0; 70_000]), Sent::TooLong);
    }

    /// The kernel says EINVAL for both a message that it does not cut, and a destination that cannot be.
    #[test]
    fn messages_that_the_system_does_not_cut_go_as_packets() {
        let bind = || UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        let (a, mut b) = (bind(), bind());
        let most = a.packets_max();
        let nowhere = "127.0.0.1:0".parse().expect("valid");
        assert_eq!(a.send(nowhere, 1_000, &[7; 2_500]), Sent::Dropped, "it is not too long");
        assert_eq!(a.packets_max(), most, "cutting was not what was refused");
        // More packets than any kernel cuts a message into.
        let to = b.socket.local_addr().expect("bound").as_socket().expect("IP");
        let bytes: Vec<u8> = (0..400 * 20_u32).map(|i| (i % 251) as u8).collect();
        assert_eq!(a.send(to, 20, &bytes), Sent::Yes);
        assert_eq!(a.packets_max(), 1);
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            wait(&b);
            b.receive(|_, packet| got.extend_from_slice(packet)).expect("no error");
        }
        assert!(got == bytes);
    }

    #[test]
    fn packets_that_this_host_refuses_are_dropped_and_the_reason_is_told_once() {
        let a = UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        assert!(a.take_own_refusal().is_none());
        // The system forbids broadcasts on a socket that did not enable them, as a firewall forbids other packets.
        assert_eq!(a.send("255.255.255.255:9".parse().expect("valid"), 10, &[0; 10]), Sent::Dropped);
        let refusal = a.take_own_refusal().expect("it was refused here");
        assert_eq!(refusal.raw_os_error(), Some(libc::EACCES));
        assert!(a.take_own_refusal().is_none());
        // A packet that is too long for an interface is not this host's fault.
        assert_eq!(a.send("127.0.0.1:9".parse().expect("valid"), 70_000, &[0; 70_000]), Sent::TooLong);
        assert!(a.take_own_refusal().is_none());
    }

    #[test]
    fn an_interface_that_refuses_time_and_again_has_dropped_the_packets() {
        let refused = Refused::default();
        for _ in 0..2 {
            assert!((1..REFUSALS_MAX).all(|_| refused.note(true, Sent::BLOCKED) == Sent::BLOCKED));
            assert_eq!(refused.note(true, Sent::BLOCKED), Sent::Dropped);
        }
        assert_eq!(refused.note(true, Sent::BLOCKED), Sent::BLOCKED);
        assert_eq!(refused.note(false, Sent::Yes), Sent::Yes);
        assert!(
            (1..REFUSALS_MAX).all(|_| refused.note(true, Sent::BLOCKED) == Sent::BLOCKED),
            "it began anew"
        );
    }

    #[test]
    fn a_port_where_nobody_listens_is_told_of() {
        let mut a = UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        let gone = UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        let to = gone.socket.local_addr().expect("bound").as_socket().expect("IP");
        drop(gone);
        assert_eq!(a.send(to, 10, &[0; 10]), Sent::Yes);
        let mut hosts = Vec::new();
        while hosts.is_empty() {
            let _ = a.receive(|_, _| panic!("nothing was sent"));
            a.refusals(|report| hosts.push(report));
        }
        assert_eq!(hosts, [Unreachable { to, from: to.ip(), is_port: true }]);
    }

    #[test]
    fn a_mark_of_a_router_is_seen() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let at: SocketAddr = host.parse().expect("valid");
            let mut receiver = UdpSocket::bind(at, |_| {}).expect("loopback");
            let to = receiver.socket.local_addr().expect("bound").as_socket().expect("IP");
            let sender = std::net::UdpSocket::bind(at).expect("loopback");
            for class in [0, 2, 3, 10 << 2 | 3] {
                set_class(&SockRef::from(&sender), class).expect("a class");
                sender.send_to(&[class], to).expect("sent");
                wait(&receiver);
                let mut seen = Vec::new();
                receiver
                    .receive(|received, packet| seen.push((received.marked, packet.to_vec())))
                    .expect("it came");
                assert_eq!(seen, [(class & 3 == 3, vec![class])], "{host}");
            }
        }
    }
}
