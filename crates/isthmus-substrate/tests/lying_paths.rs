//! Paths that lie: one that drops large packets without a word, and one that ends without a word. Two hosts of the
//! test's own, with jumbo frames, and two switches between them.

mod support;

use std::time::{Duration, Instant};

use isthmus_substrate::{Connection, Endpoint, EndpointOptions, Event, Level, SendOptions, Substrate};
use support::hosts::{Far, ROLE, ip, run_near};
use support::{LIMIT, await_event, in_time, pattern};

/// By what lanes go.
const TRANSPORT: &str = "ISTHMUS_TEST_TRANSPORT";
/// Messages that go each way, and the length of one. Count, bytes.
const MESSAGES: usize = 40;
const LENGTH: usize = 64_000;
/// What `peer_timeout` is set to where the path ends. Seconds.
const TIMEOUT_S: u64 = 4;

#[test]
fn large_packets_that_vanish_cost_seconds_by_tcp() {
    run_near("vanishing packets", |command| {
        command.env(TRANSPORT, "tcp");
    });
}

#[test]
fn large_packets_that_vanish_cost_seconds_by_udp() {
    run_near("vanishing packets", |command| {
        command.env(TRANSPORT, "udp");
    });
}

#[test]
fn a_host_that_vanishes_is_told_in_time_by_tcp() {
    run_near("vanishing host", |command| {
        command.env(TRANSPORT, "tcp");
    });
}

#[test]
fn a_host_that_vanishes_is_told_in_time_by_udp() {
    run_near("vanishing host", |command| {
        command.env(TRANSPORT, "udp");
    });
}

fn open(name: &str, number: u8) -> Endpoint {
    let transport = std::env::var(TRANSPORT).expect("set with the role");
    ip("link set lo up");
    // Else the kernel would cut large pieces only behind the switches.
    ip(&format!("link set {name} mtu 9000 gso_max_segs 1"));
    ip(&format!("addr add 10.99.8.{number}/24 dev {name}"));
    ip(&format!("link set {name} up"));
    let mut text = format!("[device.wire]\ntransport = \"{transport}\"\ninterface = \"{name}\"\n");
    if std::env::var(ROLE).as_deref() == Ok("vanishing host") {
        text += &format!("peer_timeout = \"{TIMEOUT_S}s\"\n");
    }
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    let device = substrate.default_device().expect("up");
    Endpoint::create(device, &EndpointOptions::default()).expect("opened")
}

/// Two switches, one port of each for a host, and between them a link of 1500 bytes. The hosts' cables are `isthnear`
/// here and `isthfar` there.
fn build_network(far: &Far) {
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
    ip("link add name trunka mtu 1500 type veth peer name trunkb mtu 1500");
    ip("link set trunka master swa up");
    ip("link set trunkb master swb up");
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
    let mut far = Far::start(&role, true);
    build_network(&far);
    far.tell("go");
    let endpoint = open("isthnear", 1);
    let uri = far.hear("uri ");
    let connection = endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("asked");
    let connected = await_event(&endpoint);
    assert!(matches!(connected, Event::Connected { .. }), "{connected:?}");
    match role.as_str() {
        "vanishing packets" => packets_vanish(&endpoint, connection),
        _ => host_vanishes(&endpoint, connection),
    }
    println!("seen inside");
}

/// What goes each way arrives within seconds, although the first large packets do not.
fn packets_vanish(endpoint: &Endpoint, connection: Connection) {
    let start = Instant::now();
    send_all(endpoint, connection);
    let there = start.elapsed();
    for _ in 0..MESSAGES {
        while !matches!(await_event(endpoint), Event::Received(_)) {
            in_time(start.elapsed() < LIMIT, || "nothing comes back");
        }
    }
    let both = start.elapsed();
    assert!(both < Duration::from_secs(20), "there {there:?}, there and back {both:?}");
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
    let timeout = Duration::from_secs(TIMEOUT_S);
    assert!(
        took + Duration::from_millis(500) > timeout && took < timeout + Duration::from_secs(2),
        "{took:?}"
    );
}
