//! Whether a round trip shows a queue.

use crate::Micros;
use crate::thresholds::queue::{LOSS_MIN_US, LOSS_PART, MIN_US, PART};

/// Whether a round trip shows a queue that matters, where `least_us` is the shortest one. Microseconds.
pub(crate) fn is_large(rtt_us: Micros, least_us: Micros) -> bool {
    rtt_us > least_us + (least_us / PART).max(MIN_US)
}

/// Whether a round trip shows a queue at all: the finer test, for losses.
pub(crate) fn is_at_all(rtt_us: Micros, least_us: Micros) -> bool {
    rtt_us > least_us + (least_us / LOSS_PART).max(LOSS_MIN_US)
}
