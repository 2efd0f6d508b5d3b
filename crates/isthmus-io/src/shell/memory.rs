//! The shell's lanes by shared memory. No descriptor tells of their bytes, so the driving thread looks at them, and it
//! tells their other ends before it sleeps.

use std::time::{Duration, Instant};

use super::Shell;
use crate::carrier::{MemoryLane, Spot};
use crate::engine::Core;
use crate::lane::Lane;
use crate::lane::table::LaneTable;
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

/// The lanes by shared memory: each is looked at in every pass, or its other end has to wake it.
#[derive(Debug)]
pub(super) struct MemoryLanes {
    /// Lanes that every pass looks at.
    awake: Vec<usize>,
    /// Number of lanes that wait to be woken instead.
    asleep: usize,
    /// The driving thread sleeps, so the lanes in `awake` wait to be woken, too.
    dozing: bool,
    /// The endpoint's watch shows what comes on all lanes, and no lane waits to write.
    watched: bool,
    /// When memory of idle lanes was last given back.
    rested: Instant,
}

fn memory_of(lanes: &mut LaneTable, index: usize) -> Option<&mut MemoryLane> {
    lanes.get_mut(index)?.carrier.memory()
}

impl MemoryLanes {
    pub(super) fn new() -> Self {
        Self { awake: Vec::new(), asleep: 0, dozing: false, watched: false, rested: Instant::now() }
    }

    /// Whether no lane is looked at in every pass.
    pub(super) fn is_empty(&self) -> bool {
        self.awake.is_empty()
    }

    /// Number of lanes that every pass looks at.
    pub(super) fn len(&self) -> usize {
        self.awake.len()
    }

    /// Number of lanes that every pass looks at, and of those that wait to be woken.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.awake.len(), self.asleep)
    }

    /// The lane at this position among those that every pass looks at.
    pub(super) fn at(&self, at: usize) -> Option<usize> {
        self.awake.get(at).copied()
    }

    /// Every pass looks at this lane from now on.
    fn add(&mut self, index: usize, lane: &mut Lane) {
        self.asleep -= usize::from(std::mem::take(&mut lane.asleep));
        self.awake.push(index);
    }

    /// The lane at this position waits to be woken from now on.
    fn put_to_sleep(&mut self, at: usize, lane: &mut Lane) {
        self.awake.swap_remove(at);
        lane.asleep = true;
        self.asleep += 1;
    }

    /// This lane has ended.
    pub(super) fn forget(&mut self, index: usize, lane: &Lane) {
        self.awake.retain(|other| *other != index);
        self.asleep -= usize::from(lane.asleep);
    }

    /// Tells the other ends that they need not wake us: a thread looks again and again.
    fn rouse(&mut self, lanes: &mut LaneTable) {
        if std::mem::take(&mut self.dozing) {
            for index in &self.awake {
                memory_of(lanes, *index).into_iter().for_each(MemoryLane::rouse);
            }
        }
    }

    /// Tells the other ends that they have to wake us. False if something has come already.
    fn doze(&mut self, lanes: &mut LaneTable) -> bool {
        self.dozing = !self.awake.is_empty();
        let mut quiet = true;
        for index in &self.awake {
            quiet &= memory_of(lanes, *index).is_none_or(MemoryLane::doze);
        }
        quiet
    }

    /// Every [`REST`], gives back memory of lanes on which nothing has come since.
    fn rest(&mut self, lanes: &mut LaneTable) {
        if self.rested.elapsed() <= REST {
            return;
        }
        for lane in lanes.iter_mut() {
            let silent = lane.heard_in == std::mem::replace(&mut lane.rested_in, lane.heard_in);
            if let (true, Some(memory)) = (silent, lane.carrier.memory()) {
                memory.rest();
            }
        }
        self.rested = Instant::now();
    }

    /// The watch no longer shows everything that comes: the shell has begun a pass, or a lane waits to write.
    pub(super) fn unwatch(&mut self) {
        self.watched = false;
    }

    /// Makes the endpoint's watch show what comes on all lanes. False if there is more to look at.
    pub(super) fn show(&mut self, lanes: &mut LaneTable, watch: &Watch) -> bool {
        if !self.watched {
            self.watched = !lanes.has_changed() && self.awake.len() <= WATCHED_MAX;
            for (at, index) in self.awake.iter().enumerate() {
                let memory = memory_of(lanes, *index);
                self.watched &= memory.zip(watch.spot(at)).is_some_and(|(memory, spot)| memory.show(spot));
            }
        }
        self.watched
    }

    /// The spot of the watch that shows what comes on the lane at this position, if the watch shows all lanes.
    pub(super) fn spot<'a>(&self, at: usize, watch: &'a Watch) -> Option<&'a Spot> {
        watch.spot(at).filter(|_| self.watched)
    }

    /// A lane was read whose bytes the watch shows. Makes it show the next ones.
    pub(super) fn show_next(&mut self, memory: &mut MemoryLane, spot: &Spot) {
        self.watched &= memory.show(spot);
    }

    /// Whether something came, or can be written.
    fn is_stirred(&self, lanes: &mut LaneTable) -> bool {
        self.awake.iter().any(|index| {
            memory_of(lanes, *index).is_some_and(|memory| memory.is_readable() || memory.is_writable())
        })
    }
}

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
        if self.passes.number().is_multiple_of(REST_PASSES) {
            self.memory.rest(&mut self.lanes);
        }
        read
    }

    fn look_through(&mut self, core: &Mutex<Core>) -> bool {
        let mut read = false;
        let crowded = self.memory.len() > MEMORY_LANES;
        for i in (0..self.memory.len()).rev() {
            // A lane that was lost meanwhile is no longer in the list.
            let Some(index) = self.memory.at(i) else { continue };
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            let Some(memory) = lane.carrier.memory() else { continue };
            let pass = self.passes.number();
            if memory.is_writable() {
                self.resume(index, core);
            } else if !memory.is_readable() {
                if crowded && pass.wrapping_sub(lane.heard_in) > MEMORY_PASSES && memory.doze() {
                    self.memory.put_to_sleep(i, lane);
                    self.lanes.note_change();
                }
                continue;
            }
            if let Some(lane) = self.lanes.get_mut(index) {
                lane.heard_in = pass;
            }
            read |= self.receive(index, core);
        }
        read
    }

    /// Tells the other ends of lanes by shared memory that they need not wake us: a thread looks again and again.
    pub(crate) fn rouse(&mut self) {
        self.memory.rouse(&mut self.lanes);
    }

    /// Tells the other ends of lanes by shared memory that they have to wake us. False if something has come already.
    pub(super) fn doze_by_memory(&mut self) -> bool {
        self.memory.rest(&mut self.lanes);
        self.memory.doze(&mut self.lanes)
    }

    pub(super) fn is_readable_by_memory(&mut self, index: usize) -> bool {
        memory_of(&mut self.lanes, index).is_some_and(|memory| memory.is_readable())
    }

    /// Makes every pass look at a lane by shared memory.
    pub(super) fn look_at(&mut self, index: usize) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let Some(memory) = lane.carrier.memory() else { return };
        memory.rouse();
        lane.heard_in = self.passes.number();
        self.memory.add(index, lane);
        self.lanes.note_change();
    }

    /// Whether something came by shared memory, or can be written there.
    pub(super) fn is_stirred(&mut self) -> bool {
        self.memory.is_stirred(&mut self.lanes)
    }
}
