//! The sockets for messages of UU connections: UDP, and on an Ethernet device also frames, for peers on other hosts.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use isthmus_datagram::scarcity::Sparing;
use isthmus_datagram::{EthernetSocket, FRAME_HEADER_BYTES, Interface, is_frames_only};
use isthmus_io::DatagramCounts;
use isthmus_proto::PeerId;
use isthmus_wire::conversation::DatagramHeader;

/// Longest UDP payload. Bytes.
const UDP_MAX: usize = 65_507;
/// Longest message that a datagram carries. Bytes.
pub(crate) const DATAGRAM_MAX: u32 = (UDP_MAX - DatagramHeader::LEN) as u32;
/// Receive buffer that the kernel is asked for. Bytes.
const KERNEL_BUFFER: usize = 4 << 20;
/// Most spare buffers that are kept. Count.
const SPARES_MAX: usize = 64;

/// The sockets, and the datagrams that came.
#[derive(Debug)]
pub(crate) struct Datagrams {
    socket: UdpSocket,
    frames: Option<EthernetSocket>,
    own: SocketAddr,
    packet_max: u32,
    scratch: Vec<u8>,
    store: Store,
    /// Datagrams that could not be sent.
    unsent: u64,
    sparing: Sparing,
    /// Datagrams sent and received, by peer of the port's engine.
    counts: HashMap<PeerId, DatagramCounts>,
}

/// Datagrams that came.
#[derive(Debug)]
struct Store {
    /// Datagrams that the program has not taken yet, by slot.
    waiting: slab::Slab<Vec<u8>>,
    waiting_max: usize,
    /// Waiting datagrams that were not reported yet: header, slot and length.
    fresh: VecDeque<(DatagramHeader, u32, u32)>,
    spares: Vec<Vec<u8>>,
    /// Dropped because there was no room.
    dropped: u64,
}

impl Datagrams {
    /// Opens sockets at this address, at any port. `frames` is the interface of an Ethernet device. At most
    /// `waiting_max` datagrams wait for the program.
    pub(crate) fn open(ip: IpAddr, waiting_max: usize, frames: Option<&Interface>) -> io::Result<Self> {
        // On an interface without IP, UDP is for peers on this host.
        let bind = if is_frames_only(ip) { Ipv4Addr::LOCALHOST.into() } else { ip };
        let socket = UdpSocket::bind(SocketAddr::new(bind, 0))?;
        socket.set_nonblocking(true)?;
        // If the system allows less, more datagrams are lost.
        let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(KERNEL_BUFFER);
        let own = SocketAddr::new(ip, socket.local_addr()?.port());
        let mut packet_max = DATAGRAM_MAX;
        let frames = match frames {
            Some(interface) => {
                packet_max = interface.mtu() - FRAME_HEADER_BYTES - DatagramHeader::LEN as u32;
                Some(EthernetSocket::open(interface, own, |_| {}).map_err(io::Error::other)?)
            }
            None => None,
        };
        let store = Store {
            waiting: slab::Slab::new(),
            waiting_max,
            fresh: VecDeque::new(),
            spares: Vec::new(),
            dropped: 0,
        };
        Ok(Self {
            socket,
            frames,
            own,
            packet_max,
            scratch: vec![0; UDP_MAX + 1],
            store,
            unsent: 0,
            sparing: Sparing::new(),
            counts: HashMap::new(),
        })
    }

    /// The port of both sockets.
    pub(crate) fn port(&self) -> u16 {
        self.own.port()
    }

    /// Longest message that goes in one packet. Bytes.
    pub(crate) fn packet_max(&self) -> u32 {
        self.packet_max
    }

    pub(crate) fn set_waiting_max(&mut self, count: usize) {
        self.store.waiting_max = count;
    }

    /// The number of datagrams that this host dropped, in either direction.
    pub(crate) fn dropped(&self) -> u64 {
        self.unsent + self.store.dropped
    }

    /// Calls `each` with every descriptor that has to be watched.
    pub(crate) fn watch(&self, mut each: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        each(self.socket.as_fd())?;
        self.frames.iter().try_for_each(|frames| each(frames.fd()))
    }

    /// The descriptor by which most datagrams come.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.frames.as_ref().map_or(self.socket.as_fd(), EthernetSocket::fd)
    }

    /// Sends a datagram. False if the system does not take it now.
    pub(crate) fn send(&mut self, to: SocketAddr, header: DatagramHeader, pieces: &[IoSlice<'_>]) -> bool {
        let mut len = DatagramHeader::LEN;
        self.scratch[..len].copy_from_slice(&header.to_bytes());
        for piece in pieces {
            let end = len + piece.len();
            if end > UDP_MAX {
                return false;
            }
            self.scratch[len..end].copy_from_slice(piece);
            len = end;
        }
        let packet = &self.scratch[..len];
        let mut went = false;
        let mut by_frames = false;
        if let Some(frames) = &mut self.frames
            && to.ip() != self.own.ip()
        {
            // A peer that was not heard by frames yet may have UDP only: send both until that is known.
            by_frames = frames.knows(to.ip()) || is_frames_only(to.ip());
            went = frames.send(to, len, packet) == isthmus_datagram::Sent::Yes;
        }
        if !by_frames {
            let ip = if is_frames_only(to.ip()) { Ipv4Addr::LOCALHOST.into() } else { to.ip() };
            // Full buffers and peers that are gone count as losses.
            match self.socket.send_to(packet, SocketAddr::new(ip, to.port())) {
                Ok(_) => went = true,
                Err(error) => {
                    let what = format_args!("datagrams to {to} do not leave this host");
                    self.sparing.tell(what, &error, isthmus_io::log::warn);
                }
            }
        }
        self.unsent += u64::from(!went);
        went
    }

    /// Counts a datagram that was sent to a peer of the port's engine, and the bytes of its message.
    pub(crate) fn count_sent(&mut self, peer: PeerId, len: u64) {
        let counts = self.counts.entry(peer).or_default();
        (counts.sent, counts.sent_bytes) = (counts.sent + 1, counts.sent_bytes + len);
    }

    /// Counts a datagram that came from a peer of the port's engine, and the bytes of its message.
    pub(crate) fn count_received(&mut self, peer: PeerId, len: u32) {
        let counts = self.counts.entry(peer).or_default();
        (counts.received, counts.received_bytes) =
            (counts.received + 1, counts.received_bytes + u64::from(len));
    }

    /// The datagrams with a peer of the port's engine.
    pub(crate) fn counts_with(&self, peer: PeerId) -> DatagramCounts {
        self.counts.get(&peer).copied().unwrap_or_default()
    }

    /// The datagrams with each peer of the port's engine.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (PeerId, DatagramCounts)> + '_ {
        self.counts.iter().map(|(peer, counts)| (*peer, *counts))
    }

    /// Whether a datagram has been read that was not reported yet; no descriptor shows it any more.
    pub(crate) fn has_fresh(&self) -> bool {
        !self.store.fresh.is_empty()
    }

    /// Receives a datagram; returns its header, slot and length. `None` if there is none now.
    pub(crate) fn receive(&mut self) -> Option<(DatagramHeader, u32, u32)> {
        let Self { socket, frames, scratch, store, .. } = self;
        loop {
            if let Some(next) = store.fresh.pop_front() {
                return Some(next);
            }
            if let Some(frames) = frames
                && frames.receive(|_, packet| store.keep(packet)).unwrap_or(false)
            {
                continue;
            }
            match socket.recv(scratch) {
                Ok(len) => store.keep(&scratch[..len]),
                // An ICMP error about an earlier datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        }
    }

    /// Takes a datagram out.
    pub(crate) fn take(&mut self, slot: u32) -> Vec<u8> {
        self.store.waiting.try_remove(slot as usize).unwrap_or_default()
    }

    /// Takes a buffer back for further datagrams.
    pub(crate) fn give_back(&mut self, mut bytes: Vec<u8>) {
        if self.store.spares.len() < SPARES_MAX {
            bytes.clear();
            self.store.spares.push(bytes);
        }
    }
}

impl Store {
    /// Keeps a packet that came, if it is a message and there is room.
    fn keep(&mut self, packet: &[u8]) {
        let Some(header) = DatagramHeader::from_bytes(packet) else { return };
        if self.waiting.len() >= self.waiting_max {
            self.dropped += 1;
            return;
        }
        let mut bytes = self.spares.pop().unwrap_or_default();
        bytes.extend_from_slice(&packet[DatagramHeader::LEN..]);
        let len = bytes.len() as u32;
        self.fresh.push_back((header, self.waiting.insert(bytes) as u32, len));
    }
}

#[cfg(test)]
mod tests {
    use isthmus_wire::conversation::ConnectionId;

    use super::*;

    /// Anybody can send datagrams to the socket.
    #[test]
    fn datagrams_that_wait_are_bounded_and_those_of_others_are_not_kept() {
        const MOST: usize = 3;
        let mut datagrams = Datagrams::open(Ipv4Addr::LOCALHOST.into(), MOST, None).expect("a port");
        let header = DatagramHeader { to: ConnectionId::new(1, 2), token: 7 };
        for _ in 0..2 * MOST {
            datagrams.store.keep(b"ISTv, and as many bytes as a header has");
            datagrams.store.keep(&header.to_bytes()[..DatagramHeader::LEN - 1]);
        }
        assert_eq!((datagrams.store.waiting.len(), datagrams.dropped()), (0, 0));
        (0..2 * MOST).for_each(|_| datagrams.store.keep(&header.to_bytes()));
        assert_eq!((datagrams.store.waiting.len(), datagrams.dropped()), (MOST, MOST as u64));
    }
}
