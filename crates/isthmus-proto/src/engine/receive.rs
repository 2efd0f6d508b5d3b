//! Incoming frames, their payload, and their effects on operations and messages.

use isthmus_wire::frame::{self, Frame};

use super::acks::is_awaited;
use super::lanes::PeerFault;
use super::state::{Lane, LaneState, Lingering, Load, Micros, Stream, Target};
use super::transmit::REQUESTS_MAX;
use super::{Engine, LaneId};
use crate::PeerId;
use crate::memory::{BufferRef, Memory};
use crate::window::Receipt;

/// Most unfinished requests of a peer, of each kind. Count. It is more than a peer may have outstanding, since the peer
/// may count requests as ended that we still hold.
pub(super) const WAITING_MAX: usize = 4 * REQUESTS_MAX as usize;
/// Most control frames that wait on a lane that does not write. Count; a peer that pings more is at fault.
const CONTROL_MAX: usize = 64;

/// The place where the shell may put payload bytes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sink {
    /// The buffer.
    pub place: BufferRef,
    /// Offset in the buffer. Bytes.
    pub offset: u64,
    /// Bytes that may be put there now.
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
        match frame {
            Frame::Message(message) => self.handle_message(now, lane, message, payload, mem),
            _ => self.handle_at_length(now, lane, frame, payload, mem),
        }
    }

    /// Like [`Engine::handle`], for a message's first fragment.
    pub fn handle_message(
        &mut self,
        now: Micros,
        lane: LaneId,
        message: &frame::Message,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        if self.receive_fast(now, lane, message, payload, mem) {
            return Ok(());
        }
        self.handle_at_length(now, lane, &Frame::from(*message), payload, mem)
    }

    pub(super) fn handle_at_length(
        &mut self,
        now: Micros,
        lane: LaneId,
        frame: &Frame,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let Some(peer) = self.speaker(now, lane, frame, payload, mem)? else { return Ok(()) };
        let target = self.target(peer, frame, payload.len() as u64, true, mem)?;
        let len = payload.len() as u64;
        let target = match target {
            Target::Bounce { inbound, offset, mut bytes } => {
                bytes.extend_from_slice(payload);
                Target::Bounce { inbound, offset, bytes }
            }
            Target::Direct { place, offset, keep, owner } => {
                if keep > 0 {
                    mem.store(place, offset, &payload[..keep.min(len) as usize]);
                }
                Target::Direct { place, offset, keep, owner }
            }
            Target::Discard => Target::Discard,
        };
        self.end_fragment(peer, frame, target, payload, mem)
    }

    /// A frame's header arrived; its payload follows through [`Engine::feed`] and [`Engine::sink`]. Only for frames
    /// with payload.
    pub fn begin(
        &mut self,
        now: Micros,
        lane: LaneId,
        frame: &Frame,
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let len = u64::from(frame.payload_len());
        if matches!(frame, Frame::Atomic(_)) {
            return Err(PeerFault::Frame("an atomic operation's operands are too long"));
        }
        if matches!(frame, Frame::Hello(_) | Frame::Welcome(_)) {
            return Err(PeerFault::Frame("a greeting's proof is too long"));
        }
        let target = match self.speaker(now, lane, frame, &[], mem)? {
            Some(peer) => self.target(peer, frame, len, false, mem)?,
            None => Target::Discard,
        };
        let stream = Stream { frame: *frame, target, done: 0, len, busy: false };
        self.lane_mut(lane)?.stream = Some(Box::new(stream));
        Ok(())
    }

    /// The place where the shell may put the next payload bytes of the lane's fragment without the engine. The lane
    /// counts as busy until [`Engine::filled`]. `None` if the bytes must go through [`Engine::feed`].
    pub fn sink(&mut self, lane: LaneId) -> Option<Sink> {
        let stream = self.lanes.get_mut(lane.0 as usize)?.stream.as_mut()?;
        debug_assert!(!stream.busy, "the last sink was not reported as filled");
        let Target::Direct { place, offset, keep, .. } = stream.target else { return None };
        let len = keep.min(stream.len).saturating_sub(stream.done);
        if len == 0 || place.is_registered() {
            return None;
        }
        stream.busy = true;
        Some(Sink { place, offset: offset + stream.done, len })
    }

    /// The shell put `n` bytes where [`Engine::sink`] said.
    pub fn filled(&mut self, lane: LaneId, n: u64, mem: &mut dyn Memory) -> Result<(), PeerFault> {
        let record = self.lane_mut(lane)?;
        record.heard = true;
        let closing = record.state == LaneState::Closing;
        let Some(stream) = &mut record.stream else { return Ok(()) };
        stream.busy = false;
        stream.done = stream.len.min(stream.done + n);
        if closing {
            stream.drop_rest();
        }
        self.end_stream(lane, mem)?;
        self.end_lingering(mem)
    }

    /// Takes in payload bytes that the shell read elsewhere; returns how many of them belong to the lane's fragment.
    pub fn feed(&mut self, lane: LaneId, bytes: &[u8], mem: &mut dyn Memory) -> Result<usize, PeerFault> {
        let record = self.lane_mut(lane)?;
        record.heard = true;
        let Some(stream) = record.stream.as_mut() else { return Ok(0) };
        let n = (stream.len - stream.done).min(bytes.len() as u64);
        let taken = &bytes[..n as usize];
        match &mut stream.target {
            Target::Discard => {}
            Target::Bounce { bytes, .. } => bytes.extend_from_slice(taken),
            Target::Direct { place, offset, keep, .. } => {
                let kept = keep.saturating_sub(stream.done).min(n) as usize;
                if kept > 0 {
                    mem.store(*place, *offset + stream.done, &taken[..kept]);
                }
            }
        }
        stream.done += n;
        self.end_stream(lane, mem)?;
        Ok(n as usize)
    }

    /// Payload bytes of the lane's fragment that are still to come; `None` between fragments.
    pub fn streaming(&self, lane: LaneId) -> Option<u64> {
        let stream = self.lanes.get(lane.0 as usize)?.stream.as_ref()?;
        Some(stream.len - stream.done)
    }

    fn end_stream(&mut self, lane: LaneId, mem: &mut dyn Memory) -> Result<(), PeerFault> {
        let record = self.lane_mut(lane)?;
        let whole = |stream: &mut Box<Stream>| stream.done == stream.len;
        let closing = record.state == LaneState::Closing;
        let (Some(stream), Some(peer)) = (record.stream.take_if(whole), record.peer) else { return Ok(()) };
        if closing {
            return Ok(()); // We acknowledge nothing from now on.
        }
        self.end_fragment(peer, &stream.frame, stream.target, &[], mem)
    }

    pub(super) fn lane_mut(&mut self, lane: LaneId) -> Result<&mut Lane, PeerFault> {
        self.lanes.get_mut(lane.0 as usize).ok_or(PeerFault::Frame("frame on a lane that is closed"))
    }

    /// Handles a frame of the lane itself. For other frames, returns the peer.
    fn speaker(
        &mut self,
        now: Micros,
        lane: LaneId,
        frame: &Frame,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<Option<PeerId>, PeerFault> {
        self.clock = now;
        let record = self.lane_mut(lane)?;
        record.heard = true;
        let state = record.state;
        if let Some(peer) = record.peer.filter(|_| state == LaneState::Open) {
            self.connection(peer).recent = Some(lane);
        }
        match (frame, state) {
            (Frame::Hello(hello), LaneState::Listening) => {
                self.on_hello(now, lane, hello, payload).map(|()| None)
            }
            (Frame::Welcome(welcome), LaneState::Greeting) => {
                self.on_welcome(now, lane, welcome, payload, mem).map(|()| None)
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
                let control = &mut self.lanes[lane.0 as usize].control;
                if control.len() >= CONTROL_MAX {
                    return Err(PeerFault::Frame("more pings than are ever sent"));
                }
                control.push_back(frame::Pong { id: ping.id }.into());
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
                self.schedule_silence_check(peer);
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
            Frame::Also(also) => self.on_also(lane, peer, also)?,
            _ => return Ok(Some(peer)),
        }
        Ok(None)
    }

    /// Decides where a numbered fragment's payload goes; a message's first fragment is matched here. `whole` says that
    /// all of the payload is there.
    fn target(
        &mut self,
        peer: PeerId,
        frame: &Frame,
        len: u64,
        whole: bool,
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
            Frame::Message(message) => self.target_of_message(peer, message, whole, mem),
            Frame::More(more) => self.target_of_more(peer, more),
            Frame::Granted(granted) => self.target_of_granted(peer, granted),
            Frame::Write(write) => self.target_of_write(peer, write, mem),
            Frame::Reply(reply) => self.target_of_reply(peer, reply, len),
            _ => Ok(Target::Discard),
        }
    }

    /// A fragment is complete: counts it as received and does what it says.
    pub(super) fn end_fragment(
        &mut self,
        peer: PeerId,
        frame: &Frame,
        target: Target,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        let Some(seq) = frame.seq() else { return Ok(()) };
        if self.connection(peer).trouble.failed.is_some() {
            return Ok(());
        }
        if matches!(target, Target::Direct { .. }) && self.drop_other_copies(peer, seq) {
            self.lingering.push(Lingering::Fragment { peer, frame: *frame, target });
            return Ok(());
        }
        let new = self.connection(peer).received.insert(seq) == Receipt::New;
        self.owe_ack(peer, is_awaited(frame));
        if !new {
            self.counters.duplicates += 1;
            if let Target::Bounce { bytes, .. } = target {
                self.pool.give(bytes);
            }
            return Ok(());
        }
        self.counters.fragments_received += 1;
        self.connection(peer).counters.bytes_received += u64::from(frame.payload_len());
        match frame {
            Frame::Message(message) => {
                self.on_part(peer, message.seq, 0, u64::from(message.payload), target, mem)?;
            }
            Frame::More(more) => {
                self.on_part(peer, more.message, more.offset, u64::from(more.payload), target, mem)?;
            }
            Frame::Accept(accept) => self.on_accept(peer, accept, mem),
            Frame::Granted(granted) => self.on_granted(peer, granted, target, mem),
            Frame::Resume(resume) => self.on_resume(peer, resume, mem)?,
            Frame::Announce(announce) => self.on_announce(peer, announce),
            Frame::Withdraw(withdraw) => self.on_withdraw(peer, withdraw),
            Frame::Done(done) => self.on_done(peer, done, mem)?,
            Frame::Write(write) => self.on_write(peer, write)?,
            Frame::Read(read) => self.on_read(peer, read, mem)?,
            Frame::Reply(reply) => self.on_reply(peer, reply, mem),
            Frame::Atomic(atomic) => self.on_atomic(peer, atomic, payload, mem)?,
            _ => {}
        }
        Ok(())
    }

    /// Drops the rest of earlier transmissions of this fragment on all lanes. Returns whether a lane's shell is filling
    /// the target of one right now.
    fn drop_other_copies(&mut self, peer: PeerId, seq: u64) -> bool {
        let mut busy = false;
        for lane in self.peers[peer.0 as usize].lanes() {
            let Some(stream) = &mut self.lanes[lane.0 as usize].stream else { continue };
            if stream.frame.seq() == Some(seq) {
                busy |= stream.busy;
                stream.drop_rest();
            }
        }
        busy
    }

    pub(super) fn push_urgent(&mut self, peer: PeerId, frame: Frame) -> Result<(), PeerFault> {
        let connection = self.connection(peer);
        if connection.traffic.urgent.len() >= WAITING_MAX {
            return Err(PeerFault::Frame("requests without taking the answers"));
        }
        connection.traffic.urgent.push_back(frame);
        self.kick(peer);
        Ok(())
    }

    /// The peer acknowledges all fragments below `upto` and those in `map`, and grants credit.
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
        let more_credit = connection.credit_out.raise_to(credit);
        loop {
            self.forget_kept(peer, upto);
            let base = self.connection(peer).window.base();
            if base >= upto {
                break;
            }
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
        let connection = self.connection(peer);
        let waits = more_credit && connection.receives.wait_until.is_some();
        if was_full || waits || connection.fence.is_some() {
            self.kick(peer);
        }
        Ok(())
    }

    /// The fast form of [`Engine::acknowledge`] for the oldest fragments below `upto`. It stops at the first that
    /// belongs to an operation, and does nothing while the times of fragments are measured.
    fn forget_kept(&mut self, peer: PeerId, upto: u64) {
        let Some(connection) = self.peers[peer.0 as usize].connection.as_deref_mut() else { return };
        if connection.stragglers.is_some() {
            return;
        }
        let mut last = None;
        connection.window.drop_before(upto, |flight| {
            match &mut flight.load {
                Load::Inline(_) => {}
                Load::Kept { operation: None, bytes } => self.pool.give(std::mem::take(bytes)),
                Load::Kept { .. } | Load::Piece { .. } => return false,
            }
            if last.replace(flight.lane) != Some(flight.lane)
                && let Some(record) = self.lanes.get_mut(flight.lane.0 as usize)
            {
                record.moved_at = self.clock;
            }
            true
        });
    }

    fn acknowledge(&mut self, peer: PeerId, seq: u64, mem: &mut dyn Memory) {
        let Some(flight) = self.connection(peer).window.take(seq) else { return };
        let operation = flight.load.operation();
        self.on_fragment_acked(peer, flight.lane, flight.sent_at, flight.tries);
        if let Load::Kept { bytes, .. } = flight.load {
            self.pool.give(bytes);
        }
        if let Some(index) = operation {
            let now = self.clock;
            let operation = &mut self.operations[index];
            operation.pieces -= 1;
            operation.heard.get_or_insert(now);
            self.try_finish(index, mem);
        }
    }
}
