//! Outgoing frames: chooses the frame that a lane carries next, and makes it.

use std::net::SocketAddr;

use isthmus_path::thresholds::streams::SEVERAL;
use isthmus_path::{Bulk, pacing};
use isthmus_seal::Secret;
use isthmus_wire::Key;
use isthmus_wire::frame::{self, Frame};

use super::greeting::greeting_of;
use super::state::{Connection, Flight, Kind, LaneState, Load};
use super::{Action, Engine, LaneId, LaneKind};
use crate::memory::{BufferRef, Memory};
use crate::{Fence, Level, PeerId};

/// Longest payload that is copied. Bytes. The frame is kept for retransmission, so the operation can end at once.
pub(super) const COPY_MAX: u64 = 8 << 10;
/// Longest fragment if one lane carries all. Bytes.
const FRAGMENT_ALONE: u64 = 1 << 20;
/// Longest fragment if one lane carries all by TCP. Bytes. Something on the path may end each connection, such as after
/// 1 MB. Only fragments that have arrived whole by then need not be sent again, so several have to fit.
const FRAGMENT_TCP: u64 = 256 << 10;
/// Longest fragment if several lanes share the load. Bytes.
const FRAGMENT_SHARED: u64 = 128 << 10;
/// Longest fragment, and batch, if more than [`MANY_LANES`] lanes share the load. Bytes. Small, since the data of a
/// slow lane waits there while others run on.
const FRAGMENT_MANY: u64 = 64 << 10;
/// Number of lanes from which they are many. Count.
const MANY_LANES: usize = 8;
/// Longest fragment on the express lane, which is kept free for small messages (`is_express`). Bytes.
pub(super) const FRAGMENT_EXPRESS: u64 = 16 << 10;
/// Most unanswered requests (reads, writes, atomics) to a peer. Count; it bounds the peer's records of them.
pub(super) const REQUESTS_MAX: u32 = 1 << 16;
/// Most operands of unanswered atomics. Bytes. The peer keeps the operands of atomics that overtake a message.
pub(super) const OPERANDS_MAX: u64 = 16 << 20;
/// A batch is full from this size on. Bytes.
const BATCH_BYTES: u64 = 256 << 10;
/// A batch is full from this many segments on. Count; each becomes an entry of `writev`'s list.
const BATCH_SEGMENTS: usize = 32;
/// Waiting messages that are searched for a long one, to see whether there is bulk data. Count.
const AHEAD: usize = 4;

/// A piece of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// `bytes[start..end]` of the batch.
    Bytes {
        /// First byte.
        start: usize,
        /// After the last byte.
        end: usize,
    },
    /// Bytes lent by the program.
    Lent {
        /// The buffer.
        place: BufferRef,
        /// Offset in the buffer. Bytes.
        offset: u64,
        /// Length. Bytes.
        len: u64,
    },
}

/// The bytes that a lane writes next.
#[derive(Debug, Default)]
pub struct Batch {
    /// Headers and copied payload.
    pub bytes: Vec<u8>,
    /// The bytes to write, in order.
    pub segments: Vec<Segment>,
    /// If set, everything after this batch, and after the peer's greeting, is sealed with keys that come from it.
    pub secret: Option<Secret>,
    lent: u64,
}

impl Batch {
    /// Empties it, and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.segments.clear();
        self.secret = None;
        self.lent = 0;
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    fn is_full(&self, bytes: u64) -> bool {
        self.bytes.len() as u64 + self.lent >= bytes || self.segments.len() >= BATCH_SEGMENTS
    }

    /// Makes a segment of the bytes that were appended from `start` on.
    fn close_bytes(&mut self, start: usize) {
        let end = self.bytes.len();
        match self.segments.last_mut() {
            Some(Segment::Bytes { end: last, .. }) if *last == start => *last = end,
            _ => self.segments.push(Segment::Bytes { start, end }),
        }
    }

    fn push_frame(&mut self, frame: &Frame) {
        let start = self.bytes.len();
        frame.encode(&mut self.bytes);
        self.close_bytes(start);
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.close_bytes(start);
    }
}

impl Engine {
    /// The next lane that may have something to write and is not writing already.
    pub fn next_ready(&mut self) -> Option<LaneId> {
        while let Some(lane) = self.ready.pop_front() {
            let Some(record) = self.lanes.get_mut(lane.0 as usize) else { continue };
            record.queued = false;
            if record.writable {
                return Some(lane);
            }
        }
        None
    }

    /// Fills `batch`, which must be empty, with the lane's next frames. When the shell has written all of it, it
    /// calls [`Engine::written`] or [`Engine::borrowed`]. False if there is nothing.
    pub fn transmit(&mut self, lane: LaneId, batch: &mut Batch, mem: &mut dyn Memory) -> bool {
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return false };
        // Take the whole queue, so that an open lane keeps no memory for its greeting.
        let mut control = std::mem::take(&mut record.control);
        while batch.secret.is_none()
            && let Some(frame) = control.pop_front()
        {
            batch.push_frame(&frame);
            if let Some(greeting) = greeting_of(&frame, record.greeting.as_deref()) {
                batch.push_bytes(&greeting.proof);
                batch.secret = greeting.secret;
                // If we dialled the lane, the record is still needed to check the answer.
                record.greeting.take_if(|_| !record.dialled);
            }
        }
        if batch.secret.is_some() {
            record.control = control;
        } else if let (Some(peer), true) = (record.peer, record.state != LaneState::Closing) {
            let connection = self.connection(peer);
            let ours = connection.lanes[..connection.carriers()].contains(&lane);
            let owed = connection.ack.is_owed();
            let mut frames = 0;
            if connection.acks_aside(lane) {
                self.put_ack(peer, batch);
                frames += 1;
            }
            let connection = self.connection(peer);
            let most = if connection.carriers() > MANY_LANES { FRAGMENT_MANY } else { BATCH_BYTES };
            let most = most.min(self.quantum(lane));
            while ours && !batch.is_full(most) && self.next_frame(peer, lane, batch, mem) {
                frames += 1;
            }
            self.spread(peer);
            if frames > 0 {
                self.schedule_silence_check(peer);
                self.schedule_straggler_check(peer);
            }
            let alone = frames == 1 && owed && !self.connection(peer).ack.is_owed();
            self.counters.acks_alone += u64::from(alone);
        }
        let filled = !batch.is_empty();
        if filled {
            let record = &mut self.lanes[lane.0 as usize];
            (record.writable, record.filled_at) = (false, self.clock);
        }
        filled
    }

    pub(super) fn make_ready(&mut self, lane: LaneId) {
        let record = &mut self.lanes[lane.0 as usize];
        if record.writable && !record.queued {
            record.queued = true;
            self.ready.push_back(lane);
        }
    }

    /// Makes the lanes to this peer ready, or dials one, because there is something to send.
    pub(super) fn kick(&mut self, peer: PeerId) {
        let parted = self.parted;
        let connection = self.connection(peer);
        if connection.trouble.failed.is_some() || parted {
            return;
        }
        // Some lanes may have stopped. The lane that brought something last goes first, so that acknowledgements pass.
        let carriers = connection.carriers();
        if let Some(recent) = connection.recent
            && (connection.acks_aside(recent)
                || connection.stragglers.is_some() && connection.lanes[..carriers].contains(&recent))
        {
            self.make_ready(recent);
        }
        for i in 0..carriers {
            let lane = self.connection(peer).lanes[i];
            self.make_ready(lane);
        }
        let connection = self.connection(peer);
        if connection.lanes.is_empty() && connection.dialing == 0 && connection.trouble.retry_at.is_none() {
            self.dial(peer);
        }
    }

    /// The last lane on this rail that fills its path: the one that carries the rail's bulk data.
    pub(super) fn filling(&self, peer: PeerId, rail: usize) -> Option<LaneId> {
        let fills = |lane: &&LaneId| {
            self.lanes.get(lane.0 as usize).is_some_and(|lane| lane.fills_path && lane.rail == rail)
        };
        self.peers[peer.0 as usize].lanes().iter().rfind(fills).copied()
    }

    /// Whether any lane to this peer fills its path, on any rail.
    fn any_fills(&self, peer: PeerId) -> bool {
        let fills = |lane: &LaneId| self.lanes.get(lane.0 as usize).is_some_and(|lane| lane.fills_path);
        self.peers[peer.0 as usize].lanes().iter().any(fills)
    }

    /// Whether there is bulk data to send: the rest of a message that was begun, or a long message among the next
    /// [`AHEAD`]. Looking ahead finds long messages that are sent with a small one each.
    pub(super) fn has_bulk(&self, peer: PeerId) -> bool {
        let Some(connection) = &self.peers[peer.0 as usize].connection else { return false };
        let is_long = |index: &usize| self.operations.get(*index).is_some_and(|next| next.limit > COPY_MAX);
        !connection.traffic.bulk.is_empty() || connection.traffic.fresh.iter().take(AHEAD).any(is_long)
    }

    /// Dials more lanes if the peer is far and there is bulk data for them.
    pub(super) fn spread(&mut self, peer: PeerId) {
        if !self.has_bulk(peer) {
            return;
        }
        let connection = self.connection(peer);
        if !connection.is_far() || connection.trouble.spread_at.is_some() {
            return;
        }
        let fills = self.has_rails(peer) || self.any_fills(peer);
        if fills {
            // A lane that fills its path needs no help, so the number of lanes is not measured.
            let connection = self.connection(peer);
            (connection.streams, connection.stragglers) = (None, None);
        }
        let streams = if fills { self.config.streams.min(SEVERAL) } else { self.lanes_wanted(peer) };
        let connection = self.connection(peer);
        let lanes = connection.lanes.len() as u32 + connection.dialing;
        if self.has_rails(peer) {
            while self.wants_lane(peer) {
                self.dial(peer);
            }
        } else if lanes < streams && !fills {
            for _ in lanes..streams {
                self.dial(peer);
            }
        }
    }

    pub(super) fn dial(&mut self, peer: PeerId) {
        let address = self.peers[peer.0 as usize].address;
        let (locator, router, rail) = match self.router_for(peer, &address) {
            Some((locator, router)) => (locator, Some(router), 0),
            None => {
                let (locator, rail) = self.next_rail(peer);
                (locator, None, rail)
            }
        };
        self.dial_to(peer, locator, router, rail);
    }

    /// Asks the shell to dial a lane to this locator, of a router or on a rail.
    pub(super) fn dial_to(
        &mut self,
        peer: PeerId,
        locator: SocketAddr,
        router: Option<usize>,
        rail: usize,
    ) -> LaneId {
        let record = super::Lane { router, rail, ..super::Lane::new(LaneState::Dialing, Some(peer)) };
        let lane = LaneId(self.lanes.insert(record) as u32);
        self.connection(peer).dialing += 1;
        let address = self.peers[peer.0 as usize].address;
        let key = if router.is_none() { address.key } else { Key::NONE };
        self.actions.push_back(Action::Dial { lane, locator, key });
        lane
    }

    /// Appends the next frame. The order is: acknowledgement, lost fragments, short answers, answers to reads and
    /// atomics, headers of new operations, stragglers, bulk data.
    fn next_frame(&mut self, peer: PeerId, lane: LaneId, batch: &mut Batch, mem: &mut dyn Memory) -> bool {
        let connection = self.connection(peer);
        if connection.ack.is_due() || (connection.ack.is_owed() && connection.has_output()) {
            self.put_ack(peer, batch);
            return true;
        }
        if let Some(seq) = connection.traffic.again.pop_front() {
            self.put_again(peer, lane, seq, batch, mem);
            return true;
        }
        if !connection.window.has_room() {
            return false;
        }
        if let Some(frame) = connection.traffic.urgent.pop_front() {
            self.put_urgent(peer, lane, frame, batch);
            return true;
        }
        if let Some(reply) = connection.traffic.replies.pop_front() {
            self.begin_operation(peer, lane, reply, batch, mem);
            return true;
        }
        if let Some(&operation) = connection.traffic.fresh.front()
            && self.try_pass_fence(peer, operation)
            && !self.wait_for_credit(peer, operation)
        {
            self.connection(peer).traffic.fresh.pop_front();
            self.begin_operation(peer, lane, operation, batch, mem);
            return true;
        }
        let bulk = !self.connection(peer).traffic.bulk.is_empty();
        if let Some(seq) = self.find_straggler(peer, lane, bulk) {
            self.put_again(peer, lane, seq, batch, mem);
            return true;
        }
        self.put_bulk(peer, lane, batch, mem)
    }

    /// Whether the first operation in line may start. It may not while it waits at a fence, or while the peer has too
    /// many requests to answer.
    pub(super) fn try_pass_fence(&mut self, peer: PeerId, index: usize) -> bool {
        let operation = &self.operations[index];
        let (fence, request, operands) =
            (operation.options.fence, operation.is_request(), operation.operands());
        let connection = self.connection(peer);
        match fence {
            Fence::None => {}
            Fence::Remote if connection.requests > 0 => return false,
            Fence::Remote => {}
            Fence::All => {
                let before = *connection.fence.get_or_insert(connection.window.next_seq());
                if connection.active > 0 || connection.window.base() < before {
                    return false;
                }
                connection.fence = None;
            }
        }
        let room = connection.requests < REQUESTS_MAX
            && (connection.operands == 0 || connection.operands + operands <= OPERANDS_MAX);
        room || !request
    }

    fn put_ack(&mut self, peer: PeerId, batch: &mut Batch) {
        let connection = self.connection(peer);
        connection.ack.on_sent();
        let ack = connection.acknowledgement();
        batch.push_frame(&ack);
    }

    fn put_again(&mut self, peer: PeerId, lane: LaneId, seq: u64, batch: &mut Batch, mem: &mut dyn Memory) {
        let sent_at = self.clock;
        let Some(flight) = self.connection(peer).window.get_mut(seq) else { return };
        (flight.lane, flight.sent_at) = (lane, sent_at);
        match &flight.load {
            Load::Kept { bytes, .. } => batch.push_bytes(bytes),
            Load::Inline(few) => {
                batch.push_bytes(&few.message(seq).to_bytes());
                batch.push_bytes(few.payload());
            }
            &Load::Piece { operation, offset, len } => {
                self.put_piece(lane, operation, seq, offset, len, batch, mem);
            }
        }
        self.counters.fragments_resent += 1;
        self.connection(peer).counters.fragments_resent += 1;
    }

    fn put_urgent(&mut self, peer: PeerId, lane: LaneId, frame: Frame, batch: &mut Batch) {
        let sent_at = self.clock;
        let mut bytes = self.pool.take(0);
        let window = &mut self.connection(peer).window;
        with_seq(frame, window.next_seq()).encode(&mut bytes);
        batch.push_bytes(&bytes);
        window.push(Flight { lane, load: Load::Kept { bytes, operation: None }, sent_at, tries: 0 });
        self.counters.fragments_sent += 1;
    }

    /// Sends the first fragment of an operation.
    fn begin_operation(
        &mut self,
        peer: PeerId,
        lane: LaneId,
        index: usize,
        batch: &mut Batch,
        mem: &mut dyn Memory,
    ) {
        let (longest, sent_at) = (self.fragment_max(peer, lane), self.clock);
        let operation = &self.operations[index];
        let eager = match operation.kind {
            Kind::Message { channel, tag, .. } => self.eager_part(peer, index, channel, tag),
            _ => 0,
        };
        let connection = self.peers[peer.0 as usize].connection.get_or_insert_with(Connection::fresh);
        let operation = &mut self.operations[index];
        let seq = connection.window.next_seq();
        operation.first = Some(seq);
        if matches!(operation.kind, Kind::Message { .. } | Kind::Atomic { .. }) {
            operation.order = connection.next_order;
            connection.next_order += 1;
        }
        operation.allowed = match operation.kind {
            Kind::Message { .. } => {
                connection.credit_out.use_up(eager);
                if eager < operation.total || operation.options.level == Level::Match {
                    connection.traffic.unaccepted.insert(seq, index);
                }
                if operation.granted_before > 0 { operation.total } else { eager }
            }
            Kind::Write { .. } | Kind::Reply { .. } => operation.total,
            Kind::Read { .. } | Kind::Atomic { .. } => {
                operation.limit = 0;
                0
            }
        };
        operation.eager = if operation.granted_before > 0 { 0 } else { operation.allowed };
        if !matches!(operation.kind, Kind::Reply { .. }) {
            connection.active += 1;
        }
        if operation.is_request() {
            connection.requests += 1;
            connection.operands += operation.operands();
        }
        self.counters.fragments_sent += 1;
        if operation.allowed == operation.limit && operation.limit <= COPY_MAX {
            connection.counters.bytes_sent += operation.limit;
            return self.put_kept(peer, lane, index, seq, batch, mem);
        }
        let len = piece_len(operation.eager, longest);
        connection.counters.bytes_sent += u64::from(len);
        operation.sent = u64::from(len);
        operation.pieces += 1;
        let more = operation.sent < operation.allowed;
        let load = Load::Piece { operation: index, offset: 0, len };
        connection.window.push(Flight { lane, load, sent_at, tries: 0 });
        if more {
            connection.traffic.bulk.push_back(index);
        }
        self.put_piece(lane, index, seq, 0, len, batch, mem);
    }

    /// Sends a whole small operation in a frame that is kept for retransmission.
    fn put_kept(
        &mut self,
        peer: PeerId,
        lane: LaneId,
        index: usize,
        seq: u64,
        batch: &mut Batch,
        mem: &mut dyn Memory,
    ) {
        let mut bytes = self.pool.take(0);
        let operation = &mut self.operations[index];
        operation.sent = operation.limit;
        let len = match (&operation.kind, &operation.owned) {
            (Kind::Atomic { .. }, Some(operands)) => operands.len() as u64,
            _ => operation.limit,
        };
        first_frame(operation, seq, 0, len as u32).encode(&mut bytes);
        match &operation.owned {
            Some(owned) => bytes.extend_from_slice(owned),
            None => mem.load(operation.place, 0, len as usize, &mut bytes),
        }
        batch.push_bytes(&bytes);
        let local =
            matches!(operation.kind, Kind::Message { .. }) && operation.options.level == Level::Transmit;
        operation.pieces = u32::from(!local);
        let load = Load::Kept { bytes, operation: (!local).then_some(index) };
        let sent_at = self.clock;
        self.connection(peer).window.push(Flight { lane, load, sent_at, tries: 0 });
        if local {
            self.retire(index);
            self.finish(index, mem);
        }
    }

    /// Sends the next fragment of the first operation with bulk data.
    fn put_bulk(&mut self, peer: PeerId, lane: LaneId, batch: &mut Batch, mem: &mut dyn Memory) -> bool {
        let several = self.connection(peer).carriers() > 1;
        if several && self.is_express(peer, lane) {
            return false;
        }
        let (longest, sent_at) = (self.fragment_max(peer, lane), self.clock);
        let connection = self.connection(peer);
        let Some(&index) = connection.traffic.bulk.front() else { return false };
        let operation = &mut self.operations[index];
        let offset = operation.sent;
        let len = piece_len(operation.allowed - offset, longest);
        operation.sent += u64::from(len);
        operation.pieces += 1;
        let done = operation.sent >= operation.allowed;
        let connection = self.connection(peer);
        connection.counters.bytes_sent += u64::from(len);
        if done {
            connection.traffic.bulk.pop_front();
        }
        let load = Load::Piece { operation: index, offset, len };
        let seq = connection.window.push(Flight { lane, load, sent_at, tries: 0 });
        self.counters.fragments_sent += 1;
        self.put_piece(lane, index, seq, offset, len, batch, mem);
        true
    }

    #[allow(clippy::too_many_arguments, reason = "the coordinates of a fragment")]
    fn put_piece(
        &mut self,
        lane: LaneId,
        index: usize,
        seq: u64,
        offset: u64,
        len: u32,
        batch: &mut Batch,
        mem: &mut dyn Memory,
    ) {
        let operation = &mut self.operations[index];
        let frame = if operation.first == Some(seq) || !matches!(operation.kind, Kind::Message { .. }) {
            first_frame(operation, seq, offset, len)
        } else {
            let message = operation.first.unwrap_or_default();
            if seq < operation.granted_before {
                frame::Granted { connection: 0, seq, message, offset, payload: len }.into()
            } else {
                frame::More { connection: 0, seq, message, offset, payload: len }.into()
            }
        };
        batch.push_frame(&frame);
        if let Some(owned) = &operation.owned {
            batch.push_bytes(&owned[offset as usize..offset as usize + len as usize]);
        } else if u64::from(len) <= COPY_MAX || operation.place.is_registered() {
            let start = batch.bytes.len();
            mem.load(operation.place, offset, len as usize, &mut batch.bytes);
            batch.close_bytes(start);
        } else {
            batch.segments.push(Segment::Lent { place: operation.place, offset, len: u64::from(len) });
            batch.lent += u64::from(len);
            operation.leases += 1;
            self.lanes[lane.0 as usize].leases.push(index);
        }
    }

    fn fragment_max(&mut self, peer: PeerId, lane: LaneId) -> u64 {
        let most = match self.connection(peer).carriers() {
            0 | 1 if self.is_by_tcp(lane) => FRAGMENT_TCP,
            0 | 1 => FRAGMENT_ALONE,
            _ if self.is_express(peer, lane) => FRAGMENT_EXPRESS,
            lanes if lanes > MANY_LANES => FRAGMENT_MANY,
            _ => FRAGMENT_SHARED,
        };
        most.min(self.quantum(lane))
    }

    fn is_by_tcp(&self, lane: LaneId) -> bool {
        self.lanes.get(lane.0 as usize).is_some_and(|record| record.kind == LaneKind::Tcp)
    }

    /// The most that a lane takes at once because of its rate limit. Bytes.
    fn quantum(&self, lane: LaneId) -> u64 {
        self.lanes.get(lane.0 as usize).and_then(|record| record.limit).map_or(u64::MAX, pacing::quantum)
    }

    /// Whether the lane is the express lane, kept free for small messages:
    ///
    /// - Of several lanes it is the first; over several rails, the first that is not alone on its rail.
    /// - If lanes fill a rail, the last of them carries the rail's bulk data and all others there are express: more
    ///   would only compete. This happens if both ends dialled at once, or if a lossy path was given a UDP lane.
    /// - A resting lane is express if another lane carries bulk data.
    /// - Beside a lane that carries a part of the bulk data, no lane is express.
    fn is_express(&self, peer: PeerId, lane: LaneId) -> bool {
        let rail_of = |lane: &LaneId| self.lanes.get(lane.0 as usize).map(|lane| lane.rail);
        let bulk = |lane: &LaneId| self.lanes.get(lane.0 as usize).map_or(Bulk::All, |lane| lane.bulk);
        let rests = |lane: &LaneId| bulk(lane) == Bulk::None;
        let lanes = self.peers[peer.0 as usize].lanes();
        let carrying = self.peers[peer.0 as usize].connection.as_ref().map_or(0, |known| known.carriers());
        let Some(own) = rail_of(&lane) else { return false };
        if rests(&lane) {
            return lanes[..carrying].iter().any(|other| !rests(other) && !self.is_express(peer, *other));
        }
        if let Some(filling) = self.filling(peer, own) {
            return filling != lane;
        }
        if lanes[..carrying].iter().any(|other| bulk(other) != Bulk::All && rail_of(other) == Some(own)) {
            return false;
        }
        let has_company =
            |lane: &&LaneId| lanes.iter().filter(|other| rail_of(other) == rail_of(lane)).count() > 1;
        lanes.iter().find(has_company) == Some(&lane)
    }
}

/// Length of the next piece of `left` bytes. It may exceed `longest` by an eighth, if nothing is left then. As a piece
/// of its own, the rest would wait behind the first fragments of all messages that were posted since.
fn piece_len(left: u64, longest: u64) -> u32 {
    if left <= longest + longest / 8 { left as u32 } else { longest as u32 }
}

/// The frame of an operation's first fragment, or of any fragment of a write or reply.
fn first_frame(operation: &super::Operation, seq: u64, offset: u64, len: u32) -> Frame {
    let token = operation.token();
    match operation.kind {
        Kind::Message { tag, data, .. } => frame::Message {
            flags: Engine::message_flags(operation) | laziness(operation),
            connection: 0,
            seq,
            order: operation.order,
            tag,
            data: data.unwrap_or_default(),
            total: operation.total,
            eager: operation.eager,
            payload: len,
        }
        .into(),
        Kind::Write { key, addr, data } => frame::Write {
            flags: if data.is_some() { frame::flags::DATA } else { 0 },
            connection: 0,
            seq,
            token,
            key,
            addr,
            data: data.unwrap_or_default(),
            total: operation.total,
            offset,
            payload: len,
        }
        .into(),
        Kind::Read { key, addr } => {
            frame::Read { connection: 0, seq, token, key, addr, len: operation.total }.into()
        }
        Kind::Atomic { key, addr, kind, op, datatype } => frame::Atomic {
            connection: 0,
            seq,
            order: operation.order,
            token,
            key,
            addr,
            len: operation.total,
            kind: kind.code(),
            op: op as u8,
            datatype: datatype as u8,
            payload: len,
        }
        .into(),
        Kind::Reply { token } => {
            frame::Reply { connection: 0, seq, token, offset, status: 0, payload: len }.into()
        }
    }
}

/// The flag [`frame::flags::LAZY`] if nobody awaits the acknowledgement: the message is complete when it is sent.
fn laziness(operation: &super::Operation) -> u8 {
    let kept = operation.eager == operation.total && operation.total <= COPY_MAX;
    if kept && operation.options.level != Level::Delivery { frame::flags::LAZY } else { 0 }
}

fn with_seq(frame: Frame, seq: u64) -> Frame {
    match frame {
        Frame::Accept(accept) => frame::Accept { seq, ..accept }.into(),
        Frame::Done(done) => frame::Done { seq, ..done }.into(),
        Frame::Reply(reply) => frame::Reply { seq, ..reply }.into(),
        Frame::Announce(announce) => frame::Announce { seq, ..announce }.into(),
        Frame::Resume(resume) => frame::Resume { seq, ..resume }.into(),
        Frame::Withdraw(withdraw) => frame::Withdraw { seq, ..withdraw }.into(),
        other => other,
    }
}
