//! What tests of endpoints over real sockets share.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

pub mod hosts;
#[path = "../../../isthmus-io/tests/support/waits.rs"]
mod waits;

use std::time::{Duration, Instant};

use isthmus_substrate::{
    ConnectOptions, Connection, Endpoint, EndpointOptions, Event, Level, Message, Substrate,
};
pub use waits::*;

/// A bound for what hangs; on a machine of its own all takes milliseconds.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn substrate() -> Substrate {
    Substrate::from_toml("[device]\ninterface = \"127.0.0.1\"\nlinger = \"30s\"\n", "test").expect("valid")
}

/// What carries messages on this host: the table over which tests of all transports go.
pub fn transports() -> Vec<&'static str> {
    let shm = std::process::Command::new("fi_info").args(["-p", "shm"]).output();
    let has_shm = shm.is_ok_and(|found| String::from_utf8_lossy(&found.stdout).contains("shm"));
    if !has_shm {
        eprintln!("without shm: libfabric is not installed");
    }
    ["tcp", "memory", "udp-everywhere"].into_iter().chain(has_shm.then_some("shm")).collect()
}

/// Goes over the table, at once.
pub fn by_each_transport(test: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        for transport in transports() {
            let test = &test;
            scope.spawn(move || test(transport));
        }
    });
}

/// An endpoint on loopback whose messages are carried by a transport.
pub fn open_by(transport: &str, options: &EndpointOptions) -> Endpoint {
    // Within a host TCP is gone without where shared memory can be had.
    let fabric = if transport == "tcp" { "fabric = \"off\"\n" } else { "" };
    let text = format!(
        "[device]\ninterface = \"127.0.0.1\"\nlinger = \"30s\"\n{fabric}\
         [device.one]\ntransport = \"{transport}\"\n"
    );
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    Endpoint::create(substrate.default_device().expect("up"), options).expect("loopback is always there")
}

/// Messages go by what was asked for, and not by TCP instead.
pub fn check_carrier(at: &Endpoint, transport: &str) {
    let carriers = at.carriers();
    let goes = |by: &String| by.to_lowercase().contains(&transport[..3]);
    assert!(!carriers.is_empty() && carriers.iter().all(goes), "{carriers:?}, not {transport}");
}

pub fn open() -> Endpoint {
    open_with(&EndpointOptions::default())
}

pub fn open_with(options: &EndpointOptions) -> Endpoint {
    let substrate = substrate();
    Endpoint::create(substrate.default_device().expect("up"), options).expect("loopback is always there")
}

/// Returns when all threads of a process that was sent SIGSTOP stand still.
pub fn until_stopped(process: u32) {
    let start = Instant::now();
    let stands = |task: std::io::Result<std::fs::DirEntry>| {
        let status = task.and_then(|task| std::fs::read_to_string(task.path().join("status")));
        status.is_ok_and(|text| text.contains("State:\tT"))
    };
    let tasks = format!("/proc/{process}/task");
    while !std::fs::read_dir(&tasks).expect("a child of ours").all(stands) {
        in_time(start.elapsed() < LIMIT, || format!("process {process} does not stop"));
    }
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
        in_time(start.elapsed() < LIMIT, || "an event that the test waits for does not come");
    }
}

/// The next event of an endpoint.
#[track_caller]
pub fn await_event(at: &Endpoint) -> Event {
    let event = at.next_event(Some(LIMIT)).expect("open");
    event.unwrap_or_else(|| give_up(format_args!("no event comes at {}", at.uri())))
}

/// The next event of one endpoint, while the other goes on.
pub fn next(at: &Endpoint, other: &Endpoint) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = at.next_event(Some(Duration::from_millis(1))).expect("open") {
            return event;
        }
        other.arm().expect("open");
        in_time(start.elapsed() < LIMIT, || "no event comes");
    }
}

/// Connects two endpoints; the connection's name at each.
pub fn connect(a: &Endpoint, b: &Endpoint, level: Level) -> (Connection, Connection) {
    connect_at(a, b, &b.uri(), level)
}

/// The same, where `a` reaches `b` at this URI.
pub fn connect_at(a: &Endpoint, b: &Endpoint, uri: &str, level: Level) -> (Connection, Connection) {
    a.connect(uri, b"hello", level, 1, &ConnectOptions::default()).expect("asked");
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
