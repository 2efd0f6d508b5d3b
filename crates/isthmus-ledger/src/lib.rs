//! What the endpoints of one host tell each other of the paths that they use: which flows have
//! bulk under way, how fast and how much of it, and what is known of each path. So they share a
//! path as one would use it alone ("The Congestion Manager", RFC 3124; "TCP Control Block
//! Interdependence", RFC 9040).
//!
//! No I/O, no clock: a [`Ledger`] is a table of atomic words, which a shell maps into all processes
//! of a user on a host, and a simulation keeps in memory; the time goes in. Every process writes its
//! own slots only, and, while it leads a path, what it found out of that. No lock: what is read may be torn between
//! two moments, and each value is of use by itself.

#![forbid(unsafe_code)]

mod flow;
mod table;

pub use flow::{Flow, Group, Plan, Report};
pub use table::{Heap, Owner, Unfit, WORDS, Words};

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use table::Shared;

/// Time since any fixed start that all who share a ledger have in common. Microseconds.
pub type Micros = u64;

/// Silence after which a flow counts no more, whatever became of its process. Microseconds.
pub const SILENT_US: Micros = 1_000_000;
/// Silence of all its flows after which a path may give its place to another one. Microseconds (5 s).
const PATH_LIFE_US: Micros = 5_000_000;
/// How long what was learned of a path is of use. Microseconds (10 min).
pub const LEARNED_LIFE_US: Micros = 600_000_000;

/// Which way, and whereto.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathKey(u64);

impl PathKey {
    /// The way that leaves by `from`, where that is known, to the host `to`: one for all hosts of its network (the
    /// first 24 bits of an IPv4 address, 64 of an IPv6 one) if that is not one's own.
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
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// A host's network, and that it is one.
fn network(ip: IpAddr) -> (u128, bool) {
    let host_bits = if ip.is_ipv4() { 8 } else { 64 };
    (bits(ip) >> host_bits, true)
}

/// What kind of flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Paced by our own control, which shares one plan for the path with its kind.
    Paced,
    /// Under a control of the system's, such as a TCP connection.
    System,
}

/// Who uses a path now, and what it carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathUse {
    /// Endpoints with bulk under way.
    pub endpoints: u32,
    /// Their flows: streams, connections.
    pub flows: u32,
    /// What these deliver together. Bytes/s.
    pub rate: u64,
    /// What they have under way together. Bytes.
    pub in_flight: u64,
    /// What the path can carry, as far as is known of late; 0 if it is not. Bytes/s (wire).
    pub capacity: u64,
    /// The least round trip known; 0 if none is. Microseconds.
    pub rtt_us: Micros,
}

/// The ledger, as one endpoint holds it. Clones are the same endpoint.
#[derive(Clone, Debug)]
pub struct Ledger {
    shared: Arc<Shared>,
    endpoint: u64,
    /// What the ledger's clock is ahead of the holder's. Microseconds.
    ahead_us: Micros,
}

impl Ledger {
    /// The ledger in these words, as held by an endpoint of this process, of a number that no other
    /// endpoint of the host has. Words that are all zero become one. `lives` tells whether a process still does.
    ///
    /// # Errors
    /// [`Unfit`] where they are no ledger of this version.
    pub fn new(
        words: impl Words + 'static,
        owner: Owner,
        endpoint: u64,
        lives: impl Fn(Owner) -> bool + Send + Sync + 'static,
    ) -> Result<Self, Unfit> {
        let shared = Arc::new(Shared::new(Box::new(words), owner, Box::new(lives))?);
        Ok(Self { shared, endpoint, ahead_us: 0 })
    }

    /// The same for another endpoint of this process.
    pub fn for_endpoint(&self, endpoint: u64) -> Self {
        Self { endpoint, ..self.clone() }
    }

    /// The same for a holder whose clock is so far behind the ledger's. Microseconds.
    pub fn ahead_by(&self, us: Micros) -> Self {
        Self { ahead_us: us, ..self.clone() }
    }

    /// Who uses a path now: all flows, one's own too.
    pub fn path_use(&self, now: Micros, key: PathKey) -> PathUse {
        let now = now + self.ahead_us;
        let Some(path) = self.shared.find(key.0) else { return PathUse::default() };
        let mut sum = PathUse::default();
        let mut endpoints = Endpoints::default();
        for slot in self.shared.slots(path).filter(|slot| slot.is_busy(now)) {
            sum.flows = sum.flows.saturating_add(slot.count());
            sum.rate = sum.rate.saturating_add(slot.rate.load(Relaxed));
            sum.in_flight = sum.in_flight.saturating_add(slot.in_flight.load(Relaxed));
            sum.endpoints += u32::from(endpoints.is_new(slot.endpoint.load(Relaxed)));
        }
        let path = self.shared.path(path);
        if now < path.learned_at.load(Relaxed).saturating_add(LEARNED_LIFE_US) {
            sum.capacity = path.capacity.load(Relaxed);
            sum.rtt_us = path.rtt_us.load(Relaxed);
        }
        sum
    }

    /// A flow of this endpoint's by that path. It takes a place as soon as it has bulk.
    pub fn flow(&self, key: PathKey, kind: Kind) -> Flow {
        Flow::new(self.clone(), key, kind)
    }
}

/// Endpoints seen, as far as there is room for them.
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
    fn is_new(&mut self, endpoint: u64) -> bool {
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
