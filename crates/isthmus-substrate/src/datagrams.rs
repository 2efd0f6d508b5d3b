//! The UDP socket for messages of unreliable connections.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use isthmus_wire::conversation::DatagramHeader;

/// Longest UDP payload. Bytes.
const UDP_MAX: usize = 65_507;
/// Longest message that a datagram carries. Bytes.
pub(crate) const DATAGRAM_MAX: u32 = (UDP_MAX - DatagramHeader::LEN) as u32;
/// What the kernel is asked to keep of datagrams that come in. Bytes.
const KERNEL_BUFFER: usize = 4 << 20;
/// Buffers that are kept for further datagrams.
const SPARES_MAX: usize = 64;

/// The socket, and buffers for what comes.
#[derive(Debug)]
pub(crate) struct Datagrams {
    socket: UdpSocket,
    port: u16,
    scratch: Vec<u8>,
    /// What has come and was not taken yet, by slot.
    waiting: slab::Slab<Vec<u8>>,
    waiting_max: usize,
    spares: Vec<Vec<u8>>,
    /// Datagrams that were dropped for want of room, here or on the way out.
    pub(crate) dropped: u64,
}

impl Datagrams {
    /// A socket at this address, at any port. At most `waiting_max` datagrams wait for the
    /// program.
    pub(crate) fn open(ip: IpAddr, waiting_max: usize) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(ip, 0))?;
        socket.set_nonblocking(true)?;
        // As much as the system allows; less only means more losses.
        let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(KERNEL_BUFFER);
        Ok(Self {
            port: socket.local_addr()?.port(),
            socket,
            scratch: vec![0; UDP_MAX + 1],
            waiting: slab::Slab::new(),
            waiting_max,
            spares: Vec::new(),
            dropped: 0,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set_waiting_max(&mut self, count: usize) {
        self.waiting_max = count;
    }

    /// Sends one, if the system takes it now.
    pub(crate) fn send(&mut self, to: SocketAddr, header: DatagramHeader, pieces: &[IoSlice<'_>]) {
        let mut len = DatagramHeader::LEN;
        self.scratch[..len].copy_from_slice(&header.to_bytes());
        for piece in pieces {
            let end = len + piece.len();
            if end > UDP_MAX {
                return;
            }
            self.scratch[len..end].copy_from_slice(piece);
            len = end;
        }
        // Full buffers, and peers that are gone, are losses like others.
        if self.socket.send_to(&self.scratch[..len], to).is_err() {
            self.dropped += 1;
        }
    }

    /// Takes one in; its header, slot and length. `None`: there is none now.
    pub(crate) fn receive(&mut self) -> Option<(DatagramHeader, u32, u32)> {
        loop {
            let len = match self.socket.recv(&mut self.scratch) {
                Ok(len) => len,
                // An earlier datagram's bounce.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return None,
            };
            let Some(header) = DatagramHeader::from_bytes(&self.scratch[..len]) else { continue };
            if self.waiting.len() >= self.waiting_max {
                self.dropped += 1;
                continue;
            }
            let mut bytes = self.spares.pop().unwrap_or_default();
            bytes.extend_from_slice(&self.scratch[DatagramHeader::LEN..len]);
            let len = bytes.len() as u32;
            return Some((header, self.waiting.insert(bytes) as u32, len));
        }
    }

    /// Hands one over.
    pub(crate) fn take(&mut self, slot: u32) -> Vec<u8> {
        self.waiting.try_remove(slot as usize).unwrap_or_default()
    }

    /// A buffer for further ones.
    pub(crate) fn give_back(&mut self, mut bytes: Vec<u8>) {
        if self.spares.len() < SPARES_MAX {
            bytes.clear();
            self.spares.push(bytes);
        }
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
