//! Commands and configurations of the labs, one lab for each run.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use isthmus_units::{Percent, Span};

use crate::link::EmulatedLink;

/// Time limit of a run: a constant part in seconds, and a multiple of its floor.
const LIMIT_S: f64 = 20.0;
const LIMIT_FACTOR: f64 = 8.0;
/// The same for links of a catalogue, of which there are many, and some of which hardly let TCP through.
const CATALOGUE_LIMIT_S: f64 = 5.0;
const CATALOGUE_LIMIT_FACTOR: f64 = 3.0;
/// Longest wait until a service listens. Tenths of a second.
const PATIENCE: u32 = 300;
/// iperf3's default port.
pub(crate) const IPERF_PORT: u16 = 5201;

/// Time limit of a run with this floor. Seconds.
pub(crate) fn limit_s(floor_s: f64) -> f64 {
    (LIMIT_S + LIMIT_FACTOR * floor_s).ceil()
}

/// As [`limit_s`], for a link of a catalogue.
pub(crate) fn catalogue_limit_s(floor_s: f64) -> f64 {
    (CATALOGUE_LIMIT_S + CATALOGUE_LIMIT_FACTOR * floor_s).ceil()
}

/// Configuration of a lab with sites a and b and these links between them. A link may have an outage: its start,
/// in seconds from the lab's beginning, and its length in seconds.
pub(crate) fn config(
    links: &[(EmulatedLink, Option<(f64, f64)>)],
    seed: u64,
    congestion: Option<&str>,
) -> String {
    let mut out = sites(congestion);
    for (EmulatedLink { rate, rtt, loss, mtu, .. }, down) in links {
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

/// The site in the middle of a [`star`].
pub(crate) const MIDDLE: &str = "middle";
/// The networks of all links of a lab.
pub(crate) const WIDE_NETWORKS: &str = "10.200.0.0/16";

/// Configuration of a lab with these sites, each with a link to a site in the middle that forwards packets. Between any
/// two sites lie the round trip and the loss of `link`.
pub(crate) fn star(names: &[&str], link: &EmulatedLink) -> String {
    let mut out = format!("mgmt = true\n[[site]]\nname = \"{MIDDLE}\"\nforward = true\n");
    for name in names {
        let _ = writeln!(out, "[[site]]\nname = \"{name}\"");
    }
    let (rtt, loss) = (Span(link.rtt.0 / 2), Percent(link.loss.0 / 2.0));
    for name in names {
        let _ = writeln!(
            out,
            "[[link]]\nbetween = [\"{name}\", \"{MIDDLE}\"]\nrate = \"{}\"\nrtt = \"{rtt}\"\nloss = \"{loss}\"\n\
             mtu = {}\nseed = 1",
            link.rate, link.mtu
        );
    }
    out
}

/// The beginning of a lab's configuration: sites a and b.
pub(crate) fn sites(congestion: Option<&str>) -> String {
    let mut out = "mgmt = true\n".to_owned();
    for site in ["a", "b"] {
        let _ = writeln!(out, "[[site]]\nname = \"{site}\"");
        if let Some(control) = congestion {
            let _ = writeln!(out, "cc = \"{control}\"");
        }
    }
    out
}

/// Starts a lab with this configuration file. The caller adds the command that runs in it.
pub(crate) fn command(isthmus: &Path, config: &Path, limit_s: f64, report: &Path) -> Command {
    let mut lab = Command::new(isthmus);
    lab.args(["lab", "run", "--quiet", "--config"]).arg(config);
    lab.arg("--timeout").arg(limit_s.to_string()).arg("--report").arg(report);
    lab
}

/// The last line that is not blank.
pub(crate) fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").to_owned()
}

/// Why a run failed, from its standard output and standard error.
pub(crate) fn why(status: std::process::ExitStatus, said: &str, complained: &str, limit_s: f64) -> String {
    let why = if complained.trim().is_empty() { last_line(said) } else { last_line(complained) };
    format!("{status} within {limit_s} s: {why}")
}

/// A shell command that waits until a service listens at this port.
pub(crate) fn until_listens(port: u16) -> String {
    format!(
        "n=0; until grep -qs ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6; do n=$((n + 1)); \
         [ $n -lt {PATIENCE} ] || exit 3; sleep 0.1; done"
    )
}

/// A word, quoted for the shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Release of the running kernel.
pub(crate) fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
