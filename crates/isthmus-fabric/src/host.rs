//! Finds out which processes may share memory: those of one boot and of the same namespaces.

use std::fs;
use std::os::linux::fs::MetadataExt;

use isthmus_wire::fnv1a;

/// Namespaces that must be the same: process numbers, permissions, and the network, which
/// differs between emulated hosts.
const NAMESPACES: [&str; 3] = ["pid", "user", "net"];

/// A hash that processes have in common if they may find each other's shared memory. Only a
/// trial shows whether they can use it.
pub(crate) fn identity() -> u64 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = |name: &str| {
        let link = fs::read_link(format!("/proc/self/ns/{name}"));
        link.map(|link| link.display().to_string()).unwrap_or_default()
    };
    let memory = fs::metadata("/dev/shm").map(|found| found.st_dev()).unwrap_or_default();
    let parts = NAMESPACES.iter().map(|name| space(name)).chain([boot, memory.to_string()]);
    fnv1a(parts.collect::<Vec<_>>().join("\n").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_the_same_each_time() {
        assert_eq!(identity(), identity());
    }
}
