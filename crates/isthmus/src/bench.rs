//! `isthmus bench`: latency and goodput of the substrate beside plain sockets, and MPI across
//! emulated WANs beside its peers.

mod file;
mod plain;
mod report;
mod serve;
mod substrate;
mod wan;

use std::process::ExitCode;

use clap::Subcommand;
use isthmus_substrate::Level;
use isthmus_units::Size;

use report::Row;
use serve::Others;

const FAILED: u8 = 3;

/// Measure latency and goodput, beside peers in the same run
///
/// Without --to, a second process on this host is the other side; with it, the one that runs
/// `isthmus bench serve` there. Times are of the whole round trip.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Small messages to and fro: round trips
    Pingpong(Run),
    /// Messages one way: goodput
    Stream(Run),
    /// Writes to remote memory: goodput
    Rma(Run),
    Wan(wan::Args),
    File(file::Args),
    /// Be the other side: prints where to find it, and goes on until it is stopped
    Serve(ServeArgs),
}

/// What is measured.
#[derive(clap::Args, Clone)]
struct Run {
    /// Service level: uu, ru or ro [default: all that the test knows]
    #[arg(long)]
    level: Option<Level>,
    /// Length of a message or write [default: 8B for pingpong, 64KiB for stream, 1MiB for rma]
    #[arg(long)]
    size: Option<Size>,
    /// How many messages or writes [default: 20000 for pingpong, else 1 GiB in all]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// How many are under way at once, for stream and rma
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    depth: u32,
    /// The other side, as `isthmus bench serve` printed it
    #[arg(long, value_name = "WHERE")]
    to: Option<String>,
    /// Only the substrate, no plain sockets beside it
    #[arg(long)]
    alone: bool,
    /// Print one JSON object a line instead
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ServeArgs {
    /// End when the standard input does
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
            // Over UU a stream is what is left of it.
            Self::Stream => &[Level::Ru, Level::Ro],
            Self::Rma => &[Level::Ru],
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
        BenchCommand::Serve(args) => serve::run(args.until_eof),
        BenchCommand::Pingpong(run) => measure(Test::Pingpong, &run),
        BenchCommand::Stream(run) => measure(Test::Stream, &run),
        BenchCommand::Rma(run) => measure(Test::Rma, &run),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isthmus bench: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn measure(test: Test, run: &Run) -> Result<(), Fault> {
    let others = Others::find(run.to.as_deref())?;
    let (size, count) = (test.size(run), test.count(run));
    report::head(run.json, test == Test::Pingpong);
    let say = |row: Row| row.print(run.json);
    for &level in test.levels().iter().filter(|level| run.level.is_none_or(|only| only == **level)) {
        say(match test {
            Test::Pingpong => substrate::pingpong(&others.place, level, size, count)?,
            Test::Stream => substrate::stream(&others.place, level, size, count, run.depth)?,
            Test::Rma => substrate::rma(&others.place, level, size, count, run.depth)?,
        });
    }
    if run.alone {
        return Ok(());
    }
    match test {
        Test::Pingpong => {
            say(plain::udp_pingpong(others.place.udp, size, count)?);
            say(plain::tcp_pingpong(others.place.tcp, size, count)?);
        }
        Test::Stream | Test::Rma => say(plain::tcp_stream(others.place.tcp, size, count)?),
    }
    if run.to.is_none()
        && test == Test::Pingpong
        && let Some(row) = plain::fi_pingpong(size, count)
    {
        say(row);
    }
    Ok(())
}
