//! How much to have under way: the bandwidth-delay product, as it shows.
//!
//! The delay is the shortest time that a block took from being posted to being acknowledged,
//! the bandwidth the greatest amount that was acknowledged in twice as long a time, at most a tenth of a second:
//! while the network keeps up with the window, that doubles each time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Least window: what a network may need of which no more than its round trip is known, up to
/// this one, and as many times more on a longer one. Bytes. It is what 5 Gb/s hold twice, and 1 Gb/s ten times: what
/// is lost comes a round trip later, or two, and holds up what follows it.
const LEAST: u64 = 32 << 20;
const LEAST_TRIP: Duration = Duration::from_millis(24);
/// The same within a host or a site, which has room for little, and answers at once: few buffers stay in the
/// processor's caches, and cost no memory that is touched for the first time. Bytes, and the round trip below which.
const LEAST_NEAR: u64 = 8 << 20;
const NEAR: Duration = Duration::from_millis(1);
/// Least window in blocks.
const LEAST_BLOCKS: u64 = 4;
/// Over how long the bandwidth is taken: twice the delay, lest a burst counts for much, within these.
const LOOK_LEAST: Duration = Duration::from_millis(20);
const LOOK_MOST: Duration = Duration::from_millis(100);

/// What to have under way on a path of this round trip before more is known of it. Bytes.
pub(crate) fn at_first(round_trip: Option<Duration>) -> u64 {
    if is_near(round_trip) { LEAST_NEAR } else { scaled(LEAST, LEAST_TRIP, round_trip) }
}

/// The other side is in this host or site: who waits for its answer loses next to nothing.
pub(crate) fn is_near(round_trip: Option<Duration>) -> bool {
    round_trip.is_some_and(|round_trip| round_trip < NEAR)
}

/// So many bytes, or for a longer round trip than `trip` as many times more.
pub(crate) fn scaled(bytes: u64, trip: Duration, round_trip: Option<Duration>) -> u64 {
    let times = round_trip.map_or(1.0, |it| it.as_secs_f64() / trip.as_secs_f64());
    (bytes as f64 * times.max(1.0)) as u64
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Gauge {
    block: u64,
    most: u64,
    window: u64,
    posted: VecDeque<(Instant, u64)>,
    delay: Option<Duration>,
    since: Instant,
    bytes: u64,
    /// Most bytes a second.
    rate: f64,
}

impl Gauge {
    /// For blocks of this size, and never more than `most` bytes.
    pub(crate) fn new(block: u64, most: u64) -> Self {
        let most = most.max(block * LEAST_BLOCKS);
        let window = LEAST.max(block * LEAST_BLOCKS).min(most);
        let since = Instant::now();
        Self { block, most, window, posted: VecDeque::new(), delay: None, since, bytes: 0, rate: 0.0 }
    }

    /// How much may be read and under way. Bytes.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Now the path's round trip is known, and nothing else of it yet.
    pub(crate) fn expect(&mut self, round_trip: Option<Duration>) {
        self.window = at_first(round_trip).max(self.block * LEAST_BLOCKS).min(self.most);
    }

    pub(crate) fn posted(&mut self, bytes: u64) {
        self.posted.push_back((Instant::now(), bytes));
    }

    pub(crate) fn delivered(&mut self, bytes: u64) {
        self.bytes += bytes;
        // Blocks end nearly in the order in which they began.
        if let Some((at, _)) = self.posted.pop_front() {
            let took = at.elapsed();
            self.delay = Some(self.delay.map_or(took, |delay| delay.min(took)));
        }
    }

    /// Adapts the window if it is time.
    pub(crate) fn look(&mut self) {
        let spent = self.since.elapsed();
        if spent < self.delay.map_or(LOOK_MOST, |delay| 2 * delay).clamp(LOOK_LEAST, LOOK_MOST) {
            return;
        }
        self.rate = self.rate.max(self.bytes as f64 / spent.as_secs_f64());
        (self.since, self.bytes) = (Instant::now(), 0);
        if let Some(delay) = self.delay {
            // Twice: one product under way, one read ahead or on its way back as acknowledgement.
            let product = (self.rate * delay.as_secs_f64()) as u64;
            let wanted = product.saturating_mul(2).saturating_add(LEAST_BLOCKS * self.block);
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
