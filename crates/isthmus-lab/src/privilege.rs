//! Privileges: whether this process may make a lab, and how it gets them.

use std::fs;
use std::io;

use crate::sys;
use crate::{Doing, LabError};

/// Whether this process may make namespaces. If not, it needs a user namespace.
pub fn is_privileged() -> bool {
    const NEEDED: u64 = 1 << 12 | 1 << 21; // CAP_NET_ADMIN, CAP_SYS_ADMIN
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = field.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    capabilities.is_some_and(|have| have & NEEDED == NEEDED)
}

/// Moves this process into its own user namespace if it needs one to make a lab. The process must
/// have one thread. Call it first in `main`.
///
/// # Errors
/// If the system does not allow unprivileged user namespaces.
pub fn become_able() -> Result<(), LabError> {
    if is_privileged() {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let enter = || -> io::Result<()> {
        sys::unshare(sys::CLONE_NEWUSER)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
    };
    enter().doing(|| "make a user namespace, which a lab without root needs".to_owned())
}
