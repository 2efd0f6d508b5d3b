//! Messages for people: the library lives in other people's processes, so whoever loads
//! it says where they go. Without a hook they are dropped.

use std::fmt::Arguments;
use std::sync::OnceLock;

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Somebody should act.
    Warn,
    /// Something changed.
    Info,
    /// For whoever looks for a fault.
    Debug,
}

/// Takes a message; called from any thread.
pub type Hook = fn(Severity, Arguments<'_>);

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Says where messages go; the first call counts.
pub fn set_hook(hook: Hook) {
    let _ = HOOK.set(hook);
}

pub(crate) fn emit(severity: Severity, message: Arguments<'_>) {
    if let Some(hook) = HOOK.get() {
        hook(severity, message);
    }
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
pub(crate) use {debug_log, info_log, warn_log};
