//! Link model: what happens to each wire packet of one direction of a link.
//!
//! It has no I/O and no clock. The caller passes the time in nanoseconds since any fixed start;
//! time must not go backwards. The emulator runs it with real packets, simulations in virtual
//! time. The same seed, packets and times give the same fates.
//!
//! A packet meets, in this order: the limit on packet size, the token-bucket policer, the drop-tail
//! queue, serialisation at the link's rate, a cut of the link, loss, the one-way delay with jitter,
//! reordering, duplication.

mod shapes;

use std::collections::VecDeque;

use shapes::{Bucket, JitterSource};
pub use shapes::{Change, Jitter, Policer};

use crate::rng::Rng;

/// Cost of a packet on the wire beyond its Ethernet frame without checksum: preamble 8,
/// checksum 4, inter-packet gap 12. Bytes.
pub const WIRE_OVERHEAD_BYTES: u32 = 24;

/// Smallest Ethernet frame without its checksum. Bytes.
pub const FRAME_BYTES_MIN: u32 = 60;

/// Longest one-way delay that the lab emulates. Nanoseconds (250 ms).
pub const DELAY_NS_MAX: u64 = 250_000_000;

const NS_PER_S: u64 = 1_000_000_000;

/// Cost on the wire of a frame of `frame_bytes` (Ethernet header included, checksum not).
pub fn wire_bytes(frame_bytes: u32) -> u32 {
    frame_bytes.max(FRAME_BYTES_MIN) + WIRE_OVERHEAD_BYTES
}

/// How packets get lost on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Each packet is lost with this probability, independently.
    Independent(f64),
    /// Bursts (Gilbert 1960, Elliott 1963): two states, good and bad, each with its loss
    /// probability. The state may change before each packet.
    GilbertElliott {
        /// Probability per packet that the good state turns bad.
        to_bad: f64,
        /// Probability per packet that the bad state turns good.
        to_good: f64,
        /// Loss probability in the good state.
        loss_good: f64,
        /// Loss probability in the bad state.
        loss_bad: f64,
    },
}

impl Loss {
    /// Long-run share of packets lost. 0.0..=1.0.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Independent(p) => p,
            Self::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                let bad = if to_bad == 0.0 { 0.0 } else { to_bad / (to_bad + to_good) };
                loss_good * (1.0 - bad) + loss_bad * bad
            }
        }
    }
}

/// Parameters of one direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionSpec {
    /// Serialisation rate. Bits per second, at least 1.
    pub rate_bps: u64,
    /// Propagation delay, from the end of serialisation to delivery. Nanoseconds.
    pub delay_ns: u64,
    /// Queue limit: bytes (wire cost) that wait or are being serialised. Packets beyond it are dropped.
    pub queue_bytes: u64,
    /// Packets that find more than this in the queue are marked instead of dropped, if they may be (ECN, RFC 3168). Bytes
    /// (wire cost). Default: none is marked.
    pub mark_bytes: Option<u64>,
    /// Loss on the wire, after serialisation: a lost packet has used its share of the rate.
    pub loss: Loss,
    /// Most jitter, added to the delay. Jitter does not reorder. Nanoseconds.
    pub jitter_ns: u64,
    /// Distribution of the jitter. Default: uniform, per packet.
    pub jitter: Jitter,
    /// Drops packets that exceed this rate. Default: none.
    pub policer: Option<Policer>,
    /// Larger frames (Ethernet header included) are dropped in silence. Bytes. Default: none is too large.
    pub frame_bytes_max: u32,
    /// Changes of rate and route, in order of time.
    pub changes: Vec<Change>,
    /// Packets are delivered together at multiples of this time, as by radio links and modems that gather
    /// them. Nanoseconds. Default 0: each by itself.
    pub gather_ns: u64,
    /// Probability that a packet is held back by `reorder_by_ns` and so arrives out of order.
    pub reorder: f64,
    /// How long a reordered packet is held back. Nanoseconds.
    pub reorder_by_ns: u64,
    /// Probability that a packet arrives twice. The copy uses no rate.
    pub duplicate: f64,
    /// Outages, as start and end in nanoseconds, in order and disjoint. A packet is lost if its
    /// serialisation ends within an outage. Packets already beyond that arrive.
    pub down: Vec<(u64, u64)>,
    /// Seed of every random decision of this direction.
    pub seed: u64,
}

impl Default for DirectionSpec {
    /// 1 Gb/s, no delay, a 256 KiB queue, nothing lost.
    fn default() -> Self {
        Self {
            rate_bps: NS_PER_S,
            delay_ns: 0,
            queue_bytes: 256 << 10,
            mark_bytes: None,
            loss: Loss::Independent(0.0),
            jitter_ns: 0,
            jitter: Jitter::Uniform,
            policer: None,
            frame_bytes_max: u32::MAX,
            changes: Vec::new(),
            gather_ns: 0,
            reorder: 0.0,
            reorder_by_ns: 1_000_000,
            duplicate: 0.0,
            down: Vec::new(),
            seed: 1,
        }
    }
}

impl DirectionSpec {
    /// Time to serialise `bytes` at this rate. Nanoseconds, rounded up.
    pub fn serialise_ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 8 * u128::from(NS_PER_S)).div_ceil(u128::from(self.rate_bps)) as u64
    }

    /// What passes for long at this rate of the link: no more than the policer lets through. `by_udp` alone, or by any
    /// protocol. Bits per second.
    pub fn passing_bps(&self, rate_bps: u64, by_udp: bool) -> u64 {
        let policer = self.policer.filter(|policer| by_udp || !policer.only_udp);
        policer.map_or(rate_bps, |policer| policer.rate_bps.min(rate_bps))
    }

    /// Longest time that an accepted packet stays in the model. Nanoseconds.
    pub fn sojourn_ns_max(&self) -> u64 {
        let reorder = if self.reorder > 0.0 { self.reorder_by_ns } else { 0 };
        let slowest = self.changes.iter().map(|change| change.rate_bps).fold(self.rate_bps, u64::min);
        let longest = self.changes.iter().map(|change| change.delay_ns).fold(self.delay_ns, u64::max);
        let queue = Self { rate_bps: slowest, ..self.clone() }.serialise_ns(self.queue_bytes);
        queue + longest + self.jitter_ns + self.gather_ns + reorder
    }

    /// Most bytes (wire cost) in the model at once.
    pub fn in_flight_bytes_max(&self) -> u64 {
        let fastest = self.changes.iter().map(|change| change.rate_bps).fold(self.rate_bps, u64::max);
        (u128::from(self.sojourn_ns_max()) * u128::from(fastest) / 8 / u128::from(NS_PER_S)) as u64
    }
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// It was larger than what passes.
    Size,
    /// It exceeded the policer's rate.
    Policer,
    /// The queue was full.
    Queue,
    /// The link was down.
    Down,
    /// Lost on the wire.
    Loss,
}

/// Fate of one wire packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Deliver {
        /// Time of arrival. Nanoseconds.
        at_ns: u64,
        /// A second copy arrives at the same time.
        twice: bool,
        /// It has met a long queue, and is marked if it may be ([`DirectionSpec::mark_bytes`]).
        marked: bool,
    },
    /// It does not arrive.
    Dropped(Drop),
}

/// State of one direction of a link.
#[derive(Clone, Debug)]
pub struct Direction {
    spec: DirectionSpec,
    /// When the serialiser is free again, and the fraction of a nanosecond beyond that in units
    /// of 1/rate ns. Rounding would change the rate.
    free_at_ns: u64,
    remainder: u64,
    /// Arrival of the last in-order packet: jitter must not reorder.
    last_delivery_ns: u64,
    cuts: VecDeque<(u64, u64)>,
    changes: VecDeque<Change>,
    bucket: Option<Bucket>,
    bad_state: bool,
    loss_rng: Rng,
    jitter: JitterSource,
    reorder_rng: Rng,
    duplicate_rng: Rng,
}

impl Direction {
    /// A direction with an empty queue at time 0.
    ///
    /// # Panics
    /// If `spec.rate_bps`, or that of a change, is 0.
    pub fn new(spec: DirectionSpec) -> Self {
        let mut rates = spec.changes.iter().map(|change| change.rate_bps);
        assert!(spec.rate_bps > 0 && rates.all(|rate| rate > 0), "a link without a rate");
        Self {
            free_at_ns: 0,
            remainder: 0,
            last_delivery_ns: 0,
            cuts: spec.down.iter().copied().collect(),
            changes: spec.changes.iter().copied().collect(),
            bucket: spec.policer.map(Bucket::new),
            bad_state: false,
            loss_rng: Rng::new(spec.seed, 1),
            jitter: JitterSource::new(spec.jitter, spec.jitter_ns, Rng::new(spec.seed, 2)),
            reorder_rng: Rng::new(spec.seed, 3),
            duplicate_rng: Rng::new(spec.seed, 4),
            spec,
        }
    }

    /// The parameters. [`Direction::offer`] applies due changes to them.
    pub fn spec(&self) -> &DirectionSpec {
        &self.spec
    }

    /// Offers the wire packets of a super-packet (or a single packet), all present at `now_ns`.
    /// `is_udp`: they carry UDP. `sizes` are wire costs in bytes. Appends one fate per packet to `fates`.
    pub fn offer(
        &mut self,
        now_ns: u64,
        is_udp: bool,
        sizes: impl IntoIterator<Item = u32>,
        fates: &mut Vec<Fate>,
    ) {
        fates.extend(sizes.into_iter().map(|bytes| self.decide(now_ns, is_udp, bytes)));
    }

    /// Offers one wire packet of `bytes` wire cost, which carries UDP.
    pub fn offer_one(&mut self, now_ns: u64, bytes: u32) -> Fate {
        self.decide(now_ns, true, bytes)
    }

    /// The same for a packet that carries TCP.
    pub fn offer_tcp(&mut self, now_ns: u64, bytes: u32) -> Fate {
        self.decide(now_ns, false, bytes)
    }

    fn decide(&mut self, now_ns: u64, is_udp: bool, bytes: u32) -> Fate {
        self.change(now_ns);
        if bytes > self.spec.frame_bytes_max.saturating_add(WIRE_OVERHEAD_BYTES) {
            return Fate::Dropped(Drop::Size);
        }
        if self.bucket.as_mut().is_some_and(|bucket| !bucket.takes(now_ns, is_udp, bytes)) {
            return Fate::Dropped(Drop::Policer);
        }
        let backlog_bytes = self.backlog_bytes(now_ns);
        if backlog_bytes + u64::from(bytes) > self.spec.queue_bytes {
            return Fate::Dropped(Drop::Queue);
        }
        let marked = self.spec.mark_bytes.is_some_and(|most| backlog_bytes > most);
        let sent_ns = self.serialise(now_ns, bytes);
        if self.is_down(sent_ns) {
            return Fate::Dropped(Drop::Down);
        }
        if self.is_lost() {
            return Fate::Dropped(Drop::Loss);
        }
        let twice = self.spec.duplicate > 0.0 && self.duplicate_rng.chance(self.spec.duplicate);
        Fate::Deliver { at_ns: self.arrival(sent_ns), twice, marked }
    }

    /// Bytes (wire cost) that wait or are being serialised at `now_ns`.
    pub fn backlog_bytes(&self, now_ns: u64) -> u64 {
        let wait_ns = u128::from(self.free_at_ns.saturating_sub(now_ns));
        (wait_ns * u128::from(self.spec.rate_bps) / (8 * u128::from(NS_PER_S))) as u64
    }

    /// Applies the changes that are due. The queue keeps its bytes. Packets on the earlier route may be
    /// overtaken if the new one is shorter.
    fn change(&mut self, now_ns: u64) {
        while let Some(change) = self.changes.pop_front_if(|change| change.at_ns <= now_ns) {
            let wait_ns = u128::from(self.free_at_ns.saturating_sub(now_ns));
            let wait_ns = wait_ns * u128::from(self.spec.rate_bps) / u128::from(change.rate_bps);
            self.free_at_ns = now_ns + wait_ns as u64;
            (self.spec.rate_bps, self.spec.delay_ns) = (change.rate_bps, change.delay_ns);
            (self.remainder, self.last_delivery_ns) = (0, 0);
        }
    }

    /// Occupies the serialiser. Returns when the packet's last bit has left.
    fn serialise(&mut self, now_ns: u64, bytes: u32) -> u64 {
        if now_ns > self.free_at_ns {
            self.free_at_ns = now_ns;
            self.remainder = 0;
        }
        let work = u128::from(bytes) * 8 * u128::from(NS_PER_S) + u128::from(self.remainder);
        let rate = u128::from(self.spec.rate_bps);
        self.free_at_ns += (work / rate) as u64;
        self.remainder = (work % rate) as u64;
        self.free_at_ns
    }

    fn is_down(&mut self, sent_ns: u64) -> bool {
        while self.cuts.front().is_some_and(|(_, end)| *end <= sent_ns) {
            self.cuts.pop_front();
        }
        self.cuts.front().is_some_and(|(start, _)| *start <= sent_ns)
    }

    fn is_lost(&mut self) -> bool {
        match self.spec.loss {
            Loss::Independent(p) => p > 0.0 && self.loss_rng.chance(p),
            Loss::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                let turns = self.loss_rng.chance(if self.bad_state { to_good } else { to_bad });
                self.bad_state ^= turns;
                self.loss_rng.chance(if self.bad_state { loss_bad } else { loss_good })
            }
        }
    }

    fn arrival(&mut self, sent_ns: u64) -> u64 {
        let at = (sent_ns + self.spec.delay_ns + self.jitter.draw(sent_ns)).max(self.last_delivery_ns);
        let at = if self.spec.gather_ns > 0 { at.next_multiple_of(self.spec.gather_ns) } else { at };
        if self.spec.reorder > 0.0 && self.reorder_rng.chance(self.spec.reorder) {
            return at + self.spec.reorder_by_ns;
        }
        self.last_delivery_ns = at;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = NS_PER_S;

    fn offer_all(direction: &mut Direction, packets: u64, bytes: u32, gap_ns: u64) -> Vec<Fate> {
        let mut fates = Vec::new();
        for i in 0..packets {
            direction.offer(i * gap_ns, true, [bytes], &mut fates);
        }
        fates
    }

    fn arrivals(fates: &[Fate]) -> Vec<u64> {
        let at = |f: &Fate| if let Fate::Deliver { at_ns, .. } = f { Some(*at_ns) } else { None };
        fates.iter().filter_map(at).collect()
    }

    fn dropped(fates: &[Fate], cause: Drop) -> usize {
        fates.iter().filter(|f| **f == Fate::Dropped(cause)).count()
    }

    #[test]
    fn packets_behind_a_long_queue_are_marked_and_not_dropped() {
        let spec = DirectionSpec { queue_bytes: 10_000, mark_bytes: Some(5_000), ..DirectionSpec::default() };
        let mut link = Direction::new(spec);
        let fates: Vec<_> = (0..12).map(|_| link.offer_one(0, 1_000)).collect();
        let marked = |fate: &Fate| matches!(fate, Fate::Deliver { marked: true, .. });
        assert_eq!(fates.iter().position(marked), Some(6));
        assert!(fates[6..10].iter().all(marked) && fates[10] == Fate::Dropped(Drop::Queue));
    }

    #[test]
    fn a_lone_packet_takes_its_serialisation_and_the_delay() {
        let spec = DirectionSpec { delay_ns: 12_000_000, ..Default::default() };
        let mut link = Direction::new(spec);
        assert_eq!(
            link.offer_one(500, 1250),
            Fate::Deliver { at_ns: 500 + 10_000 + 12_000_000, twice: false, marked: false }
        );
    }

    #[test]
    fn the_rate_is_exact_over_many_odd_sized_packets() {
        // At this rate, without the remainder, each packet would lose up to 1 ns.
        let spec = DirectionSpec { rate_bps: 999_999_937, queue_bytes: u64::MAX / 2, ..Default::default() };
        let mut link = Direction::new(spec);
        let mut last = 0;
        for _ in 0..100_000 {
            if let Fate::Deliver { at_ns, .. } = link.offer_one(0, 1237) {
                last = at_ns;
            }
        }
        let exact = 100_000_u128 * 1237 * 8 * u128::from(SECOND) / 999_999_937;
        assert_eq!(u128::from(last), exact);
    }

    #[test]
    fn the_queue_holds_its_bytes_and_drops_the_tail() {
        let mut link = Direction::new(DirectionSpec { queue_bytes: 10_000, ..Default::default() });
        let fates = offer_all(&mut link, 15, 1000, 0);
        assert_eq!(arrivals(&fates).len(), 10);
        assert!(fates[10..].iter().all(|f| *f == Fate::Dropped(Drop::Queue)));
    }

    #[test]
    fn frames_that_are_too_large_vanish() {
        let spec = DirectionSpec { frame_bytes_max: 1_514, ..Default::default() };
        let mut link = Direction::new(spec);
        assert!(matches!(link.offer_one(0, wire_bytes(1_514)), Fate::Deliver { .. }));
        assert_eq!(link.offer_one(0, wire_bytes(1_515)), Fate::Dropped(Drop::Size));
    }

    #[test]
    fn overload_passes_exactly_the_rate() {
        let mut link = Direction::new(DirectionSpec::default());
        let fates = offer_all(&mut link, 200_000, 1524, 6_000); // twice the rate for 1.2 s
        let carried = arrivals(&fates).len() as f64 * 1524.0 * 8.0;
        let queue_bits = 8.0 * 262_144.0;
        assert!((carried - 1.2e9).abs() <= queue_bits + 2.0 * 1524.0 * 8.0, "{carried}");
    }

    #[test]
    fn independent_loss_is_within_five_sigma() {
        for (seed, p) in [(1, 0.0001), (2, 0.01), (3, 0.1), (4, 0.5)] {
            let spec = DirectionSpec { loss: Loss::Independent(p), seed, ..Default::default() };
            let n = 400_000;
            let lost = dropped(&offer_all(&mut Direction::new(spec), n, 100, 1_000), Drop::Loss) as f64;
            let (mean, sigma) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
            assert!((lost - mean).abs() < 5.0 * sigma, "seed {seed}: {lost} lost, expected {mean}");
        }
    }

    #[test]
    fn gilbert_elliott_loses_its_mean_in_bursts() {
        let loss = Loss::GilbertElliott { to_bad: 0.01, to_good: 0.2, loss_good: 0.0, loss_bad: 0.8 };
        let spec = DirectionSpec { loss, seed: 7, ..Default::default() };
        let fates = offer_all(&mut Direction::new(spec), 400_000, 100, 1_000);
        let lost = dropped(&fates, Drop::Loss) as f64 / 400_000.0;
        assert!((lost / loss.mean() - 1.0).abs() < 0.1, "{lost} against {}", loss.mean());
        let is_lost = |f: &Fate| matches!(f, Fate::Dropped(_));
        let after = fates.windows(2).filter(|w| is_lost(&w[0]) && is_lost(&w[1])).count() as f64;
        assert!(after / (lost * 400_000.0) > 10.0 * lost, "losses must come together");
    }

    #[test]
    fn a_cut_drops_what_would_be_sent_inside_it_only() {
        let spec = DirectionSpec {
            delay_ns: 5_000_000,
            down: vec![(SECOND, 2 * SECOND), (3 * SECOND, 4 * SECOND)],
            ..Default::default()
        };
        let mut link = Direction::new(spec);
        let down_at = |link: &mut Direction, t| link.offer_one(t, 125) == Fate::Dropped(Drop::Down);
        assert!(!down_at(&mut link, SECOND - 2_000), "on its way before the cut: it arrives");
        assert!(down_at(&mut link, SECOND - 500), "still being sent when the cut comes");
        assert!(down_at(&mut link, 2 * SECOND - 2_000));
        assert!(!down_at(&mut link, 2 * SECOND));
        assert!(down_at(&mut link, 3 * SECOND + 1));
        assert!(!down_at(&mut link, 5 * SECOND));
    }

    #[test]
    fn jitter_varies_the_delay_but_keeps_the_order() {
        let spec = DirectionSpec { delay_ns: 1_000_000, jitter_ns: 500_000, ..Default::default() };
        let at = arrivals(&offer_all(&mut Direction::new(spec), 10_000, 125, 100_000));
        assert!(at.is_sorted());
        let extra = at.iter().enumerate().map(|(i, at)| at - (i as u64 * 100_000 + 1_001_000));
        let (least, most) = extra.fold((u64::MAX, 0), |(l, m), x| (l.min(x), m.max(x)));
        assert!(least < 200_000 && most > 450_000 && most <= 500_000, "{least} {most}");
    }

    #[test]
    fn reordering_and_duplication_hit_their_share() {
        let spec = DirectionSpec { reorder: 0.05, duplicate: 0.02, ..Default::default() };
        let fates = offer_all(&mut Direction::new(spec), 100_000, 125, 10_000);
        let late =
            arrivals(&fates).into_iter().enumerate().filter(|(i, at)| *at > *i as u64 * 10_000 + 900_000);
        let late = late.count() as f64 / 100_000.0;
        assert!((late - 0.05).abs() < 0.005, "{late}");
        let twice = fates.iter().filter(|f| matches!(f, Fate::Deliver { twice: true, .. })).count() as f64;
        assert!((twice / 100_000.0 - 0.02).abs() < 0.003, "{twice}");
    }

    #[test]
    fn switching_jitter_on_does_not_change_which_packets_are_lost() {
        let plain = DirectionSpec { loss: Loss::Independent(0.1), ..Default::default() };
        let shaky = DirectionSpec { jitter_ns: 1_000_000, reorder: 0.1, duplicate: 0.1, ..plain.clone() };
        let lost = |spec| {
            let fates = offer_all(&mut Direction::new(spec), 1000, 500, 10_000);
            fates.iter().map(|f| matches!(f, Fate::Dropped(_))).collect::<Vec<_>>()
        };
        assert_eq!(lost(plain), lost(shaky));
    }

    fn any_spec() -> impl Strategy<Value = DirectionSpec> {
        let times = (0..DELAY_NS_MAX, 0..10_000_000_u64, 1_000..1_000_000_u64);
        let shares = (0.0..0.5_f64, 0.0..0.5_f64, 0.0..0.5_f64);
        (1_000_000..10_000_000_000_u64, times, shares, any::<u64>()).prop_map(
            |(rate_bps, (delay_ns, jitter_ns, queue_bytes), (loss, reorder, duplicate), seed)| {
                DirectionSpec {
                    rate_bps,
                    delay_ns,
                    queue_bytes,
                    loss: Loss::Independent(loss),
                    jitter_ns,
                    reorder,
                    duplicate,
                    seed,
                    ..Default::default()
                }
            },
        )
    }

    proptest! {
        #[test]
        fn nothing_arrives_early_or_after_the_bound_and_a_seed_replays(
            spec in any_spec(),
            offers in proptest::collection::vec((0..1_000_000_u64, 84..9038_u32), 1..200),
        ) {
            let (mut first, mut second) = (Direction::new(spec.clone()), Direction::new(spec.clone()));
            let mut now = 0;
            for (gap, bytes) in offers {
                now += gap;
                let fate = first.offer_one(now, bytes);
                prop_assert_eq!(fate, second.offer_one(now, bytes));
                prop_assert!(first.backlog_bytes(now) <= spec.queue_bytes);
                if let Fate::Deliver { at_ns, .. } = fate {
                    let soonest = now + spec.delay_ns + u64::from(bytes) * 8 * SECOND / spec.rate_bps;
                    prop_assert!(at_ns >= soonest);
                    prop_assert!(at_ns <= now + spec.sojourn_ns_max() + 1);
                }
            }
        }
    }
}
