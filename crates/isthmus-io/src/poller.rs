//! Thin wrappers of epoll, eventfd and timerfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// An epoll instance. Each descriptor has a key that the caller chooses.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

/// An event of a descriptor.
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

/// An eventfd: ringing it wakes the threads that poll it.
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

    pub(crate) fn clear(&self) {
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

/// A timerfd: it wakes the threads that poll it at a time that any thread may postpone.
#[derive(Debug)]
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets it to ring once, `after` from now, instead of at the time set before.
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) };
        let once = Itimerspec { it_interval: never, it_value: at };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_rings_once_and_can_be_put_off() {
        let (poller, alarm) = (Poller::new().expect("epoll"), Alarm::new().expect("a timer"));
        poller.add(&alarm, 7, false).expect("added");
        let mut events = Events::with_capacity(1);
        alarm.set(Duration::from_millis(1)).expect("set");
        alarm.set(Duration::from_secs(3600)).expect("put off");
        poller.wait(&mut events, Some(Duration::from_millis(20))).expect("waited");
        assert!(events.get(0).is_none(), "it was put off");
        alarm.set(Duration::from_millis(1)).expect("set");
        poller.wait(&mut events, Some(Duration::from_secs(60))).expect("waited");
        assert_eq!(events.get(0).map(|ready| ready.key), Some(7));
        alarm.clear();
        poller.wait(&mut events, Some(Duration::ZERO)).expect("waited");
        assert!(events.get(0).is_none(), "once");
    }
}
