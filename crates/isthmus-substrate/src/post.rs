//! Posts operations to the engines, and takes in their completions.

use isthmus_io::{Endpoint as Engine, PostError};
use isthmus_proto::{
    Channel, Completion, CompletionKind, Fence, Level as When, Micros, Options, PeerId, RecvRequest,
    RemoteRange, RmaRequest, SendRequest, Transfer,
};
use isthmus_wire::conversation::{MemoryHandle, Subject};
use std::io::IoSlice;
use std::net::SocketAddr;

use crate::buffers::Buffers;
use crate::event::Connection;
use crate::inner::{HeldMemory, Inner, RECEIVE, State};
use crate::memory::{NO_KEY, Region};
use crate::ports::{Slot, peer_at, port_of, within};
use crate::talk::{Lane, OpId, Outgoing, Parcel, SendPath};
use crate::{Error, RemoteOptions, SendOptions};

/// Limit on the number of pieces of one buffer that one engine post takes: the limit of the engine.
const PIECES_MAX: usize = isthmus_io::Endpoint::IOV_MAX;

/// An operation that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    pub(crate) op: OpId,
    pub(crate) peer: PeerId,
}

fn options(op: OpId) -> Options {
    Options { context: op.to_bits(), notify: true, level: When::Delivery, ..Options::default() }
}

impl Inner {
    fn engine_of(&self, peer: PeerId) -> &Engine {
        &self.ports[port_of(peer)].engine
    }

    /// Lends the engine a buffer, for the next message of any peer.
    pub(crate) fn post_buffer(&self, port: usize, buffers: &Buffers, slot: u32) -> Result<(), PostError> {
        let piece = libc::iovec { iov_base: buffers.address(slot).as_ptr().cast(), iov_len: buffers.len() };
        let request = RecvRequest {
            source: None,
            channel: Channel::Tagged,
            tag: 0,
            ignore: u64::MAX,
            multi: None,
            options: Options { context: RECEIVE | u64::from(slot), notify: true, ..Options::default() },
        };
        // SAFETY: the buffer lives until the engine is closed, and nobody touches it until it
        // has come back from there.
        unsafe { self.ports[port].engine.recv(&request, &[piece]) }
    }

    /// Sends a copy of a control message.
    pub(crate) fn post_copy(
        &self,
        op: OpId,
        peer: PeerId,
        tag: u64,
        data: u64,
        bytes: &[u8],
    ) -> Result<(), PostError> {
        let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let options = Options { inject: true, ..options(op) };
        let request =
            SendRequest { peer: within(peer), channel: Channel::Tagged, tag, data: Some(data), options };
        // SAFETY: the engine copies it within the call.
        unsafe { self.engine_of(peer).send(&request, &[piece]) }
    }

    /// Pings a peer: writes nothing to [`NO_KEY`], which any living endpoint refuses, whatever its program does.
    pub(crate) fn post_ping(&self, op: OpId, peer: PeerId) -> Result<(), PostError> {
        let remote = RemoteRange { key: NO_KEY, addr: 0, len: 0 };
        let request = RmaRequest { peer: within(peer), remote, data: None, options: options(op) };
        // SAFETY: there is no buffer.
        unsafe { self.engine_of(peer).write(&request, &[]) }
    }

    /// Sends a message of the program: copied within the call, or kept as `held`. Returns the operation to wait for, if
    /// it is blocking.
    ///
    /// # Safety
    /// Unless copied, the pieces stay valid and unchanged until the message's end.
    pub(crate) unsafe fn send(
        &self,
        to: Connection,
        pieces: &[libc::iovec],
        how: &SendOptions,
        held: HeldMemory,
        copied: bool,
    ) -> Result<Option<Awaited>, Error> {
        let len = pieces.iter().map(|piece| piece.iov_len as u64).sum();
        let mut state = self.open_state()?;
        let id = self.id(to)?;
        let lent = !copied && matches!(&held, HeldMemory::Bytes(bytes) if bytes.is_empty());
        let SendOptions { context: word, silent, blocking, unordered, .. } = *how;
        let message = Outgoing { len, word, silent, blocking, lent, unordered };
        self.decide_on_datagrams(&mut state, id);
        let way = state.talk.send(self.now(), id, &message)?;
        let lane = match way {
            SendPath::Reliable(lane) => lane,
            SendPath::Lossy(lane) => {
                // The message is complete already, so the engine must have a copy.
                // SAFETY: the caller's pieces are valid during the call.
                unsafe { self.post_message(&mut state, lane, pieces, true, how) };
                self.flush(&mut state);
                return Ok(None);
            }
            SendPath::Udp { peer, port, header } => {
                let ip = self.peer_address(peer).locator.ip();
                if let Some(datagrams) = &mut state.ports[port_of(peer)].datagrams {
                    // SAFETY: as above.
                    let pieces: Vec<_> = pieces.iter().map(|piece| unsafe { slice(piece) }).collect();
                    if datagrams.send(SocketAddr::new(ip, port), header, &pieces) {
                        datagrams.count_sent(within(peer), len);
                    }
                }
                self.flush(&mut state);
                return Ok(None);
            }
            SendPath::Lost => {
                self.flush(&mut state);
                return Ok(None);
            }
        };
        let (op, peer) = (lane.op, lane.peer);
        if how.blocking {
            self.await_op(&mut state, op);
        }
        if let HeldMemory::Bytes(bytes) = &held
            && !bytes.is_empty()
        {
            state.held.insert(op, held);
        }
        // SAFETY: by this function's contract.
        unsafe { self.post_message(&mut state, lane, pieces, copied, how) };
        self.flush(&mut state);
        Ok(how.blocking.then_some(Awaited { op, peer }))
    }

    /// # Safety
    /// As for [`Inner::send`].
    unsafe fn post_message(
        &self,
        state: &mut State,
        lane: Lane,
        pieces: &[libc::iovec],
        copied: bool,
        how: &SendOptions,
    ) {
        let gathered;
        let mut one = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
        let mut pieces = pieces;
        let mut inject = copied;
        if pieces.len() > PIECES_MAX {
            // SAFETY: valid during the call.
            gathered = pieces.iter().flat_map(|piece| unsafe { slice(piece) }.to_vec()).collect::<Vec<u8>>();
            one[0] = libc::iovec { iov_base: gathered.as_ptr().cast_mut().cast(), iov_len: gathered.len() };
            (pieces, inject) = (&one, true);
        }
        // The default means that the settings decide.
        let transfer = Some(how.transfer).filter(|asked| *asked != Transfer::default());
        let service = Some(lane.level);
        let options = Options { inject, transfer, service, ..options(lane.op) };
        let request = SendRequest {
            peer: within(lane.peer),
            channel: Channel::Tagged,
            tag: lane.tag,
            data: Some(lane.data),
            options,
        };
        // SAFETY: copied within the call, or valid until the end by this function's contract.
        let posted = unsafe { self.engine_of(lane.peer).send(&request, pieces) };
        if let Err(error) = posted {
            state.held.remove(&lane.op);
            let error = isthmus_proto::OpError::Unreachable(error.to_string());
            let now = self.now();
            state.talk.withdraw(now, lane.op, &error);
        }
    }

    /// Writes or reads remote memory. Returns the operation to wait for, if it is blocking.
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub(crate) fn remote(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        how: &RemoteOptions<'_>,
        write: bool,
    ) -> Result<Option<Awaited>, Error> {
        let mut state = self.open_state()?;
        let id = self.id(to)?;
        let (piece, in_use) = local.piece(u64::from(self.serial), local_offset, len, !write)?;
        let silent = how.silent && !how.blocking;
        let plan = match write {
            true => state.talk.write(self.now(), id, how.context, silent, how.message)?,
            false => state.talk.read(self.now(), id, how.context, silent, how.message)?,
        };
        let range = RemoteRange { key: remote.key, addr: remote_offset, len };
        let options = Options { fence: if how.fence { Fence::All } else { Fence::None }, ..options(plan.op) };
        let request = RmaRequest { peer: within(plan.peer), remote: range, data: plan.data, options };
        if how.blocking {
            self.await_op(&mut state, plan.op);
        }
        state.held.insert(plan.op, HeldMemory::Region(in_use));
        let engine = self.engine_of(plan.peer);
        // SAFETY: the region is held until the operation's end.
        let posted = unsafe {
            match write {
                true => engine.write(&request, &[piece]),
                false => engine.read(&request, &[piece]),
            }
        };
        if let Err(error) = posted {
            state.held.remove(&plan.op);
            let error = isthmus_proto::OpError::Unreachable(error.to_string());
            let now = self.now();
            state.talk.withdraw(now, plan.op, &error);
        }
        self.flush(&mut state);
        Ok(how.blocking.then_some(Awaited { op: plan.op, peer: plan.peer }))
    }

    /// Takes in a completion of an engine: an operation has ended, or a peer has accessed our memory.
    pub(crate) fn take_completion(&self, state: &mut State, now: Micros, port: usize, done: &Completion) {
        let peer = done.peer.and_then(|peer| peer_at(port, peer).ok());
        match done.kind {
            CompletionKind::Recv(_) => self.take_message(state, now, port, peer, done),
            CompletionKind::Send(_) | CompletionKind::Write | CompletionKind::Read => {
                let op = OpId::from_bits(done.context);
                state.held.remove(&op);
                state.talk.on_end(now, op, done.error.as_ref().map_or(Ok(()), Err));
            }
            CompletionKind::RemoteWrite => {
                if let (Some(peer), Some(ticket)) = (peer, done.data) {
                    state.talk.on_written(peer, ticket);
                }
            }
            CompletionKind::RemoteAccess { .. }
            | CompletionKind::Atomic(_)
            | CompletionKind::Peek
            | CompletionKind::SendLost(_)
            | CompletionKind::BufferReleased => {}
        }
    }

    fn take_message(
        &self,
        state: &mut State,
        now: Micros,
        port: usize,
        peer: Option<PeerId>,
        done: &Completion,
    ) {
        let slot = (done.context & !RECEIVE) as u32;
        let subject = Subject::from_tag(done.tag).filter(|_| done.error.is_none());
        let parcel = Parcel { slot: Slot::Lent { port, slot }.to_bits(), len: done.len as u32 };
        match (subject, peer) {
            (Some(Subject::Letter), Some(peer)) => {
                let letter = state.ports[port].buffers.bytes(slot, parcel.len).to_vec();
                state.talk.on_letter(now, peer, &letter);
                state.talk.drop_parcel(parcel);
            }
            (Some(subject), Some(peer)) => {
                state.talk.on_message(now, peer, subject, done.data.unwrap_or(0), parcel);
                if matches!(subject, Subject::Remote(_)) {
                    // If there is no memory for another buffer, the next sender waits.
                    let _ = self.fill_buffers(state);
                }
            }
            // The message is of another kind of program, was broken off, or is too long.
            _ => state.talk.drop_parcel(parcel),
        }
    }
}

/// # Safety
/// The piece is valid for reading.
unsafe fn slice<'a>(piece: &libc::iovec) -> IoSlice<'a> {
    if piece.iov_len == 0 {
        return IoSlice::new(&[]);
    }
    // SAFETY: by this function's contract.
    IoSlice::new(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) })
}
