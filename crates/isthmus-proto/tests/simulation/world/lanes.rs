//! Lanes: they come up, directly or through a router, and carry the bytes that are written to them.

use std::net::SocketAddr;

use isthmus_proto::{LaneId, LaneLoss};
use isthmus_wire::Frame;
use isthmus_wire::frame::{Hello, MAGIC, PROTOCOL_OLDEST, PROTOCOL_VERSION, Refuse, RefuseReason};

use super::{Chunk, Event, Health, Node, ROUTER_PORT, Side, Wire, World};

impl World {
    pub(super) fn dial(&mut self, node: usize, lane: LaneId, locator: SocketAddr) {
        self.dials += 1;
        let delay = 2 * self.rng.within(self.net.delay);
        let port = usize::from(locator.port());
        let (target, rail) = (port % 1000, (port / 1000).saturating_sub(1));
        let router = port.checked_sub(ROUTER_PORT).filter(|router| *router < self.routers.len());
        let health = router.map(|router| self.routers[router]);
        if router.is_none() && self.cut[rail] {
            // The other end never learns of it.
            let wire = self.wires.len();
            self.wires.push(Wire { rail, ..Wire::default() });
            self.wires[wire].sides[0] = Side { node, lane: Some(lane), ..Side::default() };
            self.wires[wire].sides[1].over = true;
            return self.after(3_000_000, Event::Lost(wire, 0, LaneLoss::Broken("timed out".into())));
        }
        let listens = match health {
            Some(health) => health != Health::Dead,
            None => self.nodes.get(target).is_some_and(|node| node.alive),
        };
        if !listens || self.rng.chance(self.net.refused) {
            return self.after(delay, Event::DialFailed(node, lane, LaneLoss::Refused));
        }
        if self.rng.chance(self.net.timed_out) {
            let loss = LaneLoss::Broken("timed out".into());
            return self.after(delay * 50, Event::DialFailed(node, lane, loss));
        }
        let wire = self.wires.len();
        self.wires.push(Wire::default());
        self.wires[wire].sides[0].node = node;
        self.wires[wire].sides[0].lane = Some(lane);
        self.after(delay, Event::Connected(wire));
        self.wires[wire].router = router;
        self.wires[wire].rail = rail;
        self.wires[wire].fills_path = router.is_none() && self.nodes[node].dials_filling;
        if health == Some(Health::Hung) || self.rng.chance(self.net.unanswered) {
            self.wires[wire].dirs[0].dead = true;
            self.wires[wire].sides[1].over = true;
            return;
        }
        if router.is_some() {
            self.wires[wire].hello = Some(Vec::new());
            return;
        }
        self.wires[wire].sides[1].node = target;
        let later = delay / 2 + self.rng.below(delay);
        self.after(later, Event::Accept(wire));
    }

    pub(super) fn dial_failed(&mut self, node: usize, lane: LaneId, loss: &LaneLoss) {
        let Node { engine, mem, alive, .. } = &mut self.nodes[node];
        if *alive {
            engine.lane_lost(self.now, lane, loss, mem);
            self.pump(node);
        }
    }

    pub(super) fn connected(&mut self, wire: usize) {
        let side = &self.wires[wire].sides[0];
        let (node, over) = (side.node, side.over);
        let Some(lane) = side.lane else { return };
        if over || !self.nodes[node].alive {
            return;
        }
        self.nodes[node].lanes.insert(lane.0, (wire, 0));
        if self.wires[wire].fills_path {
            self.nodes[node].engine.set_lane_fills_path(lane);
        }
        self.nodes[node].engine.set_lane_limit(lane, self.net.limit());
        if self.seals && lane.0.is_multiple_of(2) {
            self.nodes[node].engine.seal_lane(lane);
        }
        self.nodes[node].engine.lane_connected(self.now, lane);
        self.pump(node);
    }

    pub(super) fn accept(&mut self, wire: usize) {
        let fills_path = self.wires[wire].fills_path;
        let side = &mut self.wires[wire].sides[1];
        let node = side.node;
        if side.over {
            return;
        }
        if !self.nodes[node].alive {
            side.over = true;
            return self.after(50, Event::Lost(wire, 0, LaneLoss::Closed));
        }
        let lane = self.nodes[node].engine.lane_accepted();
        side.lane = Some(lane);
        self.nodes[node].lanes.insert(lane.0, (wire, 1));
        self.nodes[node].engine.set_lane_limit(lane, self.net.limit());
        if fills_path {
            self.nodes[node].engine.set_lane_fills_path(lane);
        }
        self.pump(node);
    }

    pub(super) fn send_chunk(&mut self, wire: usize, side: usize, chunk: Chunk) {
        let mut delay = self.rng.within(self.net.delay);
        if self.net.lost > 0 && self.rng.chance(self.net.lost) {
            delay += 2 * self.net.delay.1;
        }
        let dir = &mut self.wires[wire].dirs[side];
        if dir.dead {
            return;
        }
        if let (Chunk::Bytes(bytes), true) = (&chunk, self.net.rate > 0) {
            dir.left = dir.left.max(self.now) + bytes.len() as u64 * 1_000_000 / self.net.rate;
        }
        dir.last = dir.last.max(self.now.max(dir.left) + delay);
        dir.flight.push_back(chunk);
        let at = dir.last;
        self.at(at, Event::Deliver(wire, side));
    }

    /// The router reads the Hello of a new lane, and connects the lane with the process that the Hello names.
    pub(super) fn route(&mut self, wire: usize) {
        let Some(Chunk::Bytes(bytes)) = self.wires[wire].dirs[0].flight.pop_front() else { return };
        let mut read = self.wires[wire].hello.take().unwrap_or_default();
        read.extend(bytes);
        let Ok(Some(Frame::Hello(mut hello))) = Frame::decode(&read) else {
            self.wires[wire].hello = Some(read);
            return;
        };
        let target = usize::from(hello.target.locator.port()) - 1000;
        if !self.nodes[target].alive {
            let reason = RefuseReason::Absent as u8;
            let mut refuse = Vec::new();
            let (version, oldest) = (PROTOCOL_VERSION, PROTOCOL_OLDEST);
            Frame::from(Refuse { magic: MAGIC, version, reason, oldest }).encode(&mut refuse);
            self.wires[wire].sides[1].over = true;
            self.wires[wire].dirs[1].bytes += refuse.len();
            self.send_chunk(wire, 1, Chunk::Bytes(refuse));
            return self.send_chunk(wire, 1, Chunk::Fin);
        }
        hello.hops += 1;
        let mut onward = Vec::new();
        Frame::from(hello).encode(&mut onward);
        onward.extend(&read[Hello::LEN..]);
        self.wires[wire].dirs[0].flight.push_front(Chunk::Bytes(onward));
        self.wires[wire].sides[1].node = target;
        let delay = self.rng.within(self.net.delay);
        self.after(delay, Event::Accept(wire));
        self.after(delay, Event::Deliver(wire, 0));
    }

    pub(super) fn deliver(&mut self, wire: usize, dir: usize) {
        if dir == 0 && self.wires[wire].hello.is_some() {
            return self.route(wire);
        }
        let to = &self.wires[wire].sides[1 - dir];
        if to.lane.is_none() && !to.over {
            return self.after(20, Event::Deliver(wire, dir)); // not yet accepted
        }
        let Some(chunk) = self.wires[wire].dirs[dir].flight.pop_front() else { return };
        let node = self.wires[wire].sides[1 - dir].node;
        let over = self.wires[wire].sides[1 - dir].over || !self.nodes[node].alive;
        match chunk {
            Chunk::Fin => return self.lose(wire, 1 - dir, &LaneLoss::Closed),
            Chunk::Bytes(bytes) => {
                self.wires[wire].dirs[dir].bytes -= bytes.len();
                if !over {
                    self.wires[wire].sides[1 - dir].staging.extend(bytes);
                    let more = matches!(self.wires[wire].dirs[dir].flight.front(), Some(Chunk::Bytes(_)));
                    // The reader may be late, and then reads several chunks at once.
                    if !(self.runs && more && self.rng.chance(700)) {
                        self.understand(wire, 1 - dir);
                        self.pump(node);
                    }
                }
            }
        }
        self.write(wire, dir);
    }
}
