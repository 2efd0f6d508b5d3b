//! Accept or reject: `accept_reject` lets in who knows the word, `accept_reject URI` tries.

mod common;

use common::{Outcome, open, other_side};
use isthmus_substrate::{Endpoint, Event, Failure, Level};

const WORD: &[u8] = b"swordfish";
const WRONG_WORD: u32 = 401;

fn main() -> Outcome {
    match other_side() {
        None => guard(),
        Some(uri) => visit(&uri),
    }
}

fn guard() -> Outcome {
    let endpoint = open()?;
    println!("{}", endpoint.uri());
    loop {
        match common::next(&endpoint)? {
            Event::Requested(request) if request.payload() == WORD => drop(endpoint.accept(request, 5)?),
            Event::Requested(request) => endpoint.reject(request, WRONG_WORD, b"it is a fish")?,
            Event::Accepted { context, .. } => assert_eq!(context, 5),
            Event::Disconnected { .. } => return Ok(()),
            other => return Err(format!("{other:?}").into()),
        }
    }
}

fn ask(endpoint: &Endpoint, uri: &str, word: &[u8]) -> Outcome<Event> {
    endpoint.connect(uri, word, Level::Ru, 9, &Default::default())?;
    common::next(endpoint)
}

fn visit(uri: &str) -> Outcome {
    let endpoint = open()?;
    match ask(&endpoint, uri, b"shibboleth")? {
        Event::ConnectFailed { context: 9, why: Failure::Rejected(WRONG_WORD), payload } => {
            println!("turned down: {}", String::from_utf8_lossy(&payload));
        }
        other => return Err(format!("{other:?}").into()),
    }
    match ask(&endpoint, uri, WORD)? {
        Event::Connected { connection, context: 9 } => Ok(endpoint.disconnect(connection)?),
        other => Err(format!("{other:?}").into()),
    }
}
