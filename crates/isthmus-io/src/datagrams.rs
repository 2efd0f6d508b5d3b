//! An endpoint without connections (`FI_EP_DGRAM`). Each message is one UDP datagram, which may be lost, duplicated or
//! reordered. There is no thread: the kernel's buffer keeps datagrams until a receive is posted.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use isthmus_proto::{Channel, Completion, CompletionKind, OpError, PeerId, RecvRequest, SendRequest};
use isthmus_wire::{Address, AsId, Key, MessageHeader, SubnetId};
use parking_lot::Mutex;
use socket2::{SockAddr, SockRef};

use crate::endpoint::{random_incarnation, total};
use crate::error::{OpenError, PostError};
use crate::interface::for_tcp;
use crate::interface::mtu_at;
use crate::listen::in_range;
use crate::log::debug_log;
use crate::poller::{Bell, Poller};
use crate::{Endpoint, Settings, signals};

/// Longest UDP payload. Bytes.
const UDP_MAX: usize = 65_507;
/// Length of the UDP header. Bytes.
const UDP_HEADER: usize = 8;
/// Lengths of the headers of IPv4 and IPv6. Bytes.
const IP_HEADERS: (usize, usize) = (20, 40);
/// MTU assumed for an interface that does not tell its own. Bytes: Ethernet's.
const MTU_USUAL: usize = 1500;
/// Receive buffer that the kernel is asked for. Bytes.
const KERNEL_BUFFER: usize = 4 << 20;
/// Most datagrams that one poll takes in. Count.
const TURN_MAX: usize = 64;

/// A datagram endpoint. All calls may be made from any thread.
#[derive(Debug)]
pub struct Datagrams {
    address: Address,
    socket: UdpSocket,
    message_max: usize,
    inner: Mutex<Inner>,
    /// The thread that holds it receives.
    receiving: Mutex<()>,
    /// Watches the bell, and the socket while receives are posted.
    poller: Poller,
    bell: Bell,
    process: u32,
}

#[derive(Debug, Default)]
struct Inner {
    peers: Vec<Address>,
    numbers: HashMap<Address, PeerId>,
    posted: VecDeque<Posted>,
    done: VecDeque<(Completion, Option<Address>)>,
    /// Senders of the messages that the last poll returned; a completion's peer is an index into it.
    sources: Vec<Address>,
    /// A thread sleeps on the descriptor.
    armed: bool,
    /// Threads that sleep: polls by others do not disarm the bell for them.
    sleepers: usize,
    /// The bell was rung and has not been silenced since.
    rung: bool,
    /// The poller watches the socket.
    watched: bool,
    closed: bool,
}

/// A receive buffer of the program's.
#[derive(Debug)]
struct Posted {
    context: u64,
    notify: bool,
    pieces: [libc::iovec; Endpoint::IOV_MAX],
    count: usize,
}

// SAFETY: the pointers in it are to memory that the program lends to whichever thread receives.
unsafe impl Send for Posted {}

/// A message that came.
struct Arrival {
    header: MessageHeader,
    /// Length of the message, which may be more than the buffer took. Bytes.
    len: usize,
    from: SocketAddr,
}

impl Datagrams {
    /// Longest message from this host's address `ip`: it must fit one packet of its interface. Bytes.
    pub fn message_max_at(ip: IpAddr) -> usize {
        let mtu = mtu_at(ip);
        let header = if ip.is_ipv4() { IP_HEADERS.0 } else { IP_HEADERS.1 };
        let packet = mtu.map_or(MTU_USUAL, |mtu| mtu as usize).saturating_sub(header + UDP_HEADER);
        packet.min(UDP_MAX).saturating_sub(MessageHeader::LEN)
    }

    /// Opens an endpoint at `bind` (or at the address that the settings say, at any port).
    ///
    /// # Errors
    /// [`OpenError`], whose text says what to do.
    pub fn open(settings: &Settings, bind: Option<SocketAddr>) -> Result<Self, OpenError> {
        let ip = match bind.map(|at| at.ip()).filter(|ip| !ip.is_unspecified()) {
            Some(ip) => ip,
            None => settings.own_ip()?,
        };
        let at = SocketAddr::new(ip, bind.map_or(0, |at| at.port()));
        let socket = in_range(settings, at, |at| {
            UdpSocket::bind(for_tcp(at)).map_err(|cause| OpenError::Listen { at, cause })
        })?;
        socket.set_nonblocking(true)?;
        // If the system allows less, more datagrams are lost.
        let _ = SockRef::from(&socket).set_recv_buffer_size(KERNEL_BUFFER);
        let dscp = settings.code_point();
        if dscp != 0 {
            isthmus_datagram::mark(&SockRef::from(&socket), dscp)?;
        }
        let (poller, bell) = (Poller::new()?, Bell::new()?);
        poller.add(&bell, 0, false)?;
        let address = Address {
            as_id: AsId(settings.as_id),
            subnet: SubnetId(settings.subnet),
            locator: SocketAddr::new(ip, socket.local_addr()?.port()),
            incarnation: random_incarnation()?,
            key: Key::NONE,
        };
        Ok(Self {
            address,
            message_max: Self::message_max_at(ip),
            socket,
            inner: Mutex::default(),
            receiving: Mutex::default(),
            poller,
            bell,
            process: signals::process_number(),
        })
    }

    /// The address that peers need.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Longest message. Bytes.
    pub fn message_max(&self) -> usize {
        self.message_max
    }

    /// The index of a peer in this endpoint's table.
    ///
    /// # Errors
    /// [`PostError::Unreachable`] for an address in another subnet: datagrams take no routers.
    pub fn peer(&self, address: &Address) -> Result<PeerId, PostError> {
        let own = self.address;
        let here = (own.as_id, own.subnet) == (address.as_id, address.subnet);
        // A plain socket address says nothing of subnets.
        if !here && !address.is_wildcard() {
            return Err(PostError::Unreachable(format!(
                "{address} is in another subnet; datagrams take no routers: use an FI_EP_RDM endpoint"
            )));
        }
        let mut inner = self.inner.lock();
        if let Some(&known) = inner.numbers.get(address) {
            return Ok(known);
        }
        let peer = PeerId(inner.peers.len() as u32);
        inner.peers.push(*address);
        inner.numbers.insert(*address, peer);
        Ok(peer)
    }

    /// The sender of a message that the last poll returned.
    pub fn source(&self, peer: PeerId) -> Option<Address> {
        self.inner.lock().sources.get(peer.0 as usize).copied()
    }

    /// Sends a message; it is complete as soon as the system has it.
    ///
    /// # Errors
    /// [`PostError::Again`] while the system has no room; [`PostError::Unreachable`] if there is no route to the peer;
    /// [`PostError::Invalid`] for a message that is too long.
    ///
    /// # Safety
    /// The buffers are readable during the call.
    pub unsafe fn send(&self, request: &SendRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        self.check(request.channel, iov)?;
        if total(iov) > self.message_max as u64 {
            return Err(PostError::Invalid("longer than a datagram may be: see max_msg_size"));
        }
        let peer = self.inner.lock().peers.get(request.peer.0 as usize).copied();
        let peer = peer.ok_or(PostError::Invalid("no such peer"))?;
        let header =
            MessageHeader { to: peer.incarnation, from: self.address.incarnation, data: request.data };
        // SAFETY: by this function's contract.
        unsafe { self.send_one(&peer, header, iov) }?;
        let (kind, options) = (CompletionKind::Send(Channel::Untagged), &request.options);
        let done = Completion { len: total(iov), ..Completion::of(kind, options.context, options.notify) };
        self.finish(&mut self.inner.lock(), done, None);
        Ok(())
    }

    fn check(&self, channel: Channel, iov: &[libc::iovec]) -> Result<(), PostError> {
        if self.inner.lock().closed || self.is_foreign() {
            return Err(PostError::Invalid(
                "the endpoint is closed, or belongs to the parent of this process",
            ));
        }
        if channel != Channel::Untagged {
            return Err(PostError::Invalid("datagrams have no tags"));
        }
        if iov.len() > Endpoint::IOV_MAX {
            return Err(PostError::Invalid("more pieces than iov_limit"));
        }
        Ok(())
    }

    /// # Safety
    /// The buffers are readable during the call; there are at most [`Endpoint::IOV_MAX`].
    unsafe fn send_one(
        &self,
        peer: &Address,
        header: MessageHeader,
        iov: &[libc::iovec],
    ) -> Result<(), PostError> {
        let mut bytes = header.to_bytes();
        let mut pieces = headed(&mut bytes, iov);
        let to = SockAddr::from(for_tcp(peer.locator));
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = iov.len() + 1;
        for _ in 0..2 {
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the address, the header and the caller's buffers outlive the call.
            if unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, flags) } >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                    return Err(PostError::Again);
                }
                // This error is about an earlier datagram, whose receiver was not there.
                Some(libc::ECONNREFUSED) => {}
                Some(libc::EMSGSIZE) => return Err(PostError::Invalid("longer than the path takes")),
                _ => return Err(PostError::Unreachable(format!("no way to {peer}: {error}"))),
            }
        }
        Ok(())
    }

    /// Posts a receive buffer for the next datagram from anybody.
    ///
    /// # Errors
    /// [`PostError::Invalid`] on a closed endpoint, and for multi-receive buffers and directed receives.
    ///
    /// # Safety
    /// The buffers stay valid and untouched until the completion was polled.
    pub unsafe fn recv(&self, request: &RecvRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        self.check(request.channel, iov)?;
        if request.multi.is_some() || request.source.is_some() {
            return Err(PostError::Invalid(
                "datagrams have no multi-receive buffers and no directed receives",
            ));
        }
        let mut pieces = [EMPTY; Endpoint::IOV_MAX];
        pieces[..iov.len()].copy_from_slice(iov);
        let (context, notify) = (request.options.context, request.options.notify);
        let mut inner = self.inner.lock();
        inner.posted.push_back(Posted { context, notify, pieces, count: iov.len() });
        if inner.armed {
            self.watch(&mut inner);
        }
        Ok(())
    }

    /// Cancels the oldest posted receive with this context.
    pub fn cancel(&self, context: u64) -> bool {
        // With this lock, no thread is receiving into the buffer.
        let _receiving = self.receiving.lock();
        let mut inner = self.inner.lock();
        let Some(at) = inner.posted.iter().position(|posted| posted.context == context) else { return false };
        let Some(posted) = inner.posted.remove(at) else { return false };
        let cancelled = Completion { error: Some(OpError::Cancelled), ..received(&posted) };
        self.finish(&mut inner, cancelled, None);
        true
    }

    /// Receives datagrams, and appends the finished operations to `out`. Returns how many.
    pub fn poll(&self, out: &mut Vec<Completion>) -> usize {
        if self.is_foreign() {
            return 0;
        }
        if let Some(_receiving) = self.receiving.try_lock() {
            self.receive();
        }
        let mut inner = self.inner.lock();
        if std::mem::take(&mut inner.rung) {
            self.bell.clear();
        }
        inner.armed &= inner.sleepers > 0;
        let Inner { done, sources, .. } = &mut *inner;
        sources.clear();
        let moved = done.len();
        for (completion, source) in done.drain(..) {
            let peer = source.map(|source| {
                sources.push(source);
                PeerId(sources.len() as u32 - 1)
            });
            out.push(Completion { peer, ..completion });
        }
        moved
    }

    /// Fills posted buffers. The caller holds `receiving`.
    fn receive(&self) {
        for _ in 0..TURN_MAX {
            let Some(posted) = self.inner.lock().posted.pop_front() else { return };
            // SAFETY: the program lends the buffer until its completion is read.
            let arrived = unsafe { self.receive_one(&posted) };
            let mut inner = self.inner.lock();
            match arrived {
                Ok(Some(Arrival { header, len, from })) => {
                    let source = Address { locator: from, incarnation: header.from, ..self.address };
                    let room = total(&posted.pieces[..posted.count]);
                    let sent = len as u64;
                    let error = (sent > room).then_some(OpError::Truncated { sent, room });
                    let done =
                        Completion { len: sent.min(room), data: header.data, error, ..received(&posted) };
                    self.finish(&mut inner, done, Some(source));
                }
                Ok(None) => inner.posted.push_front(posted),
                Err(()) => {
                    inner.posted.push_front(posted);
                    return;
                }
            }
        }
    }

    /// Receives a datagram. `None` if it was not for us; an error if there is none now.
    ///
    /// # Safety
    /// The buffer is writable during the call.
    unsafe fn receive_one(&self, posted: &Posted) -> Result<Option<Arrival>, ()> {
        let mut bytes = [0; MessageHeader::LEN];
        let mut pieces = headed(&mut bytes, &posted.pieces[..posted.count]);
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = posted.count + 1;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let receive = |storage: *mut socket2::SockAddrStorage, len: *mut libc::socklen_t| {
            message.msg_name = storage.cast();
            // SAFETY: socket2 passes a place and its length.
            message.msg_namelen = unsafe { len.read() };
            // SAFETY: the header, the caller's buffers and the address outlive the call.
            let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
            if got < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: as above.
            unsafe { len.write(message.msg_namelen) };
            Ok(got as usize)
        };
        // SAFETY: the address is filled in as far as its length says.
        let (got, from) = match unsafe { SockAddr::try_init(receive) } {
            Ok(both) => both,
            // An ICMP error about an earlier datagram that we sent.
            Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => return Ok(None),
            Err(_) => return Err(()),
        };
        let header = MessageHeader::from_bytes(&bytes[..got.min(MessageHeader::LEN)]);
        let ours = header.filter(|header| header.to == 0 || header.to == self.address.incarnation);
        let (Some(header), Some(from)) = (ours, from.as_socket()) else {
            debug_log!("a datagram of {got} bytes that is not for this endpoint");
            return Ok(None);
        };
        Ok(Some(Arrival { header, len: got - MessageHeader::LEN, from }))
    }

    fn finish(&self, inner: &mut Inner, completion: Completion, source: Option<Address>) {
        inner.done.push_back((completion, source));
        if inner.armed {
            self.bell.ring();
            inner.rung = true;
        }
    }

    /// A descriptor that is readable when [`Datagrams::poll`] has something to return,
    /// provided [`Datagrams::arm`] said yes since the last poll.
    pub fn wait_fd(&self) -> RawFd {
        self.poller.raw_fd()
    }

    /// Prepares to sleep on [`Datagrams::wait_fd`]. False if completions are already waiting.
    pub fn arm(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.armed = true;
        // A datagram without a posted buffer must not wake anybody.
        self.watch(&mut inner);
        inner.done.is_empty()
    }

    /// Like [`Endpoint::fall_asleep`].
    pub fn fall_asleep(&self) -> bool {
        self.inner.lock().sleepers += 1;
        self.arm()
    }

    /// Like [`Endpoint::wake_up`].
    pub fn wake_up(&self) {
        self.inner.lock().sleepers -= 1;
    }

    fn watch(&self, inner: &mut Inner) {
        let wanted = !inner.posted.is_empty();
        if wanted == inner.watched {
            return;
        }
        let changed =
            if wanted { self.poller.add(&self.socket, 1, false) } else { self.poller.remove(&self.socket) };
        inner.watched = if changed.is_ok() { wanted } else { inner.watched };
    }

    /// Ends the endpoint. Unfinished receives are dropped silently.
    pub fn close(&self) {
        let _receiving = self.receiving.lock();
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.posted.clear();
        inner.done.clear();
    }

    fn is_foreign(&self) -> bool {
        self.process != signals::process_number()
    }
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// The pieces of a datagram: its head, and those of the program's buffer.
fn headed(head: &mut [u8; MessageHeader::LEN], iov: &[libc::iovec]) -> [libc::iovec; Endpoint::IOV_MAX + 1] {
    let mut pieces = [EMPTY; Endpoint::IOV_MAX + 1];
    pieces[0] = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
    pieces[1..=iov.len()].copy_from_slice(iov);
    pieces
}

/// The completion of a receive, before its message is known.
fn received(posted: &Posted) -> Completion {
    Completion::of(CompletionKind::Recv(Channel::Untagged), posted.context, posted.notify)
}
