//! Shapes of real paths beyond a steady delay and a fixed rate: several kinds of jitter, policers, and changes
//! of rate or route.

use crate::rng::Rng;

const NS_PER_S: u128 = 1_000_000_000;

/// Distribution of the extra delay, up to [`jitter_ns`](super::DirectionSpec::jitter_ns).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Jitter {
    /// Uniform, drawn for each packet.
    #[default]
    Uniform,
    /// Mostly small, sometimes large (a Pareto distribution), drawn for each period. On shared hosts and radio
    /// links a delay persists for a while.
    HeavyTailed {
        /// Length of a period. Nanoseconds, at least 1.
        every_ns: u64,
    },
    /// Nothing passes for `jitter_ns` at the beginning of each period. Then all waiting packets arrive together, as
    /// after a Wi-Fi scan, a virtual machine's pause, or a satellite hand-over.
    Spikes {
        /// Length of a period. Nanoseconds, at least 1.
        every_ns: u64,
    },
}

/// Exponent of the Pareto distribution. Below 2 its variance is infinite.
const PARETO_EXPONENT: f64 = 1.2;
/// Scale of the distribution, as a fraction of `jitter_ns`: about one period in 250 has the most jitter.
const PARETO_SCALE: f64 = 0.01;

/// Draws jitter.
#[derive(Clone, Debug)]
pub(super) struct JitterSource {
    shape: Jitter,
    most_ns: u64,
    rng: Rng,
    /// The current period and its extra delay in nanoseconds.
    period: Option<u64>,
    extra_ns: u64,
}

impl JitterSource {
    pub(super) fn new(shape: Jitter, most_ns: u64, rng: Rng) -> Self {
        Self { shape, most_ns, rng, period: None, extra_ns: 0 }
    }

    /// Extra delay of a packet whose serialisation ended at `sent_ns`. Nanoseconds.
    pub(super) fn draw(&mut self, sent_ns: u64) -> u64 {
        if self.most_ns == 0 {
            return 0;
        }
        match self.shape {
            Jitter::Uniform => self.rng.up_to(self.most_ns),
            Jitter::HeavyTailed { every_ns } => {
                let period = sent_ns / every_ns;
                if self.period != Some(period) {
                    self.period = Some(period);
                    self.extra_ns = self.pareto();
                }
                self.extra_ns
            }
            Jitter::Spikes { every_ns } => self.most_ns.saturating_sub(sent_ns % every_ns),
        }
    }

    fn pareto(&mut self) -> u64 {
        let u = (self.rng.up_to(999_999) + 1) as f64 / 1e6;
        let extra = self.most_ns as f64 * PARETO_SCALE * (u.powf(-1.0 / PARETO_EXPONENT) - 1.0);
        (extra as u64).min(self.most_ns)
    }
}

/// A token bucket (RFC 2697). It drops a packet that finds too few tokens; it has no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Rate at which tokens arrive. Bits per second.
    pub rate_bps: u64,
    /// Most tokens. Bytes (wire cost).
    pub burst_bytes: u64,
    /// All other packets pass by it.
    pub only_udp: bool,
}

/// The token bucket's state.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    policer: Policer,
    /// Tokens in bits times nanoseconds per second, to avoid rounding.
    tokens: u128,
    filled_at_ns: u64,
}

impl Bucket {
    pub(super) fn new(policer: Policer) -> Self {
        Self { policer, tokens: Self::most(&policer), filled_at_ns: 0 }
    }

    fn most(policer: &Policer) -> u128 {
        u128::from(policer.burst_bytes) * 8 * NS_PER_S
    }

    /// Whether a packet passes. If so, takes its tokens.
    pub(super) fn takes(&mut self, now_ns: u64, is_udp: bool, bytes: u32) -> bool {
        if self.policer.only_udp && !is_udp {
            return true;
        }
        let came = u128::from(now_ns.saturating_sub(self.filled_at_ns)) * u128::from(self.policer.rate_bps);
        self.tokens = (self.tokens + came).min(Self::most(&self.policer));
        self.filled_at_ns = self.filled_at_ns.max(now_ns);
        let cost = u128::from(bytes) * 8 * NS_PER_S;
        let passes = self.tokens >= cost;
        if passes {
            self.tokens -= cost;
        }
        passes
    }
}

/// A change of the link's rate and delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the change. Nanoseconds.
    pub at_ns: u64,
    /// The new rate. Bits per second, at least 1.
    pub rate_bps: u64,
    /// The new one-way delay. Nanoseconds.
    pub delay_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Direction, DirectionSpec, Drop, Fate};

    const MS: u64 = 1_000_000;

    /// Delays of packets of 125 bytes, offered every `gap_ns`, without serialisation. Nanoseconds.
    fn delays(spec: DirectionSpec, packets: u64, gap_ns: u64) -> Vec<u64> {
        let mut link = Direction::new(spec);
        let fate = |i| match link.offer_one(i * gap_ns, 125) {
            Fate::Deliver { at_ns, .. } => at_ns - i * gap_ns - 1_000,
            Fate::Dropped(why) => panic!("packet {i} was dropped: {why:?}"),
        };
        (0..packets).map(fate).collect()
    }

    #[test]
    fn heavy_tailed_jitter_is_mostly_little_and_sometimes_the_most() {
        let jitter = Jitter::HeavyTailed { every_ns: MS };
        let spec = DirectionSpec { jitter_ns: 30 * MS, jitter, ..Default::default() };
        let mut extra = delays(spec, 20_000, 40 * MS);
        extra.sort_unstable();
        assert!(extra[10_000] < MS, "half below a millisecond, not {}", extra[10_000]);
        let most = extra.iter().filter(|extra| **extra == 30 * MS).count();
        assert!((40..200).contains(&most), "{most} have the most");
    }

    #[test]
    fn what_comes_in_a_spike_arrives_at_its_end() {
        let jitter = Jitter::Spikes { every_ns: 100 * MS };
        let spec = DirectionSpec { jitter_ns: 20 * MS, jitter, ..Default::default() };
        let extra = delays(spec, 200, MS);
        for (at, extra) in (0..).zip(&extra) {
            let left = 20_u64.saturating_sub(at % 100) * MS;
            assert!(left.abs_diff(*extra) <= 1_000, "{at} ms: {extra} instead of {left}");
        }
    }

    #[test]
    fn a_policer_of_udp_lets_all_else_pass() {
        let policer = Policer { rate_bps: 8_000_000, burst_bytes: 10_000, only_udp: true };
        let fates = |is_udp| {
            let mut link = Direction::new(DirectionSpec { policer: Some(policer), ..Default::default() });
            let mut fates = Vec::new();
            (0..1_000).for_each(|i| link.offer(i * MS / 2, is_udp, [1_000], &mut fates));
            fates.iter().filter(|fate| **fate == Fate::Dropped(Drop::Policer)).count()
        };
        assert_eq!(fates(false), 0);
        assert!((400..520).contains(&fates(true)));
    }

    #[test]
    fn a_policer_passes_its_burst_and_then_its_rate() {
        let policer = Policer { rate_bps: 8_000_000, burst_bytes: 10_000, only_udp: false };
        let mut link = Direction::new(DirectionSpec { policer: Some(policer), ..Default::default() });
        let fates: Vec<_> = (0..1_000).map(|i| link.offer_one(i * MS / 2, 1_000)).collect();
        let passed = fates.iter().filter(|fate| matches!(fate, Fate::Deliver { .. })).count();
        assert!(fates[..19].iter().all(|fate| matches!(fate, Fate::Deliver { .. })));
        assert!(fates.contains(&Fate::Dropped(Drop::Policer)));
        assert!((508..=510).contains(&passed), "half a second's worth and the burst, not {passed}");
    }

    #[test]
    fn a_change_of_rate_leaves_the_queue_its_bytes_and_a_shorter_route_overtakes() {
        let change = |at_ns, rate_bps, delay_ns| Change { at_ns, rate_bps, delay_ns };
        let changes = vec![change(2 * MS, 100_000_000, 40 * MS), change(300 * MS, 100_000_000, MS)];
        let spec = DirectionSpec { queue_bytes: 1 << 20, delay_ns: 10 * MS, changes, ..Default::default() };
        let longest = spec.sojourn_ns_max();
        let mut link = Direction::new(spec);
        (0..1_000).for_each(|_| {
            link.offer_one(0, 1_000);
        });
        let before = link.backlog_bytes(2 * MS);
        let Fate::Deliver { at_ns, .. } = link.offer_one(2 * MS, 1_000) else { panic!("there is room") };
        assert!(link.backlog_bytes(2 * MS).abs_diff(before + 1_000) <= 1, "it keeps its bytes");
        let waits = (before + 1_000) * 80;
        assert!(at_ns.abs_diff(42 * MS + waits) < 1_000 && at_ns <= 2 * MS + longest);
        let at = |link: &mut Direction, now| match link.offer_one(now, 125) {
            Fate::Deliver { at_ns, .. } => at_ns,
            fate => panic!("{fate:?}"),
        };
        let (slow, fast) = (at(&mut link, 299 * MS), at(&mut link, 300 * MS));
        assert!(fast < slow, "{fast} is after {slow}");
    }

    #[test]
    fn what_is_gathered_arrives_together() {
        let spec = DirectionSpec { delay_ns: 10 * MS, gather_ns: 4 * MS, ..Default::default() };
        let at: Vec<_> = (0..).zip(delays(spec, 40, MS / 2)).map(|(i, d)| i * MS / 2 + d + 1_000).collect();
        assert!(at.iter().all(|at| at % (4 * MS) == 0));
        assert!(at.chunk_by(|a, b| a == b).skip(1).all(|together| together.len() <= 8));
    }
}
