//! Ten thousand connections on one endpoint: what each costs once it is silent, and that
//! their number slows nobody.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use isthmus_substrate::{Endpoint, EndpointOptions, Event, Level, SendOptions};
use support::*;

/// Bytes that a silent connection may cost, both of its ends together.
const SILENT_MAX: isize = 1024;

/// The system's allocator, which counts what is in use.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    // Else the buffers' pages would all be touched.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Makes `count` connections between the two, and leaves them silent.
fn connect_many(a: &Endpoint, b: &Endpoint, count: usize) -> Vec<isthmus_substrate::Connection> {
    let (mut asked, mut made, mut accepted) = (0, Vec::new(), 0);
    let start = Instant::now();
    while made.len() < count || accepted < count {
        while asked < count && asked - made.len() < 500 {
            a.connect(&b.uri(), b"", Level::Ro, 1, &Default::default()).expect("asked");
            asked += 1;
        }
        while let Some(event) = a.get_event().expect("open") {
            let Event::Connected { connection, .. } = event else { panic!("{event:?}") };
            made.push(connection);
        }
        while let Some(event) = b.get_event().expect("open") {
            match event {
                Event::Requested(request) => drop(b.accept(request, 2).expect("granted")),
                Event::Accepted { .. } => accepted += 1,
                other => panic!("{other:?}"),
            }
        }
        in_time(start.elapsed() < 2 * LIMIT, || format!("only {} connections", made.len()));
    }
    made
}

/// The best of many round trips, of a machine that may be busy.
fn round_trip(a: &Endpoint, b: &Endpoint, to: isthmus_substrate::Connection) -> Duration {
    let silent = SendOptions { silent: true, ..Default::default() };
    let mut best = Duration::MAX;
    for _ in 0..300 {
        let start = Instant::now();
        a.send(to, b"ping", &silent).expect("sent");
        let message = receive(b, a);
        b.send(message.connection(), &message, &silent).expect("sent");
        drop(message);
        drop(receive(a, b));
        best = best.min(start.elapsed());
    }
    best
}

#[test]
fn ten_thousand_silent_connections_cost_little_and_slow_nobody() {
    let options = EndpointOptions { backlog: 20_000, ..Default::default() };
    let (a, b) = (open_with(&options), open_with(&options));
    let first = connect_many(&a, &b, 100);
    let alone = round_trip(&a, &b, first[0]);
    let before = IN_USE.load(Relaxed);
    let many = connect_many(&a, &b, 10_000);
    let each = (IN_USE.load(Relaxed) - before) / 10_000;
    println!("a silent connection costs {each} bytes, both ends together");
    assert!(each <= SILENT_MAX, "a silent connection costs {each} bytes, more than {SILENT_MAX}");
    assert_eq!(b.counters().connections, 10_100);
    // No figure of time is a test: but one that grew with their number would be far off.
    let crowded = round_trip(&a, &b, many[9_999]);
    println!("round trip {alone:?} among 100 connections, {crowded:?} among 10,100");
    assert!(crowded < alone * 50 + Duration::from_millis(5), "{alone:?} became {crowded:?}");
    for connection in many.into_iter().chain(first) {
        a.disconnect(connection).expect("open");
    }
    let mut over = 0;
    events(&[&b, &a], |_, event| {
        let Event::Disconnected { connection, .. } = event else { panic!("{event:?}") };
        b.disconnect(connection).expect("once");
        over += 1;
        over == 10_100
    });
    assert_eq!(b.counters().connections, 0);
}
