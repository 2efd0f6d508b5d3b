//! What tests of endpoints over real sockets share.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

use std::time::{Duration, Instant};

use isthmus_substrate::{
    ConnectOptions, Connection, Endpoint, EndpointOptions, Event, Level, Message, Substrate,
};

/// A bound for what hangs; on a machine of its own all takes milliseconds.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn substrate() -> Substrate {
    Substrate::from_toml("[device]\ninterface = \"127.0.0.1\"\nlinger = \"30s\"\n", "test").expect("valid")
}

pub fn open() -> Endpoint {
    open_with(&EndpointOptions::default())
}

pub fn open_with(options: &EndpointOptions) -> Endpoint {
    let substrate = substrate();
    Endpoint::create(substrate.default_device().expect("up"), options).expect("loopback is always there")
}

/// Takes events of all endpoints, in turn, until `each` has seen what it waits for.
pub fn events(endpoints: &[&Endpoint], mut each: impl FnMut(usize, Event) -> bool) {
    let start = Instant::now();
    loop {
        for (index, endpoint) in endpoints.iter().enumerate() {
            while let Some(event) = endpoint.get_event().expect("open") {
                if each(index, event) {
                    return;
                }
            }
        }
        assert!(start.elapsed() < LIMIT, "what is waited for does not come");
    }
}

/// The next event of one endpoint, while the other goes on.
pub fn next(at: &Endpoint, other: &Endpoint) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = at.next_event(Some(Duration::from_millis(1))).expect("open") {
            return event;
        }
        assert!(other.arm().is_ok() && start.elapsed() < LIMIT, "no event comes");
    }
}

/// Connects two endpoints; the connection's name at each.
pub fn connect(a: &Endpoint, b: &Endpoint, level: Level) -> (Connection, Connection) {
    a.connect(&b.uri(), b"hello", level, 1, &ConnectOptions::default()).expect("asked");
    let (mut at_a, mut at_b) = (None, None);
    events(&[a, b], |_, event| {
        match event {
            Event::Requested(request) => {
                assert_eq!((request.payload(), request.level()), (&b"hello"[..], level));
                b.accept(request, 2).expect("granted");
            }
            Event::Connected { connection, context: 1 } => at_a = Some(connection),
            Event::Accepted { connection, context: 2 } => at_b = Some(connection),
            other => panic!("{other:?}"),
        }
        at_a.is_some() && at_b.is_some()
    });
    (at_a.expect("connected"), at_b.expect("accepted"))
}

/// The next message at `at`; ends of operations on the way are to be good.
pub fn receive(at: &Endpoint, other: &Endpoint) -> Message {
    loop {
        match next(at, other) {
            Event::Received(message) => return message,
            Event::Sent { end: Ok(()), .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}
