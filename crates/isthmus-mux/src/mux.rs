//! The state of one end of a link.

use std::collections::{HashMap, VecDeque};

use crate::frame::{self, Frame, HEADER, PIECE};
use crate::lane::{Lane, LaneId, OwnEnd, excess};
use crate::piece::{Piece, Queue, Spares};

/// A lane may have so many times as much of the pool as is still free.
pub const SHARE: u64 = 2;
/// What is queued of a lane that writes faster than the link takes it. Bytes.
const QUEUE: usize = 4 * PIECE;
/// Answers that may wait for a peer that does not read. Bytes.
const ANSWERS_MAX: usize = 1 << 20;

/// What an end promises to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Lanes that the other end may have open.
    pub lanes: u32,
    /// What each lane may send unasked, of those of both ends. Bytes, twice [`PIECE`] at
    /// least.
    pub base: u32,
    /// What all lanes together may send beyond that. Bytes.
    pub pool: u64,
}

impl Limits {
    /// Limits by which an end holds `memory` bytes at most, with as many lanes of its own as
    /// of the other end's: so many that they leave half of it for the pool, from 8 to 512.
    pub fn within(memory: u64, base: u32) -> Self {
        // What may come and what may wait to go; the first and the last buffer of each are
        // not full.
        let each = 2 * (u64::from(base) + (QUEUE + 4 * PIECE) as u64);
        let lanes = (memory / 2 / each).clamp(8, 512);
        Self { lanes: lanes as u32, base, pool: memory.saturating_sub(lanes * each) }
    }
}

/// What has happened to a lane, or to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The other end's limits are known: lanes can be opened.
    Greeted,
    /// The other end has opened a lane.
    Accepted(LaneId),
    /// There is something to read, or the end of it.
    Readable(LaneId),
    /// There is room to write again, or nothing can be written any longer.
    Writable(LaneId),
}

/// What [`Mux::read`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes; not 0 unless no room was given for any.
    Bytes(usize),
    /// The other end has no more to send.
    End,
    /// Nothing yet.
    Blocked,
    /// The other end has given the lane up.
    Reset,
}

/// What [`Mux::write`] has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// So many bytes; not 0 unless none were given.
    Bytes(usize),
    /// Nothing before there is room.
    Blocked,
    /// The other end has given the lane up, or this one has said that it has no more.
    Closed,
}

/// What comes next of what the other end sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A header, for [`Mux::on_header`].
    Header,
    /// So many bytes, for [`Mux::on_payload`], in one part or several.
    Payload(usize),
}

/// What the other end has done that no end does. The link is of no use any longer.
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

/// Counts of one end since the link began, and what is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were sent.
    pub frames_out: u64,
    /// Frames that came.
    pub frames_in: u64,
    /// What lanes have written and the link has not sent. Bytes.
    pub queued: u64,
    /// What may be sent beyond what every lane has. Bytes.
    pub credit: u64,
    /// Times that a lane had something to send and no credit for it.
    pub starved: u64,
}

/// Whose the payload is that comes.
#[derive(Clone, Copy, Debug)]
enum Incoming {
    Greeting,
    Lane(LaneId),
    /// A lane that is gone.
    Nobody,
}

/// See the crate.
#[derive(Debug)]
pub struct Mux {
    limits: Limits,
    /// What the other end promised.
    promised: Option<Limits>,
    lanes: HashMap<LaneId, Lane>,
    /// What the next lane from here, and from there, is called.
    next: u32,
    next_there: u32,
    /// How many lanes there are that were opened here, and there.
    opened: u32,
    accepted: u32,
    /// Lanes that have something to send, and those among them that lack the credit.
    ready: VecDeque<LaneId>,
    starved: VecDeque<LaneId>,
    /// What of the other end's pool is in use, and of ours.
    spent: u64,
    lent: u64,
    /// Frames without a payload that are to be sent.
    answers: Queue,
    incoming: Option<(Incoming, usize)>,
    greeting: Vec<u8>,
    events: VecDeque<Event>,
    spares: Spares,
    counters: Counters,
}

impl Mux {
    /// One end of a link, of which one has dialled and the other has not.
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

    /// Begins a lane. None before the other end has told its limits, or where it takes no
    /// more lanes.
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

    /// Whether the other end has told its limits, without which no lane can be opened.
    pub fn is_greeted(&self) -> bool {
        self.promised.is_some()
    }

    /// Takes a copy of what is to be sent on a lane, as far as there is room.
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
        self.line_up(id);
        Written::Bytes(taken)
    }

    /// Moves what came on a lane to `to`.
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
        self.give_back(id);
        Read::Bytes(read)
    }

    /// Says that no more follows what was written.
    pub fn finish(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && lane.own_end == OwnEnd::Open
        {
            lane.own_end = OwnEnd::Wanted;
            self.line_up(id);
        }
    }

    /// The program has nothing to do with a lane any longer. What it wrote before it said that
    /// no more follows is still sent; if it has not said so, the other end learns that the lane
    /// was given up.
    pub fn release(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.released = true;
        if lane.own_end == OwnEnd::Open {
            return self.give_up(id);
        }
        // What still comes is dropped as it comes.
        let unread = lane.inbox.len() as u32;
        lane.inbox.clear(&mut self.spares);
        lane.owed += unread;
        self.give_back(id);
        self.tidy(id);
    }

    /// Says that this end lives.
    pub fn beat(&mut self) {
        self.say(Frame::Beat);
    }

    /// Whether nothing waits to be sent. What lacks credit does.
    pub fn is_quiet(&self) -> bool {
        self.answers.is_empty() && self.ready.is_empty() && self.starved.is_empty()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What there is to count.
    pub fn counters(&self) -> Counters {
        let pool = self.promised.map_or(0, |promised| promised.pool);
        Counters { credit: pool - self.spent, ..self.counters }
    }

    /// How many lanes there are, whoever opened them.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// What is to be written next, whole. Lanes take turns, a piece each.
    pub fn poll_output(&mut self) -> Option<Piece> {
        loop {
            if let Some(answers) = self.answers.pop() {
                return Some(answers);
            }
            let id = self.ready.pop_front()?;
            if let Some(piece) = self.take_turn(id) {
                return Some(piece);
            }
        }
    }

    /// An empty buffer for a payload.
    pub fn take_piece(&mut self) -> Piece {
        self.spares.take()
    }

    /// A buffer that was written, or not used.
    pub fn give_piece(&mut self, piece: Piece) {
        self.spares.give(piece);
    }

    /// A header has come.
    ///
    /// # Errors
    /// What the other end did wrong.
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

    /// So much of a payload has come.
    ///
    /// # Errors
    /// What the other end did wrong; or it is more than was expected.
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

    /// A lane that has something to send waits for its turn.
    fn line_up(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && lane.has_output()
            && !std::mem::replace(&mut lane.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// What a lane sends when it has its turn.
    fn take_turn(&mut self, id: LaneId) -> Option<Piece> {
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
        piece.crown(Frame::Data(id, piece.len()).encode());
        self.line_up(id);
        Some(piece)
    }

    fn say_finish(&mut self, id: LaneId) {
        self.say(Frame::Finish(id));
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.own_end = OwnEnd::Said;
        self.tidy(id);
    }

    /// Gives back what the program has read, when it is worth a frame.
    fn give_back(&mut self, id: LaneId) {
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
        self.tidy(id);
    }

    /// Nothing more is sent on a lane; what was lent for it is free again.
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

    /// Forgets a lane that neither end needs.
    fn tidy(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(&id).filter(|lane| lane.is_over()) else { return };
        self.lent -= excess(lane.held(), self.limits.base);
        self.lanes.remove(&id);
        let count = if self.is_ours(id) { &mut self.opened } else { &mut self.accepted };
        *count -= 1;
    }

    fn is_ours(&self, id: LaneId) -> bool {
        id.0 % 2 == self.next % 2
    }

    /// Fails where the lane was never begun.
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
            self.give_back(id);
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
        self.tidy(id);
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
        self.give_back(id);
        self.tidy(id);
        Ok(())
    }

    fn on_reset(&mut self, id: LaneId) -> Result<(), Fault> {
        if self.lanes.get(&id).is_none_or(|lane| lane.reset) {
            return self.check_known(id);
        }
        self.end(id);
        self.events.extend([Event::Readable(id), Event::Writable(id)]);
        self.tidy(id);
        Ok(())
    }
}
