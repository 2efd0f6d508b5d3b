//! Rebuilds lost data from the rest of its block and parity (see [`crate::parity`]).

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cauchy;
use crate::ranges::RangeSet;
use crate::store::Store;
use crate::wire::ParityShard;

/// Memory of a block besides its bytes, which counts so that a peer cannot name many blocks cheaply. Bytes.
const BLOCK_BYTES: usize = 256 + size_of::<Block>();

#[derive(Debug)]
struct Block {
    count: u8,
    shard: usize,
    /// Indices of the received parity shards, and their bytes.
    indices: Vec<u8>,
    bytes: Vec<u8>,
}

impl Block {
    fn range(&self, start: u64) -> Range<u64> {
        start..start + u64::from(self.count) * self.shard as u64
    }
}

/// Received parity, by the offsets of its blocks.
#[derive(Debug, Default)]
pub(crate) struct Rebuild {
    blocks: BTreeMap<u64, Block>,
    memory: usize,
}

impl Rebuild {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Memory in use. Bytes.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Takes in a parity shard, unless all parity would take more than `most` bytes. Ignores one that contradicts the
    /// block's earlier shards.
    pub(crate) fn note(&mut self, shard: &ParityShard<'_>, most: usize) {
        let len = shard.bytes.len();
        let more = if self.blocks.contains_key(&shard.start) { len } else { BLOCK_BYTES + len };
        if self.memory + more > most {
            return;
        }
        let block = self.blocks.entry(shard.start).or_insert_with(|| Block {
            count: shard.count,
            shard: len,
            indices: Vec::new(),
            bytes: Vec::new(),
        });
        let same = (block.count, block.shard) == (shard.count, len);
        if same && !block.indices.contains(&shard.index) {
            block.indices.push(shard.index);
            block.bytes.extend_from_slice(shard.bytes);
            self.memory += more;
        }
    }

    /// Forgets blocks that end at or below `upto`, as they are complete.
    pub(crate) fn forget(&mut self, upto: u64) {
        while let Some(first) = self.blocks.first_entry()
            && first.get().range(*first.key()).end <= upto
        {
            self.memory -= BLOCK_BYTES + first.remove().bytes.len();
        }
    }

    /// Rebuilds the block that contains `offset`, if enough of it is here. Passes each missing shard's offset and bytes
    /// to `put`. True if there were any.
    pub(crate) fn rebuild(
        &mut self,
        offset: u64,
        have: &RangeSet,
        store: &Store,
        mut put: impl FnMut(u64, &[u8]),
    ) -> bool {
        let Some((&start, block)) = self.blocks.range(..=offset).next_back() else { return false };
        let range = block.range(start);
        if !range.contains(&offset) {
            return false;
        }
        let Some(missing) = missing(have, &range, block) else { return false };
        let done = missing.is_empty() || decode(block, start, &missing, store, &mut put);
        if done && let Some(block) = self.blocks.remove(&start) {
            self.memory -= BLOCK_BYTES + block.bytes.len();
        }
        done && !missing.is_empty()
    }
}

/// The incomplete shards of a block; `None` if they are more than its parity can restore.
fn missing(have: &RangeSet, range: &Range<u64>, block: &Block) -> Option<Vec<u8>> {
    let shard = block.shard as u64;
    let (mut missing, mut from) = (Vec::new(), range.start);
    while let Some(gap) = have.first_missing(from..range.end) {
        let first = (gap.start - range.start) / shard;
        let last = (gap.end - 1 - range.start) / shard;
        if missing.len() as u64 + (last - first) >= block.indices.len() as u64 {
            return None;
        }
        missing.extend((first..=last).map(|index| index as u8));
        from = range.start + (last + 1) * shard;
    }
    Some(missing)
}

/// Restores `missing`. False if the store no longer has some of the block's other bytes, which were read.
fn decode(
    block: &Block,
    start: u64,
    missing: &[u8],
    store: &Store,
    put: &mut impl FnMut(u64, &[u8]),
) -> bool {
    let len = block.shard;
    let at = |shard: u8| start + u64::from(shard) * len as u64;
    let there = || (0..block.count).filter(|shard| !missing.contains(shard));
    if !there().all(|shard| store.holds(at(shard), len)) {
        return false;
    }
    let parity = &block.indices[..missing.len()];
    let mut sums = block.bytes[..missing.len() * len].to_vec();
    for shard in there() {
        let mut done = 0;
        while done < len {
            let piece = store.piece(at(shard) + done as u64, len - done);
            for (index, sum) in parity.iter().zip(sums.chunks_exact_mut(len)) {
                cauchy::add(shard, piece, *index, &mut sum[done..done + piece.len()]);
            }
            done += piece.len();
        }
    }
    cauchy::solve(missing, parity, &sums, len, |shard, bytes| put(at(shard), bytes));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: usize = 64;

    fn shards(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|shard| (0..SHARD).map(|i| (shard * 31 + i * 7) as u8).collect()).collect()
    }

    fn parity(start: u64, index: u8, bytes: &[u8]) -> ParityShard<'_> {
        ParityShard { start, count: 10, index, bytes }
    }

    #[test]
    fn any_of_a_block_and_its_parity_give_it_back() {
        let block = shards(10);
        let mut coded = vec![vec![0; SHARD]; 4];
        for (parity, sum) in (0..).zip(&mut coded) {
            (0..).zip(&block).for_each(|(shard, bytes)| cauchy::add(shard, bytes, parity, sum));
        }
        for lost in [vec![0], vec![9, 3], vec![1, 2, 3, 8]] {
            let (mut store, mut have, mut rebuild) =
                (Store::default(), RangeSet::default(), Rebuild::default());
            for (index, bytes) in block.iter().enumerate().filter(|(index, _)| !lost.contains(index)) {
                let at = (index * SHARD) as u64;
                store.write(at, bytes);
                have.insert(at..at + SHARD as u64);
            }
            // As much parity is there as shards are missing; the first ones are lost.
            for (index, bytes) in coded.iter().enumerate().skip(4 - lost.len()) {
                rebuild.note(&parity(0, index as u8, bytes), 1 << 20);
            }
            let mut got = Vec::new();
            assert!(
                rebuild
                    .rebuild(0, &have, &store, |at, bytes| got.push((at as usize / SHARD, bytes.to_vec())))
            );
            got.sort();
            let expected: Vec<_> = lost.iter().map(|index| (*index, block[*index].clone())).collect();
            let mut expected = expected;
            expected.sort();
            assert_eq!(got, expected);
            assert_eq!(
                (rebuild.memory(), rebuild.is_empty()),
                (0, true),
                "a block that is whole is forgotten"
            );
        }
    }

    #[test]
    fn too_little_waits_and_many_blocks_take_no_more_than_is_allowed() {
        let mut rebuild = Rebuild::default();
        let have = RangeSet::default();
        rebuild.note(&parity(0, 0, &[1; SHARD]), 1 << 20);
        assert!(!rebuild.rebuild(0, &have, &Store::default(), |_, _| panic!("nothing is known")));
        let most = 64 << 10;
        for start in 0..100_000 {
            rebuild.note(&parity(start * 640, 0, &[1, 2]), most);
        }
        assert!(rebuild.memory() <= most && rebuild.blocks.len() <= most / BLOCK_BYTES);
        rebuild.forget(u64::MAX);
        assert_eq!(rebuild.memory(), 0);
    }
}
