//! What comes in: frames, their payload, and what they do to operations and messages.

use isthmus_wire::frame::{self, Frame, Status, flags};

use super::lanes::PeerFault;
use super::state::{Early, Inbound, Kind, Lane, LaneState, Load, Micros, Operation, Stage, Stream, Target};
use super::{Engine, LaneId};
use crate::atomics;
use crate::matching::Posted;
use crate::memory::{Access, Memory, Place};
use crate::window::Receipt;
use crate::{
    AtomicKind, AtomicOp, AtomicType, Channel, Completion, CompletionKind, Level, OpError, Options, PeerId,
    RemoteRange,
};

/// Fragments after which an acknowledgement no longer waits for company.
const ACK_EVERY: u32 = 16;
/// Most messages that may overtake one that is missing.
const EARLY_MAX: usize = 1 << 16;

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
        let target = self.target(peer, frame, payload.len() as u64, mem)?;
        let len = payload.len() as u64;
        let target = match target {
            Target::Bounce { inbound, offset, mut bytes } => {
                bytes.extend_from_slice(payload);
                Target::Bounce { inbound, offset, bytes }
            }
            Target::Direct { place, offset, keep, inbound } => {
                mem.store(place, offset, &payload[..keep.min(len) as usize]);
                Target::Direct { place, offset, keep, inbound }
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
        let Some(peer) = self.speaker(now, lane, frame, mem)? else { return Ok(()) };
        let len = u64::from(frame.payload_len());
        if matches!(frame, Frame::Atomic(_)) {
            return Err(PeerFault::Frame("an atomic operation's operands are too long"));
        }
        let target = self.target(peer, frame, len, mem)?;
        let stream = Stream { frame: *frame, target, done: 0, len, busy: false };
        self.lane_mut(lane)?.stream = Some(stream);
        Ok(())
    }

    /// Where the next payload bytes of the lane's fragment may be put without the
    /// engine; the lane counts as busy until [`Engine::filled`]. `None` where they must
    /// go through [`Engine::feed`].
    pub fn sink(&mut self, lane: LaneId) -> Option<Sink> {
        let stream = self.lanes.get_mut(lane.0 as usize)?.stream.as_mut()?;
        let Target::Direct { place, offset, keep, .. } = stream.target else { return None };
        let len = keep.min(stream.len).saturating_sub(stream.done);
        if len == 0 {
            return None;
        }
        stream.busy = true;
        Some(Sink { place, offset: offset + stream.done, len })
    }

    /// `n` bytes were put where [`Engine::sink`] said.
    pub fn filled(&mut self, lane: LaneId, n: u64, mem: &mut dyn Memory) -> Result<(), PeerFault> {
        let Some(stream) = self.lane_mut(lane)?.stream.as_mut() else { return Ok(()) };
        stream.busy = false;
        stream.done += n;
        self.end_stream(lane, mem)?;
        for index in std::mem::take(&mut self.lingering) {
            self.complete_inbound(index, mem);
        }
        Ok(())
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
                mem.store(*place, *offset + stream.done, &taken[..kept]);
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
        let (Some(stream), Some(peer)) = (record.stream.take_if(whole), record.peer) else { return Ok(()) };
        let peer = self.resolve(peer);
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
                self.lanes[lane.0 as usize].control.push_back(frame::Pong { id: ping.id }.into());
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
    /// fragment matches the message.
    fn target(
        &mut self,
        peer: PeerId,
        frame: &Frame,
        len: u64,
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
            Frame::Message(message) => self.target_of_message(peer, message, mem),
            Frame::More(more) => self.target_of_more(peer, more),
            Frame::Write(write) => Ok(self.target_of_write(peer, write, mem)),
            Frame::Reply(reply) => self.target_of_reply(peer, reply, len),
            _ => Ok(Target::Discard),
        }
    }

    fn target_of_message(
        &mut self,
        peer: PeerId,
        message: &frame::Message,
        mem: &mut dyn Memory,
    ) -> Result<Target, PeerFault> {
        if message.eager > message.total || u64::from(message.payload) > message.eager {
            return Err(PeerFault::Frame("a message whose lengths contradict each other"));
        }
        let index = self.inbound_entry(peer, message.seq);
        let inbound = &mut self.inbounds[index];
        if matches!(inbound.stage, Stage::Orphan) {
            if inbound.parts.iter().any(|(offset, bytes)| offset + bytes.len() as u64 > message.total) {
                return Err(PeerFault::Frame("a fragment beyond the end of its message"));
            }
            let tagged = message.flags & flags::TAGGED != 0;
            inbound.channel = if tagged { Channel::Tagged } else { Channel::Untagged };
            inbound.tag = message.tag;
            inbound.data = (message.flags & flags::DATA != 0).then_some(message.data);
            inbound.total = message.total;
            inbound.eager = message.eager;
            inbound.needed = message.total;
            inbound.wants_accept = message.flags & flags::ACCEPT != 0;
            inbound.stage = Stage::Early;
            self.in_order(peer, message.order, Early::Message(index), mem)?;
        }
        Ok(self.target_in(index, 0))
    }

    fn target_of_more(&mut self, peer: PeerId, more: &frame::More) -> Result<Target, PeerFault> {
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
                offset: posted.offset + offset,
                keep: (posted.end - posted.offset).saturating_sub(offset),
                inbound: Some(index),
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
        let index = self.inbounds.insert(Inbound {
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
        });
        self.connection(peer).incoming.insert(message, index);
        index
    }

    /// Presents messages and atomics in the order in which they were sent.
    fn in_order(
        &mut self,
        peer: PeerId,
        order: u64,
        early: Early,
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let connection = self.connection(peer);
        if order < connection.expected_order || connection.early.len() >= EARLY_MAX {
            return Err(PeerFault::Frame("a message out of any order"));
        }
        if order > connection.expected_order {
            connection.early.insert(order, early);
            return Ok(());
        }
        let mut next = Some(early);
        while let Some(early) = next {
            self.connection(peer).expected_order += 1;
            match early {
                Early::Message(index) => self.present(index, mem),
                Early::Atomic(atomic, operands) => {
                    self.run_atomic(peer, &atomic, &operands, mem);
                    self.pool.give(operands);
                }
            }
            let connection = self.connection(peer);
            next = connection.early.remove(&connection.expected_order);
        }
        Ok(())
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
                self.matcher.add_unexpected(channel, peer, tag, index);
            }
        }
    }

    /// A message and a receive have found each other.
    pub(super) fn match_inbound(&mut self, index: usize, posted: Posted, last: bool, mem: &mut dyn Memory) {
        if let Some(multi) = posted.multi {
            self.multi_buffers[multi.buffer].users += 1;
        }
        let inbound = &mut self.inbounds[index];
        inbound.stage = Stage::Matched { posted, last };
        let room = posted.end - posted.offset;
        for (offset, bytes) in std::mem::take(&mut inbound.parts) {
            store_clipped(mem, posted.place, posted.offset, room, offset, &bytes);
            self.pool.give(bytes);
        }
        self.settle(index, room, mem);
    }

    /// Nothing more is decided about a message: its credit goes back, and its sender
    /// learns how much is wanted.
    pub(super) fn settle(&mut self, index: usize, room: u64, mem: &mut dyn Memory) {
        let inbound = &mut self.inbounds[index];
        let (peer, message, eager) = (inbound.peer, inbound.message, inbound.eager);
        let wanted = inbound.total.min(room);
        inbound.needed = if eager < inbound.total { wanted.max(eager) } else { inbound.total };
        let answer = eager < inbound.total || inbound.wants_accept;
        for (_, bytes) in std::mem::take(&mut inbound.parts) {
            self.pool.give(bytes);
        }
        self.return_credit(peer, eager);
        let connection = self.connection(peer);
        if let (Some(error), true) = (connection.failed.clone(), eager < self.inbounds[index].total) {
            return self.break_inbound(index, &error, mem);
        }
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

    fn target_of_write(&mut self, peer: PeerId, write: &frame::Write, mem: &mut dyn Memory) -> Target {
        let range = RemoteRange { key: write.key, addr: write.addr, len: write.total };
        let end = write.offset.checked_add(u64::from(write.payload));
        let located = match end {
            Some(end) if end <= write.total => mem.locate(range, Access::Write),
            _ => Err(Status::Bounds),
        };
        match located {
            Ok(place) => {
                Target::Direct { place, offset: write.offset, keep: u64::from(write.payload), inbound: None }
            }
            Err(status) => {
                self.connection(peer).writes.entry(write.token).or_default().status = status as u8;
                Target::Discard
            }
        }
    }

    fn target_of_reply(&mut self, peer: PeerId, reply: &frame::Reply, len: u64) -> Result<Target, PeerFault> {
        let Some(index) = self.by_token(peer, reply.token) else { return Ok(Target::Discard) };
        let operation = &self.operations[index];
        if !matches!(operation.kind, Kind::Read { .. } | Kind::Atomic { .. })
            || reply.offset.checked_add(len).is_none_or(|end| end > operation.total)
        {
            return Err(PeerFault::Frame("an answer that nobody asked for"));
        }
        Ok(Target::Direct { place: operation.place, offset: reply.offset, keep: len, inbound: None })
    }

    fn by_token(&self, peer: PeerId, token: u64) -> Option<usize> {
        let index = (token & u64::from(u32::MAX)) as usize;
        let operation = self.operations.get(index)?;
        (operation.token() == token && operation.peer == peer).then_some(index)
    }

    /// A fragment is complete: notes it as received and does what it says.
    fn end_fragment(
        &mut self,
        peer: PeerId,
        frame: &Frame,
        target: Target,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let Some(seq) = frame.seq() else { return Ok(()) };
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
                self.on_part(peer, message.seq, 0, u64::from(message.payload), target, mem)
            }
            Frame::More(more) => {
                self.on_part(peer, more.message, more.offset, u64::from(more.payload), target, mem)
            }
            Frame::Accept(accept) => self.on_accept(peer, accept, mem),
            Frame::Done(done) => self.on_done(peer, done, mem),
            Frame::Write(write) => self.on_write(peer, write),
            Frame::Read(read) => self.on_read(peer, read, mem),
            Frame::Reply(reply) => self.on_reply(peer, reply, mem),
            Frame::Atomic(atomic) => self.on_atomic(peer, atomic, payload, mem)?,
            _ => {}
        }
        Ok(())
    }

    fn owe_ack(&mut self, peer: PeerId) {
        let connection = self.connection(peer);
        connection.unacked += 1;
        let full = connection.unacked >= ACK_EVERY;
        if !connection.ack_owed {
            connection.ack_owed = true;
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
    ) {
        let Some(&index) = self.connection(peer).incoming.get(&message) else { return };
        let inbound = &mut self.inbounds[index];
        inbound.got += len;
        if let Target::Bounce { bytes, .. } = target {
            match inbound.stage {
                // Matched while the fragment was arriving.
                Stage::Matched { posted, .. } => {
                    store_clipped(
                        mem,
                        posted.place,
                        posted.offset,
                        posted.end - posted.offset,
                        offset,
                        &bytes,
                    );
                    self.pool.give(bytes);
                }
                Stage::Dropped => self.pool.give(bytes),
                _ if bytes.is_empty() => self.pool.give(bytes),
                _ => inbound.parts.push((offset, bytes)),
            }
        }
        self.check_inbound(index, mem);
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

    fn on_done(&mut self, peer: PeerId, done: &frame::Done, mem: &mut dyn Memory) {
        let Some(index) = self.by_token(peer, done.token) else { return };
        self.operations[index].awaiting = false;
        self.operations[index].error =
            Status::from_code(done.status).map(|status| OpError::RemoteAccess(status.text()));
        self.try_finish(index, mem);
    }

    fn push_done(&mut self, peer: PeerId, token: u64, status: u8) {
        self.connection(peer).urgent.push_back(frame::Done { connection: 0, seq: 0, token, status }.into());
        self.kick(peer);
    }

    fn on_write(&mut self, peer: PeerId, write: &frame::Write) {
        let writes = &mut self.connection(peer).writes;
        let incoming = writes.entry(write.token).or_default();
        incoming.got += u64::from(write.payload);
        if incoming.got < write.total {
            return;
        }
        let status = incoming.status;
        writes.remove(&write.token);
        self.push_done(peer, write.token, status);
        if status == 0 {
            let data = (write.flags & flags::DATA != 0).then_some(write.data);
            self.report_access(peer, write.total, true, data);
        }
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

    fn on_read(&mut self, peer: PeerId, read: &frame::Read, mem: &mut dyn Memory) {
        let range = RemoteRange { key: read.key, addr: read.addr, len: read.len };
        match mem.locate(range, Access::Read) {
            Ok(place) => {
                self.push_reply(peer, read.token, place, None, read.len);
                self.report_access(peer, read.len, false, None);
            }
            Err(status) => self.refuse_reply(peer, read.token, status),
        }
    }

    fn refuse_reply(&mut self, peer: PeerId, token: u64, status: Status) {
        let reply =
            frame::Reply { connection: 0, seq: 0, token, offset: 0, status: status as u8, payload: 0 };
        self.connection(peer).urgent.push_back(reply.into());
        self.kick(peer);
    }

    fn push_reply(&mut self, peer: PeerId, token: u64, place: Place, owned: Option<Vec<u8>>, total: u64) {
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
        self.connection(peer).fresh.push_back(index);
        self.kick(peer);
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
        let mut operands = self.pool.take();
        operands.extend_from_slice(payload);
        self.in_order(peer, atomic.order, Early::Atomic(*atomic, operands), mem)
    }

    fn run_atomic(&mut self, peer: PeerId, atomic: &frame::Atomic, operands: &[u8], mem: &mut dyn Memory) {
        match apply_atomic(atomic, operands, mem) {
            Err(status) if atomic.kind == 0 => self.push_done(peer, atomic.token, status as u8),
            Err(status) => self.refuse_reply(peer, atomic.token, status),
            Ok(earlier) => {
                let changed = AtomicOp::from_code(atomic.op) != Some(AtomicOp::AtomicRead);
                self.report_access(peer, atomic.len, changed, None);
                if atomic.kind == 0 {
                    self.push_done(peer, atomic.token, 0);
                } else {
                    self.push_reply(peer, atomic.token, Place::default(), Some(earlier), atomic.len);
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
        let waits = self.connection(peer).fresh.front().copied();
        if was_full || waits.is_some_and(|front| self.operations[front].options.fence) {
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

fn store_clipped(mem: &mut dyn Memory, place: Place, start: u64, room: u64, offset: u64, bytes: &[u8]) {
    let kept = room.saturating_sub(offset).min(bytes.len() as u64) as usize;
    if kept > 0 {
        mem.store(place, start + offset, &bytes[..kept]);
    }
}

/// Carries out an atomic operation on registered memory; returns the earlier value.
fn apply_atomic(atomic: &frame::Atomic, operands: &[u8], mem: &mut dyn Memory) -> Result<Vec<u8>, Status> {
    let op = AtomicOp::from_code(atomic.op).ok_or(Status::Unsupported)?;
    let datatype = AtomicType::from_code(atomic.datatype).ok_or(Status::Unsupported)?;
    let len = atomic.len as usize;
    let operand_len = if op == AtomicOp::AtomicRead { 0 } else { len };
    let kind = match atomic.kind {
        0 => AtomicKind::Update,
        1 => AtomicKind::Fetch,
        _ => AtomicKind::Compare,
    };
    let compare_len = if kind == AtomicKind::Compare { len } else { 0 };
    if !op.supports(datatype)
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
    mem.store(place, 0, &value);
    Ok(earlier)
}
