//! The same measurements over plain sockets. Pairs that sleep work as most programs do; pairs that poll work as the
//! substrate's sides do here.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::Fault;
use super::report::{Figure, Row, histogram};
use super::serve::{ECHO_POLLING, ECHO_SLEEPING, TCP_SINK};

/// How long to wait for a UDP answer, which may be lost.
const UDP_PATIENCE: Duration = Duration::from_millis(200);
/// How long to wait for a TCP answer, which is never lost.
const TCP_PATIENCE: Duration = Duration::from_secs(30);
/// Round trips before counting begins.
const WARM_UP: u64 = 200;
/// Longest payload of a UDP datagram. Bytes.
const UDP_MAX: usize = 65_507;

/// How both sides wait for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Sleeping,
    Polling,
}

impl Wait {
    fn name(self) -> &'static str {
        match self {
            Self::Sleeping => "sleeping",
            Self::Polling => "polling",
        }
    }

    /// The first byte, which tells the other side how to wait.
    fn order(self) -> u8 {
        match self {
            Self::Sleeping => ECHO_SLEEPING,
            Self::Polling => ECHO_POLLING,
        }
    }

    /// Repeats a polling call until it has a result. A sleeping call is made once.
    fn until<T>(
        self,
        patience: Duration,
        mut call: impl FnMut() -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        let start = Instant::now();
        loop {
            match call() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && self == Self::Polling => {
                    if start.elapsed() > patience {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                other => return other,
            }
        }
    }
}

pub(super) fn udp_pingpong(to: SocketAddr, wait: Wait, size: usize, count: u64) -> Result<Row, Fault> {
    let socket = UdpSocket::bind(SocketAddr::new(unspecified(to), 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(UDP_PATIENCE))?;
    socket.set_nonblocking(wait == Wait::Polling)?;
    let size = size.min(UDP_MAX);
    let mut message = vec![7; size];
    message[0] = wait.order();
    let mut times = histogram();
    let mut lost = 0;
    for round in 0..WARM_UP + count {
        let start = Instant::now();
        socket.send(&message)?;
        match wait.until(UDP_PATIENCE, || socket.recv(&mut message)) {
            Ok(_) if round >= WARM_UP => times.record(start.elapsed().as_nanos() as u64)?,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => lost += 1,
            Err(error) => return Err(error.into()),
        }
    }
    let result = Figure::RoundTrips(Box::new(times));
    Ok(Row { what: format!("plain UDP, {}", wait.name()), size, count, lost, result })
}

fn unspecified(to: SocketAddr) -> std::net::IpAddr {
    match to {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

pub(super) fn tcp_pingpong(to: SocketAddr, wait: Wait, size: usize, count: u64) -> Result<Row, Fault> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[wait.order()])?;
    stream.set_nonblocking(wait == Wait::Polling)?;
    let mut message = vec![7; size];
    let mut times = histogram();
    for round in 0..WARM_UP + count {
        let start = Instant::now();
        let mut sent = 0;
        while sent < size {
            sent += wait.until(TCP_PATIENCE, || stream.write(&message[sent..]))?;
        }
        let mut came = 0;
        while came < size {
            match wait.until(TCP_PATIENCE, || stream.read(&mut message[came..]))? {
                0 => return Err("the other side has ended".into()),
                n => came += n,
            }
        }
        if round >= WARM_UP {
            times.record(start.elapsed().as_nanos() as u64)?;
        }
    }
    let result = Figure::RoundTrips(Box::new(times));
    Ok(Row { what: format!("plain TCP, {}", wait.name()), size, count, lost: 0, result })
}

pub(super) fn tcp_stream(to: SocketAddr, size: usize, count: u64) -> Result<Row, Fault> {
    let mut stream = TcpStream::connect(to)?;
    stream.write_all(&[TCP_SINK])?;
    let message = vec![7; size];
    let start = Instant::now();
    for _ in 0..count {
        stream.write_all(&message)?;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    let seconds = start.elapsed().as_secs_f64();
    let result = Figure::Goodput { bytes: size as u64 * count, seconds, each: None };
    Ok(Row { what: "plain TCP".to_owned(), size, count, lost: 0, result })
}
