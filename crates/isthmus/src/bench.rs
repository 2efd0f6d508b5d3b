//! `isthmus bench`: measures the substrate beside plain sockets, and MPI across emulated WANs beside its peers.

mod collectives;
mod file;
mod lab;
mod papers;
mod peak;
mod peers;
mod plain;
mod report;
mod request;
mod serve;
mod substrate;
mod swap;
mod wan;

use std::cell::RefCell;
use std::process::ExitCode;

use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser};
use isthmus_substrate::Level;
use isthmus_units::Size;

use plain::Wait;
use report::{Row, Summary};
use serve::{Others, ServerAddresses};
use substrate::Client;

use crate::output::has_failed;

const FAILED: u8 = 3;

/// Measure latency and goodput, and compare them with other programs in the same run
///
/// pingpong, stream and rma measure between this process and another one. By default they start that process on this
/// host. With --to they use the process that runs `isthmus bench serve` elsewhere. Latencies are whole round trips.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Measure the round trip of short messages
    Pingpong(Run),
    /// Measure the goodput of messages in one direction
    Stream(Run),
    /// Measure the goodput of writes to remote memory
    Rma(Run),
    Wan(wan::Args),
    File(file::Args),
    Papers(papers::Args),
    Collectives(collectives::Args),
    #[command(hide = true)]
    Peak(peak::Args),
    #[command(hide = true)]
    Request(request::Args),
    #[command(hide = true)]
    Swap(swap::Args),
    /// Answer measurements: print the value for --to, and serve until stopped
    Serve(ServeArgs),
}

/// What is measured.
#[derive(clap::Args, Clone)]
struct Run {
    #[command(flatten)]
    at: At,
    /// Measure only this service level: uu, ru or ro [default: all; rma has no uu]
    #[arg(long)]
    level: Option<Level>,
    /// Send messages, or make writes, of this length [default: 8B for pingpong, 64KiB for stream, 1MiB for rma]
    #[arg(long)]
    size: Option<Size>,
    /// Send this many messages or writes [default: 20000 for pingpong, otherwise 1 GiB in all]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Keep this many messages or writes in flight (stream and rma only)
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    depth: u32,
    /// Measure to the process that printed WHERE, an `isthmus bench serve` [default: a new process on this host]
    #[arg(long, value_name = "WHERE")]
    to: Option<ServerAddresses>,
    /// Repeat all measurements N times, then print medians and ratios to the other programs
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure only the substrate, without plain sockets and other programs
    #[arg(long)]
    alone: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Where an endpoint of the measurement is.
#[derive(clap::Args, Clone, Default)]
struct At {
    /// Use the device of this name in the configuration [default: the best device that is up]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Use these transports in turn: tcp, udp, shm or ethernet, joined by commas [default: as the device is configured]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = transports())]
    transport: Vec<String>,
}

/// The transports that can be measured.
fn transports() -> PossibleValuesParser {
    // This program itself starts the other side with the last one.
    let within = PossibleValue::new(serve::UDP_WITHIN_HOST).hide(true);
    ["tcp", "udp", "shm", "ethernet"]
        .map(PossibleValue::from)
        .into_iter()
        .chain([within])
        .collect::<Vec<_>>()
        .into()
}

#[derive(clap::Args)]
struct ServeArgs {
    #[command(flatten)]
    at: At,
    /// Exit at the end of standard input
    #[arg(long)]
    until_eof: bool,
}

/// Why a measurement failed.
type Fault = Box<dyn std::error::Error>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Test {
    Pingpong,
    Stream,
    Rma,
}

impl Test {
    fn levels(self) -> &'static [Level] {
        match self {
            Self::Pingpong => &[Level::Uu, Level::Ru, Level::Ro],
            Self::Stream => &[Level::Uu, Level::Ru, Level::Ro],
            // UU connections cannot access remote memory.
            Self::Rma => &[Level::Ru, Level::Ro],
        }
    }

    fn size(self, run: &Run) -> usize {
        let default = match self {
            Self::Pingpong => 8,
            Self::Stream => 64 << 10,
            Self::Rma => 1 << 20,
        };
        run.size.map_or(default, |size| size.0 as usize).max(1)
    }

    fn count(self, run: &Run) -> u64 {
        let default = match self {
            Self::Pingpong => 20_000,
            _ => (1 << 30) / self.size(run) as u64,
        };
        run.count.unwrap_or(default).max(1)
    }
}

pub(crate) fn main(args: Args) -> ExitCode {
    let outcome = match args.command {
        BenchCommand::Wan(args) => return wan::main(&args),
        BenchCommand::File(args) => return file::main(&args),
        BenchCommand::Papers(args) => return papers::main(&args),
        BenchCommand::Collectives(args) => return collectives::main(&args),
        BenchCommand::Peak(args) => return peak::main(&args),
        BenchCommand::Request(args) => return request::main(&args),
        BenchCommand::Swap(args) => return swap::main(&args),
        BenchCommand::Serve(args) => serve::run(&args),
        BenchCommand::Pingpong(run) => measure(Test::Pingpong, &run),
        BenchCommand::Stream(run) => measure(Test::Stream, &run),
        BenchCommand::Rma(run) => measure(Test::Rma, &run),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("isthmus bench: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn measure(test: Test, run: &Run) -> Result<(), Fault> {
    let summary = RefCell::new(Summary::default());
    let say = |row: Row, ours: bool| {
        row.print(run.json);
        summary.borrow_mut().add(&row, ours);
    };
    report::head(run.json, test == Test::Pingpong);
    // Nobody sees what is measured after a row that could not be written.
    for round in (0..run.rounds).take_while(|_| !has_failed()) {
        one_round(test, run, round, &say)?;
    }
    if run.rounds > 1 && !has_failed() {
        summary.into_inner().print(run.json);
    }
    Ok(())
}

/// One round of all measurements. The first measurement pays for cold caches, so each round begins with another level.
fn one_round(test: Test, run: &Run, round: u32, say: &impl Fn(Row, bool)) -> Result<(), Fault> {
    let transports = match &run.at.transport[..] {
        [] => vec![None],
        named => named.iter().map(Some).collect(),
    };
    let mut others = None;
    for transport in transports.into_iter().take_while(|_| !has_failed()) {
        let mut at =
            At { device: run.at.device.clone(), transport: transport.into_iter().cloned().collect() };
        let other = Others::find(run.to.as_ref(), &at)?;
        if run.to.is_none() && at.transport == ["udp"] {
            at.transport = vec![serve::UDP_WITHIN_HOST.to_owned()];
        }
        let server = &other.server;
        measure_substrate(test, run, round, &at, server, &|row| say(row, true))?;
        others = Some(other);
    }
    match others {
        Some(others) if !run.alone && !has_failed() => {
            beside(test, run, &others.server, &|row| say(row, false))
        }
        _ => Ok(()),
    }
}

fn measure_substrate(
    test: Test,
    run: &Run,
    round: u32,
    at: &At,
    server: &ServerAddresses,
    say: &impl Fn(Row),
) -> Result<(), Fault> {
    let (size, count) = (test.size(run), test.count(run));
    if run.level.is_some_and(|level| !test.levels().contains(&level)) {
        return Err("UU has no remote memory; measure --level ru or ro".into());
    }
    let mut levels = test.levels().to_vec();
    let first = round as usize % levels.len();
    levels.rotate_left(first);
    let wanted = |level: &Level| run.level.is_none_or(|only| only == *level);
    for level in levels.into_iter().filter(wanted).take_while(|_| !has_failed()) {
        let client = Client { at, server, level };
        say(match test {
            Test::Pingpong => client.pingpong(size, count)?,
            Test::Stream => client.stream(size, count, run.depth)?,
            Test::Rma => client.rma(size, count, run.depth)?,
        });
    }
    Ok(())
}

/// Measures plain sockets and other installed programs in the same run.
fn beside(test: Test, run: &Run, server: &ServerAddresses, say: &impl Fn(Row)) -> Result<(), Fault> {
    let (size, count) = (test.size(run), test.count(run));
    match test {
        Test::Pingpong => {
            for wait in [Wait::Polling, Wait::Sleeping] {
                say(plain::udp_pingpong(server.udp, wait, size, count)?);
                say(plain::tcp_pingpong(server.tcp, wait, size, count)?);
            }
        }
        Test::Stream | Test::Rma => say(plain::tcp_stream(server.tcp, size, count)?),
    }
    if run.to.is_none() {
        peers::measure(test, size, count, say);
    }
    Ok(())
}
