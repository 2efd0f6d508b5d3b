//! Paths that lie: one that drops large packets without a word, one that ends without a word, and one that ends a
//! connection without a word. Two hosts of the test's own, with jumbo frames, and two switches between them.

mod support;

use std::fmt::Arguments;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use isthmus_io::log::{Severity, set_hook};
use isthmus_substrate::{Connection, Endpoint, EndpointOptions, Event, Level, SendOptions, Substrate};
use support::hosts::{Far, ROLE, ip, run_near_by, transport};
use support::{LIMIT, await_event, in_time, pattern};

/// Messages that go each way, and the length of one. Count, bytes.
const MESSAGES: usize = 40;
const LENGTH: usize = 64_000;
/// What `peer_timeout` is set to where the path ends. Seconds.
const TIMEOUT_S: u64 = 4;
/// The same where the kernel takes the path for one of a second: it counts nothing in the first five.
const LATE_TIMEOUT_S: u64 = 8;
/// The role in which the first packet of the connection is late.
const LATE: &str = "vanishing late host";

#[test]
fn large_packets_that_vanish_cost_seconds_by_tcp() {
    run_near_by("vanishing packets", "tcp");
}

#[test]
fn large_packets_that_vanish_cost_seconds_by_udp() {
    run_near_by("vanishing packets", "udp");
}

#[test]
fn a_host_that_vanishes_is_told_in_time_by_tcp() {
    run_near_by("vanishing host", "tcp");
}

/// While the cable is out, the first packet of the connection waits for ARP, which asks again after a second.
#[test]
fn a_host_that_vanishes_is_told_in_time_though_its_first_answer_was_late() {
    run_near_by(LATE, "tcp");
}

#[test]
fn a_host_that_vanishes_is_told_in_time_by_udp() {
    run_near_by("vanishing host", "udp");
}

#[test]
fn a_firewall_that_ends_a_connection_is_told_as_one() {
    run_near_by("ended connection", "tcp");
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: Severity, line: Arguments<'_>) {
    LINES.lock().expect("nobody panics with it").push(line.to_string());
}

fn said(words: &str) -> bool {
    LINES.lock().expect("nobody panics with it").iter().any(|line| line.contains(words))
}

/// `peer_timeout` in this role. Seconds; `None`: as usual.
fn timeout_s() -> Option<u64> {
    match std::env::var(ROLE).ok()?.as_str() {
        "vanishing host" => Some(TIMEOUT_S),
        LATE => Some(LATE_TIMEOUT_S),
        _ => None,
    }
}

fn open(name: &str, number: u8) -> Endpoint {
    let transport = transport();
    ip("link set lo up");
    // Else the kernel would cut large pieces only behind the switches.
    ip(&format!("link set {name} mtu 9000 gso_max_segs 1"));
    ip(&format!("addr add 10.99.8.{number}/24 dev {name}"));
    ip(&format!("link set {name} up"));
    let mut text = format!("[device.wire]\ntransport = \"{transport}\"\ninterface = \"{name}\"\n");
    if let Some(seconds) = timeout_s() {
        text += &format!("peer_timeout = \"{seconds}s\"\n");
    }
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    let device = substrate.default_device().expect("up");
    Endpoint::create(device, &EndpointOptions::default()).expect("opened")
}

/// Two switches, one port of each for a host, and between them a link of `mtu` bytes. The hosts' cables are `isthnear`
/// here and `isthfar` there.
fn build_network(far: &Far, mtu: u32) {
    for (switch, port, host, netns) in
        [("swa", "porta", "isthnear", String::new()), ("swb", "portb", "isthfar", far.child.id().to_string())]
    {
        ip(&format!("link add name {switch} type bridge"));
        let there = if netns.is_empty() { String::new() } else { format!(" netns {netns}") };
        ip(&format!("link add name {port} type veth peer name {host}{there}"));
        ip(&format!("link set {port} mtu 9000"));
        ip(&format!("link set {port} master {switch} up"));
        ip(&format!("link set {switch} up"));
    }
    ip(&format!("link add name trunka mtu {mtu} type veth peer name trunkb mtu {mtu}"));
    ip("link set trunka master swa up");
    ip("link set trunkb master swb up");
}

/// Waits until the switches forward, which the kernel decides some time after the interfaces are up. A lane whose first
/// SYN was lost takes the path for one of a second, and its end for later.
fn await_path() {
    let start = Instant::now();
    let nobody = SocketAddr::from(([10, 99, 8, 2], 9));
    let refused = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    while !TcpStream::connect_timeout(&nobody, Duration::from_millis(200)).is_err_and(refused) {
        assert!(start.elapsed() < LIMIT, "nothing reaches the far host");
    }
}

/// The far host: accepts who comes, takes what does, and then sends as much.
#[test]
fn far() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    println!("far is here");
    std::io::stdin().read_line(&mut String::new()).expect("the near part lives");
    let endpoint = open("isthfar", 2);
    println!("uri {}", endpoint.uri());
    let (start, mut came, mut connection) = (Instant::now(), 0, None);
    while start.elapsed() < 4 * LIMIT {
        match endpoint.next_event(Some(Duration::from_secs(1))).expect("open") {
            Some(Event::Requested(request)) => connection = endpoint.accept(request, 0).ok(),
            Some(Event::Received(_)) => came += 1,
            _ => {}
        }
        if let (MESSAGES, Some(connection)) = (came, connection) {
            came = 0;
            send_all(&endpoint, connection);
        }
    }
}

fn send_all(endpoint: &Endpoint, connection: Connection) {
    for _ in 0..MESSAGES {
        let blocking = SendOptions { blocking: true, ..Default::default() };
        endpoint.send(connection, &pattern(LENGTH, 1), &blocking).expect("it arrives");
    }
}

#[test]
fn near() {
    let Ok(role) = std::env::var(ROLE) else { return };
    set_hook(keep);
    let mut far = Far::start(&role, true);
    build_network(&far, if role == "ended connection" { 9000 } else { 1500 });
    far.tell("go");
    let endpoint = open("isthnear", 1);
    let uri = far.hear("uri ");
    await_path();
    let is_late = role == LATE;
    if is_late {
        ip("link set trunka down");
        ip("neigh flush all");
    }
    let connection = endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("asked");
    if is_late {
        std::thread::sleep(Duration::from_millis(500));
        ip("link set trunka up");
    }
    let connected = await_event(&endpoint);
    assert!(matches!(connected, Event::Connected { .. }), "{connected:?}");
    match role.as_str() {
        "vanishing packets" => packets_vanish(&endpoint, connection),
        "ended connection" => connection_ends(&endpoint, connection),
        _ => host_vanishes(&endpoint, connection),
    }
    println!("seen inside");
}

/// What goes each way arrives within seconds, although the first large packets do not.
fn packets_vanish(endpoint: &Endpoint, connection: Connection) {
    let both = there_and_back(endpoint, connection);
    assert!(both < Duration::from_secs(20), "{both:?}");
    let is_udp = transport() == "udp";
    assert!(is_udp || said("seem not to reach 10.99.8.2"), "{LINES:?}");
}

fn there_and_back(endpoint: &Endpoint, connection: Connection) -> Duration {
    let start = Instant::now();
    send_all(endpoint, connection);
    for _ in 0..MESSAGES {
        while !matches!(await_event(endpoint), Event::Received(_)) {
            in_time(start.elapsed() < LIMIT, || format!("nothing comes back: {LINES:?}"));
        }
    }
    start.elapsed()
}

/// A firewall drops the packets of the connections that are there, and lets new ones through. They go on at once, and
/// the log does not take that for a small MTU.
fn connection_ends(endpoint: &Endpoint, connection: Connection) {
    there_and_back(endpoint, connection);
    let ports = connected_ports();
    assert!(!ports.is_empty());
    for (here, there) in &ports {
        ip(&format!("rule add pref 5 iif isthnear ipproto tcp sport {there} dport {here} blackhole"));
    }
    ip("rule add pref 10 lookup local");
    ip("rule del pref 0");
    let took = there_and_back(endpoint, connection);
    assert!(took < Duration::from_secs(30), "{took:?} {LINES:?}");
    assert!(said("as a firewall or a NAT, has ended it"), "{LINES:?}");
    assert!(!said("MTU"), "{LINES:?}");
}

/// The ports here and there of this host's TCP connections.
fn connected_ports() -> Vec<(u16, u16)> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("proc");
    let port = |address: &str| u16::from_str_radix(address.split(':').nth(1)?, 16).ok();
    let connected = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let connected = connected.filter(|fields| fields.get(3) == Some(&"01"));
    connected.filter_map(|fields| Some((port(fields[1])?, port(fields[2])?))).collect()
}

/// An operation on a host whose cable is cut fails within `peer_timeout`, and a second.
fn host_vanishes(endpoint: &Endpoint, connection: Connection) {
    let message = pattern(100, 1);
    let blocking = SendOptions { blocking: true, ..Default::default() };
    endpoint.send(connection, &message, &blocking).expect("it arrives");
    ip("link set trunka down");
    let start = Instant::now();
    endpoint.send(connection, &message, &blocking).expect_err("nobody is there");
    let took = start.elapsed();
    let timeout = Duration::from_secs(timeout_s().expect("of this role"));
    assert!(
        took + Duration::from_millis(500) > timeout && took < timeout + Duration::from_secs(2),
        "{took:?} {LINES:?}"
    );
}
