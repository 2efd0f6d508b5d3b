//! What this host runs out of: descriptors, and ports of a range. Apart from others: it changes limits of its process.

mod support;

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_io::log::{Severity, set_hook};
use isthmus_io::{Endpoint, PortRange, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, Socket, Type};
use support::*;

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps warnings from now on.
fn keep_warnings() {
    set_hook(|severity, text| {
        if severity == Severity::Warn {
            WARNINGS.lock().expect("nobody panics with it").push(text.to_string());
        }
    });
}

/// How many warnings have these words.
fn warnings(words: &str) -> usize {
    let warnings = WARNINGS.lock().expect("nobody panics with it");
    warnings.iter().filter(|line| line.contains(words)).count()
}

/// Time of the processor that this process has had.
fn worked() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

#[test]
fn an_endpoint_without_descriptors_pauses_and_says_so_in_a_line() {
    let _limits = LIMITS.lock().expect("no other test failed");
    keep_warnings();
    let endpoint = open();
    let SocketAddr::V4(at) = endpoint.address().locator else { panic!("loopback is IPv4") };
    // Made before there are no descriptors: they only have to connect.
    let strangers: Vec<Socket> = (0..20)
        .map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket"))
        .inspect(|socket| socket.set_nonblocking(true).expect("a socket"))
        .collect();
    let limit = getrlimit(Resource::Nofile);
    let scarce = Rlimit { current: Some(3), ..limit };
    setrlimit(Resource::Nofile, scarce).expect("less is always allowed");
    for stranger in &strangers {
        let _ = stranger.connect(&SocketAddr::from(at).into());
    }
    let (start, before) = (Instant::now(), worked());
    let mut done = Vec::new();
    while start.elapsed() < Duration::from_secs(2) {
        endpoint.wait(Some(Duration::from_millis(20)));
        endpoint.poll(&mut done);
    }
    let spent = worked() - before;
    setrlimit(Resource::Nofile, limit).expect("as it was");
    let warnings = warnings("cannot accept a lane: Too many open files");
    assert!((1..=2).contains(&warnings), "{warnings} lines of log");
    assert!(spent < Duration::from_secs(1), "{spent:?} of the processor's time in 2 s");

    // Now there are descriptors again, and it goes on by itself.
    let mut stranger = TcpStream::connect(at).expect("it listens");
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.0\r\n\r\n").expect("taken");
    stranger.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
    let until = Instant::now() + LIMIT;
    loop {
        endpoint.wait(Some(Duration::from_millis(20)));
        endpoint.poll(&mut done);
        match std::io::Read::read(&mut stranger, &mut [0; 64]) {
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock) => {
                in_time(Instant::now() < until, || "nobody accepts");
            }
            // Accepted, and closed for what it said.
            _ => break,
        }
    }
}

#[test]
fn a_process_without_descriptors_does_not_spin_for_who_asks_for_its_state() {
    let _limits = LIMITS.lock().expect("no other test failed");
    keep_warnings();
    let endpoint = open();
    let name = format!("\0isthmus-state-{}-0", std::process::id());
    let address = SockAddr::unix(OsStr::from_bytes(name.as_bytes())).expect("short");
    // Made before there are no descriptors: it only has to connect.
    let asker = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).expect("less is always allowed");
    asker.connect(&address).expect("the I/O thread listens");
    let before = worked();
    std::thread::sleep(Duration::from_secs(1));
    let spent = worked() - before;
    setrlimit(Resource::Nofile, limit).expect("as it was");
    assert!(spent < Duration::from_millis(500), "{spent:?} of the processor's time in 1 s");
    assert_eq!(warnings("cannot tell its state"), 1);
    let state = isthmus_io::state_of(std::process::id()).expect("it answers again");
    assert!(state.contains("endpoint"), "{state}");
    endpoint.close();
}

/// Some tests leave this process without descriptors for a while.
static LIMITS: Mutex<()> = Mutex::new(());

#[test]
fn endpoints_keep_to_a_range_of_ports_by_tcp_and_udp() {
    let _limits = LIMITS.lock().expect("no other test failed");
    // Below the ports that the system gives to whoever asks for any (32768 and up): no other test has one of these.
    let range = PortRange(Some(23_310..=23_313));
    let settings =
        Settings { port_range: range, transport: isthmus_io::Transport::Auto, ..support::settings() };
    let open = || Endpoint::open(&settings, None, Arc::default());
    let mut all: Vec<_> = (0..4).map(|_| open().expect("a free port")).collect();
    let mut ports: Vec<u16> = all.iter().map(|endpoint| endpoint.address().locator.port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [23_310, 23_311, 23_312, 23_313]);
    for port in ports {
        assert!(std::net::UdpSocket::bind(("127.0.0.1", port)).is_err(), "{port} is taken by UDP too");
    }
    let error = open().expect_err("all are taken").to_string();
    assert!(error.contains("no port from 23310 to 23313 is free at 127.0.0.1"), "{error}");
    // What one gives back another has.
    let first = all.swap_remove(0);
    let port = first.address().locator.port();
    first.close();
    drop(first);
    let until = Instant::now() + LIMIT;
    let next = loop {
        match open() {
            Ok(next) => break next,
            // The I/O thread may still look at the one that is gone.
            Err(error) => in_time(Instant::now() < until, || error),
        }
    };
    assert_eq!(next.address().locator.port(), port);
}
