//! Decides whether to poll for the next message before the thread sleeps.
//!
//! The kernel takes longer to wake a thread than to pass on a small message. If two ends exchange small messages in
//! alternation, there is nothing else to do meanwhile. So the lane is polled for about as long as the last exchange
//! took. A lane that carries bulk data, that does not alternate, or whose exchanges are long sleeps at once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::task::yield_now;

/// Longest message that counts as small. Bytes; longer ones are worth a wake-up.
const SMALL: usize = 1024;
/// Longest time between two messages of an alternating exchange. Microseconds; beyond it polling costs too much CPU.
const EXCHANGE_MAX: u64 = 100;
/// Number of alternations in a row after which polling begins.
const EXCHANGES: u64 = 8;
/// Polling lasts this multiple of the last time between messages.
const PATIENCE: u64 = 2;

/// A direction of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    There = 1,
    Back = 2,
}

/// The timing of one lane's messages; see the module. Both directions of a lane share one.
pub(crate) struct SpinTimer {
    since: Instant,
    /// When the last message passed, and the time between it and the one before. Microseconds.
    last: AtomicU64,
    exchange: AtomicU64,
    /// The direction of the last message; 0 if none has passed.
    direction: AtomicU64,
    /// Alternations in a row.
    exchanges: AtomicU64,
}

impl Default for SpinTimer {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { since: Instant::now(), last: zero(), exchange: zero(), direction: zero(), exchanges: zero() }
    }
}

impl SpinTimer {
    fn now(&self) -> u64 {
        self.since.elapsed().as_micros() as u64
    }

    /// Counts a message of `bytes` bytes.
    pub(crate) fn note(&self, direction: Direction, bytes: usize) {
        self.note_at(self.now(), direction, bytes);
    }

    fn note_at(&self, now: u64, direction: Direction, bytes: usize) {
        let exchange = now.saturating_sub(self.last.swap(now, Relaxed));
        let alternates = self.direction.swap(direction as u64, Relaxed) == 3 - direction as u64;
        let goes_on = alternates && bytes <= SMALL && exchange <= EXCHANGE_MAX;
        self.exchange.store(exchange, Relaxed);
        self.exchanges.store(if goes_on { self.exchanges.load(Relaxed) + 1 } else { 0 }, Relaxed);
    }

    /// The time until which polling pays. Microseconds; 0 if it does not pay.
    fn until(&self) -> u64 {
        let steady = self.exchanges.load(Relaxed) >= EXCHANGES;
        if steady { self.last.load(Relaxed) + PATIENCE * self.exchange.load(Relaxed).max(1) } else { 0 }
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

    /// The time for which polling lasts. For tests.
    #[cfg(test)]
    fn patience(&self) -> std::time::Duration {
        std::time::Duration::from_micros(self.until().saturating_sub(self.last.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// This many exchanges of 20 microseconds each.
    fn after(exchanges: u64) -> SpinTimer {
        let spin = SpinTimer::default();
        for exchange in 0..=exchanges {
            let direction = if exchange % 2 == 0 { Direction::There } else { Direction::Back };
            spin.note_at(1000 + 20 * exchange, direction, 8);
        }
        spin
    }

    #[test]
    fn small_messages_turn_by_turn_are_looked_for_as_long_as_a_turn_takes() {
        assert_eq!(after(EXCHANGES - 1).patience(), Duration::ZERO);
        assert_eq!(after(EXCHANGES).patience(), Duration::from_micros(40));
    }

    #[test]
    fn bulk_one_direction_and_long_turns_end_the_rhythm() {
        for (at, direction, bytes) in
            [(1180, Direction::Back, SMALL + 1), (1180, Direction::There, 8), (1400, Direction::Back, 8)]
        {
            let spin = after(EXCHANGES);
            spin.note_at(at, direction, bytes);
            assert_eq!(spin.patience(), Duration::ZERO, "{at} {direction:?} {bytes}");
        }
    }
}
