//! Leases: pieces of the program's buffers that lanes refer to.
//!
//! An operation does not end while a lane refers to its buffer. A shell that has written or copied a whole batch says
//! [`Engine::written`]. A shell that sends, and sends again, from the buffers themselves says [`Engine::borrowed`]
//! first, and [`Engine::returned`] when it no longer needs them. Most often that happens before the peer acknowledges
//! the fragments to the engine. If a copy of a fragment went by another lane, the operation may end before the return.
//! The engine then asks the shell to copy what it still needs ([`Action::Recall`]).

use std::collections::VecDeque;

use super::{Action, Engine, LaneId};
use crate::memory::Memory;

/// Batches that a lane's shell has borrowed.
#[derive(Debug, Default)]
pub(super) struct Borrowed {
    /// The operations to whose buffers each refers, oldest batch first.
    batches: VecDeque<Vec<usize>>,
    /// Batches that were returned so far. Count.
    returned: u64,
    /// Batches that were asked back so far, counted from the first that was ever borrowed.
    recalled: u64,
}

impl Borrowed {
    /// The number of batches up to the last one that refers to an operation's buffer.
    fn last_of(&self, operation: usize) -> Option<u64> {
        let last = self.batches.iter().rposition(|batch| batch.contains(&operation))?;
        Some(self.returned + last as u64 + 1)
    }

    /// All operations, each as often as a batch refers to it.
    pub(super) fn into_operations(self) -> impl Iterator<Item = usize> {
        self.batches.into_iter().flatten()
    }
}

impl Engine {
    /// The lane's batch was written whole. Frees the buffers that it referred to.
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

    /// The shell took the lane's batch whole, but uses the buffers that it refers to until [`Engine::returned`].
    pub fn borrowed(&mut self, lane: LaneId) {
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return };
        let leases = std::mem::take(&mut record.leases);
        let over = leases.iter().copied().find(|operation| self.operations[*operation].is_over());
        record.borrowed.get_or_insert_default().batches.push_back(leases);
        record.writable = true;
        // One recall is enough: if several operations are over, the last batch of each is this one.
        over.into_iter().for_each(|operation| self.recall(operation));
        self.go_on(lane);
    }

    /// The shell no longer needs the buffers of the oldest borrowed batch.
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

    /// Asks shells to copy what they borrowed of an operation's buffer.
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

    /// Drops the requests to a lane that has ended.
    pub(super) fn forget_recalls(&mut self, ended: LaneId) {
        self.actions.retain(|action| !matches!(action, Action::Recall { lane, .. } if *lane == ended));
    }

    /// Makes the lane ready if there is more for it.
    fn go_on(&mut self, lane: LaneId) {
        let Some(record) = self.lanes.get(lane.0 as usize) else { return };
        let (peer, waits) = (record.peer, !record.control.is_empty());
        if waits || peer.is_some_and(|peer| self.connection(peer).has_output()) {
            self.make_ready(lane);
        }
    }
}
