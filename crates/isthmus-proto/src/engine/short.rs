//! The short way of a small message: at once into a frame where nothing waits and one near lane carries all,
//! and from its frame to its receive where nothing is missing before it.
//!
//! Both ends do what the long way does (`post.rs`, `transmit.rs`; `receive.rs`, `messages.rs`), without the
//! records that it keeps for what may still come. Where anything stands in the way, the long way is taken.

use isthmus_wire::frame::{self, flags};

use super::acks::is_message_awaited;
use super::state::{Connection, Few, Flight, Lane, LaneState, Load, Micros};
use super::{Engine, LaneId, PeerFault, Summary};
use crate::matching::Match;
use crate::memory::Memory;
use crate::{Channel, Completion, CompletionKind, Fence, Level, PeerId, SendRequest};

/// Longest message that may go the short way. Bytes.
pub(super) const SHORT_MAX: u64 = 4 << 10;

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
        let (connection, lane, record) = self.plain_lane(self.resolve(request.peer))?;
        let free = record.writable
            && record.control.is_empty()
            && !connection.has_output()
            && connection.fence.is_none()
            && (connection.requests == 0 || options.fence == Fence::None)
            && connection.window.has_room()
            && connection.credit_left() >= total;
        if !free {
            return None;
        }
        let with_data = if request.data.is_some() { flags::DATA } else { 0 };
        let message = frame::Message {
            flags: request.channel.flags() | with_data | flags::LAZY,
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

    /// The connection with a peer whose only lane is open, leads there without a router and carries all there is.
    #[inline]
    pub(super) fn plain_lane(&self, peer: PeerId) -> Option<(&Connection, LaneId, &Lane)> {
        let connection = self.peers.get(peer.0 as usize)?.connection.as_deref()?;
        let lane = *connection.lanes.first()?;
        let record = self.lanes.get(lane.0 as usize)?;
        let plain = connection.warm
            && !connection.goes_long
            && connection.carriers() == 1
            && connection.late.is_none()
            && connection.ways.is_none()
            && connection.trouble.failed.is_none()
            && record.state == LaneState::Open
            && record.router.is_none()
            && !record.through_routers;
        plain.then_some((connection, lane, record))
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
        connection.counters.messages_eager += 1;
        connection.next_order += 1;
        connection.credit_used += total;
        connection.window.push(Flight { lane, load, sent_at, tries: 0 });
    }

    /// A run of messages on this lane may begin: `None` where they go the long way.
    #[inline]
    fn begin_run<'e>(&'e mut self, now: Micros, lane: LaneId) -> Option<Run<'e>> {
        let record = self.lanes.get_mut(lane.0 as usize)?;
        let peer = record.peer.filter(|_| record.state == LaneState::Open)?;
        record.heard = true;
        self.clock = now;
        let connection = self.peers[peer.0 as usize].connection.as_deref()?;
        if !self.is_plain(connection) {
            return None;
        }
        let (seq, order) = (connection.received.upto(), connection.expected_order);
        let credit = connection.credit_to_advertise() - connection.taken;
        let longest = credit.min(SHORT_MAX);
        Some(Run { engine: self, peer, seq, order, longest, messages: 0, awaited: 0, bytes: 0 })
    }

    /// Takes in messages that lie one behind the other on a lane, as many as `next` has: it says what a message's header
    /// is, and puts its payload, all of it, to the beginning of `room`. Whether there was any.
    #[inline]
    pub fn handle_messages<M: Memory>(
        &mut self,
        now: Micros,
        lane: LaneId,
        room: &mut [u8],
        mut next: impl FnMut(&mut [u8]) -> Option<frame::Message>,
        mem: &mut M,
    ) -> Result<bool, PeerFault> {
        let mut any = false;
        loop {
            let mut run = self.begin_run(now, lane);
            let message = loop {
                let Some(message) = next(room) else { return Ok(any) };
                any = true;
                let payload = &room[..message.payload as usize];
                if !run.as_mut().is_some_and(|run| run.take(&message, payload, mem)) {
                    break message;
                }
            };
            drop(run);
            self.handle_at_length(now, lane, &message.into(), &room[..message.payload as usize], mem)?;
        }
    }

    /// A message whose frame and payload are there: whether it went to its receive, so that nothing else is to be
    /// done with the frame.
    pub(super) fn receive_short(
        &mut self,
        now: Micros,
        lane: LaneId,
        message: &frame::Message,
        payload: &[u8],
        mut mem: &mut dyn Memory,
    ) -> bool {
        let run = self.begin_run(now, lane);
        run.is_some_and(|mut run| run.take(message, payload, &mut mem))
    }

    /// Receives a message by the receive that was posted first, if it goes to that one, has room there, and that takes no
    /// other: the usual case of [`Engine::receive_by_search`].
    #[inline]
    fn receive_by_first<M: Memory>(
        &mut self,
        channel: Channel,
        peer: PeerId,
        summary: &Summary,
        payload: &[u8],
        mem: &mut M,
    ) -> bool {
        let Some(posted) = self.matcher.first_posted(channel, peer, summary.tag) else { return false };
        let place = posted.place;
        if summary.total > posted.end {
            return false;
        }
        if !payload.is_empty() {
            mem.store(place, 0, payload);
        }
        mem.release(place);
        // Written where it stays: what is put together first and moved waits for its parts to be in memory.
        let completion = self.completions.push_back_mut(Completion::NOTHING);
        (completion.context, completion.notify) = (posted.context, posted.notify);
        completion.kind = CompletionKind::Recv(channel);
        (completion.len, completion.buffer) = (summary.total, place.token);
        (completion.data, completion.tag) = (summary.data, summary.tag);
        completion.peer = Some(peer);
        self.matcher.drop_first(channel);
        true
    }

    /// Receives a message by whichever receive it goes to; false where there is none.
    #[inline(never)]
    fn receive_by_search(
        &mut self,
        channel: Channel,
        peer: PeerId,
        summary: &Summary,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> bool {
        let mut released = Vec::new();
        let found = self.matcher.find_posted(channel, peer, summary.tag, summary.total, &mut released);
        for buffer in released {
            self.fail_posted(channel, buffer, None, mem);
        }
        let Some(Match { posted, last }) = found else { return false };
        if let Some(multi) = posted.multi {
            self.multi_buffers[multi.buffer].users += 1;
        }
        let kept = summary.total.min(posted.end - posted.offset) as usize;
        if kept > 0 {
            mem.store(posted.place, posted.offset, &payload[..kept]);
        }
        self.finish_receive(&posted, last, summary, channel, peer, None, mem);
        true
    }

    /// Whether nothing is missing of what this peer sent, and nothing of it is looked after that messages have to be
    /// told to.
    #[inline]
    fn is_plain(&self, connection: &Connection) -> bool {
        let flows = |lane: &LaneId| {
            self.lanes
                .get(lane.0 as usize)
                .is_none_or(|lane| lane.stream.is_some() || lane.router.is_some() || lane.through_routers)
        };
        connection.warm
            && !connection.received.has_gaps()
            && connection.trouble.failed.is_none()
            && connection.late.is_none()
            && connection.ways.is_none()
            && !connection.is_far()
            && !connection.lanes.iter().any(flows)
            && connection.traffic.expects_nothing()
    }
}

/// Messages that go to their receives one after the other, as long as each is the next of its peer: what they have in
/// common is looked at when the run begins, and its connection is told of all of them when it ends.
struct Run<'e> {
    engine: &'e mut Engine,
    peer: PeerId,
    /// Numbers of the message that is next.
    seq: u64,
    order: u64,
    /// Longest that it may be: credit goes back as it is used. Bytes.
    longest: u64,
    /// What was taken, how many of that somebody waits for, and its bytes.
    messages: u64,
    awaited: u32,
    bytes: u64,
}

impl Run<'_> {
    /// Takes a message to its receive; false where that is not to be done here.
    #[inline]
    fn take<M: Memory>(&mut self, message: &frame::Message, payload: &[u8], mem: &mut M) -> bool {
        let total = payload.len() as u64;
        let whole = (message.total, message.eager) == (total, total) && u64::from(message.payload) == total;
        let next = (message.seq, message.order) == (self.seq, self.order);
        if total > self.longest || !whole || !next || message.flags & flags::ACCEPT != 0 {
            return false;
        }
        let channel = Channel::of(message.flags);
        let data = (message.flags & flags::DATA != 0).then_some(message.data);
        let summary = Summary { data, tag: message.tag, total };
        if !self.engine.receive_by_first(channel, self.peer, &summary, payload, mem)
            && !self.engine.receive_by_search(channel, self.peer, &summary, payload, mem)
        {
            return false;
        }
        self.seq += 1;
        self.order += 1;
        self.messages += 1;
        self.awaited += u32::from(is_message_awaited(message));
        self.bytes += total;
        true
    }
}

impl Drop for Run<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.messages == 0 {
            return;
        }
        let connection = self.engine.connection(self.peer);
        connection.received.advance_by(self.messages);
        connection.expected_order = self.order;
        connection.taken += self.bytes;
        self.engine.counters.fragments_received += self.messages;
        self.engine.owe_acks(self.peer, self.messages as u32, self.awaited);
        self.engine.return_credit(self.peer, self.bytes);
    }
}
