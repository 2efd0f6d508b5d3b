//! Faults and repairs of lanes, routers, rails and processes.

use isthmus_proto::{Bulk, LaneId, LaneLoss};

use super::{Event, Health, Net, Wire, World};

impl World {
    pub(super) fn break_some(&mut self) {
        let open = self.open_wires();
        if !open.is_empty() {
            let wire = self.rng.pick(&open);
            self.break_wire(wire);
        }
        self.schedule_break();
    }

    /// Wires of which both ends work.
    pub(crate) fn open_wires(&self) -> Vec<usize> {
        let open = |wire: &usize| {
            let wire = &self.wires[*wire];
            wire.sides.iter().all(|side| !side.over) && wire.dirs.iter().all(|dir| !dir.dead)
        };
        (0..self.wires.len()).filter(open).collect()
    }

    /// Breaks a lane. The bytes in flight are lost from a random point on, and each side learns of it later.
    pub(crate) fn break_wire(&mut self, wire: usize) {
        for side in 0..2 {
            let keep = self.rng.below(self.wires[wire].dirs[side].flight.len() as u64 + 1);
            let dir = &mut self.wires[wire].dirs[side];
            dir.flight.truncate(keep as usize);
            dir.dead = true;
            let notice = self.rng.below(self.net.notice + 1);
            let loss = if self.rng.chance(500) {
                LaneLoss::Closed
            } else {
                LaneLoss::Broken("reset by peer".into())
            };
            self.after(notice, Event::Lost(wire, side, loss));
        }
    }

    /// All bytes on this lane vanish from now on. TCP notices by itself after 20 s.
    pub(crate) fn hang_wire(&mut self, wire: usize) {
        for side in 0..2 {
            self.wires[wire].dirs[side].flight.clear();
            self.wires[wire].dirs[side].dead = true;
            let loss = LaneLoss::Broken("timed out".into());
            self.after(20_000_000, Event::Lost(wire, side, loss));
        }
    }

    /// A router's process ends.
    pub(crate) fn kill_router(&mut self, router: usize) {
        self.routers[router] = Health::Dead;
        for wire in self.wires_of(router) {
            self.break_wire(wire);
        }
    }

    /// A router stops, and keeps its sockets.
    pub(crate) fn hang_router(&mut self, router: usize) {
        self.routers[router] = Health::Hung;
        for wire in self.wires_of(router) {
            for dir in &mut self.wires[wire].dirs {
                dir.flight.clear();
                dir.dead = true;
            }
        }
    }

    /// All bytes on this rail vanish from now on. Both ends notice after 20 s.
    pub(crate) fn cut_rail(&mut self, rail: usize) {
        self.cut[rail] = true;
        for wire in 0..self.wires.len() {
            if self.wires[wire].router.is_some() || self.wires[wire].rail != rail {
                continue;
            }
            self.hang_wire(wire);
        }
    }

    /// New lanes can be made on this rail again.
    pub(crate) fn mend_rail(&mut self, rail: usize) {
        self.cut[rail] = false;
    }

    /// Bytes that were written to lanes on this rail.
    pub(crate) fn carried(&self, rail: usize) -> u64 {
        self.wires.iter().filter(|wire| wire.rail == rail).map(|wire| wire.carried).sum()
    }

    /// Bytes that each lane has carried.
    pub(crate) fn carried_each(&self) -> Vec<u64> {
        self.wires.iter().map(|wire| wire.carried).collect()
    }

    /// A process's lanes on the wires that `wires` selects.
    fn lanes_among(&self, node: usize, wires: impl Fn(&Wire) -> bool) -> Vec<LaneId> {
        let sides = self.wires.iter().filter(|wire| wires(wire)).flat_map(|wire| &wire.sides);
        sides.filter(|side| side.node == node && !side.over).filter_map(|side| side.lane).collect()
    }

    /// A process measures a shorter round trip on all its lanes than before. Microseconds.
    pub(crate) fn find_nearer(&mut self, node: usize, rtt_us: u64) {
        let lanes = self.lanes_among(node, |_| true);
        lanes.into_iter().for_each(|lane| self.nodes[node].engine.set_lane_rtt(lane, rtt_us));
        self.pump(node);
    }

    /// A process decides how much of the bulk data is for its lanes that fill their path.
    pub(crate) fn set_bulk(&mut self, node: usize, bulk: Bulk) {
        self.nodes[node].dials_filling = bulk == Bulk::All;
        let lanes = self.lanes_among(node, |wire| wire.fills_path);
        lanes.into_iter().for_each(|lane| self.nodes[node].engine.set_lane_bulk(lane, bulk));
        self.pump(node);
    }

    /// Bytes that the lanes that fill their path have carried, and the number of these lanes.
    pub(crate) fn filling(&self) -> (u64, usize) {
        let filling = self.wires.iter().filter(|wire| wire.fills_path);
        (filling.clone().map(|wire| wire.carried).sum(), filling.count())
    }

    /// Bytes under way on a wire, in both directions.
    pub(crate) fn under_way(&self, wire: usize) -> usize {
        self.wires[wire].dirs.iter().map(|dir| dir.bytes).sum()
    }

    /// A router's process starts anew.
    pub(crate) fn start_router(&mut self, router: usize) {
        if self.routers[router] == Health::Hung {
            self.kill_router(router);
        }
        self.routers[router] = Health::Up;
    }

    /// Lanes that work through a router.
    pub(crate) fn lanes_of(&self, router: usize) -> usize {
        self.wires_of(router).len()
    }

    pub(super) fn wires_of(&self, router: usize) -> Vec<usize> {
        let through = |wire: &usize| {
            let wire = &self.wires[*wire];
            wire.router == Some(router) && wire.sides.iter().any(|side| !side.over)
        };
        (0..self.wires.len()).filter(through).collect()
    }

    /// The network works from now on.
    pub(crate) fn heal(&mut self) {
        for router in 0..self.routers.len() {
            self.start_router(router);
        }
        let Net { delay, chunk_max, buffer, fill, .. } = self.net.clone();
        self.net = Net { delay, chunk_max, buffer, fill, ..Net::calm() };
    }

    /// A process ends without a Bye.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].alive = false;
        for wire in self.open_wires() {
            if self.wires[wire].sides.iter().any(|side| side.node == node) {
                self.break_wire(wire);
            }
        }
    }

    /// The process closes its endpoint in good order.
    pub(crate) fn close(&mut self, node: usize, linger: u64) {
        let until = self.now + linger;
        self.nodes[node].engine.begin_close();
        while !self.nodes[node].engine.is_drained() && self.next_at().is_some_and(|at| at <= until) {
            self.step();
        }
        self.nodes[node].engine.say_bye();
        self.pump(node);
    }
}
