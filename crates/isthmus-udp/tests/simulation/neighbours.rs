//! The share of a link that a flow takes beside one with another congestion control.
//!
//! `neighbours.txt` holds one row for each control, neighbour, round trip and queue. `bounds` of each [`Row`] bound the
//! share of the flow that is named first. The lower bound keeps it from starving, the upper one keeps it from starving
//! the other. What all flows use of the link must not fall. `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation neighbours` writes the table anew; the
//! bounds are tightened by hand. `ISTHMUS_NEIGHBOURS="background beside cubic"` runs only the rows that begin so.

use std::fmt::Write;
use std::ops::{Range, RangeInclusive};

use isthmus_udp::Composition;

use crate::bbr::Bbr;
use crate::floors::Better;
use crate::golden::compare;
use crate::net::{Flow, Net, PathSpec, config};

const TABLE: &str = "tests/simulation/neighbours.txt";
/// Time between the starts of two flows. Microseconds.
const LATER_US: u64 = 2_000_000;
/// The part of a run that is measured. Microseconds.
const COUNTS_US: Range<u64> = 10_000_000..30_000_000;
/// Most bytes (UDP payload) that any flow of ours may send for each byte delivered. Two flows of BBR send 1.2 beside each
/// other.
const SENT_MAX: f64 = 1.6;
const RTTS_MS: [u64; 2] = [24, 100];
/// Queue lengths. Percent of a round trip.
const QUEUES: [u64; 3] = [25, 100, 400];

/// A control and its neighbours, each with the same control. `bounds`: of the control's share, for each round trip and
/// queue.
struct Row {
    own: &'static str,
    others: &'static [&'static str],
    bounds: [[RangeInclusive<f64>; 3]; 2],
}

const ROWS: [Row; 9] = [
    Row {
        own: "rate",
        others: &["cubic"],
        bounds: [[0.36..=0.61, 0.45..=0.50, 0.46..=0.50], [0.43..=0.48, 0.42..=0.57, 0.44..=0.47]],
    },
    Row {
        own: "rate",
        others: &["bbr"],
        bounds: [[0.39..=0.58, 0.42..=0.55, 0.44..=0.49], [0.38..=0.45, 0.36..=0.45, 0.35..=0.45]],
    },
    // Four flows of CUBIC do not empty a short queue. Beside them the model keeps the path, as BBR does.
    Row {
        own: "rate",
        others: &["cubic"; 4],
        bounds: [[0.24..=0.87, 0.38..=0.46, 0.41..=0.49], [0.36..=0.47, 0.36..=0.46, 0.40..=0.46]],
    },
    // At 100 ms with a short queue CUBIC leaves a fifth of the link idle (`cubic alone`). Background takes part of it.
    Row {
        own: "background",
        others: &["cubic"],
        bounds: [[0.00..=0.05, 0.00..=0.05, 0.00..=0.05], [0.00..=0.11, 0.00..=0.05, 0.00..=0.05]],
    },
    Row { own: "background", others: &["bbr"], bounds: BELOW },
    Row { own: "background", others: &["rate"], bounds: BELOW },
    Row { own: "background", others: &[], bounds: ALONE },
    Row { own: "cubic", others: &[], bounds: ANY },
    Row { own: "cubic", others: &["bbr"], bounds: ANY },
];

/// Bounds of rows that only serve for comparison: what all flows use is judged.
const ANY: [[RangeInclusive<f64>; 3]; 2] = [const { [const { 0.0..=1.0 }; 3] }; 2];
/// Bounds of less than best effort.
const BELOW: [[RangeInclusive<f64>; 3]; 2] = [const { [const { 0.0..=0.05 }; 3] }; 2];
const ALONE: [[RangeInclusive<f64>; 3]; 2] = [const { [const { 0.95..=1.0 }; 3] }; 2];

/// Begins an endless transfer with this control, "bbr" or a composition, from `port` to the next.
pub(crate) fn begin(net: &mut Net, port: usize, control: &str) -> Flow {
    let flow = Flow::new(net, port, port + 1, 1 << 40, false);
    let now = net.now;
    if control == "bbr" {
        net.ports[port].with(now, flow.stream(), |stream| stream.control_by(Box::new(Bbr::new())));
    } else {
        let composition = control.parse::<Composition>().expect("valid");
        net.ports[port].compose(now, flow.stream(), composition);
    }
    flow
}

/// Shares of the link, for flows of which each begins [`LATER_US`] after the previous one.
pub(crate) fn shares(path: &PathSpec, controls: &[&str]) -> Vec<f64> {
    shares_within(path, controls, LATER_US, COUNTS_US)
}

/// The same for flows of which each begins `later_us` after the previous one, from the first time to the second.
fn shares_within(path: &PathSpec, controls: &[&str], later_us: u64, counts_us: Range<u64>) -> Vec<f64> {
    let count = controls.len();
    let mut net = Net::new(path, (0..2 * count).map(|_| config(path)).collect());
    let start = net.now;
    let [from, until] = [counts_us.start, counts_us.end].map(|us| start + us);
    let mut flows: Vec<Flow> = Vec::new();
    let mut before = vec![0; count];
    while net.now < until {
        while flows.len() < count && net.now >= start + flows.len() as u64 * later_us {
            let flow = begin(&mut net, 2 * flows.len(), controls[flows.len()]);
            flows.push(flow);
        }
        flows.iter_mut().for_each(|flow| flow.feed(&mut net));
        net.step(until);
        for flow in &mut flows {
            flow.on_event(&mut net);
            flow.drain(&mut net);
        }
        if net.now < from {
            flows.iter().zip(&mut before).for_each(|(flow, before)| *before = flow.read);
        }
    }
    let bytes = path.goodput() * (until - from) as f64 / 1e6;
    for (at, flow) in flows.iter().enumerate().filter(|(at, _)| controls[*at] == "rate") {
        let sent = net.sent_bytes[2 * at] as f64 / flow.read as f64;
        assert!(sent < SENT_MAX, "{controls:?}: flow {at} sent {sent:.2} times what it delivered");
    }
    flows.iter().zip(before).map(|(flow, before)| (flow.read - before) as f64 / bytes).collect()
}

/// Shares of the control and of all its neighbours: if it begins first, and if it begins last.
fn both_orders(path: &PathSpec, own: &str, others: &[&str]) -> [[f64; 2]; 2] {
    let first = shares(path, &[&[own], others].concat());
    if others.is_empty() {
        return [[first[0], 0.0]; 2];
    }
    let last = shares(path, &[others, &[own]].concat());
    let (theirs, own) = last.split_at(others.len());
    [[first[0], first[1..].iter().sum()], [own[0], theirs.iter().sum()]]
}

#[test]
fn shares_beside_neighbours_are_within_their_bounds() {
    let mut text = format!(
        "Shares of a 100 Mb/s link from {} to {} s, MTU 1500; each flow begins {} s after the previous one.\n\
         Shares are those of the flow that is named first: if it begins first, and if it begins last;\n\
         `used` is what all flows have together.\n\n\
         {:<24}{:>8}{:>12}{:>12}{:>8}{:>12}{:>8}{:>8}{:>16}",
        COUNTS_US.start / 1_000_000,
        COUNTS_US.end / 1_000_000,
        LATER_US / 1_000_000,
        "",
        "RTT ms",
        "queue RTT",
        "goes first",
        "last",
        "theirs then",
        "",
        "used",
        "bounds",
    );
    let only = std::env::var("ISTHMUS_NEIGHBOURS").ok();
    let mut outside = Vec::new();
    for row in &ROWS {
        let name = match row.others {
            [] => format!("{} alone", row.own),
            [other] => format!("{} beside {other}", row.own),
            others => format!("{} beside {} {}", row.own, others.len(), others[0]),
        };
        if only.as_ref().is_some_and(|only| !name.starts_with(only)) {
            continue;
        }
        for (rtt_ms, bounds) in RTTS_MS.iter().zip(&row.bounds) {
            for (queue, bounds) in QUEUES.iter().zip(bounds) {
                let (rtt_us, queue_us) = (rtt_ms * 1_000, rtt_ms * 10 * queue);
                let path =
                    PathSpec { rate_bps: 100_000_000, rtt_us, queue_us, mtu: 1_500, ..Default::default() };
                let [first, last] = both_orders(&path, row.own, row.others);
                let queue = *queue as f64 / 100.0;
                let used = (first[0] + first[1]).min(last[0] + last[1]);
                let _ = write!(
                    text,
                    "\n{name:<24}{rtt_ms:>8}{queue:>12.2}{:>12.3}{:>8.3}{:>12.3}{:>8.3}{used:>8.3}{:>16}",
                    first[0],
                    last[0],
                    first[1],
                    last[1],
                    format!("{:.2} to {:.2}", bounds.start(), bounds.end()),
                );
                for share in [first[0], last[0]].iter().filter(|share| !bounds.contains(share)) {
                    outside.push(format!("{name}, {rtt_ms} ms, queue {queue}: {share:.3}"));
                }
            }
        }
    }
    text.push('\n');
    println!("{text}");
    assert!(outside.is_empty(), "{outside:#?}");
    if only.is_none() {
        let shares = [Better::Either; 4];
        let bounds = [Better::Same; 2];
        compare(TABLE, &text, &[&[Better::Same], &shares[..], &[Better::More(0.02)], &bounds].concat());
    }
}

/// Flows that begin at the same moment, over a queue of one round trip: the neighbour, the round trip (ms), and the least
/// that `rate` and the neighbour may have of [`AT_ONCE_US`]. These are the first seconds: BBR's start-up overflows the
/// queue many times.
const AT_ONCE: [(&str, u64, [f64; 2]); 4] = [
    ("bbr", 24, [0.37, 0.45]),
    ("bbr", 100, [0.30, 0.45]),
    ("cubic", 24, [0.32, 0.40]),
    ("cubic", 100, [0.40, 0.40]),
];
const AT_ONCE_US: Range<u64> = 1_000_000..13_000_000;

#[test]
fn flows_that_begin_at_once_share_the_path_within_seconds() {
    for (rate_bps, mtu) in [(100_000_000, 1_500), (1_000_000_000, 9_000)] {
        for (other, rtt_ms, least) in AT_ONCE {
            let rtt_us = rtt_ms * 1_000;
            let path = PathSpec { rate_bps, rtt_us, queue_us: rtt_us, mtu, ..Default::default() };
            let first = shares_within(&path, &["rate", other], 0, AT_ONCE_US);
            let mut last = shares_within(&path, &[other, "rate"], 0, AT_ONCE_US);
            last.reverse();
            for found in [first, last] {
                println!("{rate_bps} bit/s, {rtt_ms} ms: rate {:.3}, {other} {:.3}", found[0], found[1]);
                let is_shared = found.iter().zip(least).all(|(share, least)| *share >= least);
                assert!(is_shared, "{rate_bps} bit/s, {rtt_ms} ms: rate and {other} have {found:.2?}");
            }
        }
    }
}
