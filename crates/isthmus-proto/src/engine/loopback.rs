//! Operations that an endpoint addresses to itself.
//!
//! They use no lane. A write, read or atomic takes effect, and a message is matched, before the call that posts it
//! returns. So they take effect in posting order, before anything that the program posts next.
//! Programs rely on this: mpi4py's MCS lock resets a word of its own rank with `MPI_Accumulate`, joins the queue at
//! another rank, and flushes only that rank. (MPICH keeps such accumulates from the provider: docs/ordering.md.)
//!
//! A message without a receive waits as unexpected. As long as the credit of a peer would last, its data is copied and
//! the send is complete. Beyond that, or if the send asks for a match, the data stays in the sender's buffer, and the
//! send completes when a receive takes the message. A fence has nothing to wait for.

use isthmus_wire::{Address, frame};

use super::Engine;
use super::messages::store_clipped;
use super::remote::{access_of, apply_atomic};
use super::state::{Kind, Sender, Stage};
use crate::matching::Posted;
use crate::memory::{Access, BufferRef, Memory};
use crate::{AtomicKind, AtomicOp, AtomicType, Channel, CompletionKind, Level, OpError, PeerId, RemoteRange};

/// Stands for the number of the first fragment: no frame carries these messages.
const UNNUMBERED: u64 = u64::MAX;

impl Engine {
    /// Whether this peer is the endpoint itself.
    #[inline]
    pub(super) fn is_self(&self, peer: PeerId) -> bool {
        self.peers.get(peer.0 as usize).is_some_and(|record| record.address == self.config.address)
    }

    /// Whether this wildcard address names one of the endpoint's own locators.
    pub(super) fn names_self(&self, address: &Address) -> bool {
        let own = [self.config.address.locator];
        let mut locators = own.iter().chain(&self.config.also);
        address.is_wildcard() && !self.is_routed(address) && locators.any(|own| *own == address.locator)
    }

    /// Carries out an operation that was posted to this endpoint itself.
    pub(super) fn loop_back(&mut self, index: usize, mem: &mut dyn Memory) {
        let range = |key, addr, len| RemoteRange { key, addr, len };
        let len = self.operations[index].total;
        match self.operations[index].kind {
            Kind::Message { channel, tag, data } => self.loop_message(index, channel, tag, data, mem),
            Kind::Write { key, addr, data } => self.loop_write(index, range(key, addr, len), data, mem),
            Kind::Read { key, addr } => self.loop_read(index, range(key, addr, len), mem),
            Kind::Atomic { key, addr, kind, op, datatype } => {
                self.loop_atomic(index, range(key, addr, len), (kind, op, datatype), mem);
            }
            Kind::Reply { .. } => debug_assert!(false, "nobody asks this endpoint by a lane to itself"),
        }
    }

    fn loop_message(
        &mut self,
        index: usize,
        channel: Channel,
        tag: u64,
        data: Option<u64>,
        mem: &mut dyn Memory,
    ) {
        let (peer, total) = (self.operations[index].peer, self.operations[index].total);
        self.count_message(peer, total, total);
        let message = self.new_inbound(peer, UNNUMBERED);
        let inbound = &mut self.inbounds[message];
        (inbound.channel, inbound.tag, inbound.data) = (channel, tag, data);
        (inbound.total, inbound.eager, inbound.needed) = (total, total, total);
        inbound.sender = Sender::Loopback { operation: Some(index) };
        self.present(message, mem);
        // No message enters the table while this one is matched, so its slot holds this message or none.
        let waits =
            self.inbounds.get(message).is_some_and(|inbound| matches!(inbound.stage, Stage::Unexpected));
        if waits && self.operations[index].options.level != Level::Match {
            self.grant(peer);
            let connection = self.connection(peer);
            if connection.credit_in.has_room(total) {
                self.copy_loopback(message, index, mem);
            }
        }
    }

    /// Copies the data of an unexpected message, and completes its send.
    fn copy_loopback(&mut self, message: usize, index: usize, mem: &mut dyn Memory) {
        let operation = &mut self.operations[index];
        let (peer, place, total) = (operation.peer, operation.place, operation.total);
        let bytes = match operation.owned.take() {
            Some(owned) => owned,
            None => {
                let mut bytes = self.pool.take(total as usize);
                mem.load(place, 0, total as usize, &mut bytes);
                bytes
            }
        };
        self.connection(peer).credit_in.hold(total);
        let inbound = &mut self.inbounds[message];
        inbound.parts.push((0, bytes));
        inbound.sender = Sender::Loopback { operation: None };
        self.finish(index, mem);
    }

    /// Delivers a message of this endpoint's own to the receive that it matched.
    pub(super) fn match_loopback(
        &mut self,
        message: usize,
        operation: Option<usize>,
        posted: &Posted,
        last: bool,
        mem: &mut dyn Memory,
    ) {
        match operation.map(|index| &self.operations[index]) {
            None => {
                for (offset, bytes) in &self.inbounds[message].parts {
                    store_clipped(mem, posted, *offset, bytes);
                }
            }
            Some(operation) => match &operation.owned {
                Some(owned) => store_clipped(mem, posted, 0, owned),
                None => {
                    let len = operation.total.min(posted.end - posted.offset);
                    mem.copy((operation.place, 0), (posted.place, posted.offset), len);
                }
            },
        }
        let inbound = &self.inbounds[message];
        let summary = super::Summary { data: inbound.data, tag: inbound.tag, total: inbound.total };
        let (channel, peer) = (inbound.channel, inbound.peer);
        self.end_loopback(message, operation, mem);
        self.finish_receive(posted, last, &summary, channel, peer, None, mem);
    }

    /// Ends a message of this endpoint's own, and completes its send if that has not completed yet.
    pub(super) fn end_loopback(&mut self, message: usize, operation: Option<usize>, mem: &mut dyn Memory) {
        self.free_parts(message);
        self.inbounds.remove(message);
        if let Some(index) = operation {
            self.finish(index, mem);
        }
    }

    fn loop_write(&mut self, index: usize, range: RemoteRange, data: Option<u64>, mem: &mut dyn Memory) {
        let operation = &self.operations[index];
        let peer = operation.peer;
        match mem.locate(range, Access::Write) {
            Err(status) => self.operations[index].error = Some(OpError::RemoteAccess(status.text())),
            Ok(to) => {
                match &operation.owned {
                    Some(owned) if !owned.is_empty() => mem.store(to, 0, owned),
                    Some(_) => {}
                    None => mem.copy((operation.place, 0), (to, 0), range.len),
                }
                let kind = match data {
                    Some(_) => CompletionKind::RemoteWrite,
                    None => CompletionKind::RemoteAccess { wrote: true, fetched: false },
                };
                self.report_access(peer, range, kind, data);
            }
        }
        self.finish(index, mem);
    }

    fn loop_read(&mut self, index: usize, range: RemoteRange, mem: &mut dyn Memory) {
        let operation = &self.operations[index];
        let (peer, place) = (operation.peer, operation.place);
        match mem.locate(range, Access::Read) {
            Err(status) => self.operations[index].error = Some(OpError::RemoteAccess(status.text())),
            Ok(from) => {
                mem.copy((from, 0), (place, 0), range.len);
                let kind = CompletionKind::RemoteAccess { wrote: false, fetched: true };
                self.report_access(peer, range, kind, None);
            }
        }
        self.finish(index, mem);
    }

    fn loop_atomic(
        &mut self,
        index: usize,
        range: RemoteRange,
        (kind, op, datatype): (AtomicKind, AtomicOp, AtomicType),
        mem: &mut dyn Memory,
    ) {
        let operands = self.operations[index].owned.take().unwrap_or_default();
        let (peer, result): (PeerId, BufferRef) = (self.operations[index].peer, self.operations[index].place);
        let atomic = frame::Atomic {
            connection: 0,
            seq: 0,
            order: 0,
            token: 0,
            key: range.key,
            addr: range.addr,
            len: range.len,
            kind: kind.code(),
            op: op as u8,
            datatype: datatype as u8,
            payload: operands.len() as u32,
        };
        match apply_atomic(&atomic, &operands, mem) {
            Err(status) => self.operations[index].error = Some(OpError::RemoteAccess(status.text())),
            Ok(earlier) => {
                if kind != AtomicKind::Update {
                    mem.store(result, 0, &earlier);
                }
                self.report_access(peer, range, access_of(&atomic), None);
            }
        }
        self.pool.give(operands);
        self.finish(index, mem);
    }
}
