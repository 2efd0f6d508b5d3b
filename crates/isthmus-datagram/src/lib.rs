//! Sockets that send and receive packets in batches, never fragmented, with their time of arrival:
//! over UDP, or as Ethernet frames of our own ethertype.
//!
//! `unsafe` is in `errors.rs`, `ethernet/sys.rs`, `flow_label.rs` and `memory.rs` only.

#![deny(unsafe_code)]

mod clocks;
pub mod crowd;
mod errors;
mod ethernet;
pub mod flow_label;
mod labels;
mod memory;
pub mod scarcity;
mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

pub use errors::Unreachable;
pub use ethernet::{
    EthernetError, EthernetSocket, FRAME_HEADER_BYTES, Interface, LinkState, frame_header, is_bridge,
    is_frames_only, link_local_of, link_state, may_open, mtu_of, parse_frame,
};
pub use labels::Labels;
pub use udp::{SEND_BYTES, UdpSocket, mark};

/// Requested receive buffer: what arrives at 10 Gb/s while the program does not read for about
/// 13 ms. Bytes.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Requested buffer for packets that the interface has not taken yet. Bytes.
const SEND_BUFFER: usize = 4 << 20;
/// With a smaller receive buffer, packets get lost as soon as the program computes. Bytes.
const RECEIVE_BUFFER_MIN: usize = 2 << 20;

/// Result of sending a batch of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All were sent.
    Yes,
    /// This many bytes were sent. There is no room now for the rest.
    Partly(usize),
    /// These packets were dropped: too long for the interface.
    TooLong,
    /// These packets were dropped: no route, or an error of earlier ones.
    Dropped,
}

impl Sent {
    /// No room now.
    pub const BLOCKED: Self = Self::Partly(0);
}

/// What the system says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its sender.
    pub from: SocketAddr,
    /// When the system received it.
    pub arrived: Instant,
    /// A router has marked it, since its queue grows (CE of RFC 3168).
    pub marked: bool,
}

/// A socket of either kind.
#[derive(Debug)]
pub enum PacketSocket {
    /// UDP datagrams.
    Udp(UdpSocket),
    /// Ethernet frames.
    Ethernet(EthernetSocket),
}

impl PacketSocket {
    /// Name of the transport, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Udp(_) => "UDP",
            Self::Ethernet(_) => "Ethernet",
        }
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(socket) => socket.fd(),
            Self::Ethernet(socket) => socket.fd(),
        }
    }

    /// Most packets in one message.
    pub fn packets_max(&self) -> usize {
        match self {
            Self::Udp(socket) => socket.packets_max(),
            Self::Ethernet(socket) => socket.packets_max(),
        }
    }

    /// As [`UdpSocket::receive`].
    ///
    /// # Errors
    /// As there.
    pub fn receive(&mut self, take: impl FnMut(Received, &mut [u8])) -> io::Result<bool> {
        match self {
            Self::Udp(socket) => socket.receive(take),
            Self::Ethernet(socket) => socket.receive(take),
        }
    }

    /// Sends packets of `segment` bytes each. The last one may be shorter.
    pub fn send(&mut self, to: SocketAddr, segment: usize, packets: &[u8]) -> Sent {
        match self {
            Self::Udp(socket) => socket.send(to, segment, packets),
            Self::Ethernet(socket) => socket.send(to, segment, packets),
        }
    }

    /// As [`UdpSocket::leave_by`]. Frames have one interface.
    ///
    /// # Errors
    /// As there.
    pub fn leave_by(&mut self, host: IpAddr, interface: Option<&str>) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.leave_by(host, interface),
            Self::Ethernet(_) => Ok(()),
        }
    }

    /// About how many packets the system has dropped since the last call because the receive buffer was full. 0 if
    /// unknown.
    pub fn take_dropped(&mut self) -> u64 {
        match self {
            Self::Udp(socket) => socket.take_dropped(),
            Self::Ethernet(_) => 0,
        }
    }

    /// The error with which this host itself refused packets since the last call, if it has a remedy
    /// ([`scarcity::remedy`]).
    pub fn take_own_refusal(&mut self) -> Option<io::Error> {
        match self {
            Self::Udp(socket) => socket.take_own_refusal(),
            Self::Ethernet(socket) => socket.take_own_refusal(),
        }
    }

    /// As [`UdpSocket::refusals`]. Ethernet has none.
    pub fn refusals(&self, tell: impl FnMut(Unreachable)) {
        if let Self::Udp(socket) = self {
            socket.refusals(tell);
        }
    }
}

/// Number of the last error with which this host itself refused packets; 0 if there is none.
#[derive(Debug, Default)]
struct OwnRefusal(AtomicI32);

impl OwnRefusal {
    fn note(&self, error: &io::Error) {
        if scarcity::remedy(error).is_some() {
            self.0.store(error.raw_os_error().unwrap_or(0), Ordering::Relaxed);
        }
    }

    fn take(&self) -> Option<io::Error> {
        // Usually there is none. Then nothing is written.
        let errno = self.0.load(Ordering::Relaxed);
        (errno != 0).then(|| {
            self.0.store(0, Ordering::Relaxed);
            io::Error::from_raw_os_error(errno)
        })
    }
}

/// Whether the system had no room for the packets.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Requests large buffers, beyond the system's limits if permitted. Tells `say` if the receive
/// buffer stays small.
fn enlarge(socket: &socket2::Socket, kind: &str, say: impl Fn(std::fmt::Arguments<'_>)) {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER).is_err() {
        let _ = socket.set_send_buffer_size(SEND_BUFFER);
    }
    // The system reports twice the size that was requested.
    let room = socket.recv_buffer_size().unwrap_or(0);
    if room < 2 * RECEIVE_BUFFER_MIN {
        say(format_args!(
            "{kind} packets get lost while the program computes: the system gives room for {} KiB; \
             let the administrator set net.core.rmem_max to {RECEIVE_BUFFER}",
            room / 2048
        ));
    }
}
