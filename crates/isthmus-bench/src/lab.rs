//! The lab that a run has for itself, as a command.

use std::path::Path;
use std::process::Command;

use crate::link::Link;

/// What a run may take: so much, and so many times what is possible. Seconds.
const LIMIT_S: f64 = 20.0;
const LIMIT_FACTOR: f64 = 8.0;

/// How long a run may take whose floor is `floor_s`. Seconds.
pub(crate) fn limit_s(floor_s: f64) -> f64 {
    (LIMIT_S + LIMIT_FACTOR * floor_s).ceil()
}

/// A lab of this link; what runs in it is still to be added.
pub(crate) fn command(
    isthmus: &Path,
    link: &Link,
    seed: u32,
    limit_s: f64,
    congestion: Option<&str>,
    report: &Path,
) -> Command {
    let mut lab = Command::new(isthmus);
    lab.args(["lab", "run", "--quiet", "--mgmt"]);
    for (name, value) in [
        ("--rate", link.rate.to_string()),
        ("--rtt", link.rtt.to_string()),
        ("--loss", link.loss.to_string()),
        ("--mtu", link.mtu.to_string()),
        ("--seed", seed.to_string()),
        ("--timeout", limit_s.to_string()),
    ] {
        lab.arg(name).arg(value);
    }
    if let Some(control) = congestion {
        lab.args(["--cc", control]);
    }
    lab.arg("--report").arg(report);
    lab
}

/// The last line that says something.
pub(crate) fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").to_owned()
}

/// Why a run that ended badly did.
pub(crate) fn why(ended: &std::process::Output, limit_s: f64) -> String {
    let [said, complained] = [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let why = if complained.trim().is_empty() { last_line(&said) } else { last_line(&complained) };
    format!("{} within {limit_s} s: {why}", ended.status)
}

/// A word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The running kernel.
pub(crate) fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
