//! A lock whose holder also does the work that other threads post meanwhile.

#[cfg(not(loom))]
use std::time::Duration;

use crate::sync::{AtomicBool, Mutex, Ordering, fence_after_exchange};

/// Data that one thread at a time works with, and a flag that says that work was posted.
///
/// There is no lock guard. Each call takes a closure `serve` that does posted work. If another thread has posted work
/// meanwhile, the call runs `serve` before it returns. So no caller can release the data without a look at the flag.
#[derive(Debug)]
pub struct WorkLock<T> {
    /// Work was posted that the holder of the data may not have seen.
    left: AtomicBool,
    data: Mutex<T>,
}

impl<T: Default> Default for WorkLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> WorkLock<T> {
    /// Makes it with the data free and no work posted.
    pub fn new(data: T) -> Self {
        Self { left: AtomicBool::new(false), data: Mutex::new(data) }
    }

    /// Gets posted work done. The caller has just stored the work under a lock that `serve` takes too. This thread does
    /// it, or the thread that holds the data now does it.
    #[inline]
    pub fn post(&self, serve: impl FnMut(&mut T)) {
        self.left.swap(true, Ordering::SeqCst);
        self.serve_left(serve);
    }

    /// Waits until the data is free, and runs `work` on it.
    #[inline]
    pub fn with<R>(&self, serve: impl FnMut(&mut T), work: impl FnOnce(&mut T) -> R) -> R {
        let mut data = self.data.lock();
        let result = work(&mut data);
        drop(data);
        self.serve_left(serve);
        result
    }

    /// Like [`WorkLock::with`], but does not wait: `None` if another thread holds the data.
    #[inline]
    pub fn try_with<R>(&self, serve: impl FnMut(&mut T), work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut data = self.data.try_lock()?;
        let result = work(&mut data);
        drop(data);
        self.serve_left(serve);
        Some(result)
    }

    /// Like [`WorkLock::with`], but waits for at most `limit`: `None` if other threads hold the data all that time.
    #[cfg(not(loom))]
    pub fn with_within<R>(
        &self,
        limit: Duration,
        serve: impl FnMut(&mut T),
        work: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let mut data = self.data.try_lock_for(limit)?;
        let result = work(&mut data);
        drop(data);
        self.serve_left(serve);
        Some(result)
    }

    /// Waits for at most `limit` until nobody holds the data.
    #[cfg(not(loom))]
    pub fn wait(&self, serve: impl FnMut(&mut T), limit: Duration) {
        self.with_within(limit, serve, |_| ());
    }

    /// Does posted work, after an exchange on `left` or on the lock. A thread that cannot take the data leaves the flag
    /// set. The holder comes here after it has released the data. The two fences, here and in the holder's call, make
    /// sure that one of the two threads sees what the other did.
    #[inline]
    fn serve_left(&self, mut serve: impl FnMut(&mut T)) {
        loop {
            fence_after_exchange();
            if !self.left.load(Ordering::Relaxed) {
                return;
            }
            let Some(mut data) = self.data.try_lock() else { return };
            // Clear the flag before the work: work posted from here on sets it again.
            self.left.store(false, Ordering::Relaxed);
            serve(&mut data);
            drop(data);
        }
    }
}
