//! A host that loses its address and gets another one while it sends: a lease that was not renewed, or another wireless
//! network. Two hosts of the test's own.

mod support;

use std::time::{Duration, Instant};

use isthmus_substrate::{Event, Level, SendOptions};
use support::hosts::{Far, ROLE, accept_all, ip, open, plays_far, run_near_by};
use support::{await_event, pattern};

/// Longest time until messages arrive again. TCP by itself, and a bound UDP socket, would take 20 s.
const MOST: Duration = Duration::from_secs(6);

#[test]
fn lanes_by_tcp_go_on_from_another_address() {
    run_near_by("lost", "tcp");
}

#[test]
fn lanes_by_udp_go_on_from_another_address() {
    run_near_by("lost", "udp");
}

/// The setting `interface` names the interface, and not its first address.
#[test]
fn lanes_go_on_from_another_address_of_the_interface_that_was_named() {
    for transport in ["tcp", "udp"] {
        run_near_by("named", transport);
    }
}

/// The far host: accepts who comes, and takes what is sent.
#[test]
fn far() {
    if !plays_far() {
        return;
    }
    ip("addr add 10.99.9.2/24 dev isthfar");
    ip("link set isthfar up");
    accept_all(&[open("isthfar")]);
}

#[test]
fn near() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut far = Far::start(&role, true);
    ip("link set lo up");
    ip(&format!("link add name isthnear type veth peer name isthfar netns {}", far.child.id()));
    ip("link set isthnear up");
    ip("addr add 10.99.9.1/24 dev isthnear");
    far.tell("go");
    let uri = far.hear("uri ");
    let endpoint = open(if role == "named" { "isthnear" } else { "" });
    let connection = endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("asked");
    let connected = await_event(&endpoint);
    assert!(matches!(connected, Event::Connected { .. }), "{connected:?}");
    let blocking = SendOptions { blocking: true, ..Default::default() };
    let send = |seed| endpoint.send(connection, &pattern(60_000, seed), &blocking).expect("it arrives");
    send(1);
    for (lost, gained) in [(1, 3), (3, 4)] {
        ip(&format!("addr del 10.99.9.{lost}/24 dev isthnear"));
        ip(&format!("addr add 10.99.9.{gained}/24 dev isthnear"));
        let start = Instant::now();
        (0..8).for_each(send);
        let took = start.elapsed();
        assert!(took < MOST, "it took {took:?} to go on from 10.99.9.{gained}");
        eprintln!("went on after {took:?}");
    }
    println!("seen inside");
}
