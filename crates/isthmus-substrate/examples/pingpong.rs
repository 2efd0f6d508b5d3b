//! Ping-pong: `pingpong` waits for a partner, `pingpong URI` plays with it at every level.

mod common;

use std::time::{Duration, Instant};

use common::{Outcome, SILENT, connect, open, other_side};
use isthmus_substrate::{Event, Level};

const ROUNDS: u32 = 500;

fn main() -> Outcome {
    match other_side() {
        None => serve(),
        Some(uri) => [Level::Uu, Level::Ru, Level::Ro].into_iter().try_for_each(|level| play(&uri, level)),
    }
}

fn serve() -> Outcome {
    let endpoint = open()?;
    println!("{}", endpoint.uri());
    let mut left = 3;
    while left > 0 {
        match common::next(&endpoint)? {
            Event::Requested(request) => drop(endpoint.accept(request, 0)?),
            // Straight from the endpoint's buffer.
            Event::Received(message) => endpoint.send(message.connection(), &message, &SILENT)?,
            Event::Disconnected { connection, .. } => {
                endpoint.disconnect(connection)?;
                left -= 1;
            }
            _ => {}
        }
    }
    Ok(())
}

fn play(uri: &str, level: Level) -> Outcome {
    let endpoint = open()?;
    let partner = connect(&endpoint, uri, level)?;
    let start = Instant::now();
    let mut lost = 0;
    for round in 0..ROUNDS {
        endpoint.send(partner, &round.to_le_bytes(), &SILENT)?;
        // UU may lose a message: then the round is given up.
        let patience = if level.is_reliable() { common::LIMIT } else { Duration::from_millis(100) };
        match endpoint.next_event(Some(patience))? {
            Some(Event::Received(message)) if !level.is_reliable() => assert_eq!(message.len(), 4),
            Some(Event::Received(message)) => assert_eq!(*message, round.to_le_bytes()),
            None if !level.is_reliable() => lost += 1,
            other => return Err(format!("{other:?} in round {round}").into()),
        }
    }
    println!("{level}: round trip {:?}, {lost} of {ROUNDS} lost", start.elapsed() / ROUNDS);
    endpoint.disconnect(partner)?;
    Ok(())
}
