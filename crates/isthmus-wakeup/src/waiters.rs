//! A count of those that wait until a value changes.

use crate::sync::{AtomicUsize, Ordering, fence_after_exchange};

/// Counts threads and operations that wait until a value changes.
///
/// A thread that waits [enters](Waiters::enter) and then reads the value. A thread that changes the value does so by an
/// atomic exchange or addition, and then asks whether [anybody waits](Waiters::any). So one of the two sees what the
/// other did.
#[derive(Debug)]
pub struct Waiters(AtomicUsize);

impl Default for Waiters {
    fn default() -> Self {
        Self::new()
    }
}

impl Waiters {
    /// Nobody waits.
    pub fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// `count` more wait. They read the value after this call.
    #[inline]
    pub fn enter(&self, count: usize) {
        self.0.fetch_add(count, Ordering::SeqCst);
        fence_after_exchange();
    }

    /// At least one waits from now on.
    #[inline]
    pub fn enter_for_good(&self) {
        self.0.fetch_max(1, Ordering::SeqCst);
        fence_after_exchange();
    }

    /// `count` fewer wait.
    #[inline]
    pub fn leave(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::SeqCst);
    }

    /// Whether anybody waits. Call it right after the atomic exchange or addition that changed the value.
    #[inline]
    pub fn any(&self) -> bool {
        fence_after_exchange();
        self.0.load(Ordering::Relaxed) > 0
    }
}
