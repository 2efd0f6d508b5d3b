//! A mark in the output of a test whose wait has reached its limit. It tells a hang, which is a fault of the library,
//! from a test that fails for another reason.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

use std::fmt::Display;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output};

/// Prints a line that begins with `HUNG: ` and says what was waited for, then `more`.
///
/// It goes straight to standard error. What goes through `eprintln` is kept until the test ends, and this one may hang.
pub fn mark(what: impl Display, more: &str) {
    // The test harness may have begun a line.
    let text = format!("\nHUNG: {what}\n{more}");
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The output of a command that `timeout` (1) kills if it hangs.
pub fn output(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    mark_killed(output.status, format_args!("{command:?}"));
    output
}

/// Waits for a command that `timeout` (1) kills if it hangs.
pub fn wait(child: &mut Child, program: impl Display) -> ExitStatus {
    let status = child.wait().expect("it ends");
    mark_killed(status, program);
    status
}

fn mark_killed(status: ExitStatus, program: impl Display) {
    if matches!(status.code(), Some(124 | 137)) || status.signal() == Some(libc::SIGKILL) {
        mark(format_args!("{program} has not ended within its time limit"), "");
    }
}
