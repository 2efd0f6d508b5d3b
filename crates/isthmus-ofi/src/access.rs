//! Counters of the accesses to single memory regions (`fi_mr_bind`, `FI_RMA_EVENT`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::counter::Counter;
use crate::error::Error;
use crate::live::Live;

/// A domain's counters of accesses, and the endpoints through which peers access its memory.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    /// Whether there ever was a counter. If not, nobody needs to look.
    any: AtomicBool,
    /// Held while counters and endpoints are connected or disconnected. That waits for the thread that drives an
    /// endpoint, which may look up what is bound; so it is not the lock of `regions`.
    changing: Mutex<()>,
    bound: Mutex<Bound>,
}

#[derive(Debug, Default)]
struct Bound {
    /// For each region's key: counters, and the events that they count.
    regions: HashMap<u64, Vec<(Arc<Counter>, u64)>>,
    /// All counters that were ever bound. Endpoints feed them until they are closed.
    fed: Vec<Weak<Counter>>,
    endpoints: Vec<Arc<Live>>,
}

impl Observers {
    /// Makes the counter count these accesses to the region from now on.
    pub(crate) fn bind(&self, key: u64, counter: Arc<Counter>, events: u64) -> Result<(), Error> {
        let _changing = self.changing.lock();
        let endpoints = self.bound.lock().endpoints.clone();
        for live in &endpoints {
            counter.add_source(live)?;
        }
        let mut bound = self.bound.lock();
        bound.fed.retain(|fed| fed.strong_count() > 0);
        bound.fed.push(Arc::downgrade(&counter));
        bound.regions.entry(key).or_default().push((counter, events));
        self.any.store(true, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn forget_region(&self, key: u64) {
        self.bound.lock().regions.remove(&key);
    }

    /// Peers may access the domain's memory through this endpoint, too.
    pub(crate) fn add_endpoint(&self, live: &Arc<Live>) -> Result<(), Error> {
        let _changing = self.changing.lock();
        for counter in self.fed().iter().filter_map(Weak::upgrade) {
            counter.add_source(live)?;
        }
        self.bound.lock().endpoints.push(live.clone());
        Ok(())
    }

    pub(crate) fn forget_endpoint(&self, live: &Arc<Live>) {
        let _changing = self.changing.lock();
        for counter in self.fed().iter().filter_map(Weak::upgrade) {
            counter.remove_source(live);
        }
        self.bound.lock().endpoints.retain(|known| !Arc::ptr_eq(known, live));
    }

    /// The counters that endpoints feed.
    fn fed(&self) -> Vec<Weak<Counter>> {
        self.bound.lock().fed.clone()
    }

    /// Whether there ever was a counter.
    pub(crate) fn are_bound(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Counts an access (`FI_REMOTE_READ` or `FI_REMOTE_WRITE`) of `len` bytes.
    pub(crate) fn count(&self, key: u64, event: u64, len: u64) {
        if !self.are_bound() {
            return;
        }
        // Counting may start an operation that waits for the counter, and that must not find the lock held.
        let counters: Vec<_> = {
            let bound = self.bound.lock();
            let counters = bound.regions.get(&key).into_iter().flatten();
            counters.filter(|(_, events)| events & event != 0).map(|(counter, _)| counter.clone()).collect()
        };
        counters.iter().for_each(|counter| counter.count(false, len));
    }
}
