//! Beacon: `beacon` watches until the beacon is gone, `beacon URI` sends numbered beats,
//! unreliably: the newest is what counts, and none is sent again.

mod common;

use std::time::Duration;

use common::{Outcome, SILENT, accept, connect, open, other_side};
use isthmus_substrate::{Event, Level};

const BEATS: u32 = 300;

fn main() -> Outcome {
    match other_side() {
        None => watch(),
        Some(uri) => shine(&uri),
    }
}

fn watch() -> Outcome {
    let endpoint = open()?;
    println!("{}", endpoint.uri());
    accept(&endpoint)?;
    let (mut heard, mut newest) = (0, 0);
    loop {
        match common::next(&endpoint)? {
            Event::Received(beat) => {
                newest = newest.max(u32::from_le_bytes(*beat.first_chunk().ok_or("a short beat")?));
                heard += 1;
            }
            Event::Disconnected { .. } => break,
            other => return Err(format!("{other:?}").into()),
        }
    }
    println!("heard {heard} beats, the newest number {newest} of {BEATS}");
    assert!(heard > 0 && newest < BEATS);
    Ok(())
}

fn shine(uri: &str) -> Outcome {
    let endpoint = open()?;
    let watcher = connect(&endpoint, uri, Level::Uu)?;
    for beat in 0..BEATS {
        endpoint.send(watcher, &beat.to_le_bytes(), &SILENT)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(endpoint.disconnect(watcher)?)
}
