//! Regions of registered memory that one end of a lane shows the other for direct access.
//!
//! Each end has a page of slots. An end that accesses a region first writes which of the other's slots it uses, and
//! then checks that the slot is unchanged. An end that hides a region first empties its slot, and then waits while the
//! other uses it. Both do so by sequentially consistent operations: either the one sees that the slot is empty, or the
//! other sees that it is used.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use isthmus_proto::{Access as Wanted, RemoteRange};

use super::process_vm::Process;
use super::segment::{AT_SHOWN, AT_USES, Mapping, PAGE, Segment, half};
use crate::region::{Access, Region};

/// Length of a slot: a cache line. Bytes.
const SLOT: usize = 64;
/// Number of slots of an end.
const SLOTS: usize = PAGE / SLOT;
/// A region is in one of this many slots, counted from the one that its key selects. Count.
const PROBES: usize = 8;

// Offsets in a slot. The state is a number that differs each time, or 0 if the slot shows nothing.
const AT_STATE: usize = 0;
const AT_KEY: usize = 8;
const AT_BASE: usize = 16;
const AT_LEN: usize = 24;
const AT_KIND: usize = 32;

// Bits of a slot's kind.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const BY_ADDRESS: u64 = 4;

/// Interval at which an end that waits for the other process checks that it lives.
const LIFE_SIGNS: Duration = Duration::from_millis(1);

/// The offset of a word of an end's slot.
fn at(end: usize, slot: usize, word: usize) -> usize {
    AT_SHOWN + end * PAGE + slot * SLOT + word
}

/// Slots that may hold a region with this key.
fn probes(key: u64) -> impl Iterator<Item = usize> {
    let first = key as usize % SLOTS;
    (first..first + PROBES).map(|slot| slot % SLOTS)
}

/// A region that the other end may access directly.
#[derive(Debug)]
pub(crate) struct ShownRegion {
    memory: Weak<Mapping>,
    end: usize,
    slot: usize,
    state: u64,
    neighbour: Process,
}

impl ShownRegion {
    /// Whether the lane has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.memory.strong_count() == 0
    }

    /// Hides it: the other end does not access it after this returns.
    pub(crate) fn hide(&self) {
        let Some(memory) = self.memory.upgrade() else { return };
        let state = memory.word(at(self.end, self.slot, AT_STATE));
        // If this fails, the slot was emptied before. The wait is needed either way.
        let _ = state.compare_exchange(self.state, 0, SeqCst, SeqCst);
        wait(&memory, self.end, self.neighbour, |used| used == self.slot as u64 + 1);
    }
}

/// Waits while the other end lives and uses a slot for which `is_meant` is true.
fn wait(memory: &Mapping, end: usize, neighbour: Process, is_meant: impl Fn(u64) -> bool) {
    let used = memory.word(half(1 - end) + AT_USES);
    let mut asked = Instant::now();
    while is_meant(used.load(SeqCst)) {
        if asked.elapsed() > LIFE_SIGNS {
            if !neighbour.is_accessible() {
                return;
            }
            asked = Instant::now();
        }
        std::thread::yield_now();
    }
}

/// A range of a region that the other end shows us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownRange {
    slot: usize,
    state: u64,
    /// Its address in the other process.
    pub(super) address: u64,
}

impl Segment {
    /// Whether we show a region with this key.
    pub(super) fn shows(&self, key: u64) -> bool {
        self.shown > 0
            && probes(key).any(|slot| {
                let word = |word| self.memory.word(at(self.end, slot, word)).load(Relaxed);
                word(AT_STATE) != 0 && word(AT_KEY) == key
            })
    }

    /// Shows a region, if there is a slot for it.
    pub(super) fn show(&mut self, key: u64, region: &Region, neighbour: Process) -> Option<ShownRegion> {
        let is_free = |slot: &usize| self.memory.word(at(self.end, *slot, AT_STATE)).load(SeqCst) == 0;
        let slot = probes(key).find(is_free)?;
        let bit = |set, bit| if set { bit } else { 0 };
        let kind = bit(region.access.remote_read, READABLE)
            | bit(region.access.remote_write, WRITABLE)
            | bit(region.virtual_addressing, BY_ADDRESS);
        for (word, value) in [(AT_KEY, key), (AT_BASE, region.base), (AT_LEN, region.len), (AT_KIND, kind)] {
            self.memory.word(at(self.end, slot, word)).store(value, Relaxed);
        }
        self.shown += 1;
        self.memory.word(at(self.end, slot, AT_STATE)).store(self.shown, Release);
        let (memory, end, state) = (Arc::downgrade(&self.memory), self.end, self.shown);
        Some(ShownRegion { memory, end, slot, state, neighbour })
    }

    /// Hides everything that we show.
    pub(super) fn hide_all(&self) {
        if self.shown > 0 {
            (0..SLOTS).for_each(|slot| self.memory.word(at(self.end, slot, AT_STATE)).store(0, SeqCst));
            wait(&self.memory, self.end, self.neighbour(), |used| used != 0);
        }
    }

    /// Finds a range in the regions that the other end shows, if it may be accessed so.
    pub(super) fn find(&self, range: RemoteRange, wanted: Wanted) -> Option<ShownRange> {
        probes(range.key).find_map(|slot| {
            let word = |word| self.memory.word(at(1 - self.end, slot, word));
            let state = word(AT_STATE).load(Acquire);
            let [key, base, len, kind] =
                [AT_KEY, AT_BASE, AT_LEN, AT_KIND].map(|field| word(field).load(Relaxed));
            if state == 0 || key != range.key {
                return None;
            }
            let region = Region {
                base,
                len,
                access: Access { remote_read: kind & READABLE != 0, remote_write: kind & WRITABLE != 0 },
                virtual_addressing: kind & BY_ADDRESS != 0,
            };
            let address = base.checked_add(region.find(range, wanted).ok()?)?;
            Some(ShownRange { slot, state, address })
        })
    }

    /// Begins an access. False if the region is not shown any more.
    pub(super) fn begin(&self, range_shown: &ShownRange) -> bool {
        self.memory.word(half(self.end) + AT_USES).swap(range_shown.slot as u64 + 1, SeqCst);
        let shown =
            self.memory.word(at(1 - self.end, range_shown.slot, AT_STATE)).load(SeqCst) == range_shown.state;
        if !shown {
            self.end();
        }
        shown
    }

    /// Ends the access.
    pub(super) fn end(&self) {
        self.memory.word(half(self.end) + AT_USES).store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const ALL: Access = Access { remote_read: true, remote_write: true };

    /// Both ends of a lane, of one process.
    fn ends() -> (Segment, Segment) {
        let (a, _file, name) = Segment::create().expect("shared memory");
        (a, Segment::open(name).expect("just made"))
    }

    fn region(base: u64, len: u64) -> Region {
        Region { base, len, access: ALL, virtual_addressing: false }
    }

    fn range(key: u64, addr: u64, len: u64) -> RemoteRange {
        RemoteRange { key, addr, len }
    }

    #[test]
    fn what_is_shown_is_found_until_it_is_hidden() {
        let (mut a, b) = ends();
        let shown = a.show(7, &region(1000, 100), a.neighbour()).expect("a slot");
        assert!(a.shows(7) && !a.shows(8) && !b.shows(7));
        let range_shown = b.find(range(7, 40, 60), Wanted::Write).expect("shown");
        assert_eq!(range_shown.address, 1040);
        assert_eq!(b.find(range(7, 41, 60), Wanted::Write), None);
        assert_eq!(b.find(range(7, u64::MAX, 2), Wanted::Read), None);
        assert_eq!(b.find(range(8, 0, 1), Wanted::Read), None);
        assert!(b.begin(&range_shown));
        b.end();
        shown.hide();
        assert!(!b.begin(&range_shown) && !a.shows(7));
        // The slot may be used again, and is not taken for what it was.
        a.show(7, &region(5000, 100), a.neighbour()).expect("a slot");
        assert!(!b.begin(&range_shown));
        assert_eq!(b.find(range(7, 0, 1), Wanted::Read).expect("shown").address, 5000);
        // Hiding the former region again does not hide the new one.
        shown.hide();
        assert!(a.shows(7));
    }

    #[test]
    fn a_region_is_found_only_for_what_it_may_be_used() {
        let (mut a, b) = ends();
        let access = Access { remote_read: true, remote_write: false };
        let by_address = Region { base: 1000, len: 100, access, virtual_addressing: true };
        a.show(3, &by_address, a.neighbour()).expect("a slot");
        assert_eq!(b.find(range(3, 1010, 8), Wanted::Read).expect("shown").address, 1010);
        assert_eq!(b.find(range(3, 1010, 8), Wanted::Write), None);
        assert_eq!(b.find(range(3, 999, 8), Wanted::Read), None);
    }

    #[test]
    fn regions_beyond_the_slots_are_not_shown() {
        let (mut a, b) = ends();
        let keys = || (0..PROBES as u64 + 1).map(|n| 5 + n * SLOTS as u64);
        let shown: Vec<_> = keys().filter_map(|key| a.show(key, &region(key, 8), a.neighbour())).collect();
        assert_eq!(shown.len(), PROBES);
        assert_eq!(keys().filter(|key| b.find(range(*key, 0, 8), Wanted::Read).is_some()).count(), PROBES);
        shown[0].hide();
        let last = keys().next_back().expect("some");
        assert!(a.show(last, &region(last, 8), a.neighbour()).is_some());
    }

    #[test]
    fn whoever_hides_a_region_waits_for_who_uses_it() {
        let (mut a, b) = ends();
        let shown = a.show(1, &region(0, 8), a.neighbour()).expect("a slot");
        let range_shown = b.find(range(1, 0, 8), Wanted::Read).expect("shown");
        assert!(b.begin(&range_shown));
        thread::scope(|scope| {
            let hiding = scope.spawn(|| shown.hide());
            while a.shows(1) {
                thread::yield_now();
            }
            if a.neighbour().is_accessible() {
                assert!(!hiding.is_finished(), "it is used");
            }
            b.end();
            hiding.join().expect("hidden");
        });
        assert!(!b.begin(&range_shown));
    }

    #[test]
    fn a_process_that_has_ended_is_not_waited_for() {
        let (mut a, b) = ends();
        let ended = Process { token: a.neighbour().token ^ 2, ..a.neighbour() };
        let shown = a.show(1, &region(0, 8), ended).expect("a slot");
        let range_shown = b.find(range(1, 0, 8), Wanted::Read).expect("shown");
        assert!(b.begin(&range_shown));
        shown.hide();
        b.end();
    }

    #[test]
    fn whoever_gives_up_a_lane_hides_what_it_shows() {
        let (mut a, b) = ends();
        let shown = a.show(1, &region(0, 8), a.neighbour()).expect("a slot");
        let range_shown = b.find(range(1, 0, 8), Wanted::Read).expect("shown");
        drop(a);
        assert!(!b.begin(&range_shown));
        drop(b);
        assert!(shown.is_gone());
        shown.hide();
    }
}
