//! System calls for packet sockets (`packet(7)`) and for the state of interfaces.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::Mac;

/// Most frames of one system call, to send or to receive. Count.
pub(super) const BATCH: usize = 32;

/// Length of the control buffer for a frame's time of arrival. Words of 8 bytes.
const CONTROL_WORDS: usize = 8;

/// An interface as the system describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) index: i32,
    pub(super) mac: Mac,
    pub(super) mtu: u32,
    pub(super) up: bool,
    /// Whether it has a carrier, as far as the system knows.
    pub(super) running: bool,
    /// ARPHRD_* of `if_arp.h`.
    pub(super) hardware: u16,
}

/// A received frame's address and time as the system gives them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) mac: Mac,
    /// PACKET_* of `if_packet.h`: the kind of destination.
    pub(super) kind: u8,
    /// Time of arrival since 1970.
    pub(super) at: Option<Duration>,
}

/// Opens a packet socket that receives nothing yet and never blocks. It needs CAP_NET_RAW.
pub(super) fn open() -> io::Result<Socket> {
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// From now on the socket receives frames of this ethertype from the interface.
pub(super) fn bind(socket: &Socket, index: i32, ethertype: u16) -> io::Result<()> {
    let on: libc::c_int = 1;
    let address = address(index, [0; 6], ethertype);
    // SAFETY: both calls get a live object and its length.
    unsafe {
        check(libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        ))?;
        check(libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        ))
    }
}

/// Address of an interface and of a host behind it.
pub(super) fn address(index: i32, mac: Mac, ethertype: u16) -> libc::sockaddr_ll {
    let mut octets = [0; 8];
    octets[..6].copy_from_slice(&mac);
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: octets,
    }
}

/// A request about the interface of this name.
fn request_about(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

/// SIOCETHTOOL of `sockios.h`.
const ETHTOOL: libc::c_ulong = 0x8946;
/// ETHTOOL_GDRVINFO of `ethtool.h`, and the length of `struct ethtool_drvinfo`. Words of 4 bytes. The name of the driver
/// is behind the first word and has 32 bytes.
const DRIVER: u32 = 3;
const DRIVER_WORDS: usize = 49;

/// The name of the driver of the interface of this name.
pub(super) fn driver_of(name: &str) -> io::Result<String> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut request = request_about(name)?;
    let mut info = [0; DRIVER_WORDS];
    info[0] = DRIVER;
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    // SAFETY: the request reads an ifreq, and reads and writes the structure that it refers to.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL as _, &raw mut request) })?;
    let name: Vec<u8> =
        info[1..9].iter().flat_map(|word| word.to_ne_bytes()).take_while(|c| *c != 0).collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Describes the interface of this name.
pub(super) fn find(name: &str) -> io::Result<Found> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut request = request_about(name)?;
    let mut ask = |what: libc::c_ulong| {
        // SAFETY: each of these requests reads and writes one ifreq.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut request) }).map(|()| request)
    };
    // SAFETY: each request has filled the field that is read of it.
    unsafe {
        let index = ask(libc::SIOCGIFINDEX as _)?.ifr_ifru.ifru_ifindex;
        let mtu = ask(libc::SIOCGIFMTU as _)?.ifr_ifru.ifru_mtu;
        let flags = i32::from(ask(libc::SIOCGIFFLAGS as _)?.ifr_ifru.ifru_flags);
        let (up, running) = (flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0);
        let hardware = ask(libc::SIOCGIFHWADDR as _)?.ifr_ifru.ifru_hwaddr;
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(hardware.sa_data) {
            *to = from as u8;
        }
        Ok(Found { index, mac, mtu: mtu.max(0) as u32, up, running, hardware: hardware.sa_family })
    }
}

/// Sends up to [`BATCH`] frames, each of a header and a payload. Returns how many the system took.
pub(super) fn send<'a>(
    fd: BorrowedFd<'_>,
    to: &libc::sockaddr_ll,
    frames: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> io::Result<usize> {
    let mut to = *to;
    // SAFETY: all-zero iovecs and mmsghdrs are valid.
    let (mut pieces, mut messages): ([[libc::iovec; 2]; BATCH], [libc::mmsghdr; BATCH]) = unsafe { zeroed() };
    let mut count = 0;
    for ((header, payload), pieces) in frames.zip(&mut pieces) {
        *pieces = [header, payload]
            .map(|bytes| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        let message = &mut messages[count].msg_hdr;
        message.msg_name = (&raw mut to).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        count += 1;
    }
    // SAFETY: `count` messages, and all that they refer to, outlive the call; the system only
    // reads the frames.
    let sent = unsafe {
        libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count as libc::c_uint, libc::MSG_DONTWAIT as _)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Reads frames into `room`, one into each part of `most` bytes, and gives each to `take`.
/// Returns their number.
pub(super) fn receive(
    fd: BorrowedFd<'_>,
    room: &mut [u8],
    most: usize,
    mut take: impl FnMut(Origin, &mut [u8]),
) -> io::Result<usize> {
    let mut controls = [[0_u64; CONTROL_WORDS]; BATCH];
    // SAFETY: all-zero addresses, iovecs and mmsghdrs are valid.
    let (mut from, mut pieces, mut messages): (
        [libc::sockaddr_ll; BATCH],
        [libc::iovec; BATCH],
        [libc::mmsghdr; BATCH],
    ) = unsafe { zeroed() };
    let mut count = 0;
    for part in room.chunks_exact_mut(most).take(BATCH) {
        pieces[count] = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        let message = &mut messages[count].msg_hdr;
        message.msg_name = (&raw mut from[count]).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = &raw mut pieces[count];
        message.msg_iovlen = 1;
        message.msg_control = controls[count].as_mut_ptr().cast();
        message.msg_controllen = size_of::<[u64; CONTROL_WORDS]>() as _;
        count += 1;
    }
    // SAFETY: `count` messages, whose room, addresses and controls outlive the call.
    let came = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            messages.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    };
    if came < 0 {
        return Err(io::Error::last_os_error());
    }
    let came = came as usize;
    for ((part, message), from) in room.chunks_exact_mut(most).zip(&messages[..came]).zip(&from) {
        let mut mac = [0; 6];
        mac.copy_from_slice(&from.sll_addr[..6]);
        let origin = Origin { mac, kind: from.sll_pkttype, at: stamp(&message.msg_hdr) };
        let cut = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let len = message.msg_len as usize;
        if !cut && len <= part.len() {
            take(origin, &mut part[..len]);
        }
    }
    Ok(came)
}

/// Time of arrival of a message since 1970, if the system gave it.
fn stamp(message: &libc::msghdr) -> Option<Duration> {
    // SAFETY: the control messages are those that the system wrote, in a buffer of words that
    // lives, and each is read within its length.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_TIMESTAMPNS {
                let mut time = MaybeUninit::<libc::timespec>::uninit();
                std::ptr::copy_nonoverlapping(
                    libc::CMSG_DATA(at),
                    time.as_mut_ptr().cast::<u8>(),
                    size_of::<libc::timespec>(),
                );
                let time = time.assume_init();
                return Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32));
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    None
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
