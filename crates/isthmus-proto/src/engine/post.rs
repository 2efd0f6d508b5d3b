//! Operations that the program posts.

use isthmus_wire::frame::flags;

use super::state::{Inbound, Kind, Operation, Sender, Stage};
use super::{Engine, MultiBuffer};
use crate::matching::{Multi, Posted, Wanted};
use crate::memory::{BufferRef, Memory};
use crate::{
    AtomicKind, AtomicRequest, Channel, Completion, CompletionKind, Level, OpError, Options, PeekAction,
    PeekRequest, PeerId, RecvRequest, RmaRequest, SendRequest,
};

/// Why an operation was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The peer cannot be reached from here at all.
    #[error("{0}")]
    Unreachable(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(&'static str),
}

impl Engine {
    /// Sends `total` bytes at `place`; injected data is copied before this returns.
    pub fn send(
        &mut self,
        request: &SendRequest,
        place: BufferRef,
        total: u64,
        mem: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let kind = Kind::Message { channel: request.channel, tag: request.tag, data: request.data };
        let awaiting = request.options.level == Level::Match;
        self.start(request.peer, kind, request.options, (place, None), total, awaiting, mem)
    }

    /// Writes `request.remote.len` bytes at `place` to a peer's memory.
    pub fn write(
        &mut self,
        request: &RmaRequest,
        place: BufferRef,
        mem: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let kind = Kind::Write { key: request.remote.key, addr: request.remote.addr, data: request.data };
        self.start(request.peer, kind, request.options, (place, None), request.remote.len, true, mem)
    }

    /// Reads `request.remote.len` bytes of a peer's memory to `place`.
    pub fn read(
        &mut self,
        request: &RmaRequest,
        place: BufferRef,
        mem: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let kind = Kind::Read { key: request.remote.key, addr: request.remote.addr };
        let options = Options { inject: false, ..request.options };
        self.start(request.peer, kind, options, (place, None), request.remote.len, true, mem)
    }

    /// Posts an atomic operation. `operands` has the operand, then the compare operand. The earlier value goes to
    /// `result`.
    pub fn atomic(
        &mut self,
        request: &AtomicRequest,
        operands: &[u8],
        result: BufferRef,
        mem: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        if !request.op.supports(request.datatype) {
            return Err(Refusal::Invalid("this atomic operation does not exist for this type"));
        }
        let kind = Kind::Atomic {
            key: request.remote.key,
            addr: request.remote.addr,
            kind: request.kind,
            op: request.op,
            datatype: request.datatype,
        };
        let place = if request.kind == AtomicKind::Update { BufferRef::default() } else { result };
        let options = Options { inject: false, ..request.options };
        let mut owned = self.pool.take(operands.len());
        owned.extend_from_slice(operands);
        self.start(request.peer, kind, options, (place, Some(owned)), request.remote.len, true, mem)
    }

    #[allow(clippy::too_many_arguments, reason = "one record's fields, from four callers")]
    fn start(
        &mut self,
        peer: PeerId,
        kind: Kind,
        mut options: Options,
        (mut place, mut owned): (BufferRef, Option<Vec<u8>>),
        total: u64,
        awaiting: bool,
        mem: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let peer = self.resolve(peer);
        if self.peers.get(peer.0 as usize).is_none() {
            return Err(Refusal::Invalid("no such peer"));
        }
        if self.complete_early(peer, &kind, &mut options, total) {
            place = mem.keep(place, total);
        } else if options.inject {
            let mut bytes = self.pool.take(total as usize);
            mem.load(place, 0, total as usize, &mut bytes);
            mem.release(place);
            owned = Some(bytes);
        }
        let index = self.enter_operation(peer, kind, options, total);
        let operation = &mut self.operations[index];
        operation.place = if options.inject { BufferRef::default() } else { place };
        operation.owned = owned;
        operation.awaiting = awaiting;
        if self.is_self(peer) {
            self.loop_back(index, mem);
            return Ok(());
        }
        let connection = self.connection(peer);
        match connection.trouble.failed.clone() {
            Some(error) => {
                self.operations[index].error = Some(error);
                self.finish(index, mem);
            }
            None => {
                connection.traffic.fresh.push_back(index);
                self.kick(peer);
            }
        }
        Ok(())
    }

    /// Enters a new operation on `total` bytes; returns its index.
    pub(super) fn enter_operation(
        &mut self,
        peer: PeerId,
        kind: Kind,
        options: Options,
        total: u64,
    ) -> usize {
        self.generation = self.generation.wrapping_add(1);
        let entry = self.operations.vacant_entry();
        let index = entry.key();
        entry.insert(Operation {
            peer,
            kind,
            options,
            place: BufferRef::default(),
            owned: None,
            asks: false,
            granted_before: 0,
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
            heard: None,
            generation: self.generation,
            slot: index as u32,
            posted_at: self.clock,
        });
        index
    }

    /// Posts a receive of `len` bytes at `place`.
    #[inline]
    pub fn recv(&mut self, request: &RecvRequest, place: BufferRef, len: u64, mem: &mut dyn Memory) {
        let &RecvRequest { source, channel, tag, ignore, ref options, .. } = request;
        let wanted = self.wanted(source, channel, tag, ignore);
        let waits = !self.matcher.has_unexpected(channel) && self.is_plain_source(wanted.source);
        if !waits || request.multi.is_some() {
            return self.recv_at_length(request, place, len, mem);
        }
        // The usual case has its own path: the other calls take the receive by reference, so it would be built in
        // memory and then copied.
        let (context, notify) = (options.context, options.notify);
        let number = self.number_receive();
        let posted =
            Posted { wanted, context, notify, announced: 0, place, offset: 0, end: len, multi: None, number };
        self.matcher.post(channel, posted);
    }

    #[inline]
    fn number_receive(&mut self) -> u64 {
        self.receives += 1;
        self.receives
    }

    /// Whether a receive waits for another message when the sender of its message is given up.
    pub(super) fn may_wait_again(&self, posted: &Posted) -> bool {
        self.config.receives_wait
            && posted.wanted.source.is_none()
            && posted.multi.is_none()
            && posted.number != 0
    }

    /// Posts a receive again whose message was lost. It keeps its place among the others.
    pub(super) fn wait_again(&mut self, channel: Channel, posted: Posted, mem: &mut dyn Memory) {
        match self.matcher.find_unexpected(channel, posted.wanted, true) {
            Some(inbound) => self.match_inbound(inbound, posted, true, mem),
            None => self.matcher.post_again(channel, posted),
        }
    }

    /// Like [`Engine::recv`], for any receive.
    #[cold]
    #[inline(never)]
    fn recv_at_length(&mut self, request: &RecvRequest, place: BufferRef, len: u64, mem: &mut dyn Memory) {
        let mut posted = Posted {
            wanted: self.wanted(request.source, request.channel, request.tag, request.ignore),
            context: request.options.context,
            notify: request.options.notify,
            announced: 0,
            place,
            offset: 0,
            end: len,
            multi: None,
            number: self.number_receive(),
        };
        if let Some(least) = request.multi {
            let buffer = self.multi_buffers.insert(MultiBuffer { users: 0, exhausted: false });
            posted.multi = Some(Multi { buffer, least });
            return self.post_multi(request.channel, posted, mem);
        }
        if let Some(inbound) = self.matcher.find_unexpected(request.channel, posted.wanted, true) {
            return self.match_inbound(inbound, posted, true, mem);
        }
        match self.failure_of(posted.wanted.source).cloned() {
            None => {
                posted.announced = self.announce(request.channel, &posted);
                self.matcher.post(request.channel, posted);
            }
            error => self.fail_posted(request.channel, posted, error, mem),
        }
    }

    /// Posts a multi-receive buffer, which first takes the unexpected messages that are waiting.
    fn post_multi(&mut self, channel: Channel, posted: Posted, mem: &mut dyn Memory) {
        self.matcher.post(channel, posted);
        // It is the last in the queue, so it takes a message only if no earlier buffer fits.
        while let Some(inbound) = self.matcher.find_unexpected(channel, posted.wanted, false) {
            let Inbound { peer, tag, total, .. } = self.inbounds[inbound];
            let mut released = Vec::new();
            let found = self.matcher.find_posted(channel, peer, tag, total, &mut released);
            for buffer in released {
                self.fail_posted(channel, buffer, None, mem);
            }
            let Some(found) = found else { break };
            self.matcher.find_unexpected(channel, posted.wanted, true);
            self.match_inbound(inbound, found.posted, found.last, mem);
        }
    }

    /// Why nothing more will come from this peer; `None` if it has not failed.
    fn failure_of(&self, source: Option<PeerId>) -> Option<&OpError> {
        self.peers.get(source?.0 as usize)?.connection.as_ref()?.trouble.failed.as_ref()
    }

    /// Whether a receive from this peer needs no special care: the peer has no trouble and no announcements.
    #[inline]
    fn is_plain_source(&self, source: Option<PeerId>) -> bool {
        let peer = source.and_then(|peer| self.peers.get(peer.0 as usize));
        let connection = peer.and_then(|peer| peer.connection.as_deref());
        connection.is_none_or(|connection| connection.trouble.is_absent() && connection.announces.is_none())
    }

    #[inline]
    fn wanted(&self, source: Option<PeerId>, channel: Channel, tag: u64, ignore: u64) -> Wanted {
        let source = source.map(|peer| self.resolve(peer));
        match channel {
            Channel::Tagged | Channel::Group => Wanted { source, tag, ignore },
            Channel::Untagged => Wanted { source, tag: 0, ignore: u64::MAX },
        }
    }

    /// Searches the unexpected tagged messages.
    pub fn peek(&mut self, request: &PeekRequest, mem: &mut dyn Memory) {
        let wanted = self.wanted(request.source, Channel::Tagged, request.tag, request.ignore);
        let found = self.matcher.peek(Channel::Tagged, wanted, request.action != PeekAction::Look);
        let mut completion = Completion {
            tag: request.tag,
            error: Some(OpError::NoMessage),
            ..Completion::of(CompletionKind::Peek, request.options.context, request.options.notify)
        };
        if let Some(index) = found {
            let inbound = &self.inbounds[index];
            completion.len = inbound.total;
            completion.data = inbound.data;
            completion.tag = inbound.tag;
            completion.peer = Some(inbound.peer);
            completion.error = None;
        }
        self.report(completion);
        match (found, request.action) {
            (Some(index), PeekAction::Claim) => self.claimed.push((request.options.context, index)),
            (Some(index), PeekAction::Discard) => self.drop_inbound(index, mem),
            _ => {}
        }
    }

    /// Receives, or with `discard` drops, the message that a peek claimed under the same context. False if there is
    /// none.
    pub fn claim(
        &mut self,
        request: &RecvRequest,
        place: BufferRef,
        len: u64,
        discard: bool,
        mem: &mut dyn Memory,
    ) -> bool {
        let Some(at) = self.claimed.iter().position(|(context, _)| *context == request.options.context)
        else {
            return false;
        };
        let (context, index) = self.claimed.remove(at);
        let inbound = &self.inbounds[index];
        let posted = Posted {
            wanted: Wanted { source: None, tag: inbound.tag, ignore: 0 },
            context,
            notify: request.options.notify,
            announced: 0,
            place,
            offset: 0,
            end: len,
            multi: None,
            number: 0,
        };
        if !discard {
            self.match_inbound(index, posted, true, mem);
            return true;
        }
        let summary = super::Summary { data: inbound.data, tag: inbound.tag, total: 0 };
        let peer = inbound.peer;
        self.drop_inbound(index, mem);
        self.finish_receive(&posted, true, &summary, Channel::Tagged, peer, None, mem);
        true
    }

    /// Cancels the oldest posted receive with this context. False if there is none.
    pub fn cancel(&mut self, context: u64, mem: &mut dyn Memory) -> bool {
        let Some((channel, posted)) = self.matcher.cancel(context) else { return false };
        self.withdraw(&posted);
        self.fail_posted(channel, posted, Some(OpError::Cancelled), mem);
        true
    }

    /// Copies the buffer of the message that was posted with this context, so that the program gets it back before the
    /// message is complete. False while a lane writes from it. True also if there is no such message any more.
    pub fn disown(&mut self, context: u64, mem: &mut dyn Memory) -> bool {
        let found = self.operations.iter_mut().find(|(_, operation)| {
            matches!(operation.kind, Kind::Message { .. })
                && operation.options.context == context
                && !operation.options.inject
        });
        let Some((index, operation)) = found else { return true };
        if operation.leases > 0 {
            self.recall(index);
            return false;
        }
        let mut owned = self.pool.take(operation.total as usize);
        mem.load(operation.place, 0, operation.total as usize, &mut owned);
        mem.release(operation.place);
        operation.place = BufferRef::default();
        operation.owned = Some(owned);
        operation.options.inject = true;
        true
    }

    pub(super) fn message_flags(operation: &Operation) -> u8 {
        let Kind::Message { channel, data, .. } = operation.kind else { return 0 };
        let mut bits = channel.flags();
        if data.is_some() {
            bits |= flags::DATA;
        }
        if operation.options.level == Level::Match {
            bits |= flags::ACCEPT;
        }
        if operation.asks {
            bits |= flags::ANNOUNCE;
        }
        bits
    }

    /// Drops a message that nobody will receive, and releases its sender.
    pub(super) fn drop_inbound(&mut self, index: usize, mem: &mut dyn Memory) {
        self.leave_unexpected(index);
        if let Sender::Loopback { operation } = self.inbounds[index].sender {
            return self.end_loopback(index, operation, mem);
        }
        self.inbounds[index].stage = Stage::Dropped;
        self.settle(index, 0, mem);
    }
}
