//! The short way of a small message: at once into a frame where nothing waits and one near lane carries all,
//! and from its frame to its receive where nothing is missing before it.
//!
//! Both ends do what the long way does (`post.rs`, `transmit.rs`; `receive.rs`, `messages.rs`), without the
//! records that it keeps for what may still come. Where anything stands in the way, the long way is taken.

use isthmus_wire::frame::{self, flags};

use super::acks::is_message_awaited;
use super::state::{Few, Flight, LaneState, Load, Micros};
use super::{Engine, LaneId, Summary};
use crate::matching::Match;
use crate::memory::Memory;
use crate::{Channel, Completion, CompletionKind, Fence, Level, PeerId, SendRequest};

/// Longest message that may go the short way. Bytes.
const SHORT_MAX: u64 = 4 << 10;

/// Room that the frame of such a message takes at most. Bytes.
pub const SHORT_FRAME_MAX: usize = frame::Message::LEN + SHORT_MAX as usize;

impl Engine {
    /// The lane by which a message of `total` bytes may go the short way now, and its header; `None` where it has to be
    /// posted.
    #[inline]
    pub fn short_lane(&self, request: &SendRequest, total: u64) -> Option<(LaneId, frame::Message)> {
        let options = &request.options;
        if total > SHORT_MAX || options.fence == Fence::All || options.level != Level::Transmit || self.parted
        {
            return None;
        }
        let peer = self.resolve(request.peer);
        let connection = self.peers.get(peer.0 as usize)?.connection.as_deref()?;
        let lane = *connection.lanes.first()?;
        let record = self.lanes.get(lane.0 as usize)?;
        let plain = connection.warm
            && connection.carriers() == 1
            && connection.late.is_none()
            && connection.ways.is_none()
            && connection.trouble.failed.is_none()
            && record.state == LaneState::Open
            && record.router.is_none()
            && !record.through_routers;
        let free = record.writable
            && record.control.is_empty()
            && !connection.has_output()
            && connection.fence.is_none()
            && (connection.requests == 0 || options.fence == Fence::None)
            && connection.window.has_room()
            && connection.credit_left() >= total;
        if !(plain && free) {
            return None;
        }
        let tagged = if request.channel == Channel::Tagged { flags::TAGGED } else { 0 };
        let with_data = if request.data.is_some() { flags::DATA } else { 0 };
        let message = frame::Message {
            flags: tagged | with_data | flags::LAZY,
            connection: 0,
            seq: connection.window.next_seq(),
            order: connection.next_order,
            tag: request.tag,
            data: request.data.unwrap_or_default(),
            total,
            eager: total,
            payload: total as u32,
        };
        Some((lane, message))
    }

    /// A message has gone, or goes before anything else, by the lane and with the header that [`Engine::short_lane`]
    /// just named, and its payload. The operation is over.
    #[inline]
    pub fn note_short(
        &mut self,
        lane: LaneId,
        request: &SendRequest,
        message: &frame::Message,
        payload: &[u8],
    ) {
        let total = message.total;
        let peer = self.resolve(request.peer);
        if !request.options.silent {
            self.report(Completion {
                context: request.options.context,
                notify: request.options.notify,
                kind: CompletionKind::Send(request.channel),
                len: total,
                buffer: 0,
                data: None,
                tag: 0,
                peer: Some(peer),
                released: false,
                error: None,
            });
        }
        let load = match Few::of(message, payload) {
            Some(few) => Load::Few(few),
            None => {
                let mut bytes = self.pool.take(frame::Message::LEN + payload.len());
                bytes.extend_from_slice(&message.to_bytes());
                bytes.extend_from_slice(payload);
                Load::Kept { bytes, operation: None }
            }
        };
        self.counters.fragments_sent += 1;
        self.counters.messages_eager += 1;
        let sent_at = self.clock;
        let connection = self.connection(peer);
        connection.next_order += 1;
        connection.credit_used += total;
        connection.window.push(Flight { lane, load, sent_at, tries: 0 });
    }

    /// A message whose frame and payload are there: whether it went to its receive, so that nothing else is to be
    /// done with the frame.
    #[inline]
    pub(super) fn receive_short(
        &mut self,
        now: Micros,
        lane: LaneId,
        message: &frame::Message,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> bool {
        let total = payload.len() as u64;
        let whole = (message.total, message.eager) == (total, total) && u64::from(message.payload) == total;
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return false };
        let Some(peer) = record.peer.filter(|_| record.state == LaneState::Open) else { return false };
        record.heard = true;
        if total > SHORT_MAX || !whole || message.flags & flags::ACCEPT != 0 || !self.is_next(peer, message) {
            return false;
        }
        let tagged = message.flags & flags::TAGGED != 0;
        let channel = if tagged { Channel::Tagged } else { Channel::Untagged };
        let (posted, last) = match self.matcher.first_posted(channel, peer, message.tag) {
            Some(posted) => (posted, true),
            None => match self.posted_for(channel, peer, message.tag, total, mem) {
                Some(Match { posted, last }) => (posted, last),
                None => return false,
            },
        };
        let kept = total.min(posted.end - posted.offset) as usize;
        if kept > 0 {
            mem.store(posted.place, posted.offset, &payload[..kept]);
        }
        self.clock = now;
        let connection = self.connection(peer);
        connection.received.insert(message.seq);
        connection.expected_order += 1;
        connection.taken += total;
        self.counters.fragments_received += 1;
        self.owe_ack(peer, is_message_awaited(message));
        self.return_credit(peer, total);
        let data = (message.flags & flags::DATA != 0).then_some(message.data);
        let summary = Summary { data, tag: message.tag, total };
        self.finish_receive(&posted, last, &summary, channel, peer, None, mem);
        true
    }

    /// The receive that such a message goes to, where that is not the first; a multi-receive buffer has one more user then.
    #[inline(never)]
    fn posted_for(
        &mut self,
        channel: Channel,
        peer: PeerId,
        tag: u64,
        len: u64,
        mem: &mut dyn Memory,
    ) -> Option<Match> {
        let mut released = Vec::new();
        let found = self.matcher.find_posted(channel, peer, tag, len, &mut released);
        for buffer in released {
            self.fail_posted(channel, buffer, None, mem);
        }
        if let Some(multi) = found.as_ref().and_then(|found| found.posted.multi) {
            self.multi_buffers[multi.buffer].users += 1;
        }
        found
    }

    /// Whether this message is the next of its peer in every respect, and nothing of that peer's is looked after
    /// that messages have to be told to.
    #[inline]
    fn is_next(&mut self, peer: PeerId, message: &frame::Message) -> bool {
        let lanes = &self.lanes;
        let Some(connection) = self.peers[peer.0 as usize].connection.as_deref() else { return false };
        let flows = |lane: &LaneId| {
            lanes
                .get(lane.0 as usize)
                .is_none_or(|lane| lane.stream.is_some() || lane.router.is_some() || lane.through_routers)
        };
        let credit = connection.credit_to_advertise() - connection.taken;
        connection.warm
            && connection.received.upto() == message.seq
            && !connection.received.has_gaps()
            && connection.expected_order == message.order
            && connection.trouble.failed.is_none()
            && connection.late.is_none()
            && connection.ways.is_none()
            && !connection.is_far()
            && message.total <= credit
            && !connection.lanes.iter().any(flows)
            && connection.traffic.expects_nothing()
    }
}
