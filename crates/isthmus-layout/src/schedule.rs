//! The pieces of one file that several workers read or write, in the order that keeps its storage targets busy.
//!
//! A worker is a process that reads or writes one or more pieces at a time. It takes a piece, reads or writes it, and
//! says that it is done. Each piece lies on one target, and comes from the target with the fewest pieces under way. If
//! several have as few, the one with most bytes left goes first, so that all targets end together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::{Layout, Load, Turns, Volume};

/// The number of a worker.
pub type Worker = u32;

/// A piece of the file. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length.
    pub len: u64,
}

/// The stripes in a range of the file that lie on one of the volumes in turn.
#[derive(Clone, Copy, Debug)]
struct Run {
    turn: u64,
    next: u64,
    end: u64,
}

/// The schedule; see the module.
#[derive(Debug)]
pub struct Schedule {
    layout: Layout,
    turns: Turns,
    piece: u64,
    /// What any worker may take.
    shared: BTreeMap<Volume, VecDeque<Run>>,
    /// What only one worker can take, such as a piece in its memory.
    own: BTreeMap<Worker, BTreeMap<Volume, VecDeque<Piece>>>,
    /// Bytes that wait.
    waiting: BTreeMap<Volume, u64>,
    load: Load,
}

impl Schedule {
    /// Makes a schedule whose pieces have at most `piece` bytes and lie within a stripe.
    pub fn new(layout: Layout, piece: u64) -> Self {
        let turns = layout.turns(1);
        Self {
            layout,
            turns,
            piece: piece.max(1),
            shared: BTreeMap::new(),
            own: BTreeMap::new(),
            waiting: BTreeMap::new(),
            load: Load::default(),
        }
    }

    /// Adds a range that any worker may take, piece by piece.
    pub fn add(&mut self, range: Range<u64>) {
        let Range { start, end } = range;
        for turn in 0..self.turns.count() {
            let next = self.turns.next(start, turn);
            if next < end {
                let volume = self.layout.turn(turn as usize);
                self.shared.entry(volume).or_default().push_back(Run { turn, next, end });
                let bytes = self.turns.before(end, turn) - self.turns.before(start, turn);
                *self.waiting.entry(volume).or_default() += bytes;
            }
        }
    }

    /// Adds a piece that only this worker can take, and takes whole. It counts for the target of its first byte.
    pub fn add_own(&mut self, worker: Worker, piece: Piece) {
        let volume = self.layout.volume(piece.offset);
        self.own.entry(worker).or_default().entry(volume).or_default().push_back(piece);
        *self.waiting.entry(volume).or_default() += piece.len;
    }

    /// The next piece for this worker. None: nothing waits for it.
    pub fn take(&mut self, worker: Worker) -> Option<Piece> {
        let own = self.own.get(&worker).into_iter().flat_map(BTreeMap::keys);
        let left = |volume| Reverse(self.waiting.get(volume).copied().unwrap_or(0));
        let volumes = own.chain(self.shared.keys()).map(|volume| (*volume, left(volume)));
        let volume = *self.load.order(volumes).first()?;
        let piece = self.take_own(worker, volume).or_else(|| self.take_shared(volume))?;
        self.load.begin(volume);
        if let Some(waiting) = self.waiting.get_mut(&volume) {
            *waiting -= piece.len;
        }
        Some(piece)
    }

    /// A piece that was taken is read or written.
    pub fn done(&mut self, offset: u64) {
        self.load.end(self.layout.volume(offset));
    }

    /// Pieces under way. Count.
    pub fn under_way(&self) -> usize {
        self.load.total()
    }

    fn take_own(&mut self, worker: Worker, volume: Volume) -> Option<Piece> {
        let queues = self.own.get_mut(&worker)?;
        let queue = queues.get_mut(&volume)?;
        let piece = queue.pop_front();
        if queue.is_empty() {
            queues.remove(&volume);
        }
        piece
    }

    fn take_shared(&mut self, volume: Volume) -> Option<Piece> {
        let queue = self.shared.get_mut(&volume)?;
        let run = queue.front_mut()?;
        let offset = run.next;
        let end = self.turns.stripe_end(offset).min(offset.saturating_add(self.piece)).min(run.end);
        run.next = self.turns.next(end, run.turn);
        if run.next >= run.end {
            queue.pop_front();
        }
        if queue.is_empty() {
            self.shared.remove(&volume);
        }
        Some(Piece { offset, len: end - offset })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STRIPE: u64 = 400;

    fn striped(targets: &[u32]) -> Layout {
        Layout::striped(1, STRIPE, targets)
    }

    #[test]
    fn a_piece_comes_from_the_idle_target_with_most_left() {
        let mut schedule = Schedule::new(striped(&[7, 8, 9]), 1000);
        schedule.add(0..5 * STRIPE + 100);
        let stripes = |schedule: &mut Schedule, count: usize| -> Vec<u64> {
            (0..count).filter_map(|_| schedule.take(0)).map(|piece| piece.offset / STRIPE).collect()
        };
        assert_eq!(stripes(&mut schedule, 3), [0, 1, 2], "each target has one");
        schedule.done(2 * STRIPE);
        assert_eq!(stripes(&mut schedule, 1), [5], "the only idle target");
        schedule.done(STRIPE);
        schedule.done(0);
        assert_eq!(stripes(&mut schedule, 3), [3, 4]);
        assert_eq!(schedule.under_way(), 3);
    }

    #[test]
    fn with_fewer_workers_than_targets_no_target_is_left_for_last() {
        let mut schedule = Schedule::new(striped(&[7, 8, 9]), 1000);
        schedule.add(0..12 * STRIPE);
        let mut order = Vec::new();
        while let Some(piece) = schedule.take(0) {
            schedule.done(piece.offset);
            order.push(piece.offset / STRIPE);
        }
        assert_eq!(order, (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn a_worker_takes_its_own_pieces_and_they_count_for_all() {
        let mut schedule = Schedule::new(striped(&[7, 8]), 1000);
        let piece = |stripe: u64| Piece { offset: stripe * STRIPE, len: STRIPE + 50 };
        for (worker, stripe) in [(0, 0), (0, 1), (1, 2), (1, 3)] {
            schedule.add_own(worker, piece(stripe));
        }
        assert_eq!((schedule.take(2), schedule.take(0)), (None, Some(piece(0))));
        assert_eq!(schedule.take(1), Some(piece(3)), "its other piece lies where worker 0 is");
        schedule.done(0);
        assert_eq!(schedule.take(0), Some(piece(1)), "its only one");
        assert_eq!((schedule.take(1), schedule.take(1), schedule.under_way()), (Some(piece(2)), None, 3));
    }

    proptest! {
        /// Whatever is added, each byte is taken once, in pieces of one target. When a piece is taken, its target has
        /// no more under way than any other that has work for that worker.
        #[test]
        fn no_target_has_two_under_way_while_another_with_work_has_none(
            targets in prop::collection::vec(0u32..6, 2..9),
            ranges in prop::collection::vec((0u64..500, 1u64..3000), 1..6),
            piece in 1u64..700,
            workers in 1u32..9,
            turns in prop::collection::vec((any::<bool>(), 0usize..8), 1..100),
        ) {
            let layout = striped(&targets);
            let mut schedule = Schedule::new(layout.clone(), piece);
            let (mut end, mut missing) = (0, BTreeMap::<Volume, u64>::new());
            let mut wanted = Vec::new();
            for (gap, len) in ranges {
                let range = end + gap..end + gap + len;
                end = range.end;
                schedule.add(range.clone());
                for byte in range {
                    *missing.entry(layout.volume(byte)).or_default() += 1;
                    wanted.push(byte);
                }
            }
            let (mut busy, mut taken) = (Vec::<Piece>::new(), Vec::new());
            for (takes, which) in turns.iter().cycle() {
                if busy.len() == workers as usize || !takes && !busy.is_empty() {
                    schedule.done(busy.swap_remove(which % busy.len()).offset);
                    continue;
                }
                let load = |volume| busy.iter().filter(|piece| layout.volume(piece.offset) == volume).count();
                let Some(next) = schedule.take(0) else { break };
                let volume = layout.volume(next.offset);
                let least = missing.iter().filter(|(_, bytes)| **bytes > 0).map(|(volume, _)| load(*volume)).min();
                prop_assert_eq!(Some(load(volume)), least);
                prop_assert!(next.len > 0 && next.len <= piece);
                prop_assert_eq!(next.offset / STRIPE, (next.offset + next.len - 1) / STRIPE);
                *missing.entry(volume).or_default() -= next.len;
                taken.extend(next.offset..next.offset + next.len);
                busy.push(next);
            }
            taken.sort_unstable();
            prop_assert_eq!(taken, wanted);
        }
    }
}
