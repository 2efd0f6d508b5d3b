//! TCP's congestion control, set for a host and exchanged while messages flow: between two network namespaces of the
//! test's own, since lanes within a host do not ask.

mod support;

use std::fmt::Arguments;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use isthmus_io::log::{Severity, set_hook};
use isthmus_substrate::{Endpoint, EndpointOptions, Event, Level, SendOptions, Substrate};
use support::hosts::{Far, ROLE, ip, run_near};
use support::{LIMIT, await_event, in_time, pattern};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: Severity, line: Arguments<'_>) {
    LINES.lock().expect("nobody panics with it").push(line.to_string());
}

fn was_said(what: &str) -> bool {
    LINES.lock().expect("nobody panics with it").iter().any(|line| line.contains(what))
}

#[test]
fn lanes_by_tcp_run_what_is_set_for_the_peers_host_and_change_it_while_messages_flow() {
    run_near("congestion", |_| {});
}

fn open(name: &str, number: u8, protocols: &str) -> Endpoint {
    ip("link set lo up");
    ip(&format!("addr add 10.99.9.{number}/24 dev {name}"));
    ip(&format!("link set {name} up"));
    let text =
        format!("[device.wire]\ntransport = \"tcp\"\ninterface = \"{name}\"\nprotocols = \"{protocols}\"\n");
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    let device = substrate.default_device().expect("up");
    Endpoint::create(device, &EndpointOptions::default()).expect("opened")
}

/// The far host: accepts who comes, and takes what does.
#[test]
fn far() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    println!("far is here");
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).expect("the near part lives");
    let endpoint = open("isthfar", 2, "");
    println!("uri {}", endpoint.uri());
    let start = Instant::now();
    while start.elapsed() < 4 * LIMIT {
        if let Some(Event::Requested(request)) =
            endpoint.next_event(Some(Duration::from_secs(1))).expect("open")
        {
            endpoint.accept(request, 0).expect("granted");
        }
    }
}

#[test]
fn near() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    set_hook(keep);
    let mut far = Far::start("congestion", true);
    ip(&format!("link add isthnear type veth peer name isthfar netns {}", far.child.id()));
    far.tell("go");
    let endpoint = open("isthnear", 1, "tcp@10.99.0.0/16: reno, tcp: no-such-control");
    let uri = far.hear("uri ");
    let connection = endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("asked");
    let connected = await_event(&endpoint);
    assert!(matches!(connected, Event::Connected { .. }), "{connected:?}");
    flow_until(&endpoint, connection, "10.99.9.2 takes reno: as set for its range of hosts");
    for (protocols, said) in [
        ("tcp: cubic", "10.99.9.2 takes cubic: as set for this host"),
        ("tcp: no-such-one", "10.99.9.2 cannot take no-such-one, which the kernel does not offer"),
    ] {
        endpoint.set_protocols_of(connection, protocols).expect("known names");
        flow_until(&endpoint, connection, said);
    }
    LINES.lock().expect("nobody panics with it").clear();
    endpoint.set_protocols("tcp: system").expect("known names");
    flow_until(&endpoint, connection, ": as set for all hosts");
    println!("seen inside");
}

/// Sends messages, each behind the one before, until something was said.
fn flow_until(endpoint: &Endpoint, connection: isthmus_substrate::Connection, what: &str) {
    let start = Instant::now();
    while !was_said(what) {
        let blocking = SendOptions { blocking: true, ..Default::default() };
        endpoint.send(connection, &pattern(60_000, 1), &blocking).expect("it arrives");
        in_time(start.elapsed() < LIMIT, || {
            format!("{what}: {:?}", LINES.lock().expect("nobody panics with it"))
        });
    }
}
