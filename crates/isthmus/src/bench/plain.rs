//! The same over plain sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::Fault;
use super::report::{Figure, Row, histogram};
use super::serve::{TCP_ECHO, TCP_SINK};

/// How long an answer may take that may be lost.
const UDP_PATIENCE: Duration = Duration::from_millis(200);
/// Round trips that are not counted.
const WARM_UP: u64 = 200;
/// Longest that a UDP datagram carries. Bytes.
const UDP_MAX: usize = 65_507;

pub(super) fn udp_pingpong(to: SocketAddr, size: usize, count: u64) -> Result<Row, Fault> {
    let socket = UdpSocket::bind(SocketAddr::new(unspecified(to), 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(UDP_PATIENCE))?;
    let size = size.min(UDP_MAX);
    let mut message = vec![7; size];
    let mut times = histogram();
    let mut lost = 0;
    for round in 0..WARM_UP + count {
        let start = Instant::now();
        socket.send(&message)?;
        match socket.recv(&mut message) {
            Ok(_) if round >= WARM_UP => times.record(start.elapsed().as_nanos() as u64)?,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => lost += 1,
            Err(error) => return Err(error.into()),
        }
    }
    let result = Figure::RoundTrips(Box::new(times));
    Ok(Row { what: "plain UDP, sleeping".to_owned(), size, count, lost, result })
}

fn unspecified(to: SocketAddr) -> std::net::IpAddr {
    match to {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

pub(super) fn tcp_pingpong(to: SocketAddr, size: usize, count: u64) -> Result<Row, Fault> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[TCP_ECHO])?;
    let mut message = vec![7; size];
    let mut times = histogram();
    for round in 0..WARM_UP + count {
        let start = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        if round >= WARM_UP {
            times.record(start.elapsed().as_nanos() as u64)?;
        }
    }
    let result = Figure::RoundTrips(Box::new(times));
    Ok(Row { what: "plain TCP, sleeping".to_owned(), size, count, lost: 0, result })
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
