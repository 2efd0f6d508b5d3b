//! TCP sockets as lanes use them: non-blocking, scattered and gathered.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::congestion::{self, Sample};

/// Data that the kernel holds unsent beyond this keeps the lane from being writable, so
/// that small messages do not wait behind it. Bytes.
const NOTSENT_LOWAT: u32 = 128 << 10;
/// How long transmitted data, or an attempt to connect, may go unanswered.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// Keepalive: silence before the first probe, and the pause between probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(3);
const KEEPALIVE_PROBES: u32 = 4;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// A socket that accepts lanes at `at`; port 0 lets the system choose.
pub(crate) fn listen(at: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    if at.port() != 0 {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Starts to connect to `to`, from `from` where that is a particular address.
pub(crate) fn dial(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if let Some(ip) = from {
        socket.bind(&SocketAddr::new(ip, 0).into())?;
    }
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// Sets what every lane wants.
pub(crate) fn tune(socket: &Socket, congestion: &str) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_PAUSE)
        .with_retries(KEEPALIVE_PROBES);
    // Each of these only makes a lane better; none is worth failing for.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(NOTSENT_LOWAT);
    // Between processes of one host pacing only costs.
    set_congestion(socket, if is_local(socket) { congestion::CLEAN } else { congestion });
}

/// Sets the congestion control by the setting's value; it is tried, and may be missing.
pub(crate) fn set_congestion(socket: &Socket, congestion: &str) {
    let name = if congestion == congestion::AUTO { congestion::CLEAN } else { congestion };
    if name != "system" {
        let _ = socket.set_tcp_congestion(name.as_bytes());
    }
}

/// What a read or write came to.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// So many bytes; 0 is the end of the stream.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    Failed(io::Error),
}

fn transfer(result: isize) -> Transfer {
    if result >= 0 {
        return Transfer::Bytes(result as usize);
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Transfer::Blocked,
        _ => Transfer::Failed(error),
    }
}

/// Reads into `iov`.
///
/// # Safety
/// Every piece is valid for writing and nobody else touches it during the call.
pub(crate) unsafe fn read(socket: RawFd, iov: &mut [libc::iovec]) -> Transfer {
    // SAFETY: the caller vouches for the pieces; the kernel writes only there.
    transfer(unsafe { libc::readv(socket, iov.as_ptr(), iov.len() as i32) })
}

/// Writes from `iov`; a closed peer is an error, not a signal.
///
/// # Safety
/// Every piece is valid for reading during the call.
pub(crate) unsafe fn write(socket: RawFd, iov: &mut [libc::iovec]) -> Transfer {
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len();
    // SAFETY: the caller vouches for the pieces, and `message` outlives the call.
    transfer(unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
}

/// Whether a socket's peer is on this host.
pub(crate) fn is_local(socket: &Socket) -> bool {
    let peer = peer_ip(socket);
    peer.is_some_and(|peer| peer.is_loopback()) || (peer.is_some() && peer == ip_of(socket.local_addr()))
}

/// The host that a socket is connected with.
pub(crate) fn peer_ip(socket: &Socket) -> Option<IpAddr> {
    ip_of(socket.peer_addr())
}

fn ip_of(address: io::Result<SockAddr>) -> Option<IpAddr> {
    address.ok()?.as_socket().map(|address| address.ip())
}

/// What the kernel knows of a connected socket's path; `None` before its first round trip.
pub(crate) fn sample(socket: &Socket) -> Option<Sample> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the buffer has the length that is passed along.
    let status = unsafe {
        libc::getsockopt(fd(socket), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len)
    };
    // SAFETY: zeroed, and all of its fields are integers.
    let info = unsafe { info.assume_init() };
    (status == 0 && info.tcpi_rtt > 0).then(|| Sample {
        rtt_us: u64::from(info.tcpi_rtt),
        retransmissions: u64::from(info.tcpi_total_retrans),
    })
}

/// The kernel's estimate of a connected socket's round trip. Microseconds.
pub(crate) fn rtt_us(socket: &Socket) -> Option<u64> {
    sample(socket).map(|sample| sample.rtt_us)
}

/// The descriptor of a socket.
pub(crate) fn fd(socket: &Socket) -> RawFd {
    socket.as_raw_fd()
}
