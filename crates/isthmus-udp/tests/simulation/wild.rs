//! Links as they occur outside of laboratories: what each congestion control carries over them.
//!
//! `wild.txt` holds one row per link: the fraction of the link's capacity that each control delivered, and the bytes it
//! sent per byte delivered. `floor` and `ceiling` of each [`Row`] bound them for `rate`. A row may improve, but the
//! test fails if it gets worse than they say. `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation wild`
//! writes the table anew; the bounds are tightened by hand. `ISTHMUS_WILD=jitter` runs the rows whose names contain
//! that.

use std::fmt::Write;

use isthmus_lab::model::{Change, DirectionSpec, Jitter, Loss, Policer};
use isthmus_udp::Composition;

use crate::golden::compare;
use crate::net::{Flow, Net, PathSpec, config};

const TABLE: &str = "tests/simulation/wild.txt";
const CONTROLS: [&str; 2] = ["rate", "cubic"];
/// Time after which transfers are cut off. Microseconds.
const LASTS_US: u64 = 6_000_000;
const GIGABIT: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// A link. `rate` must deliver the fraction `floor` of its capacity.
struct Row {
    name: &'static str,
    mtu: u32,
    rtt_ms: u64,
    /// Changes a steady link without loss, whose queue holds one round trip.
    link: fn(&mut [DirectionSpec; 2]),
    floor: f64,
    /// The most bytes that it may send per byte delivered.
    ceiling: f64,
}

const fn row(
    name: &'static str,
    mtu: u32,
    rtt_ms: u64,
    link: fn(&mut [DirectionSpec; 2]),
    (floor, ceiling): (f64, f64),
) -> Row {
    Row { name, mtu, rtt_ms, link, floor, ceiling }
}

/// Jitter in both directions.
fn jitter(link: &mut [DirectionSpec; 2], most_ms: u64, jitter: Jitter) {
    link.iter_mut().for_each(|way| (way.jitter_ns, way.jitter) = (most_ms * MS, jitter));
}

fn lose(link: &mut [DirectionSpec; 2], loss: Loss) {
    link.iter_mut().for_each(|way| way.loss = loss);
}

/// Sets the queues' length in thousandths of a round trip.
fn queue(link: &mut [DirectionSpec; 2], thousandths: u64) {
    link.iter_mut().for_each(|way| way.queue_bytes = way.queue_bytes * thousandths / 1_000);
}

/// From `at_ms` on, both directions have another rate and delay, if given.
fn change(link: &mut [DirectionSpec; 2], at_ms: u64, rate_bps: Option<u64>, rtt_ms: Option<u64>) {
    for way in link {
        let rate_bps = rate_bps.unwrap_or(way.rate_bps);
        let delay_ns = rtt_ms.map_or(way.delay_ns, |rtt| rtt * MS / 2);
        way.changes.push(Change { at_ns: (1_000 + at_ms) * MS, rate_bps, delay_ns });
    }
}

fn police(link: &mut [DirectionSpec; 2], rate_bps: u64, burst_bytes: u64) {
    link[0].policer = Some(Policer { rate_bps, burst_bytes });
}

fn reorder(link: &mut [DirectionSpec; 2], share: f64) {
    for way in link {
        (way.reorder, way.reorder_by_ns) = (share, way.delay_ns / 2);
    }
}

const BURSTY: Loss = Loss::GilbertElliott { to_bad: 0.0005, to_good: 0.1, loss_good: 0.0, loss_bad: 0.5 };

const ROWS: &[Row] = &[
    row("steady", 1_500, 24, |_| {}, (0.98, 1.03)),
    row("jitter 3 ms", 1_500, 24, |link| jitter(link, 3, Jitter::Uniform), (0.96, 1.03)),
    row("jitter 3 ms", 9_000, 24, |link| jitter(link, 3, Jitter::Uniform), (0.98, 1.02)),
    row(
        "jitter 10 ms, 0.01 % lost",
        1_500,
        100,
        |link| {
            jitter(link, 10, Jitter::Uniform);
            lose(link, Loss::Independent(0.0001));
        },
        (0.69, 1.06),
    ),
    row(
        "heavy-tailed jitter to 12 ms",
        1_500,
        24,
        |link| jitter(link, 12, Jitter::HeavyTailed { every_ns: MS }),
        (0.94, 1.03),
    ),
    row(
        "heavy-tailed jitter to 50 ms",
        9_000,
        100,
        |link| jitter(link, 50, Jitter::HeavyTailed { every_ns: 5 * MS }),
        (0.91, 1.03),
    ),
    row(
        "20 ms silent of each 200",
        1_500,
        24,
        |link| jitter(link, 20, Jitter::Spikes { every_ns: 200 * MS }),
        (0.88, 1.03),
    ),
    row(
        "60 ms silent of each 1000",
        9_000,
        100,
        |link| jitter(link, 60, Jitter::Spikes { every_ns: 1_000 * MS }),
        (0.91, 1.02),
    ),
    row("queue of 0.05 RTT", 1_500, 24, |link| queue(link, 50), (0.97, 1.04)),
    row("queue of 0.02 RTT", 1_500, 100, |link| queue(link, 20), (0.95, 1.04)),
    row(
        "queue of 0.02 RTT, 0.1 % lost",
        1_500,
        100,
        |link| {
            queue(link, 20);
            lose(link, Loss::Independent(0.001));
        },
        (0.93, 1.06),
    ),
    row("queue of 0.05 RTT", 9_000, 100, |link| queue(link, 50), (0.98, 1.02)),
    row("queue of 0.25 RTT", 1_500, 24, |link| queue(link, 250), (0.98, 1.03)),
    row("queue of 4 RTT", 1_500, 24, |link| queue(link, 4_000), (0.98, 1.03)),
    row(
        "policer of 400 Mb/s, bucket 1 MB",
        1_500,
        24,
        |link| police(link, 400_000_000, 1_000_000),
        (0.98, 1.13),
    ),
    row(
        "policer of 400 Mb/s, bucket 200 kB",
        9_000,
        100,
        |link| police(link, 400_000_000, 200_000),
        (0.94, 1.09),
    ),
    row("0.25 % lost in bursts", 1_500, 24, |link| lose(link, BURSTY), (0.98, 1.03)),
    row("0.25 % lost in bursts", 9_000, 100, |link| lose(link, BURSTY), (0.98, 1.02)),
    row("2 % come a quarter RTT late", 1_500, 24, |link| reorder(link, 0.02), (0.98, 1.03)),
    row("2 % come a quarter RTT late", 9_000, 100, |link| reorder(link, 0.02), (0.98, 1.03)),
    row("route to 80 ms", 9_000, 24, |link| change(link, 2_000, None, Some(80)), (0.77, 1.06)),
    row("route to 80 ms", 1_500, 24, |link| change(link, 2_000, None, Some(80)), (0.76, 1.07)),
    row("route to 24 ms", 9_000, 80, |link| change(link, 2_000, None, Some(24)), (0.99, 1.02)),
    row("rate to a fifth", 1_500, 24, |link| change(link, 2_000, Some(GIGABIT / 5), None), (0.97, 1.03)),
    row(
        "rate to a fifth and back",
        9_000,
        100,
        |link| {
            change(link, 1_500, Some(GIGABIT / 5), None);
            change(link, 3_500, Some(GIGABIT), None);
        },
        (0.79, 1.03),
    ),
    row(
        "way back 10 Mb/s",
        1_500,
        24,
        |link| (link[1].rate_bps, link[1].queue_bytes) = (GIGABIT / 100, 64 << 10),
        (0.98, 1.03),
    ),
    row("acks gathered for 5 ms", 1_500, 24, |link| link[1].gather_ns = 5 * MS, (0.96, 1.03)),
    row("acks gathered for 20 ms", 9_000, 100, |link| link[1].gather_ns = 20 * MS, (0.93, 1.02)),
];

impl Row {
    fn directions(&self) -> [DirectionSpec; 2] {
        let way = DirectionSpec {
            delay_ns: self.rtt_ms * MS / 2,
            queue_bytes: GIGABIT / 8 * self.rtt_ms / 1_000,
            ..Default::default()
        };
        let mut link = [way.clone(), way];
        (self.link)(&mut link);
        link
    }

    /// Bytes of stream that the link can carry from the start of a transfer until `until_us`.
    fn carries(&self, link: &DirectionSpec, until_us: u64) -> f64 {
        let rate = |rate: u64| rate.min(link.policer.map_or(u64::MAX, |policer| policer.rate_bps)) as f64;
        let (mut bits, mut at_us, mut now) = (0.0, 0, rate(link.rate_bps));
        for change in &link.changes {
            let next_us = change.at_ns / 1_000 - 1_000_000;
            bits += now * (next_us - at_us) as f64 / 1e6;
            (at_us, now) = (next_us, rate(change.rate_bps));
        }
        bits += now * (until_us - at_us) as f64 / 1e6;
        let ip = f64::from(self.mtu);
        bits / 8.0 * (ip - 28.0) / (ip + 14.0 + 24.0) * (1.0 - link.loss.mean())
    }

    /// Runs a transfer over a stream that was opened just before. Returns the fraction of the link's capacity that the
    /// control delivers, and the bytes it sent per byte delivered.
    fn run(&self, control: &str) -> (f64, f64) {
        let directions = self.directions();
        let could = self.carries(&directions[0], LASTS_US - self.rtt_ms * 1_000);
        let path = PathSpec { mtu: self.mtu, directions: Some(Box::new(directions)), ..Default::default() };
        let mut settings = config(&path);
        settings.stream.composition = control.parse::<Composition>().expect("valid");
        let mut net = Net::new(&path, vec![settings.clone(), settings]);
        let until = net.now + LASTS_US;
        let mut flow = Flow::new(&mut net, 0, 1, 1 << 40, false);
        while net.now < until {
            flow.feed(&mut net);
            net.step(until);
            flow.on_event(&mut net);
            flow.drain(&mut net);
        }
        (flow.read as f64 / could, net.sent_bytes[0] as f64 / flow.read.max(1) as f64)
    }
}

#[test]
fn goodput_over_wild_links_is_above_its_floors() {
    let mut text = format!(
        "Fraction of what a 1 Gb/s link carries in {} s from a cold start, and in brackets bytes sent per byte\n\
         delivered. The floor is what `rate` must reach.\n\n{:<34} {:>5} {:>6}",
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
    for row in ROWS.iter().filter(|row| only.as_ref().is_none_or(|only| row.name.contains(only))) {
        let _ = write!(text, "\n{:<34} {:>5} {:>6}", row.name, row.mtu, row.rtt_ms);
        for control in CONTROLS {
            let (goodput, sent) = row.run(control);
            let _ = write!(text, "{:>14}", format!("{goodput:.3} ({sent:.2})"));
            if control == "rate" && (goodput < row.floor || sent > row.ceiling) {
                below.push(format!("{}, MTU {}: {goodput:.3} ({sent:.2})", row.name, row.mtu));
            }
        }
        let _ = write!(text, "{:>14}", format!("{:.2} ({:.2})", row.floor, row.ceiling));
    }
    text.push('\n');
    println!("{text}");
    assert!(below.is_empty(), "{below:#?}");
    if only.is_none() {
        compare(TABLE, &text);
    }
}
