//! The fast path of a small message to a near peer.
//!
//! If nothing else waits and one near lane carries all, the sender puts the message into a frame at once. If nothing
//! before it is missing, the receiver takes it from its frame straight to its receive. The result is the same as on the
//! long path (`post.rs`, `transmit.rs`; `receive.rs`, `messages.rs`), without the records that the long path keeps. In
//! all other cases the message takes the long path.

use isthmus_wire::frame::{self, flags};

use super::acks::is_message_awaited;
use super::state::{Connection, Flight, Inline, Lane, LaneState, Load, Micros};
use super::{Engine, LaneId, PeerFault, Summary};
use crate::matching::Match;
use crate::memory::Memory;
use crate::{Channel, Completion, CompletionKind, Fence, Level, PeerId, SendRequest};

/// Longest message on the fast path. Bytes; for longer ones the copy outweighs the saved records.
pub(super) const FAST_PATH_MAX: u64 = 4 << 10;

/// Longest frame of such a message. Bytes.
pub const FAST_PATH_FRAME_MAX: usize = frame::Message::LEN + FAST_PATH_MAX as usize;

impl Engine {
    /// The lane on which a message of `total` bytes may take the fast path now, and its header. `None` if it has to be
    /// posted.
    #[inline]
    pub fn fast_path_lane(&self, request: &SendRequest, total: u64) -> Option<(LaneId, frame::Message)> {
        let options = &request.options;
        if total > FAST_PATH_MAX
            || options.fence == Fence::All
            || options.level != Level::Transmit
            || self.parted
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
            && connection.credit_out.left() >= total;
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

    /// The connection to a peer for which one open lane, without a router, carries everything.
    #[inline]
    pub(super) fn plain_lane(&self, peer: PeerId) -> Option<(&Connection, LaneId, &Lane)> {
        let connection = self.peers.get(peer.0 as usize)?.connection.as_deref()?;
        let lane = *connection.lanes.first()?;
        let record = self.lanes.get(lane.0 as usize)?;
        let plain = connection.warm
            && !connection.goes_long
            && connection.carriers() == 1
            && connection.stragglers.is_none()
            && connection.rails.is_none()
            && connection.trouble.failed.is_none()
            && record.state == LaneState::Open
            && record.router.is_none()
            && !record.through_routers;
        plain.then_some((connection, lane, record))
    }

    /// Records a message that the shell has sent, or will send before anything else, on the lane of
    /// [`Engine::fast_path_lane`]. The operation is over.
    #[inline]
    pub fn complete_fast_send(
        &mut self,
        lane: LaneId,
        request: &SendRequest,
        message: &frame::Message,
        payload: &[u8],
    ) {
        let total = message.total;
        let peer = self.resolve(request.peer);
        if !request.options.silent {
            self.report(Completion::of_send(&request.options, request.channel, total, peer));
        }
        let load = match Inline::of(message, payload) {
            Some(few) => Load::Inline(few),
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
        connection.counters.bytes_sent += total;
        connection.next_order += 1;
        connection.credit_out.use_up(total);
        connection.window.push(Flight { lane, load, sent_at, tries: 0 });
    }

    /// Begins a run of messages on this lane. `None` if they have to take the long path.
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
        let credit = connection.credit_in.left();
        let longest = credit.min(FAST_PATH_MAX);
        Some(Run { engine: self, peer, lane, seq, order, longest, messages: 0, awaited: 0, bytes: 0 })
    }

    /// Takes in messages that lie one behind the other on a lane, until `next` has no more. `next` returns a message's
    /// header and puts its whole payload at the start of `room`. Returns whether there was any message.
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

    /// Takes a whole message to its receive. False if it has to take the long path.
    pub(super) fn receive_fast(
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

    /// Takes a message to the oldest posted receive, if it fits there and that receive takes one message only. This is
    /// the usual case of [`Engine::receive_by_search`], made fast.
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
        // Fill it in place: a completion that is built first and then moved makes the processor wait for its stores.
        let completion = self.completions.push_back_mut(Completion::NOTHING);
        (completion.context, completion.notify) = (posted.context, posted.notify);
        completion.kind = CompletionKind::Recv(channel);
        (completion.len, completion.buffer) = (summary.total, place.token);
        (completion.data, completion.tag) = (summary.data, summary.tag);
        completion.peer = Some(peer);
        self.matcher.drop_first(channel);
        true
    }

    /// Takes a message to whichever receive it matches. False if there is none.
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

    /// Whether nothing that this peer sent is missing, and the engine measures nothing for which it needs each message.
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
            && connection.stragglers.is_none()
            && connection.rails.is_none()
            && !connection.is_far()
            && !connection.lanes.iter().any(flows)
            && connection.traffic.expects_nothing()
    }
}

/// Messages that go to their receives one after the other, as long as each is the next of its peer. Their common
/// conditions are checked when the run begins, and the connection's counts are updated when it ends.
struct Run<'e> {
    engine: &'e mut Engine,
    peer: PeerId,
    lane: LaneId,
    /// Fragment number and order of the next message.
    seq: u64,
    order: u64,
    /// Longest message: it may not use more credit than there is, but credit is returned as it is used. Bytes.
    longest: u64,
    /// Messages taken, those whose acknowledgement is awaited, and their bytes.
    messages: u64,
    awaited: u32,
    bytes: u64,
}

impl Run<'_> {
    /// Takes a message to its receive. False if it has to take the long path.
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
        connection.recent = Some(self.lane);
        connection.credit_in.take_run(self.bytes);
        connection.counters.bytes_received += self.bytes;
        self.engine.counters.fragments_received += self.messages;
        self.engine.owe_acks(self.peer, self.messages as u32, self.awaited);
        self.engine.return_credit(self.peer, self.bytes);
    }
}
