//! What was lost is rebuilt from the rest of its block and parity (see [`crate::parity`]).

use std::collections::BTreeMap;
use std::ops::Range;

use reed_solomon_simd::{Error, ReedSolomonDecoder};

use crate::ranges::RangeSet;
use crate::store::Store;
use crate::wire::ParityShard;

#[derive(Debug)]
struct Block {
    count: u8,
    parity: u8,
    shard: usize,
    /// Which parity shards have come, and their bytes.
    indices: Vec<u8>,
    bytes: Vec<u8>,
}

impl Block {
    fn range(&self, start: u64) -> Range<u64> {
        start..start + u64::from(self.count) * self.shard as u64
    }
}

/// Parity that came, by the offsets of its blocks.
#[derive(Debug, Default)]
pub(crate) struct Rebuild {
    blocks: BTreeMap<u64, Block>,
    memory: usize,
}

impl Rebuild {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Takes in a parity shard, as long as all of them take no more than `most` bytes. One that
    /// does not go with those before it is passed over.
    pub(crate) fn note(&mut self, shard: &ParityShard<'_>, most: usize) {
        let len = shard.bytes.len();
        if self.memory + len > most {
            return;
        }
        let block = self.blocks.entry(shard.start).or_insert_with(|| Block {
            count: shard.count,
            parity: shard.parity,
            shard: len,
            indices: Vec::new(),
            bytes: Vec::new(),
        });
        let same = (block.count, block.parity, block.shard) == (shard.count, shard.parity, len);
        if same && !block.indices.contains(&shard.index) {
            block.indices.push(shard.index);
            block.bytes.extend_from_slice(shard.bytes);
            self.memory += len;
        }
    }

    /// Forgets blocks that end at or below `upto`: all of them is here.
    pub(crate) fn forget(&mut self, upto: u64) {
        while let Some(first) = self.blocks.first_entry()
            && first.get().range(*first.key()).end <= upto
        {
            self.memory -= first.remove().bytes.len();
        }
    }

    /// Rebuilds the block that `offset` is in, if enough of it is here: gives each missing
    /// shard's offset and bytes to `put`. True if there were any.
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
        let done = missing.is_empty() || decode(block, start, &missing, store, &mut put).unwrap_or_default();
        if done && let Some(block) = self.blocks.remove(&start) {
            self.memory -= block.bytes.len();
        }
        done && !missing.is_empty()
    }
}

/// Which shards of a block are not whole; `None` where they are more than there is parity.
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

/// False where bytes that were read are no longer there.
fn decode(
    block: &Block,
    start: u64,
    missing: &[u8],
    store: &Store,
    put: &mut impl FnMut(u64, &[u8]),
) -> Result<bool, Error> {
    let mut decoder = ReedSolomonDecoder::new(block.count.into(), block.parity.into(), block.shard)?;
    let at = |index: u8| start + u64::from(index) * block.shard as u64;
    let mut bytes = Vec::with_capacity(block.shard);
    for index in (0..block.count).filter(|index| !missing.contains(index)) {
        if !store.holds(at(index), block.shard) {
            return Ok(false);
        }
        bytes.clear();
        store.copy(at(index), block.shard, &mut bytes);
        decoder.add_original_shard(index.into(), &bytes)?;
    }
    for (index, bytes) in block.indices.iter().zip(block.bytes.chunks_exact(block.shard)).take(missing.len())
    {
        decoder.add_recovery_shard((*index).into(), bytes)?;
    }
    let rebuilt = decoder.decode()?;
    for (index, bytes) in rebuilt.restored_original_iter() {
        put(at(index as u8), bytes);
    }
    Ok(true)
}
