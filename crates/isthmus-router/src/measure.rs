//! Measures the WAN paths by the state of the links: rate, round-trip time and loss for each WAN subnet. The metric
//! `measured` and the status pages use the figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_datagram::scarcity::{Sparing, no_thread};
use isthmus_routes::{LinkState, Measured, Metric, RouteMap, Table};
use isthmus_units::{Percent, Rate, Span};
use isthmus_wire::SubnetId;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::router::Router;
use crate::wire::Sample;

/// Interval at which the links are sampled.
const LOOK: Duration = Duration::from_secs(1);
/// Samples between two checks whether routes must be computed anew: every 10 s.
const LOOKS_PER_CHECK: u32 = 10;
/// The best rate of this many samples counts, because at times nobody sends much. 60 samples are one minute.
const LOOKS: usize = 60;
/// Least number of segments sent lately for a loss rate to be used. With fewer, one loss would weigh too much.
const MIN_SENT: f64 = 1000.0;
/// Weight of older segments, applied at each sample.
const FADE: f64 = 0.98;
/// The path was the limit of a link if two things hold. The link was busy for at least `MIN_BUSY` of the interval, and the
/// receiver or our buffer was the limit for at most `MAX_HELD` of that time. Shares.
const MIN_BUSY: f64 = 0.9;
const MAX_HELD: f64 = 0.1;
/// Routes are computed anew when a figure has changed by more than this share.
const CHANGE: f64 = 0.25;
/// Changes of the loss rate below this are noise. Share of segments.
const LOSS_CHANGE: f64 = 0.002;

/// One link's state at two samples, and the time between them.
#[derive(Clone, Copy, Debug)]
struct Interval {
    before: Sample,
    now: Sample,
    took: Duration,
}

impl Interval {
    fn bits(&self) -> f64 {
        8.0 * self.now.acknowledged.saturating_sub(self.before.acknowledged) as f64
    }

    /// Whether the path was the limit of the rate.
    fn filled_the_path(&self) -> bool {
        let busy = self.now.busy.saturating_sub(self.before.busy).as_secs_f64();
        let held = self.now.held.saturating_sub(self.before.held).as_secs_f64();
        busy >= MIN_BUSY * self.took.as_secs_f64() && held <= MAX_HELD * busy
    }
}

/// The measurements of the path across one WAN subnet.
#[derive(Clone, Debug, Default)]
struct Path {
    /// None while no link is up.
    rtt: Option<Duration>,
    /// Rates of the latest samples. Bits per second; 0 if no link filled the path.
    rates: Vec<f64>,
    looks: usize,
    sent: f64,
    retransmitted: f64,
}

impl Path {
    /// Updates the path from all links that cross it.
    fn look(&mut self, links: &[Interval]) {
        // The link with the shortest queue is closest to the path's own round trip.
        self.rtt = links.iter().map(|link| link.now.rtt).min();
        let filled = links.iter().any(Interval::filled_the_path);
        let took = links.iter().map(|link| link.took.as_secs_f64()).fold(f64::EPSILON, f64::max);
        let filled = if filled { links.iter().map(Interval::bits).sum::<f64>() / took } else { 0.0 };
        let known = links.iter().filter_map(|link| link.now.capacity).max().unwrap_or(0);
        let rate = filled.max(8.0 * known as f64);
        if self.rates.len() < LOOKS {
            self.rates.push(rate);
        } else {
            self.rates[self.looks % LOOKS] = rate;
        }
        self.looks += 1;
        let grown = |of: fn(&Sample) -> u64| {
            links.iter().map(|link| of(&link.now).saturating_sub(of(&link.before)) as f64).sum::<f64>()
        };
        self.sent = self.sent * FADE + grown(|sample| sample.sent);
        self.retransmitted = self.retransmitted * FADE + grown(|sample| sample.retransmitted);
    }

    /// The best rate of the latest samples. Bits per second.
    fn rate(&self) -> Option<f64> {
        self.rates.iter().copied().filter(|rate| *rate > 0.0).reduce(f64::max)
    }

    /// The share of segments that were lost lately. None if too few were sent.
    fn loss(&self) -> Option<f64> {
        (self.sent >= MIN_SENT).then(|| (self.retransmitted / self.sent).min(1.0))
    }

    /// The measured figures; those not measured are as `expected`.
    fn state(&self, expected: LinkState) -> LinkState {
        LinkState {
            rate: self.rate().map_or(expected.rate, |rate| Rate(rate as u64)),
            rtt: self.rtt.map_or(expected.rtt, |rtt| Span(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX))),
            loss: self.loss().map_or(expected.loss, Percent),
        }
    }
}

/// The paths of a router.
#[derive(Default)]
pub(crate) struct Paths {
    by_subnet: BTreeMap<SubnetId, Path>,
}

impl Paths {
    /// The figures measured here, completed by `known`, which others measured.
    pub(crate) fn measured(&self, map: &RouteMap, known: &Measured) -> Measured {
        let mut measured = known.clone();
        for (id, path) in self.by_subnet.iter().filter(|(_, path)| path.rtt.is_some()) {
            let Some(subnet) = map.subnet(*id) else { continue };
            let expected = known.links.get(id).copied().unwrap_or_else(|| LinkState::expected(subnet));
            measured.links.insert(*id, path.state(expected));
        }
        measured
    }
}

/// Whether `now` differs enough from `before` to compute routes anew.
pub(crate) fn differs(before: &Measured, now: &Measured) -> bool {
    let apart = |a: u64, b: u64| a.abs_diff(b) as f64 > CHANGE * a.min(b) as f64;
    let changed = |a: &LinkState, b: &LinkState| {
        let (low, high) = (a.loss.0.min(b.loss.0), a.loss.0.max(b.loss.0));
        let lossier = high - low > LOSS_CHANGE && high - low > CHANGE * low;
        apart(a.rate.0, b.rate.0) || apart(a.rtt.0, b.rtt.0) || lossier
    };
    let same_links = before.links.keys().eq(now.links.keys());
    before.down != now.down
        || !same_links
        || before.links.values().zip(now.links.values()).any(|(a, b)| changed(a, b))
}

impl Router {
    /// Samples the links as long as the process lives. With the metric `measured` it also keeps the routes up to date.
    pub(crate) async fn measure(self: Arc<Self>) {
        let mut last = Instant::now();
        for look in 1_u32.. {
            sleep(LOOK).await;
            self.look(last.elapsed());
            last = Instant::now();
            if look % LOOKS_PER_CHECK == 0 {
                self.update_routes().await;
            }
        }
    }

    fn look(&self, took: Duration) {
        let mut by_subnet: BTreeMap<SubnetId, Vec<Interval>> = BTreeMap::new();
        for link in self.links.standing() {
            let Some(now) = link.gauge.sample() else { continue };
            let intervals = by_subnet.entry(link.subnet).or_default();
            if let Some(before) = link.looked.lock().replace(now) {
                link.history.lock().add(&before, &now, took);
                intervals.push(Interval { before, now, took });
            }
        }
        let mut paths = self.paths.lock();
        for (subnet, path) in &mut paths.by_subnet {
            path.look(by_subnet.remove(subnet).as_deref().unwrap_or_default());
        }
        for (subnet, intervals) in by_subnet {
            paths.by_subnet.entry(subnet).or_default().look(&intervals);
        }
    }

    /// Computes the routes anew if the figures have changed enough for that.
    async fn update_routes(&self) {
        let settings = self.settings();
        let measured = self.paths.lock().measured(settings.table.map(), &settings.known);
        if settings.config.metric != Metric::Measured || !differs(&settings.measured, &measured) {
            return;
        }
        let (map, used) = (settings.table.map().clone(), measured.clone());
        // A large map takes long to compute, so it gets its own thread while lanes go on. The runtime's own threads
        // would not do: it panics if it cannot start one.
        let (tell, told) = oneshot::channel();
        let compute = move || drop(tell.send(Table::compute(&map, Metric::Measured, Some(&used))));
        if let Err(error) = std::thread::Builder::new().name("routes".to_owned()).spawn(compute) {
            static SPARING: Sparing = Sparing::new();
            if let Some(left_out) = SPARING.due(Instant::now()) {
                let error = no_thread(error);
                warn!("routes are not computed anew from what was measured: {error}{left_out}");
            }
            return;
        }
        if let Ok(table) = told.await {
            info!("routes computed anew from what was measured");
            self.replace_table(&settings, table, measured);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn sample(sent: u64, retransmitted: u64, megabytes: u64, busy_ms: u64, held_ms: u64) -> Sample {
        Sample {
            rtt: Duration::from_millis(24),
            sent,
            retransmitted,
            acknowledged: megabytes * 1_000_000,
            received: 0,
            unsent: 0,
            busy: Duration::from_millis(busy_ms),
            held: Duration::from_millis(held_ms),
            capacity: None,
        }
    }

    fn since_start(now: Sample) -> Interval {
        Interval { before: Sample::default(), now, took: SECOND }
    }

    #[test]
    fn a_rate_is_believed_only_of_links_that_filled_the_path() {
        let mut path = Path::default();
        path.look(&[since_start(sample(10, 0, 5, 200, 0))]);
        path.look(&[since_start(sample(10, 0, 90, 1000, 600))]);
        assert_eq!(path.rate(), None);
        path.look(&[since_start(sample(10, 0, 100, 1000, 0)), since_start(sample(10, 0, 20, 100, 0))]);
        assert_eq!(path.rate(), Some(960e6));
        for _ in 0..LOOKS {
            path.look(&[since_start(sample(10, 0, 1, 0, 0))]);
        }
        assert_eq!(path.rate(), None, "forgotten");
    }

    #[test]
    fn loss_counts_once_enough_was_sent() {
        let mut path = Path::default();
        path.look(&[since_start(sample(900, 9, 1, 0, 0))]);
        assert_eq!(path.loss(), None);
        path.look(&[since_start(sample(900, 9, 1, 0, 0))]);
        let loss = path.loss().expect("enough");
        assert!((loss - 0.01).abs() < 1e-9, "{loss}");
    }

    #[test]
    fn what_was_not_measured_is_as_expected() {
        let expected = LinkState { rate: Rate(1_000_000_000), rtt: Span(10_000_000), loss: Percent(0.001) };
        assert_eq!(Path::default().state(expected), expected);
        let mut path = Path::default();
        path.look(&[since_start(sample(10, 0, 1, 0, 0))]);
        assert_eq!(path.state(expected), LinkState { rtt: Span(24_000_000), ..expected });
    }

    #[test]
    fn routes_are_thought_over_for_changes_that_matter() {
        let state = |rate, rtt, loss| {
            let state = LinkState { rate: Rate(rate), rtt: Span(rtt), loss: Percent(loss) };
            Measured { links: BTreeMap::from([(SubnetId(1), state)]), ..Measured::default() }
        };
        let before = state(1000, 1000, 0.0);
        assert!(!differs(&before, &before));
        assert!(!differs(&before, &state(1200, 810, 0.001)));
        assert!(differs(&before, &state(700, 1000, 0.0)));
        assert!(differs(&before, &state(1000, 2000, 0.0)));
        assert!(differs(&before, &state(1000, 1000, 0.01)));
        assert!(!differs(&state(1000, 1000, 0.02), &state(1000, 1000, 0.024)));
        assert!(differs(&before, &Measured::default()));
    }
}
