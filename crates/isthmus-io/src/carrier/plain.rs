//! Lanes to hosts that are not next door and that nothing encrypts. Nobody has to set anything for them, so that is
//! said, once of each host.

use std::collections::BTreeSet;
use std::net::IpAddr;

use parking_lot::Mutex;

use crate::log::warn_log;

/// From this round trip on a host counts as far. Microseconds.
const FAR_US: u64 = 1_000;
/// Hosts of which it is said.
const HOSTS_MAX: usize = 1_024;

static TOLD: Mutex<BTreeSet<IpAddr>> = Mutex::new(BTreeSet::new());

/// A lane to `host`, whose round trip is so long, is not encrypted.
pub(super) fn tell(host: IpAddr, rtt_us: u64) {
    if rtt_us < FAR_US || host.is_loopback() {
        return;
    }
    let mut told = TOLD.lock();
    if told.len() < HOSTS_MAX && told.insert(host) {
        warn_log!(
            "lanes to {host}, {rtt_us} us away, are not encrypted: if others can reach the network between, set tls \
             to required at both ends (isthmus router keygen makes what it takes)"
        );
    }
}
