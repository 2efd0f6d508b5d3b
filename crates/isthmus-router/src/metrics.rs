//! The counters of a router.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use isthmus_wire::SubnetId;
use isthmus_wire::frame::RefuseReason;
use parking_lot::Mutex;

/// Counters of one subnet.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes from the subnet, and to it.
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    /// Lanes from the subnet and to it: since the start, and now.
    pub(crate) lanes_in: AtomicU64,
    pub(crate) lanes_out: AtomicU64,
    pub(crate) lanes_in_now: AtomicU64,
    pub(crate) lanes_out_now: AtomicU64,
}

impl Counters {
    pub(crate) fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Relaxed);
    }
}

/// A lane that is being relayed. It counts on both its subnets until it is dropped.
pub(crate) struct Counted {
    pub(crate) from: Arc<Counters>,
    pub(crate) to: Arc<Counters>,
}

impl Counted {
    pub(crate) fn new(from: Arc<Counters>, to: Arc<Counters>) -> Self {
        for counter in [&from.lanes_in, &from.lanes_in_now, &to.lanes_out, &to.lanes_out_now] {
            counter.fetch_add(1, Relaxed);
        }
        Self { from, to }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.from.lanes_in_now.fetch_sub(1, Relaxed);
        self.to.lanes_out_now.fetch_sub(1, Relaxed);
    }
}

/// All counters of the router.
#[derive(Default)]
pub(crate) struct Metrics {
    subnets: Mutex<BTreeMap<SubnetId, Arc<Counters>>>,
    refusals: Mutex<BTreeMap<u8, u64>>,
    /// Lanes that were closed because no Hello came.
    pub(crate) strangers: AtomicU64,
}

impl Metrics {
    pub(crate) fn of(&self, subnet: SubnetId) -> Arc<Counters> {
        self.subnets.lock().entry(subnet).or_default().clone()
    }

    pub(crate) fn refused(&self, reason: RefuseReason) {
        *self.refusals.lock().entry(reason as u8).or_default() += 1;
    }

    pub(crate) fn subnets(&self) -> Vec<(SubnetId, Arc<Counters>)> {
        self.subnets.lock().iter().map(|(id, counters)| (*id, counters.clone())).collect()
    }

    /// The lanes refused for each reason. Counts.
    pub(crate) fn refusals(&self) -> Vec<(RefuseReason, u64)> {
        let refusals = self.refusals.lock();
        refusals.iter().filter_map(|(code, n)| Some((RefuseReason::from_code(*code)?, *n))).collect()
    }
}
