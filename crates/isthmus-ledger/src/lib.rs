//! A table in which the endpoints of one host share what they know about network paths.
//!
//! For each path it lists the flows that send bulk data, their rates and bytes in flight, and what was measured. With
//! it, the flows of a host share a path as one flow would use it alone ("The Congestion Manager", RFC 3124; "TCP
//! Control Block Interdependence", RFC 9040).
//!
//! ```text
//!   Ledger ─┬─ path ─┬─ record: capacity, pace, window, loss, round trip (the leader writes it)
//!           │        ├─ slot of flow 1 (its process writes it)
//!           │        └─ slot of flow 2
//!           └─ path …
//! ```
//!
//! The crate does no I/O and has no clock; callers pass the time. A [`Ledger`] is a table of atomic words. A shell maps
//! it into all processes of a user on a host; a simulation keeps it in memory. Every process writes only its own slots,
//! and the record of a path while it leads the path. There is no lock. Values read together may come from two moments,
//! so each value must be useful alone.

#![forbid(unsafe_code)]

mod flow;
mod table;

pub use flow::{Flow, Group, Plan, Report};
pub use table::{Heap, Owner, Unfit, WORDS, Words};

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use table::Shared;

/// Time since a fixed start that is the same for all users of a ledger. Microseconds.
pub type Micros = u64;

/// A flow that was silent for this time no longer counts: its process may have died. Microseconds.
pub const SILENT_US: Micros = 1_000_000;
/// If all flows of a path were silent for this time, another path may take its record. Microseconds (5 s).
const PATH_LIFE_US: Micros = 5_000_000;
/// Measurements of a path are used for this time. Microseconds (10 min).
pub const LEARNED_LIFE_US: Micros = 600_000_000;

/// Identifies a path by its local address and its destination network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathKey(u64);

impl PathKey {
    /// The key of the path from the local address `from`, if known, to the host `to`. All hosts of a remote network
    /// share one path: the first 24 bits of an IPv4 address, or 64 of an IPv6 address. Hosts of the local network each
    /// have their own.
    pub fn new(from: Option<IpAddr>, to: IpAddr) -> Self {
        let away = from.is_some_and(|from| network(from) != network(to));
        let place = if away { network(to) } else { (bits(to), false) };
        let from = from.map_or((0, false), |from| (bits(from), true));
        let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
        let bytes = from.0.to_le_bytes().into_iter().chain(place.0.to_le_bytes());
        for byte in bytes.chain([u8::from(from.1), u8::from(place.1)]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Self(hash.max(1))
    }

    /// The same path for background flows. They share a plan among themselves, but none with the flows to which they
    /// give way.
    #[must_use]
    pub fn in_background(self) -> Self {
        Self((!self.0).max(1))
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// The network of a host, with a mark that it is a network and not a host.
fn network(ip: IpAddr) -> (u128, bool) {
    let host_bits = if ip.is_ipv4() { 8 } else { 64 };
    (bits(ip) >> host_bits, true)
}

/// Kinds of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Our own congestion control paces it. All flows of this kind share one plan for the path.
    Paced,
    /// The kernel controls its rate, as for a TCP connection.
    System,
}

/// The present use of a path, and its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathUse {
    /// Endpoints that send bulk data.
    pub endpoints: u32,
    /// Their flows: streams and connections.
    pub flows: u32,
    /// Rate that these flows deliver together. Bytes/s.
    pub rate: u64,
    /// Bytes that these flows have in flight together.
    pub in_flight: u64,
    /// Capacity of the path as measured lately; 0 if unknown. Bytes/s (wire).
    pub capacity: u64,
    /// Shortest round trip measured; 0 if unknown. Microseconds.
    pub rtt_us: Micros,
}

/// One endpoint's handle on the ledger. Clones stand for the same endpoint.
#[derive(Clone, Debug)]
pub struct Ledger {
    shared: Arc<Shared>,
    endpoint: u64,
    /// Lead of the ledger's clock over the holder's. Microseconds.
    ahead_us: Micros,
}

impl Ledger {
    /// Opens the ledger in these words for an endpoint of this process. The endpoint's number must be unique on the
    /// host. If all words are zero, a new ledger is made of them. `lives` tells whether a process is still alive.
    ///
    /// # Errors
    /// [`Unfit`] if the words are no ledger of this version.
    pub fn new(
        words: impl Words + 'static,
        owner: Owner,
        endpoint: u64,
        lives: impl Fn(Owner) -> bool + Send + Sync + 'static,
    ) -> Result<Self, Unfit> {
        let shared = Arc::new(Shared::new(Box::new(words), owner, Box::new(lives))?);
        Ok(Self { shared, endpoint, ahead_us: 0 })
    }

    /// A handle for another endpoint of this process.
    pub fn for_endpoint(&self, endpoint: u64) -> Self {
        Self { endpoint, ..self.clone() }
    }

    /// A handle for a holder whose clock is `us` microseconds behind the ledger's.
    pub fn ahead_by(&self, us: Micros) -> Self {
        Self { ahead_us: us, ..self.clone() }
    }

    /// The present use of a path by all flows, including the caller's.
    pub fn path_use(&self, now: Micros, key: PathKey) -> PathUse {
        let now = now + self.ahead_us;
        let Some(path) = self.shared.find(key.0) else { return PathUse::default() };
        let mut sum = PathUse::default();
        let mut endpoints = Endpoints::default();
        for slot in self.shared.slots(path).filter(|slot| slot.is_busy(now)) {
            sum.flows = sum.flows.saturating_add(slot.count());
            sum.rate = sum.rate.saturating_add(slot.rate.load(Relaxed));
            sum.in_flight = sum.in_flight.saturating_add(slot.in_flight.load(Relaxed));
            sum.endpoints += u32::from(endpoints.add_if_new(slot.endpoint.load(Relaxed)));
        }
        let path = self.shared.path(path);
        if now < path.learned_at.load(Relaxed).saturating_add(LEARNED_LIFE_US) {
            sum.capacity = path.capacity.load(Relaxed);
            sum.rtt_us = path.rtt_us.load(Relaxed);
        }
        sum
    }

    /// Makes a flow of this endpoint on that path. It takes a slot once it has bulk data to send.
    pub fn flow(&self, key: PathKey, kind: Kind) -> Flow {
        Flow::new(self.clone(), key, kind)
    }
}

/// The set of endpoints seen, up to a fixed number.
struct Endpoints {
    seen: [u64; 64],
    count: usize,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { seen: [0; 64], count: 0 }
    }
}

impl Endpoints {
    fn add_if_new(&mut self, endpoint: u64) -> bool {
        if self.seen[..self.count].contains(&endpoint) {
            return false;
        }
        if let Some(place) = self.seen.get_mut(self.count) {
            *place = endpoint;
            self.count += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests;
