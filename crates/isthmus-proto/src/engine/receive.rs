//! What comes in: frames, their payload, and what they do to operations and messages.

use isthmus_wire::frame::{self, Frame, PAYLOAD_MAX, Status, flags};

use super::lanes::PeerFault;
use super::state::{
    Early, Inbound, IncomingWrite, Kind, Lane, LaneState, Lingering, Load, Micros, Operation, Owner, Stage,
    Stream, Target,
};
use super::transmit::{OPERANDS_MAX, REQUESTS_MAX};
use super::{Engine, LaneId};
use crate::atomics;
use crate::matching::Posted;
use crate::memory::{Access, Memory, Place};
use crate::window::{Receipt, WINDOW};
use crate::{
    AtomicKind, AtomicOp, AtomicType, Channel, Completion, CompletionKind, Level, OpError, Options, PeerId,
    RemoteRange,
};

/// Fragments after which an acknowledgement no longer waits for company.
const ACK_EVERY: u32 = 16;
/// Operands of the atomics that may overtake a message that is missing. Bytes.
const EARLY_OPERANDS_MAX: u64 = 2 * OPERANDS_MAX;
/// Most messages of one peer that wait for receives.
const UNMATCHED_MAX: u32 = 1 << 20;
/// Most requests of a peer that wait for an end, of each kind. A peer may think that some
/// of them have ended that have not; hence more than it may have outstanding.
const WAITING_MAX: usize = 4 * REQUESTS_MAX as usize;
/// Most frames that wait on a lane which does not write.
const CONTROL_MAX: usize = 64;

/// Where the shell may put payload bytes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sink {
    /// The buffer.
    pub place: Place,
    /// Where in it.
    pub offset: u64,
    /// How many bytes may be put there now.
    pub len: u64,
}

impl Engine {
    /// A frame arrived with all of its payload.
    pub fn handle(
        &mut self,
        now: Micros,
        lane: LaneId,
        frame: &Frame,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let Some(peer) = self.speaker(now, lane, frame, mem)? else { return Ok(()) };
        let target = self.target(peer, frame, payload.len() as u64, true, mem)?;
        let len = payload.len() as u64;
        let target = match target {
            Target::Bounce { inbound, offset, mut bytes } => {
                bytes.extend_from_slice(payload);
                Target::Bounce { inbound, offset, bytes }
            }
            Target::Direct { place, offset, keep, owner } => {
                if keep > 0 {
                    mem.store(place, offset, &payload[..keep.min(len) as usize]);
                }
                Target::Direct { place, offset, keep, owner }
            }
            Target::Discard => Target::Discard,
        };
        self.end_fragment(peer, frame, target, payload, mem)
    }

    /// A frame's header arrived; its payload follows through [`Engine::feed`] and
    /// [`Engine::sink`]. Only frames with payload.
    pub fn begin(
        &mut self,
        now: Micros,
        lane: LaneId,
        frame: &Frame,
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let len = u64::from(frame.payload_len());
        if matches!(frame, Frame::Atomic(_)) {
            return Err(PeerFault::Frame("an atomic operation's operands are too long"));
        }
        let target = match self.speaker(now, lane, frame, mem)? {
            Some(peer) => self.target(peer, frame, len, false, mem)?,
            None => Target::Discard,
        };
        let stream = Stream { frame: *frame, target, done: 0, len, busy: false };
        self.lane_mut(lane)?.stream = Some(stream);
        Ok(())
    }

    /// Where the next payload bytes of the lane's fragment may be put without the
    /// engine; the lane counts as busy until [`Engine::filled`]. `None` where they must
    /// go through [`Engine::feed`].
    pub fn sink(&mut self, lane: LaneId) -> Option<Sink> {
        let stream = self.lanes.get_mut(lane.0 as usize)?.stream.as_mut()?;
        debug_assert!(!stream.busy, "the last sink was not reported as filled");
        let Target::Direct { place, offset, keep, .. } = stream.target else { return None };
        let len = keep.min(stream.len).saturating_sub(stream.done);
        if len == 0 || place.is_registered() {
            return None;
        }
        stream.busy = true;
        Some(Sink { place, offset: offset + stream.done, len })
    }

    /// `n` bytes were put where [`Engine::sink`] said.
    pub fn filled(&mut self, lane: LaneId, n: u64, mem: &mut dyn Memory) -> Result<(), PeerFault> {
        let record = self.lane_mut(lane)?;
        let closing = record.state == LaneState::Closing;
        let Some(stream) = &mut record.stream else { return Ok(()) };
        stream.busy = false;
        stream.done = stream.len.min(stream.done + n);
        if closing {
            stream.drop_rest();
        }
        self.end_stream(lane, mem)?;
        self.end_lingering(mem)
    }

    /// Payload bytes of the lane's fragment that the shell read elsewhere; returns how
    /// many of them belong to it.
    pub fn feed(&mut self, lane: LaneId, bytes: &[u8], mem: &mut dyn Memory) -> Result<usize, PeerFault> {
        let Some(stream) = self.lane_mut(lane)?.stream.as_mut() else { return Ok(0) };
        let n = (stream.len - stream.done).min(bytes.len() as u64);
        let taken = &bytes[..n as usize];
        match &mut stream.target {
            Target::Discard => {}
            Target::Bounce { bytes, .. } => bytes.extend_from_slice(taken),
            Target::Direct { place, offset, keep, .. } => {
                let kept = keep.saturating_sub(stream.done).min(n) as usize;
                if kept > 0 {
                    mem.store(*place, *offset + stream.done, &taken[..kept]);
                }
            }
        }
        stream.done += n;
        self.end_stream(lane, mem)?;
        Ok(n as usize)
    }

    /// Payload bytes of the lane's fragment that are still to come.
    pub fn streaming(&self, lane: LaneId) -> Option<u64> {
        let stream = self.lanes.get(lane.0 as usize)?.stream.as_ref()?;
        Some(stream.len - stream.done)
    }

    fn end_stream(&mut self, lane: LaneId, mem: &mut dyn Memory) -> Result<(), PeerFault> {
        let record = self.lane_mut(lane)?;
        let whole = |stream: &mut Stream| stream.done == stream.len;
        let closing = record.state == LaneState::Closing;
        let (Some(stream), Some(peer)) = (record.stream.take_if(whole), record.peer) else { return Ok(()) };
        if closing {
            return Ok(()); // nothing that comes now is acknowledged
        }
        self.end_fragment(peer, &stream.frame, stream.target, &[], mem)
    }

    pub(super) fn lane_mut(&mut self, lane: LaneId) -> Result<&mut Lane, PeerFault> {
        self.lanes.get_mut(lane.0 as usize).ok_or(PeerFault::Frame("frame on a lane that is closed"))
    }

    /// Deals with frames of the lane itself; for others, says whose they are.
    fn speaker(
        &mut self,
        now: Micros,
        lane: LaneId,
        frame: &Frame,
        mem: &mut dyn Memory,
    ) -> Result<Option<PeerId>, PeerFault> {
        let state = self.lane_mut(lane)?.state;
        match (frame, state) {
            (Frame::Hello(hello), LaneState::Listening) => self.on_hello(now, lane, hello).map(|()| None),
            (Frame::Welcome(welcome), LaneState::Greeting) => {
                self.on_welcome(now, lane, welcome, mem).map(|()| None)
            }
            (Frame::Refuse(refuse), LaneState::Greeting) => {
                self.on_refuse(lane, refuse, mem);
                Ok(None)
            }
            (_, LaneState::Closing) => Ok(None),
            (_, LaneState::Listening | LaneState::Greeting | LaneState::Dialing) => {
                Err(PeerFault::Frame("the first frame of a lane must be a greeting"))
            }
            (Frame::Ping(ping), LaneState::Open) => {
                let control = &mut self.lanes[lane.0 as usize].control;
                if control.len() >= CONTROL_MAX {
                    return Err(PeerFault::Frame("more pings than are ever sent"));
                }
                control.push_back(frame::Pong { id: ping.id }.into());
                self.make_ready(lane);
                Ok(None)
            }
            (Frame::Pong(_), LaneState::Open) => {
                self.on_pong(now, lane);
                Ok(None)
            }
            (Frame::Hello(_) | Frame::Welcome(_) | Frame::Refuse(_), LaneState::Open) => {
                Err(PeerFault::Frame("a second greeting on a lane"))
            }
            (_, LaneState::Open) => {
                let peer =
                    self.lanes[lane.0 as usize].peer.ok_or(PeerFault::Frame("a lane without a peer"))?;
                self.dispatch_unnumbered(peer, lane, frame, mem)
            }
        }
    }

    fn dispatch_unnumbered(
        &mut self,
        peer: PeerId,
        lane: LaneId,
        frame: &Frame,
        mem: &mut dyn Memory,
    ) -> Result<Option<PeerId>, PeerFault> {
        match frame {
            Frame::Ack(ack) => self.on_ack(peer, ack.upto, ack.credit, &[], mem)?,
            Frame::AckMap(ack) => self.on_ack(peer, ack.upto, ack.credit, &ack.map, mem)?,
            Frame::Bye(_) => self.on_bye(peer, lane, mem),
            _ => return Ok(Some(peer)),
        }
        Ok(None)
    }

    /// Decides where a numbered fragment's payload goes, and for a message's first
    /// fragment matches the message. `whole` says that all of the payload is there.
    fn target(
        &mut self,
        peer: PeerId,
        frame: &Frame,
        len: u64,
        whole: bool,
        mem: &mut dyn Memory,
    ) -> Result<Target, PeerFault> {
        let Some(seq) = frame.seq() else {
            return Err(PeerFault::Frame("an unnumbered frame where none may be"));
        };
        match self.connection(peer).received.check(seq) {
            Receipt::Duplicate => return Ok(Target::Discard),
            Receipt::OutOfWindow => return Err(PeerFault::Frame("a fragment far beyond the window")),
            Receipt::New => {}
        }
        match frame {
            Frame::Message(message) => self.target_of_message(peer, message, whole, mem),
            Frame::More(more) => self.target_of_more(peer, more),
            Frame::Write(write) => self.target_of_write(peer, write, mem),
            Frame::Reply(reply) => self.target_of_reply(peer, reply, len),
            _ => Ok(Target::Discard),
        }
    }

    fn target_of_message(
        &mut self,
        peer: PeerId,
        message: &frame::Message,
        whole: bool,
        mem: &mut dyn Memory,
    ) -> Result<Target, PeerFault> {
        if message.eager > message.total || u64::from(message.payload) > message.eager {
            return Err(PeerFault::Frame("a message whose lengths contradict each other"));
        }
        if self.connection(peer).unmatched >= UNMATCHED_MAX {
            return Err(PeerFault::Frame("more messages than are kept without a receive"));
        }
        let listed = self.connection(peer).incoming.get(&message.seq).copied();
        if let Some(index) = listed {
            let inbound = &self.inbounds[index];
            if !matches!(inbound.stage, Stage::Orphan) {
                return Ok(self.target_in(index, 0));
            }
            if inbound.parts.iter().any(|(offset, bytes)| offset + bytes.len() as u64 > message.total) {
                return Err(PeerFault::Frame("a fragment beyond the end of its message"));
            }
        }
        self.take_turn(peer, message.order)?;
        self.take_credit(peer, message.eager)?;
        let index = match listed {
            Some(index) => index,
            // Nothing will ask for it by name: no other fragment, and not this one again.
            None if whole && u64::from(message.payload) == message.total => {
                self.new_inbound(peer, message.seq)
            }
            None => self.inbound_entry(peer, message.seq),
        };
        let inbound = &mut self.inbounds[index];
        let tagged = message.flags & flags::TAGGED != 0;
        inbound.channel = if tagged { Channel::Tagged } else { Channel::Untagged };
        inbound.tag = message.tag;
        inbound.data = (message.flags & flags::DATA != 0).then_some(message.data);
        inbound.total = message.total;
        inbound.eager = message.eager;
        inbound.needed = message.total;
        inbound.wants_accept = message.flags & flags::ACCEPT != 0;
        inbound.stage = Stage::Early;
        self.in_order(peer, message.order, Early::Message(index), mem);
        Ok(self.target_in(index, 0))
    }

    fn target_of_more(&mut self, peer: PeerId, more: &frame::More) -> Result<Target, PeerFault> {
        let connection = self.connection(peer);
        let unheard = more.message < more.seq && connection.received.check(more.message) == Receipt::New;
        if !unheard && !connection.incoming.contains_key(&more.message) {
            return Err(PeerFault::Frame("a fragment of no message"));
        }
        let index = self.inbound_entry(peer, more.message);
        let inbound = &self.inbounds[index];
        let known = !matches!(inbound.stage, Stage::Orphan);
        let end = more.offset.checked_add(u64::from(more.payload));
        if end.is_none_or(|end| known && end > inbound.total) {
            return Err(PeerFault::Frame("a fragment beyond the end of its message"));
        }
        Ok(self.target_in(index, more.offset))
    }

    fn target_in(&mut self, index: usize, offset: u64) -> Target {
        let Some(inbound) = self.inbounds.get(index) else { return Target::Discard };
        match inbound.stage {
            Stage::Matched { posted, .. } => Target::Direct {
                place: posted.place,
                offset: posted.offset.saturating_add(offset),
                keep: (posted.end - posted.offset).saturating_sub(offset),
                owner: Owner::Message(index),
            },
            Stage::Dropped => Target::Discard,
            _ => Target::Bounce { inbound: index, offset, bytes: self.pool.take() },
        }
    }

    /// The record of a message that is coming in, made when its first news arrives.
    fn inbound_entry(&mut self, peer: PeerId, message: u64) -> usize {
        if let Some(&index) = self.connection(peer).incoming.get(&message) {
            return index;
        }
        let index = self.new_inbound(peer, message);
        self.connection(peer).incoming.insert(message, index);
        index
    }

    fn new_inbound(&mut self, peer: PeerId, message: u64) -> usize {
        self.inbounds.insert(Inbound {
            peer,
            message,
            channel: Channel::Untagged,
            tag: 0,
            data: None,
            total: 0,
            eager: 0,
            wants_accept: false,
            stage: Stage::Orphan,
            needed: u64::MAX,
            got: 0,
            parts: Vec::new(),
            error: None,
        })
    }

    /// Checks that a message or atomic comes when it may.
    fn take_turn(&mut self, peer: PeerId, order: u64) -> Result<(), PeerFault> {
        let connection = self.connection(peer);
        match order.checked_sub(connection.expected_order) {
            Some(ahead) if ahead < WINDOW && !connection.early.contains_key(&order) => Ok(()),
            _ => Err(PeerFault::Frame("a message out of any order")),
        }
    }

    /// Checks that the peer has the credit that it uses.
    fn take_credit(&mut self, peer: PeerId, bytes: u64) -> Result<(), PeerFault> {
        let connection = self.connection(peer);
        match connection.taken.checked_add(bytes) {
            Some(taken) if taken <= connection.credit_to_advertise() => connection.taken = taken,
            _ => return Err(PeerFault::Frame("more data than there was credit for")),
        }
        Ok(())
    }

    /// Presents messages and atomics in the order in which they were sent.
    fn in_order(&mut self, peer: PeerId, order: u64, early: Early, mem: &mut dyn Memory) {
        let connection = self.connection(peer);
        if order > connection.expected_order {
            connection.early_operands += early.operands();
            connection.early.insert(order, early);
            return;
        }
        let mut next = Some(early);
        while let Some(early) = next {
            self.connection(peer).expected_order += 1;
            match early {
                Early::Message(index) => self.present(index, mem),
                Early::Atomic(atomic, operands) => {
                    // A peer that takes no answers gets none; its lane is closed when
                    // it next asks for one.
                    let _ = self.run_atomic(peer, &atomic, &operands, mem);
                    self.pool.give(operands);
                }
            }
            let connection = self.connection(peer);
            next = connection.early.remove(&connection.expected_order);
            connection.early_operands -= next.as_ref().map_or(0, Early::operands);
        }
    }

    /// Looks for the receive of a message whose turn it is.
    fn present(&mut self, index: usize, mem: &mut dyn Memory) {
        let Inbound { channel, peer, tag, total, .. } = self.inbounds[index];
        let mut released = Vec::new();
        let found = self.matcher.find_posted(channel, peer, tag, total, &mut released);
        for buffer in released {
            self.fail_posted(channel, buffer, None, mem);
        }
        match found {
            Some(found) => self.match_inbound(index, found.posted, found.last, mem),
            None => {
                self.inbounds[index].stage = Stage::Unexpected;
                self.connection(peer).unmatched += 1;
                self.matcher.add_unexpected(channel, peer, tag, index);
            }
        }
    }

    /// A message and a receive have found each other.
    pub(super) fn match_inbound(&mut self, index: usize, posted: Posted, last: bool, mem: &mut dyn Memory) {
        if let Some(multi) = posted.multi {
            self.multi_buffers[multi.buffer].users += 1;
        }
        self.leave_unexpected(index);
        let inbound = &mut self.inbounds[index];
        inbound.stage = Stage::Matched { posted, last };
        for (offset, bytes) in &inbound.parts {
            store_clipped(mem, &posted, *offset, bytes);
        }
        self.settle(index, posted.end - posted.offset, mem);
    }

    pub(super) fn leave_unexpected(&mut self, index: usize) {
        let inbound = &self.inbounds[index];
        if matches!(inbound.stage, Stage::Unexpected) {
            let peer = inbound.peer;
            self.connection(peer).unmatched -= 1;
        }
    }

    /// Nothing more is decided about a message: its credit goes back, and its sender
    /// learns how much is wanted.
    pub(super) fn settle(&mut self, index: usize, room: u64, mem: &mut dyn Memory) {
        let inbound = &mut self.inbounds[index];
        let (peer, message, eager) = (inbound.peer, inbound.message, inbound.eager);
        let wanted = inbound.total.min(room);
        inbound.needed = if eager < inbound.total { wanted.max(eager) } else { inbound.total };
        let answer = eager < inbound.total || inbound.wants_accept;
        let missing = inbound.got < inbound.needed;
        self.free_parts(index);
        if let Some(error) = self.connection(peer).failed.clone() {
            return match missing {
                true => self.break_inbound(index, &error, mem),
                false => self.complete_inbound(index, mem),
            };
        }
        self.return_credit(peer, eager);
        if answer {
            let accept = frame::Accept { connection: 0, seq: 0, message, wanted };
            self.connection(peer).urgent.push_back(accept.into());
            self.kick(peer);
        }
        self.check_inbound(index, mem);
    }

    fn return_credit(&mut self, peer: PeerId, bytes: u64) {
        let connection = self.connection(peer);
        connection.returned += bytes;
        let unsaid = connection.credit_to_advertise() - connection.advertised;
        if unsaid > connection.granted / 4 {
            connection.ack_owed = true;
            connection.ack_due = true;
            self.kick(peer);
        }
    }

    fn check_inbound(&mut self, index: usize, mem: &mut dyn Memory) {
        let inbound = &self.inbounds[index];
        if inbound.got >= inbound.needed && matches!(inbound.stage, Stage::Matched { .. } | Stage::Dropped) {
            self.complete_inbound(index, mem);
        }
    }

    fn target_of_write(
        &mut self,
        peer: PeerId,
        write: &frame::Write,
        mem: &mut dyn Memory,
    ) -> Result<Target, PeerFault> {
        let range = RemoteRange { key: write.key, addr: write.addr, len: write.total };
        let end = write.offset.checked_add(u64::from(write.payload));
        let located = match end {
            Some(end) if end <= write.total => mem.locate(range, Access::Write),
            _ => Err(Status::Bounds),
        };
        let incoming = self.incoming_write(peer, write)?;
        match located {
            Ok(_) if write.payload == 0 => Ok(Target::Discard),
            Ok(place) => {
                let keep = u64::from(write.payload);
                Ok(Target::Direct { place, offset: write.offset, keep, owner: Owner::Region })
            }
            Err(status) => {
                incoming.status = status as u8;
                Ok(Target::Discard)
            }
        }
    }

    fn incoming_write(
        &mut self,
        peer: PeerId,
        write: &frame::Write,
    ) -> Result<&mut IncomingWrite, PeerFault> {
        let writes = &mut self.connection(peer).writes;
        if writes.len() >= WAITING_MAX && !writes.contains_key(&write.token) {
            return Err(PeerFault::Frame("more writes than are ever under way"));
        }
        Ok(writes.entry(write.token).or_default())
    }

    fn target_of_reply(&mut self, peer: PeerId, reply: &frame::Reply, len: u64) -> Result<Target, PeerFault> {
        let Some(index) = self.by_token(peer, reply.token) else { return Ok(Target::Discard) };
        let operation = &self.operations[index];
        if !operation.takes_reply() || reply.offset.checked_add(len).is_none_or(|end| end > operation.total) {
            return Err(PeerFault::Frame("an answer that nobody asked for"));
        }
        if len == 0 {
            return Ok(Target::Discard);
        }
        let owner = Owner::Answer(index);
        Ok(Target::Direct { place: operation.place, offset: reply.offset, keep: len, owner })
    }

    fn by_token(&self, peer: PeerId, token: u64) -> Option<usize> {
        let index = (token & u64::from(u32::MAX)) as usize;
        let operation = self.operations.get(index)?;
        let asked = operation.token() == token && operation.peer == peer && operation.first.is_some();
        asked.then_some(index)
    }

    /// A fragment is complete: notes it as received and does what it says.
    pub(super) fn end_fragment(
        &mut self,
        peer: PeerId,
        frame: &Frame,
        target: Target,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let Some(seq) = frame.seq() else { return Ok(()) };
        if self.connection(peer).failed.is_some() {
            return Ok(());
        }
        if matches!(target, Target::Direct { .. }) && self.is_filled_elsewhere(peer, seq) {
            self.lingering.push(Lingering::Fragment { peer, frame: *frame, target });
            return Ok(());
        }
        let new = self.connection(peer).received.insert(seq) == Receipt::New;
        self.owe_ack(peer);
        if !new {
            self.counters.duplicates += 1;
            if let Target::Bounce { bytes, .. } = target {
                self.pool.give(bytes);
            }
            return Ok(());
        }
        self.counters.fragments_received += 1;
        match frame {
            Frame::Message(message) => {
                self.on_part(peer, message.seq, 0, u64::from(message.payload), target, mem)?;
            }
            Frame::More(more) => {
                self.on_part(peer, more.message, more.offset, u64::from(more.payload), target, mem)?;
            }
            Frame::Accept(accept) => self.on_accept(peer, accept, mem),
            Frame::Done(done) => self.on_done(peer, done, mem)?,
            Frame::Write(write) => self.on_write(peer, write)?,
            Frame::Read(read) => self.on_read(peer, read, mem)?,
            Frame::Reply(reply) => self.on_reply(peer, reply, mem),
            Frame::Atomic(atomic) => self.on_atomic(peer, atomic, payload, mem)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether a lane's shell is filling the place of this fragment right now, from an
    /// earlier transmission; lanes in the middle of one drop the rest.
    fn is_filled_elsewhere(&mut self, peer: PeerId, seq: u64) -> bool {
        let mut busy = false;
        for lane in self.peers[peer.0 as usize].lanes() {
            let Some(stream) = &mut self.lanes[lane.0 as usize].stream else { continue };
            if stream.frame.seq() == Some(seq) {
                busy |= stream.busy;
                stream.drop_rest();
            }
        }
        busy
    }

    fn owe_ack(&mut self, peer: PeerId) {
        let connection = self.connection(peer);
        connection.unacked += 1;
        connection.ack_owed = true;
        let full = connection.unacked >= ACK_EVERY;
        if !std::mem::replace(&mut connection.owing, true) {
            self.owing.push(peer);
        }
        if full {
            self.connection(peer).ack_due = true;
            self.kick(peer);
        }
    }

    /// A fragment of a message is complete.
    fn on_part(
        &mut self,
        peer: PeerId,
        message: u64,
        offset: u64,
        len: u64,
        target: Target,
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let listed = match &target {
            Target::Direct { owner: Owner::Message(index), .. } => Some(*index),
            Target::Bounce { inbound, .. } => Some(*inbound),
            _ => self.connection(peer).incoming.get(&message).copied(),
        };
        let ours = |index: &usize| {
            self.inbounds
                .get(*index)
                .is_some_and(|inbound| (inbound.peer, inbound.message) == (peer, message))
        };
        let Some(index) = listed.filter(ours) else { return Ok(()) };
        let inbound = &mut self.inbounds[index];
        inbound.got += len;
        if let Target::Bounce { bytes, .. } = target {
            match inbound.stage {
                // Matched while the fragment was arriving.
                Stage::Matched { posted, .. } => {
                    store_clipped(mem, &posted, offset, &bytes);
                    self.pool.give(bytes);
                }
                Stage::Dropped => self.pool.give(bytes),
                _ if bytes.is_empty() => self.pool.give(bytes),
                _ => self.keep_part(peer, index, offset, bytes)?,
            }
        }
        self.check_inbound(index, mem);
        Ok(())
    }

    /// Keeps data for which there is no receive yet.
    fn keep_part(
        &mut self,
        peer: PeerId,
        index: usize,
        offset: u64,
        bytes: Vec<u8>,
    ) -> Result<(), PeerFault> {
        let connection = self.connection(peer);
        let held = connection.held + bytes.len() as u64;
        if held > connection.granted {
            return Err(PeerFault::Frame("more data ahead of receives than there was credit for"));
        }
        connection.held = held;
        self.inbounds[index].parts.push((offset, bytes));
        Ok(())
    }

    fn on_accept(&mut self, peer: PeerId, accept: &frame::Accept, mem: &mut dyn Memory) {
        let Some(index) = self.connection(peer).unaccepted.remove(&accept.message) else { return };
        let operation = &mut self.operations[index];
        let waiting = operation.sent >= operation.allowed;
        operation.limit = accept.wanted.min(operation.total).max(operation.eager);
        operation.allowed = operation.limit;
        operation.awaiting = false;
        let more = operation.sent < operation.limit;
        if waiting && more {
            self.connection(peer).bulk.push_back(index);
            self.kick(peer);
        }
        self.try_finish(index, mem);
    }

    fn on_done(&mut self, peer: PeerId, done: &frame::Done, mem: &mut dyn Memory) -> Result<(), PeerFault> {
        let Some(index) = self.by_token(peer, done.token) else { return Ok(()) };
        let operation = &mut self.operations[index];
        if operation.takes_reply() || !operation.is_request() || operation.sent < operation.limit {
            return Err(PeerFault::Frame("the end of what was not asked for"));
        }
        operation.awaiting = false;
        operation.error = Status::from_code(done.status).map(|status| OpError::RemoteAccess(status.text()));
        self.try_finish(index, mem);
        Ok(())
    }

    fn push_urgent(&mut self, peer: PeerId, frame: Frame) -> Result<(), PeerFault> {
        let connection = self.connection(peer);
        if connection.urgent.len() >= WAITING_MAX {
            return Err(PeerFault::Frame("requests without taking the answers"));
        }
        connection.urgent.push_back(frame);
        self.kick(peer);
        Ok(())
    }

    fn push_done(&mut self, peer: PeerId, token: u64, status: u8) -> Result<(), PeerFault> {
        self.push_urgent(peer, frame::Done { connection: 0, seq: 0, token, status }.into())
    }

    fn on_write(&mut self, peer: PeerId, write: &frame::Write) -> Result<(), PeerFault> {
        let incoming = self.incoming_write(peer, write)?;
        incoming.got += u64::from(write.payload);
        if incoming.got < write.total {
            return Ok(());
        }
        let status = incoming.status;
        self.connection(peer).writes.remove(&write.token);
        self.push_done(peer, write.token, status)?;
        if status == 0 {
            let data = (write.flags & flags::DATA != 0).then_some(write.data);
            self.report_access(peer, write.total, true, data);
        }
        Ok(())
    }

    /// The target's own view of an access by a peer.
    fn report_access(&mut self, peer: PeerId, len: u64, wrote: bool, data: Option<u64>) {
        self.report(Completion {
            context: 0,
            notify: data.is_some(),
            kind: match data {
                Some(_) => CompletionKind::RemoteWrite,
                None => CompletionKind::RemoteAccess { wrote },
            },
            len,
            buffer: 0,
            data,
            tag: 0,
            peer: Some(peer),
            released: false,
            error: None,
        });
    }

    fn on_read(&mut self, peer: PeerId, read: &frame::Read, mem: &mut dyn Memory) -> Result<(), PeerFault> {
        let range = RemoteRange { key: read.key, addr: read.addr, len: read.len };
        match mem.locate(range, Access::Read) {
            Ok(place) => {
                self.push_reply(peer, read.token, place, None, read.len)?;
                self.report_access(peer, read.len, false, None);
                Ok(())
            }
            Err(status) => self.refuse_reply(peer, read.token, status),
        }
    }

    fn refuse_reply(&mut self, peer: PeerId, token: u64, status: Status) -> Result<(), PeerFault> {
        let status = status as u8;
        let reply = frame::Reply { connection: 0, seq: 0, token, offset: 0, status, payload: 0 };
        self.push_urgent(peer, reply.into())
    }

    fn push_reply(
        &mut self,
        peer: PeerId,
        token: u64,
        place: Place,
        owned: Option<Vec<u8>>,
        total: u64,
    ) -> Result<(), PeerFault> {
        if self.connection(peer).answers as usize >= WAITING_MAX {
            return Err(PeerFault::Frame("requests without taking the answers"));
        }
        self.generation = self.generation.wrapping_add(1);
        let entry = self.operations.vacant_entry();
        let index = entry.key();
        entry.insert(Operation {
            peer,
            kind: Kind::Reply { token },
            options: Options { level: Level::Delivery, ..Options::default() },
            place,
            owned,
            total,
            sent: 0,
            eager: 0,
            allowed: 0,
            limit: total,
            pieces: 0,
            leases: 0,
            first: None,
            order: 0,
            awaiting: false,
            received: 0,
            error: None,
            generation: self.generation,
            slot: index as u32,
        });
        let connection = self.connection(peer);
        connection.answers += 1;
        connection.replies.push_back(index);
        self.kick(peer);
        Ok(())
    }

    fn on_reply(&mut self, peer: PeerId, reply: &frame::Reply, mem: &mut dyn Memory) {
        let Some(index) = self.by_token(peer, reply.token) else { return };
        let operation = &mut self.operations[index];
        operation.received += u64::from(reply.payload);
        operation.error = Status::from_code(reply.status).map(|status| OpError::RemoteAccess(status.text()));
        if operation.received >= operation.total || operation.error.is_some() {
            operation.awaiting = false;
            self.try_finish(index, mem);
        }
    }

    fn on_atomic(
        &mut self,
        peer: PeerId,
        atomic: &frame::Atomic,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        self.take_turn(peer, atomic.order)?;
        let connection = self.connection(peer);
        let kept = connection.early_operands + payload.len() as u64;
        if kept > EARLY_OPERANDS_MAX || connection.urgent.len() >= WAITING_MAX {
            return Err(PeerFault::Frame("more atomic operations than are kept"));
        }
        let mut operands = self.pool.take();
        operands.extend_from_slice(payload);
        self.in_order(peer, atomic.order, Early::Atomic(*atomic, operands), mem);
        Ok(())
    }

    fn run_atomic(
        &mut self,
        peer: PeerId,
        atomic: &frame::Atomic,
        operands: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        match apply_atomic(atomic, operands, mem) {
            Err(status) if atomic.kind == 0 => self.push_done(peer, atomic.token, status as u8),
            Err(status) => self.refuse_reply(peer, atomic.token, status),
            Ok(earlier) => {
                let changed = AtomicOp::from_code(atomic.op) != Some(AtomicOp::AtomicRead);
                self.report_access(peer, atomic.len, changed, None);
                if atomic.kind == 0 {
                    self.push_done(peer, atomic.token, 0)
                } else {
                    self.push_reply(peer, atomic.token, Place::default(), Some(earlier), atomic.len)
                }
            }
        }
    }

    /// Fragments were received by the peer, and it grants this credit.
    fn on_ack(
        &mut self,
        peer: PeerId,
        upto: u64,
        credit: u64,
        map: &[u64],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let connection = self.connection(peer);
        if upto > connection.window.next_seq() {
            return Err(PeerFault::Frame("an acknowledgement of what was never sent"));
        }
        let was_full = !connection.window.has_room();
        if credit > connection.credit_limit {
            connection.credit_limit = credit;
        }
        while self.connection(peer).window.base() < upto {
            let base = self.connection(peer).window.base();
            self.acknowledge(peer, base, mem);
        }
        for (word, bits) in map.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let seq = upto + 1 + 64 * word as u64 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                self.acknowledge(peer, seq, mem);
            }
        }
        let connection = self.connection(peer);
        if was_full || connection.fence.is_some() {
            self.kick(peer);
        }
        Ok(())
    }

    fn acknowledge(&mut self, peer: PeerId, seq: u64, mem: &mut dyn Memory) {
        let Some(flight) = self.connection(peer).window.take(seq) else { return };
        let operation = flight.load.operation();
        if let Load::Kept { bytes, .. } = flight.load {
            self.pool.give(bytes);
        }
        if let Some(index) = operation {
            self.operations[index].pieces -= 1;
            self.try_finish(index, mem);
        }
    }
}

fn store_clipped(mem: &mut dyn Memory, posted: &Posted, offset: u64, bytes: &[u8]) {
    let room = (posted.end - posted.offset).saturating_sub(offset);
    let kept = room.min(bytes.len() as u64) as usize;
    if kept > 0 {
        mem.store(posted.place, posted.offset + offset, &bytes[..kept]);
    }
}

/// Carries out an atomic operation on registered memory; returns the earlier value.
fn apply_atomic(atomic: &frame::Atomic, operands: &[u8], mem: &mut dyn Memory) -> Result<Vec<u8>, Status> {
    let op = AtomicOp::from_code(atomic.op).ok_or(Status::Unsupported)?;
    let datatype = AtomicType::from_code(atomic.datatype).ok_or(Status::Unsupported)?;
    // No atomic is longer than its frame; a peer may claim any length.
    let len =
        usize::try_from(atomic.len).ok().filter(|len| *len <= PAYLOAD_MAX as usize).ok_or(Status::Bounds)?;
    let operand_len = if op == AtomicOp::AtomicRead { 0 } else { len };
    let kind = match atomic.kind {
        0 => AtomicKind::Update,
        1 => AtomicKind::Fetch,
        _ => AtomicKind::Compare,
    };
    let compare_len = if kind == AtomicKind::Compare { len } else { 0 };
    if !op.supports(datatype)
        || op.compares() != (kind == AtomicKind::Compare)
        || operands.len() != operand_len + compare_len
        || !len.is_multiple_of(datatype.size())
    {
        return Err(Status::Unsupported);
    }
    let access = if op == AtomicOp::AtomicRead { Access::Read } else { Access::Update };
    let place = mem.locate(RemoteRange { key: atomic.key, addr: atomic.addr, len: atomic.len }, access)?;
    let mut earlier = Vec::new();
    mem.load(place, 0, len, &mut earlier);
    let mut value = earlier.clone();
    let (operand, compare) = operands.split_at(operand_len);
    atomics::apply(op, datatype, &mut value, operand, compare);
    if op != AtomicOp::AtomicRead {
        mem.store(place, 0, &value);
    }
    Ok(earlier)
}
