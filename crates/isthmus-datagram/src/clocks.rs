//! Converts packets' wall-clock times to the steady clock.

use std::time::{Duration, Instant, SystemTime};

/// Longest plausible wait of a packet. Beyond it the wall clock was set.
const WAITED_MAX: Duration = Duration::from_secs(1);

/// A reading of both clocks. The system stamps packets by the wall clock. All else uses the steady one.
#[derive(Debug)]
pub(crate) struct Clocks {
    steady: Instant,
    wall: SystemTime,
}

impl Clocks {
    /// Longest time between readings of both clocks that counts as simultaneous.
    const AT_ONCE: Duration = Duration::from_micros(20);
    /// Most attempts at that. If all fail, the last comparison holds.
    const TRIES: usize = 3;

    pub(crate) fn new() -> Self {
        let mut clocks = Self { steady: Instant::now(), wall: SystemTime::now() };
        clocks.compare();
        clocks
    }

    /// Reads both clocks. If the thread were interrupted between them, packets would seem older than
    /// they are, and every later packet would seem delayed.
    pub(crate) fn compare(&mut self) {
        for _ in 0..Self::TRIES {
            let (steady, wall) = (Instant::now(), SystemTime::now());
            if steady.elapsed() < Self::AT_ONCE {
                (self.steady, self.wall) = (steady, wall);
                return;
            }
        }
    }

    /// Arrival of a packet stamped `at`, the time since 1970; `now` if the stamp is implausible.
    pub(crate) fn arrived(&self, now: Instant, at: Duration) -> Instant {
        let at = SystemTime::UNIX_EPOCH + at;
        let arrived = match at.duration_since(self.wall) {
            Ok(later) => self.steady + later,
            Err(earlier) => self.steady.checked_sub(earlier.duration()).unwrap_or(now),
        };
        if arrived <= now && now - arrived <= WAITED_MAX { arrived } else { now }
    }
}
