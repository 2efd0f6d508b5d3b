//! A UDP socket: packets in batches, both ways, never split up on the way, and when they came.

#![forbid(unsafe_code)]

use std::fmt::Arguments;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

/// Room that is asked of the system for packets that came and were not yet read: what comes
/// at 10 Gb/s while nobody looks for some milliseconds. Bytes.
const RECEIVE_BUFFER: usize = 16 << 20;
/// The same for packets that the interface has not yet taken. Bytes.
const SEND_BUFFER: usize = 4 << 20;
/// With less than this, packets get lost here as soon as the program computes. Bytes.
const RECEIVE_BUFFER_LEAST: usize = 2 << 20;
/// Messages that are read at once; with GRO each may be many packets.
const MESSAGES: usize = 8;
/// Longest message. Bytes.
const MESSAGE_BYTES: usize = 1 << 16;
/// Most bytes that go in one message.
pub const SEND_BYTES: usize = 64_000;
/// A packet that claims to have waited longer has a clock that was set.
const WAITED_MAX: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    state: UdpSocketState,
    /// Room for the messages of one read.
    room: Vec<u8>,
    metas: [RecvMeta; MESSAGES],
    clocks: Clocks,
}

/// What sending came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All of them.
    Yes,
    /// No room now.
    Blocked,
    /// Not these packets: too long for the interface, no way there, or an error of earlier ones.
    Dropped,
}

impl UdpSocket {
    /// A socket bound to `at`, that never blocks. `say` is told what it has to do without.
    ///
    /// # Errors
    /// The system's, such as `AddrInUse`.
    pub fn bind(at: SocketAddr, say: impl Fn(Arguments<'_>)) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&at.into())?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Where nobody listens any more, the system of that host says so.
        if let Err(error) = state.enable_transport_errors(UdpSockRef::from(&socket)) {
            say(format_args!("ended processes will be noticed late: {error}"));
        }
        enlarge(&socket, say);
        let room = vec![0; MESSAGES * MESSAGE_BYTES];
        Ok(Self { socket, state, room, metas: Default::default(), clocks: Clocks::new() })
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Most packets that go in one message.
    pub fn packets_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Reads what has come, up to a bound, and gives each packet to `take` with whom it is
    /// from and when the system got it. `Ok(false)`: nothing came.
    ///
    /// # Errors
    /// The system's, which concerns packets sent earlier; see [`UdpSocket::refusals`].
    pub fn receive(&mut self, mut take: impl FnMut(SocketAddr, Instant, &mut [u8])) -> io::Result<bool> {
        let mut chunks = self.room.chunks_mut(MESSAGE_BYTES);
        let mut slices: [IoSliceMut<'_>; MESSAGES] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let count = match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut self.metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        self.clocks.compare();
        let now = Instant::now();
        for (message, meta) in slices.iter_mut().zip(&self.metas[..count]) {
            let arrived = meta.timestamp.map_or(now, |at| self.clocks.arrived(now, at));
            for packet in message[..meta.len].chunks_mut(meta.stride.max(1)) {
                take(meta.addr, arrived, packet);
            }
        }
        Ok(count > 0)
    }

    /// Sends packets of `segment` bytes each, of which the last may be shorter.
    pub fn send(&self, to: SocketAddr, segment: usize, packets: &[u8]) -> Sent {
        let transmit = quinn_udp::Transmit {
            destination: to,
            ecn: None,
            contents: packets,
            segment_size: (packets.len() > segment).then_some(segment),
            src_ip: None,
        };
        match self.state.try_send(UdpSockRef::from(&self.socket), &transmit) {
            Ok(()) => Sent::Yes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Blocked,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Sent::Blocked,
            Err(_) => Sent::Dropped,
        }
    }

    /// Empties the system's queue of errors, and gives `tell` the hosts that said that
    /// nobody listens at a port of theirs.
    pub fn refusals(&self, mut tell: impl FnMut(IpAddr)) {
        while let Ok(Some(error)) = self.state.recv_transport_error(UdpSockRef::from(&self.socket)) {
            if error.raw_errno == libc::ECONNREFUSED
                && let Some(host) = error.addr
            {
                tell(host.ip());
            }
        }
    }
}

/// The system stamps packets by the wall clock; all else goes by one that never steps.
#[derive(Debug)]
struct Clocks {
    steady: Instant,
    wall: SystemTime,
}

impl Clocks {
    /// Both clocks read within so short a time are read at once.
    const AT_ONCE: Duration = Duration::from_micros(20);
    /// Attempts at that; beyond, the last comparison holds.
    const TRIES: usize = 3;

    fn new() -> Self {
        let mut clocks = Self { steady: Instant::now(), wall: SystemTime::now() };
        clocks.compare();
        clocks
    }

    /// Reads both. One who is interrupted between them would take packets for older than they
    /// are, and every later one for delayed.
    fn compare(&mut self) {
        for _ in 0..Self::TRIES {
            let (steady, wall) = (Instant::now(), SystemTime::now());
            if steady.elapsed() < Self::AT_ONCE {
                (self.steady, self.wall) = (steady, wall);
                return;
            }
        }
    }

    /// When a packet came that is stamped `at`, time since 1970; `now` where that is absurd.
    fn arrived(&self, now: Instant, at: Duration) -> Instant {
        let at = SystemTime::UNIX_EPOCH + at;
        let arrived = match at.duration_since(self.wall) {
            Ok(later) => self.steady + later,
            Err(earlier) => self.steady.checked_sub(earlier.duration()).unwrap_or(now),
        };
        if arrived <= now && now - arrived <= WAITED_MAX { arrived } else { now }
    }
}

/// Asks for large buffers, beyond the system's limits where we may.
fn enlarge(socket: &Socket, say: impl Fn(Arguments<'_>)) {
    if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER).is_err() {
        let _ = socket.set_send_buffer_size(SEND_BUFFER);
    }
    // The system counts twice what was asked for.
    let room = socket.recv_buffer_size().unwrap_or(0);
    if room < 2 * RECEIVE_BUFFER_LEAST {
        say(format_args!(
            "UDP packets get lost while the program computes: the system gives room for {} KiB; \
             let the administrator set net.core.rmem_max to {RECEIVE_BUFFER}",
            room / 2048
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(socket: &UdpSocket) {
        let mut entry = [rustix::event::PollFd::new(&socket.socket, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert!(rustix::event::poll(&mut entry, Some(&limit)).expect("polled") > 0, "nothing came");
    }

    #[test]
    fn a_message_of_many_packets_arrives_as_those_packets() {
        let bind = || UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        let (a, mut b) = (bind(), bind());
        let to = b.socket.local_addr().expect("bound").as_socket().expect("IP");
        let bytes: Vec<u8> = (0..30_500_u32).map(|i| (i % 251) as u8).collect();
        assert!(!b.receive(|_, _, _| panic!("nothing was sent")).expect("no error"));
        let began = Instant::now() - Duration::from_millis(1);
        assert_eq!(a.send(to, 1_000, &bytes), Sent::Yes);
        let mut got = Vec::new();
        let mut sizes = Vec::new();
        while got.len() < bytes.len() {
            wait(&b);
            b.receive(|_, arrived, packet| {
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
    fn what_the_interface_does_not_carry_is_dropped_and_harms_nothing() {
        let a = UdpSocket::bind("127.0.0.1:0".parse().expect("valid"), |_| {}).expect("loopback");
        assert_eq!(a.send("127.0.0.1:9".parse().expect("valid"), 70_000, &[0; 70_000]), Sent::Dropped);
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
            let _ = a.receive(|_, _, _| panic!("nothing was sent"));
            a.refusals(|host| hosts.push(host));
        }
        assert_eq!(hosts, [to.ip()]);
    }
}
