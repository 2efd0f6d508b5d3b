//! The table: where in the words what is.
//!
//! A header; then for each path a record and the slots of its flows. All of fixed size, so that all
//! who map it agree; each slot has cache lines of its own.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::{Micros, PATH_LIFE_US, SILENT_US};

/// Changes with what the table looks like.
const VERSION: u64 = 0x6973_7468_6c65_0001;
/// Words of the header, of a path's record, and of a slot: two cache lines each.
const UNIT: usize = 16;
/// Most paths, and flows on each: those beyond go by themselves.
const PATHS: usize = 32;
const FLOWS: usize = 128;
/// Words of the table.
pub const WORDS: usize = UNIT * (1 + PATHS * (1 + FLOWS));

/// Memory that those who share a ledger share.
pub trait Words: Send + Sync + fmt::Debug {
    /// The words: [`WORDS`] of them.
    fn words(&self) -> &[AtomicU64];
}

/// Words of this process alone, or of a simulation.
#[derive(Debug)]
pub struct Heap(Box<[AtomicU64]>);

impl Default for Heap {
    fn default() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Words for Heap {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl Words for std::sync::Arc<Heap> {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// A process, among all that there are at different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its number, not 0.
    pub pid: u32,
    /// When it started, in any unit.
    pub started: u32,
}

impl Owner {
    fn to_word(self) -> u64 {
        u64::from(self.pid) << 32 | u64::from(self.started)
    }

    fn of(word: u64) -> Self {
        Self { pid: (word >> 32) as u32, started: word as u32 }
    }
}

/// Words that are no ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Of another length.
    #[error("its length is not that of this version's")]
    Length,
    /// Of another version, or something else altogether.
    #[error("it is of another version")]
    Version,
}

/// What a flow's program has it do.
pub(crate) const RESTS: u64 = 0;
pub(crate) const SENDS: u64 = 1;
/// It sends less than it might.
pub(crate) const SENDS_LITTLE: u64 = 2;
/// It has nothing to send at the moment.
pub(crate) const PAUSES: u64 = 3;
/// It has had nothing for a while: what it has under way is its last.
pub(crate) const ENDS: u64 = 4;

/// The record of a path.
pub(crate) struct Path<'a> {
    pub(crate) key: &'a AtomicU64,
    /// When it was last used.
    pub(crate) touched: &'a AtomicU64,
    /// The slot, and 1, of the flow that plans for all; 0 for none.
    pub(crate) leader: &'a AtomicU64,
    pub(crate) capacity: &'a AtomicU64,
    pub(crate) learned_at: &'a AtomicU64,
    pub(crate) rtt_us: &'a AtomicU64,
    pub(crate) pace: &'a AtomicU64,
    pub(crate) window: &'a AtomicU64,
    /// Share of packets lost by chance. Millionths.
    pub(crate) loss_ppm: &'a AtomicU64,
    /// One more than the last slot that was ever used.
    pub(crate) used: &'a AtomicU64,
    /// What all paced flows have delivered since the table was made, modulo its size. Bytes (wire).
    pub(crate) delivered: &'a AtomicU64,
    /// Share of packets lost, by chance or not. Millionths, and 1; 0 where it is not known.
    pub(crate) lost: &'a AtomicU64,
}

/// A flow's place.
pub(crate) struct Slot<'a> {
    pub(crate) owner: &'a AtomicU64,
    pub(crate) endpoint: &'a AtomicU64,
    pub(crate) heard: &'a AtomicU64,
    pub(crate) state: &'a AtomicU64,
    pub(crate) rate: &'a AtomicU64,
    pub(crate) in_flight: &'a AtomicU64,
    /// Streams or connections, and the kind.
    pub(crate) flows: &'a AtomicU64,
}

/// Marks flows of [`crate::Kind::Paced`].
pub(crate) const PACED: u64 = 1 << 32;

impl Slot<'_> {
    /// Whether it has bulk under way.
    pub(crate) fn is_busy(&self, now: Micros) -> bool {
        self.owner.load(Relaxed) != 0
            && self.state.load(Acquire) != RESTS
            && now < self.heard.load(Relaxed).saturating_add(SILENT_US)
    }

    pub(crate) fn is_paced(&self) -> bool {
        self.flows.load(Relaxed) & PACED != 0
    }

    pub(crate) fn count(&self) -> u32 {
        self.flows.load(Relaxed) as u32
    }
}

/// The table as this process sees it.
pub(crate) struct Shared {
    words: Box<dyn Words>,
    owner: Owner,
    lives: Box<dyn Fn(Owner) -> bool + Send + Sync>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(
        words: Box<dyn Words>,
        owner: Owner,
        lives: Box<dyn Fn(Owner) -> bool + Send + Sync>,
    ) -> Result<Self, Unfit> {
        let table = words.words();
        if table.len() != WORDS {
            return Err(Unfit::Length);
        }
        let version = table[0].compare_exchange(0, VERSION, AcqRel, Acquire).unwrap_or_else(|is| is);
        if version != 0 && version != VERSION {
            return Err(Unfit::Version);
        }
        Ok(Self { words, owner, lives })
    }

    fn unit(&self, path: usize, unit: usize) -> &[AtomicU64; UNIT] {
        let at = UNIT * (1 + path * (1 + FLOWS) + unit);
        let words = self.words.words().get(at..).and_then(|words| words.first_chunk());
        words.expect("paths and slots are within the table")
    }

    pub(crate) fn path(&self, path: usize) -> Path<'_> {
        let [key, touched, leader, capacity, learned_at, rtt_us, pace, window, words @ ..] =
            self.unit(path, 0);
        let [loss_ppm, used, delivered, lost, ..] = words;
        Path {
            key,
            touched,
            leader,
            capacity,
            learned_at,
            rtt_us,
            pace,
            window,
            loss_ppm,
            used,
            delivered,
            lost,
        }
    }

    pub(crate) fn slot(&self, path: usize, slot: usize) -> Slot<'_> {
        let [owner, endpoint, heard, state, rate, in_flight, flows, ..] = self.unit(path, 1 + slot);
        Slot { owner, endpoint, heard, state, rate, in_flight, flows }
    }

    /// All slots of a path that were ever used.
    pub(crate) fn slots(&self, path: usize) -> impl Iterator<Item = Slot<'_>> + Clone {
        // What somebody else wrote there may be anything.
        let used = (self.path(path).used.load(Acquire) as usize).min(FLOWS);
        (0..used).map(move |slot| self.slot(path, slot))
    }

    /// Where a path's record is: the first that there is of it.
    pub(crate) fn find(&self, key: u64) -> Option<usize> {
        (0..PATHS).find(|path| self.path(*path).key.load(Acquire) == key)
    }

    /// The same; a place is made where there is none, of those of which nothing was heard for long the
    /// one of which that was longest ago.
    pub(crate) fn enter(&self, now: Micros, key: u64) -> Option<usize> {
        // Who comes at the same time tries the same places in the same order, and so finds what another has just
        // taken: flows of two records of one path would not know of each other.
        for path in 0..PATHS {
            match self.path(path).key.compare_exchange(0, key, AcqRel, Acquire) {
                Ok(_) => {
                    self.path(path).touched.store(now, Release);
                    return Some(path);
                }
                Err(is) if is == key => return Some(path),
                Err(_) => {}
            }
        }
        let oldest = (0..PATHS).min_by_key(|path| self.path(*path).touched.load(Relaxed))?;
        let record = self.path(oldest);
        let before = record.key.load(Acquire);
        let is_old = now >= record.touched.load(Relaxed).saturating_add(PATH_LIFE_US);
        if is_old && before != key && record.key.compare_exchange(before, key, AcqRel, Acquire).is_ok() {
            let known = [record.leader, record.capacity, record.learned_at, record.rtt_us, record.pace];
            let others = [record.window, record.loss_ppm, record.lost];
            known.into_iter().chain(others).for_each(|word| word.store(0, Relaxed));
            record.touched.store(now, Release);
        }
        // Somebody else may have been sooner, there or elsewhere; of two the first is the path's.
        self.find(key)
    }

    /// Takes a slot of a path: a free one, else one whose process has ended.
    pub(crate) fn claim(&self, now: Micros, path: usize) -> Option<usize> {
        let own = self.owner.to_word();
        let take = |slot: usize, from: u64| {
            self.slot(path, slot).owner.compare_exchange(from, own, AcqRel, Acquire).is_ok()
        };
        let free = (0..FLOWS).find(|slot| self.slot(path, *slot).owner.load(Relaxed) == 0 && take(*slot, 0));
        let dead = || {
            (0..FLOWS).find(|slot| {
                let known = self.slot(path, *slot);
                let owner = known.owner.load(Relaxed);
                let silent = now >= known.heard.load(Relaxed).saturating_add(SILENT_US);
                silent && owner != own && !(self.lives)(Owner::of(owner)) && take(*slot, owner)
            })
        };
        let slot = free.or_else(dead)?;
        let known = self.slot(path, slot);
        [known.state, known.rate, known.in_flight].into_iter().for_each(|word| word.store(0, Relaxed));
        self.path(path).used.fetch_max(slot as u64 + 1, AcqRel);
        Some(slot)
    }

    /// Gives a slot back, if it is still this process's.
    pub(crate) fn release(&self, path: usize, slot: usize) {
        let known = self.slot(path, slot);
        if known.owner.load(Relaxed) == self.owner.to_word() {
            known.state.store(RESTS, Release);
            let leads = slot as u64 + 1;
            let _ = self.path(path).leader.compare_exchange(leads, 0, AcqRel, Relaxed);
            known.owner.store(0, Release);
        }
    }
}
