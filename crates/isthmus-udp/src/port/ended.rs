//! Streams that have ended: a delayed copy of the Open of one must not open it again.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;

use crate::Micros;
use crate::wire::ConnectionId;

/// Time in which a delayed Open of an ended stream may still arrive; it opens nothing. Microseconds (60 s).
const REMEMBERED_US: Micros = 60_000_000;
/// Most ended streams that are remembered. Count; beyond it the oldest is forgotten.
const ENDED_MAX: usize = 4_096;

/// The peer of a stream, and the id by which it was opened.
type Opener = (SocketAddr, ConnectionId);

/// The streams that ended in the last 60 s.
#[derive(Debug, Default)]
pub(super) struct EndedStreams {
    /// When each ended, the first one first.
    order: VecDeque<(Micros, Opener)>,
    openers: HashSet<Opener>,
}

impl EndedStreams {
    pub(super) fn add(&mut self, now: Micros, opener: Opener) {
        if self.order.len() >= ENDED_MAX {
            self.forget_first();
        }
        self.order.push_back((now, opener));
        self.openers.insert(opener);
    }

    /// Whether the stream of this Open has ended lately. Forgets streams that ended earlier.
    pub(super) fn recall(&mut self, now: Micros, opener: Opener) -> bool {
        while self.order.front().is_some_and(|(at, _)| now >= at + REMEMBERED_US) {
            self.forget_first();
        }
        self.openers.contains(&opener)
    }

    fn forget_first(&mut self) {
        if let Some((_, opener)) = self.order.pop_front() {
            self.openers.remove(&opener);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7);

    fn opener(number: usize) -> Opener {
        (FROM, number as ConnectionId)
    }

    #[test]
    fn ended_streams_are_forgotten_after_their_time_and_beyond_their_number() {
        let mut ended = EndedStreams::default();
        ended.add(0, opener(0));
        assert!(ended.recall(REMEMBERED_US - 1, opener(0)) && !ended.recall(1, opener(1)));
        assert!(!ended.recall(REMEMBERED_US, opener(0)));
        (0..=ENDED_MAX).for_each(|number| ended.add(0, opener(number)));
        assert!(
            !ended.recall(0, opener(0)) && ended.recall(0, opener(1)) && ended.recall(0, opener(ENDED_MAX))
        );
    }
}
