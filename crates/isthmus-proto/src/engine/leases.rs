//! What lanes refer to of the program's buffers: the batch that is being written, and what was taken without a copy.
//!
//! An operation does not end while a lane refers to its buffer. Who has taken a batch and copied it says
//! [`Engine::written`]. Who sends from the buffers themselves, and again what is lost, says [`Engine::borrowed`], and
//! [`Engine::returned`] once it has no more use for them: most often that is before the peer's engine says that it has
//! them. Where it is not, as what was late on one lane came by another, it is asked to copy what it still needs
//! ([`Action::Recall`]).

use std::collections::VecDeque;

use super::{Action, Engine, LaneId};
use crate::memory::Memory;

/// Batches that a lane's shell has borrowed.
#[derive(Debug, Default)]
pub(super) struct Borrowed {
    /// The operations to whose buffers each refers, oldest batch first.
    batches: VecDeque<Vec<usize>>,
    /// Batches that were returned, and the first that are asked back, of all that were ever borrowed.
    returned: u64,
    recalled: u64,
}

impl Borrowed {
    /// How many batches there were up to the last that refers to an operation's buffer.
    fn last_of(&self, operation: usize) -> Option<u64> {
        let last = self.batches.iter().rposition(|batch| batch.contains(&operation))?;
        Some(self.returned + last as u64 + 1)
    }

    /// All operations, as often as they are referred to.
    pub(super) fn into_operations(self) -> impl Iterator<Item = usize> {
        self.batches.into_iter().flatten()
    }
}

impl Engine {
    /// The lane's batch was written whole: the buffers it referred to are free.
    pub fn written(&mut self, lane: LaneId, mem: &mut dyn Memory) {
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return };
        record.writable = true;
        let mut leases = std::mem::take(&mut record.leases);
        leases.drain(..).for_each(|operation| self.end_lease(operation, mem));
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.leases = leases;
        }
        self.go_on(lane);
    }

    /// The lane's batch was taken whole, but the buffers it referred to are in use until [`Engine::returned`].
    pub fn borrowed(&mut self, lane: LaneId) {
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return };
        let leases = std::mem::take(&mut record.leases);
        let over = leases.iter().copied().find(|operation| self.operations[*operation].is_over());
        record.borrowed.get_or_insert_default().batches.push_back(leases);
        record.writable = true;
        // Of several the last batch is the same.
        over.into_iter().for_each(|operation| self.recall(operation));
        self.go_on(lane);
    }

    /// The oldest batch that was [`Engine::borrowed`] is of no more use.
    pub fn returned(&mut self, lane: LaneId, mem: &mut dyn Memory) {
        let record = self.lanes.get_mut(lane.0 as usize);
        let Some(borrowed) = record.and_then(|record| record.borrowed.as_mut()) else { return };
        let Some(batch) = borrowed.batches.pop_front() else { return };
        borrowed.returned += 1;
        batch.into_iter().for_each(|operation| self.end_lease(operation, mem));
    }

    pub(super) fn end_lease(&mut self, operation: usize, mem: &mut dyn Memory) {
        self.operations[operation].leases -= 1;
        self.try_finish(operation, mem);
    }

    /// Has shells copy what they borrowed of an operation's buffer.
    pub(super) fn recall(&mut self, operation: usize) {
        for (index, lane) in &mut self.lanes {
            let Some(borrowed) = &mut lane.borrowed else { continue };
            if let Some(batches) = borrowed.last_of(operation)
                && batches > borrowed.recalled
            {
                borrowed.recalled = batches;
                self.actions.push_back(Action::Recall { lane: LaneId(index as u32), batches });
            }
        }
    }

    /// The lane has ended, and gives nothing back any more.
    pub(super) fn forget_recalls(&mut self, ended: LaneId) {
        self.actions.retain(|action| !matches!(action, Action::Recall { lane, .. } if *lane == ended));
    }

    /// The lane is to be given more, where there is more.
    fn go_on(&mut self, lane: LaneId) {
        let Some(record) = self.lanes.get(lane.0 as usize) else { return };
        let (peer, waits) = (record.peer, !record.control.is_empty());
        if waits || peer.is_some_and(|peer| self.connection(peer).has_output()) {
            self.make_ready(lane);
        }
    }
}
