//! The golden table of goodput's percentiles over seeds: for paths that lose packets in bursts, and for hosts and links
//! that stall.
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation seeds` writes the table anew.

use std::fmt::Write;

use isthmus_lab::model::Loss;

use crate::disorder::bursts;
use crate::floors::Better;
use crate::golden::compare;
use crate::net::{Net, PathSpec, transfer_after};
use crate::stalls::StallSpec;

const TABLE: &str = "tests/simulation/seeds.txt";
const SEEDS: u64 = 20;
const BYTES: u64 = 100_000_000;

const HOSTS: StallSpec = StallSpec { every_us: 300_000, least_us: 5_000, most_us: 30_000 };
const LINKS: StallSpec = StallSpec { every_us: 300_000, least_us: 1_000, most_us: 20_000 };

fn fraction(path: &PathSpec) -> f64 {
    let mut net = Net::pair(path);
    match transfer_after(&mut net, 2 * path.rtt_us + 10_000, BYTES, 60.0) {
        Ok(seconds) => path.floor_s(BYTES) / seconds,
        Err(carried) => path.floor_s(carried) / 60.0,
    }
}

/// A row: the kind of path, and percentiles of the fraction of the floor over seeds.
fn row(what: &str, rtt_us: u64, spoil: impl Fn(&mut PathSpec)) -> String {
    let mut all: Vec<f64> = (1..=SEEDS)
        .map(|seed| {
            let mut path = PathSpec { rtt_us, seed, ..Default::default() };
            spoil(&mut path);
            fraction(&path)
        })
        .collect();
    all.sort_by(f64::total_cmp);
    let [p5, median] = [SEEDS / 20, SEEDS / 2].map(|at| all[at as usize]);
    format!("{what:<44}{:>8}{p5:>8.3}{median:>8.3}\n", rtt_us as f64 / 1e3)
}

fn table() -> String {
    let mut text = format!(
        "Fraction of the physical floor of {} MB over {SEEDS} seeds, opened two RTT before, 1 Gb/s, MTU 9000.\n\n",
        BYTES / 1_000_000
    );
    let _ = writeln!(text, "{:<44}{:>8}{:>8}{:>8}", "", "RTT ms", "p5", "median");
    for rtt_us in [24_000, 366_000] {
        text += &row("5 % in bursts of 4", rtt_us, |path| path.loss = bursts(0.05, 4.0));
    }
    for (rtt_us, loss) in [(100_000, 0.05), (366_000, 0.1)] {
        let percent = loss * 100.0;
        let loss = Loss::Independent(loss);
        text += &row(&format!("{percent} %"), rtt_us, |path| path.loss = loss);
        text += &row(&format!("{percent} %, hosts stand still 5 to 30 ms"), rtt_us, |path| {
            (path.loss, path.host_stalls) = (loss, HOSTS);
        });
    }
    text += &row("5 %, the link stands still 1 to 20 ms", 100_000, |path| {
        (path.loss, path.link_stalls) = (Loss::Independent(0.05), LINKS);
    });
    text
}

#[test]
fn goodput_varies_as_the_table_of_percentiles_says() {
    compare(TABLE, &table(), &[Better::More(0.02)]);
}
