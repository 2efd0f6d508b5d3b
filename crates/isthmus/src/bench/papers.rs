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

/// Repeat the experiments of the papers behind Isthmus, and compare their figures with ours
///
/// Sections: movement (a file between 16 and 16 MPI ranks), storage (files on storage targets of unlike speed), cci
/// (latency and remote writes by size), parallel (messages over several TCP connections), distance (MPI_Sendrecv
/// over long and lossy links), protocols (shares of preposted receives, and protocols exchanged at run time), routes
/// (route maps, four organisations, five networks).
///
/// Every run has its own lab (isthmus lab) and a time limit. The results are three files: samples.jsonl with each
/// run's figures and circumstances, papers.html with tables and plots, and papers.md with pictures. Without --full
/// all runs take about ten minutes.
///
/// Exit status: 0 all runs gave a result; 1 some failed, and the report names them; 2 bad usage; 3 a program or
/// file is missing.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Measure longer files, and more sizes, links and losses, which takes hours
    #[arg(long)]
    full: bool,
    /// Run only these sections, joined by commas [default: all]
    #[arg(long, value_name = "SECTION", value_delimiter = ',',
          value_parser = clap::builder::PossibleValuesParser::new(Papers::names()))]
    only: Vec<String>,
    /// Write the samples and the report to this folder
    #[arg(long, value_name = "DIR", default_value = "build/bench/papers")]
    out: PathBuf,
    /// Print the runs and how long they take, but run nothing
    #[arg(long)]
    dry_run: bool,
    /// Write the report again from the samples in this folder, but run nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["full", "only", "dry_run", "resume"])]
    render: Option<PathBuf>,
    /// Keep the results that are already in the folder, and do the runs that are missing or failed
    #[arg(long)]
    resume: bool,
    /// Start no run after this time, such as 900s [default: 600s; with --full no limit]
    #[arg(long = "for", value_name = "TIME")]
    no_longer: Option<Span>,
    /// Use the MPICH in this folder, which has bin/mpiexec and bin/mpicc
    #[arg(long, value_name = "DIR", default_value = "build/mpi/mpich")]
    mpi: PathBuf,
    /// Use the Open MPI in this folder, which has bin/mpirun and bin/mpicc
    #[arg(long, value_name = "DIR", default_value = "build/mpi/openmpi")]
    open_mpi: PathBuf,
    /// Use the mover's libraries in this folder, which has mpich and openmpi (make mpi)
    #[arg(long, value_name = "DIR", default_value = "build/lib/mpi")]
    movers: PathBuf,
    /// Use libisthmus-fi.so from this folder [default: the one installed with this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Keep the files of both sites, up to 2 GB each, in this folder [default: /dev/shm if it exists, otherwise --out]
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
