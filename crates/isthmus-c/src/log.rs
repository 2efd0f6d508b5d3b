//! The library's log: to a function of the program, or else to standard error as `ISTHMUS_LOG` says.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::Arguments;
use std::sync::{Once, OnceLock};

use isthmus_substrate::log::{Severity, print, set_hook};
use parking_lot::RwLock;

use crate::door::{c_text, enter, invalid};

/// The environment variable that chooses the lines for standard error.
const VARIABLE: &str = "ISTHMUS_LOG";

/// `isthmus_log_function`.
pub type LogFunction = unsafe extern "C" fn(severity: c_int, text: *const c_char, context: *mut c_void);

/// A function of the program that gets lines.
#[derive(Clone, Copy)]
struct Sink {
    function: LogFunction,
    context: *mut c_void,
    /// It gets lines of this severity and those that matter more.
    least: Severity,
}

// SAFETY: the program promises that the function may be called from any thread with its context.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Sends the lines of the library here, from the first call on.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| set_hook(put));
}

fn put(severity: Severity, text: Arguments<'_>) {
    // It is held during the call: when `isthmus_set_log` returns, the former function is not called any more. A line that
    // the function itself causes must not wait behind a thread that sets another one.
    let sink = SINK.read_recursive();
    match *sink {
        Some(sink) if severity <= sink.least => {
            let line: CString = c_text(&text.to_string());
            // SAFETY: the program's promise; the text lives during the call.
            unsafe { (sink.function)(number(severity), line.as_ptr(), sink.context) };
        }
        Some(_) => {}
        None if printed().is_some_and(|least| severity <= least) => {
            let _ = print(&format!("isthmus: {text}\n"));
        }
        None => {}
    }
}

/// The lines that go to standard error: those of this severity, and those that matter more.
fn printed() -> Option<Severity> {
    static PRINTED: OnceLock<Option<Severity>> = OnceLock::new();
    *PRINTED.get_or_init(|| {
        let value = std::env::var(VARIABLE).unwrap_or_default();
        for part in value.split(',').map(str::trim).filter(|part| !part.is_empty() && !is_known(part)) {
            let line =
                format!("isthmus: {VARIABLE}: {part:?} is ignored: it is neither a level nor PART=LEVEL\n");
            let _ = print(&line);
        }
        parse(&value)
    })
}

/// Whether a part of the variable can choose lines, of the library or of the command: others are mistakes.
fn is_known(part: &str) -> bool {
    match part.split_once('=') {
        Some((target, named)) => is_target(target) && (named.is_empty() || level(named).is_some()),
        None => level(part).is_some() || is_target(part),
    }
}

/// Whether a name may be that of a part of Isthmus: all begin alike.
fn is_target(name: &str) -> bool {
    "isthmus".starts_with(name) || name.starts_with("isthmus")
}

/// The name by which `ISTHMUS_LOG` calls the library's lines.
const TARGET: &str = "isthmus_io";

/// Parses `ISTHMUS_LOG`, by the rules of the command `isthmus` (docs/decisions.md), which those of `EnvFilter` of the
/// crate tracing-subscriber are. `tests/log_levels.txt` has examples. Warnings are the default.
fn parse(value: &str) -> Option<Severity> {
    let mut found = (0, Some(Severity::Warn));
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (target, level) = match (part.split_once('='), level(part)) {
            (Some((target, "")), _) => (target, Some(Severity::Debug)),
            (Some((target, named)), _) => match level(named) {
                Some(level) => (target, level),
                None => continue,
            },
            (None, Some(level)) => ("", level),
            (None, None) if is_target(part) => (part, Some(Severity::Debug)),
            (None, None) => continue,
        };
        // The longest target counts, and of equal ones the last.
        if TARGET.starts_with(target) && target.len() >= found.0 {
            found = (target.len(), level);
        }
    }
    found.1
}

/// Parses a level. The library has no errors to tell, and nothing below debug.
fn level(name: &str) -> Option<Option<Severity>> {
    Some(match name.to_ascii_lowercase().as_str() {
        "off" | "0" | "error" | "1" => None,
        "warn" | "2" => Some(Severity::Warn),
        "info" | "3" => Some(Severity::Info),
        "debug" | "4" | "trace" | "5" => Some(Severity::Debug),
        _ => return None,
    })
}

/// `enum isthmus_severity`.
fn number(severity: Severity) -> c_int {
    match severity {
        Severity::Warn => 1,
        Severity::Info => 2,
        Severity::Debug => 3,
    }
}

/// `isthmus_set_log`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_set_log(
    function: Option<LogFunction>,
    context: *mut c_void,
    least: c_int,
) -> c_int {
    let body = || {
        let known = [Severity::Warn, Severity::Info, Severity::Debug];
        let least = known.into_iter().find(|severity| number(*severity) == least);
        let sink = match function {
            None => None,
            Some(function) => {
                let least = least.ok_or_else(|| invalid("no such severity"))?;
                Some(Sink { function, context, least })
            }
        };
        install();
        *SINK.write() = sink;
        Ok(())
    };
    enter(body, || {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_read_as_the_command_reads_it() {
        let cases = include_str!("../tests/log_levels.txt");
        for line in cases.lines().filter(|line| !line.starts_with('#')) {
            let (value, expected) = line.rsplit_once(": ").expect("a value and a level");
            assert_eq!(parse(value), level(expected).expect("a level"), "{value:?}");
        }
        assert!(
            ["Info", "5", "isthmus_io=debug", "isthmus_router", "isthmus_io="]
                .iter()
                .all(|part| is_known(part))
        );
        assert!(["wran", "isthmus_io=loud", "libfabric=debug"].iter().all(|part| !is_known(part)));
    }
}
