//! A lock for short critical sections (less than a microsecond) that are rarely contended.
//!
//! It is released by a plain store. An atomic exchange would take as long as twenty other instructions, and would wait
//! until all earlier stores have reached the memory that other processors see. The price: the releasing thread may
//! overlook a thread that begins to wait at the same moment. A waiting thread therefore looks again by itself every
//! `AGAIN` (200 µs).

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use std::time::Duration;

use parking_lot::lock_api;

/// Data behind such a lock.
pub type Mutex<T> = lock_api::Mutex<Quick, T>;
/// Holds such a lock.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Quick, T>;

/// Spins of a thread before it sleeps. Count.
const LOOKS: u32 = 100;
/// Longest sleep before a waiting thread looks again, woken or not.
const AGAIN: Duration = Duration::from_micros(200);

/// State of a free lock.
const FREE: u32 = 0;
/// State of a lock that a thread holds.
const HELD: u32 = 1;

/// The lock itself; see the module. A thread that has released it reads it once more, so it must live a little longer.
#[derive(Debug)]
pub struct Quick {
    state: AtomicU32,
    /// Number of threads that sleep or are about to.
    waiting: AtomicU32,
}

impl Quick {
    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            if self.state.load(Ordering::Relaxed) == FREE && self.take() {
                return;
            }
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while !self.take() {
            let again = libc::timespec { tv_sec: 0, tv_nsec: AGAIN.subsec_nanos().into() };
            // SAFETY: the word and the time live during the call. However it ends, we look again.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.state.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    HELD,
                    &raw const again,
                );
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    #[inline]
    fn take(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wake(&self) {
        // SAFETY: no memory is touched.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.state.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            );
        }
    }
}

// SAFETY: `take` lets in one thread at a time, and only that thread calls `unlock`.
unsafe impl lock_api::RawMutex for Quick {
    #[allow(clippy::declare_interior_mutable_const, reason = "what lock_api asks for")]
    const INIT: Self = Self { state: AtomicU32::new(FREE), waiting: AtomicU32::new(0) };

    type GuardMarker = lock_api::GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.take() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.take()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.state.store(FREE, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn one_at_a_time_is_in_and_who_waits_gets_in() {
        let count = Mutex::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..20_000 {
                        let mut both = count.lock();
                        both.0 += 1;
                        if turn % 5_000 == 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        both.1 = both.0;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), (80_000, 80_000));
    }

    #[test]
    fn a_lock_that_is_held_is_not_taken_and_sleepers_are_woken() {
        let lock = Mutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(lock.lock()));
            let start = Instant::now();
            // SAFETY: the lock is not moved.
            while unsafe { lock.raw() }.waiting.load(Ordering::SeqCst) == 0 {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody sleeps");
                std::thread::yield_now();
            }
            drop(held);
            waiting.join().expect("no panic");
        });
        assert!(lock.try_lock().is_some());
    }
}
