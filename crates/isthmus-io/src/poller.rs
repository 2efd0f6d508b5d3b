//! epoll and eventfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Events of descriptors, each under a number of the caller's.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

/// What happened to a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) key: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

fn interest(write: bool) -> EventFlags {
    let read = EventFlags::IN | EventFlags::RDHUP;
    if write { read | EventFlags::OUT } else { read }
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn add(&self, fd: impl AsFd, key: u64, write: bool) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(key), interest(write))?)
    }

    pub(crate) fn change(&self, fd: impl AsFd, key: u64, write: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(key), interest(write))?)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits up to `timeout` (`None`: for ever) and fills `ready`.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let limit =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        events.0.clear();
        match epoll::wait(&self.0, spare_capacity(&mut events.0), limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Room for the events of one wait.
pub(crate) struct Events(Vec<Event>);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Events({})", self.0.len())
    }
}

impl Events {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    pub(crate) fn get(&self, index: usize) -> Option<Ready> {
        let event = self.0.get(index)?;
        let flags = event.flags;
        let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        Some(Ready {
            key: event.data.u64(),
            readable: broken || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
            writable: broken || flags.contains(EventFlags::OUT),
        })
    }
}

/// Wakes whoever polls its descriptor.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn ring(&self) {
        // Full means that it already rings.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
