//! Flows that share a queue of one bandwidth-delay product.

use isthmus_udp::Composition;

use crate::net::{Flow, Net, PathSpec, config, seeds};
use isthmus_lab::model::Loss;

/// Two flows on one path. The second begins `later_us` after the first. Shares are measured during `counts_us`.
/// Microseconds.
struct Pair<'a> {
    path: PathSpec,
    compositions: [&'a str; 2],
    later_us: u64,
    counts_us: std::ops::Range<u64>,
}

impl Pair<'_> {
    /// Each flow's share of the link.
    fn shares(&self) -> [f64; 2] {
        let [first, second] = self.compositions.map(|composition| {
            let mut settings = config(&self.path);
            settings.stream.composition = composition.parse::<Composition>().expect("valid");
            settings
        });
        let mut net = Net::new(&self.path, vec![first.clone(), first, second.clone(), second]);
        let start = net.now;
        let [from, until] = [self.counts_us.start, self.counts_us.end].map(|us| start + us);
        let mut flows = [0, 2].map(|port| Flow::new(&mut net, port, port + 1, 1 << 40, false));
        let mut before = [0; 2];
        while net.now < until {
            for flow in flows.iter_mut().take(if net.now < start + self.later_us { 1 } else { 2 }) {
                flow.feed(&mut net);
            }
            net.step(until);
            for flow in &mut flows {
                flow.on_event(&mut net);
                flow.drain(&mut net);
            }
            if net.now < from {
                before = [flows[0].read, flows[1].read];
            }
        }
        let bytes = self.path.goodput() * (until - from) as f64 / 1e6;
        [0, 1].map(|i| (flows[i].read - before[i]) as f64 / bytes)
    }
}

/// Mean shares from 10 s to 40 s on a slow link. The second flow begins at least 2 s after the first. The mean covers
/// twelve starts, since the exact start matters too.
fn shares(first: &str, second: &str, rtt_us: u64) -> [f64; 2] {
    const STARTS: u64 = 12;
    let path = PathSpec { rate_bps: 100_000_000, rtt_us, queue_us: rtt_us, mtu: 1_500, ..Default::default() };
    let from = |later_us| Pair {
        path: path.clone(),
        compositions: [first, second],
        later_us,
        counts_us: 10_000_000..40_000_000,
    };
    let each = (0..STARTS).map(|i| from(2_000_000 + 7_000 * i).shares());
    each.fold([0.0; 2], |sum, one| [0, 1].map(|i| sum[i] + one[i] / STARTS as f64))
}

#[test]
fn a_cubic_flow_keeps_two_fifths_whoever_was_first() {
    for rtt_us in [24_000, 100_000] {
        for (first, second, cubic) in [("rate", "cubic", 1), ("cubic", "rate", 0)] {
            let shares = shares(first, second, rtt_us);
            println!("{rtt_us} us: {first} {:.2}, {second} {:.2}", shares[0], shares[1]);
            assert!(shares[cubic] >= 0.4, "{rtt_us} us: cubic has {shares:?}");
            assert!(shares[1 - cubic] >= 0.2, "{rtt_us} us: and does not starve it: {shares:?}");
            assert!(shares.iter().sum::<f64>() > 0.85, "{rtt_us} us: {shares:?}");
        }
    }
}

/// Measures as a user would: from one second after both flows began. CUBIC has not yet recovered from its first losses
/// then.
#[test]
fn a_cubic_flow_that_begins_at_the_same_time_keeps_two_fifths_from_the_first_seconds_on() {
    for rtt_us in [24_000, 100_000] {
        for (compositions, cubic) in [(["rate", "cubic"], 1), (["cubic", "rate"], 0)] {
            let pair = |seed: u64| {
                let later_us = 20_000 + 130_000 * seed;
                let path = PathSpec { rtt_us, queue_us: rtt_us, seed, ..Default::default() };
                let counts_us = later_us + 1_000_000..later_us + 13_000_000;
                Pair { path, compositions, later_us, counts_us }.shares()
            };
            let each: Vec<_> = seeds(4).map(pair).collect();
            let theirs: Vec<_> = each.iter().map(|shares| shares[cubic]).collect();
            let mean = [0, 1].map(|i| each.iter().map(|shares| shares[i]).sum::<f64>() / each.len() as f64);
            println!("{rtt_us} us, {compositions:?}: {mean:.2?}, cubic {theirs:.2?}");
            assert!(theirs.iter().all(|share| *share >= 0.4), "{rtt_us} us: cubic has {theirs:.2?}");
            assert!(mean[1 - cubic] >= 0.25, "{rtt_us} us: and does not starve it: {mean:.2?}");
            assert!(mean.iter().sum::<f64>() > 0.95, "{rtt_us} us: {mean:.2?}");
        }
    }
}

#[test]
fn two_of_a_kind_share() {
    for rtt_us in [24_000, 100_000] {
        let shares = shares("rate", "rate", rtt_us);
        println!("{rtt_us} us: {shares:.2?}");
        assert!(shares.iter().all(|share| *share > 0.2), "{rtt_us} us: {shares:?}");
        assert!(shares.iter().sum::<f64>() > 0.85, "{rtt_us} us: {shares:?}");
    }
}

/// Time in which flows carry `bytes` each, as a fraction of the floor. `opened`: they were opened so long before, and
/// start one after another at this distance. Microseconds. Without it they start together.
fn together(path: &PathSpec, flows: usize, bytes: u64, opened: Option<(u64, u64)>) -> f64 {
    let configs = (0..2 * flows).map(|_| config(path)).collect();
    let mut net = Net::new(path, configs);
    let mut running: Vec<Flow> =
        (0..flows).map(|flow| Flow::new(&mut net, 2 * flow, 2 * flow + 1, bytes, false)).collect();
    let (before_us, apart_us) = opened.unwrap_or_default();
    if before_us > 0 {
        running.iter_mut().for_each(|flow| flow.greet(&mut net));
        let start = net.now + before_us;
        while net.step(start) {
            for flow in &mut running {
                flow.on_event(&mut net);
                flow.drain(&mut net);
            }
        }
    }
    let start = net.now;
    let limit = start + 120_000_000;
    while !running.iter().all(|flow| flow.is_settled(&net)) {
        let begun = |(flow, _): &(usize, &mut Flow)| net.now >= start + *flow as u64 * apart_us;
        let begun = running.iter_mut().enumerate().filter(begun).map(|(_, flow)| flow);
        begun.collect::<Vec<_>>().into_iter().for_each(|flow| flow.feed(&mut net));
        let on = net.step(limit);
        for flow in &mut running {
            flow.on_event(&mut net);
            flow.drain(&mut net);
        }
        assert!(on, "not done in two minutes");
    }
    path.floor_s(bytes * flows as u64) / ((net.now - start) as f64 / 1e6)
}

#[test]
fn flows_that_start_together_fill_the_path_and_none_starves() {
    for (rtt_us, loss, least) in [(24_000, 0.0, 0.9), (24_000, 0.01, 0.9), (100_000, 0.01, 0.7)] {
        // Which flow overflows the queue in start-up is chance, so the mean counts.
        let mean = |flows: usize| {
            let one = |seed: u64| {
                let path =
                    PathSpec { rtt_us, loss: Loss::Independent(loss), seed: seed + 1, ..Default::default() };
                together(&path, flows, 500_000_000 / flows as u64, None)
            };
            let all: Vec<f64> = seeds(4).map(one).collect();
            println!("{rtt_us} us, loss {loss}, {flows} flows: {all:.3?}");
            all.iter().sum::<f64>() / all.len() as f64
        };
        let each = [4, 8].map(mean);
        assert!(each.iter().sum::<f64>() / 2.0 > least, "{rtt_us} us, loss {loss}: {each:.3?} of the floor");
        assert!(each.iter().all(|one| *one > 0.7), "{rtt_us} us, loss {loss}: {each:.3?} of the floor");
    }
}

/// Lanes of a program's processes are opened when it starts, and used at the same time. Each has found the path empty.
#[test]
fn flows_that_were_opened_before_share_what_each_had_for_itself() {
    for (rtt_us, queue_us, least) in
        [(24_000, 24_000, 0.9), (100_000, 100_000, 0.78), (100_000, 20_000, 0.75)]
    {
        let path = PathSpec { rtt_us, queue_us, ..Default::default() };
        let each =
            [1_000, 2_000, 3_000].map(|apart_us| together(&path, 8, 50_000_000, Some((300_000, apart_us))));
        println!("{rtt_us} us, queue {queue_us} us: {each:.3?}");
        let mean = each.iter().sum::<f64>() / 3.0;
        assert!(mean > least, "{rtt_us} us, queue {queue_us} us: {each:.3?} of the floor");
    }
}
