//! The shell around an engine: it writes, reads, and keeps the time.

use isthmus_proto::{
    Action, BufferRef, FAST_PATH_FRAME_MAX, LaneLoss, Memory, PeerFault, Segment, SendRequest,
};
use isthmus_wire::Frame;
use isthmus_wire::frame::Message;

use super::{Chunk, Event, Node, Side, Wire, World};

impl World {
    /// Drains the engine after any event: writes, actions, timer, completions.
    pub(crate) fn pump(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        loop {
            let mut quiet = true;
            while let Some(lane) = self.nodes[node].engine.next_ready() {
                quiet = false;
                if let Some(&(wire, side)) = self.nodes[node].lanes.get(&lane.0) {
                    self.take_batch(wire, side);
                }
            }
            while let Some(action) = self.nodes[node].engine.poll_action() {
                quiet = false;
                self.act(node, action);
            }
            if quiet {
                break;
            }
        }
        let due = self.nodes[node].engine.poll_timeout();
        if let Some(at) = due
            && self.nodes[node].timer.is_none_or(|set| at < set)
        {
            self.nodes[node].timer = Some(at);
            self.at(at.max(self.now), Event::Timer(node));
        }
        while let Some(completion) = self.nodes[node].engine.poll_completion() {
            self.nodes[node].done.push_back(completion);
        }
        if self.nodes[node].engine.owes_acks() && !self.nodes[node].idle {
            self.nodes[node].idle = true;
            let pause = self.rng.below(300);
            self.after(pause, Event::Idle(node));
        }
    }

    pub(super) fn timer(&mut self, node: usize) {
        self.nodes[node].timer = None;
        let Node { engine, mem, alive, .. } = &mut self.nodes[node];
        if *alive && engine.poll_timeout().is_some_and(|at| at <= self.now) {
            engine.handle_timeout(self.now, mem);
        }
        self.pump(node);
    }

    pub(super) fn idle(&mut self, node: usize) {
        self.nodes[node].idle = false;
        if self.nodes[node].alive {
            self.nodes[node].engine.flush_acks();
        }
        self.pump(node);
    }

    pub(super) fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Dial { lane, locator, .. } => self.dial(node, lane, locator),
            Action::Abandon { lane } => {
                let dialled = || {
                    let comes_up = |wire: &Wire| {
                        let side = &wire.sides[0];
                        side.node == node && side.lane == Some(lane) && !side.over
                    };
                    self.wires.iter().rposition(comes_up).map(|wire| (wire, 0))
                };
                let place = self.nodes[node].lanes.get(&lane.0).copied().or_else(dialled);
                if let Some((wire, side)) = place {
                    self.lose(wire, side, &LaneLoss::Broken("abandoned".into()));
                    // A router that hangs does not pass the close on.
                    if !self.wires[wire].dirs[side].dead {
                        self.after(100, Event::Lost(wire, 1 - side, LaneLoss::Closed));
                    }
                }
            }
            Action::Recall { lane, batches } => self.recall(node, lane, batches),
            Action::Close { lane } => {
                if let Some(&(wire, side)) = self.nodes[node].lanes.get(&lane.0) {
                    self.wires[wire].sides[side].closing = true;
                    let loss = LaneLoss::Broken("the peer does not read".into());
                    self.after(5_000_000, Event::Lost(wire, side, loss));
                    if !self.wires[wire].sides[side].pending {
                        self.take_batch(wire, side);
                    }
                }
            }
        }
    }

    pub(super) fn take_batch(&mut self, wire: usize, side: usize) {
        let Side { node, lane, batch, segment, offset, pending, over, closing, .. } =
            &mut self.wires[wire].sides[side];
        let Some(lane) = *lane else { return };
        if *over || *pending {
            return;
        }
        batch.clear();
        (*segment, *offset) = (0, 0);
        let Node { engine, mem, .. } = &mut self.nodes[*node];
        engine.set_clock(self.now);
        *pending = engine.transmit(lane, batch, mem);
        if *pending {
            self.write_some(wire, side);
        } else if *closing {
            self.shut(wire, side);
        }
    }

    /// Sends a message by the fast path, if the engine permits it and the lane takes all of it now.
    pub(crate) fn send_short(
        &mut self,
        node: usize,
        request: &SendRequest,
        place: BufferRef,
        len: u64,
    ) -> bool {
        let short = self.nodes[node].engine.fast_path_lane(request, len).filter(|_| self.shorts);
        let Some((lane, message)) = short else { return false };
        let Some(&(wire, side)) = self.nodes[node].lanes.get(&lane.0) else { return false };
        let (state, waits) = (&self.wires[wire].sides[side], self.wires[wire].dirs[side].bytes);
        if state.pending || state.over || state.closing || waits + FAST_PATH_FRAME_MAX > self.net.buffer {
            return false;
        }
        let Node { engine, mem, .. } = &mut self.nodes[node];
        let mut payload = Vec::new();
        mem.load(place, 0, len as usize, &mut payload);
        mem.release(place);
        engine.complete_fast_send(lane, request, &message, &payload);
        let frame = [&message.to_bytes()[..], &payload].concat();
        let cut = frame.len() / 2;
        let parts = [frame[..cut].to_vec(), frame[cut..].to_vec()];
        for part in parts {
            self.wires[wire].dirs[side].bytes += part.len();
            self.wires[wire].carried += part.len() as u64;
            self.send_chunk(wire, side, Chunk::Bytes(part));
        }
        self.went_short += 1;
        true
    }

    /// Everything is written: closes this side, and tells the other.
    pub(super) fn shut(&mut self, wire: usize, side: usize) {
        self.wires[wire].sides[side].closing = false;
        self.send_chunk(wire, side, Chunk::Fin);
        let linger = self.rng.below(3 * self.net.delay.1);
        self.after(linger, Event::Lost(wire, side, LaneLoss::Closed));
    }

    pub(super) fn write(&mut self, wire: usize, side: usize) {
        self.write_some(wire, side);
        let node = self.wires[wire].sides[side].node;
        self.pump(node);
    }

    pub(super) fn write_some(&mut self, wire: usize, side: usize) {
        loop {
            let from = &self.wires[wire].sides[side];
            let space = self.net.buffer.saturating_sub(self.wires[wire].dirs[side].bytes) as u64;
            if !from.pending || from.over || space == 0 {
                return;
            }
            let most = 1 + self.rng.below(self.net.chunk_max);
            let bytes = self.cut(wire, side, most.min(space));
            self.wires[wire].dirs[side].bytes += bytes.len();
            self.wires[wire].carried += bytes.len() as u64;
            self.send_chunk(wire, side, Chunk::Bytes(bytes));
            let Side { pending, batch, segment, .. } = &mut self.wires[wire].sides[side];
            if *segment == batch.segments.len() {
                *pending = false;
                let (fills_path, outdone) = (self.wires[wire].fills_path, self.net.outdone);
                self.taken(wire, side);
                let Side { node, lane, .. } = &self.wires[wire].sides[side];
                let Node { engine, dials_filling, .. } = &mut self.nodes[*node];
                let lane = lane.expect("a lane that writes");
                if outdone > 0 && !fills_path && (*dials_filling || self.rng.chance(outdone)) {
                    *dials_filling = true;
                    engine.on_lane_outdone(lane);
                }
                if self.wires[wire].sides[side].closing {
                    self.take_batch(wire, side);
                }
                return;
            }
            if self.net.rate == 0 && self.rng.chance(200) {
                let pause = self.rng.below(self.net.delay.0 + 10);
                return self.after(pause, Event::Write(wire, side));
            }
        }
    }

    /// The next bytes of a batch.
    pub(super) fn cut(&mut self, wire: usize, side: usize, most: u64) -> Vec<u8> {
        let Side { node, batch, segment, offset, .. } = &mut self.wires[wire].sides[side];
        let mut out = Vec::new();
        while *segment < batch.segments.len() && (out.len() as u64) < most {
            let room = most - out.len() as u64;
            let len = match batch.segments[*segment] {
                Segment::Bytes { start, end } => {
                    let from = start + *offset as usize;
                    let to = end.min(from + room as usize);
                    out.extend_from_slice(&batch.bytes[from..to]);
                    (end - start) as u64
                }
                Segment::Lent { place, offset: at, len } => {
                    let n = room.min(len - *offset);
                    self.nodes[*node].mem.load(place, at + *offset, n as usize, &mut out);
                    len
                }
            };
            *offset += room.min(len - *offset);
            if *offset == len {
                *segment += 1;
                *offset = 0;
            }
        }
        out
    }

    pub(super) fn understand(&mut self, wire: usize, side: usize) {
        while self.wires[wire].sides[side].filling.is_none() && !self.wires[wire].sides[side].over {
            match self.understand_one(wire, side) {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    self.faults.push(fault);
                    self.lose(wire, side, &LaneLoss::Broken(fault.to_string()));
                    self.after(100, Event::Lost(wire, 1 - side, LaneLoss::Closed));
                }
            }
        }
    }

    pub(super) fn understand_one(&mut self, wire: usize, side: usize) -> Result<bool, PeerFault> {
        let (place_it, whole_max) = (self.rng.chance(600), 1 << self.rng.below(20));
        let Side { node, lane, staging, filling, .. } = &mut self.wires[wire].sides[side];
        let Node { engine, mem, .. } = &mut self.nodes[*node];
        let Some(lane) = *lane else { return Ok(false) };
        if engine.streaming(lane).is_some() {
            if staging.is_empty() {
                return Ok(false);
            }
            if place_it && let Some(sink) = engine.sink(lane) {
                let n = staging.len().min(sink.len as usize);
                *filling = Some((sink, staging.drain(..n).collect()));
                let pause = self.rng.below(self.net.fill + 1);
                self.after(pause, Event::Fill(wire, side));
                return Ok(false);
            }
            let n = engine.feed(lane, staging, mem)?;
            staging.drain(..n);
            return Ok(true);
        }
        if self.runs && place_it {
            let (mut room, mut taken, mut count) = ([0; FAST_PATH_FRAME_MAX], 0, 0);
            let next = |room: &mut [u8]| {
                let rest = &staging[taken..];
                let message = Message::decode(rest).ok()??;
                let payload = rest[Message::LEN..].get(..message.payload as usize)?;
                room.get_mut(..payload.len())?.copy_from_slice(payload);
                (taken, count) = (taken + Message::LEN + payload.len(), count + 1);
                Some(message)
            };
            if engine.handle_messages(self.now, lane, &mut room, next, mem)? {
                staging.drain(..taken);
                self.longest_run = self.longest_run.max(count);
                return Ok(true);
            }
        }
        let Some(frame) = Frame::decode(staging)? else { return Ok(false) };
        let (header, payload) = (frame.header_len(), frame.payload_len() as usize);
        let whole = matches!(frame, Frame::Atomic(_) | Frame::Hello(_) | Frame::Welcome(_));
        if payload > 0 && !whole && (payload > whole_max || staging.len() < header + payload) {
            staging.drain(..header);
            engine.begin(self.now, lane, &frame, mem)?;
            return Ok(true);
        }
        let Some(bytes) = staging.get(header..header + payload) else { return Ok(false) };
        engine.handle(self.now, lane, &frame, bytes, mem)?;
        staging.drain(..header + payload);
        Ok(true)
    }

    pub(super) fn fill(&mut self, wire: usize, side: usize) {
        if self.wires[wire].sides[side].over {
            return;
        }
        self.end_fill(wire, side);
        self.understand(wire, side);
        let node = self.wires[wire].sides[side].node;
        self.pump(node);
    }

    pub(super) fn end_fill(&mut self, wire: usize, side: usize) {
        let Side { node, lane, filling, .. } = &mut self.wires[wire].sides[side];
        let Some((sink, bytes)) = filling.take() else { return };
        let Node { engine, mem, .. } = &mut self.nodes[*node];
        mem.store(sink.place, sink.offset, &bytes);
        let lane = lane.expect("a lane that reads");
        if let Err(fault) = engine.filled(lane, bytes.len() as u64, mem) {
            self.faults.push(fault);
        }
    }

    pub(super) fn lose(&mut self, wire: usize, side: usize, loss: &LaneLoss) {
        if self.wires[wire].sides[side].over {
            return;
        }
        self.end_fill(wire, side);
        let Side { node, lane, over, .. } = &mut self.wires[wire].sides[side];
        *over = true;
        let (node, Some(lane)) = (*node, *lane) else { return };
        self.nodes[node].lanes.remove(&lane.0);
        if self.nodes[node].alive {
            let Node { engine, mem, .. } = &mut self.nodes[node];
            engine.lane_lost(self.now, lane, loss, mem);
            self.pump(node);
        }
    }
}
