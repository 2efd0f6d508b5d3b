//! Stream: `stream` receives and checks, `stream URI` sends without copies; one message in
//! sixteen is told, and by the order of RO tells those before it.

mod common;

use bytes::Bytes;
use common::{Outcome, accept, connect, open, other_side, pattern, receive};
use isthmus_substrate::{Error, Event, Level, SendOptions};

const LENGTH: usize = 60_000;
const COUNT: u64 = 512;

fn main() -> Outcome {
    match other_side() {
        None => take(),
        Some(uri) => give(&uri),
    }
}

fn take() -> Outcome {
    let endpoint = open()?;
    println!("{}", endpoint.uri());
    accept(&endpoint)?;
    for number in 0..COUNT {
        assert_eq!(*receive(&endpoint)?, *pattern(LENGTH, number), "message {number}");
    }
    assert!(matches!(common::next(&endpoint)?, Event::Disconnected { .. }));
    Ok(())
}

fn give(uri: &str) -> Outcome {
    let endpoint = open()?;
    let sink = connect(&endpoint, uri, Level::Ro)?;
    let mut number = 0;
    while number < COUNT {
        let message = Bytes::from(pattern(LENGTH, number));
        let how = SendOptions { context: number, silent: number % 16 != 15, ..SendOptions::DEFAULT };
        match endpoint.send_bytes(sink, &[message], &how) {
            Ok(()) => number += 1,
            Err(Error::Full(_)) => drop(endpoint.next_event(Some(common::LIMIT))?),
            Err(other) => return Err(other.into()),
        }
    }
    // The last one tells of all.
    loop {
        match endpoint.next_event(Some(common::LIMIT))? {
            Some(Event::Sent { operation, end, .. }) => {
                end?;
                if operation == COUNT - 1 {
                    println!("{COUNT} messages of {LENGTH} bytes delivered");
                    return Ok(());
                }
            }
            other => return Err(format!("{other:?} instead of an end").into()),
        }
    }
}
