//! Sleeping until there is something to poll for.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Endpoint;

impl Endpoint {
    /// A descriptor that is readable when [`Endpoint::poll`] has something to return,
    /// provided [`Endpoint::arm`] said yes since the last poll.
    pub fn wait_fd(&self) -> RawFd {
        self.bell.raw_fd()
    }

    /// A descriptor that is readable whenever a turn has something to do, armed or not: for a
    /// program that polls several endpoints, and sleeps a little within the poll of one.
    pub fn turn_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// Prepares to sleep on [`Endpoint::wait_fd`]: from now on the I/O thread turns the
    /// engine. False where completions are already waiting.
    pub fn arm(&self) -> bool {
        self.armed.store(true, Ordering::SeqCst);
        // The polls that follow may have to tell it again.
        self.told.store(false, Ordering::SeqCst);
        self.watch.stir();
        if self.core.lock().engine.has_completions() {
            return false;
        }
        self.driver.wake();
        true
    }

    /// As [`Endpoint::arm`], for a thread that sleeps while others may poll: until it says
    /// [`Endpoint::wake_up`], their polls leave the bell armed. To be undone either way.
    pub fn fall_asleep(&self) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.arm()
    }

    /// The end of [`Endpoint::fall_asleep`].
    pub fn wake_up(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The program polls, and needs no bell unless another thread of its sleeps.
    pub(super) fn disarm(&self) {
        // Whoever polls takes all that there is, and wakes those for whom some of it is.
        if self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::SeqCst) {
            self.bell.silence();
        }
        if self.sleepers.load(Ordering::SeqCst) > 0 || !self.armed.swap(false, Ordering::SeqCst) {
            return;
        }
        // One that fell asleep between the two looks counted itself before it armed.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.armed.store(true, Ordering::SeqCst);
        }
    }

    /// Sleeps until completions wait or `timeout` has passed (`None`: no limit). False
    /// on a time-out or an interrupting signal.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if !self.arm() {
            return true;
        }
        let limit = timeout.map_or(-1, |t| t.as_millis().min(i32::MAX as u128) as i32);
        wait_readable(self.bell.raw_fd(), limit);
        self.core.lock().engine.has_completions()
    }
}

/// Sleeps until a descriptor is readable or so many milliseconds have passed (-1: no limit).
pub(super) fn wait_readable(fd: RawFd, limit_ms: i32) {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut entry, 1, limit_ms) };
}
