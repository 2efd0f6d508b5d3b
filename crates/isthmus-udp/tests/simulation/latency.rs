//! Small messages: their latency, and the packets that they cost.

use isthmus_lab::model::Loss;
use isthmus_udp::{Counters, Event, StreamId};

use crate::net::{Net, PathSpec, seeds};

/// One stream with ends 0 and 1.
struct Pair {
    net: Net,
    ids: [StreamId; 2],
    /// When the stream was opened with the first message.
    opened: u64,
}

impl Pair {
    /// Opens a stream with a first message, and returns when that has arrived.
    fn new(path: &PathSpec) -> Self {
        let mut net = Net::pair(path);
        let (now, id) = (net.now, net.open(0, 1));
        net.ports[0].with(now, id, |stream| stream.write(b"12345678"));
        let limit = net.now + 10_000_000;
        loop {
            assert!(net.step(limit));
            if let Some(Event::Accepted(other, _)) = net.event(1) {
                let mut pair = Self { net, ids: [id, other], opened: now };
                pair.read(1);
                return pair;
            }
        }
    }

    fn counters(&self, end: usize) -> Counters {
        self.net.ports[end].stream(self.ids[end]).expect("it lives").status().counters
    }

    fn write(&mut self, end: usize) {
        let now = self.net.now;
        self.net.ports[end].with(now, self.ids[end], |stream| stream.write(b"12345678"));
    }

    /// Waits for 8 bytes and reads them.
    fn read(&mut self, end: usize) {
        let limit = self.net.now + 10_000_000;
        while self.net.ports[end].stream(self.ids[end]).map_or(0, |stream| stream.readable()) < 8 {
            assert!(self.net.step(limit), "a message took 10 s");
        }
        let now = self.net.now;
        self.net.ports[end].with(now, self.ids[end], |stream| stream.consume(now, 8));
    }

    /// The first round trip, including the opening of the stream.
    fn first_round_trip_us(&mut self) -> u64 {
        self.write(1);
        self.read(0);
        self.net.now - self.opened
    }

    fn round_trip_us(&mut self) -> u64 {
        self.round_trip_with_pause_us(0)
    }

    /// The same, but the other end waits before it answers.
    fn round_trip_with_pause_us(&mut self, pause_us: u64) -> u64 {
        let start = self.net.now;
        self.write(0);
        self.read(1);
        let answer_at = self.net.now + pause_us;
        while self.net.step(answer_at) {}
        self.write(1);
        self.read(0);
        self.net.now - start
    }
}

#[test]
fn eight_bytes_over_a_path_that_loses_a_tenth_take_a_round_trip_nearly_always() {
    for rtt_us in [24_000, 100_000, 366_000] {
        let path = PathSpec { rtt_us, loss: Loss::Independent(0.1), ..Default::default() };
        let mut pair = Pair::new(&path);
        (0..200).for_each(|_| {
            pair.round_trip_us(); // learns the path's loss
        });
        let before: u64 = pair.net.sent.iter().sum();
        let mut took: Vec<u64> = (0..4_000).map(|_| pair.round_trip_us()).collect();
        let packets = (pair.net.sent.iter().sum::<u64>() - before) as f64 / 8_000.0;
        took.sort_unstable();
        let at = |share: f64| took[(took.len() as f64 * share) as usize] as f64 / rtt_us as f64;
        println!(
            "{rtt_us} us: p99 {:.2}, p99.9 {:.2} RTT, {packets:.2} packets a message",
            at(0.99),
            at(0.999)
        );
        assert!(at(0.99) <= 1.1, "p99 {} RTT", at(0.99));
        assert!(at(0.999) <= 1.6, "p99.9 {} RTT", at(0.999));
        assert!(packets <= 4.1, "{packets} packets a message, acknowledgements included");
    }
}

/// Nothing is known about the path's loss when its first messages go.
#[test]
fn the_first_messages_over_a_path_that_loses_a_tenth_are_not_late_either() {
    const TRIPS: usize = 10;
    for rtt_us in [24_000, 100_000, 366_000] {
        let (mut took, mut bytes, mut again) = (Vec::new(), 0, 0);
        for seed in seeds(1_000) {
            let path = PathSpec { rtt_us, loss: Loss::Independent(0.1), seed, ..Default::default() };
            let mut pair = Pair::new(&path);
            took.push(pair.first_round_trip_us());
            took.extend((1..TRIPS).map(|_| pair.round_trip_us()));
            for counters in [0, 1].map(|end| pair.counters(end)) {
                bytes += counters.bytes_fresh + counters.bytes_copied;
                again += counters.bytes_again;
            }
        }
        let [packets, again] = [bytes, again].map(|bytes| bytes as f64 / 8.0 / (2 * took.len()) as f64);
        took.sort_unstable();
        let at = |share: f64| took[(took.len() as f64 * share) as usize] as f64 / rtt_us as f64;
        println!(
            "{rtt_us} us, at first: p99 {:.2}, p99.9 {:.2} RTT, {packets:.2} and {again:.2} packets a message",
            at(0.99),
            at(0.999)
        );
        assert!(at(0.99) <= 1.1, "p99 {} RTT", at(0.99));
        assert!(at(0.999) <= 1.6, "p99.9 {} RTT", at(0.999));
        assert!(packets <= 4.0, "{packets} packets a message");
        assert!(again <= 0.2, "{again} more, by who heard nothing for long");
    }
}

#[test]
fn where_nothing_is_lost_copies_cease_and_then_nothing_is_sent_twice() {
    for rtt_us in [24_000, 100_000] {
        let mut pair = Pair::new(&PathSpec { rtt_us, ..Default::default() });
        pair.first_round_trip_us();
        let trips = |pair: &mut Pair, count| {
            (0..count).for_each(|_| {
                assert!(pair.round_trip_us() < rtt_us + 200);
            });
            [0, 1].map(|end| (pair.counters(end).bytes_copied / 8, pair.counters(end).bytes_again))
        };
        let first = trips(&mut pair, 30);
        assert!(first.iter().all(|(copies, again)| *copies <= 48 && *again == 0), "{first:?} copies");
        assert_eq!(trips(&mut pair, 470), first);
    }
}

/// On a short path a lost packet is soon sent again, so copies are not needed.
#[test]
fn nothing_is_supposed_to_be_lost_on_a_short_path() {
    let mut pair = Pair::new(&PathSpec { rtt_us: 1_000, ..Default::default() });
    pair.first_round_trip_us();
    let before = [0, 1].map(|end| pair.counters(end).bytes_copied);
    (0..500).for_each(|_| {
        assert!(pair.round_trip_us() < 1_200);
    });
    assert_eq!(
        [0, 1].map(|end| (pair.counters(end).bytes_copied, pair.counters(end).bytes_again)),
        before.map(|copied| (copied, 0))
    );
    assert!(before.iter().all(|copied| *copied <= 3 * 8), "{before:?} bytes before the round trip was known");
}

#[test]
fn an_answer_that_comes_soon_takes_the_acknowledgement_along() {
    for (pause_us, loss, most) in [(200, 0.0, 1.05), (700, 0.0, 1.05), (200, 0.1, 4.1), (5_000, 0.0, 2.05)] {
        let path = PathSpec { loss: Loss::Independent(loss), ..Default::default() };
        let mut pair = Pair::new(&path);
        // End 0 asks, and waits as long before it asks again.
        let turn = |pair: &mut Pair| {
            let took = pair.round_trip_with_pause_us(pause_us);
            let next = pair.net.now + pause_us;
            while pair.net.step(next) {}
            took
        };
        (0..200).for_each(|_| {
            turn(&mut pair);
        });
        let before: u64 = pair.net.sent.iter().sum();
        let mut took: Vec<u64> = (0..1_000).map(|_| turn(&mut pair)).collect();
        let packets = (pair.net.sent.iter().sum::<u64>() - before) as f64 / 2_000.0;
        took.sort_unstable();
        let p99 = took[990] as f64 / (path.rtt_us + pause_us) as f64;
        println!("after {pause_us} us, loss {loss}: {packets:.2} packets a message, p99 {p99:.2}");
        assert!(packets <= most, "after {pause_us} us, loss {loss}: {packets} packets a message");
        assert!(p99 <= 1.1, "after {pause_us} us, loss {loss}: p99 {p99}");
    }
}
