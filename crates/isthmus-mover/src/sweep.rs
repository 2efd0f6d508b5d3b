//! Drops messages that still arrive for ended sessions. Nobody will receive them, and they would use up the endpoint's
//! memory for unexpected messages.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use isthmus_proto::PeerId;

use crate::port::{News, Port};
use crate::session::{Event, tag};

/// Messages may still come for this time after the end: three times a peer's usual timeout.
const LATE: Duration = Duration::from_secs(180);
/// Limit on ended sessions that are watched; it bounds memory. Beyond it the oldest are forgotten.
const ENDED_MAX: usize = 1024;
/// Interval between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// The key of this module's operations.
pub(crate) const KEY: u64 = 9;

struct Ended {
    peer: PeerId,
    tags: [u64; 2],
    at: Instant,
}

/// The ended sessions; see the module.
pub(crate) struct Sweep {
    ended: VecDeque<Ended>,
    looked: Instant,
}

impl Sweep {
    pub(crate) fn new() -> Self {
        Self { ended: VecDeque::new(), looked: Instant::now() }
    }

    /// Adds a session that has ended.
    pub(crate) fn add(&mut self, peer: PeerId, session: u64) {
        let tags = [tag(session, false), tag(session, true)];
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended { peer, tags, at: Instant::now() });
    }

    /// Looks for late messages if the interval has passed.
    pub(crate) fn look(&mut self, port: &Port, inbox: &crossbeam_channel::Sender<Event>) {
        if self.looked.elapsed() < PERIOD {
            return;
        }
        self.looked = Instant::now();
        self.ended.retain(|ended| ended.at.elapsed() < LATE);
        for Ended { peer, tags, .. } in &self.ended {
            for tag in tags {
                port.discard(*peer, *tag, KEY, inbox.clone());
            }
        }
    }

    /// Takes the result of a look. If there was a message, it looks for another.
    pub(crate) fn found(&self, port: &Port, inbox: &crossbeam_channel::Sender<Event>, news: &News) {
        if let (Some(peer), None) = (news.peer, &news.error) {
            port.discard(peer, news.tag, KEY, inbox.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_sessions_that_are_remembered_are_bounded() {
        let mut sweep = Sweep::new();
        (0..ENDED_MAX as u64 + 9).for_each(|session| sweep.add(PeerId(1), session));
        assert_eq!(sweep.ended.len(), ENDED_MAX);
    }
}
