//! `isthmus bench collectives`: MPI collectives across sites.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use isthmus_bench::{Collectives, EmulatedLink, Form, Layout, Matrix, Tools};
use isthmus_units::{Percent, Rate, Span};

use super::lab;

const RTTS: [Span; 2] = [Span(24_000_000), Span(100_000_000)];
const LOSSES: [Percent; 2] = [Percent(0.0), Percent(0.01)];
/// MTU of all links. Bytes.
const MTU: u32 = 9_000;
/// How often each call is made.
const RUNS: u32 = 5;
/// Sites and ranks of `--whole`, and its vectors in MiB. Few ranks first, because few processors slow these least.
const WHOLE: [Layout; 4] = [
    Layout { sites: 2, each: 4 },
    Layout { sites: 3, each: 4 },
    Layout { sites: 2, each: 8 },
    Layout { sites: 3, each: 8 },
];
const WHOLE_SIZES: [u32; 3] = [1, 16, 64];

/// Measure MPI collectives across two or three sites, with and without the collectives library, and over stock tcp
///
/// Every job has its own lab (isthmus lab), with as many ranks at each site. Ranks are placed in two ways: in
/// blocks, and alternating between the sites. The results are four files. samples.jsonl has each job's circumstances
/// and every call's time. table.txt has medians in round trips beside what the path allows. report.html has tables and
/// plots, and collectives.csv every call for docs/measured. `make collectives` builds the library.
///
/// Exit status: 0 all jobs gave a result; 1 some failed; 2 bad usage; 3 a program or file is missing.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Make each call once, with ranks in blocks, at 24 ms without loss, which takes about a minute
    #[arg(long)]
    quick: bool,
    /// Measure 4 and 8 ranks at each of two and of three sites, with vectors of 1, 16 and 64 MiB, which takes hours; add
    /// --resume to go on after an interruption
    #[arg(long, conflicts_with_all = ["quick", "sites", "ranks", "size"])]
    whole: bool,
    /// Measure at these round-trip times [default: 24ms,100ms]
    #[arg(long, value_delimiter = ',')]
    rtt: Vec<Span>,
    /// Measure with these losses in each direction [default: 0%,1%]
    #[arg(long, value_delimiter = ',')]
    loss: Vec<Percent>,
    /// Give the link this rate in each direction
    #[arg(long, default_value = "1Gbit")]
    rate: Rate,
    /// Use this many sites, 2 or 3; three reach each other by links to a point in the middle
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=3))]
    sites: u32,
    /// Run this many ranks in all, 2 to 64, as many at each site [default: 4 at each site]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Option<u32>,
    /// Measure the non-blocking forms (MPI_Ibcast and MPI_Wait)
    #[arg(long)]
    nonblocking: bool,
    /// Use vectors of these lengths, such as 1,16. Gather, and others with a vector per rank, use only the first
    #[arg(long, default_value = "1", value_name = "MiB", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=64))]
    size: Vec<u32>,
    /// Make each call this many times [default: 5; with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Write the samples and the report to this folder
    #[arg(long, value_name = "DIR", default_value = "build/bench/collectives")]
    out: PathBuf,
    /// Print the runs and how long they take, but run nothing
    #[arg(long)]
    dry_run: bool,
    /// Write the report again from the samples in this folder, but run nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["quick", "dry_run", "resume"])]
    render: Option<PathBuf>,
    /// Keep the results that are already in the folder, and do the runs that are missing or failed
    #[arg(long)]
    resume: bool,
    /// Use the MPICH in this folder, which has bin/mpiexec and bin/mpicc
    #[arg(long, value_name = "DIR", default_value = "build/mpi/mpich")]
    mpi: PathBuf,
    /// Use libisthmus-fi.so from this folder [default: the one installed with this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Load this collectives library [default: collectives/mpich/libisthmus-collectives.so in the provider's folder]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// Ranks at each site, if nothing else is said. Count.
const RANKS_EACH: u32 = 4;

pub(super) fn main(args: &Args) -> ExitCode {
    if let Some(folder) = &args.render {
        return lab::conclude(folder, Collectives::render(folder).map(|came| came.failed == 0));
    }
    let Some(provider) = lab::provider(args.provider_path.as_deref()) else { return ExitCode::from(3) };
    if args.ranks.is_some_and(|ranks| !ranks.is_multiple_of(args.sites)) {
        errln!("isthmus bench: --ranks: expected a multiple of {}, the number of sites", args.sites);
        return ExitCode::from(2);
    }
    let bench = bench(args, &provider);
    if args.dry_run {
        out!("{}", bench.dry_run());
        return ExitCode::SUCCESS;
    }
    lab::conclude(&bench.tools.out, bench.run().map(|came| came.failed == 0))
}

fn bench(args: &Args, provider: &Path) -> Collectives {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (provider, out) = (absolute(provider), absolute(&args.out));
    let usual = provider.join("collectives/mpich/libisthmus-collectives.so");
    let quick = usize::from(args.quick);
    let rtts = if args.rtt.is_empty() { &RTTS[..2 - quick] } else { &args.rtt[..] };
    let losses = if args.loss.is_empty() { &LOSSES[..2 - quick] } else { &args.loss[..] };
    let mut links: Vec<EmulatedLink> = Matrix::links(args.rate, MTU, rtts, losses);
    let mut layouts =
        vec![Layout { sites: args.sites, each: args.ranks.map_or(RANKS_EACH, |ranks| ranks / args.sites) }];
    if args.whole {
        // What matters most first: links without loss.
        links.sort_by(|a, b| a.loss.0.total_cmp(&b.loss.0));
        layouts = WHOLE.to_vec();
    }
    Collectives {
        library: args.library.as_deref().map_or(usual, absolute),
        tools: Tools {
            isthmus: std::env::current_exe().unwrap_or_else(|_| "isthmus".into()),
            provider,
            mpich: absolute(&args.mpi),
            open_mpi: PathBuf::new(),
            movers: PathBuf::new(),
            folder: out.clone(),
            out,
        },
        links,
        layouts,
        is_nonblocking: args.nonblocking,
        sizes: if args.whole { WHOLE_SIZES.to_vec() } else { args.size.clone() },
        runs: args.runs.unwrap_or(if args.quick { 1 } else { RUNS }),
        form: if args.quick { Form::Short } else { Form::Full },
        version: lab::version(),
        resume: args.resume,
    }
}
