//! An interface whose MTU is below what UDP lanes need, such as that of a tunnel in a tunnel: TCP carries at once. Two
//! hosts of the test's own.

mod support;

use std::fmt::Arguments;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use isthmus_io::log::{Severity, set_hook};
use isthmus_substrate::{Endpoint, EndpointOptions, Event, Level, SendOptions, Substrate};
use support::hosts::{Far, ROLE, ip, run_near};
use support::{LIMIT, await_event, in_time, pattern};

/// The transport of the lanes.
const TRANSPORT: &str = "ISTHMUS_TEST_TRANSPORT";
/// What the log has said.
static SAID: Mutex<String> = Mutex::new(String::new());

fn keep(_: Severity, line: Arguments<'_>) {
    *SAID.lock().unwrap_or_else(PoisonError::into_inner) += &format!("{line}\n");
}

#[test]
fn tcp_carries_at_once_where_udp_was_chosen() {
    run_near("small", |command| {
        command.env(TRANSPORT, "udp");
    });
}

#[test]
fn tcp_carries_at_once_where_either_may() {
    run_near("small", |command| {
        command.env(TRANSPORT, "auto");
    });
}

fn open() -> Endpoint {
    let transport = std::env::var(TRANSPORT).expect("set with the role");
    let text = format!("[device.any]\ntransport = \"{transport}\"\n");
    let start = Instant::now();
    loop {
        let substrate = Substrate::from_toml(&text, "test").expect("valid");
        let device = substrate.default_device().expect("up");
        // The kernel notices a cable a moment after it is there.
        if device.address().is_ok_and(|ip| ip.to_string().starts_with("10.99.9.")) {
            return Endpoint::create(device, &EndpointOptions::default()).expect("opened");
        }
        in_time(start.elapsed() < LIMIT, || format!("the interface has no address: {:?}", device.address()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The far host: accepts who comes, and takes what is sent.
#[test]
fn far() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    println!("far is here");
    std::io::stdin().read_line(&mut String::new()).expect("the near part lives");
    ip("link set lo up");
    ip("addr add 10.99.9.2/24 dev isthfar");
    ip("link set isthfar mtu 1000 up");
    let endpoint = open();
    println!("uri {}", endpoint.uri());
    let start = Instant::now();
    while start.elapsed() < 2 * LIMIT {
        let event = endpoint.next_event(Some(Duration::from_millis(100))).expect("open");
        if let Some(Event::Requested(request)) = event {
            endpoint.accept(request, 0).expect("asked for");
        }
    }
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
    let endpoint = open();
    let connection = endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("asked");
    let connected = await_event(&endpoint);
    assert!(matches!(connected, Event::Connected { .. }), "{connected:?}");
    let blocking = SendOptions { blocking: true, ..Default::default() };
    endpoint.send(connection, &pattern(60_000, 1), &blocking).expect("it arrives");
    // Without an answer, a lane by UDP is given up after 3 s only, and for another reason.
    let by_udp = std::env::var(TRANSPORT).is_ok_and(|transport| transport == "udp");
    let why = if by_udp { "the interface refuses packets of the length" } else { "the round trip is below" };
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(said.contains(&format!("go by TCP: {why}")), "{said}");
    println!("seen inside");
}
