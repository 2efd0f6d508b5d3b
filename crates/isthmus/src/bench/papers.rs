//! `isthmus bench papers`: reproduces the project's source papers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use isthmus_bench::{Form, Papers, Tools, render};
use isthmus_units::Span;

use super::lab;

/// Time after which the short form begins no further run. Seconds.
const SHORT_S: u64 = 600;
/// Folder in memory for the files, if it exists.
const MEMORY: &str = "/dev/shm";

/// The papers that Isthmus answers, reproduced in labs, with their figures beside ours
///
/// Sections: movement (a file between 16 and 16 MPI ranks), cci (latency and remote writes by size), parallel
/// (messages over several TCP connections), distance (MPI_Sendrecv over long and lossy links), protocols (shares
/// of preposted receives, and protocols exchanged at run time), routes (route maps, four organisations, five
/// networks).
///
/// Every run has a lab of its own (isthmus lab) and a limit of time. The folder gets samples.jsonl, with each
/// run's circumstances; papers.html, one page with tables and plots; and papers.md with pictures. Without
/// --full it takes about ten minutes.
///
/// Exit status: 0 all runs gave a result; 1 some failed, which the page tells; 2 bad usage; 3 something is
/// missing.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Longer files, more sizes, links and losses: hours
    #[arg(long)]
    full: bool,
    /// Only these sections
    #[arg(long, value_name = "SECTION", value_delimiter = ',',
          value_parser = clap::builder::PossibleValuesParser::new(Papers::names()))]
    only: Vec<String>,
    /// Where samples and report go
    #[arg(long, value_name = "DIR", default_value = "build/bench/papers")]
    out: PathBuf,
    /// Print what would be run, and how long it takes, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Make the report again from the samples in this folder, and run nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["full", "only", "dry_run", "resume"])]
    render: Option<PathBuf>,
    /// Go on where a run of the same folder ended: what it measured counts
    #[arg(long)]
    resume: bool,
    /// Begin no run after so long, such as 900s [default: 600s; with --full: no limit]
    #[arg(long = "for", value_name = "TIME")]
    no_longer: Option<Span>,
    /// Folder of an MPICH, with bin/mpiexec and bin/mpicc
    #[arg(long, value_name = "DIR", default_value = "build/mpi/mpich")]
    mpi: PathBuf,
    /// Folder of an Open MPI, with bin/mpirun and bin/mpicc
    #[arg(long, value_name = "DIR", default_value = "build/mpi/openmpi")]
    open_mpi: PathBuf,
    /// Folder of the mover's libraries, in it mpich and openmpi (make mpi)
    #[arg(long, value_name = "DIR", default_value = "build/lib/mpi")]
    movers: PathBuf,
    /// Folder that holds libisthmus-fi.so [default: found beside this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Where files of up to 2 GB are, of both sites [default: /dev/shm]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(super) fn main(args: &Args) -> ExitCode {
    let out = args.render.as_ref().unwrap_or(&args.out);
    if let Some(folder) = &args.render {
        return match render(folder) {
            Ok(_) => told(out, 0),
            Err(error) => failed(&error),
        };
    }
    let Some(provider) = lab::provider(args.provider_path.as_deref()) else { return ExitCode::from(3) };
    let papers = papers(args, &provider);
    if args.dry_run {
        out!("{}", papers.dry_run());
        return ExitCode::SUCCESS;
    }
    match papers.run() {
        Ok(came) => {
            if came.left > 0 {
                errln!("isthmus bench: {} runs are left; the same command with --resume goes on", came.left);
            }
            if came.failed > 0 {
                errln!("isthmus bench: {} runs failed; the report says why", came.failed);
            }
            told(out, u8::from(came.failed > 0))
        }
        Err(error) => failed(&error),
    }
}

fn papers(args: &Args, provider: &Path) -> Papers {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let memory = Path::new(MEMORY);
    let usual = if memory.is_dir() { memory } else { &args.out };
    let tools = Tools {
        isthmus: std::env::current_exe().unwrap_or_else(|_| "isthmus".into()),
        provider: absolute(provider),
        mpich: absolute(&args.mpi),
        open_mpi: absolute(&args.open_mpi),
        movers: absolute(&args.movers),
        folder: absolute(args.folder.as_deref().unwrap_or(usual)),
        out: absolute(&args.out),
    };
    let usual = (!args.full).then(|| Duration::from_secs(SHORT_S));
    Papers {
        tools,
        form: if args.full { Form::Full } else { Form::Short },
        only: args.only.clone(),
        version: lab::version(),
        resume: args.resume,
        no_longer: args.no_longer.map(|span| Duration::from_nanos(span.0)).or(usual),
    }
}

fn told(out: &Path, status: u8) -> ExitCode {
    outln!("{}\n{}", out.join("papers.html").display(), out.join("papers.md").display());
    ExitCode::from(status)
}

fn failed(error: &isthmus_bench::BenchError) -> ExitCode {
    errln!("isthmus bench: {error}");
    ExitCode::from(3)
}
