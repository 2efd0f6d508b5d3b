//! The lab that a run has for itself, as a command.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::link::Link;

/// What a run may take: so much, and so many times what is possible. Seconds.
const LIMIT_S: f64 = 20.0;
const LIMIT_FACTOR: f64 = 8.0;
/// How long a service may take to listen. Tenths of a second.
const PATIENCE: u32 = 300;
/// Where iperf3's listens.
pub(crate) const IPERF_PORT: u16 = 5201;

/// How long a run may take whose floor is `floor_s`. Seconds.
pub(crate) fn limit_s(floor_s: f64) -> f64 {
    (LIMIT_S + LIMIT_FACTOR * floor_s).ceil()
}

/// The configuration of a lab of two sites, a and b, and these links between them, each down from when
/// on for how long, in seconds from the lab's beginning, where it is at all.
pub(crate) fn config(links: &[(Link, Option<(f64, f64)>)], seed: u64, congestion: Option<&str>) -> String {
    let mut out = "mgmt = true\n".to_owned();
    for site in ["a", "b"] {
        let _ = writeln!(out, "[[site]]\nname = \"{site}\"");
        if let Some(control) = congestion {
            let _ = writeln!(out, "cc = \"{control}\"");
        }
    }
    for (Link { rate, rtt, loss, mtu }, down) in links {
        let _ = writeln!(
            out,
            "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"{rate}\"\nrtt = \"{rtt}\"\nloss = \"{loss}\"\n\
             mtu = {mtu}\nseed = {seed}"
        );
        if let Some((at, length)) = down {
            let _ = writeln!(out, "down = [{{ at = \"{at}s\", for = \"{length}s\" }}]");
        }
    }
    out
}

/// A lab as this file says; what runs in it is still to be added.
pub(crate) fn command(isthmus: &Path, config: &Path, limit_s: f64, report: &Path) -> Command {
    let mut lab = Command::new(isthmus);
    lab.args(["lab", "run", "--quiet", "--config"]).arg(config);
    lab.arg("--timeout").arg(limit_s.to_string()).arg("--report").arg(report);
    lab
}

/// The last line that says something.
pub(crate) fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").to_owned()
}

/// Why a run that ended badly did, by what it said and what it complained of.
pub(crate) fn why(status: std::process::ExitStatus, said: &str, complained: &str, limit_s: f64) -> String {
    let why = if complained.trim().is_empty() { last_line(said) } else { last_line(complained) };
    format!("{status} within {limit_s} s: {why}")
}

/// A line for a shell that waits until a service listens at this port.
pub(crate) fn until_listens(port: u16) -> String {
    format!(
        "n=0; until grep -qs ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6; do n=$((n + 1)); \
         [ $n -lt {PATIENCE} ] || exit 3; sleep 0.1; done"
    )
}

/// A word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The running kernel.
pub(crate) fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
