//! Measurements of the substrate.

use std::time::{Duration, Instant};

use isthmus_substrate::{
    Access, ConnectOptions, Connection, Endpoint, Error, Event, Level, MemoryHandle, RemoteOptions,
    SendOptions,
};

use super::Fault;
use super::report::{Figure, Row, histogram};
use super::serve::{ECHO, MEMORY, Place, SINK, endpoint};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one may take that may be lost.
const UU_PATIENCE: Duration = Duration::from_millis(200);
/// Round trips that are not counted.
const WARM_UP: u64 = 200;

const SILENT: SendOptions = SendOptions { context: 0, silent: true, blocking: false };

/// Waits for an event by polling, as the plain sides' sockets wait by sleeping.
fn next(endpoint: &Endpoint, patience: Duration) -> Result<Option<Event>, Fault> {
    let start = Instant::now();
    loop {
        if let Some(event) = endpoint.get_event()? {
            return Ok(Some(event));
        }
        if start.elapsed() > patience {
            return Ok(None);
        }
    }
}

fn connect(place: &Place, level: Level, words: &[u8]) -> Result<(Endpoint, Connection), Fault> {
    let endpoint = endpoint()?;
    let options = ConnectOptions { timeout: Some(PATIENCE) };
    endpoint.connect(&place.uri, words, level, 0, &options)?;
    match next(&endpoint, PATIENCE)? {
        Some(Event::Connected { connection, .. }) => Ok((endpoint, connection)),
        Some(Event::ConnectFailed { why, .. }) => {
            Err(format!("no connection with {}: {why}", place.uri).into())
        }
        other => Err(format!("{other:?} instead of a connection").into()),
    }
}

pub(super) fn pingpong(place: &Place, level: Level, size: usize, count: u64) -> Result<Row, Fault> {
    let (endpoint, to) = connect(place, level, ECHO)?;
    let message = vec![7; size];
    let mut times = histogram();
    let mut lost = 0;
    let patience = if level.is_reliable() { PATIENCE } else { UU_PATIENCE };
    for round in 0..WARM_UP + count {
        let start = Instant::now();
        endpoint.send(to, &message, &SILENT)?;
        match next(&endpoint, patience)? {
            Some(Event::Received(_)) if round >= WARM_UP => times.record(start.elapsed().as_nanos() as u64)?,
            Some(Event::Received(_)) => {}
            None if !level.is_reliable() => lost += 1,
            other => return Err(format!("{other:?} instead of an answer").into()),
        }
    }
    let what = format!("substrate {level}");
    Ok(Row { what, size, count, lost, result: Figure::RoundTrips(Box::new(times)) })
}

pub(super) fn stream(place: &Place, level: Level, size: usize, count: u64, depth: u32) -> Result<Row, Fault> {
    let (endpoint, to) = connect(place, level, SINK)?;
    let message = bytes::Bytes::from(vec![7; size]);
    let seconds = pump(&endpoint, count, depth, |_| {
        endpoint.send_bytes(to, std::slice::from_ref(&message), &SendOptions::default())
    })?;
    let what = format!("substrate {level}");
    let bytes = size as u64 * count;
    Ok(Row { what, size, count, lost: 0, result: Figure::Goodput { bytes, seconds } })
}

pub(super) fn rma(place: &Place, level: Level, size: usize, count: u64, depth: u32) -> Result<Row, Fault> {
    let words = [MEMORY, size.to_string().as_bytes()].concat();
    let (endpoint, to) = connect(place, level, &words)?;
    let Some(Event::Received(message)) = next(&endpoint, PATIENCE)? else {
        return Err("the other side did not lend its memory".into());
    };
    let remote = message.first_chunk().and_then(MemoryHandle::from_bytes).ok_or("no memory handle came")?;
    let ours = endpoint.register(size, Access::default())?;
    ours.write_at(0, &vec![7; size])?;
    let seconds = pump(&endpoint, count, depth, |_| {
        endpoint.write(to, &ours, 0, &remote, 0, size as u64, &RemoteOptions::default())
    })?;
    let what = format!("substrate {level} write");
    let bytes = size as u64 * count;
    Ok(Row { what, size, count, lost: 0, result: Figure::Goodput { bytes, seconds } })
}

/// Keeps `depth` operations under way until all have ended; how long that took. Seconds.
fn pump(
    endpoint: &Endpoint,
    count: u64,
    depth: u32,
    mut post: impl FnMut(u64) -> Result<(), Error>,
) -> Result<f64, Fault> {
    let warm_up = u64::from(depth) * 2;
    let (mut posted, mut ended) = (0, 0);
    let mut start = Instant::now();
    while ended < warm_up + count {
        while posted < warm_up + count && posted - ended < u64::from(depth) {
            post(posted)?;
            posted += 1;
        }
        match next(endpoint, PATIENCE)? {
            Some(Event::Sent { end: Ok(()), .. }) => ended += 1,
            other => return Err(format!("{other:?} instead of the end of an operation").into()),
        }
        if ended == warm_up {
            start = Instant::now();
        }
    }
    Ok(start.elapsed().as_secs_f64())
}
