//! Links as they occur outside of laboratories: what each congestion control carries over them.
//!
//! `wild.txt` holds one row per link: the fraction of the link's capacity that each control delivered, and the bytes it
//! sent per byte delivered. For `rate` it is the worst of [`SEEDS`] seeds: what jitter and losses by chance do to one run
//! says little of the next. [`BOUNDS`] bounds them for `rate`. A row may improve, but the test fails if it gets worse
//! than they say. The links are those of the built-in catalogue, which `isthmus bench wan --links wild` runs in labs. `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation wild`
//! writes the table anew; the bounds are tightened by hand. `ISTHMUS_WILD=jitter` runs the rows whose names contain
//! that, and prints each run.

use std::fmt::Write;

use isthmus_lab::catalogue::{Catalogue, NamedLink};

use crate::floors::Better;
use crate::golden::compare;
use crate::neighbours::begin;
use crate::net::{Flow, Net, PathSpec, config};

const TABLE: &str = "tests/simulation/wild.txt";
const CONTROLS: [&str; 3] = ["rate", "cubic", "bbr"];
/// Time after which transfers are cut off. Microseconds.
const LASTS_US: u64 = 6_000_000;
/// Seeds of the random decisions with which each link is run by `rate`. Count.
const SEEDS: u64 = 4;
const MS: u64 = 1_000_000;

/// Bounds of each link of the catalogue, in its order: name, MTU, the fraction of its capacity that `rate` must deliver,
/// and the most bytes that it may send per byte delivered.
const BOUNDS: [(&str, u32, f64, f64); 30] = [
    ("steady", 1500, 0.98, 1.03),
    ("jitter 3 ms", 1500, 0.95, 1.03),
    ("jitter 3 ms", 9000, 0.96, 1.02),
    ("jitter 4 ms", 1500, 0.90, 1.03),
    ("jitter 10 ms, 0.01 % lost", 1500, 0.67, 1.07),
    ("heavy-tailed jitter to 12 ms", 1500, 0.92, 1.03),
    ("heavy-tailed jitter to 50 ms", 9000, 0.94, 1.03),
    ("20 ms silent of each 200", 1500, 0.92, 1.03),
    ("60 ms silent of each 1000", 9000, 0.94, 1.02),
    ("queue of 0.05 RTT", 1500, 0.97, 1.04),
    ("queue of 0.02 RTT", 1500, 0.95, 1.04),
    ("queue of 0.02 RTT, 0.1 % lost", 1500, 0.93, 1.06),
    ("queue of 0.05 RTT", 9000, 0.98, 1.02),
    ("queue of 0.25 RTT", 1500, 0.98, 1.03),
    ("queue of 4 RTT", 1500, 0.98, 1.03),
    ("policer of 400 Mb/s, bucket 1 MB", 1500, 0.98, 1.10),
    ("policer of 400 Mb/s, bucket 200 kB", 9000, 0.94, 1.09),
    ("UDP policed to 100 Mb/s", 1500, 0.98, 1.25),
    ("0.25 % lost in bursts", 1500, 0.97, 1.04),
    ("0.25 % lost in bursts", 9000, 0.97, 1.04),
    ("2 % come a quarter RTT late", 1500, 0.98, 1.03),
    ("2 % come a quarter RTT late", 9000, 0.98, 1.03),
    ("route to 80 ms", 9000, 0.97, 1.03),
    ("route to 80 ms", 1500, 0.95, 1.04),
    ("route to 24 ms", 9000, 0.99, 1.02),
    ("rate to a fifth", 1500, 0.97, 1.03),
    ("rate to a fifth and back", 9000, 0.79, 1.03),
    ("way back 10 Mb/s", 1500, 0.98, 1.03),
    ("acks gathered for 5 ms", 1500, 0.97, 1.03),
    ("acks gathered for 20 ms", 9000, 0.96, 1.03),
];

/// A link of the catalogue with its bounds.
pub(crate) struct Row {
    pub(crate) link: NamedLink,
    floor: f64,
    ceiling: f64,
}

/// All rows. A link without bounds, or bounds without a link, is a fault of this table.
pub(crate) fn rows() -> Vec<Row> {
    let links = Catalogue::wild().links;
    assert_eq!(links.len(), BOUNDS.len(), "each link has its bounds");
    let of = |(link, (name, mtu, floor, ceiling)): (NamedLink, (&str, u32, f64, f64))| {
        assert_eq!((link.name.as_str(), link.spec.mtu), (name, mtu));
        Row { link, floor, ceiling }
    };
    links.into_iter().zip(BOUNDS).map(of).collect()
}

impl Row {
    /// A row without bounds.
    pub(crate) fn of(link: NamedLink) -> Self {
        Self { link, floor: 0.0, ceiling: f64::MAX }
    }

    pub(crate) fn rtt_ms(&self) -> u64 {
        self.link.spec.rtt_ns() / MS
    }

    /// Bytes of stream that the link can carry from the start of a transfer until `until_us`, by UDP or by TCP.
    pub(crate) fn carries(&self, by_udp: bool, until_us: u64) -> f64 {
        let link = &self.link.spec.directions[0];
        let rate = |rate: u64| link.passing_bps(rate, by_udp) as f64;
        let (mut bits, mut at_us, mut now) = (0.0, 0, rate(link.rate_bps));
        for change in &link.changes {
            let next_us = (change.at_ns / 1_000 - 1_000_000).min(until_us);
            bits += now * (next_us - at_us) as f64 / 1e6;
            (at_us, now) = (next_us, rate(change.rate_bps));
        }
        bits += now * (until_us - at_us) as f64 / 1e6;
        let ip = f64::from(self.link.spec.mtu);
        bits / 8.0 * (ip - 28.0) / (ip + 14.0 + 24.0) * (1.0 - link.loss.mean())
    }

    pub(crate) fn path(&self, seed: u64) -> PathSpec {
        let directions = Some(Box::new(self.link.spec.directions.clone()));
        PathSpec { mtu: self.link.spec.mtu, directions, seed, ..Default::default() }
    }

    /// Runs a transfer over a stream that was opened just before, for [`LASTS_US`].
    fn run(&self, control: &str, seed: u64) -> (Net, Flow) {
        let path = self.path(seed);
        let mut net = Net::new(&path, vec![config(&path), config(&path)]);
        let until = net.now + LASTS_US;
        let mut flow = begin(&mut net, 0, control);
        while net.now < until {
            flow.feed(&mut net);
            net.step(until);
            flow.on_event(&mut net);
            flow.drain(&mut net);
        }
        (net, flow)
    }

    /// The fraction of the link's capacity that the control delivers, and the bytes it sends per byte delivered.
    pub(crate) fn measure(&self, control: &str, seed: u64) -> (f64, f64) {
        let (net, flow) = self.run(control, seed);
        let could = self.carries(true, LASTS_US - self.rtt_ms() * 1_000);
        (flow.read as f64 / could, net.sent_bytes[0] as f64 / flow.read.max(1) as f64)
    }
}

#[test]
fn goodput_over_wild_links_is_above_its_floors() {
    let mut text = format!(
        "Fraction of what a 1 Gb/s link carries in {} s from a cold start, and in brackets bytes sent per byte\n\
         delivered; for `rate` the worst of {SEEDS} seeds. The floor is what `rate` must reach.\n\n{:<34} {:>5} {:>6}",
        LASTS_US / 1_000_000,
        "link",
        "MTU",
        "RTT ms"
    );
    CONTROLS.iter().for_each(|control| {
        let _ = write!(text, "{control:>14}");
    });
    text.push_str("         floor");
    let mut below = Vec::new();
    let only = std::env::var("ISTHMUS_WILD").ok();
    let named = |row: &Row| only.as_ref().is_none_or(|only| row.link.name.contains(only));
    for row in rows().iter().filter(|row| named(row)) {
        let (name, mtu) = (&row.link.name, row.link.spec.mtu);
        let _ = write!(text, "\n{name:<34} {mtu:>5} {:>6}", row.rtt_ms());
        for control in CONTROLS {
            let seeds = if control == "rate" { 1..=SEEDS } else { 1..=1 };
            let runs = seeds.map(|seed| row.measure(control, seed)).inspect(|run| {
                if only.is_some() {
                    println!("{name}, MTU {mtu}, {control}: {:.3} ({:.2})", run.0, run.1);
                }
            });
            let (goodput, sent) = runs
                .fold((f64::MAX, 0.0), |(goodput, sent), run| (run.0.min(goodput), f64::max(run.1, sent)));
            let _ = write!(text, "{:>14}", format!("{goodput:.3} ({sent:.2})"));
            if control == "rate" && (goodput < row.floor || sent > row.ceiling) {
                below.push(format!("{name}, MTU {mtu}: {goodput:.3} ({sent:.2})"));
            }
        }
        let _ = write!(text, "{:>14}", format!("{:.2} ({:.2})", row.floor, row.ceiling));
    }
    text.push('\n');
    println!("{text}");
    assert!(below.is_empty(), "{below:#?}");
    if only.is_none() {
        // `rate` has floors of its own. BBR is here for comparison.
        let cubic = [Better::More(0.03), Better::Less(0.05)];
        compare(
            TABLE,
            &text,
            &[&[Better::Either; 2], &cubic[..], &[Better::Either; 2], &[Better::Same; 2]].concat(),
        );
    }
}

/// Where that is so, TCP is tried beside UDP.
#[test]
fn only_a_link_with_a_policer_seems_to_police() {
    for row in rows() {
        let (net, flow) = row.run("rate", 1);
        let seems = net.ports[0].stream(flow.stream()).expect("it lives").status().is_policed;
        // Two fifths of a link and a small bucket show neither a faster burst nor the lack of a queue.
        let polices = row.link.name.contains("police") && !row.link.name.contains("200 kB");
        assert_eq!(seems, polices, "{}, MTU {}", row.link.name, row.link.spec.mtu);
    }
}
