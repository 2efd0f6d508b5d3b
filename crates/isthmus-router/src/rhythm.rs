//! Decides whether to poll for the next message before the thread sleeps.
//!
//! The kernel takes longer to wake a thread than to pass on a small message. If two ends exchange small messages in
//! alternation, nothing else is to be done meanwhile. So the lane is polled for about as long as the last exchange
//! took.
//! A lane that carries bulk data, that does not alternate, or whose exchanges are long sleeps at once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::task::yield_now;

/// Longest message that counts as small. Bytes; longer ones are worth a wake-up.
const SMALL: usize = 1024;
/// Longest time between two messages of an alternating exchange. Microseconds; beyond it polling costs too much CPU.
const TURN_MAX: u64 = 100;
/// Number of alternations in a row after which polling begins.
const TURNS: u64 = 8;
/// Polling lasts this multiple of the last time between messages.
const PATIENCE: u64 = 2;

/// A direction of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    There = 1,
    Back = 2,
}

/// The timing of one lane's messages; see the module. Both directions of a lane share one.
pub(crate) struct Rhythm {
    since: Instant,
    /// When the last message passed, and the time between it and the one before. Microseconds.
    last: AtomicU64,
    turn: AtomicU64,
    /// The direction of the last message; 0 if none has passed.
    way: AtomicU64,
    /// Alternations in a row.
    turns: AtomicU64,
}

impl Default for Rhythm {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { since: Instant::now(), last: zero(), turn: zero(), way: zero(), turns: zero() }
    }
}

impl Rhythm {
    fn now(&self) -> u64 {
        self.since.elapsed().as_micros() as u64
    }

    /// Counts a message of `bytes` bytes.
    pub(crate) fn note(&self, way: Way, bytes: usize) {
        self.note_at(self.now(), way, bytes);
    }

    fn note_at(&self, now: u64, way: Way, bytes: usize) {
        let turn = now.saturating_sub(self.last.swap(now, Relaxed));
        let alternates = self.way.swap(way as u64, Relaxed) == 3 - way as u64;
        let goes_on = alternates && bytes <= SMALL && turn <= TURN_MAX;
        self.turn.store(turn, Relaxed);
        self.turns.store(if goes_on { self.turns.load(Relaxed) + 1 } else { 0 }, Relaxed);
    }

    /// The time until which polling pays. Microseconds; 0 if it does not pay.
    fn until(&self) -> u64 {
        let steady = self.turns.load(Relaxed) >= TURNS;
        if steady { self.last.load(Relaxed) + PATIENCE * self.turn.load(Relaxed).max(1) } else { 0 }
    }

    /// Polls until something is ready: in a loop while that pays, then asleep.
    pub(crate) async fn look<T>(&self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        while self.until() > self.now() {
            // Poll with a waker that wakes nobody.
            let mut looked = None;
            std::future::poll_fn(|cx| {
                if let Poll::Ready(found) = poll(cx) {
                    looked = Some(found);
                }
                Poll::Ready(())
            })
            .await;
            if let Some(found) = looked {
                return found;
            }
            yield_now().await;
        }
        std::future::poll_fn(poll).await
    }

    /// How long polling lasts. For tests.
    #[cfg(test)]
    fn patience(&self) -> std::time::Duration {
        std::time::Duration::from_micros(self.until().saturating_sub(self.last.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Turns of 20 microseconds, so many of them.
    fn after(turns: u64) -> Rhythm {
        let rhythm = Rhythm::default();
        for turn in 0..=turns {
            let way = if turn % 2 == 0 { Way::There } else { Way::Back };
            rhythm.note_at(1000 + 20 * turn, way, 8);
        }
        rhythm
    }

    #[test]
    fn small_messages_turn_by_turn_are_looked_for_as_long_as_a_turn_takes() {
        assert_eq!(after(TURNS - 1).patience(), Duration::ZERO);
        assert_eq!(after(TURNS).patience(), Duration::from_micros(40));
    }

    #[test]
    fn bulk_one_direction_and_long_turns_end_the_rhythm() {
        for (at, way, bytes) in [(1180, Way::Back, SMALL + 1), (1180, Way::There, 8), (1400, Way::Back, 8)] {
            let rhythm = after(TURNS);
            rhythm.note_at(at, way, bytes);
            assert_eq!(rhythm.patience(), Duration::ZERO, "{at} {way:?} {bytes}");
        }
    }
}
