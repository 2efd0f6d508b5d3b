//! Exchanges of messages between two programs, from a cold start. A program sends its next message when its last one is
//! acknowledged and the expected one has arrived. A table has the times.
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation exchanges` writes the table anew.

use std::collections::VecDeque;
use std::fmt::Write;

use isthmus_lab::model::Loss;
use isthmus_udp::{Event, StreamId};

use crate::floors::Better;
use crate::golden::compare;
use crate::net::{Net, PathSpec, config, median, transfer_after};
use crate::stalls::StallSpec;

const TABLE: &str = "tests/simulation/exchanges.txt";
const SHALLOW: &str = "tests/simulation/shallow.txt";
const QUEUES: &str = "tests/simulation/queues.txt";
const TIMES: usize = 20;
const RUNS: u64 = 5;
const DEFAULT: &str = "rate";
/// Length of a receipt, which acknowledges a part of a message. Bytes.
const RECEIPT: u64 = 48;
/// Length of a lane's first message. Bytes.
const HELLO: u64 = 64;

/// Length of a fragment; receipts may go between fragments. `BESIDE`: the part of each message that takes the lane
/// which the other end opened. So one lane carries bulk, the other little. Bytes.
const FRAGMENT: u64 = 50_000;
const BESIDE: u64 = 16_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Hello,
    Fragment,
    /// The last fragment of a message on its lane.
    Last,
    Receipt,
}

/// A lane, as one end sees it.
#[derive(Default)]
struct Lane {
    stream: Option<StreamId>,
    /// Waiting to be written: receipts, the rest of the present item, and the items that follow.
    receipts: u64,
    writing: u64,
    waiting: VecDeque<(u64, Item)>,
    /// Items that the other end has begun to write, and the bytes of the first that have arrived.
    expected: VecDeque<(u64, Item)>,
    read: u64,
}

impl Lane {
    /// The next item to write. Receipts go first.
    fn next(&mut self) -> Option<(u64, Item)> {
        if self.receipts > 0 {
            self.receipts -= 1;
            return Some((RECEIPT, Item::Receipt));
        }
        self.waiting.pop_front()
    }
}

/// Two programs joined by two lanes. Each program opened one of them.
struct Pair {
    net: Net,
    lanes: [[Lane; 2]; 2],
    /// Parts of the present message yet to arrive, and receipts yet to arrive for the message sent.
    parts: [i32; 2],
    receipts: [i32; 2],
    done: [usize; 2],
    began: [u64; 2],
    /// Whether the lane that an end opened was answered. Only then its first message goes.
    is_open: [bool; 2],
    took: Vec<f64>,
    bytes: u64,
}

impl Pair {
    fn new(path: &PathSpec, composition: &str, bytes: u64) -> Self {
        let mut settings = config(path);
        settings.stream.composition = composition.parse().expect("valid");
        let mut net = Net::new(path, vec![settings.clone(), settings]);
        let mut lanes: [[Lane; 2]; 2] = Default::default();
        for (end, lanes) in lanes.iter_mut().enumerate() {
            lanes[end].stream = Some(net.open(end, 1 - end));
            lanes[end].waiting.push_back((HELLO, Item::Hello));
        }
        let began = [net.now; 2];
        let (parts, receipts, done) = ([0; 2], [0; 2], [0; 2]);
        Self { net, lanes, parts, receipts, done, began, took: Vec::new(), bytes, is_open: [false; 2] }
    }

    /// Queues the next message on the lanes that exist.
    fn begin(&mut self, end: usize) {
        let mut left = self.bytes;
        for index in [1 - end, end] {
            let lane = &mut self.lanes[end][index];
            if lane.stream.is_none() {
                continue;
            }
            let part = if index == end { left } else { BESIDE };
            left -= part;
            lane.waiting.extend((1..part.div_ceil(FRAGMENT)).map(|_| (FRAGMENT, Item::Fragment)));
            lane.waiting.push_back(((part - 1) % FRAGMENT + 1, Item::Last));
            self.receipts[end] += 1;
            self.parts[1 - end] += 1;
        }
    }

    fn write(&mut self, end: usize, index: usize) {
        let (zeros, now) = ([0; 65_536], self.net.now);
        let Some(id) = self.lanes[end][index].stream else { return };
        loop {
            let lane = &mut self.lanes[end][index];
            if lane.writing == 0 {
                let Some(next) = lane.next() else { return };
                lane.writing = next.0;
                self.lanes[1 - end][index].expected.push_back(next);
            }
            let lane = &mut self.lanes[end][index];
            let piece = &zeros[..lane.writing as usize];
            let took = self.net.ports[end].with(now, id, |stream| stream.write(piece)).expect("it lives");
            lane.writing -= took as u64;
            if lane.writing > 0 {
                return;
            }
        }
    }

    fn read(&mut self, end: usize, index: usize) {
        let (now, lane) = (self.net.now, &mut self.lanes[end][index]);
        let Some(id) = lane.stream else { return };
        let came = self.net.ports[end].with(now, id, |stream| {
            let came = stream.readable();
            stream.consume(now, came);
            came
        });
        lane.read += came.unwrap_or(0);
        while let Some(&(bytes, item)) = lane.expected.front()
            && lane.read >= bytes
        {
            lane.read -= bytes;
            lane.expected.pop_front();
            match item {
                Item::Last => {
                    self.parts[end] -= 1;
                    lane.receipts += 1;
                }
                Item::Receipt => self.receipts[end] -= 1,
                Item::Hello | Item::Fragment => {}
            }
        }
    }

    fn turn(&mut self, end: usize) {
        while let Some(event) = self.net.event(end) {
            if let Event::Accepted(id, _) = event {
                self.lanes[end][1 - end].stream = Some(id);
            }
        }
        (0..2).for_each(|lane| self.read(end, lane));
        let stream = self.lanes[end][end].stream.and_then(|id| self.net.ports[end].stream(id));
        if !self.is_open[end] && stream.is_some_and(|stream| stream.is_open()) {
            self.is_open[end] = true;
            self.begin(end);
        }
        // If the other end is ahead, parts of its next message may be here already: `parts` then does not count.
        let (done, others) = (self.done[end], self.done[1 - end]);
        let is_here = others > done || others == done && self.is_open[1 - end] && self.parts[end] == 0;
        if self.is_open[end] && done < TIMES && self.receipts[end] == 0 && is_here {
            self.done[end] += 1;
            self.took.push((self.net.now - self.began[end]) as f64 / 1e6);
            self.began[end] = self.net.now;
            if self.done[end] < TIMES {
                self.begin(end);
            }
        }
        (0..2).for_each(|lane| self.write(end, lane));
    }

    /// Runs all exchanges. Returns their total time, and the time of each. Seconds.
    fn run(mut self) -> (f64, Vec<f64>) {
        let start = self.net.now;
        while self.done != [TIMES; 2] {
            self.turn(0);
            self.turn(1);
            let limit = self.net.now + 10_000_000;
            assert!(self.net.step(limit), "nothing happens any longer");
        }
        ((self.net.now - start) as f64 / 1e6, self.took)
    }
}

#[test]
fn few_exchanges_take_more_than_their_round_trip_whatever_is_lost() {
    let mut text = format!(
        "What {TIMES} exchanges of 1 MB reach of their floor, a round trip and the message each: median and\n\
         least of {RUNS} cold starts; and how many of a hundred took more than 1.1 of it, as the first does\n\
         for the lane's opening. 1 Gb/s, MTU 9000.\n\n",
    );
    let _ = writeln!(text, "{:<18}{:>20}{:>20}{:>20}", "RTT ms", 24, 100, 366);
    let mut most_late: f64 = 0.0;
    for (loss, composition) in
        [(0.0, DEFAULT), (0.0, "crc32c"), (0.0001, DEFAULT), (0.01, DEFAULT), (0.05, DEFAULT), (0.1, DEFAULT)]
    {
        let by = if composition == DEFAULT { String::new() } else { format!(", {composition}") };
        let _ = write!(text, "{:<18}", format!("{} % lost{by}", loss * 100.0));
        for rtt_us in [24_000, 100_000, 366_000] {
            let (mut shares, mut late) = (Vec::new(), 0);
            for seed in 1..=RUNS {
                let path = PathSpec { rtt_us, seed, loss: Loss::Independent(loss), ..Default::default() };
                let floor = path.floor_s(1_000_000);
                let (all, each) = Pair::new(&path, composition, 1_000_000).run();
                shares.push(TIMES as f64 * floor / all);
                late += each.iter().filter(|took| **took > 1.1 * floor).count();
            }
            shares.sort_by(f64::total_cmp);
            let late = 100.0 * late as f64 / (2 * TIMES * RUNS as usize) as f64;
            most_late = late.max(most_late);
            let cell = format!("{:.2} {:.2} {late:.1}", shares[RUNS as usize / 2], shares[0]);
            let _ = write!(text, "{cell:>20}");
        }
        text.push('\n');
    }
    println!("{text}");
    // The first exchange also opens the lane.
    assert!(most_late <= 7.0, "{most_late} of a hundred exchanges");
    compare(TABLE, &text, &[Better::More(0.02), Better::More(0.04), Better::Less(1.0)]);
}

/// An acknowledgement that falls due with the second-to-last packet is added to it only if it fits.
#[test]
fn exchanges_take_as_long_whatever_is_left_for_their_last_packet() {
    let path = PathSpec { rtt_us: 366_000, ..Default::default() };
    for composition in [DEFAULT, "crc32c"] {
        let shares = (990_000..1_010_000).step_by(1_000).map(|bytes| {
            let took = Pair::new(&path, composition, bytes).run().0;
            (TIMES as f64 * path.floor_s(bytes) / took, bytes)
        });
        let (least, bytes) = shares.min_by(|a, b| a.0.total_cmp(&b.0)).expect("some");
        assert!(least > 0.87, "{composition}, {bytes} bytes: {least} of the floor");
    }
}

/// Busy hosts: the thread that drives a stream stalls for a moment now and then.
const BUSY: StallSpec = StallSpec { every_us: 1_000, least_us: 20, most_us: 300 };

/// A path whose queue holds one round trip, and at least 16 packets, as in the lab.
fn shallow(rtt_us: u64, loss: f64, host_stalls: StallSpec, seed: u64) -> PathSpec {
    let loss = Loss::Independent(loss);
    PathSpec { rtt_us, queue_us: rtt_us.max(1_157), seed, loss, host_stalls, ..Default::default() }
}

/// The lane that carries little loses the ends of messages, and with them the sign that nothing follows.
#[test]
fn a_lane_that_carries_little_is_not_slow_for_what_it_loses() {
    for seed in 1..=10 {
        let path = shallow(100_000, 0.1, BUSY, seed);
        let (_, each) = Pair::new(&path, DEFAULT, 1_000_000).run();
        let share = path.floor_s(1_000_000) / median(each);
        assert!(share > 0.95, "{share} of the floor, seed {seed}");
    }
}

/// Fills a path whose round trip is shorter than a quantum of the pacer and shorter than a host's stall, without
/// overflowing its queue.
#[test]
fn a_short_path_with_a_short_queue_is_filled() {
    let mut text = format!(
        "What is reached of the floor where the queue holds a round trip, and at least 1.16 ms, 16 packets: {TIMES}\n\
         exchanges of 1 MB from a cold start; and 20 MB one way, the stream opened before. Medians of {RUNS}. 1 Gb/s,\n\
         MTU 9000.\n\n",
    );
    const RTTS_US: [u64; 7] = [50, 100, 300, 900, 2_000, 5_000, 10_000];
    // The worst results on paths much shorter than a quantum: exchanges, and one direction.
    let (mut least, mut least_one_way): (f64, f64) = (1.0, 1.0);
    let _ = write!(text, "{:<44}", "RTT ms");
    RTTS_US.iter().for_each(|rtt| {
        let _ = write!(text, "{:>12}", *rtt as f64 / 1e3);
    });
    text.push('\n');
    for (stalls, busy) in [(StallSpec::default(), ""), (BUSY, ", hosts stand still up to 0.3 ms")] {
        for loss in [0.0, 0.001, 0.01] {
            let _ = write!(text, "{:<44}", format!("{} % lost{busy}", loss * 100.0));
            for rtt_us in RTTS_US {
                let of_runs = |run: &dyn Fn(&PathSpec) -> f64| {
                    median((1..=RUNS).map(|seed| run(&shallow(rtt_us, loss, stalls, seed))))
                };
                let exchanges = of_runs(&|path| {
                    TIMES as f64 * path.floor_s(1_000_000) / Pair::new(path, DEFAULT, 1_000_000).run().0
                });
                let one_way = of_runs(&|path| {
                    let took = transfer_after(&mut Net::pair(path), 2 * rtt_us + 10_000, 20_000_000, 60.0);
                    path.floor_s(20_000_000) / took.expect("it ends in time")
                });
                if rtt_us <= 300 {
                    (least, least_one_way) = (least.min(exchanges), least_one_way.min(one_way));
                }
                let _ = write!(text, "{:>12}", format!("{exchanges:.2} {one_way:.2}"));
            }
            text.push('\n');
        }
    }
    println!("{text}");
    assert!(least >= 0.92 && least_one_way >= 0.97, "{least:.2} and {least_one_way:.2} of the floor");
    compare(SHALLOW, &text, &[Better::More(0.02)]);
}

/// Queues of switches are much shorter than a long path's round trip. The start of a message must not overflow them.
#[test]
fn exchanges_over_a_long_path_do_with_a_short_queue() {
    const QUEUES_US: [u64; 5] = [600, 1_160, 2_500, 5_000, 10_000];
    let mut text = format!(
        "What {TIMES} exchanges of 1 MB from a cold start reach of their floor where the queue is so long: medians of 3.\n\
         1 Gb/s, MTU 9000.\n\n{:<24}",
        "queue ms"
    );
    QUEUES_US.iter().for_each(|queue| {
        let _ = write!(text, "{:>8}", *queue as f64 / 1e3);
    });
    text.push('\n');
    for rtt_us in [5_000, 24_000, 100_000] {
        for loss in [0.0, 0.001] {
            let _ = write!(text, "{:<24}", format!("{} ms, {} % lost", rtt_us / 1_000, loss * 100.0));
            for queue_us in QUEUES_US {
                let share = median([1, 2, 3].map(|seed| {
                    let path = PathSpec { queue_us, ..shallow(rtt_us, loss, StallSpec::default(), seed) };
                    TIMES as f64 * path.floor_s(1_000_000) / Pair::new(&path, DEFAULT, 1_000_000).run().0
                }));
                let _ = write!(text, "{share:>8.2}");
                assert!(share >= 0.75, "{share} with {rtt_us} us and a queue of {queue_us} us");
            }
            text.push('\n');
        }
    }
    println!("{text}");
    compare(QUEUES, &text, &[Better::More(0.02)]);
}
