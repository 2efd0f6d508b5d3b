//! Tells a poll, before it takes any lock, whether there is anything to do.
//!
//! Programs poll without a pause, and most polls are in vain. If all lanes of an endpoint go by shared memory, anything
//! new shows in one word of each lane's ring, its [`Spot`]. The other work of a poll is due only now and then.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::carrier::Spot;
use crate::cpu_yield;

/// Most lanes that are watched. Count; with more, every poll is a full one.
pub(crate) const WATCHED_MAX: usize = 64;
/// One in this many vain polls does the full work of a poll. Count.
pub(crate) const POLLS_A_LOOK: u64 = 32;

/// Polls that may spin after something came. Count.
const PATIENT_POLLS: u32 = 1;
/// Such a poll spins for this long. An answer to a message that was sent meanwhile comes within this time. Programs
/// that wait for an answer yield the processor between two polls, which takes a quarter of it.
const PATIENCE: Duration = Duration::from_micros(2);
/// One in this many spins reads the clock. Count.
const LOOKS_A_GLANCE: u32 = 4;
/// With more lanes than this, polls do not spin. Count.
const LOOKED_AT: usize = 4;

/// The words that an endpoint's polls read first.
#[derive(Debug)]
#[repr(align(64))]
pub struct Watch {
    /// Vain polls that may still spin. Count.
    patience: AtomicU32,
    /// Polls of the program. Count.
    polls: AtomicU64,
    /// Nothing is left to do, and everything that comes will show at `spots`.
    idle: AtomicBool,
    count: AtomicUsize,
    spots: [Spot; WATCHED_MAX],
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            patience: AtomicU32::new(0),
            polls: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            spots: std::array::from_fn(|_| Spot::default()),
        }
    }

    /// Counts a poll and returns true if the poll would find nothing. If that is not certain, returns false and counts
    /// nothing: the caller then makes the poll ([`crate::Endpoint::poll`]), which counts it.
    #[inline]
    pub fn is_poll_vain(&self) -> bool {
        self.is_vain(Self::is_worth_waiting)
    }

    /// Like [`Watch::is_poll_vain`], without spinning: the program waits for nothing in particular, or polls again at
    /// once.
    #[inline]
    pub fn is_glance_vain(&self) -> bool {
        self.is_vain(|_| false)
    }

    #[inline]
    fn is_vain(&self, waits: impl FnOnce(&Self) -> bool) -> bool {
        if !self.is_idle() {
            return false;
        }
        let polls = self.polls().wrapping_add(1);
        if polls.is_multiple_of(POLLS_A_LOOK) || self.has_news() || waits(self) {
            return false;
        }
        self.polls.store(polls, Ordering::Relaxed);
        true
    }

    /// Spins a little if that may pay. True if something came.
    #[inline]
    fn is_worth_waiting(&self) -> bool {
        let patience = self.patience.load(Ordering::Relaxed);
        patience > 0 && self.comes_soon(patience)
    }

    #[inline(never)]
    fn comes_soon(&self, patience: u32) -> bool {
        self.patience.store(patience - 1, Ordering::Relaxed);
        if self.count.load(Ordering::Relaxed) > LOOKED_AT || !cpu_yield::may_linger() {
            return false;
        }
        let start = Instant::now();
        let look = |_| {
            spin_loop();
            self.has_news()
        };
        loop {
            if (0..LOOKS_A_GLANCE).any(look) {
                return true;
            }
            if start.elapsed() >= PATIENCE {
                return false;
            }
        }
    }

    /// Something came, so more may come soon: the next polls may spin.
    pub(crate) fn note_read(&self) {
        self.patience.store(PATIENT_POLLS, Ordering::Relaxed);
    }

    /// The program has what it was waiting for: no poll spins until more comes.
    pub fn note_answered(&self) {
        self.patience.store(0, Ordering::Relaxed);
    }

    /// Counts a poll. If two threads race, one poll may not be counted, which does no harm.
    pub(crate) fn count_poll(&self) -> u64 {
        let polls = self.polls().wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls
    }

    /// Polls of the program. Count.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Work was left for the next pass, so the next poll must be a full one.
    pub(crate) fn stir(&self) {
        self.idle.store(false, Ordering::Relaxed);
    }

    /// No work is left, and everything that comes will show at the first `count` spots.
    pub(crate) fn settle(&self, count: usize) {
        self.count.store(count, Ordering::Relaxed);
        self.idle.store(true, Ordering::Release);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    /// Whether something to read shows at a spot.
    pub fn has_news(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        self.spots.iter().take(count).any(Spot::has_news)
    }

    /// The spot of a lane.
    pub(crate) fn spot(&self, index: usize) -> Option<&Spot> {
        self.spots.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_vain_once_nothing_is_left_and_one_in_so_many_looks_further() {
        let watch = Watch::new();
        assert!(
            !watch.is_poll_vain() && watch.polls() == 0,
            "a poll that is to be made is counted by who makes it"
        );
        watch.settle(WATCHED_MAX);
        for round in 1..=3 {
            assert!((1..POLLS_A_LOOK).all(|_| watch.is_poll_vain()));
            assert!(!watch.is_poll_vain() && !watch.is_poll_vain(), "until it is made");
            assert_eq!(watch.count_poll(), round * POLLS_A_LOOK);
        }
        watch.stir();
        assert!(!watch.is_poll_vain());
    }

    #[test]
    fn a_few_polls_after_something_came_are_patient_and_in_vain_none_the_less() {
        let watch = Watch::new();
        watch.settle(1);
        watch.note_read();
        for left in (0..PATIENT_POLLS).rev() {
            assert!(watch.is_poll_vain());
            assert_eq!(watch.patience.load(Ordering::Relaxed), left);
        }
        assert!(watch.is_poll_vain());
        watch.note_read();
        watch.note_answered();
        assert_eq!(watch.patience.load(Ordering::Relaxed), 0);
    }
}
