//! Batches that a lane's shell takes without a copy and gives back later.

use isthmus_proto::{LaneId, Memory, Segment};

use super::{Event, Node, Side, World};

impl World {
    /// A batch was taken whole: it counts as written, or as borrowed for a while.
    pub(super) fn taken(&mut self, wire: usize, side: usize) {
        let (borrows, most_us) = self.net.borrows;
        let borrowed = borrows > 0 && self.rng.chance(borrows);
        let Side { node, lane, batch, borrowed: batches, .. } = &mut self.wires[wire].sides[side];
        let Node { engine, mem, .. } = &mut self.nodes[*node];
        let lane = lane.expect("a lane that writes");
        if !borrowed {
            return engine.written(lane, mem);
        }
        let lent = batch.segments.iter().filter(|segment| matches!(segment, Segment::Lent { .. }));
        batches.push_back(lent.copied().collect());
        engine.borrowed(lane);
        let most = self.rng.below(most_us + 1);
        self.after(most, Event::Return(wire, side));
    }

    /// Returns the oldest borrowed batch.
    pub(super) fn give_back(&mut self, wire: usize, side: usize) {
        let Side { node, lane, borrowed, over, returned, .. } = &mut self.wires[wire].sides[side];
        let (false, Some(lane)) = (*over, *lane) else { return };
        let Some(batch) = borrowed.pop_front() else { return };
        *returned += 1;
        let Node { engine, mem, .. } = &mut self.nodes[*node];
        for segment in batch {
            // The arena panics if the buffer is the program's again.
            if let Segment::Lent { place, offset, len } = segment {
                mem.load(place, offset, len as usize, &mut Vec::new());
            }
        }
        engine.returned(lane, mem);
    }

    /// Returns the first `batches` batches that the lane ever borrowed, since the engine recalls them.
    pub(super) fn recall(&mut self, node: usize, lane: LaneId, batches: u64) {
        let Some(&(wire, side)) = self.nodes[node].lanes.get(&lane.0) else { return };
        while self.wires[wire].sides[side].returned < batches {
            assert!(!self.wires[wire].sides[side].borrowed.is_empty(), "more is recalled than was borrowed");
            self.recalled += 1;
            self.give_back(wire, side);
        }
    }
}
