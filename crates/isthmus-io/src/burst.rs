//! Sends small messages together that are posted in quick succession.
//!
//! Most of a small message's cost is the system call. So after the first `FIRST` (4) posts of a burst, the endpoint
//! holds the next ones back until the program polls, which MPIs do right after, or until there are `TOGETHER` (16).
//!
//! Nobody should notice the wait. The first messages of a burst go at once, as do those of a program that computes
//! between two posts. A program that did not poll after several bursts is not trusted again for a long time. Held
//! messages go at the latest when the I/O thread takes over, after some milliseconds without a poll (`driver.rs`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use isthmus_wakeup::Held;

/// Posts of a burst that go at once. Count.
const FIRST: u32 = 4;
/// Messages that are held back and go together. Count; more would keep the peer from reading the first ones.
const TOGETHER: u32 = 16;
/// Held messages go once they have this many bytes together.
const BYTES: u64 = 16 << 10;
/// Longest message that is held back. Bytes; copying a longer one takes longer than the system call.
const SMALL: u64 = 2 << 10;
/// Longest pause between two posts of a burst. Microseconds.
const APART_US: u64 = 20;
/// A poll this long after a burst is late. Microseconds.
const LATE_US: u64 = 200;
/// After this many late polls in a row, the program is not trusted. Count.
const STRIKES: u32 = 3;
/// It is then not trusted for this many posts. Count.
const DISTRUST: u32 = 4096;

/// The burst that an endpoint's program is posting. Threads that post at the same time share it without a lock: a race
/// between them makes messages go earlier or later, but loses none.
#[derive(Debug)]
pub(crate) struct Burst {
    epoch: Instant,
    posts: AtomicU32,
    bytes: AtomicU64,
    last_us: AtomicU64,
    held: Held,
    held_since_us: AtomicU64,
    strikes: AtomicU32,
    distrust: AtomicU32,
}

impl Burst {
    pub(crate) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            posts: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
            held: Held::new(),
            held_since_us: AtomicU64::new(0),
            strikes: AtomicU32::new(0),
            distrust: AtomicU32::new(0),
        }
    }

    fn now_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }

    /// Holds back the operation of `len` bytes that was just posted, if it may wait for the next ones. True if it is
    /// held.
    pub(crate) fn try_hold(&self, len: u64) -> bool {
        if len > SMALL || !self.held.is_attended() {
            return false;
        }
        let begins = || self.held_since_us.store(self.now_us(), Ordering::Relaxed);
        self.count_post(len, self.now_us()) && self.held.try_hold(begins)
    }

    fn count_post(&self, len: u64, now_us: u64) -> bool {
        let last = self.last_us.swap(now_us, Ordering::Relaxed);
        if now_us.saturating_sub(last) > APART_US {
            self.posts.store(1, Ordering::Relaxed);
            return false;
        }
        let posts = self.posts.load(Ordering::Relaxed) + 1;
        self.posts.store(posts, Ordering::Relaxed);
        let distrust = self.distrust.load(Ordering::Relaxed);
        if distrust > 0 {
            self.distrust.store(distrust - 1, Ordering::Relaxed);
            return false;
        }
        let bytes = self.bytes.load(Ordering::Relaxed) + len;
        let hold = posts > FIRST && !(posts - FIRST).is_multiple_of(TOGETHER) && bytes < BYTES;
        self.bytes.store(if hold { bytes } else { 0 }, Ordering::Relaxed);
        hold
    }

    /// Ends the burst: the program polls, or something else makes everything go out. True if anything was held.
    pub(crate) fn end(&self) -> bool {
        self.posts.store(0, Ordering::Relaxed);
        if !self.held.take() {
            return false;
        }
        let late = self.now_us().saturating_sub(self.held_since_us.load(Ordering::Relaxed)) > LATE_US;
        let strikes = if late { self.strikes.load(Ordering::Relaxed) + 1 } else { 0 };
        // After a time of distrust, one late poll is enough for another.
        self.strikes.store(strikes.min(STRIKES - 1), Ordering::Relaxed);
        if strikes >= STRIKES {
            self.distrust.store(DISTRUST, Ordering::Relaxed);
        }
        true
    }

    /// Tells whether the program polls, as the I/O thread has seen. True if it does not and something is held, which
    /// the caller then sends.
    pub(crate) fn attend(&self, attended: bool) -> bool {
        self.held.attend(attended);
        !attended && self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posts(burst: &Burst, count: u64, apart_us: u64) -> Vec<bool> {
        let start = burst.last_us.load(Ordering::Relaxed) + APART_US + 1;
        (0..count).map(|i| burst.count_post(8, start + i * apart_us)).collect()
    }

    #[test]
    fn the_first_go_at_once_then_so_many_together() {
        let held = posts(&Burst::new(), u64::from(FIRST + 2 * TOGETHER), 1);
        let at_once: Vec<usize> = (0..held.len()).filter(|&i| !held[i]).collect();
        assert_eq!(at_once, [0, 1, 2, 3, 19, 35]);
    }

    #[test]
    fn longer_ones_are_fewer() {
        let burst = Burst::new();
        posts(&burst, u64::from(FIRST), 1);
        let last = burst.last_us.load(Ordering::Relaxed);
        let held: Vec<bool> = (1..8).map(|i| burst.count_post(BYTES / 3, last + i)).collect();
        assert_eq!(held, [true, true, true, false, true, true, true]);
    }

    #[test]
    fn posts_that_are_apart_go_at_once() {
        assert!(!posts(&Burst::new(), 50, APART_US + 1).contains(&true));
    }

    #[test]
    fn a_poll_begins_anew() {
        let burst = Burst::new();
        posts(&burst, 10, 1);
        burst.end();
        let last = burst.last_us.load(Ordering::Relaxed);
        assert!(!burst.count_post(8, last + 1));
    }

    #[test]
    fn nothing_is_held_unless_the_program_is_known_to_poll() {
        let burst = Burst::new();
        assert!((0..100).all(|_| !burst.try_hold(8)));
        burst.attend(true);
        assert!((0..100).all(|_| !burst.try_hold(SMALL + 1)), "nor what is long");
        assert!(!burst.end());
    }

    #[test]
    fn what_is_held_goes_once_the_program_does_not_poll() {
        let burst = Burst::new();
        burst.attend(true);
        assert!((0..100).any(|_| burst.try_hold(8)));
        assert!(!burst.attend(true) && burst.attend(false));
        assert!(!burst.attend(false), "it was told once");
        assert!((0..100).all(|_| !burst.try_hold(8)));
    }

    #[test]
    fn who_does_not_poll_after_a_burst_is_not_trusted() {
        let burst = Burst::new();
        for strike in 0..STRIKES {
            assert_eq!(burst.distrust.load(Ordering::Relaxed), 0, "after {strike} late polls");
            burst.held.try_hold(|| ());
            burst.held_since_us.store(burst.now_us(), Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_micros(LATE_US + 1));
            assert!(burst.end() && !burst.end());
        }
        assert!(!posts(&burst, u64::from(DISTRUST), 1).contains(&true));
        assert!(posts(&burst, 50, 1).contains(&true));
    }
}
