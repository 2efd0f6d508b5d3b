//! Applications that begin with little data: signs of life, then windows of their own that grow.

use isthmus_udp::{Event, StreamId};

use crate::net::{Net, PathSpec};

/// A stream whose application writes a given number of bytes at a time, and a reader that reads everything.
pub(crate) struct Feed {
    pub(crate) net: Net,
    from: StreamId,
    to: Option<StreamId>,
    read: u64,
}

impl Feed {
    pub(crate) fn new(path: &PathSpec) -> Self {
        let mut net = Net::pair(path);
        let from = net.open(0, 1);
        Self { net, from, to: None, read: 0 }
    }

    /// Writes `bytes`, and waits until they are read.
    pub(crate) fn pass(&mut self, mut bytes: u64) {
        let goal = self.read + bytes;
        let zeros = [0; 65_536];
        while self.read < goal {
            let (now, from) = (self.net.now, self.from);
            while bytes > 0 {
                let piece = &zeros[..bytes.min(65_536) as usize];
                let took = self.net.ports[0].with(now, from, |stream| stream.write(piece));
                match took.expect("the stream lives") as u64 {
                    0 => break,
                    took => bytes -= took,
                }
            }
            assert!(self.net.step(now + 60_000_000), "nothing happens any longer");
            self.drain();
        }
    }

    /// Waits until everything written is acknowledged.
    pub(crate) fn settle(&mut self) {
        while self.net.ports[0].stream(self.from).is_some_and(|stream| stream.status().held > 0) {
            let limit = self.net.now + 60_000_000;
            assert!(self.net.step(limit), "nothing happens any longer");
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(event) = self.net.event(1) {
            if let Event::Accepted(id, _) = event {
                self.to = Some(id);
            }
        }
        let Some(to) = self.to else { return };
        let now = self.net.now;
        let came = self.net.ports[1].with(now, to, |stream| {
            let came = stream.readable();
            stream.consume(now, came);
            came
        });
        self.read += came.unwrap_or(0);
    }

    fn rest(&mut self, us: u64) {
        let until = self.net.now + us;
        while self.net.step(until) {
            self.drain();
        }
    }
}

#[test]
fn who_begins_with_little_is_not_held_back_for_it() {
    for rtt_us in [24_000, 100_000, 366_000] {
        let path = PathSpec { rtt_us, ..Default::default() };
        let mut feed = Feed::new(&path);
        for _ in 0..10 {
            feed.pass(20);
            feed.rest(300_000 - rtt_us / 2);
        }
        // The application doubles its own window.
        for window in [1, 2, 4, 8] {
            feed.pass(window << 18);
            feed.rest(rtt_us / 2);
        }
        let start = feed.net.now;
        feed.pass(200_000_000);
        let took = (feed.net.now - start) as f64 / 1e6;
        let share = path.floor_s(200_000_000) / took;
        assert!(share > 0.7, "round trip {rtt_us} us: {took:.2} s, {share:.2} of the floor");
    }
}
