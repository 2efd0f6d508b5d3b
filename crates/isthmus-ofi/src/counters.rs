//! The counters of an enabled endpoint. The thread that delivers completions reads them without a lock; more counters
//! may be bound at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::counter::Counter;

/// Counters and the events that each counts, in the order of their binding.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    first: OnceLock<Box<Bound>>,
    /// All events that any of them counts.
    counted: AtomicU64,
}

#[derive(Debug)]
struct Bound {
    counter: Arc<Counter>,
    events: u64,
    next: OnceLock<Box<Self>>,
}

impl Counters {
    /// Makes a counter count `events` from now on.
    pub(crate) fn join(&self, counter: Arc<Counter>, events: u64) {
        let mut bound = Box::new(Bound { counter, events, next: OnceLock::new() });
        let mut end = &self.first;
        // If another thread sets this cell first, go on to the next one.
        while let Err(refused) = end.set(bound) {
            bound = refused;
            end = end.get().map_or(end, |taken| &taken.next);
        }
        self.counted.fetch_or(events, Ordering::Release);
    }

    /// Whether any of them counts one of `events`.
    #[inline]
    pub(crate) fn count_any(&self, events: u64) -> bool {
        self.counted.load(Ordering::Acquire) & events != 0
    }

    /// Counts one event, or its bytes.
    pub(crate) fn count(&self, event: u64, failed: bool, len: u64) {
        for bound in self.bound().filter(|bound| bound.events & event != 0) {
            bound.counter.count(failed, len);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Counter>> {
        self.bound().map(|bound| &bound.counter)
    }

    fn bound(&self) -> impl Iterator<Item = &Bound> {
        std::iter::successors(self.first.get(), |bound| bound.next.get()).map(|bound| &**bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_join_at_once_all_count_their_events() {
        let counters = Counters::default();
        let all: Vec<_> = (0..8).map(|_| Arc::<Counter>::default()).collect();
        std::thread::scope(|scope| {
            for (number, counter) in all.iter().enumerate() {
                let counters = &counters;
                scope.spawn(move || counters.join(counter.clone(), 1 << (number % 2)));
            }
        });
        assert!(counters.count_any(2) && !counters.count_any(4));
        counters.count(2, false, 1);
        assert_eq!(counters.all().count(), 8);
        let values: Vec<_> = all.iter().map(|counter| counter.value()).collect();
        assert_eq!(values, [0, 1, 0, 1, 0, 1, 0, 1]);
    }
}
