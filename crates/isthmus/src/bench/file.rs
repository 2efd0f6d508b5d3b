//! `isthmus bench file`: copies files across emulated WANs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use isthmus_bench::{EmulatedLink, FileBench, FileContender, FilePaths, FileRun, Io, Matrix};
use isthmus_units::{Percent, Rate, Size, Span};

use super::lab;

const IO: [&str; 2] = ["posix", "mpiio"];
const ORDER: [&str; 2] = ["overlapped", "in-turn"];
const KINDS: [&str; 10] =
    ["mpi", "stock", "cp", "cp-ssh", "scp", "rsync", "rclone-sftp", "ssh", "rclone", "gridftp"];

/// Measure copies of files across emulated WANs: between MPI programs, and by isthmus cp beside scp and others
///
/// Two MPI programs (the mover's library) send a file by POSIX and by MPI-IO, in blocks of two lengths, with reads,
/// sends and writes overlapped and in turn. isthmus cp (with a service and by ssh), scp, rsync, rclone (by WebDAV and
/// by ssh) and GridFTP copy the same file. Programs that are not installed are named and left out. With --files the
/// commands copy a folder of many files.
///
/// Every run has a lab of its own (isthmus lab). The folder gets samples.jsonl, with each run's circumstances,
/// table.txt, and report.html, one page with plots. Without --full: 100 MB in all these ways and 1 GB in the quicker
/// ones, once, over one link, in a few minutes.
///
/// Exit status: 0 all runs gave a result; 1 some failed; 2 bad usage; 3 something is missing.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Both lengths in all ways, at 24 ms without loss and at 366 ms with 1 %, five times: hours
    #[arg(long)]
    full: bool,
    /// Use the MPICH in this folder, which has bin/mpiexec and bin/mpicc
    #[arg(long, value_name = "DIR", default_value = "build/mpi/mpich")]
    mpi: PathBuf,
    /// Use the mover's library for this MPICH from this folder (make mpi)
    #[arg(long, value_name = "DIR", default_value = "build/lib/mpi/mpich")]
    mover: PathBuf,
    /// Use libisthmus-fi.so from this folder [default: the one installed with this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Write the samples and the report to this folder
    #[arg(long, value_name = "DIR", default_value = "build/bench/file")]
    out: PathBuf,
    /// Keep the files of both sites in this folder [default: that of --out]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Give the link this rate in each direction
    #[arg(long, default_value = "1Gbit")]
    rate: Rate,
    /// Give the link this maximum transmission unit, in bytes
    #[arg(long, default_value_t = 9000)]
    mtu: u32,
    /// Measure at these round-trip times, such as 24ms,366ms
    #[arg(long, value_delimiter = ',')]
    rtt: Vec<Span>,
    /// Measure with these losses in each direction, such as 0%,1%
    #[arg(long, value_delimiter = ',')]
    loss: Vec<Percent>,
    /// Copy files of these lengths, such as 100MB,1GB
    #[arg(long, value_delimiter = ',')]
    size: Vec<Size>,
    /// Let the MPI programs use blocks of these lengths
    #[arg(long, value_delimiter = ',', default_values_t = [Size(1 << 20), Size(10 << 20)])]
    block: Vec<Size>,
    /// Let the MPI programs read and write by these calls
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(IO), default_values = IO)]
    io: Vec<String>,
    /// Let the MPI programs read, send and write at once, or one after the other
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(ORDER),
          default_values = ORDER)]
    order: Vec<String>,
    /// Copy a folder with N files, by commands only. --size is the size of each file [default: 4096 bytes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    files: Option<u32>,
    /// Use this host's loopback instead of a link, and measure plain cp too
    #[arg(long, conflicts_with_all = ["rtt", "loss", "full"])]
    loopback: bool,
    /// Run this many MPI ranks at each site
    #[arg(long, default_value_t = 4)]
    ranks: u32,
    /// Use this TCP congestion control at both sites [default: the system's]
    #[arg(long)]
    cc: Option<String>,
    /// Repeat all measurements this many times, in turn
    #[arg(long)]
    runs: Option<u32>,
    /// Measure these: mpi, stock (mpi over libfabric's tcp), cp, gridftp and rclone with their own services;
    /// cp-ssh, scp, rsync, rclone-sftp and ssh (cat to a file) by ssh
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(KINDS),
          default_values = KINDS)]
    with: Vec<String>,
}

pub(super) fn main(args: &Args) -> ExitCode {
    let Some(provider) = lab::provider(args.provider_path.as_deref()) else { return ExitCode::from(3) };
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let paths = FilePaths {
        isthmus: std::env::current_exe().unwrap_or_else(|_| "isthmus".into()),
        provider: absolute(&provider),
        mpi: absolute(&args.mpi),
        mover: absolute(&args.mover),
        out: absolute(&args.out),
        folder: absolute(args.folder.as_ref().unwrap_or(&args.out)),
    };
    let bench = FileBench { plan: plan(args), congestion: args.cc.clone(), version: lab::version(), paths };
    for line in bench.missing() {
        errln!("isthmus bench: {line}");
    }
    lab::announce(bench.floor_s(), &bench.paths.out);
    let ran = bench.run().map(|samples| samples.iter().all(|sample| sample.seconds.is_some()));
    lab::conclude(&bench.paths.out, ran)
}

/// All runs in order: all contenders for one file and link, then the next file or link, then everything again.
fn plan(args: &Args) -> Vec<FileRun> {
    let sizes = match (&args.size[..], args.files) {
        ([], None) => &[Size(100_000_000), Size(1_000_000_000)][..],
        ([], Some(_)) => &[Size(4096)],
        (given, _) => given,
    };
    let files = args.files.unwrap_or(1);
    let mut plan = Vec::new();
    for run in 1..=args.runs.unwrap_or(if args.full { 5 } else { 1 }) {
        for link in links(args) {
            for (at, size) in sizes.iter().enumerate() {
                // By default only the quick ones among the MPI forms send the longer file.
                let all = args.full || !args.size.is_empty() || at == 0;
                let bytes = size.0 * u64::from(files);
                let of_run = |contender| FileRun { run, link, bytes, files, contender, ranks: args.ranks };
                plan.extend(contenders(args, all).into_iter().map(of_run));
            }
        }
    }
    plan
}

fn links(args: &Args) -> Vec<EmulatedLink> {
    if args.loopback {
        return vec![EmulatedLink::LOOPBACK];
    }
    if args.full && args.rtt.is_empty() && args.loss.is_empty() {
        let of = |ms: u64, loss| EmulatedLink {
            name: None,
            rate: args.rate,
            rtt: Span(ms * 1_000_000),
            loss: Percent(loss),
            mtu: args.mtu,
        };
        return vec![of(24, 0.0), of(366, 0.01)];
    }
    let rtts = if args.rtt.is_empty() { &[Span(24_000_000)][..] } else { &args.rtt };
    let losses = if args.loss.is_empty() { &[Percent(0.0)][..] } else { &args.loss };
    Matrix::links(args.rate, args.mtu, rtts, losses)
}

fn contenders(args: &Args, all: bool) -> Vec<FileContender> {
    let mut out = Vec::new();
    for stock in [false, true] {
        for block in &args.block {
            for (io, overlap) in
                [(Io::Posix, true), (Io::Posix, false), (Io::MpiIo, true), (Io::MpiIo, false)]
            {
                let order = ORDER[usize::from(!overlap)];
                if args.files.is_some()
                    || !args.io.contains(&io.to_string())
                    || !args.order.iter().any(|one| one == order)
                {
                    continue;
                }
                let quick = io == Io::Posix && overlap;
                if quick || (all && !stock) {
                    out.push(FileContender::Coupled { stock, block: *block, io, overlap });
                }
            }
        }
    }
    out.extend(FileContender::COMMANDS.iter().filter(|one| args.files.is_none() || one.takes_folders()));
    out.retain(|one| args.with.iter().any(|kind| kind == one.kind()));
    out
}
