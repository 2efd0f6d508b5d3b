//! What the examples share.
#![allow(dead_code, unreachable_pub, reason = "no example uses all of it")]

use std::error::Error;
use std::time::Duration;

use isthmus_substrate::{
    ConnectOptions, Connection, Endpoint, EndpointOptions, Event, Level, Message, SendOptions, Substrate,
};

pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// How long an example waits for what must come.
pub const LIMIT: Duration = Duration::from_secs(60);

pub const SILENT: SendOptions = SendOptions { silent: true, ..SendOptions::DEFAULT };

/// An endpoint on the devices that the environment names as `EXAMPLE_DEVICE`, else on the best
/// one.
pub fn open() -> Outcome<Endpoint> {
    let substrate = Substrate::init()?;
    let devices = match std::env::var("EXAMPLE_DEVICE") {
        Ok(names) => substrate.devices_named(&names)?,
        Err(_) => vec![substrate.default_device()?],
    };
    Ok(Endpoint::create_on(&devices, &EndpointOptions::default())?)
}

/// The next event but for ends of operations, which must be good.
pub fn next(endpoint: &Endpoint) -> Outcome<Event> {
    loop {
        match endpoint.next_event(Some(LIMIT))? {
            Some(Event::Sent { end, .. }) => end?,
            Some(event) => return Ok(event),
            None => return Err("nothing happened for a minute".into()),
        }
    }
}

/// Asks for a connection, and waits until it is established.
pub fn connect(endpoint: &Endpoint, uri: &str, level: Level) -> Outcome<Connection> {
    endpoint.connect(uri, b"", level, 0, &ConnectOptions { timeout: Some(LIMIT) })?;
    match next(endpoint)? {
        Event::Connected { connection, .. } => Ok(connection),
        Event::ConnectFailed { why, .. } => Err(why.into()),
        other => Err(format!("{other:?} instead of a connection").into()),
    }
}

/// Waits for somebody to connect.
pub fn accept(endpoint: &Endpoint) -> Outcome<Connection> {
    match next(endpoint)? {
        Event::Requested(request) => endpoint.accept(request, 0)?,
        other => return Err(format!("{other:?} instead of a request").into()),
    };
    match next(endpoint)? {
        Event::Accepted { connection, .. } => Ok(connection),
        other => Err(format!("{other:?} instead of a connection").into()),
    }
}

/// The next message.
pub fn receive(endpoint: &Endpoint) -> Outcome<Message> {
    match next(endpoint)? {
        Event::Received(message) => Ok(message),
        other => Err(format!("{other:?} instead of a message").into()),
    }
}

/// The one argument: where the other side is; without it we are the side that waits.
pub fn other_side() -> Option<String> {
    std::env::args().nth(1)
}

/// Bytes that tell one place and round from another.
pub fn pattern(len: usize, round: u64) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 31 + (i as u64 >> 8) * 7 + round) as u8).collect()
}
