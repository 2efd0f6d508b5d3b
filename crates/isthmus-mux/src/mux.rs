//! The state of one end of a link.

use std::collections::{HashMap, VecDeque};

use crate::frame::{self, Frame, HEADER, PIECE};
use crate::lane::{Lane, LaneId, OwnEnd, excess};
use crate::piece::{Piece, Queue, Spares};

/// A lane may use this many times the free part of the pool. With 2, one busy lane gets two thirds of the pool.
pub const SHARE: u64 = 2;
/// Limit on queued bytes of a lane that writes faster than the link sends. Bytes: four frames keep the link busy.
const QUEUE: usize = 4 * PIECE;
/// Limit on answers that wait for a peer that does not read. Bytes; it bounds memory.
const ANSWERS_MAX: usize = 1 << 20;

/// What one end promises to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Lanes that the other end may have open.
    pub lanes: u32,
    /// Initial credit of each lane, whichever end opened it. Bytes; at least twice [`PIECE`].
    pub base: u32,
    /// Credit that all lanes share beyond `base`. Bytes.
    pub pool: u64,
}

impl Limits {
    /// Limits with which an end buffers at most `memory` bytes, if both ends open the same number of lanes. That number
    /// is chosen so that half of the memory is left for the pool; it is between 8 and 512.
    pub fn within(memory: u64, base: u32) -> Self {
        // Incoming bytes and queued bytes of one lane. The first and the last buffer of each are not full.
        let each = 2 * (u64::from(base) + (QUEUE + 4 * PIECE) as u64);
        let lanes = (memory / 2 / each).clamp(8, 512);
        Self { lanes: lanes as u32, base, pool: memory.saturating_sub(lanes * each) }
    }
}

/// An event of a lane or of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The other end's limits are known: lanes can be opened.
    Greeted,
    /// The other end has opened a lane.
    Accepted(LaneId),
    /// There are bytes to read, or the end of the stream.
    Readable(LaneId),
    /// There is room to write again, or the lane no longer takes bytes.
    Writable(LaneId),
}

/// The result of [`Mux::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// This many bytes were read. It is 0 only if `to` was empty.
    Bytes(usize),
    /// The other end has no more to send.
    End,
    /// No bytes yet.
    Blocked,
    /// The other end has given the lane up.
    Reset,
}

/// The result of [`Mux::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// This many bytes were taken. It is 0 only if none were given.
    Bytes(usize),
    /// The queue is full. [`Event::Writable`] tells when there is room.
    Blocked,
    /// The other end has reset the lane, or this end has finished it.
    Closed,
}

/// What the owner must read next from the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A header, for [`Mux::on_header`].
    Header,
    /// This many bytes, for [`Mux::on_payload`], in one part or several.
    Payload(usize),
}

/// A protocol violation by the other end. The link must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts tell")]
pub enum Fault {
    #[error("the other end sent a frame that does not exist")]
    Frame,
    #[error("the other end speaks another version of links; install the same isthmus release on both sides")]
    Version,
    #[error("the other end promises less than two frames for each lane")]
    Limits,
    #[error("the other end sent a frame out of turn")]
    Order,
    #[error("the other end sent more than its credit")]
    Overrun,
    #[error("the other end gave back more than it was sent")]
    Credit,
    #[error("the other end asks and does not read the answers")]
    Answers,
}

/// Counters of one end since the link began, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames sent.
    pub frames_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Bytes that lanes have written and the link has not sent.
    pub queued: u64,
    /// Free part of the other end's pool. Bytes.
    pub credit: u64,
    /// Number of times that a lane had bytes to send and no credit.
    pub starved: u64,
}

/// The lane whose payload arrives.
#[derive(Clone, Copy, Debug)]
enum Incoming {
    Greeting,
    Lane(LaneId),
    /// A lane that is gone.
    Nobody,
}

/// The state of one end of a link; see the crate.
#[derive(Debug)]
pub struct Mux {
    limits: Limits,
    /// The limits that the other end promised.
    promised: Option<Limits>,
    lanes: HashMap<LaneId, Lane>,
    /// Number of the next lane opened here, and of the next one opened there.
    next: u32,
    next_there: u32,
    /// Number of lanes that were opened here, and there.
    opened: u32,
    accepted: u32,
    /// Lanes with something to send, and those that lack credit for it.
    ready: VecDeque<LaneId>,
    starved: VecDeque<LaneId>,
    /// Bytes used of the other end's pool, and of ours.
    spent: u64,
    lent: u64,
    /// Frames without payload that wait to be sent.
    answers: Queue,
    incoming: Option<(Incoming, usize)>,
    greeting: Vec<u8>,
    events: VecDeque<Event>,
    spares: Spares,
    counters: Counters,
}

impl Mux {
    /// Makes one end of a link. `dialled` is true at exactly one of both ends.
    pub fn new(dialled: bool, limits: Limits) -> Self {
        let mut mux = Self {
            limits,
            promised: None,
            lanes: HashMap::new(),
            next: u32::from(!dialled),
            next_there: u32::from(dialled),
            opened: 0,
            accepted: 0,
            ready: VecDeque::new(),
            starved: VecDeque::new(),
            spent: 0,
            lent: 0,
            answers: Queue::default(),
            incoming: None,
            greeting: Vec::new(),
            events: VecDeque::new(),
            spares: Spares::default(),
            counters: Counters::default(),
        };
        mux.say(Frame::Greeting);
        mux.answers.copy_in(&frame::greeting(&limits), &mut mux.spares);
        mux
    }

    /// Opens a lane. None before the other end's limits are known, or if it takes no more lanes.
    pub fn open(&mut self) -> Option<LaneId> {
        let promised = self.promised?;
        if self.opened >= promised.lanes || self.next >= u32::MAX - 1 {
            return None;
        }
        let id = LaneId(self.next);
        self.next += 2;
        self.opened += 1;
        self.lanes.insert(id, Lane::default());
        self.say(Frame::Open(id));
        Some(id)
    }

    /// Whether the other end's limits are known. Before that no lane can be opened.
    pub fn is_greeted(&self) -> bool {
        self.promised.is_some()
    }

    /// Copies `bytes` into a lane's queue, as far as there is room.
    pub fn write(&mut self, id: LaneId, bytes: &[u8]) -> Written {
        let Some(lane) = self.lanes.get_mut(&id) else { return Written::Closed };
        if lane.reset || lane.own_end != OwnEnd::Open {
            return Written::Closed;
        }
        let taken = bytes.len().min(QUEUE - lane.out.len());
        if taken == 0 && !bytes.is_empty() {
            lane.full = true;
            return Written::Blocked;
        }
        lane.out.copy_in(&bytes[..taken], &mut self.spares);
        self.counters.queued += taken as u64;
        self.enqueue(id);
        Written::Bytes(taken)
    }

    /// Moves received bytes of a lane to `to`.
    pub fn read(&mut self, id: LaneId, to: &mut [u8]) -> Read {
        let Some(lane) = self.lanes.get_mut(&id) else { return Read::Reset };
        if lane.inbox.is_empty() {
            return match (lane.reset, lane.finished) {
                (true, _) => Read::Reset,
                (false, true) => Read::End,
                (false, false) => Read::Blocked,
            };
        }
        let read = lane.inbox.copy_out(to, &mut self.spares);
        lane.owed += read as u32;
        self.return_credit(id);
        Read::Bytes(read)
    }

    /// Ends the lane's outgoing stream after the bytes written so far.
    pub fn finish(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && lane.own_end == OwnEnd::Open
        {
            lane.own_end = OwnEnd::Wanted;
            self.enqueue(id);
        }
    }

    /// The program drops a lane. If it has called [`Mux::finish`], the bytes written are still sent. Otherwise the
    /// other end gets a reset.
    pub fn release(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.released = true;
        if lane.own_end == OwnEnd::Open {
            return self.give_up(id);
        }
        // Bytes that still arrive are dropped.
        let unread = lane.inbox.len() as u32;
        lane.inbox.clear(&mut self.spares);
        lane.owed += unread;
        self.return_credit(id);
        self.remove_if_over(id);
    }

    /// Queues a heartbeat frame.
    pub fn beat(&mut self) {
        self.say(Frame::Beat);
    }

    /// Whether nothing waits to be sent. Bytes that lack credit do wait.
    pub fn is_quiet(&self) -> bool {
        self.answers.is_empty() && self.ready.is_empty() && self.starved.is_empty()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        let pool = self.promised.map_or(0, |promised| promised.pool);
        Counters { credit: pool - self.spent, ..self.counters }
    }

    /// Number of lanes, whichever end opened them.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The next piece to write; it must be written whole. Lanes are served in rotation, one piece each.
    pub fn poll_output(&mut self) -> Option<Piece> {
        loop {
            if let Some(answers) = self.answers.pop() {
                return Some(answers);
            }
            let id = self.ready.pop_front()?;
            if let Some(piece) = self.next_piece(id) {
                return Some(piece);
            }
        }
    }

    /// An empty buffer for a payload.
    pub fn take_piece(&mut self) -> Piece {
        self.spares.take()
    }

    /// Returns a buffer that was written or not used.
    pub fn give_piece(&mut self, piece: Piece) {
        self.spares.give(piece);
    }

    /// Processes a header.
    ///
    /// # Errors
    /// The other end violated the protocol.
    pub fn on_header(&mut self, header: &[u8; HEADER]) -> Result<Expect, Fault> {
        if self.incoming.is_some() {
            return Err(Fault::Order);
        }
        let frame = Frame::decode(header)?;
        if self.promised.is_none() != (frame == Frame::Greeting) {
            return Err(Fault::Order);
        }
        self.counters.frames_in += 1;
        match frame {
            Frame::Greeting => return Ok(self.await_payload(Incoming::Greeting, frame::GREETING)),
            Frame::Data(id, len) => {
                let to = self.check_data(id, len)?;
                return Ok(self.await_payload(to, len));
            }
            Frame::Open(id) => self.on_open(id)?,
            Frame::Credit(id, bytes) => self.on_credit(id, bytes)?,
            Frame::Finish(id) => self.on_finish(id)?,
            Frame::Reset(id) => self.on_reset(id)?,
            Frame::Beat => {}
        }
        if self.answers.len() > ANSWERS_MAX { Err(Fault::Answers) } else { Ok(Expect::Header) }
    }

    /// Processes a part of a payload.
    ///
    /// # Errors
    /// The other end violated the protocol, or `piece` is longer than expected.
    pub fn on_payload(&mut self, piece: Piece) -> Result<Expect, Fault> {
        let (to, left) = self.incoming.take().ok_or(Fault::Order)?;
        let left = left.checked_sub(piece.len()).ok_or(Fault::Order)?;
        match to {
            Incoming::Lane(id) => self.deliver(id, piece),
            Incoming::Greeting => {
                self.greeting.extend_from_slice(piece.filled());
                self.spares.give(piece);
                if left == 0 {
                    self.promised = Some(frame::read_greeting(&self.greeting)?);
                    self.greeting = Vec::new();
                    self.events.push_back(Event::Greeted);
                }
            }
            Incoming::Nobody => self.spares.give(piece),
        }
        Ok(if left > 0 { self.await_payload(to, left) } else { Expect::Header })
    }

    fn await_payload(&mut self, to: Incoming, len: usize) -> Expect {
        self.incoming = Some((to, len));
        Expect::Payload(len)
    }

    fn say(&mut self, frame: Frame) {
        self.counters.frames_out += 1;
        self.answers.copy_in(&frame.encode(), &mut self.spares);
    }

    /// Puts a lane with something to send into the rotation.
    fn enqueue(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && lane.has_output()
            && !std::mem::replace(&mut lane.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Takes the next piece of the lane that is served.
    fn next_piece(&mut self, id: LaneId) -> Option<Piece> {
        let promised = self.promised?;
        let lane = self.lanes.get_mut(&id)?;
        lane.queued = false;
        if !lane.has_output() {
            return None;
        }
        if lane.out.is_empty() {
            self.say_finish(id);
            return None;
        }
        let (before, after) = (lane.outstanding, lane.outstanding + lane.out.first_len() as u64);
        let others = self.spent - excess(before, promised.base);
        let own = excess(after, promised.base);
        if own > 0 && own > SHARE * promised.pool.saturating_sub(others + own) {
            lane.queued = true;
            self.starved.push_back(id);
            self.counters.starved += 1;
            return None;
        }
        self.spent = others + own;
        lane.outstanding = after;
        let mut piece = lane.out.pop()?;
        if lane.full && lane.out.len() <= QUEUE / 2 {
            lane.full = false;
            self.events.push_back(Event::Writable(id));
        }
        self.counters.queued -= piece.len() as u64;
        self.counters.frames_out += 1;
        piece.prepend_header(Frame::Data(id, piece.len()).encode());
        self.enqueue(id);
        Some(piece)
    }

    fn say_finish(&mut self, id: LaneId) {
        self.say(Frame::Finish(id));
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.own_end = OwnEnd::Said;
        self.remove_if_over(id);
    }

    /// Returns credit for the bytes that the program has read, once they are worth a frame.
    fn return_credit(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let drained = lane.released || (lane.finished && lane.inbox.is_empty());
        let worth = lane.owed >= self.limits.base / 4 || drained;
        if lane.reset || lane.owed == 0 || !worth {
            return;
        }
        let before = lane.held();
        let owed = std::mem::take(&mut lane.owed);
        self.lent -= excess(before, self.limits.base) - excess(lane.held(), self.limits.base);
        self.say(Frame::Credit(id, owed));
    }

    fn give_up(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(&id) else { return };
        if !lane.reset {
            self.say(Frame::Reset(id));
            self.end(id);
        }
        self.remove_if_over(id);
    }

    /// Ends sending on a lane. The credit that it used is free again.
    fn end(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.reset = true;
        if let Some(promised) = self.promised {
            self.spent -= excess(std::mem::take(&mut lane.outstanding), promised.base);
        }
        self.counters.queued -= lane.out.len() as u64;
        lane.out.clear(&mut self.spares);
        self.lent -= excess(lane.held(), self.limits.base);
        lane.owed = 0;
        lane.inbox.clear(&mut self.spares);
        self.ready.append(&mut self.starved);
    }

    /// Removes a lane that neither end needs.
    fn remove_if_over(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(&id).filter(|lane| lane.is_over()) else { return };
        self.lent -= excess(lane.held(), self.limits.base);
        self.lanes.remove(&id);
        let count = if self.is_ours(id) { &mut self.opened } else { &mut self.accepted };
        *count -= 1;
    }

    fn is_ours(&self, id: LaneId) -> bool {
        id.0 % 2 == self.next % 2
    }

    /// Fails if the lane was never opened.
    fn check_known(&self, id: LaneId) -> Result<(), Fault> {
        let next = if self.is_ours(id) { self.next } else { self.next_there };
        if id.0 < next { Ok(()) } else { Err(Fault::Order) }
    }

    fn on_open(&mut self, id: LaneId) -> Result<(), Fault> {
        if id.0 != self.next_there || id.0 >= u32::MAX - 1 {
            return Err(Fault::Order);
        }
        self.next_there += 2;
        if self.accepted >= self.limits.lanes {
            self.say(Frame::Reset(id));
            return Ok(());
        }
        self.accepted += 1;
        self.lanes.insert(id, Lane::default());
        self.events.push_back(Event::Accepted(id));
        Ok(())
    }

    fn check_data(&self, id: LaneId, len: usize) -> Result<Incoming, Fault> {
        let Some(lane) = self.lanes.get(&id).filter(|lane| !lane.reset) else {
            return self.check_known(id).map(|()| Incoming::Nobody);
        };
        if lane.finished {
            return Err(Fault::Order);
        }
        let (before, after) = (lane.held(), lane.held() + len as u64);
        let lent = self.lent - excess(before, self.limits.base) + excess(after, self.limits.base);
        if lent > self.limits.pool { Err(Fault::Overrun) } else { Ok(Incoming::Lane(id)) }
    }

    fn deliver(&mut self, id: LaneId, piece: Piece) {
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| !lane.reset) else {
            return self.spares.give(piece);
        };
        let (before, len) = (lane.held(), piece.len());
        if lane.released {
            lane.owed += len as u32;
            self.spares.give(piece);
        } else {
            if lane.inbox.is_empty() {
                self.events.push_back(Event::Readable(id));
            }
            lane.inbox.push(piece, &mut self.spares);
        }
        self.lent += excess(lane.held(), self.limits.base) - excess(before, self.limits.base);
        if lane.released {
            self.return_credit(id);
        }
    }

    fn on_credit(&mut self, id: LaneId, bytes: u32) -> Result<(), Fault> {
        let base = self.promised.map_or(0, |promised| promised.base);
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| !lane.reset) else {
            return self.check_known(id);
        };
        let left = lane.outstanding.checked_sub(u64::from(bytes)).ok_or(Fault::Credit)?;
        self.spent -= excess(lane.outstanding, base) - excess(left, base);
        lane.outstanding = left;
        self.ready.append(&mut self.starved);
        self.remove_if_over(id);
        Ok(())
    }

    fn on_finish(&mut self, id: LaneId) -> Result<(), Fault> {
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| !lane.reset) else {
            return self.check_known(id);
        };
        if std::mem::replace(&mut lane.finished, true) {
            return Err(Fault::Order);
        }
        self.events.push_back(Event::Readable(id));
        self.return_credit(id);
        self.remove_if_over(id);
        Ok(())
    }

    fn on_reset(&mut self, id: LaneId) -> Result<(), Fault> {
        if self.lanes.get(&id).is_none_or(|lane| lane.reset) {
            return self.check_known(id);
        }
        self.end(id);
        self.events.extend([Event::Readable(id), Event::Writable(id)]);
        self.remove_if_over(id);
        Ok(())
    }
}
