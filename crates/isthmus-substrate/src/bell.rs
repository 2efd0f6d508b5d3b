//! The descriptor on which a program can sleep until there are events.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use isthmus_io::Endpoint as Engine;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Readable when an engine has completions, a datagram came, the timer has expired, or it was rung.
#[derive(Debug)]
pub(crate) struct Bell {
    epoll: OwnedFd,
    /// The descriptors that must wake a thread that sleeps in the poll of another port.
    beside: OwnedFd,
    event: OwnedFd,
    timer: OwnedFd,
}

impl Bell {
    pub(crate) fn new(engines: &[&Engine]) -> io::Result<Self> {
        let bell = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            beside: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?,
        };
        for engine in engines {
            // SAFETY: the engine keeps its descriptor open for as long as it lives; it is only
            // named here, in one call.
            add(&bell.epoll, unsafe { BorrowedFd::borrow_raw(engine.wait_fd()) })?;
            add(&bell.beside, engine.turn_fd())?;
        }
        for fd in [bell.event.as_fd(), bell.timer.as_fd()] {
            add(&bell.epoll, fd)?;
        }
        Ok(bell)
    }

    /// Also rings when this descriptor is readable.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.epoll, fd)?;
        add(&self.beside, fd)
    }

    /// A descriptor that is readable when any port has something to do.
    pub(crate) fn beside(&self) -> BorrowedFd<'_> {
        self.beside.as_fd()
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    pub(crate) fn ring(&self) {
        // If the counter is full, it rings already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Rings after this time; `None`: never.
    pub(crate) fn set_timer(&self, after: Option<Duration>) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = after.map_or(zero, |after| Timespec {
            tv_sec: after.as_secs() as i64,
            // 0 would mean never.
            tv_nsec: i64::from(after.subsec_nanos().max(1)),
        });
        let _ = timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: zero, it_value },
        );
    }

    pub(crate) fn clear(&self) {
        self.set_timer(None);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }

    /// Sleeps until it rings, or for `limit`.
    pub(crate) fn sleep(&self, limit: Option<Duration>) {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        // The result does not matter: the program looks again after any sleep.
        let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], limit.as_ref());
    }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok(())
}
