//! Waits that have a limit.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

use std::fmt::Display;

#[path = "hung.rs"]
mod hung;

/// Panics, and marks the test as hung, unless `waits_on`: the limit of the wait is not reached. `what` says what has
/// not come.
#[track_caller]
pub fn in_time<T: Display>(waits_on: bool, what: impl FnOnce() -> T) {
    if !waits_on {
        give_up(what());
    }
}

/// Ends a test whose wait has reached its limit. The output has the state of all endpoints of this process.
#[track_caller]
pub fn give_up(what: impl Display) -> ! {
    let state = isthmus_io::state_of(std::process::id());
    hung::mark(&what, &state.unwrap_or_else(|error| format!("the I/O thread does not answer: {error}\n")));
    panic!("{what}");
}
