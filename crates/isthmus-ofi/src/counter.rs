//! A counter of finished operations: what it counts, who feeds it, and who waits for it.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use isthmus_wakeup::Waiters;

use crate::error::Error;
use crate::live::Live;
use crate::sources::Sources;
use crate::trigger::Board;
use crate::wait::Deadline;

/// A counter, as endpoints, triggers and the C object share it.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    value: AtomicU64,
    errors: AtomicU64,
    /// The sum of successes and errors that the program has read.
    seen: AtomicU64,
    /// Counts bytes instead of operations.
    bytes: bool,
    /// Threads that sleep until it changes.
    sleepers: Waiters,
    sources: Sources,
    /// Operations on the domain's board that wait for it.
    awaited: Waiters,
    board: Arc<Board>,
}

impl Counter {
    /// A counter of operations or of their `bytes`, for which operations on this board may wait.
    pub(crate) fn new(bytes: bool, board: Arc<Board>) -> Self {
        Self { bytes, board, ..Self::default() }
    }

    /// Counts one operation.
    pub(crate) fn count(&self, failed: bool, len: u64) {
        let step = if self.bytes { len } else { 1 };
        let (counter, step) = if failed { (&self.errors, 1) } else { (&self.value, step) };
        counter.fetch_add(step, Ordering::SeqCst);
        self.changed();
    }

    pub(crate) fn add(&self, value: u64) {
        self.value.fetch_add(value, Ordering::SeqCst);
        self.changed();
    }

    pub(crate) fn set(&self, value: u64) {
        self.value.swap(value, Ordering::SeqCst);
        self.changed();
    }

    pub(crate) fn add_errors(&self, value: u64) {
        self.errors.fetch_add(value, Ordering::SeqCst);
        self.changed();
    }

    pub(crate) fn set_errors(&self, value: u64) {
        self.errors.swap(value, Ordering::SeqCst);
        self.changed();
    }

    /// The sum of successes and errors, which triggers wait for (`fi_trigger(3)`).
    pub(crate) fn reached(&self) -> u64 {
        self.value().saturating_add(self.errors())
    }

    pub(crate) fn await_more(&self, count: usize) {
        self.awaited.enter(count);
    }

    pub(crate) fn await_fewer(&self, count: usize) {
        self.awaited.leave(count);
    }

    pub(crate) fn add_source(&self, live: &Arc<Live>) -> Result<(), Error> {
        self.sources.add(live)
    }

    pub(crate) fn remove_source(&self, live: &Arc<Live>) {
        self.sources.remove(live);
    }

    /// Drives the endpoints that feed it.
    pub(crate) fn progress(&self) {
        self.sources.progress();
    }

    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::SeqCst)
    }

    /// Successes and errors.
    pub(crate) fn values(&self) -> (u64, u64) {
        (self.value(), self.errors())
    }

    /// Returns the value, and remembers that the program knows it.
    pub(crate) fn read(&self) -> u64 {
        let (value, errors) = (self.value(), self.errors());
        let sum = value.wrapping_add(errors);
        if self.seen.load(Ordering::Relaxed) != sum {
            self.seen.store(sum, Ordering::SeqCst);
            self.sources.note_answered();
        }
        value
    }

    /// Whether something was counted that the program has not read.
    fn has_news(&self) -> bool {
        self.value().wrapping_add(self.errors()) != self.seen.load(Ordering::SeqCst)
    }

    /// Wakes threads that sleep until it changes, and starts operations that wait for it.
    fn changed(&self) {
        if self.awaited.any() {
            self.board.release(self);
        }
        if self.sleepers.any()
            && let Some(waiter) = self.sources.made_waiter()
        {
            waiter.wake();
        }
    }

    pub(crate) fn fd(&self) -> Result<RawFd, Error> {
        Ok(self.sources.waiter()?.fd())
    }

    /// For `fi_trywait`: whether the program may sleep on the descriptor now.
    pub(crate) fn try_wait(&self) -> Result<(), Error> {
        let waiter = self.sources.waiter()?;
        waiter.clear();
        self.sleepers.enter_for_good();
        self.progress();
        if !self.has_news() && self.sources.arm() { Ok(()) } else { Err(Error::Again) }
    }

    /// Sleeps until the value reaches `threshold`, an error is counted, or the deadline.
    pub(crate) fn wait(&self, threshold: u64, deadline: Deadline) -> Result<(), Error> {
        let waiter = self.sources.waiter()?;
        let errors = self.errors();
        let sleeper = waiter.enter()?;
        self.sleepers.enter(1);
        let result = loop {
            self.progress();
            if self.value() >= threshold {
                self.read();
                break Ok(());
            }
            if self.errors() != errors {
                break Err(Error::EntryFailed);
            }
            if deadline.has_passed() {
                break Err(Error::TimedOut);
            }
            if let Some(_asleep) = self.sources.fall_asleep() {
                sleeper.sleep(deadline);
            }
        };
        self.sleepers.leave(1);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_bytes_and_errors_are_counted_apart() {
        let counter = Counter { bytes: true, ..Counter::default() };
        counter.count(false, 10);
        counter.count(true, 99);
        assert_eq!((counter.value(), counter.errors.load(Ordering::SeqCst)), (10, 1));
    }

    #[test]
    fn waiting_ends_by_threshold_error_or_time() {
        let counter = Arc::new(Counter::default());
        assert!(matches!(counter.wait(1, Deadline::after(10)), Err(Error::TimedOut)));
        let other = counter.clone();
        let thread = std::thread::spawn(move || other.wait(1, Deadline::after(-1)));
        counter.count(false, 0);
        assert!(thread.join().expect("no panic").is_ok());
    }
}
