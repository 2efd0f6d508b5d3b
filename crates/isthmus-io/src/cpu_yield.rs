//! Yields the processor to others while there is nothing to do.
//!
//! MPIs wait by polling without a pause. With a processor for each rank that is fastest. With more ranks than
//! processors, every rank that waits holds up one that works. So if more threads want to run than there are processors,
//! a thread that has polled in vain for `PATIENCE_US` (200 µs) sleeps within its poll, until something comes or for
//! `NAP` (100 µs).
//!
//! The wait belongs to the thread, not to the endpoint. A thread that polls many endpoints in turn sleeps in the poll
//! of one of them only, so that it gets round to all of them.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{self, PollFd, PollFlags, Timespec};

use crate::poller::Poller;

/// A thread that has polled in vain for this long counts as waiting. Microseconds.
const PATIENCE_US: u64 = 200;
/// Longest sleep within one poll. Short, since the program may wait for other things too.
pub(crate) const NAP: Duration = Duration::from_micros(100);
/// The answer whether the machine is crowded stays valid for this long. Microseconds.
const CROWD_US: u64 = 20_000;
/// Vain polls between two sleeps once [`VAIN_NAPS`] brought nothing. Count. An MPI polls a few times in each of many
/// calls that wait for nothing, such as locks of a rank's own window. These must not take as long as a sleep each.
const POLLS_A_NAP: u32 = 32;
/// Sleeps in vain after which a thread polls more between two sleeps. Count.
const VAIN_NAPS: u32 = 2;
/// One in this many vain polls reads the clock. Count.
const POLLS_A_LOOK: u32 = 8;

/// A thread's series of vain polls.
#[derive(Clone, Copy, Debug)]
struct Row {
    polls: u32,
    /// When it began. Microseconds.
    since: u64,
    napper: Option<Napper>,
}

/// The endpoint in whose polls a thread sleeps, and when it last did.
#[derive(Clone, Copy, Debug)]
struct Napper {
    /// The endpoint's descriptor.
    endpoint: RawFd,
    /// When it last slept. Microseconds.
    last: u64,
    /// Polls of the series until then. Count.
    polls: u32,
    /// Sleeps of the series during which nothing came.
    vain: u32,
}

impl Napper {
    /// Whether the thread may sleep again after `polls` polls of the series.
    fn has_polled(&self, polls: u32) -> bool {
        self.vain < VAIN_NAPS || polls.wrapping_sub(self.polls) >= POLLS_A_NAP
    }
}

impl Row {
    const NONE: Self = Self { polls: 0, since: 0, napper: None };

    /// Counts a vain poll.
    fn count(&mut self) {
        self.polls = self.polls.wrapping_add(1);
    }

    /// Whether to read the clock: at the first poll of the series, then at every [`POLLS_A_LOOK`]th. Once the thread
    /// sleeps here, whenever it may sleep again.
    fn is_due(&self, endpoint: RawFd) -> bool {
        match self.napper {
            Some(napper) if napper.endpoint == endpoint => napper.has_polled(self.polls),
            _ => self.polls % POLLS_A_LOOK == 1,
        }
    }

    /// Whether the thread has waited long enough to sleep in this poll of `endpoint`.
    fn may_nap(&mut self, endpoint: RawFd, now: u64) -> bool {
        if self.polls == 1 {
            self.since = now;
        }
        let waited = now.saturating_sub(self.since) > PATIENCE_US;
        let another =
            |napper: Napper| napper.endpoint != endpoint && now.saturating_sub(napper.last) <= PATIENCE_US;
        waited && !self.napper.is_some_and(another)
    }
}

thread_local! {
    static ROW: Cell<Row> = const { Cell::new(Row::NONE) };
}

/// This thread found something: ends its series.
pub(crate) fn found() {
    ROW.set(Row::NONE);
}

/// This thread found nothing at an endpoint. It may sleep until the endpoint's `poller` has events or `beside` is
/// readable. `is_quiet` says whether everything that comes will show there.
pub(crate) fn found_nothing(
    poller: &Poller,
    beside: Option<BorrowedFd<'_>>,
    is_quiet: impl FnOnce() -> bool,
) {
    let (mut row, endpoint) = (ROW.get(), poller.raw_fd());
    row.count();
    if row.is_due(endpoint) {
        let now = now_us();
        if row.may_nap(endpoint, now) && is_crowded(now) && is_quiet() {
            let vain = row.napper.map_or(0, |napper| napper.vain) + u32::from(!nap(poller, beside));
            row.napper = Some(Napper { endpoint, last: now_us(), polls: row.polls, vain });
        }
    }
    ROW.set(row);
}

/// A poll found that another thread drives the endpoint. It may sleep by `wait`, until that thread has finished or for
/// [`NAP`].
pub(crate) fn found_busy(wait: impl FnOnce()) {
    if is_crowded(now_us()) {
        wait();
    }
}

fn now_us() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1
}

/// Opens the files that are read later, so that no poll has to take a descriptor.
pub(crate) fn prepare() {
    running_threads();
}

/// Counts an endpoint of this process as long as it is open.
#[derive(Debug)]
pub(crate) struct Presence(());

static PRESENT: AtomicUsize = AtomicUsize::new(0);

impl Presence {
    pub(crate) fn new() -> Self {
        PRESENT.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        PRESENT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of endpoints of this process; at least 1.
pub(crate) fn endpoints() -> u32 {
    PRESENT.load(Ordering::Relaxed).max(1) as u32
}

/// Whether a poll may take a little longer: as far as known, nobody else wants the processor, and the program has no
/// other endpoint to poll.
pub(crate) fn may_linger() -> bool {
    PRESENT.load(Ordering::Relaxed) == 1 && CROWD.load(Ordering::Relaxed) & 1 == 0
}

/// Time of the last answer whether the machine is crowded (microseconds), times 2, plus the answer.
static CROWD: AtomicU64 = AtomicU64::new(0);

fn is_crowded(now: u64) -> bool {
    let last = CROWD.load(Ordering::Relaxed);
    if last != 0 && now < last / 2 + CROWD_US {
        return last & 1 == 1;
    }
    let crowded = running_threads().is_some_and(|running| running > processors());
    CROWD.store(now * 2 + u64::from(crowded), Ordering::Relaxed);
    crowded
}

/// Number of threads of the machine that run or want to (the fourth field of `proc_loadavg(5)`).
fn running_threads() -> Option<u64> {
    static FILE: OnceLock<File> = OnceLock::new();
    let file = match FILE.get() {
        Some(file) => file,
        None => {
            let opened = File::open("/proc/loadavg").ok()?;
            FILE.get_or_init(|| opened)
        }
    };
    let mut text = [0; 64];
    let len = file.read_at(&mut text, 0).ok()?;
    running_in(std::str::from_utf8(&text[..len]).ok()?)
}

fn running_in(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Number of the machine's processors that are online. Those that this process may not use count too, since
/// [`running_threads`] counts the threads of the whole machine.
fn processors() -> u64 {
    static COUNT: OnceLock<u64> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let mut text = String::new();
        let read =
            File::open("/sys/devices/system/cpu/online").and_then(|mut file| file.read_to_string(&mut text));
        read.ok().and_then(|_| listed_in(&text)).unwrap_or(u64::MAX)
    })
}

/// Count of the numbers in a list such as `0-3,8`.
fn listed_in(list: &str) -> Option<u64> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.trim().split(',').map(range).sum()
}

/// Sleeps for at most [`NAP`]. True if something came.
fn nap(poller: &Poller, beside: Option<BorrowedFd<'_>>) -> bool {
    let limit = Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as _ };
    let own = PollFd::new(poller, PollFlags::IN);
    let ready = match beside {
        None => event::poll(&mut [own], Some(&limit)),
        Some(fd) => event::poll(&mut [own, PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)),
    };
    // After a signal, too, the program polls again.
    ready.is_ok_and(|ready| ready > 0)
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
    fn only_a_row_of_vain_polls_ends_in_sleep() {
        let mut row = Row::NONE;
        row.count();
        assert!(row.is_due(3) && !row.may_nap(3, 1000), "the first poll begins the row");
        row.count();
        assert!(!row.is_due(3), "the clock is not read each time");
        row.polls = POLLS_A_LOOK + 1;
        assert!(row.is_due(3) && !row.may_nap(3, 1000 + PATIENCE_US));
        assert!(row.may_nap(3, 1001 + PATIENCE_US));
    }

    #[test]
    fn a_thread_that_polls_many_endpoints_sleeps_once_a_round() {
        let napper = Napper { endpoint: 3, last: 2000, polls: 400, vain: 9 };
        let mut row = Row { polls: 500, since: 1000, napper: Some(napper) };
        assert!((4..60).all(|endpoint| !row.may_nap(endpoint, 2010)));
        assert!(row.is_due(3) && row.may_nap(3, 2010));
        // An endpoint that is no longer polled does not keep the thread from sleeping.
        assert!(row.may_nap(4, 2001 + PATIENCE_US));
    }

    #[test]
    fn between_two_vain_sleeps_there_are_polls() {
        let napper = Napper { endpoint: 3, last: 2000, polls: 400, vain: VAIN_NAPS };
        let due = |polls, napper| Row { polls, since: 1000, napper: Some(napper) }.is_due(3);
        let soon = 401..400 + POLLS_A_NAP;
        assert!(soon.clone().all(|polls| !due(polls, napper)) && due(400 + POLLS_A_NAP, napper));
        // While something comes, a poll waits for it.
        assert!(soon.clone().all(|polls| due(polls, Napper { vain: VAIN_NAPS - 1, ..napper })));
    }

    #[test]
    fn a_find_ends_the_row_of_its_thread() {
        let poller = Poller::new().expect("a poller");
        found_nothing(&poller, None, || true);
        assert_eq!(ROW.get().polls, 1);
        std::thread::spawn(found).join().expect("a thread");
        assert_eq!(ROW.get().polls, 1);
        found();
        assert_eq!(ROW.get().polls, 0);
    }
}
