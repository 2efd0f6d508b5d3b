//! The events that every transport owes a program: a receiver that is full, a time-out, a
//! keepalive that ran out, a peer that vanished, a device that failed. Two hosts of the test's own,
//! or for shared memory two processes of one.

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_substrate::{
    Access, Connection, Endpoint, EndpointOptions, Event, Failure, Level, MemoryHandle, RemoteOptions,
    SendOptions, Substrate,
};
use support::hosts::{Far, ROLE, ip, run_near};
use support::{LIMIT, await_event, in_time, pattern, transports};

/// Writes and reads under which a peer vanishes.
const OPERATIONS: u64 = 8;
/// Messages of 60 kB, more than the credit for what nobody receives.
const COUNT: u64 = 300;
/// Of remote memory. Bytes.
const LONG: usize = 8 << 20;
const NEAR: &str = "10.99.9.1";

#[test]
fn tcp() {
    run_near("tcp", |_| {});
}

#[test]
fn udp() {
    run_near("udp", |_| {});
}

#[test]
fn ethernet() {
    run_near("ethernet", |_| {});
}

#[test]
fn shared_memory() {
    if transports().contains(&"shm") {
        run_near("shm", |_| {});
    }
}

/// A provider of libfabric that goes by the interface, as those of local fabrics do.
#[test]
fn libfabric() {
    if transports().contains(&"shm") {
        run_near("tcp;ofi_rxm", |_| {});
    }
}

/// What messages are to go by.
fn carrier(transport: &str) -> &str {
    match transport {
        "tcp" => "TCP",
        "udp" => "UDP, encrypted",
        "ethernet" => "Ethernet, encrypted",
        other => other,
    }
}

fn open(transport: &str, interface: &str, options: &EndpointOptions) -> Endpoint {
    // More than an interface is away; frames tell by this time only that nobody listens any more.
    let patience = if transport == "ethernet" { 10 } else { 30 };
    let text = format!(
        "[device.one]\ntransport = \"{transport}\"\ninterface = \"{interface}\"\n\
         peer_timeout = \"{patience}s\"\nlinger = \"1s\"\n"
    );
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    Endpoint::create(substrate.default_device().expect("up"), options).expect("opened")
}

/// The other end: does what it is told, a line at a time. Its messages fill two buffers.
#[test]
fn far() {
    let Ok(transport) = std::env::var(ROLE) else { return };
    println!("far is here");
    let mut lines = std::io::stdin().lines().map_while(Result::ok);
    let interface = lines.next().expect("the near part lives");
    if interface == "isthfar" {
        ip("link set lo up");
        ip("addr add 10.99.9.2/24 dev isthfar");
        ip("link set isthfar up");
    }
    let few = EndpointOptions { recv_buffers: 2, ..Default::default() };
    let endpoint = open(&transport, &interface, &few);
    println!("uri {}", endpoint.uri());
    let mut lent = Vec::new();
    // Of attempts by another carrier than is wanted nothing is heard but their end.
    let hear = || loop {
        match await_event(&endpoint) {
            Event::Disconnected { connection, .. } => endpoint.disconnect(connection).expect("once"),
            event => return event,
        }
    };
    for line in lines {
        match line.as_str() {
            "accept" => {
                let Event::Requested(request) = hear() else { panic!("no request") };
                endpoint.accept(request, 0).expect("granted");
                assert!(matches!(hear(), Event::Accepted { .. }));
            }
            "take all" => {
                for _ in 0..COUNT {
                    let Event::Received(message) = hear() else { panic!("no message") };
                    assert!(*message == pattern(60_000, 1));
                }
            }
            "lend" => {
                let all = Access { remote_read: true, remote_write: true };
                let region = endpoint.register(LONG, all).expect("memory");
                let handle = region.handle();
                println!("lent {} {}", handle.key, handle.len);
                lent.push(region);
            }
            "cut" => ip("link set isthfar down"),
            "mend" => ip("link set isthfar up"),
            other => panic!("{other}"),
        }
        println!("done {line}");
    }
}

#[test]
fn near() {
    let Ok(transport) = std::env::var(ROLE) else { return };
    let apart = transport != "shm";
    ip("link set lo up");
    let mut far = Far::start(&transport, apart);
    match apart {
        true => ip(&format!("link add isthnear type veth peer name isthfar netns {}", far.child.id())),
        false => {
            ip("link add isthnear type veth peer name isthfar");
            ip("link set isthfar up");
        }
    }
    ip(&format!("addr add {NEAR}/24 dev isthnear"));
    ip("link set isthnear up");
    far.tell(if apart { "isthfar" } else { "isthnear" });
    let uri = far.hear("uri ");
    let (end, connection) = connect_by(&transport, &uri, &mut far);
    a_full_receiver(&end, connection, &mut far);
    a_time_out_and_a_keepalive(&end, connection, &far);
    a_failed_device(&end, connection, apart, &mut far);
    a_peer_that_vanishes(&end, connection, &transport, &mut far);
    println!("seen inside");
}

/// A connection that goes by what it is to go by. On a machine that is very busy a fabric may not
/// show within its time that it carries; then the lane stays TCP, and another one is tried.
fn connect_by(transport: &str, uri: &str, far: &mut Far) -> (Endpoint, Connection) {
    let start = Instant::now();
    loop {
        let end = open(transport, "isthnear", &EndpointOptions::default());
        let connection = connect(&end, uri, far);
        let carriers = end.carriers();
        if carriers.iter().any(|by| by == carrier(transport)) {
            return (end, connection);
        }
        in_time(start.elapsed() < LIMIT, || format!("{carriers:?}, not {transport}"));
    }
}

fn connect(end: &Endpoint, uri: &str, far: &mut Far) -> Connection {
    far.tell("accept");
    end.connect(uri, b"", Level::Ro, 1, &Default::default()).expect("asked");
    let Event::Connected { connection, .. } = await_event(end) else { panic!("not connected") };
    far.hear("done accept");
    connection
}

/// Each message has its event, within its time; all arrive when the receiver takes them.
fn a_full_receiver(end: &Endpoint, connection: Connection, far: &mut Far) {
    end.set_send_timeout(connection, Duration::from_millis(100)).expect("open");
    let message = Bytes::from(pattern(60_000, 1));
    for context in 0..COUNT {
        let how = SendOptions { context, ..Default::default() };
        end.send_bytes(connection, std::slice::from_ref(&message), &how).expect("sent");
    }
    let late = (0..COUNT).filter(|_| match await_event(end) {
        Event::Sent { end: Err(Failure::TimedOut), .. } => true,
        Event::Sent { end: Ok(()), .. } => false,
        other => panic!("{other:?}"),
    });
    assert!(late.count() > 0, "all of it fits");
    far.tell("take all");
    far.hear("done take all");
}

fn a_time_out_and_a_keepalive(end: &Endpoint, connection: Connection, far: &Far) {
    let ours = end.register(100, Access::default()).expect("memory");
    // Nothing there has this key; but who is stopped cannot say so.
    let theirs = MemoryHandle { key: 1, len: 100, read: true, write: true };
    far.stop();
    let how = RemoteOptions { context: 5, ..Default::default() };
    end.write(connection, &ours, 0, &theirs, 0, 100, &how).expect("posted");
    match await_event(end) {
        Event::Sent { operation: 5, end: Err(Failure::TimedOut), .. } => {}
        other => panic!("{other:?}"),
    }
    end.set_keepalive(connection, Duration::from_millis(300)).expect("open");
    match await_event(end) {
        Event::KeepaliveExpired { connection: silent, context: 1 } => assert_eq!(silent, connection),
        other => panic!("{other:?}"),
    }
    end.set_keepalive(connection, Duration::ZERO).expect("the connection goes on");
    end.set_send_timeout(connection, Duration::ZERO).expect("the connection goes on");
    far.signal(libc::SIGCONT);
    is_there(end, connection);
}

/// A message gets through.
fn is_there(end: &Endpoint, connection: Connection) {
    end.send(connection, b"are you there?", &SendOptions::default()).expect("posted");
    loop {
        match await_event(end) {
            Event::Sent { end: Ok(()), .. } => return,
            // As often as it failed, and late perhaps.
            Event::DeviceFailed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// What befalls an interface is told, each in its words; and mended, the connection goes on.
fn a_failed_device(end: &Endpoint, connection: Connection, apart: bool, far: &mut Far) {
    ip("link set isthnear down");
    has_failed(end, "isthnear is down");
    ip("link set isthnear up");
    is_there(end, connection);
    ip(&format!("addr del {NEAR}/24 dev isthnear"));
    has_failed(end, NEAR);
    ip(&format!("addr add {NEAR}/24 dev isthnear"));
    is_there(end, connection);
    match apart {
        true => far.tell("cut"),
        false => ip("link set isthfar down"),
    }
    has_failed(end, "no carrier");
    match apart {
        true => far.tell("mend"),
        false => ip("link set isthfar up"),
    }
    is_there(end, connection);
}

/// Waits until it is told in these words; others may come of what the interface goes through.
fn has_failed(end: &Endpoint, told: &str) {
    let start = Instant::now();
    loop {
        in_time(start.elapsed() < LIMIT, || format!("nobody tells of {told}"));
        match await_event(end) {
            Event::DeviceFailed { why } if why.contains("device one") && why.contains(told) => return,
            Event::DeviceFailed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn a_peer_that_vanishes(end: &Endpoint, connection: Connection, transport: &str, far: &mut Far) {
    far.tell("lend");
    let lent = far.hear("lent ");
    let (key, len) = lent.split_once(' ').expect("two numbers");
    let (key, len) = (key.parse().expect("a number"), len.parse().expect("a number"));
    let theirs = MemoryHandle { key, len, read: true, write: true };
    let ours = end.register(LONG, Access::default()).expect("memory");
    // It ends in the middle of reads and writes; its host stays, and says that nobody listens there.
    let _host = far.network();
    for context in 0..OPERATIONS {
        let how = RemoteOptions { context, message: Some(b"late"), ..Default::default() };
        match context % 2 {
            0 => end.write(connection, &ours, 0, &theirs, 0, len, &how).expect("posted"),
            _ => end.read(connection, &ours, 0, &theirs, 0, len, &how).expect("posted"),
        }
    }
    far.child.kill().expect("it lives");
    far.child.wait().expect("it ends");
    let mut ended = [false; OPERATIONS as usize];
    let start = Instant::now();
    loop {
        in_time(start.elapsed() < LIMIT, || "nobody tells that the peer is gone");
        match await_event(end) {
            Event::Disconnected { connection: gone, context: 1, why } => {
                // Frames are not answered by a host, but by who listens.
                let by_time = transport == "ethernet" && matches!(why, Failure::Unreachable(_));
                assert!(by_time || matches!(why, Failure::PeerGone(_)), "{why:?}");
                assert_eq!(gone, connection);
                break;
            }
            // Well or not, each once.
            Event::Sent { operation, .. } => {
                assert!(!std::mem::replace(&mut ended[operation as usize], true), "{operation} ended twice");
            }
            Event::DeviceFailed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(ended.iter().all(|ended| *ended), "{ended:?}");
    assert!(!ours.is_in_use(), "memory of what has ended is the program's");
}
