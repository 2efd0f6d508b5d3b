//! The shell's lanes by shared memory. No descriptor tells of their bytes, so the driving thread looks at them, and it
//! tells their other ends before it sleeps.

use std::time::{Duration, Instant};

use super::{Core, Shell};
use crate::carrier::MemoryLane;
use crate::lock::Mutex;
use crate::watch::{WATCHED_MAX, Watch};

/// With more lanes by shared memory than this, idle ones are not looked at but wait to be woken. Count.
const MEMORY_LANES: usize = WATCHED_MAX;
/// A lane is idle after this many passes in which nothing came. Count.
const MEMORY_PASSES: u32 = 1 << 12;
/// Lanes by shared memory that were silent for this long give memory back.
const REST: Duration = Duration::from_secs(1);
/// While a thread polls without a pause, one in this many passes checks that. Count.
const REST_PASSES: u32 = 1 << 16;

impl Shell {
    /// Reads and writes lanes by shared memory. True if something came.
    pub(super) fn take_in_by_memory(&mut self, core: &Mutex<Core>) -> bool {
        if !self.borrowing.is_empty() {
            self.give_back(core);
        }
        let read = self.look_through(core);
        if read && self.memory.len() > 1 {
            // A peer may have sent to us before it told a second peer, whose message we have just read.
            // Look again, so that both are read in this pass.
            self.look_through(core);
        }
        if self.passes.is_multiple_of(REST_PASSES) {
            self.rest();
        }
        read
    }

    fn look_through(&mut self, core: &Mutex<Core>) -> bool {
        let mut read = false;
        let crowded = self.memory.len() > MEMORY_LANES;
        for i in (0..self.memory.len()).rev() {
            // A lane that was lost meanwhile is no longer in the list.
            let Some(&index) = self.memory.get(i) else { continue };
            let Some(Some(lane)) = self.lanes.get_mut(index) else { continue };
            let Some(memory) = lane.carrier.memory() else { continue };
            if memory.is_writable() {
                self.resume(index, core);
            } else if !memory.is_readable() {
                if crowded && self.passes.wrapping_sub(lane.heard_in) > MEMORY_PASSES && memory.doze() {
                    self.memory.swap_remove(i);
                    lane.asleep = true;
                    self.asleep += 1;
                    self.changed = true;
                }
                continue;
            }
            if let Some(Some(lane)) = self.lanes.get_mut(index) {
                lane.heard_in = self.passes;
            }
            read |= self.receive(index, core);
        }
        read
    }

    /// Tells the other ends of lanes by shared memory that they need not wake us: a thread looks again and again.
    pub(crate) fn rouse(&mut self) {
        if std::mem::take(&mut self.dozing) {
            for index in &self.memory {
                let lane = self.lanes.get_mut(*index).and_then(Option::as_mut);
                lane.and_then(|lane| lane.carrier.memory()).into_iter().for_each(MemoryLane::rouse);
            }
        }
    }

    /// Tells the other ends of lanes by shared memory that they have to wake us. False if something has come already.
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

    /// Every [`REST`], gives back memory of lanes on which nothing has come since.
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

    /// Makes the endpoint's watch show what comes on all lanes. False if there is more to look at.
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

    /// Makes every pass look at a lane by shared memory.
    pub(super) fn look_at(&mut self, index: usize) {
        let Some(Some(lane)) = self.lanes.get_mut(index) else { return };
        let Some(memory) = lane.carrier.memory() else { return };
        memory.rouse();
        lane.heard_in = self.passes;
        self.asleep -= usize::from(std::mem::take(&mut lane.asleep));
        self.memory.push(index);
        self.changed = true;
    }

    /// Whether something came by shared memory, or can be written there.
    pub(super) fn is_stirred(&mut self) -> bool {
        self.memory.iter().any(|index| {
            let lane = self.lanes.get_mut(*index).and_then(Option::as_mut);
            let memory = lane.and_then(|lane| lane.carrier.memory());
            memory.is_some_and(|memory| memory.is_readable() || memory.is_writable())
        })
    }
}
