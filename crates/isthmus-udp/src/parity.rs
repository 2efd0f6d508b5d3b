//! Parity for the last flight: repairs losses at the end of data without waiting to learn of them.
//!
//! The sender cuts the flight into *shards* of one packet each, and those into blocks. Any `count` of a block's shards
//! and parity shards together restore a block of `count` shards ([`crate::cauchy`]). So each lost packet costs one more
//! packet, not a copy of the whole flight. Data that was sent a round trip earlier and lost is already retransmitted. A
//! smaller amount of parity repairs the few packets of it that are lost again.

use std::collections::VecDeque;
use std::ops::Range;

use crate::Micros;
use crate::cauchy::{self, SHARDS_MAX};
use crate::sending::Sending;

/// Most shards of a block. With its parity, a block has at most [`SHARDS_MAX`]. Coding a block of this length takes
/// about a millisecond.
pub(crate) const BLOCK_MAX: u64 = 255;

/// Marks of how far data was sent: how many in a round trip, and how many are kept, for more than two round trips.
const MARKS: u64 = 32;
const MARKS_MAX: usize = 3 * MARKS as usize;
/// A sender pauses if it sends nothing new for the round trip divided by this.
const PAUSE_PART: u64 = 4;

/// Payload of a parity packet: one of the parity shards of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Stream offset of the block.
    pub(crate) start: u64,
    /// Data shards of the block.
    pub(crate) count: u8,
    pub(crate) index: u8,
    /// Length of the shard. Bytes.
    pub(crate) len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    start: u64,
    shard: u64,
    count: u8,
    parity: u8,
    sent: u8,
}

/// Codes the last flight; the module's text says how.
#[derive(Debug, Default)]
pub(crate) struct Parity {
    /// Stream bytes that had been sent when it last began.
    sent_to: u64,
    /// The ranges to code, with their shard lengths. The second follows the first.
    ranges: [(Range<u64>, u64); 2],
    /// Losses below this offset have been retransmitted once.
    repaired: u64,
    /// Start of the next block.
    next: u64,
    block: Option<Block>,
    /// Parity shards of the present block.
    coded: Vec<u8>,
    /// When data was first sent, and from which offset on.
    marks: VecDeque<(Micros, u64)>,
    /// When and from which offset on data was sent after a pause, and when new data was last sent.
    burst: (Micros, u64),
    last_at: Option<Micros>,
}

impl Parity {
    /// Notes that data from `offset` on is sent for the first time.
    pub(crate) fn mark(&mut self, now: Micros, rtt_us: Micros, offset: u64) {
        let last_at = self.last_at.replace(now);
        if last_at.is_none_or(|last| now >= last + rtt_us / PAUSE_PART) {
            self.burst = (now, offset);
        }
        if self.marks.back().is_some_and(|(at, _)| now < at + rtt_us / MARKS) {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back((now, offset));
    }

    /// The offset of the first data that was sent since `since`.
    pub(crate) fn sent_since(&self, since: Micros) -> Option<u64> {
        let at = self.marks.partition_point(|(at, _)| *at < since);
        self.marks.get(at).map(|(_, offset)| *offset)
    }

    /// The offset of the first data behind the last pause, if that data was sent since `since`.
    pub(crate) fn burst_since(&self, since: Micros) -> Option<u64> {
        let (at, offset) = self.burst;
        (at >= since).then_some(offset)
    }

    /// Whether the end of data at `sent_to` is a new one, for which [`Parity::begin`] was not called.
    pub(crate) fn is_new(&self, sent_to: u64) -> bool {
        self.sent_to != sent_to
    }

    /// Begins to code `ranges`, each with its shard length, of which it is a multiple. Losses below `repaired` have
    /// been retransmitted.
    pub(crate) fn begin(&mut self, sent_to: u64, ranges: [(Range<u64>, u64); 2], repaired: u64) {
        (self.sent_to, self.next, self.block) = (sent_to, 0, None);
        (self.ranges, self.repaired) = (ranges, repaired);
    }

    /// Whether data before the last end that was handled is unacknowledged; `missed` is the first such byte.
    pub(crate) fn is_missed(&self, missed: u64) -> bool {
        self.sent_to > missed
    }

    /// Whether the end of data at `sent_to` is coded.
    pub(crate) fn has_coded(&self, sent_to: u64) -> bool {
        !self.is_new(sent_to) && self.ranges.iter().any(|(range, _)| !range.is_empty())
    }

    /// Stops, because new data is sent first. Coding begins anew at the end of that data.
    pub(crate) fn cancel(&mut self) {
        (self.ranges, self.block) = (Default::default(), None);
        self.coded = Vec::new();
    }

    /// Whether there may be something left to send.
    pub(crate) fn is_pending(&self) -> bool {
        self.block.is_some() || self.range().is_some()
    }

    /// The rest of the first range that is not fully coded, and its shard length.
    fn range(&self) -> Option<(Range<u64>, u64)> {
        let rest = |(range, shard): &(Range<u64>, u64)| (range.start.max(self.next)..range.end, *shard);
        self.ranges.iter().map(rest).find(|(range, _)| !range.is_empty())
    }

    /// Whether parity covers the byte at `offset`.
    pub(crate) fn covers(&self, offset: u64) -> bool {
        self.ranges.iter().any(|(range, _)| range.contains(&offset))
    }

    /// The next parity shard to send. `parity` says how many a block of so many shards gets; the flag says whether its
    /// losses were retransmitted once.
    pub(crate) fn next(&mut self, sending: &Sending, parity: impl Fn(u8, bool) -> u8) -> Option<Shard> {
        while self.is_pending() {
            let Some(mut block) = self.block.take() else {
                self.code(sending, &parity);
                continue;
            };
            let end = block.start + u64::from(block.count) * block.shard;
            if block.sent == block.parity || !sending.is_missing(block.start..end) {
                continue;
            }
            block.sent += 1;
            self.block = Some(block);
            let Block { start, shard, count, sent, .. } = block;
            return Some(Shard { start, count, index: sent - 1, len: shard as u32 });
        }
        self.coded = Vec::new();
        None
    }

    /// Codes the next block, if some of it is unacknowledged.
    fn code(&mut self, sending: &Sending, parity: impl Fn(u8, bool) -> u8) {
        let Some((range, shard)) = self.range() else { return };
        // The store no longer has what is acknowledged up to the first gap.
        let gone = sending.acked_upto().saturating_sub(range.start).div_ceil(shard) * shard;
        let start = (range.start + gone).min(range.end);
        let repaired = start < self.repaired;
        let end = if repaired { self.repaired.min(range.end) } else { range.end };
        let (count, parity) = block_of((end - start).div_ceil(shard), |count| parity(count, repaired));
        self.next = (start + u64::from(count) * shard).min(range.end);
        self.coded.clear();
        if count == 0 || parity == 0 || !sending.is_missing(start..self.next) {
            return;
        }
        encode(sending, start, (count, parity), shard as usize, &mut self.coded);
        self.block = Some(Block { start, shard, count, parity, sent: 0 });
    }

    /// Appends the bytes of a parity shard of the present block to `out`.
    pub(crate) fn copy(&self, shard: &Shard, out: &mut Vec<u8>) {
        let at = usize::from(shard.index) * shard.len as usize;
        out.extend_from_slice(&self.coded[at..at + shard.len as usize]);
    }
}

/// The length of the next block, out of `shards` left, and its amount of parity. All blocks have about the same length.
/// Parity is limited if the code has no room for more.
fn block_of(shards: u64, parity: impl Fn(u8) -> u8) -> (u8, u8) {
    let of = |most: usize| shards.div_ceil(shards.div_ceil(most as u64).max(1)) as u8;
    let whole = of(BLOCK_MAX as usize);
    let room = SHARDS_MAX - usize::from(parity(whole));
    let count = if usize::from(whole) > room { of(room.max(SHARDS_MAX / 2)) } else { whole };
    let most = (SHARDS_MAX - usize::from(count)).min(255) as u8;
    (count, parity(count).min(most))
}

fn encode(sending: &Sending, start: u64, (count, parity): (u8, u8), shard: usize, out: &mut Vec<u8>) {
    out.resize(usize::from(parity) * shard, 0);
    let mut bytes = Vec::with_capacity(shard);
    for number in 0..count {
        bytes.clear();
        sending.copy_bytes(start + u64::from(number) * shard as u64, shard, &mut bytes);
        for (index, sum) in (0..parity).zip(out.chunks_exact_mut(shard)) {
            cauchy::add(number, &bytes, index, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_and_its_parity_are_no_more_than_the_code_has() {
        let part = |count: u8, percent: u64| (u64::from(count) * percent / 100).clamp(1, 255) as u8;
        assert_eq!(block_of(109, |count| part(count, 25)), (109, 27));
        assert_eq!(block_of(255, |count| part(count, 25)), (128, 32));
        assert_eq!(block_of(255, |count| part(count, 400)), (128, 128));
        assert_eq!(block_of(10, |count| part(count, 400)), (10, 40));
        assert_eq!(block_of(0, |_| 0), (0, 0));
        for (shards, percent) in (1..2_000).flat_map(|shards| [0, 10, 100, 400].map(|part| (shards, part))) {
            let (count, parity) = block_of(shards, |count| part(count, percent));
            assert!(
                count > 0 && usize::from(count) + usize::from(parity) <= SHARDS_MAX,
                "{shards}, {percent}"
            );
        }
    }
}
