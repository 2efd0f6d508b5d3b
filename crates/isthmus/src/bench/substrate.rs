//! Measures the substrate.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use isthmus_substrate::{
    Access, ConnectOptions, Connection, Endpoint, Error, Event, Failure, Level, MemoryHandle, RemoteOptions,
    SendOptions,
};

use super::report::{Figure, Row, histogram};
use super::serve::{ECHO, MEMORY, SINK, SUNK, ServerAddresses, endpoint};
use super::{At, Fault};

/// How long to wait for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for an answer that may be lost.
const UU_PATIENCE: Duration = Duration::from_millis(200);
/// How long UU messages in flight may take to arrive: nobody acknowledges them.
const UU_SETTLE: Duration = Duration::from_millis(20);
/// Round trips before counting begins, at most as many as are counted.
const WARM_UP: u64 = 200;

const SILENT: SendOptions = SendOptions { silent: true, ..SendOptions::DEFAULT };

/// Waits for an event by polling.
pub(super) fn next(endpoint: &Endpoint, patience: Duration) -> Result<Option<Event>, Fault> {
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

/// The measuring side: its device, the other side, and the service level.
pub(super) struct Client<'a> {
    pub(super) at: &'a At,
    pub(super) server: &'a ServerAddresses,
    pub(super) level: Level,
}

impl Client<'_> {
    pub(super) fn connect(&self, words: &[u8]) -> Result<(Endpoint, Connection), Fault> {
        let (server, endpoint) = (self.server, endpoint(self.at)?);
        let options = ConnectOptions { timeout: Some(PATIENCE) };
        endpoint.connect(&server.uri, words, self.level, 0, &options)?;
        match next(&endpoint, PATIENCE)? {
            Some(Event::Connected { connection, .. }) => Ok((endpoint, connection)),
            Some(Event::ConnectFailed { why, .. }) => {
                Err(format!("no connection with {}: {why}", server.uri).into())
            }
            other => Err(format!("{other:?} instead of a connection").into()),
        }
    }

    /// The name of a row: the level, and the carriers that the lanes have used.
    fn name(&self, endpoint: &Endpoint, what: &str) -> String {
        let mut carriers = endpoint.carriers();
        carriers.sort();
        carriers.dedup();
        // UU datagrams do not use the lanes.
        let by = if self.level.is_reliable() { " by " } else { ", lanes by " };
        format!("{}{what}{by}{}", self.level, carriers.join(" and "))
    }

    pub(super) fn pingpong(&self, size: usize, count: u64) -> Result<Row, Fault> {
        let (endpoint, to) = self.connect(ECHO)?;
        let message = vec![7; size];
        let mut times = histogram();
        let mut lost = 0;
        let patience = if self.level.is_reliable() { PATIENCE } else { UU_PATIENCE };
        let warm_up = WARM_UP.min(count);
        for round in 0..warm_up + count {
            let start = Instant::now();
            endpoint.send(to, &message, &SILENT)?;
            match next(&endpoint, patience)? {
                Some(Event::Received(_)) if round >= warm_up => {
                    times.record(start.elapsed().as_nanos() as u64)?;
                }
                Some(Event::Received(_)) => {}
                None if !self.level.is_reliable() => lost += 1,
                other => return Err(format!("{other:?} instead of an answer").into()),
            }
        }
        let what = self.name(&endpoint, "");
        Ok(Row { what, size, count, lost, result: Figure::RoundTrips(Box::new(times)) })
    }

    pub(super) fn stream(&self, size: usize, count: u64, depth: u32) -> Result<Row, Fault> {
        let (endpoint, to) = self.connect(SINK)?;
        if !self.level.is_reliable() {
            return self.unreliable_stream(&endpoint, to, size, count);
        }
        let message = bytes::Bytes::from(vec![7; size]);
        let pumped = pump(&endpoint, count, depth, |context| {
            let how = SendOptions { context, ..SendOptions::default() };
            endpoint.send_bytes(to, std::slice::from_ref(&message), &how)
        })?;
        Ok(pumped.row(self.name(&endpoint, ""), size, count))
    }

    /// Sends as fast as possible. Only messages that arrive count.
    fn unreliable_stream(
        &self,
        endpoint: &Endpoint,
        to: Connection,
        size: usize,
        count: u64,
    ) -> Result<Row, Fault> {
        let size = size.min(endpoint.message_max(to)? as usize);
        let (message, before) = (vec![7; size], self.sunk(endpoint)?);
        let start = Instant::now();
        for _ in 0..count {
            endpoint.send(to, &message, &SILENT)?;
        }
        let mut seconds = start.elapsed().as_secs_f64();
        let mut arrived = self.sunk(endpoint)?;
        // Wait until no more messages arrive. The time ends when the last ones were seen.
        loop {
            let asked = start.elapsed().as_secs_f64();
            std::thread::sleep(UU_SETTLE);
            let now = self.sunk(endpoint)?;
            if now == arrived {
                break;
            }
            (arrived, seconds) = (now, asked);
        }
        let arrived = arrived - before;
        let result = Figure::Goodput { bytes: size as u64 * arrived, seconds, each: None };
        Ok(Row { what: self.name(endpoint, ""), size, count, lost: count.saturating_sub(arrived), result })
    }

    /// How many messages the other side's sink has received.
    pub(super) fn sunk(&self, endpoint: &Endpoint) -> Result<u64, Fault> {
        let options = ConnectOptions { timeout: Some(PATIENCE) };
        endpoint.connect(&self.server.uri, SUNK, Level::Ro, 0, &options)?;
        match next(endpoint, PATIENCE)? {
            Some(Event::ConnectFailed { why: Failure::Rejected(0), payload, .. }) => {
                Ok(payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
            }
            other => Err(format!("{other:?} instead of a count").into()),
        }
    }

    pub(super) fn rma(&self, size: usize, count: u64, depth: u32) -> Result<Row, Fault> {
        let words = [MEMORY, size.to_string().as_bytes()].concat();
        let (endpoint, to) = self.connect(&words)?;
        let Some(Event::Received(message)) = next(&endpoint, PATIENCE)? else {
            return Err("the other side did not lend its memory".into());
        };
        let remote =
            message.first_chunk().and_then(MemoryHandle::from_bytes).ok_or("no memory handle came")?;
        let ours = endpoint.register(size, Access::default())?;
        ours.write_at(0, &vec![7; size])?;
        let pumped = pump(&endpoint, count, depth, |context| {
            let how = RemoteOptions { context, ..RemoteOptions::default() };
            endpoint.write(to, &ours, 0, &remote, 0, size as u64, &how)
        })?;
        Ok(pumped.row(self.name(&endpoint, " write"), size, count))
    }
}

/// The result of `pump`.
struct Pumped {
    seconds: f64,
    each: Histogram<u64>,
}

impl Pumped {
    fn row(self, what: String, size: usize, count: u64) -> Row {
        let (bytes, each) = (size as u64 * count, Some(Box::new(self.each)));
        Row { what, size, count, lost: 0, result: Figure::Goodput { bytes, seconds: self.seconds, each } }
    }
}

/// Keeps `depth` operations in flight until all have ended. `post` gets a context, which identifies the operation when
/// it ends.
fn pump(
    endpoint: &Endpoint,
    count: u64,
    depth: u32,
    mut post: impl FnMut(u64) -> Result<(), Error>,
) -> Result<Pumped, Fault> {
    let warm_up = u64::from(depth) * 2;
    let (mut posted, mut ended) = (0, 0);
    let mut start = Instant::now();
    let mut began = vec![start; depth as usize];
    let mut free: Vec<u64> = (0..u64::from(depth)).collect();
    let mut each = histogram();
    while ended < warm_up + count {
        while posted < warm_up + count
            && let Some(slot) = free.pop()
        {
            began[slot as usize] = Instant::now();
            post(slot)?;
            posted += 1;
        }
        match next(endpoint, PATIENCE)? {
            Some(Event::Sent { end: Ok(()), operation, .. }) => {
                ended += 1;
                free.push(operation);
                if ended > warm_up {
                    each.record(began[operation as usize].elapsed().as_nanos() as u64)?;
                }
            }
            other => return Err(format!("{other:?} instead of the end of an operation").into()),
        }
        if ended == warm_up {
            start = Instant::now();
        }
    }
    Ok(Pumped { seconds: start.elapsed().as_secs_f64(), each })
}
