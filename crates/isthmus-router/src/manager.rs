//! Messages to the service manager (`sd_notify(3)`): the daemon is ready, alive, or stopping.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use tracing::warn;

/// Sends `state` to the service manager if `NOTIFY_SOCKET` names one.
pub fn tell(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let name = path.as_encoded_bytes().strip_prefix(b"@");
    let address = name.map_or_else(|| SocketAddr::from_pathname(&path), SocketAddr::from_abstract_name);
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(error) = sent {
        warn!(%error, "cannot tell the service manager");
    }
}

/// Sends keep-alives to the service manager as often as it wants them.
#[derive(Debug)]
pub struct Watchdog {
    pause: Option<Duration>,
    last: Instant,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}

impl Watchdog {
    /// Beats twice per `WATCHDOG_USEC`. It never beats if that is unset or meant for another process.
    #[must_use]
    pub fn new() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let pause = number("WATCHDOG_USEC").filter(|_| is_ours).map(|us| Duration::from_micros(us / 2));
        Self { pause, last: Instant::now() }
    }

    /// The longest time between two calls of [`Watchdog::beat`]. None if no watchdog is set.
    pub fn pause(&self) -> Option<Duration> {
        self.pause
    }

    /// Sends a keep-alive if one is due. The main loop calls it, so that a hang stops the keep-alives.
    pub fn beat(&mut self) {
        if self.pause.is_some_and(|pause| self.last.elapsed() >= pause) {
            self.last = Instant::now();
            tell("WATCHDOG=1");
        }
    }
}
