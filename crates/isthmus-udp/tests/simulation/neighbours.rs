//! The share of a link that a flow takes beside one with another congestion control.
//!
//! `neighbours.txt` holds one row for each control, neighbour, round trip and queue. `bounds` of each [`Row`] bound the
//! share of the flow that is named first. The lower bound keeps it from starving, the upper one keeps it from starving
//! the other. `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation neighbours` writes the table anew; the
//! bounds are tightened by hand. `ISTHMUS_NEIGHBOURS="background beside cubic"` runs only the rows that begin so.

use std::fmt::Write;
use std::ops::RangeInclusive;

use isthmus_udp::Composition;

use crate::bbr::Bbr;
use crate::golden::compare;
use crate::net::{Flow, Net, PathSpec, config};

const TABLE: &str = "tests/simulation/neighbours.txt";
/// Time between the starts of two flows. Microseconds.
const LATER_US: u64 = 2_000_000;
/// The part of a run that is measured. Microseconds.
const COUNTS_US: std::ops::Range<u64> = 10_000_000..30_000_000;
const RTTS_MS: [u64; 2] = [24, 100];
/// Queue lengths. Percent of a round trip.
const QUEUES: [u64; 3] = [25, 100, 400];

/// A control and its neighbour. `bounds`: of the control's share, for each round trip and queue.
struct Row {
    own: &'static str,
    other: Option<&'static str>,
    bounds: [[RangeInclusive<f64>; 3]; 2],
}

const ROWS: [Row; 8] = [
    Row {
        own: "rate",
        other: Some("cubic"),
        bounds: [[0.36..=0.61, 0.24..=0.50, 0.46..=0.50], [0.43..=0.48, 0.45..=0.51, 0.44..=0.47]],
    },
    Row {
        own: "rate",
        other: Some("bbr"),
        bounds: [[0.37..=0.48, 0.22..=0.55, 0.41..=0.47], [0.13..=0.25, 0.13..=0.20, 0.35..=0.45]],
    },
    // At 100 ms with a short queue CUBIC leaves a fifth of the link idle (`cubic alone`). Background takes part of it.
    Row {
        own: "background",
        other: Some("cubic"),
        bounds: [[0.00..=0.05, 0.00..=0.05, 0.00..=0.05], [0.00..=0.11, 0.00..=0.05, 0.00..=0.05]],
    },
    Row { own: "background", other: Some("bbr"), bounds: BELOW },
    Row { own: "background", other: Some("rate"), bounds: BELOW },
    Row { own: "background", other: None, bounds: ALONE },
    Row { own: "cubic", other: None, bounds: ANY },
    Row { own: "cubic", other: Some("bbr"), bounds: ANY },
];

/// Bounds of rows that only serve for comparison.
const ANY: [[RangeInclusive<f64>; 3]; 2] = [const { [const { 0.0..=1.0 }; 3] }; 2];
/// Bounds of less than best effort.
const BELOW: [[RangeInclusive<f64>; 3]; 2] = [const { [const { 0.0..=0.05 }; 3] }; 2];
const ALONE: [[RangeInclusive<f64>; 3]; 2] = [const { [const { 0.95..=1.0 }; 3] }; 2];

fn begin(net: &mut Net, port: usize, control: &str) -> Flow {
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
fn shares<const N: usize>(path: &PathSpec, controls: [&str; N]) -> [f64; N] {
    let mut net = Net::new(path, (0..2 * N).map(|_| config(path)).collect());
    let start = net.now;
    let [from, until] = [COUNTS_US.start, COUNTS_US.end].map(|us| start + us);
    let mut flows: Vec<Flow> = Vec::new();
    let mut before = [0; N];
    while net.now < until {
        while flows.len() < N && net.now >= start + flows.len() as u64 * LATER_US {
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
            before = std::array::from_fn(|i| flows.get(i).map_or(0, |flow| flow.read));
        }
    }
    let bytes = path.goodput() * (until - from) as f64 / 1e6;
    std::array::from_fn(|i| (flows[i].read - before[i]) as f64 / bytes)
}

/// Shares of the control and its neighbour: if it begins first, and if it begins second.
fn both_orders(path: &PathSpec, own: &str, other: Option<&str>) -> [[f64; 2]; 2] {
    let Some(other) = other else {
        let [alone] = shares(path, [own]);
        return [[alone, 0.0]; 2];
    };
    let [second, first] = shares(path, [other, own]);
    [shares(path, [own, other]), [first, second]]
}

#[test]
fn shares_beside_neighbours_are_within_their_bounds() {
    let mut text = format!(
        "Shares of a 100 Mb/s link from {} to {} s, MTU 1500; the second flow begins {} s after the first.\n\
         Shares are those of the flow that is named first: if it begins first, and if it begins second.\n\n\
         {:<24}{:>8}{:>12}{:>12}{:>8}{:>12}{:>8}{:>16}",
        COUNTS_US.start / 1_000_000,
        COUNTS_US.end / 1_000_000,
        LATER_US / 1_000_000,
        "",
        "RTT ms",
        "queue RTT",
        "goes first",
        "second",
        "theirs then",
        "",
        "bounds",
    );
    let only = std::env::var("ISTHMUS_NEIGHBOURS").ok();
    let mut outside = Vec::new();
    for row in &ROWS {
        let name =
            row.other.map_or(format!("{} alone", row.own), |other| format!("{} beside {other}", row.own));
        if only.as_ref().is_some_and(|only| !name.starts_with(only)) {
            continue;
        }
        for (rtt_ms, bounds) in RTTS_MS.iter().zip(&row.bounds) {
            for (queue, bounds) in QUEUES.iter().zip(bounds) {
                let (rtt_us, queue_us) = (rtt_ms * 1_000, rtt_ms * 10 * queue);
                let path =
                    PathSpec { rate_bps: 100_000_000, rtt_us, queue_us, mtu: 1_500, ..Default::default() };
                let [first, second] = both_orders(&path, row.own, row.other);
                let queue = *queue as f64 / 100.0;
                let _ = write!(
                    text,
                    "\n{name:<24}{rtt_ms:>8}{queue:>12}{:>12.3}{:>8.3}{:>12.3}{:>8.3}{:>16}",
                    first[0],
                    second[0],
                    first[1],
                    second[1],
                    format!("{:.2} to {:.2}", bounds.start(), bounds.end()),
                );
                for share in [first[0], second[0]].iter().filter(|share| !bounds.contains(share)) {
                    outside.push(format!("{name}, {rtt_ms} ms, queue {queue}: {share:.3}"));
                }
            }
        }
    }
    text.push('\n');
    println!("{text}");
    assert!(outside.is_empty(), "{outside:#?}");
    if only.is_none() {
        compare(TABLE, &text);
    }
}
