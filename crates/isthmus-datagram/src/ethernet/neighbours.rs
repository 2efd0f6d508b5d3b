//! Table of Ethernet addresses in the broadcast domain. No I/O, no clock.
//!
//! Frames to an unknown IP address are broadcast, within a limit. Received frames tell their
//! sender's Ethernet address. If a neighbour has been silent for long, an empty broadcast asks
//! for it, while frames still go to its last known address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Mac;

/// Most neighbours in the table. Count.
const NEIGHBOURS_MAX: usize = 4_096;
/// Silence after which a neighbour is asked for, and the pause between two questions.
const SILENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);
/// A neighbour that was silent this long makes room for others.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Most broadcast frames (count) per `WINDOW`: enough to start connections.
const BROADCASTS: usize = 64;
const WINDOW: Duration = Duration::from_millis(20);

/// Destination of frames to an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// This Ethernet address; if true, after an empty broadcast.
    To(Mac, bool),
    /// All hosts.
    Broadcast,
    /// None: the limit of broadcasts is reached.
    None,
}

/// The table.
#[derive(Debug)]
pub(super) struct Neighbours {
    known: HashMap<IpAddr, Neighbour>,
    /// Broadcast frames in the current window, and its start.
    broadcasts: usize,
    since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: Mac,
    heard: Instant,
    asked: Instant,
}

impl Neighbours {
    pub(super) fn new(now: Instant) -> Self {
        Self { known: HashMap::new(), broadcasts: 0, since: now }
    }

    /// Learns the sender of a received frame.
    pub(super) fn learn(&mut self, now: Instant, from: IpAddr, mac: Mac) {
        // A group address belongs to no single host.
        if mac[0] & 1 != 0 {
            return;
        }
        if let Some(known) = self.known.get_mut(&from) {
            (known.mac, known.heard) = (mac, now);
            return;
        }
        if self.known.len() >= NEIGHBOURS_MAX {
            self.known.retain(|_, known| now < known.heard + FORGOTTEN);
        }
        if self.known.len() < NEIGHBOURS_MAX {
            self.known.insert(from, Neighbour { mac, heard: now, asked: now });
        }
    }

    pub(super) fn knows(&self, ip: IpAddr) -> bool {
        self.known.contains_key(&ip)
    }

    /// Destination of this many frames to an IP address.
    pub(super) fn resolve(&mut self, now: Instant, to: IpAddr, frames: usize) -> Resolved {
        if let Some(known) = self.known.get_mut(&to) {
            let ask = now >= known.heard + SILENCE && now >= known.asked + PAUSE;
            if ask {
                known.asked = now;
            }
            return Resolved::To(known.mac, ask);
        }
        if now >= self.since + WINDOW {
            (self.broadcasts, self.since) = (0, now);
        }
        // One message may exceed the rest of the window.
        if self.broadcasts >= BROADCASTS {
            return Resolved::None;
        }
        self.broadcasts += frames;
        Resolved::Broadcast
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Mac = [2, 0, 0, 0, 0, 1];

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn whoever_was_heard_is_written_to_there() {
        let start = Instant::now();
        let mut neighbours = Neighbours::new(start);
        assert_eq!(neighbours.resolve(start, ip(1), 1), Resolved::Broadcast);
        neighbours.learn(start, ip(1), THERE);
        assert_eq!(neighbours.resolve(start, ip(1), 1), Resolved::To(THERE, false));
        let moved = [2, 0, 0, 0, 0, 9];
        neighbours.learn(start, ip(1), moved);
        assert_eq!(neighbours.resolve(start, ip(1), 1), Resolved::To(moved, false));
        neighbours.learn(start, ip(1), [0xff; 6]);
        assert_eq!(neighbours.resolve(start, ip(1), 1), Resolved::To(moved, false), "nobody is everybody");
    }

    #[test]
    fn the_silent_are_asked_after_now_and_then() {
        let start = Instant::now();
        let mut neighbours = Neighbours::new(start);
        neighbours.learn(start, ip(1), THERE);
        let later = start + SILENCE;
        assert_eq!(neighbours.resolve(later, ip(1), 1), Resolved::To(THERE, true));
        assert_eq!(neighbours.resolve(later, ip(1), 1), Resolved::To(THERE, false));
        assert_eq!(neighbours.resolve(later + PAUSE, ip(1), 1), Resolved::To(THERE, true));
        neighbours.learn(later + PAUSE, ip(1), THERE);
        assert_eq!(neighbours.resolve(later + PAUSE * 3, ip(1), 1), Resolved::To(THERE, false));
    }

    #[test]
    fn little_goes_to_everybody() {
        let start = Instant::now();
        let mut neighbours = Neighbours::new(start);
        let mut went = 0;
        for step in 0..1_000_u32 {
            let now = start + Duration::from_micros(100) * step;
            if neighbours.resolve(now, ip(1), 8) == Resolved::Broadcast {
                went += 8;
            }
        }
        assert_eq!(went, BROADCASTS * 5, "of 100 ms");
    }

    #[test]
    fn memory_is_bounded() {
        let start = Instant::now();
        let mut neighbours = Neighbours::new(start);
        let address = |i: u32| IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        for i in 0..2 * NEIGHBOURS_MAX as u32 {
            neighbours.learn(start, address(i), THERE);
        }
        assert_eq!(neighbours.known.len(), NEIGHBOURS_MAX);
        neighbours.learn(start + FORGOTTEN, address(1 << 20), THERE);
        assert_eq!(neighbours.known.len(), 1);
    }
}
