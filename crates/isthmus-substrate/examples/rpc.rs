//! Remote calls: `rpc` serves until its last client has left, `rpc URI` calls.

mod common;

use std::collections::HashSet;

use common::{Outcome, SILENT, connect, open, other_side, receive};
use isthmus_substrate::{Event, Level};

const CALLS: u32 = 1000;
const DEPTH: usize = 32;

fn main() -> Outcome {
    match other_side() {
        None => serve(),
        Some(uri) => call(&uri),
    }
}

fn serve() -> Outcome {
    let endpoint = open()?;
    println!("{}", endpoint.uri());
    let (mut clients, mut came) = (0, false);
    while clients > 0 || !came {
        match common::next(&endpoint)? {
            Event::Requested(request) => {
                endpoint.accept(request, 0)?;
                (clients, came) = (clients + 1, true);
            }
            Event::Received(call) => {
                // The number of the call, then a text to be turned round.
                let (number, text) = call.split_at(call.len().min(4));
                let answer: Vec<u8> = text.iter().rev().copied().collect();
                endpoint.send_pieces(call.connection(), &[number, &answer], &SILENT)?;
            }
            Event::Disconnected { connection, .. } => {
                endpoint.disconnect(connection)?;
                clients -= 1;
            }
            _ => {}
        }
    }
    Ok(())
}

fn call(uri: &str) -> Outcome {
    let endpoint = open()?;
    let server = connect(&endpoint, uri, Level::Ru)?;
    let (mut asked, mut waiting) = (0u32, HashSet::new());
    while asked < CALLS || !waiting.is_empty() {
        if asked < CALLS && waiting.len() < DEPTH {
            let text = format!("call {asked}");
            endpoint.send_pieces(server, &[&asked.to_le_bytes(), text.as_bytes()], &SILENT)?;
            waiting.insert(asked);
            asked += 1;
            continue;
        }
        let answer = receive(&endpoint)?;
        let number = u32::from_le_bytes(*answer.first_chunk().ok_or("a short answer")?);
        assert!(waiting.remove(&number), "an answer that nobody waits for");
        let turned: String = format!("call {number}").chars().rev().collect();
        assert_eq!(&answer[4..], turned.as_bytes());
    }
    println!("{CALLS} calls answered");
    endpoint.disconnect(server)?;
    Ok(())
}
