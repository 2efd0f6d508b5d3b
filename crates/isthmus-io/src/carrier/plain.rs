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

#[cfg(test)]
mod tests {
    use std::fmt::Arguments;

    use super::*;
    use crate::log::{Severity, set_hook};

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn keep(severity: Severity, line: Arguments<'_>) {
        if severity == Severity::Warn {
            LINES.lock().push(line.to_string());
        }
    }

    #[test]
    fn a_plain_lane_to_a_far_host_is_said_once_with_the_setting_that_encrypts() {
        set_hook(keep);
        let [far, near] = [[10, 250, 0, 1], [10, 250, 0, 2]].map(IpAddr::from);
        tell(near, 999);
        tell([127, 0, 0, 1].into(), 24_000);
        (0..3).for_each(|_| tell(far, 24_000));
        let lines = LINES.lock();
        let of = |host: IpAddr| lines.iter().filter(|line| line.contains(&format!("to {host},"))).count();
        assert_eq!((of(far), of(near), of([127, 0, 0, 1].into())), (1, 0, 0), "{lines:?}");
        assert!(
            lines.iter().any(|line| line.contains("not encrypted") && line.contains("set tls to required"))
        );
    }
}
