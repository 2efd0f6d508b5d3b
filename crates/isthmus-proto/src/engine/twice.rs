//! Messages that go twice, as they ask: each of their fragments by two lanes, and the receiver drops what
//! comes second. What one lane has to repair, or holds up, the other brings.

use super::state::{Kind, LaneState, Load};
use super::{Batch, Engine, LaneId};
use crate::PeerId;
use crate::memory::Memory;

/// Longest message that goes twice when it asks for it. Bytes.
pub const TWICE_MAX: u64 = 64 << 10;
/// Lanes that there are to be for messages that go twice.
const LANES: usize = 2;
/// Fragments that may wait to go a second time by one lane: further ones go once.
const WAITING: usize = 256;

impl Engine {
    /// Whether an operation's fragments are to go twice.
    pub(super) fn goes_twice(&self, index: usize) -> bool {
        let operation = &self.operations[index];
        let message = matches!(operation.kind, Kind::Message { .. });
        operation.options.twice && message && operation.total <= TWICE_MAX
    }

    /// A fragment goes by this lane: it goes by another as well, if there is one here that is to go twice.
    pub(super) fn copy_later(&mut self, peer: PeerId, lane: LaneId, seq: Option<u64>) {
        let Some(seq) = seq else { return };
        let address = self.peers[peer.0 as usize].address;
        let connection = self.connection(peer);
        if !connection.is_far() {
            return;
        }
        let carriers = connection.carriers();
        let other = connection.lanes[..carriers].iter().copied().find(|other| *other != lane);
        let lanes = connection.lanes.len() + connection.dialing as usize;
        let Some(other) = other else {
            if lanes < LANES && !self.is_routed(&address) {
                self.dial(peer);
            }
            return;
        };
        let record = &mut self.lanes[other.0 as usize];
        if record.state != LaneState::Closing && record.copies.len() < WAITING {
            record.copies.push(seq);
            self.make_ready(other);
        }
    }

    /// Appends what this lane is to send a second time, and has not been acknowledged yet. How many frames.
    pub(super) fn put_copies(
        &mut self,
        peer: PeerId,
        lane: LaneId,
        batch: &mut Batch,
        mem: &mut dyn Memory,
    ) -> u32 {
        let mut copies = std::mem::take(&mut self.lanes[lane.0 as usize].copies);
        let mut frames = 0;
        for seq in copies.drain(..) {
            let Some(flight) = self.connection(peer).window.get_mut(seq) else { continue };
            match &flight.load {
                Load::Kept { bytes, .. } => batch.push_bytes(bytes),
                &Load::Piece { operation, offset, len } => {
                    self.put_piece(lane, operation, seq, offset, len, batch, mem);
                }
            }
            self.counters.fragments_doubled += 1;
            frames += 1;
        }
        self.lanes[lane.0 as usize].copies = copies;
        frames
    }
}
