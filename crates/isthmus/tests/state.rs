//! `isthmus state` for a process with a send that nobody receives.

#[path = "../../isthmus-io/tests/support/mod.rs"]
mod support;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use support::*;

/// Longer than credit lets go ahead of the receive. Bytes.
const LENGTH: usize = 32 << 20;

fn state(pid: u32) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    command.args(["state", &pid.to_string()]).output().expect("it runs")
}

#[test]
fn a_stalled_endpoint_is_shown_with_what_it_waits_for() {
    let (a, b) = (open(), open());
    let mut data = pattern(LENGTH, 1);
    send(&a, a.peer(&b.address()).expect("same subnet"), 7, &mut data);
    let start = Instant::now();
    let text = loop {
        let Output { status, stdout, stderr } = state(std::process::id());
        let text = String::from_utf8(stdout).expect("text");
        assert!(status.success() && stderr.is_empty(), "{text}{}", String::from_utf8_lossy(&stderr));
        // Before that, the lane is dialled.
        if text.contains("the peer has not posted its receive") {
            break text;
        }
        in_time(start.elapsed() < LIMIT, || format!("the send does not wait for its receive: {text}"));
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(text.starts_with(&format!("process {}\n", std::process::id())), "{text}");
    let section = format!("endpoint {}\n", a.address());
    let (_, sender) = text.split_once(&section).unwrap_or_else(|| panic!("no {section} in {text}"));
    let sender = sender.split("\nendpoint ").next().unwrap_or_default();
    assert!(sender.contains(&format!("  peer {}\n", b.address())), "{sender}");
    let operation = format!("a tagged message with tag 0x7 of {LENGTH} bytes, for ");
    let pending = sender.lines().find(|line| line.contains(&operation)).unwrap_or_else(|| panic!("{sender}"));
    assert!(pending.contains("the peer has not posted its receive"), "{pending}");

    let mut got = vec![0; LENGTH];
    recv(&b, None, 7, &mut got);
    complete(&[&a, &b], 2);
    assert!(got == data);
    a.close();
    b.close();
    let Output { stdout, .. } = state(std::process::id());
    let text = String::from_utf8_lossy(&stdout);
    assert!(!text.contains("tagged message"), "nothing waits any more: {text}");
}

#[test]
fn a_process_without_endpoints_does_not_answer() {
    // Linux never gives this number to a process (proc(5), pid_max).
    let Output { status, stdout, stderr } = state(1 << 22);
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(stdout.is_empty() && said.contains("process 4194304 does not answer"), "{said}");
}
