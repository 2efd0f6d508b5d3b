//! Atomics and locks: loom's while a model runs, and otherwise those of std and parking_lot.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;

#[cfg(loom)]
pub(crate) use model::Mutex;

/// A sequentially consistent fence. Call it right after an atomic exchange, or after the release of a `parking_lot`
/// lock, which contains one.
///
/// On x86 such an exchange is already a full fence, so there this function only stops the compiler from reordering.
#[inline]
pub fn fence_after_exchange() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(all(not(loom), any(miri, not(target_arch = "x86_64"))))]
    std::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// A lock for models that orders memory only as much as parking_lot's lock. loom's own lock is also a sequentially
/// consistent fence, which would hide a missing one.
#[cfg(loom)]
mod model {
    use std::ops::{Deref, DerefMut};

    use super::{AtomicBool, Ordering};

    #[derive(Debug)]
    pub(crate) struct Mutex<T> {
        held: AtomicBool,
        /// Only the holder of the lock takes this mutex, so nobody ever waits for it.
        data: std::sync::Mutex<T>,
    }

    pub(crate) struct Guard<'a, T> {
        held: &'a AtomicBool,
        data: Option<std::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(data: T) -> Self {
            Self { held: AtomicBool::new(false), data: std::sync::Mutex::new(data) }
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            loop {
                match self.try_lock() {
                    Some(guard) => return guard,
                    None => loom::thread::yield_now(),
                }
            }
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
            Some(Guard { held: &self.held, data: self.data.try_lock().ok() })
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.data.as_ref().expect("one at a time holds the lock")
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.data.as_mut().expect("one at a time holds the lock")
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            self.data = None;
            self.held.swap(false, Ordering::Release);
        }
    }
}
