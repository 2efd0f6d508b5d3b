//! What a poll looks at before it takes any lock: whether there is anything to do at all.
//!
//! Programs poll without end, and most polls are in vain. Where all lanes of an endpoint go by shared memory, news
//! shows in a word of each lane's ring; the rest that a poll does is due now and then only.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::carrier::Spot;

/// Most lanes that are watched.
pub(crate) const WATCHED_MAX: usize = 64;
/// One in so many polls that find nothing does all that a poll does.
pub(crate) const POLLS_A_LOOK: u64 = 32;

/// What an endpoint's polls look at first.
#[derive(Debug)]
#[repr(align(64))]
pub struct Watch {
    /// How often the program polled.
    polls: AtomicU64,
    /// Nothing is left to do, and what comes will show at `spots`.
    idle: AtomicBool,
    count: AtomicUsize,
    spots: [Spot; WATCHED_MAX],
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            polls: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            spots: std::array::from_fn(|_| Spot::default()),
        }
    }

    /// A poll: whether it would find nothing. Where that is not plain it is false, and the poll is to be
    /// made ([`crate::Endpoint::poll`]), which is counted then.
    #[inline]
    pub fn is_poll_vain(&self) -> bool {
        if !self.is_idle() {
            return false;
        }
        let polls = self.polls().wrapping_add(1);
        if polls.is_multiple_of(POLLS_A_LOOK) || self.has_news() {
            return false;
        }
        self.polls.store(polls, Ordering::Relaxed);
        true
    }

    /// Counts a poll. That of two threads one is not counted is no harm.
    pub(crate) fn count_poll(&self) -> u64 {
        let polls = self.polls().wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls
    }

    /// How often the program polled.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Something was left to the next turn.
    pub(crate) fn stir(&self) {
        self.idle.store(false, Ordering::Relaxed);
    }

    /// Whoever turns the endpoint leaves nothing, and what comes shows at the first so many spots.
    pub(crate) fn settle(&self, count: usize) {
        self.count.store(count, Ordering::Relaxed);
        self.idle.store(true, Ordering::Release);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    pub(crate) fn has_news(&self) -> bool {
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
}
