//! Who shares memory: processes of one boot and of the same namespaces.

use std::fs;
use std::os::linux::fs::MetadataExt;

/// Namespaces that must be the same: numbers of processes, permissions, and the network, since
/// hosts that a laboratory emulates differ in that.
const NAMESPACES: [&str; 3] = ["pid", "user", "net"];

/// A number that processes have in common if they may find each other's shared memory.
/// Whether they can use it shows by trying.
pub(crate) fn identity() -> u64 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = |name: &str| {
        let link = fs::read_link(format!("/proc/self/ns/{name}"));
        link.map(|link| link.display().to_string()).unwrap_or_default()
    };
    let memory = fs::metadata("/dev/shm").map(|found| found.st_dev()).unwrap_or_default();
    let parts = NAMESPACES.iter().map(|name| space(name)).chain([boot, memory.to_string()]);
    hash(&parts.collect::<Vec<_>>().join("\n"))
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo): the same in every build.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!((hash(""), hash("a")), (0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c));
        assert_eq!(identity(), identity());
    }
}
