//! `isthmus bench wan`: MPI across emulated WANs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use isthmus_bench::{Bench, Contender, Link, Matrix, Paths, Work};
use isthmus_units::{Percent, Rate, Span};

use super::lab;

/// How long a link is shared: at 100 ms 150 round trips. Seconds.
const SHARE_S: u32 = 15;

/// MPI across emulated WANs, over Isthmus, over libfabric's tcp, and iperf3
///
/// Every run has a lab of its own (isthmus lab), whose emulator tells how late it was itself. The
/// folder gets samples.jsonl, with each run's circumstances, table.txt, and report.html, one page
/// with plots. Without --full: 200 MB at two round trips and two losses, once, in a few minutes.
///
/// Exit status: 0 all runs gave a result; 1 some failed; 2 bad usage; 3 something is missing.
#[derive(clap::Args)]
pub(super) struct Args {
    /// All round trips and losses, five runs, 500 MB, exchanges, ping-pong and late receives: hours
    #[arg(long)]
    full: bool,
    /// Folder of an MPICH, with bin/mpiexec and bin/mpicc
    #[arg(long, value_name = "DIR", default_value = "build/mpi/mpich")]
    mpi: PathBuf,
    /// Folder that holds libisthmus-fi.so [default: found beside this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Where samples and report go
    #[arg(long, value_name = "DIR", default_value = "build/bench/wan")]
    out: PathBuf,
    /// Rate of the link, each way
    #[arg(long, default_value = "1Gbit")]
    rate: Rate,
    /// Maximum transmission unit, bytes
    #[arg(long, default_value_t = 9000)]
    mtu: u32,
    /// Round-trip times, such as 24ms,366ms
    #[arg(long, value_delimiter = ',')]
    rtt: Vec<Span>,
    /// Losses each way, such as 0%,1%
    #[arg(long, value_delimiter = ',')]
    loss: Vec<Percent>,
    /// How often all is measured, in turn
    #[arg(long)]
    runs: Option<u32>,
    /// What is sent one way; with --full also smaller things. MB
    #[arg(long, value_name = "MB")]
    size: Option<u64>,
    /// Who is measured: isthmus, isthmus-tcp, isthmus-udp, stock-cubic, stock-bbr, iperf3-cubic-x1,
    /// iperf3-cubic-x8, iperf3-bbr-x1, iperf3-bbr-x8; for share cubic-beside-isthmus,
    /// bbr-beside-isthmus [default: all but isthmus-tcp, isthmus-udp]
    #[arg(long, value_delimiter = ',', value_parser = contender)]
    with: Vec<Contender>,
    /// What is done: stream (one way), exchange (MPI_Sendrecv of 1 MB), pingpong, late (receives
    /// posted after the message came), share (what one stream of iperf3's keeps of a link without
    /// loss, with a queue of one round trip, that isthmus uses for the same 15 s; at least 0.4 of it
    /// is the goal) [default: stream, and share if --with names who does it; with --full all]
    #[arg(long, value_delimiter = ',', value_parser = ["stream", "exchange", "pingpong", "late", "share"])]
    work: Vec<String>,
    /// Go on where a run of the same folder ended: what it measured counts
    #[arg(long)]
    resume: bool,
    /// Begin no run after so long, such as 100s; the report tells of what there is, --resume goes on
    #[arg(long = "for", value_name = "TIME")]
    no_longer: Option<Span>,
}

fn contender(name: &str) -> Result<Contender, String> {
    let names = || Contender::ALL.map(|one| one.to_string()).join(", ");
    Contender::named(name).ok_or_else(|| format!("there is no {name:?}; use {}", names()))
}

pub(super) fn main(args: &Args) -> ExitCode {
    let Some(provider) = lab::provider(args.provider_path.as_deref()) else { return ExitCode::from(3) };
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let paths = Paths {
        isthmus: std::env::current_exe().unwrap_or_else(|_| "isthmus".into()),
        provider: absolute(&provider),
        mpi: absolute(&args.mpi),
        out: absolute(&args.out),
    };
    let matrix = matrix(args);
    lab::announce(matrix.floor_s(), &paths.out);
    let no_longer = args.no_longer.map(|span| Duration::from_nanos(span.0));
    let bench = Bench { matrix, version: lab::version(), paths, resume: args.resume, no_longer };
    let ran = bench.run().map(|(samples, left)| {
        if left > 0 {
            eprintln!("isthmus bench: {left} runs are left; the same command with --resume goes on");
        }
        samples.iter().all(|sample| sample.seconds.is_some())
    });
    lab::conclude(&bench.paths.out, ran)
}

fn matrix(args: &Args) -> Matrix {
    let or = |given: &[Span], short: &[u64], full: &[u64]| match (given, args.full) {
        ([], true) => full.iter().map(|us| Span(us * 1_000)).collect(),
        ([], false) => short.iter().map(|us| Span(us * 1_000)).collect(),
        (given, _) => given.to_vec(),
    };
    let rtts: Vec<Span> = or(&args.rtt, &[24_000, 366_000], &[100, 24_000, 100_000, 366_000]);
    let losses = match (args.loss.as_slice(), args.full) {
        ([], true) => [0.0, 0.0001, 0.001, 0.01, 0.05, 0.1].map(Percent).to_vec(),
        ([], false) => [0.0, 0.01].map(Percent).to_vec(),
        (given, _) => given.to_vec(),
    };
    let bytes = args.size.unwrap_or(if args.full { 500 } else { 200 }) * 1_000_000;
    let links = Matrix::links(args.rate, args.mtu, &rtts, &losses);
    let wanted = |work: &str| match args.work.as_slice() {
        [] if args.with.iter().any(|one| matches!(one, Contender::Beside(_))) && work == "share" => true,
        [] => args.full || work == "stream",
        named => named.iter().any(|name| name == work),
    };
    let mut cells: Vec<(Link, Work)> = Vec::new();
    let all = links.iter();
    if wanted("stream") {
        cells.extend(all.clone().map(|link| (*link, Work::Stream(bytes))));
    }
    if wanted("exchange") {
        cells.extend(all.clone().map(|link| (*link, Work::Exchange(20))));
    }
    if wanted("pingpong") {
        cells.extend(all.clone().map(|link| (*link, Work::PingPong(200))));
    }
    if wanted("late") {
        for size in [64_000, 1_000_000, 16_000_000] {
            let clean = all.clone().filter(|link| link.loss.0 == 0.0);
            cells.extend(clean.map(|link| (*link, Work::Late(size))));
        }
    }
    if wanted("share") {
        let clean = all.filter(|link| link.loss.0 == 0.0);
        cells.extend(clean.map(|link| (*link, Work::Share(SHARE_S))));
    }
    let usual = || Contender::ALL.into_iter().filter(|one| !matches!(one, Contender::IsthmusBy(_))).collect();
    let contenders = if args.with.is_empty() { usual() } else { args.with.clone() };
    Matrix { cells, contenders, runs: args.runs.unwrap_or(if args.full { 5 } else { 1 }) }
}
