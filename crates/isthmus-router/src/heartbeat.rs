//! A link's heartbeat. Each end sends at least one byte every [`PAUSE`]. So silence means that the other end hangs or
//! that the path is cut. TCP reports a cut only after many seconds, and a hang never.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between two beats. Several beats fit into [`SILENCE`], so that one lost packet does not matter.
pub(crate) const PAUSE: Duration = Duration::from_millis(300);
/// A link that was silent for this time gets no new lanes. It leaves time to send a lost beat again.
const SILENCE: Duration = Duration::from_secs(2);

/// When the last bytes came from the other end. Any bytes count, not only beats.
pub(crate) struct Heard {
    since: Instant,
    /// Milliseconds after `since`.
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

    /// Whether the other end was heard within [`SILENCE`].
    pub(crate) fn lives(&self) -> bool {
        let silence = self.elapsed().saturating_sub(self.last.load(Relaxed));
        Duration::from_millis(silence) < SILENCE
    }
}
