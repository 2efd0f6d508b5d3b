//! Kernel settings of a lab beside its links: memory, TCP buffers and congestion control.

use std::fs;
use std::io;

use crate::LabError;
use crate::config::{LinkSpec, SiteConfig};
use crate::site::Namespaces;
use crate::state::state_directories;
use crate::store::Store;
use isthmus_units::Size;

pub(crate) fn sysctl(key: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/{key}"), value)
}

/// Ignores the error of a missing setting: a kernel without IPv6.
pub(crate) fn no_ipv6(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

pub(crate) fn tune_site(site: &SiteConfig, window_bytes: u64) -> io::Result<()> {
    // Twice, for the kernel's own accounting of a window. Never below the usual default.
    let most = (window_bytes * 2).clamp(6 << 20, i32::MAX as u64 - (1 << 20));
    let settings = [
        ("ipv4/tcp_rmem", format!("4096 131072 {most}")),
        ("ipv4/tcp_wmem", format!("4096 16384 {most}")),
        // A run must not inherit what an earlier connection learnt.
        ("ipv4/tcp_no_metrics_save", "1".to_owned()),
        ("ipv4/ip_forward", u8::from(site.forward).to_string()),
    ];
    for (key, value) in settings {
        if let Err(error) = sysctl(key, &value) {
            tracing::warn!("site {}: cannot set {key} = {value}: {error}; TCP may be slower", site.name);
        }
    }
    Ok(())
}

/// Sets a site's congestion control. A namespace may choose only what the host allows its
/// users; root widens that list for a moment.
pub(crate) fn set_congestion_control(site: &Namespaces, cc: &str) -> io::Result<()> {
    let set = || site.inside(|| sysctl("ipv4/tcp_congestion_control", cc));
    let chosen = set().or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => while_allowed(cc, set),
        _ => Err(error),
    });
    chosen.map_err(|e| unknown_cc(cc, &e))
}

fn while_allowed(cc: &str, set: impl Fn() -> io::Result<()>) -> io::Result<()> {
    const ALLOWED: &str = "ipv4/tcp_allowed_congestion_control";
    let _turn = one_at_a_time()?;
    let before = fs::read_to_string(format!("/proc/sys/net/{ALLOWED}"))?;
    sysctl(ALLOWED, &format!("{} {cc}", before.trim()))?;
    let chosen = set();
    sysctl(ALLOWED, before.trim())?;
    chosen
}

/// Lock that keeps labs that start together from restoring each other's values.
fn one_at_a_time() -> io::Result<fs::File> {
    let directories = state_directories();
    let lock = directories.iter().find_map(|d| fs::File::create(d.join("lock")).ok());
    let lock = lock.ok_or(io::ErrorKind::NotFound)?;
    lock.lock()?;
    Ok(lock)
}

fn unknown_cc(cc: &str, error: &io::Error) -> io::Error {
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "ask root to add it to net.ipv4.tcp_allowed_congestion_control of the host".to_owned()
        }
        _ => format!("this kernel offers {}", known.trim()),
    };
    io::Error::other(format!("cc = {cc:?}: {error}; {remedy}"))
}

/// Drops of an interface's sending side, from /proc/net/dev.
pub(crate) fn transmit_drops(interface: &str) -> io::Result<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|l| l.trim().strip_prefix(interface)?.strip_prefix(':'));
    let dropped = line.and_then(|l| l.split_whitespace().nth(11)?.parse().ok());
    dropped.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Memory that the system reports as available. Bytes.
pub(crate) fn available_memory_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

pub(crate) fn check_memory(links: &[LinkSpec]) -> Result<(), LabError> {
    let each = || links.iter().flat_map(|l| &l.directions).map(Store::memory_bytes);
    let (needed, largest) = (each().sum::<u64>(), each().max().unwrap_or(0));
    let available = available_memory_bytes().unwrap_or(u64::MAX);
    if needed > available / 10 * 8 || largest > u64::from(u32::MAX) {
        return Err(LabError::Missing(format!(
            "the links hold up to {} in flight and in queues, {} of memory are free; \
             use a lower rate, delay or queue",
            Size(needed),
            Size(available)
        )));
    }
    Ok(())
}
