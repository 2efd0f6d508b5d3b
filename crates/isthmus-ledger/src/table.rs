//! The layout of the table in the shared words.
//!
//! It has a header, and then for each path a record and the slots of its flows. All sizes are fixed, so that all
//! processes agree. Each slot has its own cache lines.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::{Micros, PATH_LIFE_US, SILENT_US};

/// Magic number and version of the layout.
const VERSION: u64 = 0x6973_7468_6c65_0001;
/// Words of the header, of a path's record, and of a slot: two cache lines each, so that processes do not share lines.
const UNIT: usize = 16;
/// Limit on paths, and on flows of each path. Flows beyond it control their rate alone.
const PATHS: usize = 32;
const FLOWS: usize = 128;
/// Words of the table.
pub const WORDS: usize = UNIT * (1 + PATHS * (1 + FLOWS));

/// The memory of a ledger, which all its users share.
pub trait Words: Send + Sync + fmt::Debug {
    /// The words: [`WORDS`] of them.
    fn words(&self) -> &[AtomicU64];
}

/// Words in the memory of one process, such as a simulation.
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

/// Identifies a process, also if its pid is used again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its pid; not 0.
    pub pid: u32,
    /// Its start time, in any unit.
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

/// Why words are no ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// They have another length.
    #[error("its length is not that of this version's")]
    Length,
    /// They have another version, or are something else.
    #[error("it is of another version")]
    Version,
}

/// State of a flow: it has nothing to send and nothing in flight.
pub(crate) const RESTS: u64 = 0;
pub(crate) const SENDS: u64 = 1;
/// State of a flow: its program gives it less data than it could send.
pub(crate) const SENDS_LITTLE: u64 = 2;
/// State of a flow: it has nothing to send at the moment.
pub(crate) const PAUSES: u64 = 3;
/// State of a flow: it has had nothing to send for a while. The bytes in flight are its last.
pub(crate) const ENDS: u64 = 4;

/// The record of a path.
pub(crate) struct Path<'a> {
    pub(crate) key: &'a AtomicU64,
    /// Time of its last use.
    pub(crate) touched: &'a AtomicU64,
    /// One more than the slot of the leading flow; 0 if none leads.
    pub(crate) leader: &'a AtomicU64,
    pub(crate) capacity: &'a AtomicU64,
    pub(crate) learned_at: &'a AtomicU64,
    pub(crate) rtt_us: &'a AtomicU64,
    pub(crate) pace: &'a AtomicU64,
    pub(crate) window: &'a AtomicU64,
    /// Share of packets lost at random. Millionths.
    pub(crate) loss_ppm: &'a AtomicU64,
    /// One more than the highest slot that was ever used.
    pub(crate) used: &'a AtomicU64,
    /// Bytes that all paced flows have delivered since the table was made; it wraps. Bytes (wire).
    pub(crate) delivered: &'a AtomicU64,
    /// One more than the share of packets lost for any reason, in millionths; 0 if unknown.
    pub(crate) lost: &'a AtomicU64,
}

/// The slot of a flow.
pub(crate) struct Slot<'a> {
    pub(crate) owner: &'a AtomicU64,
    pub(crate) endpoint: &'a AtomicU64,
    pub(crate) heard: &'a AtomicU64,
    pub(crate) state: &'a AtomicU64,
    pub(crate) rate: &'a AtomicU64,
    pub(crate) in_flight: &'a AtomicU64,
    /// Number of streams or connections, and the kind.
    pub(crate) flows: &'a AtomicU64,
}

/// Marks flows of [`crate::Kind::Paced`].
pub(crate) const PACED: u64 = 1 << 32;

impl Slot<'_> {
    /// Whether it sends bulk data.
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

/// The table in the shared words, with this process's identity.
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

    /// All slots of a path up to the highest that was ever used.
    pub(crate) fn slots(&self, path: usize) -> impl Iterator<Item = Slot<'_>> + Clone {
        // Another process may have written any value.
        let used = (self.path(path).used.load(Acquire) as usize).min(FLOWS);
        (0..used).map(move |slot| self.slot(path, slot))
    }

    /// The index of a path's record. If a path has two records, the first one counts.
    pub(crate) fn find(&self, key: u64) -> Option<usize> {
        (0..PATHS).find(|path| self.path(*path).key.load(Acquire) == key)
    }

    /// Like [`Shared::find`]. If the path has no record, it takes the one that was silent the longest, provided that it
    /// was silent long enough.
    pub(crate) fn enter(&self, now: Micros, key: u64) -> Option<usize> {
        // Processes that enter at the same time try the records in the same order, so each finds what another has just
        // taken. Flows in two records of one path would not know of each other.
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
        // Another process may have been first, here or in another record. Of two records the first one counts.
        self.find(key)
    }

    /// Takes a slot of a path: a free one, or one whose process has ended.
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

    /// Frees a slot if it still belongs to this process.
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
