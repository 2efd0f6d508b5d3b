//! Sockets: how they are set, and who answered lately.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// How long an address may take to answer.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(3);
/// How long an address that did not answer is asked last.
const FAILED_TIME: Duration = Duration::from_secs(5);
/// Most addresses remembered as not answering.
const FAILED_MAX: usize = 4096;
/// How long a link's data may stay unacknowledged before the link counts as cut.
const CUT_MS: u32 = 10_000;
/// Wanted buffers of a link's socket, where we may ask for more than the system's bound.
const LINK_BUFFER: usize = 32 << 20;

/// Connects from `from` (any address if unspecified) to `to`.
pub(crate) async fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The address tells the next router that it is one of its own AS's that asks.
    if let Some(from) = from.filter(|from| !from.is_unspecified() && from.is_ipv4() == to.is_ipv4()) {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    let connected = timeout(ANSWER_TIME, socket.connect(to)).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Settings of a lane's own connection. What the system does not have is done without.
///
/// It has no TCP_USER_TIMEOUT: that would end lanes whose receiver takes its time, too.
pub(crate) fn tune_lane(socket: impl AsFd) {
    let socket = socket.as_fd();
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(15));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(socket, 4);
    // As endpoints begin: pacing, which BBR does, only costs inside a site.
    let _ = sockopt::set_tcp_congestion(socket, "cubic");
}

/// Settings of a link's connection, whose receiver always reads.
pub(crate) fn tune_link(socket: impl AsFd) {
    let socket = socket.as_fd();
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(3));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(2));
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
    let _ = sockopt::set_tcp_user_timeout(socket, CUT_MS);
    let _ = sockopt::set_tcp_congestion(socket, "bbr");
    // Without privilege the system tunes them by itself, within its bounds.
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, LINK_BUFFER);
    let _ = sockopt::set_socket_send_buffer_size_force(socket, LINK_BUFFER);
}

/// Addresses that did not answer lately.
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

    /// The addresses from a random one on, those that did not answer lately last.
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
