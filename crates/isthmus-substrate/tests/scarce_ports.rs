//! A host that has no local port left for a connection: pauses, one warning with the remedy, and a connection as soon as
//! there is a port. In a network of the test's own, whose range of ports it may change.

mod support;

use std::fmt::Arguments;
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use isthmus_io::log::{Severity, set_hook};
use isthmus_substrate::{Endpoint, EndpointOptions, Event, Level, SendOptions, Substrate};
use socket2::SockRef;
use support::hosts::{Far, ROLE, accept_all, ip, plays_far, run_near};
use support::{await_event, pattern};

#[test]
fn a_host_without_free_ports_says_so_and_goes_on_when_there_is_one() {
    run_near("no ports", |_| {});
}

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(severity: Severity, line: Arguments<'_>) {
    if severity == Severity::Warn {
        WARNINGS.lock().expect("nobody panics with it").push(line.to_string());
    }
}

/// Time of the processor that this process has had.
fn worked() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Packets leave from the endpoint's own port, so UDP needs no other one.
#[test]
fn a_host_without_free_ports_reaches_another_host_by_udp() {
    run_near(BY_UDP, |_| {});
}

/// The part in which the peer is on another host.
const BY_UDP: &str = "no ports, and UDP";
/// The local ports of the host. Two have to do for the endpoint's own sockets and all connections.
const RANGE: &str = "40000 40001";

#[test]
fn far() {
    if !plays_far() {
        return;
    }
    ip("addr add 10.99.9.2/24 dev isthfar");
    ip("link set isthfar up");
    accept_all(&[open("10.99.9.2", 5002)]);
}

fn open(interface: &str, port: u16) -> Endpoint {
    let text = format!("[device.any]\ninterface = \"{interface}\"\n");
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    let device = substrate.default_device().expect("up");
    Endpoint::create(device, &EndpointOptions { port, ..Default::default() }).expect("opened")
}

/// Both ports are taken by connections to the peer.
fn near_by_udp() {
    let mut far = Far::start(BY_UDP, true);
    ip("link set lo up");
    ip(&format!("link add name isthnear type veth peer name isthfar netns {}", far.child.id()));
    ip("addr add 10.99.9.1/24 dev isthnear");
    ip("link set isthnear up");
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", RANGE).expect("a network of our own");
    set_hook(keep);
    far.tell("go");
    let uri = far.hear("uri ");
    let endpoint = open("10.99.9.1", 5001);
    let _takers = [(); 2].map(|()| TcpStream::connect("10.99.9.2:5002").expect("far listens"));
    let start = Instant::now();
    let connection = endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("asked");
    let connected = await_event(&endpoint);
    let (took, lines) = (start.elapsed(), WARNINGS.lock().expect("nobody panics with it").clone());
    assert!(matches!(connected, Event::Connected { .. }), "{connected:?} {lines:?}");
    assert!(took < Duration::from_secs(5), "{took:?} {lines:?}");
    let blocking = SendOptions { blocking: true, ..Default::default() };
    endpoint.send(connection, &pattern(60_000, 1), &blocking).expect("it arrives");
    let said = |line: &&String| line.contains("use UDP only") && line.contains("ip_local_port_range");
    assert_eq!(lines.iter().filter(said).count(), 1, "{lines:?}");
    println!("seen inside");
}

#[test]
fn near() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => return,
        Ok(BY_UDP) => return near_by_udp(),
        Ok(_) => {}
    }
    ip("link set lo up");
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", RANGE).expect("a network of our own");
    set_hook(keep);
    let text = "[device.lo]\ntransport = \"tcp\"\ninterface = \"127.0.0.1\"\n";
    let substrate = Substrate::from_toml(text, "test").expect("valid");
    let device = substrate.default_device().expect("up");
    let open =
        |port| Endpoint::create(device, &EndpointOptions { port, ..Default::default() }).expect("opened");
    let (a, b) = (open(5001), open(5002));
    // Each takes one of the two ports for connections to b. Closing resets them: the ports are free at once.
    let takers = [(); 2].map(|()| TcpStream::connect("127.0.0.1:5002").expect("b listens"));
    takers.iter().for_each(|taker| SockRef::from(taker).set_linger(Some(Duration::ZERO)).expect("a socket"));
    a.connect(&b.uri(), b"", Level::Ro, 0, &Default::default()).expect("asked");
    let (before, start) = (worked(), Instant::now());
    while start.elapsed() < Duration::from_secs(1) {
        assert!(a.next_event(Some(Duration::from_millis(100))).expect("open").is_none(), "no port is free");
    }
    let spent = worked() - before;
    assert!(spent < Duration::from_millis(500), "{spent:?} of the processor's time in 1 s");
    {
        let lines = WARNINGS.lock().expect("nobody panics with it");
        let said = |line: &&String| line.contains("cannot connect to 127.0.0.1:5002");
        assert_eq!(lines.iter().filter(said).count(), 1, "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("ip_local_port_range")), "{lines:?}");
    }
    drop(takers);
    let asked = await_event(&b);
    let Event::Requested(request) = asked else { panic!("{asked:?}") };
    b.accept(request, 0).expect("asked for");
    let connected = await_event(&a);
    assert!(matches!(connected, Event::Connected { .. }), "{connected:?}");
    println!("seen inside");
}
