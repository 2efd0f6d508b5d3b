//! The data of messages whose receives were announced (`announce.rs`). All of it goes at once, without credit.
//!
//! Such a message begins with an empty first fragment, as in rendezvous; its data follows in Granted fragments. Once a
//! receive has matched, the data goes to its buffer, and the receiver answers Accept as usual. Before that, the
//! receiver keeps only a little of the data (`KEPT_MAX`, 1 MiB): data that a faster lane brought before its message or
//! earlier ones. It drops other data, and everything behind that. When a receive matches, it answers Resume, and the
//! sender sends the dropped part again.

use isthmus_wire::frame;

use super::Engine;
use super::lanes::PeerFault;
use super::messages::store_clipped;
use super::state::{Connection, Inbound, Owner, Stage, Target};
use crate::PeerId;
use crate::memory::Memory;
use crate::window::Receipt;

/// Most data without credit that is kept of one peer, for messages that are not matched yet. Bytes; also limited by the
/// peer's credit. It covers the difference between fast and slow lanes.
const KEPT_MAX: u64 = 1 << 20;

/// The data of a message's Granted fragments that came before its receive matched.
#[derive(Debug)]
pub(crate) struct Granted {
    /// Everything from this offset on was or will be dropped. Bytes; `u64::MAX`: nothing.
    cut: u64,
    /// The data kept: offsets and bytes.
    parts: Vec<(u64, Vec<u8>)>,
}

impl Default for Granted {
    fn default() -> Self {
        Self { cut: u64::MAX, parts: Vec::new() }
    }
}

impl Granted {
    pub(super) fn take_parts(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.parts)
    }
}

impl Inbound {
    fn cut(&self) -> u64 {
        self.granted.as_ref().map_or(u64::MAX, |granted| granted.cut)
    }

    /// The offset from which the message has to be sent again, if any. Bytes.
    pub(super) fn resumed_from(&self) -> Option<u64> {
        Some(self.cut()).filter(|cut| *cut < self.needed)
    }

    /// The data without credit that is kept of it.
    pub(super) fn granted_parts(&self) -> &[(u64, Vec<u8>)] {
        self.granted.as_ref().map_or(&[], |granted| &granted.parts)
    }

    /// Whether all of it has come.
    pub(super) fn is_whole(&self) -> bool {
        let kept = self.granted_parts().iter();
        let kept: u64 = kept.map(|(offset, bytes)| self.counted(*offset, bytes.len() as u64)).sum();
        self.got + kept >= self.needed
    }

    /// The bytes of a fragment that count: none beyond the end of the receive, and none that will come again.
    pub(super) fn counted(&self, offset: u64, len: u64) -> u64 {
        let end = self.needed.min(self.cut());
        (offset + len).min(end).saturating_sub(offset)
    }
}

impl Engine {
    /// The destination of a Granted fragment's payload.
    pub(super) fn target_of_granted(
        &mut self,
        peer: PeerId,
        granted: &frame::Granted,
    ) -> Result<Target, PeerFault> {
        let &frame::Granted { seq, message, offset, payload, .. } = granted;
        let connection = self.connection(peer);
        if !connection.traffic.incoming.contains_key(&message) {
            if message >= seq {
                return Err(PeerFault::Frame("a fragment of no message"));
            }
            if connection.received.check(message) != Receipt::New {
                // The message is complete already.
                return Ok(Target::Discard);
            }
        }
        let index = self.inbound_entry(peer, message);
        let inbound = &self.inbounds[index];
        let known = !matches!(inbound.stage, Stage::Orphan);
        let end = offset.checked_add(payload.into());
        if end.is_none_or(|end| known && end > inbound.total) {
            return Err(PeerFault::Frame("a fragment beyond the end of its message"));
        }
        if offset >= inbound.cut() {
            return Ok(Target::Discard);
        }
        let early = matches!(inbound.stage, Stage::Orphan | Stage::Early);
        let settled = matches!(inbound.stage, Stage::Matched { .. } | Stage::Dropped);
        if settled || (early && self.may_keep(peer, payload.into())) {
            return Ok(self.target_in(index, offset, payload));
        }
        self.cut(index, offset);
        Ok(Target::Discard)
    }

    /// Whether `bytes` more may be kept for messages that are not matched yet.
    fn may_keep(&mut self, peer: PeerId, bytes: u64) -> bool {
        let connection = self.connection(peer);
        let most = connection.credit_in.granted().min(KEPT_MAX);
        connection.announces.as_ref().is_some_and(|announces| announces.made.kept + bytes <= most)
    }

    /// Takes in a complete Granted fragment.
    pub(super) fn on_granted(
        &mut self,
        peer: PeerId,
        granted: &frame::Granted,
        target: Target,
        mem: &mut dyn Memory,
    ) {
        let &frame::Granted { message, offset, payload, .. } = granted;
        self.count_inflow(peer, payload.into());
        let listed = self.connection(peer).traffic.incoming.get(&message).copied();
        match (target, listed) {
            (Target::Direct { owner, .. }, Some(index)) if owner == Owner::Message(index) => {
                let inbound = &mut self.inbounds[index];
                inbound.got += inbound.counted(offset, payload.into());
                self.check_inbound(index, mem);
            }
            (Target::Bounce { bytes, .. }, Some(index)) => self.keep_granted(peer, index, offset, bytes, mem),
            (Target::Bounce { bytes, .. }, None) => self.pool.give(bytes),
            _ => {}
        }
    }

    /// Stores, keeps or drops a fragment that had no receive when it began to arrive.
    fn keep_granted(
        &mut self,
        peer: PeerId,
        index: usize,
        offset: u64,
        bytes: Vec<u8>,
        mem: &mut dyn Memory,
    ) {
        let len = bytes.len() as u64;
        let keeps = offset < self.inbounds[index].cut() && self.may_keep(peer, len);
        let inbound = &mut self.inbounds[index];
        match inbound.stage {
            Stage::Matched { posted, .. } => {
                let counted = inbound.counted(offset, len);
                inbound.got += counted;
                store_clipped(mem, &posted, offset, &bytes[..counted as usize]);
                self.pool.give(bytes);
                self.check_inbound(index, mem);
            }
            Stage::Orphan | Stage::Early if keeps => {
                inbound.granted.get_or_insert_default().parts.push((offset, bytes));
                if let Some(announces) = self.connection(peer).announces.as_deref_mut() {
                    announces.made.kept += len;
                }
            }
            Stage::Dropped => self.pool.give(bytes),
            Stage::Orphan | Stage::Early | Stage::Unexpected => {
                self.pool.give(bytes);
                self.cut(index, offset);
            }
        }
    }

    /// Drops a message's data from `offset` on. It will come again when the receiver asks for it.
    fn cut(&mut self, index: usize, offset: u64) {
        let inbound = &mut self.inbounds[index];
        let peer = inbound.peer;
        let granted = inbound.granted.get_or_insert_default();
        granted.cut = granted.cut.min(offset);
        let cut = granted.cut;
        let dropped: Vec<_> = granted.parts.extract_if(.., |(offset, _)| *offset >= cut).collect();
        self.free_granted(peer, dropped);
    }

    /// Drops the data without credit of a message that found no receive.
    pub(super) fn cut_unexpected(&mut self, index: usize) {
        let first = self.inbounds[index].granted_parts().iter().map(|(offset, _)| *offset).min();
        if let Some(offset) = first {
            self.cut(index, offset);
        }
    }

    /// Frees kept data of this peer.
    pub(super) fn free_granted(&mut self, peer: PeerId, parts: Vec<(u64, Vec<u8>)>) {
        for (_, bytes) in parts {
            if let Some(announces) = self.connection(peer).announces.as_deref_mut() {
                announces.made.kept = announces.made.kept.saturating_sub(bytes.len() as u64);
            }
            self.pool.give(bytes);
        }
    }

    /// Queues the rest of an accepted message before later messages that go by announcements. Those were queued without
    /// being asked for, and the receiver may need this one first.
    pub(super) fn enqueue_accepted(&mut self, peer: PeerId, index: usize) {
        let order = self.operations[index].order;
        let connection = self.peers[peer.0 as usize].connection.get_or_insert_with(Connection::fresh);
        let bulk = &mut connection.traffic.bulk;
        let may_wait = |other: &usize| {
            let other = &self.operations[*other];
            other.granted_before > 0 && other.order > order
        };
        let before = connection.announces.as_ref().and_then(|_| bulk.iter().position(may_wait));
        bulk.insert(before.unwrap_or(bulk.len()), index);
    }

    /// A message of `total` bytes that went by an announcement was accepted. `in_line`: it is queued, but has nothing
    /// more to send.
    pub(super) fn end_granted(&mut self, peer: PeerId, index: usize, total: u64, in_line: bool) {
        let connection = self.connection(peer);
        if let Some(announces) = connection.announces.as_deref_mut() {
            announces.known.close(total);
        }
        if in_line {
            connection.traffic.bulk.retain(|other| *other != index);
        }
    }

    /// The announced receive was not there for a message, which found another one later: sends the dropped part again.
    pub(super) fn on_resume(
        &mut self,
        peer: PeerId,
        resume: &frame::Resume,
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let traffic = &self.connection(peer).traffic;
        let Some(&index) = traffic.unaccepted.get(&resume.message) else { return Ok(()) };
        let connection = self.peers[peer.0 as usize].connection.get_or_insert_with(Connection::fresh);
        let operation = &mut self.operations[index];
        if operation.granted_before == 0 {
            return Err(PeerFault::Frame("a message is asked for again that did not go by an announcement"));
        }
        connection.traffic.unaccepted.remove(&resume.message);
        connection.traffic.bulk.retain(|other| *other != index);
        operation.granted_before = connection.window.next_seq();
        operation.limit = resume.wanted.min(operation.total);
        operation.allowed = operation.limit;
        operation.sent = resume.from.min(operation.sent).min(operation.limit);
        operation.awaiting = false;
        if let Some(announces) = connection.announces.as_deref_mut() {
            announces.known.close(operation.total);
            announces.known.distrust();
        }
        if operation.sent < operation.limit {
            self.enqueue_accepted(peer, index);
        }
        self.counters.messages_resumed += 1;
        self.kick(peer);
        self.try_finish(index, mem);
        Ok(())
    }
}
