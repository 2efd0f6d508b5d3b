//! Dials sockets, sets their options, and remembers which addresses did not answer.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isthmus_datagram::scarcity::Sparing;
use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tracing::warn;

/// Longest wait for an address to answer.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(3);
/// For this long an address that did not answer is tried after all others.
const FAILED_TIME: Duration = Duration::from_secs(5);
/// Limit on remembered addresses; it bounds memory.
const FAILED_MAX: usize = 4096;
/// `TCP_USER_TIMEOUT` of links: data unacknowledged for this time ends the link. Milliseconds.
const CUT_MS: u32 = 10_000;
/// Socket buffers of a link, which need CAP_NET_ADMIN to exceed the system's limit. Bytes: 1 Gbit/s at 250 ms.
const LINK_BUFFER: usize = 32 << 20;

/// Connects to `to` from the address `from`, or from any address if `from` is unspecified.
pub(crate) async fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The next router recognises a router of its own AS by this source address.
    if let Some(from) = from.filter(|from| !from.is_unspecified() && from.is_ipv4() == to.is_ipv4()) {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    let connected = timeout(ANSWER_TIME, socket.connect(to)).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Warns that a connection to `to` cannot be made, if this host is the cause.
pub(crate) fn tell_refused(to: SocketAddr, error: &io::Error) {
    static SPARING: Sparing = Sparing::new();
    SPARING.tell(format_args!("cannot connect to {to}"), error, |line| warn!("{line}"));
}

/// Sets the socket options of a lane's own connection. Options that the system lacks are skipped.
///
/// `TCP_USER_TIMEOUT` is not set: it would also end lanes whose receiver is slow.
pub(crate) fn tune_lane(socket: impl AsFd) {
    let socket = socket.as_fd();
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(15));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(socket, 4);
    // Endpoints begin with CUBIC too. Pacing, as BBR does it, only costs CPU inside a site.
    let _ = sockopt::set_tcp_congestion(socket, "cubic");
}

/// Sets the socket options of a link's connection. Its receiver always reads.
pub(crate) fn tune_link(socket: impl AsFd) {
    let socket = socket.as_fd();
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(3));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(2));
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
    let _ = sockopt::set_tcp_user_timeout(socket, CUT_MS);
    let _ = sockopt::set_tcp_congestion(socket, "bbr");
    // Without the privilege the call fails, and the kernel sizes the buffers itself.
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, LINK_BUFFER);
    let _ = sockopt::set_socket_send_buffer_size_force(socket, LINK_BUFFER);
}

/// Addresses that did not answer within the last [`FAILED_TIME`].
#[derive(Default)]
pub(crate) struct Failed(Mutex<HashMap<SocketAddr, Instant>>);

impl Failed {
    pub(crate) fn note(&self, address: SocketAddr) {
        let mut failed = self.0.lock();
        failed.retain(|_, at| at.elapsed() < FAILED_TIME);
        if failed.len() < FAILED_MAX {
            failed.insert(address, Instant::now());
        }
    }

    /// The addresses in order, rotated to a random start. Those in this table come last.
    pub(crate) fn order(&self, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        let start = getrandom::u32().unwrap_or(0) as usize % addresses.len().max(1);
        let mut order: Vec<_> = addresses[start..].iter().chain(&addresses[..start]).copied().collect();
        let failed = self.0.lock();
        order.sort_by_key(|address| failed.get(address).is_some_and(|at| at.elapsed() < FAILED_TIME));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_not_answer_is_asked_last() {
        let addresses: Vec<SocketAddr> =
            (1..=3).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let failed = Failed::default();
        failed.note(addresses[1]);
        for _ in 0..20 {
            let order = failed.order(&addresses);
            assert_eq!(order.len(), 3);
            assert_eq!(order[2], addresses[1]);
        }
        assert_eq!(failed.order(&[]), []);
    }
}
