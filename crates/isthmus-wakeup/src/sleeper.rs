//! A writer and a reader that may sleep, in memory that both share.
//!
//! The writer [publishes](publish) data and then looks whether the reader sleeps
//! ([`take_sleep`]). The reader [says](will_sleep) that it will sleep and then looks for data.
//! So either the reader sees the data, or the writer sees that the reader sleeps and wakes it.
//! The reader of a ring is a writer too, of its position: a writer without room waits for that.

use crate::sync::{AtomicU64, Ordering, fence_after_exchange};

/// Stores what the other end waits for; returns what was there. What the caller loads after this
/// is loaded after the store.
#[inline]
pub fn publish(word: &AtomicU64, value: u64) -> u64 {
    let before = word.swap(value, Ordering::SeqCst);
    fence_after_exchange();
    before
}

/// This end is about to sleep, or to wait. It has to look for data once more after this.
#[inline]
pub fn will_sleep(flag: &AtomicU64) {
    flag.swap(1, Ordering::SeqCst);
    fence_after_exchange();
}

/// This end looks by itself from now on.
#[inline]
pub fn will_look(flag: &AtomicU64) {
    flag.store(0, Ordering::Relaxed);
}

/// Whether the other end sleeps, after something was published or a fence.
#[inline]
pub fn sleeps(flag: &AtomicU64) -> bool {
    flag.load(Ordering::SeqCst) != 0
}

/// As [`sleeps`]; the caller wakes it then, and it counts as awake.
#[inline]
pub fn take_sleep(flag: &AtomicU64) -> bool {
    let asleep = sleeps(flag);
    if asleep {
        flag.store(0, Ordering::Relaxed);
    }
    asleep
}
