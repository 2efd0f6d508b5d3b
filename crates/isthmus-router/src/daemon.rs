//! The daemon around a router: start, reload, drain.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use isthmus_datagram::scarcity::{DESCRIPTORS_MIN, probe_descriptors, probe_threads};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{error, info, warn};

use crate::config::ConfigError;
use crate::listen::Listeners;
use crate::manager::{Watchdog, tell};
use crate::router::Router;
use crate::settings::Settings;

/// Longest wait for signals where no watchdog is set. The value only bounds the sleep; nothing is due when it ends.
const IDLE: Duration = Duration::from_secs(3600);

/// Why a router did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is wrong.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The system refused something.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// The options of a router's process.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The configuration's file.
    pub config: PathBuf,
    /// Longest time that lanes may go on after SIGTERM.
    pub drain: Duration,
    /// Threads that relay; 1 or more.
    pub threads: usize,
}

/// Checks the configuration at `path` and all files that it names.
pub fn check(path: &Path) -> Result<(), ConfigError> {
    Settings::load(path).map(drop)
}

/// Runs a router until SIGTERM or SIGINT. SIGHUP makes it read its files again.
pub fn run(options: &RunOptions) -> Result<(), RunError> {
    // The runtime panics if it cannot open its own descriptors.
    probe_descriptors(DESCRIPTORS_MIN)?;
    let settings = Settings::load(&options.config)?;
    let mut builder = match options.threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        more => {
            // The runtime panics if its threads cannot be started.
            probe_threads(more)?;
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(more);
            builder
        }
    };
    let runtime = builder.enable_all().build()?;
    let done = runtime.block_on(serve(options, settings));
    // Lanes that did not end in time are cut: their tasks are not awaited.
    runtime.shutdown_background();
    done
}

async fn serve(options: &RunOptions, settings: Settings) -> Result<(), RunError> {
    // Handlers come first: a signal during the slow steps below must not kill the process.
    let (mut hangup, mut terminate, mut interrupt) =
        (signal(SignalKind::hangup())?, signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (name, as_id, status) = (settings.router.name.clone(), settings.as_id().0, settings.config.status);
    let router = Router::new(settings);
    let mut listeners = Listeners::default();
    listeners.follow(&router).await?;
    if let Some(address) = status {
        isthmus_metrics::serve(router.clone(), address).await?;
    }
    router.follow_links();
    tokio::spawn(router.clone().measure());
    info!(name, as_id, "router ready");
    tell("READY=1");
    let mut watchdog = Watchdog::new();
    loop {
        tokio::select! {
            () = sleep(watchdog.pause().unwrap_or(IDLE)) => watchdog.beat(),
            _ = hangup.recv() => reload(&options.config, &router, &mut listeners).await,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    tell("STOPPING=1");
    drain(options.drain, &router, &mut listeners).await;
    Ok(())
}

/// Reads the files again and applies them. On a fault it logs the fault and changes nothing.
async fn reload(path: &Path, router: &Arc<Router>, listeners: &mut Listeners) {
    match Settings::load(path) {
        Ok(settings) => {
            if settings.config.status != router.settings().config.status {
                warn!("the status' address changes only with a restart");
            }
            router.replace_settings(settings);
            if let Err(error) = listeners.follow(router).await {
                error!(%error, "reload: not all listeners stand");
            }
            router.follow_links();
            info!("configuration and map read again");
            tell("STATUS=configuration read again");
        }
        Err(error) => error!(%error, "reload refused; going on as before"),
    }
}

async fn drain(most: Duration, router: &Arc<Router>, listeners: &mut Listeners) {
    router.draining.store(true, Relaxed);
    listeners.close_all().await;
    info!(lanes = router.lanes(), "draining");
    let deadline = Instant::now() + most;
    loop {
        let idle = router.idle.notified();
        let left = router.lanes();
        if left == 0 {
            router.links.close().await;
            info!("drained");
            return;
        }
        if timeout_at(deadline, idle).await.is_err() && router.lanes() > 0 {
            warn!(lanes = router.lanes(), "time is up: the remaining lanes are cut");
            return;
        }
    }
}
