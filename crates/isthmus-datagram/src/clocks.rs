//! Two clocks, compared.

use std::time::{Duration, Instant, SystemTime};

/// A packet that claims to have waited longer has a clock that was set.
const WAITED_MAX: Duration = Duration::from_secs(1);

/// The system stamps packets by the wall clock; all else goes by one that never steps.
#[derive(Debug)]
pub(crate) struct Clocks {
    steady: Instant,
    wall: SystemTime,
}

impl Clocks {
    /// Both clocks read within so short a time are read at once.
    const AT_ONCE: Duration = Duration::from_micros(20);
    /// Attempts at that; beyond, the last comparison holds.
    const TRIES: usize = 3;

    pub(crate) fn new() -> Self {
        let mut clocks = Self { steady: Instant::now(), wall: SystemTime::now() };
        clocks.compare();
        clocks
    }

    /// Reads both. One who is interrupted between them would take packets for older than they
    /// are, and every later one for delayed.
    pub(crate) fn compare(&mut self) {
        for _ in 0..Self::TRIES {
            let (steady, wall) = (Instant::now(), SystemTime::now());
            if steady.elapsed() < Self::AT_ONCE {
                (self.steady, self.wall) = (steady, wall);
                return;
            }
        }
    }

    /// When a packet came that is stamped `at`, time since 1970; `now` where that is absurd.
    pub(crate) fn arrived(&self, now: Instant, at: Duration) -> Instant {
        let at = SystemTime::UNIX_EPOCH + at;
        let arrived = match at.duration_since(self.wall) {
            Ok(later) => self.steady + later,
            Err(earlier) => self.steady.checked_sub(earlier.duration()).unwrap_or(now),
        };
        if arrived <= now && now - arrived <= WAITED_MAX { arrived } else { now }
    }
}
