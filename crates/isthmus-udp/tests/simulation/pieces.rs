//! Flows of one host that send pieces with pauses, as a program's processes do. A table has what they carry together.
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation pieces` writes the table anew.

use std::fmt::Write;

use isthmus_lab::model::Loss;
use isthmus_lab::rng::Rng;

use crate::floors::Better;
use crate::golden::compare;
use crate::net::{Flow, Net, PathSpec, median};
use crate::stalls::StallSpec;
use crate::together::sites;

const TABLE: &str = "tests/simulation/pieces.txt";
const FLOWS: usize = 4;
/// Length of the measurement, from the first possible arrival. Microseconds.
const FOR_US: u64 = 8_000_000;
/// Runs of a cell; their median counts. Results vary much with the random pieces of 4 flows.
const SEEDS: [u64; 3] = [1, 2, 3];
/// Least fraction of the path's goodput in any cell, whatever the table says.
const LEAST: f64 = 0.75;

/// Length of a flow's pieces in bytes, and its longest pause after the arrival of a piece in microseconds.
struct Pieces {
    least: u64,
    most: u64,
    pause_us: u64,
}

const SMALL: Pieces = Pieces { least: 1_000_000, most: 8_000_000, pause_us: 300_000 };
const LARGE: Pieces = Pieces { least: 4_000_000, most: 40_000_000, pause_us: 1_000_000 };

/// A flow, and when its program has the next piece. `None` while a piece is in flight.
struct Sender {
    flow: Flow,
    next: Option<u64>,
}

impl Sender {
    fn give(&mut self, net: &mut Net, pieces: &Pieces, rng: &mut Rng) {
        if self.flow.read == self.flow.given && self.next.is_none() {
            self.next = Some(net.now + rng.next_u64() % pieces.pause_us);
        }
        if self.next.is_some_and(|at| net.now >= at) {
            self.flow.given += pieces.least + rng.next_u64() % (pieces.most - pieces.least + 1);
            self.next = None;
        }
        self.flow.feed(net);
    }
}

/// The fraction of the path's goodput that the flows carry. The first one always has data to send.
fn fraction(path: &PathSpec, pieces: &Pieces) -> f64 {
    let mut net = sites(path, FLOWS);
    let mut rng = Rng::new(path.seed, 7);
    let start = net.now + 2 * path.rtt_us + 10_000;
    let mut senders: Vec<Sender> = (0..FLOWS)
        .map(|i| Sender { flow: Flow::new(&mut net, 2 * i, 2 * i + 1, 1 << 40, false), next: Some(start) })
        .collect();
    for sender in &mut senders {
        sender.flow.greet(&mut net);
        sender.flow.given = 20;
    }
    let end = start + path.rtt_us / 2 + FOR_US;
    while net.now < end {
        if net.now >= start {
            senders[0].flow.given = 1 << 39;
        }
        senders.iter_mut().for_each(|sender| sender.give(&mut net, pieces, &mut rng));
        let next = senders.iter().filter_map(|sender| sender.next).filter(|at| *at > net.now).min();
        net.step(next.unwrap_or(end).min(end));
        for sender in &mut senders {
            sender.flow.on_event(&mut net);
            sender.flow.drain(&mut net);
        }
    }
    let read: u64 = senders.iter().map(|sender| sender.flow.read).sum();
    read as f64 / (FOR_US as f64 / 1e6) / path.goodput()
}

fn table() -> (String, f64) {
    let mut text = format!(
        "Fraction of what fits in {} s that {FLOWS} flows of a host carry which have pieces to send, 1 Gb/s, MTU 9000;\nmedians of three.\n\n",
        FOR_US / 1_000_000
    );
    let mut worst = f64::MAX;
    let _ = writeln!(text, "{:<52}{:>8}{:>8}{:>8}", "RTT ms", 24, 100, 366);
    let stalls = StallSpec { every_us: 300_000, least_us: 5_000, most_us: 30_000 };
    let rows = [
        (SMALL, 0.0, false),
        (SMALL, 0.01, false),
        (LARGE, 0.0, false),
        (LARGE, 0.01, false),
        (LARGE, 0.01, true),
    ];
    for (pieces, loss, stall) in rows {
        let (least, most) = (pieces.least / 1_000_000, pieces.most / 1_000_000);
        let still = if stall { ", hosts stand still 5 to 30 ms" } else { "" };
        let _ = write!(text, "{:<52}", format!("{least} to {most} MB, {} % lost{still}", loss * 100.0));
        for rtt_us in [24_000, 100_000, 366_000] {
            let mut path = PathSpec { rtt_us, loss: Loss::Independent(loss), ..Default::default() };
            path.host_stalls = if stall { stalls } else { path.host_stalls };
            let fraction = median(SEEDS.map(|seed| fraction(&PathSpec { seed, ..path.clone() }, &pieces)));
            worst = worst.min(fraction);
            let _ = write!(text, "{fraction:>8.3}");
        }
        text.push('\n');
    }
    (text, worst)
}

#[test]
fn flows_that_have_pieces_to_send_fill_the_path() {
    let (text, worst) = table();
    println!("{text}");
    compare(TABLE, &text, &[Better::More(0.02)]);
    assert!(worst >= LEAST, "{worst:.3} of what fits");
}
