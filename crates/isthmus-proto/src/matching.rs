//! Matching of messages with receives.
//!
//! A message takes the first posted receive that fits; a receive takes the first message that fits, in the order of
//! sending. MPI and `fi_tagged(3)` require both.

use std::collections::VecDeque;

use crate::memory::BufferRef;
use crate::{Channel, PeerId};

/// The selection by which a receive or a peek looks for a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) source: Option<PeerId>,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
}

impl Wanted {
    #[inline]
    fn fits(&self, peer: PeerId, tag: u64) -> bool {
        self.source.is_none_or(|source| source == peer) && self.fits_tag(tag)
    }

    #[inline]
    pub(crate) fn fits_tag(&self, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) wanted: Wanted,
    pub(crate) context: u64,
    pub(crate) notify: bool,
    /// Number of its announcement to its source (`engine/announce.rs`); 0 if it was not announced.
    pub(crate) announced: u32,
    pub(crate) place: BufferRef,
    /// First free byte of the buffer. Above 0 in multi-receive buffers only.
    pub(crate) offset: u64,
    /// End of the buffer. Bytes.
    pub(crate) end: u64,
    pub(crate) multi: Option<Multi>,
    /// Receives count from 1 in the order of posting. 0: it receives a message that a peek has claimed.
    pub(crate) number: u64,
}

/// A multi-receive buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multi {
    /// Index of the engine's record of it, which counts the messages in it.
    pub(crate) buffer: usize,
    /// Released when fewer bytes than this are left.
    pub(crate) least: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    inbound: usize,
    peer: PeerId,
    tag: u64,
    /// Number of the program's poll during which it arrived.
    poll: u64,
}

#[derive(Debug, Default)]
struct Queues {
    posted: VecDeque<Posted>,
    unexpected: VecDeque<Waiting>,
}

/// Posted receives and unexpected messages of all channels.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    channels: [Queues; Channel::ALL.len()],
    polls: u64,
}

/// Alignment of the messages in a multi-receive buffer. Bytes: enough for any 64-bit value.
const SLICE_ALIGN: u64 = 8;

/// The result of matching a message.
#[derive(Debug)]
pub(crate) struct Match {
    pub(crate) posted: Posted,
    /// The multi-receive buffer takes no further message.
    pub(crate) last: bool,
}

impl Matcher {
    /// Tells the number of the program's polls so far. A peek finds messages that arrived before the last poll.
    pub(crate) fn set_polls(&mut self, polls: u64) {
        self.polls = self.polls.max(polls);
    }

    #[inline]
    fn queues(&mut self, channel: Channel) -> &mut Queues {
        &mut self.channels[channel as usize]
    }

    /// Whether any message waits for a receive.
    #[inline]
    pub(crate) fn has_unexpected(&self, channel: Channel) -> bool {
        !self.channels[channel as usize].unexpected.is_empty()
    }

    /// The number of posted receives, for each channel that has any.
    pub(crate) fn posted(&mut self) -> Vec<(Channel, usize)> {
        let counts = Channel::ALL.map(|channel| (channel, self.queues(channel).posted.len()));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    #[inline]
    pub(crate) fn post(&mut self, channel: Channel, posted: Posted) {
        self.queues(channel).posted.push_back(posted);
    }

    /// Puts back a receive whose message was lost, to the place that it had.
    pub(crate) fn post_again(&mut self, channel: Channel, posted: Posted) {
        let queue = &mut self.queues(channel).posted;
        let at = queue.partition_point(|other| other.number < posted.number);
        queue.insert(at, posted);
    }

    /// The oldest posted receive, if it fits this message and takes one message only. This is the usual case of
    /// [`Matcher::find_posted`], made fast.
    #[inline]
    pub(crate) fn first_posted(&mut self, channel: Channel, peer: PeerId, tag: u64) -> Option<&Posted> {
        let first = self.queues(channel).posted.front();
        first.filter(|posted| posted.multi.is_none() && posted.wanted.fits(peer, tag))
    }

    /// Removes the receive that [`Matcher::first_posted`] found.
    #[inline]
    pub(crate) fn drop_first(&mut self, channel: Channel) {
        let posted = &mut self.queues(channel).posted;
        posted.pop_front();
        if posted.is_empty() {
            // Start again at the beginning of the buffer, which is still in the cache.
            posted.clear();
        }
    }

    /// Finds the receive for a message of `len` bytes. Multi-receive buffers with too little room move to `released`.
    pub(crate) fn find_posted(
        &mut self,
        channel: Channel,
        peer: PeerId,
        tag: u64,
        len: u64,
        released: &mut Vec<Posted>,
    ) -> Option<Match> {
        let queue = &mut self.queues(channel).posted;
        loop {
            let at = queue.iter().position(|posted| posted.wanted.fits(peer, tag))?;
            let Some(multi) = queue[at].multi else {
                return queue.remove(at).map(|posted| Match { posted, last: true });
            };
            let entry = &mut queue[at];
            if entry.offset > 0 && len > entry.end - entry.offset {
                released.extend(queue.remove(at));
                continue;
            }
            let slice = Posted { end: entry.end.min(entry.offset + len), ..*entry };
            entry.offset = slice.end.next_multiple_of(SLICE_ALIGN).min(entry.end);
            let last = entry.end - entry.offset < multi.least.max(1);
            if last {
                queue.remove(at);
            }
            return Some(Match { posted: slice, last });
        }
    }

    pub(crate) fn add_unexpected(&mut self, channel: Channel, peer: PeerId, tag: u64, inbound: usize) {
        let poll = self.polls;
        self.queues(channel).unexpected.push_back(Waiting { inbound, peer, tag, poll });
    }

    /// Like [`Matcher::find_unexpected`], but among the messages that arrived before the program's last poll. If the
    /// shell counts no polls, it sees all messages.
    pub(crate) fn peek(&mut self, channel: Channel, wanted: Wanted, take: bool) -> Option<usize> {
        let before = if self.polls > 0 { self.polls } else { u64::MAX };
        self.unexpected_before(before, channel, wanted, take)
    }

    /// The first unexpected message that fits; `take` removes it from the queue.
    pub(crate) fn find_unexpected(&mut self, channel: Channel, wanted: Wanted, take: bool) -> Option<usize> {
        self.unexpected_before(u64::MAX, channel, wanted, take)
    }

    /// The first message that fits, if it arrived before poll `before`. No later message may take its place.
    fn unexpected_before(
        &mut self,
        before: u64,
        channel: Channel,
        wanted: Wanted,
        take: bool,
    ) -> Option<usize> {
        let queue = &mut self.queues(channel).unexpected;
        let at = queue.iter().position(|waiting| wanted.fits(waiting.peer, waiting.tag))?;
        let Waiting { inbound, poll, .. } = queue[at];
        if poll >= before {
            return None;
        }
        if take {
            queue.remove(at);
        }
        Some(inbound)
    }

    /// Takes out the messages of this peer that no receive has taken.
    pub(crate) fn take_unexpected(&mut self, peer: PeerId) -> Vec<usize> {
        let mut taken = Vec::new();
        for queues in &mut self.channels {
            queues.unexpected.retain(|waiting| {
                let is_its = waiting.peer == peer;
                if is_its {
                    taken.push(waiting.inbound);
                }
                !is_its
            });
        }
        taken
    }

    /// Takes out an unexpected message. Whether it was there.
    pub(crate) fn forget(&mut self, inbound: usize) -> bool {
        self.channels.iter_mut().any(|queues| {
            let at = queues.unexpected.iter().position(|waiting| waiting.inbound == inbound);
            at.and_then(|at| queues.unexpected.remove(at)).is_some()
        })
    }

    /// Takes out the oldest posted receive with this context.
    pub(crate) fn cancel(&mut self, context: u64) -> Option<(Channel, Posted)> {
        Channel::ALL.into_iter().find_map(|channel| {
            let queue = &mut self.queues(channel).posted;
            let at = queue.iter().position(|posted| posted.context == context)?;
            queue.remove(at).map(|posted| (channel, posted))
        })
    }

    /// The receives that only this peer can satisfy, of each channel in the order in which they were posted.
    pub(crate) fn directed(&mut self, peer: PeerId) -> impl Iterator<Item = (Channel, &mut Posted)> {
        let queues = Channel::ALL.into_iter().zip(&mut self.channels);
        let posted = queues
            .flat_map(|(channel, queues)| queues.posted.iter_mut().map(move |posted| (channel, posted)));
        posted.filter(move |(_, posted)| posted.wanted.source == Some(peer))
    }

    /// Takes out the receives that only this peer could satisfy.
    pub(crate) fn take_directed(&mut self, peer: PeerId) -> Vec<(Channel, Posted)> {
        let mut taken = Vec::new();
        for channel in Channel::ALL {
            self.queues(channel).posted.retain(|posted| {
                let directed = posted.wanted.source == Some(peer);
                if directed {
                    taken.push((channel, *posted));
                }
                !directed
            });
        }
        taken
    }

    /// Makes the directed receives of `from` those of `to`.
    pub(crate) fn rename_peer(&mut self, from: PeerId, to: PeerId) {
        for queues in &mut self.channels {
            for posted in queues.posted.iter_mut().filter(|posted| posted.wanted.source == Some(from)) {
                posted.wanted.source = Some(to);
            }
        }
    }
}
