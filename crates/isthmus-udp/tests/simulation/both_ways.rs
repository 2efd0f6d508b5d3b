//! Processes of two hosts that exchange data both ways at once, each pair over one stream, as `MPI_Sendrecv` does.
//! Acknowledgements wait behind the other end's data.
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation both_ways` writes the table anew.

use std::fmt::Write;

use isthmus_udp::{Event, StreamId};

use crate::floors::Better;
use crate::golden::compare;
use crate::net::{Net, PathSpec};
use crate::together::sites;

const TABLE: &str = "tests/simulation/both_ways.txt";

/// One end of a stream: its port, and the bytes that it may send and has sent and read.
struct End {
    port: usize,
    stream: Option<StreamId>,
    given: u64,
    written: u64,
    read: u64,
}

impl End {
    fn new(port: usize, stream: Option<StreamId>) -> Self {
        Self { port, stream, given: 0, written: 0, read: 0 }
    }

    fn turn(&mut self, net: &mut Net) {
        while let Some(event) = net.event(self.port) {
            if let Event::Accepted(id, _) = event {
                self.stream = Some(id);
            }
        }
        let Some(id) = self.stream else { return };
        let (now, zeros) = (net.now, [0; 65_536]);
        let mut left = self.given - self.written;
        let done = net.ports[self.port].with(now, id, |stream| {
            let came = stream.readable();
            stream.consume(now, came);
            let before = left;
            while left > 0 {
                let took = stream.write(&zeros[..left.min(zeros.len() as u64) as usize]) as u64;
                left -= took;
                if took == 0 {
                    break;
                }
            }
            (came, before - left)
        });
        let (came, wrote) = done.expect("the stream lives");
        self.read += came;
        self.written += wrote;
    }
}

/// Time that counts, and the time before. Round trips, at least these microseconds.
const BEFORE: (u64, u64) = (20, 2_000_000);
const COUNTS: (u64, u64) = (40, 3_000_000);

/// What `pairs` of processes reach of their limit if each process sends `bytes`, waits for as many, and goes on. The
/// limit is the link's rate, as far as one pair's pauses of half a round trip allow.
fn exchange(path: &PathSpec, pairs: usize, bytes: u64) -> f64 {
    let mut net = sites(path, pairs);
    let mut ends = Vec::new();
    for pair in 0..pairs {
        let stream = net.open(2 * pair, 2 * pair + 1);
        ends.push(End::new(2 * pair, Some(stream)));
        ends.push(End::new(2 * pair + 1, None));
    }
    ends.iter_mut().for_each(|end| end.given = 20);
    let time = |(rounds, least): (u64, u64)| least.max(rounds * path.rtt_us);
    let from = net.now + time(BEFORE);
    let to = from + time(COUNTS);
    let mut before = None;
    let sum = |ends: &[End]| ends.iter().map(|end| end.read).sum::<u64>();
    while net.now < to {
        ends.iter_mut().for_each(|end| end.turn(&mut net));
        for both in ends.chunks_mut(2) {
            if both.iter().all(|end| end.read == end.given) {
                both.iter_mut().for_each(|end| end.given += bytes);
            }
        }
        if net.now >= from {
            before.get_or_insert_with(|| sum(&ends));
        }
        net.step(to);
    }
    let came = sum(&ends) - before.unwrap_or(0);
    let share = came as f64 / 2.0 / path.goodput() / (time(COUNTS) as f64 / 1e6);
    let pauses = (path.floor_s(bytes) - path.rtt_us as f64 / 2e6) / (bytes as f64 / path.goodput());
    share * if pairs == 1 { pauses } else { 1.0 }
}

#[test]
fn processes_that_exchange_both_ways_fill_both_directions() {
    let mut text = String::from(
        "What processes that exchange messages both ways at once, each pair over one stream, reach of the link's rate.\n\
         A message takes the link half a second, divided by the number of pairs; the queue holds a round trip.\n\n",
    );
    let mut short = Vec::new();
    let _ = writeln!(text, "{:<28}{:>8}{:>8}{:>8}{:>8}", "processes of each host", 1, 2, 4, 8);
    for mtu in [1_500, 9_000] {
        for (mbps, least) in [(20, 0.55), (100, 0.75)] {
            for rtt_us in [24_000, 100_000] {
                let name = format!("{mbps} Mb/s, {} ms, MTU {mtu}", rtt_us / 1_000);
                let _ = write!(text, "{name:<28}");
                for pairs in [1, 2, 4, 8] {
                    let path = PathSpec {
                        rate_bps: mbps * 1_000_000,
                        rtt_us,
                        queue_us: rtt_us,
                        mtu,
                        ..Default::default()
                    };
                    // Half a second of the link in all.
                    let bytes = path.rate_bps / 8 / pairs as u64 / 2;
                    let share = exchange(&path, pairs, bytes);
                    let _ = write!(text, "{share:>8.2}");
                    if share < least {
                        short.push(format!("{name}, {pairs}: {share:.3}"));
                    }
                }
                text.push('\n');
            }
        }
    }
    println!("{text}");
    assert!(short.is_empty(), "below what is asked for: {short:#?}");
    compare(TABLE, &text, &[Better::More(0.05)]);
}
