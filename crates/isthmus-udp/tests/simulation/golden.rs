//! The golden table: goodput by composition, round trip and loss. It is kept as text, so that a review shows the old
//! and the new value of each change.
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation golden` writes the table anew.

use std::fmt::Write;

use isthmus_lab::model::Loss;
use isthmus_udp::Composition;

use crate::floors::Better;
use crate::net::{Net, PathSpec, config, transfer, transfer_after};

const TABLE: &str = "tests/simulation/golden.txt";
const RTTS_US: [u64; 4] = [100, 24_000, 100_000, 366_000];
const LOSSES: [f64; 6] = [0.0, 0.0001, 0.001, 0.01, 0.05, 0.1];

struct Row {
    composition: &'static str,
    /// Whether the stream was opened two round trips before, as by a program that has started.
    opened: bool,
    mtu: u32,
    /// Bytes of the transfer.
    bytes: u64,
    /// Time limit of a cell. If it is reached, the bytes carried by then count. Seconds.
    limit_s: f64,
}

const DEFAULT: &str = "rate+adaptive+measured+search";

/// CUBIC is measured by what it carries in 20 s. With loss, a whole transfer would take hours.
const ROWS: [Row; 5] = [
    Row { composition: DEFAULT, opened: false, mtu: 9_000, bytes: 500_000_000, limit_s: 60.0 },
    Row { composition: DEFAULT, opened: true, mtu: 9_000, bytes: 500_000_000, limit_s: 60.0 },
    Row {
        composition: "rate+adaptive+once+search",
        opened: false,
        mtu: 9_000,
        bytes: 500_000_000,
        limit_s: 60.0,
    },
    Row {
        composition: "rate+fixed+measured+search",
        opened: false,
        mtu: 1_500,
        bytes: 100_000_000,
        limit_s: 60.0,
    },
    Row {
        composition: "cubic+adaptive+measured+search",
        opened: false,
        mtu: 9_000,
        bytes: 500_000_000,
        limit_s: 20.0,
    },
];

/// The floor's time divided by the time taken, from the first packet of a cold start to the last acknowledgement.
fn fraction(row: &Row, rtt_us: u64, loss: f64) -> f64 {
    let path = PathSpec { rtt_us, loss: Loss::Independent(loss), mtu: row.mtu, ..Default::default() };
    let mut settings = config(&path);
    settings.stream.composition = row.composition.parse::<Composition>().expect("valid");
    let mut net = Net::new(&path, vec![settings.clone(), settings]);
    let took = match row.opened {
        true => transfer_after(&mut net, 2 * rtt_us + 10_000, row.bytes, row.limit_s),
        false => transfer(&mut net, row.bytes, false, row.limit_s),
    };
    match took {
        Ok(seconds) => path.floor_s(row.bytes) / seconds,
        Err(carried) => path.floor_s(carried) / row.limit_s,
    }
}

fn table() -> String {
    let mut text = String::from(
        "Fraction of the physical floor, cold start to last acknowledgement, 1 Gb/s, 20 ms queue, loss both ways.\n",
    );
    for row in &ROWS {
        let opened = if row.opened { ", opened two RTT before" } else { "" };
        let _ = writeln!(text, "\n{} MTU {}, {} MB{opened}", row.composition, row.mtu, row.bytes / 1_000_000);
        let _ = write!(text, "{:>9}", "RTT ms");
        LOSSES.iter().for_each(|loss| {
            let _ = write!(text, "{:>8}", format!("{}%", loss * 100.0));
        });
        for rtt_us in RTTS_US {
            let _ = write!(text, "\n{:>9}", rtt_us as f64 / 1e3);
            for loss in LOSSES {
                let _ = write!(text, "{:>8.3}", fraction(row, rtt_us, loss));
            }
        }
        text.push('\n');
    }
    text
}

/// Compares a table with the stored one, see [`floors`](crate::floors).
pub(crate) fn compare(kept: &str, new: &str, better: &[Better]) {
    crate::floors::compare(env!("CARGO_MANIFEST_DIR"), kept, new, better);
}

#[test]
fn goodput_is_above_the_floors_of_the_golden_table() {
    compare(TABLE, &table(), &[Better::More(0.02)]);
}
