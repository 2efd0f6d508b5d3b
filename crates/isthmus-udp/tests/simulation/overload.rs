//! Receivers whose processor reads packets more slowly than the path delivers them.

use isthmus_lab::model::Loss;
use isthmus_udp::{Counters, Micros};

use crate::net::{Flow, Net, PathSpec, seeds};

/// A receiver's host.
#[derive(Clone, Copy, Debug)]
struct Host {
    /// Bytes/s (UDP payload) that it reads; 0: no limit.
    rate: u64,
    socket_bytes: usize,
}

/// Reads a third of the path's rate.
const SLOW: Host = Host { rate: 40_000_000, socket_bytes: 4 << 20 };
const QUICK: Host = Host { rate: 0, ..SLOW };

/// An endless transfer to a receiver whose speed changes.
struct Long {
    net: Net,
    flow: Flow,
}

/// Measurements of a period.
#[derive(Debug)]
struct Measurements {
    /// Bytes/s read.
    goodput: f64,
    /// Share of the sent packets that the receiver dropped.
    dropped: f64,
    /// All counters at the end of the period.
    counters: Counters,
}

impl Long {
    fn new(path: &PathSpec, host: Host) -> Self {
        let mut net = Net::pair(path);
        let flow = Flow::new(&mut net, 0, 1, u64::MAX, false);
        let mut long = Self { net, flow };
        long.set(host);
        long
    }

    fn set(&mut self, host: Host) {
        (self.net.readers[1].rate, self.net.readers[1].socket_bytes) = (host.rate, host.socket_bytes);
    }

    fn run(&mut self, us: Micros) -> Measurements {
        let (read, sent, dropped) = (self.flow.read, self.net.sent[0], self.net.readers[1].dropped);
        let until = self.net.now + us;
        let mut on = true;
        while on {
            self.flow.feed(&mut self.net);
            on = self.net.step(until);
            self.flow.on_event(&mut self.net);
            self.flow.drain(&mut self.net);
        }
        Measurements {
            goodput: (self.flow.read - read) as f64 * 1e6 / us as f64,
            dropped: (self.net.readers[1].dropped - dropped) as f64 / (self.net.sent[0] - sent) as f64,
            counters: self.net.ports[0].stream(self.flow.stream()).expect("it lives").status().counters,
        }
    }
}

/// Paths with these round trips and each loss. Lossy ones with `count` seeds.
fn paths(rtts_us: [Micros; 3], count: u64) -> impl Iterator<Item = PathSpec> {
    rtts_us.into_iter().flat_map(move |rtt_us| {
        [0.0, 0.01, 0.1].into_iter().flat_map(move |loss| {
            let count = if loss > 0.0 { count } else { 1 };
            let loss = Loss::Independent(loss);
            seeds(count).map(move |seed| PathSpec { rtt_us, loss, seed, ..Default::default() })
        })
    })
}

fn what(path: &PathSpec, seen: &Measurements) -> String {
    format!("{} us, {:.2} lost, seed {}: {seen:?}", path.rtt_us, path.loss.mean(), path.seed)
}

#[test]
fn what_a_slow_receiver_reads_is_sent_and_no_more() {
    for path in paths([200, 24_000, 100_000], 6) {
        let mut long = Long::new(&path, SLOW);
        long.run(2_000_000);
        let before = long.run(1).counters;
        let seen = long.run(4_000_000);
        let what = what(&path, &seen);
        assert!(seen.goodput >= 0.95 * SLOW.rate as f64, "{what}");
        assert!(seen.dropped <= 0.005, "{what}");
        // The sender knows that the receiver's processor is the bottleneck,
        let busy_us = seen.counters.peer_busy_us - before.peer_busy_us;
        assert!((3_400_000..4_200_000).contains(&busy_us), "{busy_us}: {what}");
        // and also knows the path's loss.
        let lost = seen.counters.packets_lost - seen.counters.packets_refused;
        let lost = lost as f64 / seen.counters.packets_sent as f64;
        assert!((lost - path.loss.mean()).abs() < 0.01, "{lost}: {what}");
        let loss = long.net.ports[0].stream(long.flow.stream()).expect("it lives").status().loss;
        assert!((loss - path.loss.mean()).abs() < 0.03, "{loss}: {what}");
    }
}

#[test]
fn where_its_socket_holds_little_little_is_dropped() {
    for path in paths([200, 24_000, 100_000], 2) {
        // The sockets hold 6 ms and 2 ms. A quantum of the pacer is 1 ms.
        for (socket_bytes, goodput, dropped) in [(240_000, 0.95, 0.05), (80_000, 0.75, 0.15)] {
            let mut long = Long::new(&path, Host { socket_bytes, ..SLOW });
            long.run(1_000_000);
            let seen = long.run(3_000_000);
            let what = what(&path, &seen);
            assert!(seen.goodput >= goodput * SLOW.rate as f64, "{socket_bytes}: {what}");
            assert!(seen.dropped <= dropped, "{socket_bytes}: {what}");
        }
    }
}

#[test]
fn when_it_is_quick_again_the_path_is_filled_again() {
    for path in paths([200, 24_000, 100_000], 2) {
        let mut long = Long::new(&path, QUICK);
        long.run(2_000_000);
        let quick = long.run(2_000_000).goodput;
        for _ in 0..2 {
            long.set(SLOW);
            let slow = long.run(3_000_000);
            assert!(slow.goodput >= 0.85 * SLOW.rate as f64, "{}", what(&path, &slow));
            assert!(slow.dropped <= 0.12, "{}", what(&path, &slow));
            long.set(QUICK);
            long.run(2_000_000);
            let seen = long.run(2_000_000);
            assert!(seen.goodput >= 0.9 * quick, "{quick}: {}", what(&path, &seen));
        }
    }
}

#[test]
fn one_that_pauses_now_and_then_is_not_taken_for_slow() {
    for path in paths([200, 24_000, 100_000], 2) {
        let mut long = Long::new(&path, QUICK);
        long.run(2_000_000);
        let quick = long.run(2_000_000).goodput;
        let mut read = 0.0;
        for _ in 0..5 {
            long.set(Host { rate: 1, ..SLOW });
            read += 0.06 * long.run(60_000).goodput;
            long.net.readers[1].go_on();
            long.set(QUICK);
            read += 0.94 * long.run(940_000).goodput;
        }
        // What arrives in a pause and exceeds the socket is dropped. The sender goes on for half a round trip.
        let least = if path.rtt_us < 1_000 { 0.9 } else { 0.8 };
        let seen = long.run(1);
        assert!(read / 5.0 >= least * quick, "{read}: {}", what(&path, &seen));
        assert_eq!(seen.counters.peer_busy_us, 0, "{}", what(&path, &seen));
    }
}

#[test]
fn one_that_runs_for_a_twentieth_of_the_time_reads_most_of_what_it_can() {
    for path in paths([24_000, 60_000, 100_000], 2) {
        let mut long = Long::new(&path, Host { rate: 20 * SLOW.rate, ..SLOW });
        long.net.readers[1].slot_us = (1_000, 20_000);
        long.run(2_000_000);
        let before = long.run(1).counters.peer_busy_us;
        let seen = long.run(4_000_000);
        let what = what(&path, &seen);
        assert!(seen.goodput >= 0.7 * SLOW.rate as f64 && seen.dropped <= 0.02, "{what}");
        assert!(seen.counters.peer_busy_us - before >= 3_600_000, "{what}");
    }
}
