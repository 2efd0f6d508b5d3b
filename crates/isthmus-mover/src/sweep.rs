//! What still comes for sessions that have ended is dropped: nobody will receive it, and it
//! would use up the memory that the endpoint has for unexpected messages.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use isthmus_proto::PeerId;

use crate::port::{News, Port};
use crate::session::{Event, tag};

/// How long something may still come.
const LATE: Duration = Duration::from_secs(180);
/// Of how many sessions: of more that end in that time the oldest are not looked after.
const ENDED_MAX: usize = 1024;
/// How often is looked.
const PERIOD: Duration = Duration::from_secs(1);
/// The key of its operations.
pub(crate) const KEY: u64 = 9;

struct Ended {
    peer: PeerId,
    tags: [u64; 2],
    at: Instant,
}

/// See the module.
pub(crate) struct Sweep {
    ended: VecDeque<Ended>,
    looked: Instant,
}

impl Sweep {
    pub(crate) fn new() -> Self {
        Self { ended: VecDeque::new(), looked: Instant::now() }
    }

    /// A session has ended.
    pub(crate) fn add(&mut self, peer: PeerId, session: u64) {
        let tags = [tag(session, false), tag(session, true)];
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended { peer, tags, at: Instant::now() });
    }

    /// Looks for late messages if it is time.
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

    /// What became of a look: where there was one message there may be another.
    pub(crate) fn found(&self, port: &Port, inbox: &crossbeam_channel::Sender<Event>, news: &News) {
        if let (Some(peer), None) = (news.peer, &news.error) {
            port.discard(peer, news.tag, KEY, inbox.clone());
        }
    }
}
