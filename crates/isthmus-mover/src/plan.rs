//! The sender's plan: which pieces of which files form the next block. No I/O is done here.
//!
//! Each volume of the storage has a queue. The next block comes from the volume with the fewest blocks under way
//! (`isthmus-layout`), so that none idles while another is crowded. In a queue, files are in the order of their
//! announcement. A file whose stripes lie on several volumes is in the queue of each.
//!
//! A file longer than a block is cut at multiples of the block length. Shorter files of a volume share a block. The
//! sender expects the receiver to want all files, so it sends before the answers come. Up to the first answer, the
//! amount sent ahead is limited. After it, the sender goes on like this until an answer shows that the receiver already
//! has something. On a short path nothing is sent ahead.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use isthmus_layout::{Layout, Load, Turns, Volume};

use crate::wire::{Answer, PIECES_MAX};

/// A piece of a file to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The entry's number.
    pub id: u64,
    /// Its offset in the file. Bytes.
    pub offset: u64,
    /// Its length. Bytes.
    pub len: u64,
}

/// An answer about an entry that was not asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer about entry {0}, which was not asked about")]
pub struct Unasked(pub u64);

#[derive(Debug)]
struct File {
    size: u64,
    answered: bool,
    /// The end of the blocks to send.
    end: u64,
    /// Blocks that the receiver has, in order: first and count.
    have: Vec<(u64, u64)>,
    /// How its volumes take turns. Blocks.
    turns: Turns,
    /// Its entries in queues. Count.
    queued: u64,
}

/// A file in the queue of a volume.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    /// Which of the file's volumes it is.
    turn: u64,
    /// The next block to look at.
    next: u64,
}

/// The plan; see the module.
#[derive(Debug)]
pub struct Plan {
    block: u64,
    trusting: bool,
    /// Whether blocks may be sent before the first answer, and how many bytes more.
    runs_ahead: bool,
    ahead: u64,
    answers: bool,
    files: BTreeMap<u64, File>,
    queues: BTreeMap<Volume, VecDeque<Entry>>,
    /// Blocks that were handed out and not read yet.
    load: Load,
    exhausted: Vec<u64>,
    /// Entries that are not settled, with the memory of each at the receiver. Bytes.
    unsettled: BTreeMap<u64, usize>,
    weight: usize,
}

impl File {
    /// The next block of this entry that the receiver lacks.
    fn missing(&self, entry: &Entry) -> Option<u64> {
        let mut index = self.turns.next(entry.next, entry.turn);
        while index < self.end {
            let after = self.have.partition_point(|(first, _)| *first <= index);
            let held =
                after.checked_sub(1).map(|at| self.have[at]).filter(|(first, count)| index - first < *count);
            let Some((first, count)) = held else { return Some(index) };
            index = self.turns.next(first + count, entry.turn);
        }
        None
    }
}

impl Plan {
    /// Makes a plan for blocks of `block` bytes that sends at most `ahead` bytes before the first answer.
    pub fn new(block: u64, ahead: u64) -> Self {
        Self {
            block,
            trusting: true,
            runs_ahead: ahead > 0,
            ahead,
            answers: false,
            files: BTreeMap::new(),
            queues: BTreeMap::new(),
            load: Load::default(),
            exhausted: Vec::new(),
            unsettled: BTreeMap::new(),
            weight: 0,
        }
    }

    /// Allows `more` more bytes before the first answer, unless none were allowed at all.
    pub fn run_ahead(&mut self, more: u64) {
        if self.runs_ahead {
            self.ahead += more;
        }
    }

    /// From now on no file is sent before its own answer has come.
    pub fn distrust(&mut self) {
        self.trusting = false;
    }

    /// Whether the receiver has answered for this file.
    pub fn is_answered(&self, id: u64) -> bool {
        self.files.get(&id).is_none_or(|file| file.answered)
    }

    /// Adds an announced entry. A file has a length.
    pub fn announce(&mut self, id: u64, size: Option<u64>) {
        self.unsettled.insert(id, 0);
        if let Some(size) = size {
            self.announce_blocks(id, size, 0..size.div_ceil(self.block), &Layout::default());
        }
    }

    /// Adds a file of `size` bytes, of which these blocks are sent. A file of one block is sent whole.
    pub fn announce_blocks(&mut self, id: u64, size: u64, blocks: Range<u64>, layout: &Layout) {
        self.unsettled.insert(id, 0);
        let Range { start: next, end } = blocks;
        let turns = layout.turns(self.block);
        let mut file = File { size, answered: false, end, have: Vec::new(), turns, queued: 0 };
        for turn in 0..turns.count() {
            let entry = Entry { id, turn, next };
            // It is in one queue at least, which finds that nothing is to send.
            if turn == 0 || file.missing(&entry).is_some() {
                self.queues.entry(layout.turn(turn as usize)).or_default().push_back(entry);
                file.queued += 1;
            }
        }
        self.files.insert(id, file);
    }

    /// Takes the receiver's answer about a file. True if the answer settles the file.
    ///
    /// # Errors
    /// [`Unasked`].
    pub fn answer(&mut self, id: u64, answer: &Answer) -> Result<bool, Unasked> {
        self.answers = true;
        if !self.unsettled.contains_key(&id) {
            return Err(Unasked(id));
        }
        match answer {
            Answer::Send => {}
            Answer::Have(ranges) | Answer::Perhaps(ranges) => {
                self.trusting = false;
                // Ranges out of order would only make it send blocks that are there.
                let mut end = 0;
                let rising = ranges.iter().copied().filter(|(first, count)| {
                    let rises = *first >= end && first.checked_add(*count).is_some();
                    end = if rises { first + count } else { end };
                    rises
                });
                let have = rising.collect();
                if let Some(file) = self.files.get_mut(&id) {
                    file.have = have;
                }
            }
            Answer::Same | Answer::Newer | Answer::Would(_) | Answer::Refused(_) => {
                self.trusting = false;
                self.settle(id);
                return Ok(true);
            }
        }
        if let Some(file) = self.files.get_mut(&id) {
            file.answered = true;
        }
        Ok(false)
    }

    /// Sends nothing more of this file. Its outcome is still expected.
    pub fn abandon(&mut self, id: u64) {
        self.files.remove(&id);
    }

    /// Settles an entry. False if it was settled before.
    pub fn settle(&mut self, id: u64) -> bool {
        self.files.remove(&id);
        let settled = self.unsettled.remove(&id);
        self.weight -= settled.unwrap_or(0);
        settled.is_some()
    }

    /// Sets the memory that an announced entry takes at the receiver until it is settled. Bytes.
    pub fn weigh(&mut self, id: u64, weight: usize) {
        if let Some(before) = self.unsettled.get_mut(&id) {
            self.weight = self.weight - std::mem::replace(before, weight) + weight;
        }
    }

    /// Memory that all unsettled entries take at the receiver. Bytes.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Number of entries that are announced and not settled.
    pub fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// Whether all entries before `id` are settled.
    pub fn settled_before(&self, id: u64) -> bool {
        self.unsettled.first_key_value().is_none_or(|(first, _)| *first >= id)
    }

    /// Files of several blocks whose last piece was handed out since the last call.
    pub fn take_exhausted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.exhausted)
    }

    /// The pieces of the next block, and the volume that they lie on. None while nothing is to send, or nothing may be
    /// sent before more answers come.
    pub fn next_block(&mut self) -> Option<(Volume, Vec<Part>)> {
        let fronts = self.queues.iter().filter_map(|(volume, queue)| Some((*volume, queue.front()?.id)));
        let volumes = self.load.order(fronts);
        let found = volumes.into_iter().find_map(|volume| Some((volume, self.block_on(volume)?)));
        self.queues.retain(|_, queue| !queue.is_empty());
        if let Some((volume, _)) = &found {
            self.load.begin(*volume);
        }
        found
    }

    /// A block of this volume was read.
    pub fn on_read(&mut self, volume: Volume) {
        self.load.end(volume);
    }

    /// The pieces of the next block of a volume.
    fn block_on(&mut self, volume: Volume) -> Option<Vec<Part>> {
        let queue = self.queues.get_mut(&volume)?;
        let mut batch: Vec<Part> = Vec::new();
        let mut room = self.block;
        while let Some(entry) = queue.front_mut() {
            let id = entry.id;
            let may_run_ahead = self.trusting && (self.answers || self.ahead > 0);
            let Some(file) = self.files.get_mut(&id) else {
                queue.pop_front();
                continue;
            };
            if !file.answered && !may_run_ahead {
                break;
            }
            if file.size > self.block {
                if !batch.is_empty() {
                    break;
                }
                let part = file.missing(entry).map(|index| {
                    entry.next = index + 1;
                    let offset = index * self.block;
                    Part { id, offset, len: self.block.min(file.size - offset) }
                });
                if file.missing(entry).is_none() {
                    file.queued -= 1;
                    if file.queued == 0 {
                        self.exhausted.push(id);
                    }
                    queue.pop_front();
                }
                if let Some(part) = part {
                    self.ahead = self.ahead.saturating_sub(part.len);
                    return Some(vec![part]);
                }
            } else {
                if file.size > room || batch.len() == PIECES_MAX {
                    break;
                }
                room -= file.size;
                self.ahead = self.ahead.saturating_sub(file.size);
                batch.push(Part { id, offset: 0, len: file.size });
                queue.pop_front();
            }
        }
        (!batch.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: u64 = 100;

    fn next(plan: &mut Plan) -> Option<Vec<Part>> {
        let (volume, parts) = plan.next_block()?;
        plan.on_read(volume);
        Some(parts)
    }

    fn drain(plan: &mut Plan) -> Vec<Vec<Part>> {
        std::iter::from_fn(|| next(plan)).collect()
    }

    #[test]
    fn small_files_share_a_block_and_large_ones_are_cut() {
        let mut plan = Plan::new(BLOCK, 1 << 30);
        for (id, size) in [30, 0, 70, 1, 250].into_iter().enumerate() {
            plan.announce(id as u64, Some(size));
        }
        let part = |id, offset, len| Part { id, offset, len };
        assert_eq!(
            drain(&mut plan),
            [
                vec![part(0, 0, 30), part(1, 0, 0), part(2, 0, 70)],
                vec![part(3, 0, 1)],
                vec![part(4, 0, 100)],
                vec![part(4, 100, 100)],
                vec![part(4, 200, 50)],
            ]
        );
        assert_eq!(plan.take_exhausted(), [4]);
    }

    #[test]
    fn it_runs_ahead_until_something_is_there_already() {
        let mut plan = Plan::new(BLOCK, 150);
        (0..6).for_each(|id| plan.announce(id, Some(100)));
        assert_eq!(drain(&mut plan).len(), 2, "so much before the first answer");
        assert_eq!(plan.answer(0, &Answer::Send), Ok(false));
        assert_eq!(next(&mut plan).map(|block| block[0].id), Some(2), "then as long as all is wanted");
        assert_eq!(plan.answer(1, &Answer::Same), Ok(true));
        assert_eq!(next(&mut plan), None, "then only what is asked for");
        for id in 2..6 {
            assert_eq!(plan.answer(id, &Answer::Send), Ok(false));
        }
        assert_eq!(drain(&mut plan).len(), 3);
        assert_eq!(plan.answer(1, &Answer::Same), Err(Unasked(1)));
    }

    #[test]
    fn where_it_is_to_wait_each_file_waits_for_its_own_answer() {
        let mut plan = Plan::new(BLOCK, 250);
        (0..4).for_each(|id| plan.announce(id, Some(100)));
        assert!(next(&mut plan).is_some() && !plan.is_answered(0));
        plan.distrust();
        for id in [0, 2] {
            assert_eq!(plan.answer(id, &Answer::Send), Ok(false));
        }
        assert!(plan.is_answered(0) && !plan.is_answered(1));
        assert_eq!(next(&mut plan), None, "the second has no answer");
        assert_eq!(plan.answer(1, &Answer::Same), Ok(true));
        assert!(plan.is_answered(1));
        assert_eq!(next(&mut plan).map(|block| block[0].id), Some(2));
        assert_eq!(next(&mut plan), None, "the last has none either");
    }

    #[test]
    fn a_file_that_is_all_there_is_exhausted_without_a_block() {
        let mut plan = Plan::new(BLOCK, 0);
        plan.announce(0, Some(250));
        assert_eq!(plan.answer(0, &Answer::Have(vec![(0, 3)])), Ok(false));
        assert_eq!((next(&mut plan), plan.take_exhausted()), (None, vec![0]));
    }

    #[test]
    fn of_a_shared_file_a_range_is_sent_but_for_what_is_there() {
        let mut plan = Plan::new(BLOCK, 0);
        plan.announce_blocks(0, 950, 3..7, &Layout::default());
        assert_eq!(plan.answer(0, &Answer::Have(vec![(4, 1)])), Ok(false));
        let offsets: Vec<_> = drain(&mut plan).iter().map(|block| block[0].offset).collect();
        assert_eq!((offsets, plan.take_exhausted()), (vec![300, 500, 600], vec![0]));
    }

    #[test]
    fn the_next_block_comes_from_the_volume_with_the_fewest_under_way() {
        let mut plan = Plan::new(BLOCK, 1 << 30);
        for (id, device) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
            plan.announce_blocks(id, 300, 0..3, &Layout::on_device(device));
        }
        let first: Vec<_> = (0..3).filter_map(|_| plan.next_block()).collect();
        assert_eq!(first.iter().map(|(_, parts)| parts[0].id).collect::<Vec<_>>(), [0, 2, 3]);
        // The third volume is twice as fast as the first; the second stands still.
        let mut sent = [0; 4];
        for turn in 0..6 {
            plan.on_read(Volume::of_device(3));
            if turn % 2 == 0 {
                plan.on_read(Volume::of_device(1));
            }
            while let Some((_, parts)) = plan.next_block() {
                sent[parts[0].id as usize] += 1;
                if plan.load.total() >= 4 {
                    break;
                }
            }
        }
        assert_eq!(
            (sent[2], sent[3]),
            (2, 2),
            "{sent:?}: of the file on 3 all are read, and 2 got no more than others"
        );
    }

    #[test]
    fn stripes_of_a_file_are_read_from_all_its_volumes_and_none_is_left_out() {
        let layout = Layout::striped(1, 2 * BLOCK, &[5, 6, 7]);
        let mut plan = Plan::new(BLOCK, 1 << 30);
        plan.announce_blocks(0, 1950, 1..20, &layout);
        let mut took = Vec::new();
        let mut waits = VecDeque::new();
        while let Some((volume, parts)) = plan.next_block() {
            assert_eq!(layout.volume(parts[0].offset), volume);
            took.push(parts[0].offset / BLOCK);
            waits.push_back(volume);
            if waits.len() == 3 {
                assert!(waits[0] != waits[1] && waits[1] != waits[2] || took.len() > 15, "{took:?}");
                waits.pop_front().into_iter().for_each(|volume| plan.on_read(volume));
            }
        }
        took.sort_unstable();
        assert_eq!(took, (1..20).collect::<Vec<_>>());
        assert_eq!(plan.take_exhausted(), [0]);
    }

    #[test]
    fn what_is_settled_is_known() {
        let mut plan = Plan::new(BLOCK, 0);
        plan.announce(0, None);
        plan.announce(1, Some(1));
        assert!(!plan.settled_before(1) && plan.settle(0) && plan.settled_before(1) && !plan.settle(0));
        assert_eq!(plan.unsettled(), 1);
    }

    proptest! {
        /// Every file is sent once, whole but for what is there, whenever its answer comes.
        #[test]
        fn what_is_missing_is_sent_once(
            files in prop::collection::vec((0u64..1000, prop::collection::vec(any::<bool>(), 10), 0usize..20), 1..30),
            ahead in 0u64..2000,
            stripe in prop::sample::select(vec![0, 50, 100, 300]),
        ) {
            let mut plan = Plan::new(BLOCK, ahead);
            let mut sent: Vec<Vec<Part>> = vec![Vec::new(); files.len()];
            let mut before = vec![0; files.len()];
            for (id, (size, _, _)) in files.iter().enumerate() {
                let layout = Layout::striped(id as u64 % 3, stripe, &[1, 2, 3][..id % 4]);
                plan.announce_blocks(id as u64, *size, 0..size.div_ceil(BLOCK), &layout);
            }
            for step in 0..40 {
                for (id, (size, have, at)) in files.iter().enumerate() {
                    if *at == step {
                        before[id] = sent[id].len();
                        let held = have.iter().take(size.div_ceil(BLOCK) as usize).enumerate();
                        let ranges = held.filter(|(_, have)| **have).map(|(i, _)| (i as u64, 1)).collect();
                        let answer = if *size > BLOCK { Answer::Have(ranges) } else { Answer::Send };
                        prop_assert_eq!(plan.answer(id as u64, &answer), Ok(false));
                    }
                }
                for _ in 0..if step < 20 { 2 } else { 1000 } {
                    let Some(block) = next(&mut plan) else { break };
                    prop_assert!(!block.is_empty() && block.len() <= PIECES_MAX);
                    prop_assert!(block.iter().map(|part| part.len).sum::<u64>() <= BLOCK);
                    block.iter().for_each(|part| sent[part.id as usize].push(*part));
                }
            }
            for (id, (size, have, _)) in files.iter().enumerate() {
                let mut offsets: Vec<u64> = sent[id].iter().map(|part| part.offset).collect();
                offsets.sort_unstable();
                offsets.dedup();
                prop_assert_eq!(offsets.len(), sent[id].len(), "twice");
                let held = |index: u64| *size > BLOCK && have[index as usize];
                for index in 0..size.div_ceil(BLOCK).max(1) {
                    let at = sent[id].iter().position(|part| part.offset == index * BLOCK);
                    prop_assert!(at.is_some() || held(index), "block {} of file {} is missing", index, id);
                    prop_assert!(at.is_none_or(|at| at < before[id] || !held(index)), "it was there");
                }
                let bytes: u64 = sent[id].iter().map(|part| part.len).sum();
                prop_assert!(bytes <= *size);
            }
        }
    }
}
