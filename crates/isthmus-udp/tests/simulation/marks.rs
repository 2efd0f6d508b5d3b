//! Routers that mark packets when their queue grows (ECN, RFC 3168): the flow keeps the queue short without a loss, fills
//! the link, and shares it with TCP's CUBIC, which answers marks.

use std::ops::RangeInclusive;

use isthmus_lab::model::DirectionSpec;

use crate::neighbours::{begin, shares};
use crate::net::{Net, PathSpec, config};

const RATE_BPS: u64 = 1_000_000_000;
const RTTS_MS: [u64; 2] = [24, 100];
/// Shares of a flow. Two flows of CUBIC have 0.62 and 0.24 at 100 ms with marks from a twentieth of a round trip on: the
/// second one ends its slow start at the first mark.
const FAIR: RangeInclusive<f64> = 0.17..=0.72;

/// A link whose queue holds two round trips, and marks from `mark` percent of one on.
fn marking(rtt_ms: u64, mark: u64) -> PathSpec {
    let direction = DirectionSpec {
        rate_bps: RATE_BPS,
        delay_ns: rtt_ms * 500_000,
        queue_bytes: RATE_BPS / 8_000 * rtt_ms * 2,
        mark_bytes: Some(RATE_BPS / 8_000 * rtt_ms * mark / 100),
        ..Default::default()
    };
    let rtt_us = rtt_ms * 1_000;
    PathSpec {
        rtt_us,
        mtu: 1_500,
        directions: Some(Box::new([direction.clone(), direction])),
        ..Default::default()
    }
}

#[test]
fn a_flow_alone_fills_a_link_that_marks_early_and_loses_nothing() {
    for rtt_ms in RTTS_MS {
        // CUBIC alone has 0.19, 0.94 and 0.98 at 24 ms, and 0.79, 0.89 and 0.98 at 100 ms.
        for (mark, least) in [(2, 0.75), (10, 0.85), (50, 0.97)] {
            let path = marking(rtt_ms, mark);
            let mut net = Net::new(&path, vec![config(&path), config(&path)]);
            let mut flow = begin(&mut net, 0, "rate");
            let (begun, until) = (net.now, net.now + 12_000_000);
            let mut before = 0;
            while net.now < until {
                flow.feed(&mut net);
                net.step(until);
                flow.on_event(&mut net);
                flow.drain(&mut net);
                if net.now < begun + 2_000_000 {
                    before = flow.read;
                }
            }
            let part = (flow.read - before) as f64 / 10.0 / path.goodput();
            let counters = net.ports[0].stream(flow.stream()).expect("it lives").status().counters;
            let [marked, lost] = [counters.packets_marked, counters.packets_lost];
            println!("{rtt_ms} ms, marks from {mark} % on: {part:.3}, {marked} marked, {lost} lost");
            assert!(part >= least && lost == 0, "{rtt_ms} ms, {mark} %: {part:.3}, {lost} lost");
        }
    }
}

#[test]
fn beside_cubic_that_answers_marks_each_keeps_a_fair_share() {
    for rtt_ms in RTTS_MS {
        for mark in [5, 25] {
            for controls in [["rate", "cubic"], ["cubic", "rate"]] {
                let shares = shares(&marking(rtt_ms, mark), &controls);
                println!("{rtt_ms} ms, marks from {mark} % on, {controls:?}: {shares:.3?}");
                let sum: f64 = shares.iter().sum();
                assert!(sum >= 0.85 && shares.iter().all(|share| FAIR.contains(share)), "{shares:?}");
            }
        }
    }
}
