//! Log messages. The library runs inside other programs, so the program that loads it sets a hook for them. Without a
//! hook they are dropped.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

pub use isthmus_datagram::scarcity::{
    DESCRIPTORS_MIN, LeftOut, Sparing, accepted, no_thread, probe_descriptors, probe_threads, remedy,
};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// The severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Somebody should act.
    Warn,
    /// Something changed.
    Info,
    /// For people who look for a fault.
    Debug,
}

/// Takes a message; called from any thread.
pub type Hook = fn(Severity, Arguments<'_>);

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Writes lines to standard error in one call, so that lines of several processes do not mix.
///
/// The library runs inside other programs. A write to a pipe whose reader has gone away would end the program by
/// SIGPIPE, so the lines are dropped then. (If the reader goes between the two system calls, the signal comes.)
///
/// # Errors
/// Standard error takes no lines.
pub fn print(lines: &str) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    let mut state = [PollFd::new(&stderr, PollFlags::OUT)];
    let has_state = poll(&mut state, Some(&Timespec::default())).is_ok();
    if has_state && state[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
        return Err(ErrorKind::BrokenPipe.into());
    }
    stderr.write_all(lines.as_bytes())
}

/// Sets where messages go; only the first call counts.
pub fn set_hook(hook: Hook) {
    let _ = HOOK.set(hook);
}

pub(crate) fn emit(severity: Severity, message: Arguments<'_>) {
    if let Some(hook) = HOOK.get() {
        hook(severity, message);
    }
}

/// Most lines per 10 s, for each place in the code, about acts of others, such as incoming lanes. Count; most peers
/// have no more lanes.
pub const FEW: u32 = 64;

/// Like `warn_log`, for trouble that may recur: one line in ten seconds for each place in the code.
macro_rules! warn_sparingly {
    ($($arg:tt)*) => { $crate::log::sparingly!(Warn, $($arg)*) };
}
/// The same at level info.
macro_rules! info_sparingly {
    ($($arg:tt)*) => { $crate::log::sparingly!(Info, $($arg)*) };
}
/// Like `info_log`, for events that others can cause as often as they like: [`FEW`] lines in ten seconds for each place
/// in the code.
macro_rules! info_few {
    ($($arg:tt)*) => { $crate::log::sparingly!($crate::log::FEW, Info, $($arg)*) };
}
/// Like `warn_sparingly`, for an error that this host causes: adds a remedy ([`remedy`]).
macro_rules! warn_refused {
    ($error:expr, $($arg:tt)*) => {{
        static SPARING: $crate::log::Sparing = $crate::log::Sparing::new();
        SPARING.tell(format_args!($($arg)*), $error, $crate::log::warn);
    }};
}
macro_rules! sparingly {
    ($severity:ident, $($arg:tt)*) => { $crate::log::sparingly!(1, $severity, $($arg)*) };
    ($most:expr, $severity:ident, $($arg:tt)*) => {{
        static SPARING: $crate::log::Sparing = $crate::log::Sparing::letting($most);
        if let Some(left_out) = SPARING.due(std::time::Instant::now()) {
            $crate::log::emit($crate::log::Severity::$severity, format_args!("{}{left_out}", format_args!($($arg)*)));
        }
    }};
}
/// Logs a warning.
pub fn warn(message: Arguments<'_>) {
    emit(Severity::Warn, message);
}

macro_rules! warn_log {
    ($($arg:tt)*) => { $crate::log::emit($crate::log::Severity::Warn, format_args!($($arg)*)) };
}
macro_rules! info_log {
    ($($arg:tt)*) => { $crate::log::emit($crate::log::Severity::Info, format_args!($($arg)*)) };
}
macro_rules! debug_log {
    ($($arg:tt)*) => { $crate::log::emit($crate::log::Severity::Debug, format_args!($($arg)*)) };
}
pub(crate) use {
    debug_log, info_few, info_log, info_sparingly, sparingly, warn_log, warn_refused, warn_sparingly,
};
