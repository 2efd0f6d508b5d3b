//! Warns of unencrypted lanes to far hosts. Some default settings allow such lanes, so users must learn of them. A
//! process warns of the first such host, and logs the others at level info: the remedy is the same for all.

use std::collections::BTreeSet;
use std::net::IpAddr;

use isthmus_path::thresholds::distance::FAR_US;
use isthmus_path::thresholds::transport::HOSTS_MAX;
use parking_lot::Mutex;

use crate::log::{info_log, warn_log};

/// Hosts that were logged.
static TOLD: Mutex<BTreeSet<IpAddr>> = Mutex::new(BTreeSet::new());
/// Hosts that once had a short round trip. If it is longer later, packets wait in a queue.
static NEAR: Mutex<BTreeSet<IpAddr>> = Mutex::new(BTreeSet::new());

/// Logs that a lane to `host` is not encrypted, if the host is far and was not logged before.
pub(super) fn warn(host: IpAddr, rtt_us: u64) {
    let mut near = NEAR.lock();
    if rtt_us < FAR_US && near.len() < HOSTS_MAX {
        near.insert(host);
    }
    if rtt_us < FAR_US || host.is_loopback() || near.contains(&host) {
        return;
    }
    let mut told = TOLD.lock();
    let is_first = told.is_empty();
    if told.len() >= HOSTS_MAX || !told.insert(host) {
        return;
    }
    if is_first {
        warn_log!(
            "lanes to {host}, {rtt_us} us away, are not encrypted, nor are those to other hosts: if others can reach \
             the network between, set encrypt to far, or where admission is open, tls to required at both ends (isthmus \
             router keygen makes what it takes)"
        );
    } else {
        info_log!("lanes to {host}, {rtt_us} us away, are not encrypted either");
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Arguments;

    use super::*;
    use crate::log::{Severity, set_hook};

    static LINES: Mutex<Vec<(Severity, String)>> = Mutex::new(Vec::new());

    fn keep(severity: Severity, line: Arguments<'_>) {
        LINES.lock().push((severity, line.to_string()));
    }

    #[test]
    fn a_plain_lane_to_a_far_host_is_said_once_and_only_the_first_is_a_warning() {
        set_hook(keep);
        let [near, local] = [[10, 250, 1, 1], [127, 0, 0, 1]].map(IpAddr::from);
        [999, 1_300].into_iter().for_each(|rtt_us| warn(near, rtt_us));
        warn(local, 24_000);
        let far: Vec<_> = (0..64).map(|host| IpAddr::from([10, 250, 0, host])).collect();
        (0..3).flat_map(|_| &far).for_each(|host| warn(*host, 24_000));
        let lines = LINES.lock();
        let of = |host: &IpAddr| lines.iter().filter(|line| line.1.contains(&format!("to {host},"))).count();
        assert!(far.iter().all(|host| of(host) == 1), "{lines:?}");
        assert_eq!((of(&near), of(&local)), (0, 0), "{lines:?}");
        let plain = lines
            .iter()
            .filter(|(severity, line)| *severity == Severity::Warn && line.contains("not encrypted"));
        let [(_, warning)] = plain.collect::<Vec<_>>()[..] else { panic!("{lines:?}") };
        assert!(
            warning.contains(&format!("to {},", far[0])) && warning.contains("set encrypt to far"),
            "{warning}"
        );
    }
}
