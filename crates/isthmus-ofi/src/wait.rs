//! Sleeping and waking. One epoll descriptor covers an eventfd and the descriptors of the endpoints, so that a program
//! may sleep on it itself (`FI_WAIT_FD`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use isthmus_io::Watch;
use parking_lot::{Mutex, RwLock};

use crate::cq::Reading;
use crate::error::Error;
use crate::live::Live;

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

/// The endpoints that feed a queue or counter, and the descriptor to sleep on until they do.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    all: RwLock<Vec<Arc<Live>>>,
    /// Watches all of them, once it was needed.
    waiter: OnceLock<Waiter>,
    /// Tells without a lock whether polling the first endpoint is in vain.
    watch: OnceLock<Arc<Watch>>,
    /// The first endpoint is the only one.
    watched: AtomicBool,
}

impl Sources {
    /// Adds an endpoint, once.
    pub(crate) fn add(&self, live: &Arc<Live>) -> Result<(), Error> {
        let mut all = self.all.write();
        if all.iter().any(|known| Arc::ptr_eq(known, live)) {
            return Ok(());
        }
        if let Some(waiter) = self.made_waiter() {
            waiter.watch(live.engine().wait_fd())?;
        }
        all.push(live.clone());
        self.note(&all);
        Ok(())
    }

    /// Removes an endpoint.
    pub(crate) fn remove(&self, live: &Arc<Live>) {
        let mut all = self.all.write();
        let before = all.len();
        all.retain(|known| !Arc::ptr_eq(known, live));
        self.note(&all);
        if let (true, Some(waiter)) = (all.len() < before, self.made_waiter()) {
            waiter.forget(live.engine().wait_fd());
        }
    }

    /// Notes the present endpoints, for checks without a lock.
    fn note(&self, all: &[Arc<Live>]) {
        let only = match all {
            [only] => only.engine().watch(),
            _ => None,
        };
        let watched = only.is_some_and(|only| Arc::ptr_eq(self.watch.get_or_init(|| only.clone()), &only));
        self.watched.store(watched, Ordering::Release);
    }

    /// The waiter, made when first needed.
    pub(crate) fn waiter(&self) -> Result<&Waiter, Error> {
        if let Some(waiter) = self.made_waiter() {
            return Ok(waiter);
        }
        // With this lock, no endpoint is added meanwhile that the waiter would not watch.
        let all = self.all.read();
        let waiter = Waiter::new()?;
        for live in all.iter() {
            waiter.watch(live.engine().wait_fd())?;
        }
        Ok(self.waiter.get_or_init(|| waiter))
    }

    /// The waiter, if anybody needed it yet.
    pub(crate) fn made_waiter(&self) -> Option<&Waiter> {
        self.waiter.get()
    }

    /// The first endpoint's watch, if that endpoint is the only one.
    #[inline]
    fn only_watch(&self) -> Option<&Arc<Watch>> {
        if self.watched.load(Ordering::Acquire) { self.watch.get() } else { None }
    }

    /// Whether driving the endpoints would plainly find nothing.
    #[inline]
    pub(crate) fn is_poll_vain(&self) -> bool {
        self.only_watch().is_some_and(|watch| watch.is_poll_vain())
    }

    /// The program has what it waited for, though not by its completion queue: the next polls need not spin.
    pub(crate) fn note_answered(&self) {
        if let Some(watch) = self.watch.get() {
            watch.note_answered();
        }
    }

    /// Whether something has plainly come that driving the endpoints would deliver.
    pub(crate) fn has_come(&self) -> bool {
        self.only_watch().is_some_and(|watch| watch.has_news())
    }

    /// Drives the endpoints, unless that is plainly in vain, and delivers what they finished.
    pub(crate) fn progress(&self) {
        if !self.only_watch().is_some_and(|watch| watch.is_glance_vain()) {
            self.turn(None);
        }
    }

    /// Drives the endpoints, and delivers what they finished: to `reading` at once if it reads that queue.
    pub(crate) fn turn(&self, mut reading: Option<&mut Reading<'_>>) {
        for live in self.all.read().iter() {
            live.progress(reading.as_deref_mut());
        }
    }

    /// Prepares all endpoints for a sleep. False if one has completions.
    pub(crate) fn arm(&self) -> bool {
        self.all.read().iter().all(|live| live.engine().arm())
    }

    /// As [`Sources::arm`], for a thread that sleeps while others may poll, until the guard is dropped. `None` if one
    /// has completions.
    pub(crate) fn fall_asleep(&self) -> Option<Asleep> {
        let mut asleep = Asleep(Vec::new());
        for live in self.all.read().iter() {
            asleep.0.push(Arc::downgrade(live));
            if !live.engine().fall_asleep() {
                return None;
            }
        }
        Some(asleep)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.read().is_empty()
    }
}

/// Endpoints that wake a sleeping thread, unless they end meanwhile.
pub(crate) struct Asleep(Vec<Weak<Live>>);

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(|live| live.engine().wake_up());
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
