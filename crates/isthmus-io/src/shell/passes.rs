//! What the next pass looks at: descriptors through epoll, busy lanes directly, or shared memory only.

use std::time::{Duration, Instant};

use crate::cpu_yield;
use crate::lane::table::LaneTable;
use crate::lane::{IDLE_READS, Lane};

/// Most busy lanes that are read directly, without asking epoll first. Count.
const DIRECT_LANES: usize = 2;
/// While lanes are read directly, one in this many passes asks epoll. Count.
const DIRECT_PASSES: u32 = 16;
/// Shortest time between two full passes, per endpoint of the process: a program that polls many endpoints would
/// otherwise do little else.
const FULL_PASS_PAUSE: Duration = Duration::from_micros(200);
/// Most endpoints that count for that. Count.
const ENDPOINTS_MAX: u32 = 8;

/// The plan of passes. It is made anew when lanes have changed.
#[derive(Debug)]
pub(super) struct Passes {
    /// Number of this pass; it wraps.
    number: u32,
    /// This pass looks at descriptors and the clock.
    full: bool,
    /// When descriptors were last looked at.
    looked: Instant,
    /// Whether lanes may be read directly: with a single peer only. If one peer sends to us, then tells a second peer,
    /// and that one tells us, we must not read the second message first.
    direct: bool,
    /// No lane's bytes come by its descriptor.
    all_polled: bool,
    /// All lanes are open, and go by shared memory that every pass looks at.
    all_memory: bool,
    /// Lanes that are read directly.
    busy: Vec<usize>,
}

impl Passes {
    pub(super) fn new() -> Self {
        Self {
            number: 0,
            full: false,
            looked: Instant::now(),
            direct: false,
            all_polled: false,
            all_memory: false,
            busy: Vec::with_capacity(DIRECT_LANES),
        }
    }

    /// Begins a pass. If it need not be `full`, it may become so.
    pub(super) fn begin(&mut self, full: bool) {
        self.full = full;
        self.number = self.number.wrapping_add(1);
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Whether this pass looks at descriptors and the clock.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Makes the plan. `awake` lanes of shared memory are looked at in every pass, and `asleep` ones wait to be woken.
    pub(super) fn plan(
        &mut self,
        lanes: &LaneTable,
        (awake, asleep): (usize, usize),
        talks_to_one: impl FnOnce() -> bool,
    ) {
        let (count, all_open) = (lanes.count(), lanes.unsettled() == 0);
        let polled = lanes.iter().filter(|lane| lane.carrier.is_polled()).count();
        self.all_polled = count > 0 && polled == count && asleep == 0;
        self.all_memory = awake == count && count > 0 && all_open;
        self.direct = all_open && (self.all_polled || talks_to_one());
    }

    /// Whether all lanes are open, and go by shared memory that every pass looks at.
    pub(super) fn need_only_memory(&self) -> bool {
        self.all_memory
    }

    /// Whether this pass reads busy lanes directly and does not ask epoll.
    pub(super) fn reads_directly(&self) -> bool {
        self.direct
            && (self.all_polled || !self.busy.is_empty())
            && !self.number.is_multiple_of(DIRECT_PASSES)
            && !self.full
    }

    /// Descriptors are looked at now, and the clock: this is a full pass.
    pub(super) fn look(&mut self) {
        self.full = true;
        self.looked = Instant::now();
    }

    /// Whether the next pass should be a full one. Every [`DIRECT_PASSES`]th pass asks, and every vain one; few vain
    /// passes get here.
    pub(super) fn is_full_due(&self, vain: bool) -> bool {
        let asks = vain || self.number.wrapping_add(1).is_multiple_of(DIRECT_PASSES);
        asks && self.looked.elapsed() >= FULL_PASS_PAUSE * cpu_yield::endpoints().min(ENDPOINTS_MAX)
    }

    /// Number of lanes that are read directly.
    pub(super) fn busy_count(&self) -> usize {
        self.busy.len()
    }

    /// The lane at this position among those that are read directly.
    pub(super) fn busy_at(&self, at: usize) -> Option<usize> {
        self.busy.get(at).copied()
    }

    /// Something came on this lane, so it may be read directly from now on.
    pub(super) fn note_busy(&mut self, index: usize, lane: &mut Lane) {
        let was_idle = std::mem::replace(&mut lane.vain_reads, 0) >= IDLE_READS;
        if was_idle && self.busy.len() < DIRECT_LANES {
            self.busy.push(index);
        } else if was_idle {
            lane.vain_reads = IDLE_READS;
        }
    }

    /// Nothing came on this lane, which was read directly. After [`IDLE_READS`] times it no longer is.
    pub(super) fn note_vain(&mut self, index: usize, lane: &mut Lane) {
        lane.vain_reads += 1;
        if lane.vain_reads >= IDLE_READS {
            self.forget(index);
        }
    }

    /// This lane has ended, or is idle.
    pub(super) fn forget(&mut self, index: usize) {
        self.busy.retain(|busy| *busy != index);
    }
}
