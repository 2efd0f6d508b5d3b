//! One thread at a time has the data; work that others leave meanwhile is not forgotten.

#[cfg(not(loom))]
use std::time::Duration;

use crate::sync::{AtomicBool, Mutex, Ordering, fence_after_exchange};

/// Data that one thread at a time works with, and a note that there is more to do.
///
/// There is no guard: each call takes a closure `serve` that does the work that was left, and runs
/// it before it returns if another thread has posted in the meantime. So no caller can give the
/// data up without looking at the note.
#[derive(Debug)]
pub struct Turn<T> {
    /// Work was posted that the present holder may not have seen.
    left: AtomicBool,
    data: Mutex<T>,
}

impl<T> Turn<T> {
    /// Data that nobody holds, with nothing to do.
    pub fn new(data: T) -> Self {
        Self { left: AtomicBool::new(false), data: Mutex::new(data) }
    }

    /// Has work done that the caller has just made visible under a lock that `serve` takes too.
    /// This thread does it, or else the one that holds the data now.
    #[inline]
    pub fn post(&self, serve: impl FnMut(&mut T)) {
        self.left.swap(true, Ordering::SeqCst);
        self.serve_left(serve);
    }

    /// Works with the data once nobody else does.
    #[inline]
    pub fn with<R>(&self, serve: impl FnMut(&mut T), work: impl FnOnce(&mut T) -> R) -> R {
        let mut data = self.data.lock();
        let result = work(&mut data);
        drop(data);
        self.serve_left(serve);
        result
    }

    /// As [`Turn::with`]; `None` where another thread holds the data.
    #[inline]
    pub fn try_with<R>(&self, serve: impl FnMut(&mut T), work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut data = self.data.try_lock()?;
        let result = work(&mut data);
        drop(data);
        self.serve_left(serve);
        Some(result)
    }

    /// Waits for at most `limit` until nobody holds the data.
    #[cfg(not(loom))]
    pub fn wait(&self, serve: impl FnMut(&mut T), limit: Duration) {
        if let Some(data) = self.data.try_lock_for(limit) {
            drop(data);
            self.serve_left(serve);
        }
    }

    /// Does what was left, after an exchange on `left` or on the lock. Whoever fails to take the
    /// data leaves the note to the holder, which comes here when it gives the data up. The two
    /// fences, here and in the holder's call, make one of them see what the other did.
    #[inline]
    fn serve_left(&self, mut serve: impl FnMut(&mut T)) {
        loop {
            fence_after_exchange();
            if !self.left.load(Ordering::Relaxed) {
                return;
            }
            let Some(mut data) = self.data.try_lock() else { return };
            // Before the work: what is posted from here on sets it again.
            self.left.store(false, Ordering::Relaxed);
            serve(&mut data);
            drop(data);
        }
    }
}
