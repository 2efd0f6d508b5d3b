//! What is decided is said in the log, as `docs/decisions.md` has it, and counted.

mod support;

use std::fmt::Arguments;
use std::sync::Mutex;
use std::time::Instant;

use isthmus_io::Transport;
use isthmus_io::log::{Severity, set_hook};
use support::*;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: Severity, line: Arguments<'_>) {
    LINES.lock().expect("nobody panics with it").push(line.to_string());
}

/// Whether each of these, all parts in one line, was said.
fn said(what: &[&[&str]]) -> Result<(), String> {
    let lines = LINES.lock().expect("nobody panics with it");
    let missing = |parts: &&&[&str]| !lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    match what.iter().find(missing) {
        Some(parts) => Err(format!("no line with {parts:?} in {lines:#?}")),
        None => Ok(()),
    }
}

#[test]
fn carriers_credit_and_transfers_are_lines_with_reasons() {
    set_hook(keep);
    for by in [Transport::Tcp, Transport::UdpEverywhere] {
        let (a, b) = (open_by(by), open_by(by));
        let to_b = a.peer(&b.address()).expect("same subnet");
        // The first finds the credit that everybody has, the last more than the path has.
        for (tag, len) in [(1, 100), (2, 1 << 20), (3, 16 << 20)] {
            let (mut sent, mut got) = (pattern(len, 1), vec![0; len]);
            recv(&b, None, tag, &mut got);
            send(&a, to_b, tag, &mut sent);
            complete(&[&a, &b], 2);
        }
        assert!(a.counters().messages_eager > 0 && a.counters().lanes_opened > 0, "{:?}", a.counters());
        let start = Instant::now();
        let peer = b.address().to_string();
        let carried = if by == Transport::Tcp { "goes by TCP" } else { "goes by UDP" };
        let wanted: &[&[&str]] = &[
            &["lane", "dialled", carried, "round trip", "transport"],
            &["lane", "accepted", carried],
            &[&peer, "transfer: ", ": the credit "],
            &[&peer, "credit: ", " KiB: by the round trip"],
        ];
        while let Err(missing) = said(wanted) {
            in_time(start.elapsed() < LIMIT, || missing);
            a.poll(&mut Vec::new());
        }
        assert!(a.summary().iter().any(|line| line.contains(&peer)), "{:?}", a.summary());
        a.close();
        b.close();
        let by = if by == Transport::Tcp { " TCP;" } else { " UDP (rate+adaptive+measured+search);" };
        let done = a.counters();
        let sent = format!("messages {} eager, {} mixed", done.messages_eager, done.messages_mixed);
        assert_eq!(done.messages_eager + done.messages_asked, 3);
        let own = a.address().to_string();
        let summaries: &[&[&str]] =
            &[&[&peer, ": summary: lanes ", by, &sent], &[&own, ": summary: lanes ", by, "messages 0 eager"]];
        assert_eq!(said(summaries), Ok(()));
    }
    assert_eq!(said(&[&["a lane by UDP with", "is rate+adaptive+measured+search"]]), Ok(()));
}
