//! Probes between two processes that ssh joins: whether TCP and UDP pass directly, the round-trip time, and the largest
//! packet that passes.
//!
//! A process that can be probed opens a [`Door`], and sends its address and a nonce over ssh. The nonce proves that a
//! probe has reached this process: at another site, a private address may be that of another host.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isthmus_io::Settings;
use isthmus_io::log::{accepted, no_thread, warn};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use serde::{Deserialize, Serialize};

/// Length of the nonce. Bytes.
const NONCE: usize = 16;
pub(super) type Nonce = [u8; NONCE];
/// How long a probe may take. One lost SYN costs 1 s.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Time between two UDP probes. The first may be lost.
const AGAIN: Duration = Duration::from_millis(500);
/// Length of a probe's head: the nonce and a number. An answer consists of the head alone. Bytes.
const HEAD: usize = NONCE + 1;
/// Packet lengths that common networks allow, IP header included, the largest first: jumbo frames, Ethernet, PPPoE,
/// tunnels, and IPv6's minimum. Bytes.
const PACKETS: [u16; 9] = [9000, 4352, 1500, 1492, 1480, 1450, 1420, 1400, 1280];
/// How often each length is sent, since packets are also lost for other reasons. Count.
const MTU_TRIES: usize = 3;
/// How often the thread that answers UDP checks whether to end.
const LOOK: Duration = Duration::from_millis(100);

/// What reached a [`Door`]. Errors are texts, since they are sent over ssh.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reach {
    pub(crate) at: SocketAddr,
    /// Round-trip time of TCP.
    pub(crate) tcp: Result<Duration, String>,
    pub(crate) udp: Result<ByUdp, String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ByUdp {
    pub(crate) rtt: Duration,
    /// The longest packet of [`PACKETS`] that arrived, IP header included. Bytes.
    pub(crate) packet: Option<u16>,
}

impl Reach {
    /// Probes by TCP and by UDP at once.
    pub(super) fn try_at(at: SocketAddr, nonce: &Nonce) -> Self {
        std::thread::scope(|scope| {
            let by_udp = || by_udp(at, nonce).map_err(|error| error.to_string());
            let udp = std::thread::Builder::new().spawn_scoped(scope, by_udp).map_err(no_thread);
            let tcp = by_tcp(at, nonce).map_err(|error| error.to_string());
            let udp = match udp {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err("its thread ended".to_owned())),
                Err(error) => Err(error.to_string()),
            };
            Self { at, tcp, udp }
        })
    }

    pub(crate) fn is_any(&self) -> bool {
        self.tcp.is_ok() || self.udp.is_ok()
    }
}

/// The round-trip time by TCP, if the nonce that arrives is this one.
pub(super) fn by_tcp(at: SocketAddr, nonce: &Nonce) -> io::Result<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    let rtt = start.elapsed();
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut heard = Nonce::default();
    let another = || io::Error::other("another program answers there");
    stream.read_exact(&mut heard).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => error,
        _ => another(),
    })?;
    if heard == *nonce { Ok(rtt) } else { Err(another()) }
}

fn by_udp(at: SocketAddr, nonce: &Nonce) -> io::Result<ByUdp> {
    let any = if at.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(at)?;
    // Forbid fragmentation: packets longer than the path's MTU are dropped.
    if at.is_ipv4() {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
    }
    let rtt = round_trip(&socket, nonce)?;
    Ok(ByUdp { rtt, packet: longest(&socket, nonce, rtt) })
}

fn probe(nonce: &Nonce, number: u8, len: usize) -> Vec<u8> {
    let mut bytes = [&nonce[..], &[number]].concat();
    bytes.resize(len.max(HEAD), 0);
    bytes
}

/// The number of the next answer that arrives before `until`.
fn answer(socket: &UdpSocket, nonce: &Nonce, until: Instant) -> io::Result<u8> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let mut heard = [0; HEAD];
        match socket.recv(&mut heard) {
            Ok(HEAD) if heard.starts_with(nonce) => return Ok(heard[NONCE]),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn round_trip(socket: &UdpSocket, nonce: &Nonce) -> io::Result<Duration> {
    let start = Instant::now();
    let mut sent = Vec::new();
    loop {
        let number = sent.len();
        sent.push(Instant::now());
        socket.send(&probe(nonce, number as u8, HEAD))?;
        let until = (Instant::now() + AGAIN).min(start + PATIENCE);
        match answer(socket, nonce, until) {
            Ok(number) => match sent.get(usize::from(number)) {
                Some(at) => return Ok(at.elapsed()),
                None => return Err(io::Error::other("another program answers there")),
            },
            Err(error) if error.kind() == io::ErrorKind::TimedOut && start.elapsed() < PATIENCE => {}
            Err(error) => return Err(error),
        }
    }
}

/// The longest packet that arrives; `None` if not even the shortest does.
fn longest(socket: &UdpSocket, nonce: &Nonce, rtt: Duration) -> Option<u16> {
    let headers = if socket.peer_addr().is_ok_and(|at| at.is_ipv4()) { 20 + 8 } else { 40 + 8 };
    let mut best = None;
    // These numbers differ from those of `round_trip`.
    let numbered = || (128u8..).zip(PACKETS);
    for _ in 0..MTU_TRIES {
        // The interface itself refuses packets longer than its MTU.
        let taken: Vec<(u8, u16)> = numbered()
            .filter(|(_, len)| best.is_none_or(|best| *len > best))
            .filter(|(number, len)| socket.send(&probe(nonce, *number, usize::from(*len) - headers)).is_ok())
            .collect();
        let Some((most, _)) = taken.first().copied() else { break };
        let until = Instant::now() + 2 * rtt + LOOK;
        while let Ok(number) = answer(socket, nonce, until) {
            let len = numbered().find(|(known, _)| *known == number).map(|(_, len)| len);
            best = best.max(len);
            if number == most {
                return best;
            }
        }
    }
    best
}

/// Answers probes at one port until it is dropped.
pub(super) struct Door {
    pub(super) at: SocketAddr,
    pub(super) nonce: Nonce,
    listener: TcpListener,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Door {
    /// Listens at the configured port, or at one of the configured range: firewalls may be open for those.
    pub(super) fn open(ip: IpAddr, settings: &Settings) -> io::Result<Self> {
        let ports = match (settings.port, &settings.port_range.0) {
            (0, Some(range)) => range.clone(),
            (port, _) => port..=port,
        };
        let mut ports = ports.map(|port| TcpListener::bind((ip, port)));
        let taken = || Err(io::ErrorKind::AddrInUse.into());
        let listener = ports.find(Result::is_ok).unwrap_or_else(taken)?;
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self { at: listener.local_addr()?, nonce, listener, stop: Arc::default(), threads: Vec::new() })
    }

    /// Starts to send the nonce to everybody who connects.
    pub(super) fn answer_tcp(&mut self) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let (nonce, stop) = (self.nonce, self.stop.clone());
        self.spawn(move || {
            for mut stream in accepted(listener.incoming(), warn) {
                // Ignore errors: the caller may have gone. A probe that came before the end still gets its answer.
                let _ = stream.write_all(&nonce);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        })
    }

    /// Starts to answer datagrams that begin with the nonce. An answer is never longer than its probe.
    pub(super) fn answer_udp(&mut self) -> io::Result<()> {
        let socket = UdpSocket::bind(self.at)?;
        socket.set_read_timeout(Some(LOOK))?;
        let (nonce, stop) = (self.nonce, self.stop.clone());
        self.spawn(move || {
            let mut bytes = [0; HEAD];
            while !stop.load(Ordering::Relaxed) {
                // `recv_from` truncates longer datagrams.
                let Ok((HEAD, from)) = socket.recv_from(&mut bytes) else { continue };
                if bytes.starts_with(&nonce) {
                    let _ = socket.send_to(&bytes, from);
                }
            }
        })
    }

    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads
            .push(std::thread::Builder::new().name("ssh-probe".to_owned()).spawn(work).map_err(no_thread)?);
        Ok(())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // One more connection wakes the TCP thread.
        if TcpStream::connect(self.at).is_ok() {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(settings: &Settings) -> Door {
        Door::open(Ipv4Addr::LOCALHOST.into(), settings).expect("free")
    }

    #[test]
    fn a_probe_knows_whom_it_reached() {
        let mut door = door(&Settings::default());
        door.answer_tcp().expect("a thread");
        assert!(by_tcp(door.at, &door.nonce).is_ok());
        let error = by_tcp(door.at, &[8; NONCE]).expect_err("somebody else").to_string();
        assert!(error.contains("another program"), "{error}");
        let at = door.at;
        drop(door);
        // A connection to a free port of one's own may meet itself.
        let answers =
            TcpStream::connect(at).is_ok_and(|stream| stream.local_addr().is_ok_and(|own| own != at));
        assert!(!answers, "it is closed");
    }

    #[test]
    fn tcp_and_udp_are_told_apart() {
        let mut door = door(&Settings::default());
        door.answer_tcp().expect("a thread");
        let reach = Reach::try_at(door.at, &door.nonce);
        assert!(reach.tcp.is_ok() && reach.udp.is_err(), "{reach:?}");
        door.answer_udp().expect("free");
        let reach = Reach::try_at(door.at, &door.nonce);
        // Loopback's MTU is larger than any of `PACKETS`.
        assert_eq!(reach.udp.expect("it passes").packet, Some(PACKETS[0]));
    }

    #[test]
    fn a_door_is_where_firewalls_let_ranks_through() {
        let first = door(&Settings::default());
        let port = first.at.port();
        drop(first);
        let range = format!("{port}-{port}").parse().expect("a range");
        let ranged = door(&Settings { port_range: range, ..Settings::default() });
        assert_eq!(ranged.at.port(), port);
        let range = ranged.at.port();
        drop(ranged);
        assert_eq!(door(&Settings { port: range, ..Settings::default() }).at.port(), port);
    }
}
