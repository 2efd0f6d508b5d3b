//! `isthmus router`: the daemon that joins subnets and sites.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use isthmus_router::{Keygen, Role, RunError, RunOptions};
use isthmus_units::Span;

use crate::{LogFormat, output};

const USAGE: u8 = 2;
const FAILED: u8 = 3;

/// Run the daemon that joins subnets and sites, and make its keys
///
/// A router passes lanes between the subnets that it joins, and over encrypted links to the
/// routers of other sites. See docs/router.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: RouterCommand,
}

#[derive(Subcommand)]
enum RouterCommand {
    Run(RunArgs),
    Check(CheckArgs),
    Keygen(KeygenArgs),
}

/// Run a router in the foreground
///
/// SIGHUP: reads the configuration, the map and the certificates again. Lanes go on. SIGTERM: takes no new lanes, gives
/// the others the time of --drain to end, and exits with status 0.
///
/// Exit status: 2 the configuration is wrong; 3 the system refuses something.
#[derive(clap::Args)]
struct RunArgs {
    /// Read the configuration from this TOML file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Give lanes this time to end after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s")]
    drain: Span,
    /// Relay with this many threads. One thread adds the least latency; more threads encrypt more data
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Write the log in this format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

impl Args {
    pub(crate) fn log_format(&self) -> LogFormat {
        match &self.command {
            RouterCommand::Run(args) => args.log_format,
            _ => LogFormat::Text,
        }
    }
}

/// Check a router's configuration and all the files that it names
///
/// Exit status 2 when something is wrong.
#[derive(clap::Args)]
struct CheckArgs {
    /// Read the configuration from this TOML file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Make the authority of a site, and a certificate for its router
///
/// Where the authority of this AS is there already, only the router's certificate is made.
#[derive(clap::Args)]
struct KeygenArgs {
    /// Make files for the AS with this number
    #[arg(long = "as", value_name = "ID")]
    as_id: u32,
    /// Write the files to this folder, and create it if it is missing
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Name the router, and its files, NAME
    #[arg(long, default_value = "router", value_parser = certificate_name)]
    name: String,
    /// Restrict the certificate to one role: router, mover (serve and cp) or host (MPI programs) [default: any role]
    #[arg(long)]
    role: Option<Role>,
    /// Let the router's certificate be valid for this time. The authority's certificate is valid for ten years
    #[arg(long, default_value_t = 825, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

pub(crate) fn main(args: Args) -> ExitCode {
    let format = args.log_format();
    let done = match args.command {
        RouterCommand::Run(args) => run(&args),
        RouterCommand::Check(args) => isthmus_router::check(&args.config).map_err(RunError::from),
        RouterCommand::Keygen(args) => keygen(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::daemon_error(format, "isthmus router", &error);
            ExitCode::from(if matches!(&error, RunError::Config(error) if !error.is_refused()) {
                USAGE
            } else {
                FAILED
            })
        }
    }
}

fn run(args: &RunArgs) -> Result<(), RunError> {
    isthmus_router::run(&RunOptions {
        config: args.config.clone(),
        drain: Duration::from_nanos(args.drain.0),
        threads: args.threads,
    })
}

fn certificate_name(name: &str) -> Result<String, String> {
    isthmus_router::check_name(name).map(|()| name.to_owned())
}

fn keygen(args: &KeygenArgs) -> Result<(), RunError> {
    let keygen = Keygen { as_id: args.as_id, folder: &args.out, name: &args.name, days: args.days };
    out!("{}", keygen.make_as(args.role)?);
    Ok(())
}
