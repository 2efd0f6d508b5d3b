//! Writes, reads and atomics of registered memory, at both ends.

use isthmus_wire::frame::{self, PAYLOAD_MAX, Status, flags};

use super::Engine;
use super::lanes::PeerFault;
use super::receive::WAITING_MAX;
use super::state::{Early, IncomingWrite, Kind, Owner, Target};
use super::transmit::OPERANDS_MAX;
use crate::atomics;
use crate::memory::{Access, BufferRef, Memory};
use crate::{
    AtomicKind, AtomicOp, AtomicType, Completion, CompletionKind, Level, OpError, Options, PeerId,
    RemoteRange,
};

/// Most operands of a peer's atomics that overtook a missing message. Bytes; twice the limit of a correct peer.
const EARLY_OPERANDS_MAX: u64 = 2 * OPERANDS_MAX;

impl Engine {
    pub(super) fn target_of_write(
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

    pub(super) fn incoming_write(
        &mut self,
        peer: PeerId,
        write: &frame::Write,
    ) -> Result<&mut IncomingWrite, PeerFault> {
        let writes = &mut self.connection(peer).traffic.writes;
        if writes.len() >= WAITING_MAX && !writes.contains_key(&write.token) {
            return Err(PeerFault::Frame("more writes than are ever under way"));
        }
        Ok(writes.entry(write.token).or_default())
    }

    pub(super) fn target_of_reply(
        &mut self,
        peer: PeerId,
        reply: &frame::Reply,
        len: u64,
    ) -> Result<Target, PeerFault> {
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

    pub(super) fn by_token(&self, peer: PeerId, token: u64) -> Option<usize> {
        let index = (token & u64::from(u32::MAX)) as usize;
        let operation = self.operations.get(index)?;
        let asked = operation.token() == token && operation.peer == peer && operation.first.is_some();
        asked.then_some(index)
    }

    pub(super) fn on_done(
        &mut self,
        peer: PeerId,
        done: &frame::Done,
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
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

    pub(super) fn push_done(&mut self, peer: PeerId, token: u64, status: u8) -> Result<(), PeerFault> {
        self.push_urgent(peer, frame::Done { connection: 0, seq: 0, token, status }.into())
    }

    pub(super) fn on_write(&mut self, peer: PeerId, write: &frame::Write) -> Result<(), PeerFault> {
        let incoming = self.incoming_write(peer, write)?;
        incoming.got += u64::from(write.payload);
        if incoming.got < write.total {
            return Ok(());
        }
        let status = incoming.status;
        self.connection(peer).traffic.writes.remove(&write.token);
        self.push_done(peer, write.token, status)?;
        if status == 0 {
            let data = (write.flags & flags::DATA != 0).then_some(write.data);
            let kind = match data {
                Some(_) => CompletionKind::RemoteWrite,
                None => CompletionKind::RemoteAccess { wrote: true, fetched: false },
            };
            let range = RemoteRange { key: write.key, addr: write.addr, len: write.total };
            self.report_access(peer, range, kind, data);
        }
        Ok(())
    }

    /// Reports a peer's access to this endpoint's memory, for the target's counters and completion queue.
    pub(super) fn report_access(
        &mut self,
        peer: PeerId,
        range: RemoteRange,
        kind: CompletionKind,
        data: Option<u64>,
    ) {
        self.report(Completion {
            context: 0,
            notify: data.is_some(),
            kind,
            len: range.len,
            buffer: range.addr,
            data,
            tag: range.key,
            peer: Some(peer),
            released: false,
            error: None,
        });
    }

    pub(super) fn on_read(
        &mut self,
        peer: PeerId,
        read: &frame::Read,
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let range = RemoteRange { key: read.key, addr: read.addr, len: read.len };
        match mem.locate(range, Access::Read) {
            Ok(place) => {
                self.push_reply(peer, read.token, place, None, read.len)?;
                let kind = CompletionKind::RemoteAccess { wrote: false, fetched: true };
                self.report_access(peer, range, kind, None);
                Ok(())
            }
            Err(status) => self.refuse_reply(peer, read.token, status),
        }
    }

    pub(super) fn refuse_reply(&mut self, peer: PeerId, token: u64, status: Status) -> Result<(), PeerFault> {
        let status = status as u8;
        let reply = frame::Reply { connection: 0, seq: 0, token, offset: 0, status, payload: 0 };
        self.push_urgent(peer, reply.into())
    }

    pub(super) fn push_reply(
        &mut self,
        peer: PeerId,
        token: u64,
        place: BufferRef,
        owned: Option<Vec<u8>>,
        total: u64,
    ) -> Result<(), PeerFault> {
        if self.connection(peer).answers as usize >= WAITING_MAX {
            return Err(PeerFault::Frame("requests without taking the answers"));
        }
        let options = Options { level: Level::Delivery, ..Options::default() };
        let index = self.enter_operation(peer, Kind::Reply { token }, options, total);
        let operation = &mut self.operations[index];
        operation.place = place;
        operation.owned = owned;
        let connection = self.connection(peer);
        connection.answers += 1;
        connection.traffic.replies.push_back(index);
        self.kick(peer);
        Ok(())
    }

    pub(super) fn on_reply(&mut self, peer: PeerId, reply: &frame::Reply, mem: &mut dyn Memory) {
        let Some(index) = self.by_token(peer, reply.token) else { return };
        let operation = &mut self.operations[index];
        operation.received += u64::from(reply.payload);
        operation.error = Status::from_code(reply.status).map(|status| OpError::RemoteAccess(status.text()));
        if operation.received >= operation.total || operation.error.is_some() {
            operation.awaiting = false;
            self.try_finish(index, mem);
        }
    }

    pub(super) fn on_atomic(
        &mut self,
        peer: PeerId,
        atomic: &frame::Atomic,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        self.check_order(peer, atomic.order)?;
        let connection = self.connection(peer);
        let kept = connection.traffic.early_operands + payload.len() as u64;
        if kept > EARLY_OPERANDS_MAX || connection.traffic.urgent.len() >= WAITING_MAX {
            return Err(PeerFault::Frame("more atomic operations than are kept"));
        }
        let mut operands = self.pool.take(payload.len());
        operands.extend_from_slice(payload);
        self.in_order(peer, atomic.order, Early::Atomic(*atomic, operands), mem);
        Ok(())
    }

    pub(super) fn run_atomic(
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
                let range = RemoteRange { key: atomic.key, addr: atomic.addr, len: atomic.len };
                self.report_access(peer, range, access_of(atomic), None);
                if atomic.kind == 0 {
                    self.push_done(peer, atomic.token, 0)
                } else {
                    self.push_reply(peer, atomic.token, BufferRef::default(), Some(earlier), atomic.len)
                }
            }
        }
    }
}

/// The completion that an atomic operation has at its target.
pub(super) fn access_of(atomic: &frame::Atomic) -> CompletionKind {
    let wrote = AtomicOp::from_code(atomic.op) != Some(AtomicOp::AtomicRead);
    CompletionKind::RemoteAccess { wrote, fetched: atomic.kind != AtomicKind::Update.code() }
}

/// Carries out an atomic operation on registered memory; returns the earlier value.
pub(super) fn apply_atomic(
    atomic: &frame::Atomic,
    operands: &[u8],
    mem: &mut dyn Memory,
) -> Result<Vec<u8>, Status> {
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
