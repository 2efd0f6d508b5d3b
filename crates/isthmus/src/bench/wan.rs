//! `isthmus bench wan`: MPI across emulated WANs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use isthmus_bench::{Bench, Catalogue, Contender, EmulatedLink, Matrix, Paths, Work};
use isthmus_units::{Percent, Rate, Span};

use super::lab;

/// How long a link is shared: 150 round trips of 100 ms. Seconds.
const SHARE_S: u32 = 15;
/// Default rate of the link. Bits/s.
const RATE: Rate = Rate(1_000_000_000);
/// Shares of receives that are posted before their message comes. Percent.
const AHEAD: [u32; 7] = [0, 10, 25, 50, 75, 90, 100];
/// Messages of `preposted`: 480 of 256 KiB take a second at 1 Gb/s.
const AHEAD_MESSAGES: u32 = 480;
/// Default round trips of two links that are used at once.
const TWO: [Span; 2] = [Span(24_000_000), Span(60_000_000)];
/// The short form ends within five minutes, even if none of its 28 runs makes progress. `SHORT_RUN_S` limits each run;
/// after `SHORT_ALL_S` no further run begins. Seconds.
const SHORT_RUN_S: u64 = 8;
const SHORT_ALL_S: u64 = 270;
const WORK: [&str; 10] =
    ["stream", "sends", "exchange", "pingpong", "late", "share", "preposted", "paths", "paths-cut", "outage"];

/// Measure MPI across emulated WANs, over Isthmus and over libfabric's tcp, beside iperf3
///
/// Every run has a lab of its own (isthmus lab), whose emulator tells how late it was itself. The folder gets
/// samples.jsonl, with each run's circumstances, table.txt, and report.html, one page with plots. Without options: 200 MB
/// at two round trips and two losses, once, within five minutes.
///
/// A run that does not end in its time counts as a result: the most that it can have reached.
///
/// Exit status: 0 all runs gave a result; 1 some failed; 2 bad usage; 3 something is missing.
#[derive(clap::Args)]
pub(super) struct Args {
    /// All round trips and losses, all kinds of work, five runs, 500 MB: hours
    #[arg(long)]
    full: bool,
    /// Use the MPICH in this folder, which has bin/mpiexec and bin/mpicc
    #[arg(long, value_name = "DIR", default_value = "build/mpi/mpich")]
    mpi: PathBuf,
    /// Use libisthmus-fi.so from this folder [default: the one installed with this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Write the samples and the report to this folder
    #[arg(long, value_name = "DIR", default_value = "build/bench/wan")]
    out: PathBuf,
    /// Give the link this rate in each direction
    #[arg(long, default_value_t = RATE)]
    rate: Rate,
    /// Links of a catalogue: "wild" for the built-in one, with jitter, short queues, policers, bursts of
    /// loss, reordering, and changes of rate and route; or a file such as `isthmus lab links` prints. One
    /// way, 500 MB, beside iperf3 unless --work, --size and --with say otherwise
    #[arg(long, value_name = "wild|FILE", conflicts_with_all = ["full", "rate", "mtu", "rtt", "loss"])]
    links: Option<String>,
    /// Of the catalogue, only links whose names contain this
    #[arg(long, value_name = "TEXT", requires = "links")]
    link: Option<String>,
    /// Give the link this maximum transmission unit, in bytes
    #[arg(long, default_value_t = 9000)]
    mtu: u32,
    /// Measure at these round-trip times, such as 24ms,366ms
    #[arg(long, value_delimiter = ',')]
    rtt: Vec<Span>,
    /// Measure with these losses in each direction, such as 0%,1%
    #[arg(long, value_delimiter = ',')]
    loss: Vec<Percent>,
    /// Repeat all measurements this many times, in turn
    #[arg(long)]
    runs: Option<u32>,
    /// What is sent one way in stream, preposted and paths. MB [default: 200, with --full 500;
    /// preposted 126, paths 500]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    size: Option<u64>,
    /// Seed the random decisions of the first run with N, of the second with N+1, and so on
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,
    /// End a run this long after its measurement starts, such as 30s [default: 20 s plus 8 times the shortest
    /// possible time, with --links 5 s plus 3 times it; 8 s without options]
    #[arg(long, value_name = "TIME")]
    limit: Option<Span>,
    /// Who is measured: isthmus, isthmus-tcp, isthmus-udp, stock-cubic, stock-bbr, iperf3-cubic-x1,
    /// iperf3-cubic-x8, iperf3-bbr-x1, iperf3-bbr-x8; for share cubic-beside-isthmus,
    /// bbr-beside-isthmus; for preposted isthmus-eager, isthmus-rendezvous, isthmus-mixed (the setting
    /// `transfer`) [default: all but isthmus-tcp, isthmus-udp]
    #[arg(long, value_delimiter = ',', value_parser = contender)]
    with: Vec<Contender>,
    /// What is done: stream (one way), sends (messages of 64 KiB one way by MPI_Send, one
    /// after the other), exchange (MPI_Sendrecv of 1 MB), pingpong, late (receives posted after the
    /// message came), share (what one stream of iperf3's keeps of a link without
    /// loss, with a queue of one round trip, that isthmus uses for the same 15 s; at least 0.4 of it
    /// is the goal), preposted (messages of 256 KiB of whose receives 0 to 100 % are posted ahead, at
    /// 24 ms without loss unless --rtt and --loss say otherwise), paths (two links of half the rate, of
    /// 24 and 60 ms or the first two of --rtt, at once), paths-cut (the second of them is cut
    /// meanwhile), outage (a link that is down for 2 s) [default: stream, and share if --with names
    /// who does it; with --full all]
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(WORK))]
    work: Vec<String>,
    /// Keep the results that are already in the folder, and do the runs that are missing
    #[arg(long)]
    resume: bool,
    /// Start no run after this time, such as 100s. The report shows the finished runs, and --resume does the others
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
    let matrix = match matrix(args) {
        Ok(matrix) => matrix,
        Err(error) => {
            errln!("isthmus bench: {error}");
            return ExitCode::from(2);
        }
    };
    lab::announce(matrix.floor_s(), &paths.out);
    let time = |span: Span| Duration::from_nanos(span.0);
    let short = |seconds| is_short(args).then(|| Duration::from_secs(seconds));
    let bench = Bench {
        matrix,
        version: lab::version(),
        paths,
        resume: args.resume,
        no_longer: args.no_longer.map(time).or(short(SHORT_ALL_S)),
        limit: args.limit.map(time).or(short(SHORT_RUN_S)),
    };
    let ran = bench.run().map(|(samples, left)| {
        if left > 0 {
            errln!("isthmus bench: {left} runs are left; the same command with --resume goes on");
        }
        samples.iter().all(|sample| sample.error.is_none())
    });
    lab::conclude(&bench.paths.out, ran)
}

/// Whether the short form applies: no option was given that takes more time.
fn is_short(args: &Args) -> bool {
    let Args { full, rate, rtt, loss, runs, size, with, work, links, .. } = args;
    let chosen = *full || links.is_some() || runs.is_some() || size.is_some() || rate.0 < RATE.0;
    !chosen && rtt.is_empty() && loss.is_empty() && with.is_empty() && work.is_empty()
}

/// The plan: links of a catalogue, or of these round trips and losses.
fn matrix(args: &Args) -> Result<Matrix, String> {
    match &args.links {
        Some(links) => wild(args, links),
        None => Ok(regular(args)),
    }
}

/// Bytes sent one way over a link of a catalogue: four seconds at 1 Gb/s, so that changes come meanwhile. MB.
const WILD_MB: u64 = 500;

/// All links of a catalogue.
fn wild(args: &Args, links: &str) -> Result<Matrix, String> {
    let mut catalogue = match links {
        "wild" => Catalogue::wild(),
        file => Catalogue::read(Path::new(file)).map_err(|error| error.to_string())?,
    };
    if let Some(part) = &args.link {
        catalogue.links.retain(|link| link.name.contains(part));
    }
    if let Some(other) = args.work.iter().find(|work| *work != "stream") {
        return Err(format!("--work {other} needs links by --rtt and --loss, not a catalogue"));
    }
    if catalogue.links.is_empty() {
        return Err(format!(
            "{links} has no link whose name contains {:?}",
            args.link.as_deref().unwrap_or("")
        ));
    }
    let bytes = args.size.unwrap_or(WILD_MB) * 1_000_000;
    let cells = catalogue.links.iter().map(|link| (EmulatedLink::named(link), Work::Stream(bytes))).collect();
    let usual =
        Contender::ALL.into_iter().filter(|one| matches!(one, Contender::Isthmus | Contender::Iperf(..)));
    let contenders = if args.with.is_empty() { usual.collect() } else { args.with.clone() };
    Ok(Matrix { catalogue, cells, contenders, runs: args.runs.unwrap_or(1), seed: args.seed.into() })
}

fn regular(args: &Args) -> Matrix {
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
    let mut cells: Vec<(EmulatedLink, Work)> = Vec::new();
    let all = links.iter();
    if wanted("stream") {
        cells.extend(all.clone().map(|link| (*link, Work::Stream(bytes))));
    }
    if wanted("sends") {
        cells.extend(all.clone().map(|link| (*link, Work::Sends(200))));
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
    if wanted("preposted") {
        let messages = args.size.map_or(AHEAD_MESSAGES, |size| (size * 1_000_000 / Work::PREPOSTED) as u32);
        let usual = |link: &&EmulatedLink| {
            (!args.rtt.is_empty() || link.rtt == TWO[0]) && (!args.loss.is_empty() || link.loss.0 == 0.0)
        };
        for link in all.clone().filter(usual) {
            cells.extend(AHEAD.map(|ahead| (*link, Work::Preposted { messages, ahead })));
        }
    }
    for (name, is_cut) in [("paths", false), ("paths-cut", true)] {
        if wanted(name) {
            let [first, second] = two_links(args, losses[0]);
            let bytes = args.size.unwrap_or(500) * 1_000_000;
            cells.push((first, Work::Paths { bytes, second, is_cut }));
        }
    }
    if wanted("outage") {
        let clean = all.clone().filter(|link| link.loss.0 == 0.0);
        cells.extend(clean.map(|link| (*link, Work::outage(link))));
    }
    if wanted("share") {
        let clean = all.filter(|link| link.loss.0 == 0.0);
        cells.extend(clean.map(|link| (*link, Work::Share(SHARE_S))));
    }
    let usual = || Contender::ALL.into_iter().filter(|one| !matches!(one, Contender::IsthmusBy(_))).collect();
    let contenders = if args.with.is_empty() { usual() } else { args.with.clone() };
    let runs = args.runs.unwrap_or(if args.full { 5 } else { 1 });
    Matrix { catalogue: Catalogue::default(), cells, contenders, runs, seed: args.seed.into() }
}

/// Two links between the same sites, each with half the rate.
fn two_links(args: &Args, loss: Percent) -> [EmulatedLink; 2] {
    let rtts = match args.rtt[..] {
        [first, second, ..] => [first, second],
        _ => TWO,
    };
    rtts.map(|rtt| EmulatedLink {
        rate: Rate((args.rate.0 / 2).max(1)),
        rtt,
        loss,
        mtu: args.mtu,
        name: None,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Command::try_parse_from([&["wan"], words].concat()).expect("good usage").args
    }

    /// The limit is 5 minutes, less compiling the program and ending the last lab.
    #[test]
    fn the_short_form_ends_within_five_minutes_even_if_no_run_ends() {
        assert!(is_short(&args(&[])) && is_short(&args(&["--seed", "3"])));
        for chosen in ["--full", "--work=late", "--rate=10Mbit", "--size=500"] {
            assert!(!is_short(&args(&[chosen])), "{chosen} takes longer");
        }
        let runs = regular(&args(&[])).count() as u64;
        let lab_s = 1;
        assert!(runs * (SHORT_RUN_S + lab_s) < SHORT_ALL_S, "{runs} runs");
    }

    #[test]
    fn the_experiment_of_receives_posted_ahead_has_all_shares_and_protocols() {
        let matrix = regular(&args(&["--work", "preposted"]));
        assert_eq!(matrix.cells.len(), AHEAD.len(), "at one link");
        assert_eq!(matrix.count(), 4 * AHEAD.len());
    }

    #[test]
    fn two_links_have_half_the_rate_each() {
        let matrix = regular(&args(&["--work", "paths,paths-cut", "--rtt", "10ms,30ms"]));
        let [(link, Work::Paths { second, .. }), (_, Work::Paths { is_cut: true, .. })] = matrix.cells[..]
        else {
            panic!("{matrix:?}")
        };
        assert_eq!((link.rate.0 + second.rate.0, second.rtt), (1_000_000_000, Span(30_000_000)));
    }

    #[test]
    fn a_catalogue_gives_a_cell_for_each_link() {
        let matrix = |words: &[&str]| matrix(&args(&[&["--links", "wild"], words].concat()));
        let all = matrix(&[]).expect("valid");
        assert!(all.cells.len() >= 28 && all.count() == 5 * all.cells.len(), "{}", all.cells.len());
        assert_eq!(matrix(&["--link", "policer"]).expect("valid").cells.len(), 2);
        assert!(matrix(&["--link", "no such"]).expect_err("none").contains("\"no such\""));
        assert!(matrix(&["--work", "share"]).expect_err("no").contains("--rtt"));
        assert!(Command::try_parse_from(["wan", "--links", "wild", "--rtt", "1ms"]).is_err());
    }
}
