//! Checks what this machine allows a lab to do.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::privilege::{become_able, is_privileged};
use crate::site::Namespaces;
use crate::{netlink, sys};

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// A lab works, but less well.
    Lesser,
    /// No lab works without it.
    Missing,
}

/// One checked item.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the item.
    pub name: &'static str,
    /// Whether it is as a lab needs it.
    pub verdict: Verdict,
    /// Its state, and the remedy if something is missing.
    pub text: String,
}

fn finding(name: &'static str, verdict: Verdict, text: impl Into<String>) -> Finding {
    Finding { name, verdict, text: text.into() }
}

/// Checks everything that a lab needs. The process must have one thread. Without root it ends
/// up in a user namespace.
pub fn check() -> Vec<Finding> {
    let (privileges, allowed) = privileges();
    let mut findings = vec![privileges];
    if allowed {
        match Namespaces::create("check", Path::new("/etc/hosts")) {
            Ok(site) => findings.extend(inside(&site)),
            Err(error) => findings.push(finding("namespaces", Verdict::Missing, error.to_string())),
        }
    }
    findings.extend([realtime(), congestion_controls(), memory()]);
    findings
}

fn privileges() -> (Finding, bool) {
    const REMEDY: &str = "run as root, or allow user namespaces: sysctl user.max_user_namespaces=15000, \
        and on Debian and Ubuntu kernel.unprivileged_userns_clone=1 or \
        kernel.apparmor_restrict_unprivileged_userns=0";
    if is_privileged() {
        return (finding("privileges", Verdict::Good, "root"), true);
    }
    match become_able() {
        Ok(()) => (finding("privileges", Verdict::Good, "not root, but user namespaces are allowed"), true),
        Err(error) => (finding("privileges", Verdict::Missing, format!("{error}; {REMEDY}")), false),
    }
}

fn inside(site: &Namespaces) -> Vec<Finding> {
    let tap = site.inside(|| sys::open_tap("check0"));
    let veth = site.inside(|| {
        let own = fs::File::open("/proc/thread-self/ns/net")?;
        netlink::add_veth("check1", "check2", std::os::fd::AsFd::as_fd(&own))?;
        sys::open_packet_socket("check2")
    });
    let sysctl = site.inside(|| fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1"));
    let devices = match (tap, &veth) {
        (Ok(_), _) => finding("devices", Verdict::Good, "TAP devices with vnet headers"),
        (Err(tap), Ok(_)) => finding(
            "devices",
            Verdict::Lesser,
            format!(
                "no TAP device ({tap}), packet sockets serve instead; for TAP: modprobe tun; chmod 666 /dev/net/tun"
            ),
        ),
        (Err(tap), Err(veth)) => finding(
            "devices",
            Verdict::Missing,
            format!("neither TAP ({tap}) nor veth ({veth}); modprobe tun; chmod 666 /dev/net/tun"),
        ),
    };
    let mgmt = match veth {
        Ok(_) => finding("mgmt", Verdict::Good, "veth pairs"),
        Err(error) => finding(
            "mgmt",
            Verdict::Lesser,
            format!("no veth ({error}): labs without mgmt only; modprobe veth"),
        ),
    };
    let tuning = match sysctl {
        Ok(()) => finding("tuning", Verdict::Good, "TCP settings of a site can be set"),
        Err(error) => finding(
            "tuning",
            Verdict::Lesser,
            format!("TCP windows cannot follow the link ({error}); mount /proc/sys writable"),
        ),
    };
    vec![devices, mgmt, tuning]
}

fn realtime() -> Finding {
    // Without a thread it cannot be tried.
    let tried = std::thread::Builder::new().spawn(sys::become_realtime).map(std::thread::JoinHandle::join);
    match tried {
        Ok(Ok(Ok(()))) => finding("timing", Verdict::Good, "real-time scheduling"),
        _ => finding(
            "timing",
            Verdict::Lesser,
            "no real-time scheduling: on a busy machine more runs are spoiled; run as root or raise `ulimit -r` to 1",
        ),
    }
}

fn congestion_controls() -> Finding {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    let available = read("tcp_available_congestion_control");
    let text = format!("{} (default {})", available.trim(), read("tcp_congestion_control").trim());
    match available.split_whitespace().any(|cc| cc == "bbr") {
        true => finding("congestion control", Verdict::Good, text),
        false => finding("congestion control", Verdict::Lesser, format!("{text}; for bbr: modprobe tcp_bbr")),
    }
}

fn memory() -> Finding {
    match crate::tuning::available_memory_bytes() {
        Some(bytes) => finding("memory", Verdict::Good, format!("{} free", isthmus_units::Size(bytes))),
        None => finding("memory", Verdict::Lesser, "/proc/meminfo cannot be read"),
    }
}
