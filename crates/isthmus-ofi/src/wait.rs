//! Sleeping and waking. One epoll descriptor covers an eventfd and the descriptors of the endpoints, so that a program
//! may sleep on it itself (`FI_WAIT_FD`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A descriptor to sleep on.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// For the program: the event and all watched descriptors.
    epoll: OwnedFd,
    /// The watched descriptors without the event.
    watched: OwnedFd,
    event: OwnedFd,
    /// The eventfds of threads that sleep in our calls. Each has its own, so that none consumes another's wake-up.
    sleepers: Mutex<Vec<RawFd>>,
}

impl Waiter {
    pub(crate) fn new() -> io::Result<Self> {
        let (epoll, watched) = (new_epoll()?, new_epoll()?);
        let waiter = Self { epoll, watched, event: new_event()?, sleepers: Mutex::default() };
        for fd in [&waiter.event, &waiter.watched] {
            epoll_ctl(&waiter.epoll, libc::EPOLL_CTL_ADD, fd.as_raw_fd())?;
        }
        Ok(waiter)
    }

    /// The descriptor for the program.
    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Also wakes when `fd` is readable.
    pub(crate) fn watch(&self, fd: RawFd) -> io::Result<()> {
        epoll_ctl(&self.watched, libc::EPOLL_CTL_ADD, fd)
    }

    /// No longer wakes because of `fd`.
    pub(crate) fn forget(&self, fd: RawFd) {
        // A descriptor that was closed already is gone from the set by itself.
        let _ = epoll_ctl(&self.watched, libc::EPOLL_CTL_DEL, fd);
    }

    /// Wakes all sleepers.
    pub(crate) fn wake(&self) {
        write_event(self.event.as_raw_fd());
        self.sleepers.lock().iter().for_each(|&fd| write_event(fd));
    }

    /// Clears earlier [`Waiter::wake`]s, for a program that sleeps on the descriptor.
    pub(crate) fn clear(&self) {
        read_event(self.event.as_raw_fd());
    }

    /// Adds this thread to the sleepers: every later wake-up ends its next sleep.
    pub(crate) fn enter(&self) -> io::Result<Sleeper<'_>> {
        let event = new_event()?;
        self.sleepers.lock().push(event.as_raw_fd());
        Ok(Sleeper { waiter: self, event })
    }
}

/// A thread among the sleepers.
pub(crate) struct Sleeper<'a> {
    waiter: &'a Waiter,
    event: OwnedFd,
}

impl Sleeper<'_> {
    /// Sleeps until woken or until the deadline.
    pub(crate) fn sleep(&self, deadline: Deadline) {
        let entry = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut entries = [entry(&self.event), entry(&self.waiter.watched)];
        // SAFETY: `entries` lives during the call. Interrupted is as good as woken.
        unsafe { libc::poll(entries.as_mut_ptr(), 2, deadline.millis()) };
        if entries[0].revents != 0 {
            read_event(self.event.as_raw_fd());
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let mine = self.event.as_raw_fd();
        self.waiter.sleepers.lock().retain(|&fd| fd != mine);
    }
}

fn new_epoll() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

fn new_event() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

fn epoll_ctl(epoll: &OwnedFd, operation: i32, fd: RawFd) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: `event` lives during the call.
    let failed = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn write_event(fd: RawFd) {
    // SAFETY: no pointers. A full counter is as readable as one of 1.
    unsafe { libc::eventfd_write(fd, 1) };
}

fn read_event(fd: RawFd) {
    let mut count = 0;
    // SAFETY: `count` lives during the call.
    unsafe { libc::eventfd_read(fd, &raw mut count) };
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The time at which a wait gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// A deadline after libfabric's milliseconds; negative: never.
    pub(crate) fn after(timeout_ms: i32) -> Self {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// For poll(2), rounded up.
    fn millis(self) -> i32 {
        let Some(deadline) = self.0 else { return -1 };
        let left = deadline.saturating_duration_since(Instant::now());
        i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_is_seen_and_taken_back() {
        let waiter = Waiter::new().expect("descriptors");
        let (one, other) = (waiter.enter().expect("a descriptor"), waiter.enter().expect("a descriptor"));
        waiter.wake();
        // A wake-up reaches all sleepers.
        one.sleep(Deadline::after(-1));
        other.sleep(Deadline::after(-1));
        let start = Instant::now();
        one.sleep(Deadline::after(20));
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn negative_timeouts_never_pass() {
        assert!(!Deadline::after(-1).has_passed());
        assert!(Deadline::after(0).has_passed());
    }
}
