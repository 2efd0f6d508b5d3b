//! The log line about an operation that has been pending for longer than the setting `stall_warning`.

mod support;

use std::fmt::Arguments;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_io::log::{Severity, set_hook};
use isthmus_io::{Endpoint, Settings};
use isthmus_units::Span;
use support::*;

/// Longer than credit lets go ahead of the receive. Bytes.
const LENGTH: usize = 32 << 20;

/// The warnings so far. All tests of this file share them.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(severity: Severity, line: Arguments<'_>) {
    if severity == Severity::Warn {
        LINES.lock().expect("nobody panics with it").push(line.to_string());
    }
}

/// The lines so far about a stalled operation on this peer.
fn lines(peer: &Endpoint) -> Vec<String> {
    let about = format!(" to {} has been pending for ", peer.address());
    let lines = LINES.lock().expect("nobody panics with it");
    lines.iter().filter(|line| line.contains(&about)).cloned().collect()
}

/// How long the operation had been pending, as a line says. Seconds.
fn age(line: &str) -> f64 {
    let told = line.split_once("has been pending for ").and_then(|(_, rest)| rest.split_once(" s: "));
    told.and_then(|(age, _)| age.parse().ok()).unwrap_or_else(|| panic!("no age in {line:?}"))
}

fn open_with(stall_warning: Span) -> Arc<Endpoint> {
    let settings = Settings { stall_warning, ..settings() };
    Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there")
}

/// Calls `meanwhile` until there are `count` lines about this peer, and returns them.
fn await_lines(peer: &Endpoint, count: usize, mut meanwhile: impl FnMut()) -> Vec<String> {
    let start = Instant::now();
    loop {
        let lines = lines(peer);
        if lines.len() >= count {
            return lines;
        }
        in_time(start.elapsed() < LIMIT, || format!("{} of {count} warnings came: {lines:?}", lines.len()));
        meanwhile();
    }
}

#[test]
fn a_stalled_send_is_a_line_whenever_its_time_has_doubled() {
    set_hook(keep);
    let (a, b) = (open_with(Span::from_ms(1_000)), open());
    let (silent, other) = (open_with(Span::from_ms(0)), open());
    let (mut data, mut silent_data) = (vec![1; LENGTH], vec![1; LENGTH]);
    send(&a, a.peer(&b.address()).expect("same subnet"), 7, &mut data);
    send(&silent, silent.peer(&other.address()).expect("same subnet"), 7, &mut silent_data);
    // The I/O thread says the first line while the program polls, and the second while it does not.
    let polled = || {
        a.poll(&mut Vec::new());
    };
    let first = await_lines(&b, 1, polled);
    let both = await_lines(&b, 2, || std::thread::sleep(Duration::from_millis(5)));
    let pid = std::process::id();
    for line in &both {
        assert!(line.starts_with(&format!("a tagged message with tag 0x7 of {LENGTH} bytes to ")), "{line}");
        assert!(line.contains("the peer has not posted its receive"), "{line}");
        assert!(
            line.contains(&format!("`isthmus state {pid}`")) && line.contains("(stall_warning)"),
            "{line}"
        );
    }
    let ages = [age(&first[0]), age(&both[1])];
    // The I/O thread looks once a second. Another second is for a machine with other work.
    assert!(first.len() == 1 && (1.0..3.0).contains(&ages[0]), "{first:?}");
    // An age in a line is rounded down to 0.1 s.
    assert!((2.0 * ages[0]..2.0 * ages[0] + 2.2).contains(&ages[1]), "{both:?}");
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(silent.counters().messages_mixed + silent.counters().messages_eager > 0, "nothing was sent");
    assert_eq!(lines(&other), [""; 0], "a stall_warning of 0s asks for no lines");

    let (mut got, mut silent_got) = (vec![0; LENGTH], vec![0; LENGTH]);
    recv(&b, None, 7, &mut got);
    recv(&other, None, 7, &mut silent_got);
    complete(&[&a, &b, &silent, &other], 4);
    for endpoint in [a, b, silent, other] {
        endpoint.close();
    }
}

/// A thread that does not come back from a call must not stop the I/O thread, which tells of it.
#[test]
fn lines_and_state_come_while_another_thread_holds_the_lanes() {
    set_hook(keep);
    let (a, b) = (open_with(Span::from_ms(1_000)), open());
    let mut data = vec![1; LENGTH];
    send(&a, a.peer(&b.address()).expect("same subnet"), 7, &mut data);
    let start = Instant::now();
    while a.counters().messages_mixed + a.counters().messages_eager == 0 {
        in_time(start.elapsed() < LIMIT, || format!("nothing is sent: {:?}", a.counters()));
        a.poll(&mut Vec::new());
    }
    let idle = open_with(Span::from_ms(1_000));
    let ask = || isthmus_io::state_of(std::process::id()).expect("the I/O thread answers");
    // The closure runs while this thread holds the lanes.
    a.change_protocols(|_| {
        let state = ask();
        assert!(state.contains("the peer has not posted its receive"), "{state}");
        assert!(state.contains("a thread has held its lanes for 1s"), "{state}");
        await_lines(&b, 2, || std::thread::sleep(Duration::from_millis(5)));
    });
    let state = ask();
    assert!(!state.contains("a thread has held"), "{state}");

    // Nothing is under way here, so nothing but the thread itself can be told of.
    let held = format!("a thread has held the lanes of endpoint {} for at least ", idle.address());
    idle.change_protocols(|_| {
        let told = || LINES.lock().expect("nobody panics with it").iter().any(|line| line.starts_with(&held));
        let start = Instant::now();
        while !told() {
            in_time(start.elapsed() < LIMIT, || format!("no line begins with {held}"));
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let mut got = vec![0; LENGTH];
    recv(&b, None, 7, &mut got);
    complete(&[&a, &b], 2);
    for endpoint in [a, b, idle] {
        endpoint.close();
    }
}
