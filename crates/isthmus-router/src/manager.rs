//! Messages to the service manager (`sd_notify(3)`): the daemon is ready, alive, or stopping.

use std::collections::VecDeque;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_datagram::scarcity::{Sparing, no_thread};
use tracing::warn;

/// Longest wait for a service manager that does not read. Without a limit the daemon would stand still.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a message waits for a service manager that does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Not at all.
    No,
    /// [`PATIENCE`].
    Briefly,
    /// Until it reads.
    Always,
}

/// Messages that wait for a service manager that does not read, in order. `None` if no thread sends any.
static LATE: Mutex<Option<VecDeque<String>>> = Mutex::new(None);

fn late() -> MutexGuard<'static, Option<VecDeque<String>>> {
    LATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends `state` to the service manager if `NOTIFY_SOCKET` names one. A manager that does not read for `PATIENCE` gets
/// it later, from a thread of its own: the start of a service whose manager never hears that it is ready fails. Later
/// messages wait behind it.
pub fn tell(state: &str) {
    if let Some(waiting) = &mut *late() {
        return line_up(waiting, state);
    }
    let Some(told) = try_to_tell(state, Wait::Briefly) else { return };
    if !told.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        return warn_of_failure(told);
    }
    let mut late = late();
    if let Some(waiting) = &mut *late {
        return line_up(waiting, state);
    }
    match thread::Builder::new().name("manager".to_owned()).spawn(tell_late) {
        Ok(_) => {
            *late = Some(VecDeque::from([state.to_owned()]));
            warn!("the service manager does not read: \"{state}\" waits until it does");
        }
        Err(error) => warn_of_failure(Err(no_thread(error))),
    }
}

/// Adds a message to those that wait. It replaces an earlier one about the same, such as a status.
fn line_up(waiting: &mut VecDeque<String>, state: &str) {
    let subject = |message: &str| message.split('=').next().map(str::to_owned);
    waiting.retain(|earlier| subject(earlier) != subject(state));
    waiting.push_back(state.to_owned());
}

/// Sends what waits, until nothing does.
fn tell_late() {
    loop {
        let next = {
            let mut late = late();
            let next = late.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                *late = None;
            }
            next
        };
        let Some(state) = next else { return };
        try_to_tell(&state, Wait::Always).into_iter().for_each(warn_of_failure);
    }
}

/// Sends `state`. `None` if there is no service manager.
fn try_to_tell(state: &str, wait: Wait) -> Option<io::Result<()>> {
    let path = std::env::var_os("NOTIFY_SOCKET")?;
    let name = path.as_encoded_bytes().strip_prefix(b"@");
    let address = name.map_or_else(|| SocketAddr::from_pathname(&path), SocketAddr::from_abstract_name);
    Some(address.and_then(|to| send(&to, state, wait)))
}

fn warn_of_failure(told: io::Result<()>) {
    static SPARING: Sparing = Sparing::new();
    if let Err(error) = told
        && let Some(left_out) = SPARING.due(Instant::now())
    {
        warn!(%error, "cannot tell the service manager{left_out}");
    }
}

fn send(to: &SocketAddr, state: &str, wait: Wait) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    match wait {
        Wait::No => socket.set_nonblocking(true)?,
        Wait::Briefly => socket.set_write_timeout(Some(PATIENCE))?,
        Wait::Always => {}
    }
    socket.send_to_addr(state.as_bytes(), to).map(drop)
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
            // The next one is due soon.
            try_to_tell("WATCHDOG=1", Wait::No).into_iter().for_each(warn_of_failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_messages_about_the_same_the_last_one_waits() {
        let mut waiting = VecDeque::from(["READY=1".to_owned()]);
        for state in ["STATUS=one", "STATUS=two", "STOPPING=1"] {
            line_up(&mut waiting, state);
        }
        assert_eq!(waiting, ["READY=1", "STATUS=two", "STOPPING=1"]);
    }

    #[test]
    fn a_manager_that_does_not_read_holds_nobody_up() {
        let name = format!("isthmus-test-{}", std::process::id());
        let at = SocketAddr::from_abstract_name(name).expect("a name");
        let manager = UnixDatagram::bind_addr(&at).expect("nobody else's");
        let start = Instant::now();
        // The system keeps so many datagrams (net.unix.max_dgram_qlen), and no more.
        let full = (0..100_000).find_map(|_| send(&at, "WATCHDOG=1", Wait::No).err());
        assert_eq!(full.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        let late = send(&at, "STOPPING=1", Wait::Briefly).expect_err("there is no room");
        assert_eq!(late.kind(), io::ErrorKind::WouldBlock);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert_eq!(manager.recv(&mut [0; 64]).expect("the first"), 10);
        send(&at, "STOPPING=1", Wait::Briefly).expect("there is room again");
    }
}
