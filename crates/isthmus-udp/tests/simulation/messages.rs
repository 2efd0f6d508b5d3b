//! Messages that follow each other, as a program's exchanges do: each is sent when the previous one is acknowledged. A
//! table has their times.
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation messages` writes the table anew.

use std::fmt::Write;

use isthmus_lab::model::Loss;

use crate::floors::Better;
use crate::golden::compare;
use crate::net::PathSpec;
use crate::trickle::Feed;

const TABLE: &str = "tests/simulation/messages.txt";
/// Messages at the start that are not counted: by them the path becomes known.
const FIRST: usize = 10;
const COUNTED: usize = 30;

/// Time until a message is acknowledged, as a multiple of the time on a path without loss.
fn took(path: &PathSpec, bytes: u64) -> Vec<f64> {
    let mut feed = Feed::new(path);
    let floor = path.rtt_us as f64 / 1e6 + bytes as f64 / path.goodput();
    let mut all: Vec<f64> = (0..FIRST + COUNTED)
        .map(|_| {
            let start = feed.net.now;
            feed.pass(bytes);
            feed.settle();
            (feed.net.now - start) as f64 / 1e6 / floor
        })
        .collect();
    all.split_off(FIRST)
}

#[test]
fn a_message_seldom_takes_more_than_its_round_trip_whatever_is_lost_of_it() {
    let mut text = String::from(
        "What a message takes until its sender knows that it arrived, of what it takes where nothing is lost:\n\
         median and 90th percentile of 3 x 30, one after the other, 1 Gb/s, MTU 9000.\n\n",
    );
    let _ = writeln!(text, "{:<24}{:>16}{:>16}{:>16}", "RTT ms", 24, 100, 366);
    for (bytes, loss) in [
        (256_000, 0.01),
        (1_000_000, 0.0),
        (1_000_000, 0.001),
        (1_000_000, 0.01),
        (1_000_000, 0.05),
        (4_000_000, 0.01),
    ] {
        let _ = write!(text, "{:<24}", format!("{} kB, {} % lost", bytes / 1_000, loss * 100.0));
        for rtt_us in [24_000, 100_000, 366_000] {
            let seeded =
                |seed| PathSpec { rtt_us, seed, loss: Loss::Independent(loss), ..Default::default() };
            let mut all: Vec<f64> = (1..=3).flat_map(|seed| took(&seeded(seed), bytes)).collect();
            all.sort_by(f64::total_cmp);
            let at = |share: f64| all[(all.len() as f64 * share) as usize];
            let _ = write!(text, "{:>16}", format!("{:.2} {:.2}", at(0.5), at(0.9)));
            assert!(at(0.5) < 1.5, "{rtt_us} us, {loss}: half of the messages take {:.2}", at(0.5));
        }
        text.push('\n');
    }
    println!("{text}");
    compare(TABLE, &text, &[Better::Less(0.02)]);
}
