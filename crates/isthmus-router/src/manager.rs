//! What daemons tell the service manager (`sd_notify(3)`): that they are ready, alive, and on their way out.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use tracing::warn;

/// Tells the service manager, if there is one. Who did not ask is not told.
pub fn tell(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let name = path.as_encoded_bytes().strip_prefix(b"@");
    let address = name.map_or_else(|| SocketAddr::from_pathname(&path), SocketAddr::from_abstract_name);
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(error) = sent {
        warn!(%error, "cannot tell the service manager");
    }
}

/// Signs of life, as often as the service manager wants them.
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
    /// As `WATCHDOG_USEC` says, twice in that time; never, where it is not set or meant for another process.
    #[must_use]
    pub fn new() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let pause = number("WATCHDOG_USEC").filter(|_| is_ours).map(|us| Duration::from_micros(us / 2));
        Self { pause, last: Instant::now() }
    }

    /// How often [`Watchdog::beat`] is to be called at least; none: it need not be.
    pub fn pause(&self) -> Option<Duration> {
        self.pause
    }

    /// To be called by what would hang if the daemon did.
    pub fn beat(&mut self) {
        if self.pause.is_some_and(|pause| self.last.elapsed() >= pause) {
            self.last = Instant::now();
            tell("WATCHDOG=1");
        }
    }
}
