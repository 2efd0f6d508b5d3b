//! Log messages. The library runs inside other programs, so the program that loads it sets a hook for them. Without a
//! hook they are dropped.

use std::fmt::{self, Arguments};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::lock::Mutex;

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

/// Sets where messages go; only the first call counts.
pub fn set_hook(hook: Hook) {
    let _ = HOOK.set(hook);
}

pub(crate) fn emit(severity: Severity, message: Arguments<'_>) {
    if let Some(hook) = HOOK.get() {
        hook(severity, message);
    }
}

/// Shortest time between two lines about the same recurring trouble.
const PAUSE: Duration = Duration::from_secs(10);

/// Lets one line about the same trouble through per 10 s, or a few of them, and counts those that it left out.
#[derive(Debug)]
pub struct Sparing(Mutex<Told>);

/// `FEW` (64): lines of one place in the code per 10 s that tell of what others do, such as lanes that come in. As many
/// lanes as most peers have.
pub const FEW: u32 = 64;

#[derive(Debug)]
struct Told {
    /// When the first of the present 10 s was let through.
    last: Option<Instant>,
    /// Lines that may be let through in them, and how many more may.
    most: u32,
    more: u32,
    left_out: u64,
}

impl Default for Sparing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sparing {
    /// One that has let no line through yet.
    pub const fn new() -> Self {
        Self::letting(1)
    }

    /// One that lets `most` lines through per 10 s.
    pub const fn letting(most: u32) -> Self {
        Self(Mutex::new(Told { last: None, most, more: 0, left_out: 0 }))
    }

    /// If a line is due, returns what to add to it.
    pub fn due(&self, now: Instant) -> Option<LeftOut> {
        let mut told = self.0.lock();
        if told.last.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE) {
            (told.last, told.more) = (Some(now), told.most);
        }
        if told.more == 0 {
            told.left_out += 1;
            return None;
        }
        told.more -= 1;
        Some(LeftOut(std::mem::take(&mut told.left_out)))
    }
}

/// How many lines about the same trouble were left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut(u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0 { write!(f, " ({} times more since it was last said)", self.0) } else { Ok(()) }
    }
}

/// As `warn_log`, for trouble that may recur: one line in ten seconds for each place in the code.
macro_rules! warn_sparingly {
    ($($arg:tt)*) => { $crate::log::sparingly!(Warn, $($arg)*) };
}
/// The same at level info.
macro_rules! info_sparingly {
    ($($arg:tt)*) => { $crate::log::sparingly!(Info, $($arg)*) };
}
/// As `info_log`, for what others can make happen as often as they like: [`FEW`] lines in ten seconds for each place in
/// the code.
macro_rules! info_few {
    ($($arg:tt)*) => { $crate::log::sparingly!($crate::log::FEW, Info, $($arg)*) };
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
macro_rules! warn_log {
    ($($arg:tt)*) => { $crate::log::emit($crate::log::Severity::Warn, format_args!($($arg)*)) };
}
macro_rules! info_log {
    ($($arg:tt)*) => { $crate::log::emit($crate::log::Severity::Info, format_args!($($arg)*)) };
}
macro_rules! debug_log {
    ($($arg:tt)*) => { $crate::log::emit($crate::log::Severity::Debug, format_args!($($arg)*)) };
}
pub(crate) use {debug_log, info_few, info_log, info_sparingly, sparingly, warn_log, warn_sparingly};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_that_comes_again_and_again_is_a_line_now_and_then_with_a_count() {
        let sparing = Sparing::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let said: Vec<_> = (0..30_000).step_by(10).filter_map(|ms| sparing.due(at(ms))).collect();
        assert_eq!(said, [LeftOut(0), LeftOut(999), LeftOut(999)]);
        assert!(said[1].to_string().contains("999 times more"));
        let few = Sparing::letting(3);
        let said: Vec<_> = (0..20_000).step_by(1000).filter_map(|ms| few.due(at(ms))).collect();
        assert_eq!(said, [0, 0, 0, 7, 0, 0].map(LeftOut));
    }
}
