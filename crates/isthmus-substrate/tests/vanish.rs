//! Peers that stop, and peers that end, as processes do, by every transport.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use isthmus_substrate::{
    Access, Endpoint, EndpointOptions, Error, Event, Failure, Level, MemoryHandle, RemoteOptions, SendOptions,
};
use support::*;

/// The other end, whose role is the address of the hub: connects, says so, and does nothing until the standard input ends.
#[test]
fn spoke() {
    let Ok(uri) = std::env::var(hosts::ROLE) else { return };
    let endpoint = open_by(&hosts::transport(), &EndpointOptions::default());
    endpoint.connect(&uri, b"", Level::Ro, 1, &Default::default()).expect("asked");
    assert!(matches!(next(&endpoint, &endpoint), Event::Connected { .. }));
    println!("spoke connected");
    let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
}

struct Other(Child);

impl Other {
    fn start(hub: &Endpoint, transport: &str) -> (Self, isthmus_substrate::Connection) {
        let mut child = hosts::play_by(&[], &hub.uri(), "spoke", transport)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let Event::Requested(request) = next(hub, hub) else { panic!("no request") };
        let connection = hub.accept(request, 2).expect("granted");
        assert!(matches!(next(hub, hub), Event::Accepted { .. }));
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text").contains("spoke connected")));
        check_carrier(hub, transport);
        (Self(child), connection)
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }

    /// Stops it, and returns when all its threads stand still.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        until_stopped(self.0.id());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_stops_is_told_by_keepalive_and_goes_on_afterwards() {
    if std::env::var(hosts::ROLE).is_ok() {
        return;
    }
    by_each_transport(stops);
}

fn stops(transport: &str) {
    println!("by {transport}");
    let hub = open_by(transport, &EndpointOptions::default());
    let (other, connection) = Other::start(&hub, transport);
    other.stop();
    hub.set_keepalive(connection, Duration::from_millis(300)).expect("open");
    match await_event(&hub) {
        Event::KeepaliveExpired { connection: silent, context: 2 } => assert_eq!(silent, connection),
        event => panic!("{event:?}"),
    }
    other.signal(libc::SIGCONT);
    hub.set_keepalive(connection, Duration::ZERO).expect("the connection goes on");
    let how = SendOptions { blocking: true, ..Default::default() };
    hub.send(connection, b"are you there?", &how).expect("it is");
}

#[test]
fn a_write_to_a_process_that_stops_is_told_of_in_time_and_ends_later() {
    if std::env::var(hosts::ROLE).is_ok() {
        return;
    }
    by_each_transport(stops_under_writes);
}

fn stops_under_writes(transport: &str) {
    println!("by {transport}");
    let hub = open_by(transport, &EndpointOptions::default());
    let (other, connection) = Other::start(&hub, transport);
    let ours = hub.register(100, Access { remote_read: false, remote_write: false }).expect("memory");
    // Nothing there has this key; but who is stopped cannot say so.
    let theirs = MemoryHandle { key: 1, len: 100, read: true, write: true };
    other.stop();
    hub.set_send_timeout(connection, Duration::from_millis(200)).expect("open");
    let how = RemoteOptions { context: 5, message: Some(b"later"), ..Default::default() };
    hub.write(connection, &ours, 0, &theirs, 0, 100, &how).expect("posted");
    let how = RemoteOptions { context: 6, ..Default::default() };
    hub.read(connection, &ours, 0, &theirs, 0, 100, &how).expect("posted");
    for expected in [5, 6] {
        match await_event(&hub) {
            Event::Sent { operation, end: Err(Failure::TimedOut), .. } => {
                assert_eq!(operation, expected);
            }
            event => panic!("{event:?}"),
        }
    }
    let blocking = RemoteOptions { blocking: true, ..Default::default() };
    let refused = hub.write(connection, &ours, 0, &theirs, 0, 1, &blocking);
    assert_eq!(refused, Err(Error::Failed(Failure::TimedOut)));
    assert!(ours.is_in_use(), "the engine may still touch it");
    other.signal(libc::SIGCONT);
    let start = Instant::now();
    while ours.is_in_use() {
        in_time(start.elapsed() < LIMIT, || "they never end");
        let event = hub.next_event(Some(Duration::from_millis(10))).expect("open");
        assert!(event.is_none(), "told twice: {event:?}");
    }
}

#[test]
fn a_process_that_is_killed_disconnects_even_where_nothing_is_sent() {
    if std::env::var(hosts::ROLE).is_ok() {
        return;
    }
    by_each_transport(is_killed);
}

fn is_killed(transport: &str) {
    println!("by {transport}");
    let hub = open_by(transport, &EndpointOptions::default());
    let (other, connection) = Other::start(&hub, transport);
    other.signal(libc::SIGKILL);
    match await_event(&hub) {
        Event::Disconnected { connection: gone, context: 2, why: Failure::PeerGone(text) } => {
            assert_eq!(gone, connection);
            assert!(text.contains("nobody listens"), "{text}");
        }
        event => panic!("{event:?}"),
    }
}
