//! `isthmus bench swap`: exchanges protocols while messages flow, and counts lost messages.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_substrate::{Event, Level, SendOptions};
use isthmus_units::{Size, Span};

use super::serve::{SINK, ServerAddresses};
use super::substrate::{Client, PATIENCE, next};
use super::{At, FAILED, Fault};

/// Protocols that are set in turn, repeatedly.
const PROTOCOLS: [&str; 6] = [
    "RO: eager",
    "RO: rendezvous",
    "RO: mixed",
    "RO: eager, udp: cubic+fixed+once",
    "RO: rendezvous, udp: reno",
    "RO: adaptive, udp: rate+adaptive+measured",
];

/// Change the protocols of a connection while messages flow, and print the lost messages and the times
#[derive(clap::Args)]
pub(super) struct Args {
    /// Send to the process that printed WHERE, an `isthmus bench serve`
    #[arg(long, value_name = "WHERE")]
    to: ServerAddresses,
    /// Send messages of this length
    #[arg(long, default_value = "64KiB")]
    size: Size,
    /// Keep this many messages in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=512))]
    depth: u32,
    /// Change the protocols this many times
    #[arg(long, default_value_t = 12, value_name = "N")]
    times: u32,
    /// Let messages flow for this time between two changes
    #[arg(long, default_value = "200ms")]
    every: Span,
}

pub(super) fn main(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(result) => {
            outln!("{result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            errln!("isthmus bench: {error}");
            ExitCode::from(FAILED)
        }
    }
}

/// One exchange of protocols.
struct Exchange {
    at: Instant,
    call_us: f64,
    /// Messages posted before it. Count.
    before: u64,
    /// Time until the first message posted after it had arrived. Milliseconds.
    arrived_ms: Option<f64>,
}

fn measure(args: &Args) -> Result<serde_json::Value, Fault> {
    let (at, server) = (At::default(), &args.to);
    let client = Client { at: &at, server, level: Level::Ro };
    let (endpoint, to) = client.connect(SINK)?;
    let sunk_before = client.sunk(&endpoint)?;
    let message = Bytes::from(vec![7; args.size.0.max(1) as usize]);
    let every = Duration::from_nanos(args.every.0);
    let composition = endpoint.protocols();
    let (mut exchanges, mut posted, mut ended) = (Vec::<Exchange>::new(), 0_u64, 0_u64);
    let (began, mut due) = (Instant::now(), Instant::now() + every);
    loop {
        let is_over = exchanges.len() as u64 >= u64::from(args.times) && Instant::now() >= due;
        if is_over && ended == posted {
            break;
        }
        if !is_over && Instant::now() >= due {
            let text = PROTOCOLS[exchanges.len() % PROTOCOLS.len()];
            let start = Instant::now();
            endpoint.set_protocols(text)?;
            let call_us = start.elapsed().as_secs_f64() * 1e6;
            exchanges.push(Exchange { at: start, call_us, before: posted, arrived_ms: None });
            due = start + every;
        }
        while !is_over && posted - ended < u64::from(args.depth) {
            let how = SendOptions { context: posted, ..SendOptions::default() };
            endpoint.send_bytes(to, std::slice::from_ref(&message), &how)?;
            posted += 1;
        }
        match next(&endpoint, PATIENCE)? {
            Some(Event::Sent { end: Ok(()), operation, .. }) => {
                ended += 1;
                // RO: messages end in the order in which they were posted.
                for exchange in exchanges.iter_mut().filter(|one| one.before <= operation) {
                    exchange.arrived_ms.get_or_insert(exchange.at.elapsed().as_secs_f64() * 1e3);
                }
            }
            other => return Err(format!("{other:?} instead of the end of a message").into()),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let sunk = client.sunk(&endpoint)? - sunk_before;
    Ok(serde_json::json!({
        "sent": posted, "arrived": sunk, "lost": posted.saturating_sub(sunk), "bytes": posted * args.size.0,
        "seconds": seconds, "composition": composition, "exchanged": PROTOCOLS,
        "call_us": exchanges.iter().map(|one| one.call_us).collect::<Vec<_>>(),
        "arrived_ms": exchanges.iter().filter_map(|one| one.arrived_ms).collect::<Vec<_>>(),
    }))
}
