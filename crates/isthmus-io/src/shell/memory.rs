//! The shell's lanes through shared memory: no descriptor tells of their bytes, so whoever turns the shell
//! looks at them, and says to their other ends when it goes to sleep.

use std::time::{Duration, Instant};

use super::{Core, Shell};
use crate::carrier::MemoryLane;
use crate::lock::Mutex;
use crate::watch::{WATCHED_MAX, Watch};

/// Lanes by shared memory beyond this are looked at only while something comes: those on which nothing
/// has come in [`MEMORY_TURNS`] turns wait to be woken.
const MEMORY_LANES: usize = WATCHED_MAX;
const MEMORY_TURNS: u32 = 1 << 12;
/// Lanes by shared memory that were silent for so long give memory back; whoever polls without a pause looks
/// after that every [`REST_TURNS`].
const REST: Duration = Duration::from_secs(1);
const REST_TURNS: u32 = 1 << 16;

impl Shell {
    /// Looks after lanes by shared memory; true where something came.
    pub(super) fn take_in_by_memory(&mut self, core: &Mutex<Core>) -> bool {
        if !self.borrowing.is_empty() {
            self.give_back(core);
        }
        let read = self.look_through(core);
        if read && self.memory.len() > 1 {
            // What one peer had sent before it told another, and that one us, is there by now.
            self.look_through(core);
        }
        if self.turns.is_multiple_of(REST_TURNS) {
            self.rest();
        }
        read
    }

    fn look_through(&mut self, core: &Mutex<Core>) -> bool {
        let mut read = false;
        let crowded = self.memory.len() > MEMORY_LANES;
        for i in (0..self.memory.len()).rev() {
            // A lane that was lost meanwhile has left the list.
            let Some(&index) = self.memory.get(i) else { continue };
            let Some(Some(lane)) = self.lanes.get_mut(index) else { continue };
            let Some(memory) = lane.carrier.memory() else { continue };
            if memory.is_writable() {
                self.resume(index, core);
            } else if !memory.is_readable() {
                if crowded && self.turns.wrapping_sub(lane.heard_in) > MEMORY_TURNS && memory.doze() {
                    self.memory.swap_remove(i);
                    lane.asleep = true;
                    self.asleep += 1;
                    self.changed = true;
                }
                continue;
            }
            if let Some(Some(lane)) = self.lanes.get_mut(index) {
                lane.heard_in = self.turns;
            }
            read |= self.receive(index, core);
        }
        read
    }

    /// Whoever turns the shell looks after lanes by shared memory again and again from now on, and need
    /// not be woken.
    pub(crate) fn rouse(&mut self) {
        if std::mem::take(&mut self.dozing) {
            for index in &self.memory {
                let lane = self.lanes.get_mut(*index).and_then(Option::as_mut);
                lane.and_then(|lane| lane.carrier.memory()).into_iter().for_each(MemoryLane::rouse);
            }
        }
    }

    /// Lets the other ends of lanes by shared memory know that they have to wake us; false where
    /// something has come already.
    pub(super) fn doze_by_memory(&mut self) -> bool {
        self.rest();
        self.dozing = !self.memory.is_empty();
        let mut quiet = true;
        for index in &self.memory {
            let lane = self.lanes.get_mut(*index).and_then(Option::as_mut);
            quiet &= lane.and_then(|lane| lane.carrier.memory()).is_none_or(MemoryLane::doze);
        }
        quiet
    }

    pub(super) fn is_readable_by_memory(&mut self, index: usize) -> bool {
        let lane = self.lanes.get_mut(index).and_then(Option::as_mut);
        lane.and_then(|lane| lane.carrier.memory()).is_some_and(|memory| memory.is_readable())
    }

    /// Now and then gives back memory of lanes on which nothing has come since.
    fn rest(&mut self) {
        if self.rested.elapsed() <= REST {
            return;
        }
        for lane in self.lanes.iter_mut().flatten() {
            let silent = lane.heard_in == std::mem::replace(&mut lane.rested_in, lane.heard_in);
            if let (true, Some(memory)) = (silent, lane.carrier.memory()) {
                memory.rest();
            }
        }
        self.rested = Instant::now();
    }

    /// Has the endpoint's watch show what comes on all lanes; false where more than that is to be looked at.
    pub(super) fn show(&mut self, watch: &Watch) -> bool {
        if !self.watched {
            self.watched = !self.changed && self.memory.len() <= WATCHED_MAX;
            for (at, index) in self.memory.iter().enumerate() {
                let lane = self.lanes.get_mut(*index).and_then(Option::as_mut);
                let memory = lane.and_then(|lane| lane.carrier.memory());
                self.watched &= memory.zip(watch.spot(at)).is_some_and(|(memory, spot)| memory.show(spot));
            }
        }
        self.watched
    }

    /// A lane by shared memory is to be looked at in every turn.
    pub(super) fn look_at(&mut self, index: usize) {
        let Some(Some(lane)) = self.lanes.get_mut(index) else { return };
        let Some(memory) = lane.carrier.memory() else { return };
        memory.rouse();
        lane.heard_in = self.turns;
        self.asleep -= usize::from(std::mem::take(&mut lane.asleep));
        self.memory.push(index);
        self.changed = true;
    }

    /// Whether something came by shared memory, or may go there.
    pub(super) fn is_stirred(&mut self) -> bool {
        self.memory.iter().any(|index| {
            let lane = self.lanes.get_mut(*index).and_then(Option::as_mut);
            let memory = lane.and_then(|lane| lane.carrier.memory());
            memory.is_some_and(|memory| memory.is_readable() || memory.is_writable())
        })
    }
}
