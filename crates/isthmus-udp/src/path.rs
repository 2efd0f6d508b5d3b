//! A network path: its measured round trip, delay and loss, and what the next connection inherits of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Micros;
use crate::wire::Token;

/// Minimum of a quantity over the last 15 to 30 s.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowedLeast {
    current: Option<i64>,
    previous: Option<i64>,
    since: Micros,
}

/// Half of the window. Microseconds (15 s). Long enough to contain a moment with short queues; short enough that clocks
/// that drift by 50 ppm differ by at most 1.5 ms.
const HALF_WINDOW_US: Micros = 15_000_000;

impl WindowedLeast {
    fn note(&mut self, now: Micros, value: i64) {
        if now.saturating_sub(self.since) >= HALF_WINDOW_US {
            self.previous = self.current.take();
            self.since = now;
        }
        self.current = Some(self.current.map_or(value, |least| least.min(value)));
    }

    fn get(&self) -> Option<i64> {
        match (self.current, self.previous) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

/// Measurements of round trip, one-way delay and loss.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    smoothed: Option<Micros>,
    variation: Micros,
    least: WindowedLeast,
    /// One-way delay, plus the difference between the two clocks.
    delay: WindowedLeast,
    /// Longest queue seen. Microseconds.
    queue_most_us: Micros,
    /// The receiver's clock, extended to 64 bits.
    clock: Option<u64>,
    losses: Losses,
    /// Losses of all streams to the host.
    common: Arc<Common>,
    runs: Runs,
    /// Share of packets lost that another process has measured.
    told_loss: Option<f64>,
}

/// Loss ratios over about 1,000 packets and over about 100,000.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    lately: Ratio<1_000>,
    seldom: Ratio<100_000>,
}

impl Losses {
    fn note(&mut self, hits: f64, all: f64) {
        self.lately.note(hits, all);
        self.seldom.note(hits, all);
    }

    fn recall(loss: f64) -> Self {
        let (hits, all) = (loss * 100.0, 100.0);
        Self { lately: Ratio { hits, all }, seldom: Ratio { hits, all } }
    }

    fn most(&self) -> f64 {
        self.lately.get().max(self.seldom.get())
    }
}

/// Losses of all streams of a port to one host. A stream that sends little would not learn them by itself. Only the
/// holder of the port uses it, so the four values need not change together.
#[derive(Debug, Default)]
pub(crate) struct Common([AtomicU64; 4]);

impl Common {
    fn get(&self) -> Losses {
        let [a, b, c, d] = &self.0;
        let [a, b, c, d] = [a, b, c, d].map(|bits| f64::from_bits(bits.load(Relaxed)));
        Losses { lately: Ratio { hits: a, all: b }, seldom: Ratio { hits: c, all: d } }
    }

    fn set(&self, Losses { lately, seldom }: Losses) {
        let values = [lately.hits, lately.all, seldom.hits, seldom.all];
        self.0.iter().zip(values).for_each(|(bits, value)| bits.store(value.to_bits(), Relaxed));
    }
}

/// Ratio of about the last `MEMORY` events; older ones fade.
#[derive(Clone, Copy, Debug, Default)]
struct Ratio<const MEMORY: u32> {
    hits: f64,
    all: f64,
}

impl<const MEMORY: u32> Ratio<MEMORY> {
    fn note(&mut self, hits: f64, all: f64) {
        let keep = (1.0 - all / f64::from(MEMORY)).max(0.0);
        self.hits = (self.hits * keep + hits).max(0.0);
        self.all = self.all * keep + all;
    }

    fn get(&self) -> f64 {
        if self.all > 0.0 { (self.hits / self.all).min(1.0) } else { 0.0 }
    }
}

/// Average length of loss runs, over about the last [`Runs::MEMORY`] of them.
#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    packets: f64,
    runs: f64,
    last: Option<u64>,
}

impl Runs {
    const MEMORY: f64 = 100.0;

    fn note(&mut self, number: u64) {
        if self.last.is_none_or(|last| number != last + 1) {
            let keep = 1.0 - 1.0 / Self::MEMORY;
            (self.packets, self.runs) = (self.packets * keep, self.runs * keep + 1.0);
        }
        self.packets += 1.0;
        self.last = Some(number);
    }
}

/// A path's loss is known after this many packets. Before that, an assumption counts too.
const KNOWN_PACKETS: f64 = 64.0;
/// Assumed share of packets lost, unless another process has measured it.
const SUPPOSED_LOSS: f64 = 0.1;
/// Weight of the assumption, in packets (the prior of a beta distribution).
const SUPPOSED_PACKETS: f64 = 30.0;
/// Below this round trip no loss is assumed. Repair of a loss takes about as long on all such paths, and not long.
/// Microseconds.
const NEAR_US: Micros = 5_000;
/// Round trip assumed before the first measurement. Microseconds.
const RTT_FIRST_US: Micros = 200_000;
/// Shortest probe timeout. Microseconds.
const PROBE_MIN_US: Micros = 5_000;
/// The same in acknowledgement delays. The shorter of the two counts.
const PROBE_MIN_DELAYS: Micros = 8;

impl Path {
    /// Smoothed round trip; `None` before the first. Microseconds.
    pub(crate) fn rtt_us(&self) -> Option<Micros> {
        self.smoothed
    }

    /// Least round trip of the last 15 to 30 s. Microseconds.
    pub(crate) fn rtt_least_us(&self) -> Option<Micros> {
        self.least.get().map(|least| least as Micros)
    }

    /// Share of packets lost lately: the stream's own, or that of all streams to the host if it is larger.
    pub(crate) fn loss(&self) -> f64 {
        self.losses.lately.get().max(self.common.get().lately.get())
    }

    /// The same; `None` before `KNOWN_PACKETS` have shown it.
    pub(crate) fn loss_known(&self) -> Option<f64> {
        (self.seen().all >= KNOWN_PACKETS).then(|| self.loss())
    }

    /// The same, or an assumption before it is known: the first small messages cannot wait for that.
    pub(crate) fn loss_supposed(&self) -> f64 {
        let (loss, seen) = (self.loss(), self.seen());
        let is_near = self.smoothed.is_some_and(|rtt| rtt < NEAR_US);
        if is_near || seen.all >= KNOWN_PACKETS {
            return loss;
        }
        let supposed = self.told_loss.unwrap_or(SUPPOSED_LOSS) * SUPPOSED_PACKETS;
        loss.max((seen.hits + supposed) / (seen.all + SUPPOSED_PACKETS))
    }

    /// The stream's own ratio, or that of all streams to the host if it counts more packets.
    fn seen(&self) -> Ratio<1_000> {
        let [own, common] = [self.losses, self.common.get()].map(|losses| losses.lately);
        if own.all > common.all { own } else { common }
    }

    /// Notes the share of packets lost that another process has measured.
    pub(crate) fn suppose_loss(&mut self, loss: f64) {
        self.told_loss = Some(loss);
    }

    /// Share of packets lost, also if it is so small that only many packets show it.
    pub(crate) fn loss_seldom(&self) -> f64 {
        self.losses.most().max(self.common.get().most())
    }

    /// Average number of successive packets that are lost together. At least 1.
    pub(crate) fn run(&self) -> f64 {
        if self.runs.runs > 0.0 { (self.runs.packets / self.runs.runs).max(1.0) } else { 1.0 }
    }

    /// Notes a lost packet.
    pub(crate) fn note_lost(&mut self, number: u64) {
        self.runs.note(number);
    }

    /// Probe timeout (RFC 9002, 6.2). Microseconds.
    pub(crate) fn probe_after_us(&self, ack_delay_us: Micros) -> Micros {
        let rtt = self.smoothed.unwrap_or(RTT_FIRST_US);
        let least = PROBE_MIN_US.min(PROBE_MIN_DELAYS * ack_delay_us);
        (rtt + (4 * self.variation).max(1_000) + ack_delay_us).max(least)
    }

    /// Notes a measured round trip (RFC 6298).
    pub(crate) fn note_rtt(&mut self, now: Micros, rtt_us: Micros) {
        self.least.note(now, rtt_us as i64);
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt_us);
            self.variation = rtt_us / 2;
            return;
        };
        self.variation = (3 * self.variation + smoothed.abs_diff(rtt_us)) / 4;
        self.smoothed = Some((7 * smoothed + rtt_us) / 8);
    }

    /// Extends the receiver's time from its low 32 bits.
    pub(crate) fn unwrap_clock(&mut self, low: u32) -> u64 {
        let clock = match self.clock {
            None => u64::from(low) + (1 << 32),
            Some(last) => last.wrapping_add_signed(i64::from(low.wrapping_sub(last as u32) as i32)),
        };
        self.clock = Some(self.clock.map_or(clock, |last| last.max(clock)));
        clock
    }

    /// Notes when a packet left by our clock and arrived by the receiver's. Returns its queueing delay: what exceeds
    /// the least delay. Microseconds.
    pub(crate) fn note_delay(&mut self, now: Micros, sent_at: Micros, arrived: u64) -> Micros {
        let delay = arrived.wrapping_sub(sent_at) as i64;
        self.delay.note(now, delay);
        let queue_us = (delay - self.delay.get().unwrap_or(delay)).max(0) as Micros;
        self.queue_most_us = self.queue_most_us.max(queue_us);
        queue_us
    }

    /// Longest queue seen: the bottleneck has room for at least that. Microseconds.
    pub(crate) fn queue_most_us(&self) -> Micros {
        self.queue_most_us
    }

    /// Notes packets acknowledged, lost, and late. A late one had counted as lost and no longer does.
    pub(crate) fn note_fates(&mut self, acked: usize, lost: usize, late: usize) {
        let (hits, all) = (lost as f64 - late as f64, (acked + lost) as f64);
        self.losses.note(hits, all);
        let mut common = self.common.get();
        common.note(hits, all);
        self.common.set(common);
    }

    /// Shares losses with all streams to the host.
    pub(crate) fn join(&mut self, common: Arc<Common>) {
        if common.get().lately.all == 0.0 {
            common.set(self.losses);
        }
        self.common = common;
    }

    /// Begins with what an earlier connection has left.
    pub(crate) fn recall(&mut self, learned: &Learned) {
        self.losses = learned.loss.map_or(self.losses, Losses::recall);
        if self.smoothed.is_none() && learned.rtt_us > 0 {
            self.smoothed = Some(learned.rtt_us);
            self.variation = learned.rtt_us / 8;
        }
    }
}

/// What a connection leaves to the next one with the same host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// When it was learned, by the caller's clock. Microseconds.
    pub at: Micros,
    /// Capacity of the path as the congestion control knew it; 0 if unknown. Bytes/s (wire).
    pub capacity: u64,
    /// Least round trip. Microseconds.
    pub rtt_us: Micros,
    /// Share of packets lost; `None` if too few packets have shown it.
    pub loss: Option<f64>,
    /// Largest UDP payload that passed. Bytes.
    pub mtu: u32,
    /// Address validation token, which saves the next connection a round trip; all zero if there is none.
    pub token: Token,
    /// Bytes that the bearer of the token may send at once.
    pub peer_window: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_clock_wraps_and_steps_back_without_harm() {
        let mut path = Path::default();
        let start = path.unwrap_clock(u32::MAX - 10);
        assert_eq!(path.unwrap_clock(5), start + 16);
        assert_eq!(path.unwrap_clock(u32::MAX - 20), start - 10, "an older acknowledgement");
        assert_eq!(path.unwrap_clock(100), start + 111);
    }

    #[test]
    fn queueing_is_delay_beyond_the_least_of_the_last_seconds() {
        let mut path = Path::default();
        assert_eq!(path.note_delay(0, 1_000, 500), 0);
        assert_eq!(path.note_delay(1, 2_000, 1_800), 300);
        assert_eq!(path.note_delay(2, 3_000, 2_400), 0);
        assert_eq!(path.note_delay(3, 4_000, 3_500), 100);
        // The path has become longer. Its new delay is the least once the window has passed.
        for i in 0..50 {
            path.note_delay(i * 1_000_000, 0, 50_000);
        }
        assert_eq!(path.note_delay(50_000_000, 0, 50_000), 0);
    }

    #[test]
    fn the_loss_ratio_follows_and_takes_back() {
        let mut path = Path::default();
        (0..100).for_each(|_| path.note_fates(90, 10, 0));
        assert!((path.loss() - 0.1).abs() < 0.001);
        (0..100).for_each(|_| path.note_fates(100, 0, 0));
        assert!(path.loss() < 0.001);
        path.note_fates(50, 50, 0);
        path.note_fates(0, 0, 50);
        assert!(path.loss() < 0.001);
    }

    #[test]
    fn streams_to_one_host_know_what_all_of_them_lose() {
        let (common, mut bulk, mut little) = (Arc::<Common>::default(), Path::default(), Path::default());
        [&mut bulk, &mut little].into_iter().for_each(|path| path.join(common.clone()));
        (0..10).for_each(|_| bulk.note_fates(98, 2, 0));
        assert!(little.loss_seldom() > 0.019, "what was learned by another");
        little.note_fates(3, 0, 0);
        assert!((0.019..0.021).contains(&little.loss()) && (0.019..0.021).contains(&little.loss_seldom()));
        // Losses of one stream count fully for that stream.
        little.note_fates(0, 3, 0);
        assert!(little.loss() > 0.4 && bulk.loss() < 0.03);
    }

    #[test]
    fn a_path_of_which_little_is_known_is_supposed_to_lose_a_tenth_or_what_others_found() {
        let supposed = |path: &Path| (path.loss_supposed() * 1_000.0).round();
        let mut path = Path::default();
        assert_eq!((supposed(&path), path.loss()), (100.0, 0.0));
        path.note_fates(30, 0, 0);
        assert_eq!(supposed(&path), 50.0);
        path.note_fates(40, 0, 0);
        assert_eq!(supposed(&path), 0.0, "now it is known");
        let mut lossy = Path::default();
        lossy.note_fates(28, 2, 0);
        assert_eq!(supposed(&lossy), 83.0);
        let mut told = Path::default();
        told.suppose_loss(0.0);
        assert_eq!(supposed(&told), 0.0);
        told.note_fates(9, 1, 0);
        assert_eq!((supposed(&told), told.loss()), (100.0, 0.1), "what it sees itself counts");
        let mut near = Path::default();
        near.note_rtt(0, NEAR_US - 1);
        assert_eq!(supposed(&near), 0.0);
    }

    #[test]
    fn round_trips_are_smoothed_and_the_least_is_kept() {
        let mut path = Path::default();
        for (at, rtt) in [(0, 10_000), (1, 12_000), (2, 9_000), (3, 30_000)] {
            path.note_rtt(at, rtt);
        }
        assert_eq!(path.rtt_least_us(), Some(9_000));
        assert!(path.rtt_us().is_some_and(|rtt| (10_000..15_000).contains(&rtt)));
        assert!(path.probe_after_us(1_000) > 15_000);
    }
}
