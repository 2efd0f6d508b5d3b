//! What a port knows about the paths to its hosts, for streams to come and in common to those that are there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use crate::Micros;
use crate::path::{Common, Learned};
use crate::wire::Token;

/// Most hosts whose path properties are remembered. Count.
const LEARNED_MAX: usize = 1_024;
/// Time for which they are of use. Microseconds (10 min).
const LEARNED_LIFE_US: Micros = 600_000_000;

/// The hosts of a port's streams, present and past.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    learned: HashMap<IpAddr, Learned>,
    /// Loss statistics that streams to one host share.
    common: HashMap<IpAddr, Weak<Common>>,
}

impl Hosts {
    /// Knowledge of the path to a host, if a stream used it in the last 10 min.
    pub(super) fn learned(&self, now: Micros, host: IpAddr) -> Option<Learned> {
        let fresh = |learned: &&Learned| now.saturating_sub(learned.at) < LEARNED_LIFE_US;
        self.learned.get(&host).filter(fresh).copied()
    }

    /// Others have measured the path to a host: its capacity in bytes/s and its round trip. Streams begin with that,
    /// unless one has measured the capacity lately.
    pub(super) fn suppose(&mut self, now: Micros, host: IpAddr, capacity: u64, rtt_us: Micros) {
        let before = self.learned(now, host);
        if before.is_none_or(|learned| learned.capacity == 0) {
            let token = Token::default();
            let nothing = Learned { at: now, capacity, rtt_us, loss: None, mtu: 0, token, peer_window: 0 };
            self.remember(host, Learned { capacity, ..before.unwrap_or(nothing) });
        }
    }

    /// Remembers a host's path. At the limit of hosts, the oldest is forgotten.
    pub(super) fn remember(&mut self, host: IpAddr, mut learned: Learned) {
        if let Some(before) = self.learned.get(&host) {
            if learned.capacity == 0 {
                learned.capacity = before.capacity;
            }
            learned.loss = learned.loss.or(before.loss);
            if learned.token.iter().all(|byte| *byte == 0) {
                (learned.token, learned.peer_window) = (before.token, before.peer_window);
            }
        } else if self.learned.len() >= LEARNED_MAX {
            let oldest = self.learned.iter().min_by_key(|(_, learned)| learned.at).map(|(host, _)| *host);
            oldest.map(|host| self.learned.remove(&host));
        }
        self.learned.insert(host, learned);
    }

    /// The loss statistics of all streams to this host.
    pub(super) fn common(&mut self, host: IpAddr) -> Arc<Common> {
        let common = self.common.get(&host).and_then(Weak::upgrade).unwrap_or_default();
        self.common.insert(host, Arc::downgrade(&common));
        common
    }

    /// A stream to this host is gone. The last one takes the statistics with it.
    pub(super) fn drop_unused(&mut self, host: IpAddr) {
        if self.common.get(&host).is_some_and(|common| common.strong_count() == 0) {
            self.common.remove(&host);
        }
    }
}
