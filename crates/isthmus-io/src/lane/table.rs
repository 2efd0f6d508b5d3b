//! The table of an endpoint's lanes, by index.

use super::{Lane, Phase};

/// The lanes, and how many there are in which phase. It alone moves a lane from one phase to the next, so the counts are
/// always right.
#[derive(Debug, Default)]
pub(crate) struct LaneTable {
    slots: Vec<Option<Lane>>,
    /// Lanes in any phase.
    count: usize,
    open: usize,
    /// Lanes that were accepted and are not authenticated yet.
    ungreeted: usize,
    /// Lanes have come, gone, or changed their phase or the way in which they are looked at.
    changed: bool,
}

impl LaneTable {
    pub(crate) fn get(&self, index: usize) -> Option<&Lane> {
        self.slots.get(index)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Lane> {
        self.slots.get_mut(index)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.slots.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.slots.iter_mut().flatten()
    }

    /// One more than the largest index in use.
    pub(crate) fn end(&self) -> usize {
        self.slots.len()
    }

    /// Adds a lane.
    pub(crate) fn insert(&mut self, index: usize, lane: Lane) {
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.count += 1;
        self.tally(&lane, 1);
        self.slots[index] = Some(lane);
        self.changed = true;
    }

    /// Removes a lane.
    pub(crate) fn take(&mut self, index: usize) -> Option<Lane> {
        let lane = self.slots.get_mut(index)?.take()?;
        self.count -= 1;
        self.tally(&lane, -1);
        self.changed = true;
        Some(lane)
    }

    /// Moves a lane to this phase.
    pub(crate) fn enter(&mut self, index: usize, phase: Phase) {
        if let Some(mut lane) = self.slots.get_mut(index).and_then(Option::take) {
            self.tally(&lane, -1);
            lane.enter(phase);
            self.tally(&lane, 1);
            self.slots[index] = Some(lane);
            self.changed = true;
        }
    }

    fn tally(&mut self, lane: &Lane, by: isize) {
        let counter = if lane.phase() == Phase::Open {
            &mut self.open
        } else if lane.is_ungreeted() {
            &mut self.ungreeted
        } else {
            return;
        };
        *counter = counter.wrapping_add_signed(by);
    }

    /// Number of lanes, in any phase.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Number of lanes that were accepted and are not authenticated yet.
    pub(crate) fn ungreeted(&self) -> usize {
        self.ungreeted
    }

    /// Number of lanes that are coming up or going down.
    pub(crate) fn unsettled(&self) -> usize {
        self.count - self.open
    }

    /// Notes that a lane is looked at in another way.
    pub(crate) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Whether lanes have changed since the last [`LaneTable::take_change`].
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }

    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}
