//! Leaves the processor to others while there is nothing to do.
//!
//! MPIs wait by polling without end. With a processor for each rank that is the fastest
//! way; with more ranks than processors every rank that waits holds up one that works. So
//! where more threads want to run than there are processors, a program that has polled in
//! vain for a while sleeps within its poll, until something comes or a tenth of a
//! millisecond has passed.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{self, PollFd, PollFlags, Timespec};

use crate::poller::Poller;

/// Polling in vain for so long counts as waiting. Microseconds.
const PATIENCE_US: u64 = 200;
/// Longest sleep within one poll: the program may wait for other things too.
pub(crate) const NAP: Duration = Duration::from_micros(100);
/// How long an answer to whether the machine is crowded holds. Microseconds.
const CROWD_US: u64 = 20_000;

/// How long a program has been polling in vain.
#[derive(Debug)]
pub(crate) struct Courtesy {
    epoch: Instant,
    /// When the present row of vain polls began; 0: none is going on. Microseconds.
    vain_since: AtomicU64,
    /// When it was last found out whether the machine is crowded, times two, plus the answer.
    crowd: AtomicU64,
}

impl Courtesy {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), vain_since: AtomicU64::new(0), crowd: AtomicU64::new(0) }
    }

    /// A poll found something.
    pub(crate) fn found(&self) {
        self.vain_since.store(0, Ordering::Relaxed);
    }

    /// A poll found nothing: perhaps sleeps until `poller` has events, or `beside` is readable.
    pub(crate) fn found_nothing(&self, poller: &Poller, beside: Option<BorrowedFd<'_>>) {
        let now = self.now();
        let since = self.vain_since.load(Ordering::Relaxed);
        if since == 0 {
            self.vain_since.store(now, Ordering::Relaxed);
        } else if now - since.min(now) > PATIENCE_US && self.is_crowded(now) {
            nap(poller, beside);
        }
    }

    /// A poll found that another thread turns the endpoint: perhaps sleeps by `wait`, until that
    /// has done or for [`NAP`].
    pub(crate) fn found_busy(&self, wait: impl FnOnce()) {
        if self.is_crowded(self.now()) {
            wait();
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64 + 1
    }

    fn is_crowded(&self, now: u64) -> bool {
        let last = self.crowd.load(Ordering::Relaxed);
        if last != 0 && now < last / 2 + CROWD_US {
            return last & 1 == 1;
        }
        let crowded = running_threads().is_some_and(|running| running > processors());
        self.crowd.store(now * 2 + u64::from(crowded), Ordering::Relaxed);
        crowded
    }
}

/// Threads of the machine that run or want to (the fourth field of `proc_loadavg(5)`).
fn running_threads() -> Option<u64> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let file = FILE.get_or_init(|| File::open("/proc/loadavg").ok()).as_ref()?;
    let mut text = [0; 64];
    let len = file.read_at(&mut text, 0).ok()?;
    running_in(std::str::from_utf8(&text[..len]).ok()?)
}

fn running_in(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Processors of the machine that are on-line, whatever this process may use of them: the
/// threads are counted over all of it too.
fn processors() -> u64 {
    static COUNT: OnceLock<u64> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let mut text = String::new();
        let read =
            File::open("/sys/devices/system/cpu/online").and_then(|mut file| file.read_to_string(&mut text));
        read.ok().and_then(|_| listed_in(&text)).unwrap_or(u64::MAX)
    })
}

/// How many numbers a list such as `0-3,8` has.
fn listed_in(list: &str) -> Option<u64> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.trim().split(',').map(range).sum()
}

fn nap(poller: &Poller, beside: Option<BorrowedFd<'_>>) {
    let limit = Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as _ };
    let own = PollFd::new(poller, PollFlags::IN);
    // Whether it ended by an event, by time or by a signal: the program polls again.
    let _ = match beside {
        None => event::poll(&mut [own], Some(&limit)),
        Some(fd) => event::poll(&mut [own, PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_files_are_understood() {
        assert_eq!(running_in("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running_in(""), None);
        assert_eq!((listed_in("0-3,8\n"), listed_in("0\n"), listed_in("x")), (Some(5), Some(1), None));
        assert!(running_threads().is_some_and(|running| running > 0));
        assert!((1..1 << 20).contains(&processors()));
    }

    #[test]
    fn only_a_row_of_vain_polls_on_a_crowded_machine_ends_in_sleep() {
        let (courtesy, poller) = (Courtesy::new(), Poller::new().expect("a poller"));
        courtesy.crowd.store(u64::MAX / 2 * 2 + 1, Ordering::Relaxed); // crowded, for good
        courtesy.found_nothing(&poller, None);
        let began = courtesy.vain_since.load(Ordering::Relaxed);
        assert!(began > 0);
        courtesy.found_nothing(&poller, None);
        assert_eq!(courtesy.vain_since.load(Ordering::Relaxed), began, "the row goes on");
        courtesy.found();
        assert_eq!(courtesy.vain_since.load(Ordering::Relaxed), 0);
        assert!(courtesy.is_crowded(1));
    }
}
