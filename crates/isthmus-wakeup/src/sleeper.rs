//! A writer and a reader that may sleep, in memory that both share.
//!
//! The writer [publishes](publish) data and then looks whether the reader sleeps
//! ([`take_sleep`]). The reader [says](will_sleep) that it will sleep and then looks for data.
//! So either the reader sees the data, or the writer sees that the reader sleeps and wakes it.
//! The reader of a ring is a writer too, of its position: a writer without room waits for that.

use crate::sync::{AtomicU64, Ordering, fence_after_exchange};

/// Stores the value that the other end waits for, and returns the old one. Later loads of the caller happen after this
/// store.
#[inline]
pub fn publish(word: &AtomicU64, value: u64) -> u64 {
    let before = word.swap(value, Ordering::SeqCst);
    fence_after_exchange();
    before
}

/// This end is about to sleep. The caller must look for data once more after this call.
#[inline]
pub fn will_sleep(flag: &AtomicU64) {
    flag.swap(1, Ordering::SeqCst);
    fence_after_exchange();
}

/// This end polls from now on, and needs no wake-up.
#[inline]
pub fn will_look(flag: &AtomicU64) {
    flag.store(0, Ordering::Relaxed);
}

/// Whether the other end sleeps. Call it after [`publish`] or a fence.
#[inline]
pub fn sleeps(flag: &AtomicU64) -> bool {
    flag.load(Ordering::SeqCst) != 0
}

/// Like [`sleeps`], and marks the other end as awake. If it returns true, the caller must wake it.
#[inline]
pub fn take_sleep(flag: &AtomicU64) -> bool {
    let asleep = sleeps(flag);
    if asleep {
        flag.store(0, Ordering::Relaxed);
    }
    asleep
}
