//! A link's signs of life. Each end says something at least every [`PAUSE`], so that silence
//! means something: the other end hangs, or the way is cut. TCP tells the second after many
//! seconds, and the first never.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Between two beats.
pub(crate) const PAUSE: Duration = Duration::from_millis(300);
/// A link that has said nothing for so long is not used for new lanes. A beat that was lost
/// has time to be sent again.
const SILENCE: Duration = Duration::from_secs(2);

/// When something was last heard of the other end: any bytes are a sign of life.
pub(crate) struct Heard {
    since: Instant,
    /// Milliseconds from `since`.
    last: AtomicU64,
}

impl Heard {
    pub(crate) fn now() -> Self {
        Self { since: Instant::now(), last: AtomicU64::new(0) }
    }

    pub(crate) fn note(&self) {
        self.last.store(self.elapsed(), Relaxed);
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the other end gives signs of life.
    pub(crate) fn lives(&self) -> bool {
        let silence = self.elapsed().saturating_sub(self.last.load(Relaxed));
        Duration::from_millis(silence) < SILENCE
    }
}
