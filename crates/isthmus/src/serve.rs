//! `isthmus serve`: offers folders to other sites.

mod status;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use isthmus_io::log::{DESCRIPTORS_MIN, probe_descriptors};
use isthmus_mover::server::{self, Reload};
use isthmus_mover::sessions::Sessions;
use isthmus_mover::{MoverError, ServeConfig};
use isthmus_router::manager;
use isthmus_wire::Address;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{LogFormat, output};
use status::ServiceStatus;

/// Offer folders to `isthmus cp` of other sites
///
/// A client proves by its certificate which AS it belongs to. It sees the folders that the configuration exports to
/// that AS. See docs/mover.md.
///
/// SIGHUP: reads the configuration and the certificates again, for new sessions. SIGTERM: ends the sessions, which
/// clients may continue later, and exits with status 0.
///
/// Exit status: 2 the configuration is wrong; 3 the system refuses something.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read the configuration from this TOML file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Write the log in this format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

pub(crate) fn main(args: Args) -> ExitCode {
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::daemon_error(args.log_format, "isthmus serve", &error);
            ExitCode::from(if matches!(error, MoverError::Usage(_)) { 2 } else { 3 })
        }
    }
}

fn run(args: &Args) -> Result<(), MoverError> {
    probe_descriptors(DESCRIPTORS_MIN)?;
    let (stop, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    signal_hook::flag::register(SIGHUP, reload.clone())?;
    let config = read(args)?;
    let sessions: Arc<Sessions> = Arc::default();
    if let Some(at) = status_address(&config)? {
        let status = ServiceStatus { name: config.listen.to_string(), sessions: sessions.clone() };
        isthmus_metrics::serve_in_thread(Arc::new(status), at)?;
    }
    let ready = |address: Address| {
        tracing::info!("serving at {}", address.locator);
        manager::tell("READY=1");
    };
    let mut watchdog = manager::Watchdog::new();
    let mut tend = || {
        watchdog.beat();
        reload.swap(false, Ordering::Relaxed).then(|| read_again(args)).flatten()
    };
    let done = server::serve_tended(config, &stop, ready, &mut tend, &sessions);
    manager::tell("STOPPING=1");
    done
}

fn read(args: &Args) -> Result<ServeConfig, MoverError> {
    let config = ServeConfig::read(&args.config)?;
    status_address(&config).map(|_| config)
}

/// The address of the status page. A host name in the configuration is resolved now.
fn status_address(config: &ServeConfig) -> Result<Option<SocketAddr>, MoverError> {
    let Some(status) = &config.status else { return Ok(None) };
    let at = status.first().map_err(|error| MoverError::Usage(format!("status: {error}")))?;
    isthmus_metrics::check_address(at, config.status_remote).map_err(MoverError::Usage)?;
    Ok(Some(at))
}

/// Reads the configuration again. `None` if it has faults.
fn read_again(args: &Args) -> Option<Reload> {
    match read(args) {
        Ok(config) => Some(Reload { config, done: || manager::tell("STATUS=configuration read again") }),
        Err(error) => {
            tracing::error!("reload refused, going on as before: {error}");
            None
        }
    }
}
