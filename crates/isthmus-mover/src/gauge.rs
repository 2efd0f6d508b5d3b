//! Measures the bandwidth-delay product, which sets how many bytes are kept in flight.
//!
//! The delay is the shortest time from the post of a block to its acknowledgement. The bandwidth is the greatest amount
//! acknowledged within twice the delay, or within 100 ms if that is shorter. While the network keeps up with the
//! window, the window doubles each time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Smallest window while only the round trip of a path is known. Bytes. It holds for round trips up to the one below,
/// and grows in proportion on longer paths. It is twice the product of a 5 Gb/s path, and ten times that of 1 Gb/s,
/// because a lost packet comes one or two round trips later and delays what follows.
const MIN_WINDOW: u64 = 32 << 20;
const MIN_WINDOW_TRIP: Duration = Duration::from_millis(24);
/// Smallest window within a host or a site, and the round trip below which a path counts so. Bytes. Such a path needs
/// few buffers. Few buffers stay in the processor's caches, and touch no new memory.
const MIN_NEAR: u64 = 8 << 20;
const NEAR: Duration = Duration::from_millis(1);
/// Smallest window in blocks, so that disk threads and network work at the same time.
const MIN_BLOCKS: u64 = 4;
/// Limits on the interval over which the bandwidth is measured. The interval is twice the delay, so that a burst counts
/// little.
const MIN_LOOK: Duration = Duration::from_millis(20);
const MAX_LOOK: Duration = Duration::from_millis(100);

/// The first window for a path of this round trip. Bytes.
pub(crate) fn at_first(round_trip: Option<Duration>) -> u64 {
    if is_near(round_trip) { MIN_NEAR } else { scaled(MIN_WINDOW, MIN_WINDOW_TRIP, round_trip) }
}

/// Whether the other side is in this host or site, so that waiting for its answer costs next to nothing.
pub(crate) fn is_near(round_trip: Option<Duration>) -> bool {
    round_trip.is_some_and(|round_trip| round_trip < NEAR)
}

/// `bytes`, or more in proportion if the round trip is longer than `trip`.
pub(crate) fn scaled(bytes: u64, trip: Duration, round_trip: Option<Duration>) -> u64 {
    let times = round_trip.map_or(1.0, |it| it.as_secs_f64() / trip.as_secs_f64());
    (bytes as f64 * times.max(1.0)) as u64
}

/// Measures a session's path; see the module.
#[derive(Debug)]
pub(crate) struct Gauge {
    block: u64,
    most: u64,
    window: u64,
    posted: VecDeque<(Instant, u64)>,
    delay: Option<Duration>,
    since: Instant,
    bytes: u64,
    /// Highest rate measured. Bytes/s.
    rate: f64,
}

impl Gauge {
    /// Makes it for blocks of `block` bytes. The window never exceeds `most` bytes.
    pub(crate) fn new(block: u64, most: u64) -> Self {
        let most = most.max(block * MIN_BLOCKS);
        let window = MIN_WINDOW.max(block * MIN_BLOCKS).min(most);
        let since = Instant::now();
        Self { block, most, window, posted: VecDeque::new(), delay: None, since, bytes: 0, rate: 0.0 }
    }

    /// Limit on the bytes that are read and in flight.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Sets the path's round trip, when nothing else of the path is known.
    pub(crate) fn expect(&mut self, round_trip: Option<Duration>) {
        self.window = at_first(round_trip).max(self.block * MIN_BLOCKS).min(self.most);
    }

    pub(crate) fn posted(&mut self, bytes: u64) {
        self.posted.push_back((Instant::now(), bytes));
    }

    pub(crate) fn delivered(&mut self, bytes: u64) {
        self.bytes += bytes;
        // Blocks end nearly in the order in which they were posted.
        if let Some((at, _)) = self.posted.pop_front() {
            let took = at.elapsed();
            self.delay = Some(self.delay.map_or(took, |delay| delay.min(took)));
        }
    }

    /// Adapts the window if the interval has passed.
    pub(crate) fn look(&mut self) {
        let spent = self.since.elapsed();
        if spent < self.delay.map_or(MAX_LOOK, |delay| 2 * delay).clamp(MIN_LOOK, MAX_LOOK) {
            return;
        }
        self.rate = self.rate.max(self.bytes as f64 / spent.as_secs_f64());
        (self.since, self.bytes) = (Instant::now(), 0);
        if let Some(delay) = self.delay {
            // Twice: one product is in flight; the other is read ahead, or comes back as acknowledgements.
            let product = (self.rate * delay.as_secs_f64()) as u64;
            let wanted = product.saturating_mul(2).saturating_add(MIN_BLOCKS * self.block);
            self.window = self.window.max(wanted).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_given_more_from_the_beginning_within_the_memory() {
        let least = Gauge::new(1 << 20, 256 << 20).window();
        let window = |most, ms| {
            let mut gauge = Gauge::new(1 << 20, most);
            gauge.expect(ms);
            gauge.window()
        };
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(window(256 << 20, None), least);
        assert_eq!(window(256 << 20, ms(1)), least);
        assert_eq!(window(256 << 20, Some(Duration::from_micros(50))), least / 4);
        assert_eq!(window(256 << 20, ms(96)), 4 * least);
        assert_eq!(window(64 << 20, ms(1000)), 64 << 20);
    }
}
