//! Sleeping until there is something to poll for.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use isthmus_wakeup::Bells;

use super::Endpoint;

impl Endpoint {
    /// A descriptor that is readable when [`Endpoint::poll`] has something to return,
    /// provided [`Endpoint::arm`] said yes since the last poll.
    pub fn wait_fd(&self) -> RawFd {
        self.bell.raw_fd()
    }

    /// A descriptor that is readable whenever a poll has something to do, armed or not. It is for programs that poll
    /// several endpoints and sleep briefly within the poll of one.
    pub fn turn_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// Prepares to sleep on [`Endpoint::wait_fd`]: from now on the I/O thread drives the endpoint. False if completions
    /// are already waiting.
    pub fn arm(&self) -> bool {
        let sleeps = self.wakeup.arm(self);
        self.watch.stir();
        sleeps
    }

    /// Like [`Endpoint::arm`], for a thread that sleeps while others may poll: their polls leave the bell armed until
    /// this thread calls [`Endpoint::wake_up`]. It must call that even if this returns false.
    pub fn fall_asleep(&self) -> bool {
        let sleeps = self.wakeup.fall_asleep(self);
        self.watch.stir();
        sleeps
    }

    /// The end of [`Endpoint::fall_asleep`].
    pub fn wake_up(&self) {
        self.wakeup.wake_up();
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

impl Bells for Endpoint {
    fn has_completions(&self) -> bool {
        self.core.lock().engine.has_completions()
    }

    fn ring(&self) {
        self.bell.ring();
    }

    fn clear(&self) {
        self.bell.clear();
    }

    fn wake_io_thread(&self) {
        self.driver.wake();
    }
}

/// Sleeps until a descriptor is readable, or for `limit_ms` milliseconds (-1: no limit).
pub(super) fn wait_readable(fd: RawFd, limit_ms: i32) {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut entry, 1, limit_ms) };
}
