//! Flows that share a queue of one bandwidth-delay product.

use isthmus_udp::Composition;

use crate::net::{Flow, Net, PathSpec, config};
use isthmus_lab::model::Loss;

/// Mean shares of the link that two flows have, the second having begun 2 s and a little after
/// the first: who has how much depends on that little, too.
fn shares(first: &str, second: &str, rtt_us: u64) -> [f64; 2] {
    const STARTS: u64 = 4;
    let each = (0..STARTS).map(|i| shares_from(first, second, rtt_us, 2_000_000 + 13_000 * i));
    each.fold([0.0; 2], |sum, one| [0, 1].map(|i| sum[i] + one[i] / STARTS as f64))
}

/// Their shares between 10 s and 40 s, the second having begun after `later` microseconds.
fn shares_from(first: &str, second: &str, rtt_us: u64, later: u64) -> [f64; 2] {
    let path = PathSpec { rate_bps: 100_000_000, rtt_us, queue_us: rtt_us, mtu: 1_500, ..Default::default() };
    let settings = |composition: &str| {
        let mut settings = config(&path);
        settings.stream.composition = composition.parse::<Composition>().expect("valid");
        settings
    };
    let sides = [first, first, second, second].map(settings).to_vec();
    let mut net = Net::new(&path, sides);
    let start = net.now;
    let mut flows = [Flow::new(&mut net, 0, 1, 1 << 40, false), Flow::new(&mut net, 2, 3, 1 << 40, false)];
    let mut at_10_s = [0; 2];
    while net.now < start + 40_000_000 {
        for flow in flows.iter_mut().take(if net.now < start + later { 1 } else { 2 }) {
            flow.feed(&mut net);
        }
        net.step(start + 40_000_000);
        for flow in &mut flows {
            flow.on_event(&mut net);
            flow.drain(&mut net);
        }
        if net.now < start + 10_000_000 {
            at_10_s = [flows[0].read, flows[1].read];
        }
    }
    [0, 1].map(|i| (flows[i].read - at_10_s[i]) as f64 / 30.0 / path.goodput())
}

#[test]
fn a_cubic_flow_keeps_two_fifths_whoever_was_first() {
    for rtt_us in [24_000, 100_000] {
        for (first, second, cubic) in [("rate", "cubic", 1), ("cubic", "rate", 0)] {
            let shares = shares(first, second, rtt_us);
            println!("{rtt_us} us: {first} {:.2}, {second} {:.2}", shares[0], shares[1]);
            assert!(shares[cubic] >= 0.4, "{rtt_us} us: cubic has {shares:?}");
            assert!(shares[1 - cubic] >= 0.15, "{rtt_us} us: and does not starve it: {shares:?}");
            assert!(shares.iter().sum::<f64>() > 0.85, "{rtt_us} us: {shares:?}");
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

/// Time in which flows carry so many bytes each, as a fraction of the floor. They start together,
/// or were opened so long before and start one so long after another. Microseconds.
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
        // Who overflows the queue of whom in start-up is chance: what counts is the mean.
        let path = PathSpec { rtt_us, loss: Loss::Independent(loss), ..Default::default() };
        let each = [4, 8].map(|flows| together(&path, flows, 500_000_000 / flows as u64, None));
        println!("{rtt_us} us, loss {loss}: 4 flows {:.3}, 8 flows {:.3}", each[0], each[1]);
        let mean = (each[0] + each[1]) / 2.0;
        assert!(mean > least, "{rtt_us} us, loss {loss}: {each:.3?} of the floor");
        assert!(each.iter().all(|one| *one > 0.6), "{rtt_us} us, loss {loss}: {each:.3?} of the floor");
    }
}

/// Lanes of a program's processes: opened when it started, used at the same time. Each has found
/// the path empty.
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
