//! `isthmus serve`: offers folders to other sites.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use isthmus_mover::{MoverError, ServeConfig, server};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Offer folders to `isthmus cp` of other sites
///
/// Clients prove by certificate which AS they are of, and see the folders that the
/// configuration exports to it. SIGTERM: end what is under way, which clients may continue
/// later, and exit with status 0. Exit status 2 for a wrong configuration, 3 when the system
/// refuses something. See docs/mover.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// TOML file with the configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(crate) fn main(args: Args) -> ExitCode {
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isthmus serve: {error}");
            ExitCode::from(if matches!(error, MoverError::Usage(_)) { 2 } else { 3 })
        }
    }
}

fn run(args: &Args) -> Result<(), MoverError> {
    let config = ServeConfig::read(&args.config)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    server::serve(config, &stop, |address| tracing::info!("serving at {}", address.locator))
}
