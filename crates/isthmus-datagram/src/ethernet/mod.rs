//! Sockets for Ethernet frames of our own ethertype, without IP, within a broadcast domain.
//!
//! A socket has an address and a port like UDP's. Ethernet addresses of others are found by
//! broadcast ([`neighbours`]). A host's own processes are not reached: they have other lanes.
//! The kernel delivers only frames to the socket's port ([`frame::filter`]).

mod frame;
mod neighbours;
mod sys;

use std::fmt::Arguments;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use socket2::Socket;

use crate::Received;
use crate::clocks::Clocks;
use crate::{OwnRefusal, Sent, enlarge, is_full};
pub use frame::{FRAME_HEADER_BYTES, header as frame_header, parse as parse_frame};
use neighbours::{Neighbours, Resolved};

/// An Ethernet address.
type Mac = [u8; 6];

const EVERYBODY: Mac = [0xff; 6];
/// ARPHRD_ETHER and ARPHRD_LOOPBACK of `if_arp.h`.
const HARDWARE: [u16; 2] = [1, 772];
/// PACKET_HOST of `if_packet.h`: addressed to this host.
const TO_US: u8 = 0;
/// Broadcast: PACKET_BROADCAST or, as the loopback interface calls it, PACKET_MULTICAST.
const TO_ALL: [u8; 2] = [1, 2];
/// Smallest MTU that carries the shortest packets of streams. Bytes.
const MTU_MIN: u32 = 1_280;
/// Frames up to this length can be read even if the MTU was smaller at the start. Bytes.
const FRAME_MIN: usize = 9_216;
/// Most frames of one message, sent in batches. Count.
const PACKETS_MAX: usize = 64;
/// Most answers after one read: others will ask again. Count.
const ANSWERS_MAX: usize = sys::BATCH;

/// Why an interface cannot carry frames.
#[derive(Debug, thiserror::Error)]
pub enum EthernetError {
    /// The process lacks the capability.
    #[error(
        "raw Ethernet needs the capability CAP_NET_RAW: give it to the program \
         (setcap cap_net_raw+ep PROGRAM) or to the service (AmbientCapabilities=CAP_NET_RAW), \
         run as root, or set transport to udp"
    )]
    Forbidden,
    /// No interface has this name.
    #[error("no interface `{0}` on this host: set `interface` to the name of an Ethernet interface")]
    Unknown(String),
    /// The interface is down.
    #[error("interface {0} is down: bring it up (ip link set {0} up)")]
    Down(String),
    /// The interface is no Ethernet, but for example InfiniBand or a tunnel.
    #[error("interface {0} is no Ethernet: set `interface` to one that is, or transport to udp")]
    Other(String),
    /// The MTU is too small.
    #[error("interface {0} has an MTU of {1}: raise it to 1280 or more (ip link set {0} mtu 1500)")]
    Mtu(String, u32),
    /// Another error of the system.
    #[error("no frames by interface {0}: {1}")]
    System(String, io::Error),
}

/// An interface that carries frames.
#[derive(Clone, Debug)]
pub struct Interface {
    name: String,
    found: sys::Found,
}

impl Interface {
    /// The interface of this name.
    ///
    /// # Errors
    /// [`EthernetError`], except for the capability, which is not checked.
    pub fn find(name: &str) -> Result<Self, EthernetError> {
        let found = sys::find(name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => EthernetError::Unknown(name.to_owned()),
            _ => EthernetError::System(name.to_owned(), error),
        })?;
        let name = name.to_owned();
        if !HARDWARE.contains(&found.hardware) {
            return Err(EthernetError::Other(name));
        }
        if !found.up {
            return Err(EthernetError::Down(name));
        }
        if found.mtu < MTU_MIN {
            return Err(EthernetError::Mtu(name, found.mtu));
        }
        Ok(Self { name, found })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Longest packet that it carries, [`FRAME_HEADER_BYTES`] included. Bytes.
    pub fn mtu(&self) -> u32 {
        self.found.mtu
    }

    /// Its IPv6 address if it has no IP address: see [`link_local_of`].
    pub fn link_local(&self) -> Ipv6Addr {
        link_local_of(self.found.mac)
    }
}

/// MTU of an interface of any kind. Bytes.
///
/// # Errors
/// The system's, such as `ENODEV` if there is no interface of this name.
pub fn mtu_of(interface: &str) -> io::Result<u32> {
    sys::find(interface).map(|found| found.mtu)
}

/// Whether an interface of any kind can carry packets now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It can, as far as the system knows.
    Up,
    /// It is up, but its cable is unplugged or the other end is off.
    NoCarrier,
    /// It was taken down.
    Down,
    /// No interface has this name.
    Gone,
}

/// The state of the interface of this name.
pub fn link_state(interface: &str) -> LinkState {
    match sys::find(interface) {
        Ok(found) if !found.up => LinkState::Down,
        Ok(found) if !found.running => LinkState::NoCarrier,
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => LinkState::Gone,
        // If the system does not tell, nothing is known to be wrong.
        Ok(_) | Err(_) => LinkState::Up,
    }
}

/// Whether the interface is a bridge. One without ports has a carrier as far as the kernel says, and leads nowhere.
pub fn is_bridge(interface: &str) -> bool {
    sys::driver_of(interface).is_ok_and(|driver| driver == "bridge")
}

/// The IPv6 address derived from an Ethernet address (RFC 4291, appendix A).
pub fn link_local_of(mac: [u8; 6]) -> Ipv6Addr {
    let mut octets = [0; 16];
    (octets[0], octets[1]) = (0xfe, 0x80);
    octets[8..11].copy_from_slice(&mac[..3]);
    octets[8] ^= 2;
    (octets[11], octets[12]) = (0xff, 0xfe);
    octets[13..].copy_from_slice(&mac[3..]);
    octets.into()
}

/// Whether an address belongs to an interface without IP, which only frames reach.
pub fn is_frames_only(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether this process may send and receive frames.
///
/// # Errors
/// [`EthernetError::Forbidden`], or the system's.
pub fn may_open() -> Result<(), EthernetError> {
    sys::open().map(drop).map_err(|error| refusal("", error))
}

fn refusal(name: &str, error: io::Error) -> EthernetError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => EthernetError::Forbidden,
        _ => EthernetError::System(name.to_owned(), error),
    }
}

/// A socket for frames. It never blocks.
#[derive(Debug)]
pub struct EthernetSocket {
    socket: Socket,
    own: SocketAddr,
    index: i32,
    neighbours: Neighbours,
    /// Senders of broadcasts, which an empty frame will answer.
    asking: Vec<SocketAddr>,
    /// Buffers for the frames of one read.
    room: Vec<u8>,
    frame_max: usize,
    clocks: Clocks,
    own_refusal: OwnRefusal,
}

impl EthernetSocket {
    /// Opens a socket for frames to `own` at an interface. It never blocks. The caller must hold the
    /// listener or UDP socket of the same address and port, so that no other process of this host
    /// has them. `say` is told which features are missing.
    ///
    /// # Errors
    /// [`EthernetError`].
    pub fn open(at: &Interface, own: SocketAddr, say: impl Fn(Arguments<'_>)) -> Result<Self, EthernetError> {
        let socket = sys::open().map_err(|error| refusal(&at.name, error))?;
        enlarge(&socket, "Ethernet", say);
        // The filter comes first: an unbound socket receives nothing.
        socket
            .attach_filter(&frame::filter(own))
            .and_then(|()| sys::bind(&socket, at.found.index, frame::ETHERTYPE))
            .map_err(|error| refusal(&at.name, error))?;
        let frame_max = FRAME_MIN.max(at.found.mtu as usize);
        Ok(Self {
            socket,
            own,
            index: at.found.index,
            neighbours: Neighbours::new(Instant::now()),
            asking: Vec::with_capacity(ANSWERS_MAX),
            room: vec![0; sys::BATCH * frame_max],
            frame_max,
            clocks: Clocks::new(),
            own_refusal: OwnRefusal::default(),
        })
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Most packets in one message.
    pub fn packets_max(&self) -> usize {
        PACKETS_MAX
    }

    /// Reads a bounded number of packets. Gives each to `take`, with its sender and the time at which
    /// the system received it. `Ok(false)`: there were none.
    ///
    /// # Errors
    /// The system's, such as that the interface is down.
    pub fn receive(&mut self, mut take: impl FnMut(Received, &mut [u8])) -> io::Result<bool> {
        let Self { socket, own, neighbours, asking, room, frame_max, clocks, .. } = self;
        let mut now = None;
        let came = sys::receive(socket.as_fd(), room, *frame_max, |origin, frame| {
            let now = *now.get_or_insert_with(|| {
                clocks.compare();
                Instant::now()
            });
            let Some((from, to, packet)) = frame::parse(frame) else { return };
            let to_all = TO_ALL.contains(&origin.kind);
            if to != *own || !to_all && origin.kind != TO_US {
                return;
            }
            neighbours.learn(now, from.ip(), origin.mac);
            if to_all && asking.len() < ANSWERS_MAX && !asking.contains(&from) {
                asking.push(from);
            }
            if !packet.is_empty() {
                let arrived = origin.at.map_or(now, |at| clocks.arrived(now, at));
                take(Received { from, arrived, marked: false }, packet);
            }
        });
        self.answer();
        match came {
            Ok(count) => Ok(count > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Answers those who broadcast, so that they learn our Ethernet address.
    fn answer(&mut self) {
        let now = Instant::now();
        while let Some(asking) = self.asking.pop() {
            if let Resolved::To(mac, _) = self.neighbours.resolve(now, asking.ip(), 1) {
                // If an answer is lost, the peer asks again.
                let _ = self.send_to(mac, asking, 1, &[]);
            }
        }
    }

    /// Whether the Ethernet address of an IP address is known.
    pub fn knows(&self, ip: IpAddr) -> bool {
        self.neighbours.knows(ip)
    }

    /// Sends packets of `segment` bytes each. The last one may be shorter.
    pub fn send(&mut self, to: SocketAddr, segment: usize, packets: &[u8]) -> Sent {
        let segment = segment.max(1);
        let mac = match self.neighbours.resolve(Instant::now(), to.ip(), packets.len().div_ceil(segment)) {
            Resolved::To(mac, ask) => {
                if ask {
                    let _ = self.send_to(EVERYBODY, to, 1, &[]);
                }
                mac
            }
            Resolved::Broadcast => EVERYBODY,
            Resolved::None => return Sent::Dropped,
        };
        match self.send_to(mac, to, segment, packets) {
            Ok(sent) if sent >= packets.len() => Sent::Yes,
            Ok(sent) => Sent::Partly(sent),
            Err(error) => {
                self.own_refusal.note(&error);
                Sent::Dropped
            }
        }
    }

    /// As [`crate::PacketSocket::take_own_refusal`].
    pub fn take_own_refusal(&self) -> Option<io::Error> {
        self.own_refusal.take()
    }

    /// Sends packets. Returns how many of their bytes the system took; 0 for an empty packet.
    fn send_to(&self, mac: Mac, to: SocketAddr, segment: usize, packets: &[u8]) -> io::Result<usize> {
        let address = sys::address(self.index, mac, frame::ETHERTYPE);
        let whole = frame::header(self.own, to, segment.min(packets.len()));
        let tail = frame::header(self.own, to, packets.len() % segment);
        if packets.is_empty() {
            return sys::send(self.fd(), &address, [(&tail[..], packets)].into_iter());
        }
        let mut sent = 0;
        while sent < packets.len() {
            let frames = packets[sent..].chunks(segment).take(sys::BATCH);
            let frames =
                frames.map(|packet| (if packet.len() == segment { &whole[..] } else { &tail[..] }, packet));
            match sys::send(self.fd(), &address, frames) {
                Ok(count) => sent = packets.len().min(sent + count * segment),
                Err(error) if is_full(&error) => break,
                // The frames before it were sent. The rest counts as lost.
                Err(_) if sent > 0 => return Ok(packets.len()),
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests;
