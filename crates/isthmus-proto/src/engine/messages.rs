//! Incoming messages: their order, their receives, their credit.

use isthmus_wire::frame::{self, flags};

use super::Engine;
use super::gone::MESSAGE_COST;
use super::lanes::PeerFault;
use super::state::{Connection, Early, Inbound, Owner, Sender, Stage, Target};
use crate::matching::Posted;
use crate::memory::Memory;
use crate::window::{Receipt, WINDOW};
use crate::{Channel, PeerId};

/// Most unexpected messages of one peer. Count; it bounds their records, as the credit bounds their data.
const UNMATCHED_MAX: u32 = 1 << 20;

impl Connection {
    /// Whether one more unexpected message may come.
    pub(super) fn may_wait(&self) -> bool {
        self.unmatched < UNMATCHED_MAX
    }
}

impl Engine {
    pub(super) fn target_of_message(
        &mut self,
        peer: PeerId,
        message: &frame::Message,
        whole: bool,
        mem: &mut dyn Memory,
    ) -> Result<Target, PeerFault> {
        if message.eager > message.total || u64::from(message.payload) > message.eager {
            return Err(PeerFault::Frame("a message whose lengths contradict each other"));
        }
        if !self.connection(peer).may_wait() {
            return Err(PeerFault::Frame("more messages than are kept without a receive"));
        }
        let listed = self.connection(peer).traffic.incoming.get(&message.seq).copied();
        if let Some(index) = listed {
            let inbound = &self.inbounds[index];
            if !matches!(inbound.stage, Stage::Orphan) {
                return Ok(self.target_in(index, 0, message.payload));
            }
            let mut parts = inbound.parts.iter().chain(inbound.granted_parts());
            if parts.any(|(offset, bytes)| offset + bytes.len() as u64 > message.total) {
                return Err(PeerFault::Frame("a fragment beyond the end of its message"));
            }
        }
        self.check_order(peer, message.order)?;
        self.take_credit(peer, message.eager)?;
        let index = match listed {
            Some(index) => index,
            // It needs no entry by number: it has no other fragment, and this one will not count twice.
            None if whole && u64::from(message.payload) == message.total => {
                self.new_inbound(peer, message.seq)
            }
            None => self.inbound_entry(peer, message.seq),
        };
        let inbound = &mut self.inbounds[index];
        inbound.channel = Channel::of(message.flags);
        inbound.tag = message.tag;
        inbound.data = (message.flags & flags::DATA != 0).then_some(message.data);
        inbound.total = message.total;
        inbound.eager = message.eager;
        inbound.needed = message.total;
        inbound.wants_accept = message.flags & flags::ACCEPT != 0;
        inbound.asks = message.flags & flags::ANNOUNCE != 0;
        inbound.stage = Stage::Early;
        self.in_order(peer, message.order, Early::Message(index), mem);
        Ok(self.target_in(index, 0, message.payload))
    }

    pub(super) fn target_of_more(&mut self, peer: PeerId, more: &frame::More) -> Result<Target, PeerFault> {
        let connection = self.connection(peer);
        let unheard = more.message < more.seq && connection.received.check(more.message) == Receipt::New;
        if !unheard && !connection.traffic.incoming.contains_key(&more.message) {
            return Err(PeerFault::Frame("a fragment of no message"));
        }
        let index = self.inbound_entry(peer, more.message);
        let inbound = &self.inbounds[index];
        let known = !matches!(inbound.stage, Stage::Orphan);
        let end = more.offset.checked_add(u64::from(more.payload));
        if end.is_none_or(|end| known && end > inbound.total) {
            return Err(PeerFault::Frame("a fragment beyond the end of its message"));
        }
        Ok(self.target_in(index, more.offset, more.payload))
    }

    pub(super) fn target_in(&mut self, index: usize, offset: u64, payload: u32) -> Target {
        let Some(inbound) = self.inbounds.get(index) else { return Target::Discard };
        match inbound.stage {
            Stage::Matched { posted, .. } => Target::Direct {
                place: posted.place,
                offset: posted.offset.saturating_add(offset),
                keep: (posted.end - posted.offset).saturating_sub(offset),
                owner: Owner::Message(index),
            },
            Stage::Dropped => Target::Discard,
            _ => Target::Bounce { inbound: index, offset, bytes: self.pool.take(payload as usize) },
        }
    }

    /// The record of an incoming message; its first fragment to arrive makes it.
    pub(super) fn inbound_entry(&mut self, peer: PeerId, message: u64) -> usize {
        if let Some(&index) = self.connection(peer).traffic.incoming.get(&message) {
            return index;
        }
        let index = self.new_inbound(peer, message);
        self.connection(peer).traffic.incoming.insert(message, index);
        index
    }

    pub(super) fn new_inbound(&mut self, peer: PeerId, message: u64) -> usize {
        self.inbounds.insert(Inbound {
            peer,
            message,
            channel: Channel::Untagged,
            tag: 0,
            data: None,
            total: 0,
            eager: 0,
            wants_accept: false,
            asks: false,
            stage: Stage::Orphan,
            needed: u64::MAX,
            got: 0,
            parts: Vec::new(),
            granted: None,
            error: None,
            sender: Sender::Peer,
        })
    }

    /// Checks the order of a message or atomic: not one that came before, and not too far ahead.
    pub(super) fn check_order(&mut self, peer: PeerId, order: u64) -> Result<(), PeerFault> {
        let connection = self.connection(peer);
        match order.checked_sub(connection.expected_order) {
            Some(ahead) if ahead < WINDOW && !connection.traffic.early.contains_key(&order) => Ok(()),
            _ => Err(PeerFault::Frame("a message out of any order")),
        }
    }

    /// Takes credit that the peer uses. A fault if it has less.
    pub(super) fn take_credit(&mut self, peer: PeerId, bytes: u64) -> Result<(), PeerFault> {
        match self.connection(peer).credit_in.take(bytes) {
            true => Ok(()),
            false => Err(PeerFault::Frame("more data than there was credit for")),
        }
    }

    /// Matches messages and carries out atomics in the order in which they were sent. Keeps `early` if earlier ones
    /// are missing.
    pub(super) fn in_order(&mut self, peer: PeerId, order: u64, early: Early, mem: &mut dyn Memory) {
        let connection = self.connection(peer);
        if order > connection.expected_order {
            connection.traffic.early_operands += early.operands();
            connection.traffic.early.insert(order, early);
            return;
        }
        let mut next = Some(early);
        while let Some(early) = next {
            self.connection(peer).expected_order += 1;
            match early {
                Early::Message(index) => self.present(index, mem),
                Early::Atomic(atomic, operands) => {
                    // A peer that takes no answers gets none. Its lane is closed when it next asks for one.
                    let _ = self.run_atomic(peer, &atomic, &operands, mem);
                    self.pool.give(operands);
                }
            }
            let connection = self.connection(peer);
            next = connection.traffic.early.remove(&connection.expected_order);
            connection.traffic.early_operands -= next.as_ref().map_or(0, Early::operands);
        }
    }

    /// Looks for the receive of the next message in order.
    pub(super) fn present(&mut self, index: usize, mem: &mut dyn Memory) {
        let Inbound { channel, peer, tag, total, asks, .. } = self.inbounds[index];
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
                self.cut_unexpected(index);
            }
        }
        if asks {
            self.on_ask(peer);
        }
    }

    /// Delivers a message to the receive that it matched.
    pub(super) fn match_inbound(&mut self, index: usize, posted: Posted, last: bool, mem: &mut dyn Memory) {
        if let Some(multi) = posted.multi {
            self.multi_buffers[multi.buffer].users += 1;
        }
        self.count_unposted(&posted);
        self.leave_unexpected(index);
        if let Sender::Loopback { operation } = self.inbounds[index].sender {
            return self.match_loopback(index, operation, &posted, last, mem);
        }
        let inbound = &mut self.inbounds[index];
        inbound.stage = Stage::Matched { posted, last };
        for (offset, bytes) in inbound.parts.iter().chain(inbound.granted_parts()) {
            store_clipped(mem, &posted, *offset, bytes);
        }
        self.settle(index, posted.end - posted.offset, mem);
    }

    pub(super) fn leave_unexpected(&mut self, index: usize) {
        let inbound = &self.inbounds[index];
        if matches!(inbound.stage, Stage::Unexpected) {
            let peer = inbound.peer;
            self.connection(peer).unmatched -= 1;
            self.free_of_gone(peer, MESSAGE_COST);
        }
    }

    /// A message is matched or dropped: returns its credit, and tells its sender how much of it is wanted.
    pub(super) fn settle(&mut self, index: usize, room: u64, mem: &mut dyn Memory) {
        let inbound = &mut self.inbounds[index];
        let (peer, message, eager) = (inbound.peer, inbound.message, inbound.eager);
        let wanted = inbound.total.min(room);
        inbound.needed = if eager < inbound.total { wanted.max(eager) } else { inbound.total };
        let answer = eager < inbound.total || inbound.wants_accept;
        let kept = inbound.granted_parts().iter();
        inbound.got += kept.map(|(offset, bytes)| inbound.counted(*offset, bytes.len() as u64)).sum::<u64>();
        let from = inbound.resumed_from();
        let missing = inbound.got < inbound.needed;
        self.free_parts(index);
        if let Some(error) = self.connection(peer).trouble.failed.clone() {
            return match missing {
                true => self.break_inbound(index, &error, mem),
                false => self.complete_inbound(index, mem),
            };
        }
        self.return_credit(peer, eager);
        if answer {
            let accept = match from {
                None => frame::Accept { connection: 0, seq: 0, message, wanted }.into(),
                Some(from) => frame::Resume { connection: 0, seq: 0, message, from, wanted }.into(),
            };
            self.connection(peer).traffic.urgent.push_back(accept);
            self.kick(peer);
        }
        self.check_inbound(index, mem);
    }

    pub(super) fn check_inbound(&mut self, index: usize, mem: &mut dyn Memory) {
        let inbound = &self.inbounds[index];
        if inbound.got >= inbound.needed && matches!(inbound.stage, Stage::Matched { .. } | Stage::Dropped) {
            self.complete_inbound(index, mem);
        }
    }

    /// Takes in a complete fragment of a message.
    pub(super) fn on_part(
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
            _ => self.connection(peer).traffic.incoming.get(&message).copied(),
        };
        let ours = |index: &usize| {
            self.inbounds
                .get(*index)
                .is_some_and(|inbound| (inbound.peer, inbound.message) == (peer, message))
        };
        let Some(index) = listed.filter(ours) else { return Ok(()) };
        self.count_inflow(peer, len);
        let inbound = &mut self.inbounds[index];
        inbound.got += len;
        if let Target::Bounce { bytes, .. } = target {
            match inbound.stage {
                // It was matched while the fragment was arriving.
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

    /// Keeps data that has no receive yet. A fault beyond the credit.
    pub(super) fn keep_part(
        &mut self,
        peer: PeerId,
        index: usize,
        offset: u64,
        bytes: Vec<u8>,
    ) -> Result<(), PeerFault> {
        let credit = &mut self.connection(peer).credit_in;
        if !credit.has_room(bytes.len() as u64) {
            return Err(PeerFault::Frame("more data ahead of receives than there was credit for"));
        }
        credit.hold(bytes.len() as u64);
        self.inbounds[index].parts.push((offset, bytes));
        Ok(())
    }

    pub(super) fn on_accept(&mut self, peer: PeerId, accept: &frame::Accept, mem: &mut dyn Memory) {
        let Some(index) = self.connection(peer).traffic.unaccepted.remove(&accept.message) else { return };
        let operation = &mut self.operations[index];
        let waiting = operation.sent >= operation.allowed;
        let granted = operation.granted_before > 0;
        let least = if granted { operation.sent } else { operation.eager };
        operation.limit = accept.wanted.min(operation.total).max(least);
        operation.allowed = operation.limit;
        operation.awaiting = false;
        let more = operation.sent < operation.limit;
        let (heard, total) = (operation.heard, operation.total);
        if granted {
            // The receiver may want less than was already queued.
            let in_line = !waiting && !more;
            self.end_granted(peer, index, total, in_line);
        } else {
            self.on_message_accepted(peer, heard);
        }
        if waiting && more {
            self.enqueue_accepted(peer, index);
            self.kick(peer);
        }
        self.try_finish(index, mem);
    }
}

pub(super) fn store_clipped(mem: &mut dyn Memory, posted: &Posted, offset: u64, bytes: &[u8]) {
    let room = (posted.end - posted.offset).saturating_sub(offset);
    let kept = room.min(bytes.len() as u64) as usize;
    if kept > 0 {
        mem.store(posted.place, posted.offset + offset, &bytes[..kept]);
    }
}
