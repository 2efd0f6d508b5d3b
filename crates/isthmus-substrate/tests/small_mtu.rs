//! An interface whose MTU is below what UDP lanes need, such as that of a tunnel in a tunnel: TCP carries at once. Two
//! hosts of the test's own.

mod support;

use std::fmt::Arguments;
use std::sync::{Mutex, PoisonError};

use isthmus_io::log::{Severity, set_hook};
use isthmus_substrate::{Event, Level, SendOptions};
use support::hosts::{Far, ROLE, accept_all, ip, open, plays_far, run_near_by, transport};
use support::{await_event, pattern};

/// What the log has said.
static SAID: Mutex<String> = Mutex::new(String::new());

fn keep(_: Severity, line: Arguments<'_>) {
    *SAID.lock().unwrap_or_else(PoisonError::into_inner) += &format!("{line}\n");
}

#[test]
fn tcp_carries_at_once_where_udp_was_chosen() {
    run_near_by("small", "udp");
}

#[test]
fn tcp_carries_at_once_where_either_may() {
    run_near_by("small", "auto");
}

/// The far host: accepts who comes, and takes what is sent.
#[test]
fn far() {
    if !plays_far() {
        return;
    }
    ip("addr add 10.99.9.2/24 dev isthfar");
    ip("link set isthfar mtu 1000 up");
    accept_all(&[open("")]);
}

#[test]
fn near() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut far = Far::start(&role, true);
    ip("link set lo up");
    ip(&format!("link add name isthnear type veth peer name isthfar netns {}", far.child.id()));
    ip("link set isthnear mtu 1000 up");
    ip("addr add 10.99.9.1/24 dev isthnear");
    far.tell("go");
    let uri = far.hear("uri ");
    set_hook(keep);
    let endpoint = open("");
    let connection = endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("asked");
    let connected = await_event(&endpoint);
    assert!(matches!(connected, Event::Connected { .. }), "{connected:?}");
    let blocking = SendOptions { blocking: true, ..Default::default() };
    endpoint.send(connection, &pattern(60_000, 1), &blocking).expect("it arrives");
    // Without an answer, a lane by UDP is given up after 3 s only, and for another reason.
    let why = if transport() == "udp" {
        "the interface refuses packets of the length"
    } else {
        "the round trip is below"
    };
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(said.contains(&format!("go by TCP: {why}")), "{said}");
    println!("seen inside");
}
