//! A host whose first route to a peer leads nowhere, while another one leads there: a VPN that claims the peer's address,
//! and an interface whose cable is out. Two hosts of the test's own.

mod support;

use std::fmt::Arguments;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use isthmus_io::log::set_hook;
use isthmus_substrate::{Event, Level, SendOptions};
use support::hosts::{Far, ROLE, accept_all, ip, open, plays_far, run_near_by, transport};
use support::{await_event, pattern};

/// Longest time to a connection: 3 s by the route that leads nowhere, and the next one. UDP is tried for 3 s before.
const MOST: Duration = Duration::from_secs(12);
/// Longest time to a connection by the route that was found. A route that leads nowhere costs 3 s.
const AT_ONCE: Duration = Duration::from_millis(2900);

#[test]
fn a_vpn_that_claims_the_peers_address_is_passed_by_tcp() {
    run_near_by("vpn", "tcp");
}

#[test]
fn a_vpn_that_claims_the_peers_address_is_passed_where_lanes_go_by_udp() {
    run_near_by("vpn", "udp");
}

#[test]
fn a_route_that_depends_on_the_source_is_found() {
    run_near_by("by source", "tcp");
}

/// Packets leave from the endpoint's own address, so the kernel's rules for that source hold for each of them.
#[test]
fn lanes_by_udp_follow_routes_that_depend_on_the_source() {
    run_near_by("by source", "udp");
}

#[test]
fn an_interface_without_a_cable_is_passed() {
    run_near_by("no cable", "auto");
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: isthmus_io::log::Severity, line: Arguments<'_>) {
    LINES.lock().expect("nobody panics with it").push(line.to_string());
}

/// Packets that sockets of this host have got by UDP.
fn udp_received() -> u64 {
    let table = std::fs::read_to_string("/proc/self/net/snmp").expect("proc");
    // Two lines begin so: the names of the columns, and their values. The first value is `InDatagrams`.
    let values = table.lines().filter_map(|line| line.strip_prefix("Udp: ")).nth(1).expect("UDP");
    values.split(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// The far host: accepts who comes.
#[test]
fn far() {
    if !plays_far() {
        return;
    }
    ip("addr add 10.99.9.2/24 dev isthfar");
    ip("link set isthfar up");
    ip("route add default via 10.99.9.1");
    accept_all(&[open(""), open("")]);
}

/// The kernel's first route to the far host leads into a tunnel whose other end swallows all packets.
fn swallow() {
    ip("link add name wrong type veth peer name wrongs");
    ip("link set wrongs up");
    ip("addr add 10.8.0.1/24 dev wrong");
    ip("link set wrong up");
    ip("route add 10.99.9.2/32 dev wrong");
    ip("neigh add 10.99.9.2 lladdr 02:00:00:00:00:01 dev wrong");
}

#[test]
fn near() {
    let Ok(role) = std::env::var(ROLE) else { return };
    set_hook(keep);
    let mut far = Far::start(&role, true);
    ip("link set lo up");
    ip(&format!("link add name isthnear type veth peer name isthfar netns {}", far.child.id()));
    ip("link set isthnear up");
    // Answers come by another interface than the one to which the first route leads.
    std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "2").expect("a network of our own");
    match role.as_str() {
        "vpn" => {
            ip("addr add 10.99.9.1/24 dev isthnear");
            swallow();
        }
        "by source" => {
            ip("addr add 10.99.9.1/32 dev isthnear");
            // Only packets from this address go by the interface that leads there.
            ip("rule add from 10.99.9.1 lookup 100");
            ip("route add 10.99.9.2/32 dev isthnear table 100");
            // The endpoint's address is that of the interface by which the kernel reaches other networks.
            ip("route add 192.0.2.0/24 dev isthnear");
            swallow();
        }
        _ => {
            ip("addr add 10.99.9.1/24 dev isthnear metric 500");
            ip("link add name wrong type veth peer name wrongs");
            ip("addr add 10.99.9.3/24 dev wrong metric 100");
            ip("link set wrong up");
        }
    }
    if role != "by source" {
        ip("route add default via 10.99.9.2 dev isthnear onlink");
    }
    far.tell("go");
    let (uri, second) = (far.hear("uri "), far.hear("uri "));
    let endpoint = open("");
    assert!(endpoint.uri().contains("10.99.9.1:"), "{}", endpoint.uri());
    let start = Instant::now();
    let connection = endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("asked");
    let connected = await_event(&endpoint);
    let took = start.elapsed();
    let lines = LINES.lock().expect("nobody panics with it").clone();
    assert!(matches!(connected, Event::Connected { .. }) && took < MOST, "{took:?} {connected:?} {lines:#?}");
    let said = |line: &&String| {
        line.contains("does not answer by wrong") && line.contains("set interface to isthnear")
    };
    let by_udp = transport() == "udp";
    if by_udp && role == "by source" {
        // No route has to be tried.
        assert!(
            took < AT_ONCE && !lines.iter().any(|line| line.contains("does not answer")),
            "{took:?} {lines:#?}"
        );
    } else {
        assert_eq!(lines.iter().filter(said).count(), 1, "{lines:#?}");
    }
    let blocking = SendOptions { blocking: true, ..Default::default() };
    endpoint.send(connection, &pattern(60_000, 1), &blocking).expect("it arrives");
    if by_udp {
        // Lanes by UDP take the interface that TCP found.
        let before = udp_received();
        let start = Instant::now();
        let connection = endpoint.connect(&second, b"", Level::Ro, 0, &Default::default()).expect("asked");
        let connected = await_event(&endpoint);
        let took = start.elapsed();
        assert!(matches!(connected, Event::Connected { .. }), "{connected:?} {lines:#?}");
        assert!(took < AT_ONCE, "{took:?}");
        endpoint.send(connection, &pattern(60_000, 1), &blocking).expect("it arrives");
        assert!(udp_received() > before, "it went by TCP");
    }
    println!("seen inside");
}
