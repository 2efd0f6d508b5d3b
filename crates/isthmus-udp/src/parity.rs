//! Parity of the last flight: what is under way when data ends is coded, so that its losses are
//! made good where they are missed, without a word of which they are.
//!
//! The flight is cut into *shards* of one packet each, and those into blocks. Of a block of
//! `count` shards any `count` of its shards and its parity together give it back
//! (Reed-Solomon), so that for each lost packet one more has to be sent and not a copy of all.
//! What left a round trip before that, and was lost, is on its way again: the few that are lost
//! again are made good in the same way, by less parity.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Once;
use std::thread;

use reed_solomon_simd::ReedSolomonEncoder;
use reed_solomon_simd::engine::{DefaultEngine, tables};

use crate::Micros;
use crate::sending::Sending;

/// Most shards of a block, and most parity of one: each is numbered by a byte. Blocks are also so
/// short in order that coding one takes about a millisecond.
pub(crate) const BLOCK_MAX: u64 = 255;

/// So many times in a round trip it is noted how far data has been sent, for more than two.
const MARKS: u64 = 32;
const MARKS_MAX: usize = 3 * MARKS as usize;
/// Who sends nothing new for such a part of a round trip pauses.
const PAUSE_PART: u64 = 4;

/// What a parity packet carries: one of the parity shards of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Stream offset of the block.
    pub(crate) start: u64,
    /// Shards of the block, and of its parity.
    pub(crate) count: u8,
    pub(crate) parity: u8,
    pub(crate) index: u8,
    /// Bytes.
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

/// Has the tables made that coding and rebuilding take, once in a process: that takes 10 ms, which the first message
/// that is coded would wait for. A thread of its own does it; where there can be none, they are made when needed.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let make = || {
            DefaultEngine::new();
            tables::get_log_walsh();
        };
        drop(thread::Builder::new().name("isthmus-parity".to_owned()).spawn(make));
    });
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Parity {
    /// Stream bytes that were sent when it was last begun.
    sent_to: u64,
    /// What is, or was, to be coded, in shards of how many bytes, and then what behind that in others,
    ranges: [(Range<u64>, u64); 2],
    /// what is below here having been repaired once.
    repaired: u64,
    /// Where the next block starts.
    next: u64,
    block: Option<Block>,
    /// Parity shards of the present block.
    coded: Vec<u8>,
    /// When data from which offset on was first sent.
    marks: VecDeque<(Micros, u64)>,
    /// When and from which offset on data was first sent after a pause, and when it was last.
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

    /// From which offset on data was first sent since then.
    pub(crate) fn sent_since(&self, since: Micros) -> Option<u64> {
        let at = self.marks.partition_point(|(at, _)| *at < since);
        self.marks.get(at).map(|(_, offset)| *offset)
    }

    /// From which offset on data was sent after the last pause, if that began since then.
    pub(crate) fn burst_since(&self, since: Micros) -> Option<u64> {
        let (at, offset) = self.burst;
        (at >= since).then_some(offset)
    }

    /// Whether the end of the data that was sent up to `sent_to` has not been seen to.
    pub(crate) fn is_new(&self, sent_to: u64) -> bool {
        self.sent_to != sent_to
    }

    /// Begins: each of `ranges` is to be coded in shards of so many bytes, of which it is a multiple. What
    /// of them was lost below `repaired` has been sent again.
    pub(crate) fn begin(&mut self, sent_to: u64, ranges: [(Range<u64>, u64); 2], repaired: u64) {
        (self.sent_to, self.next, self.block) = (sent_to, 0, None);
        (self.ranges, self.repaired) = (ranges, repaired);
    }

    /// Whether something that was seen to is missed, as all is from `missed` on.
    pub(crate) fn is_missed(&self, missed: u64) -> bool {
        self.sent_to > missed
    }

    /// Whether the end of the data that was sent up to `sent_to` is coded.
    pub(crate) fn has_coded(&self, sent_to: u64) -> bool {
        !self.is_new(sent_to) && self.ranges.iter().any(|(range, _)| !range.is_empty())
    }

    /// Data has come that goes first; by the end of that, all begins anew.
    pub(crate) fn cancel(&mut self) {
        (self.ranges, self.block) = (Default::default(), None);
        self.coded = Vec::new();
    }

    /// Whether something may be left to send.
    pub(crate) fn is_pending(&self) -> bool {
        self.block.is_some() || self.range().is_some()
    }

    /// What is still to be coded of the first range of which something is, and its shards' length.
    fn range(&self) -> Option<(Range<u64>, u64)> {
        let rest = |(range, shard): &(Range<u64>, u64)| (range.start.max(self.next)..range.end, *shard);
        self.ranges.iter().map(rest).find(|(range, _)| !range.is_empty())
    }

    /// Whether bytes at `offset` are made good by it.
    pub(crate) fn covers(&self, offset: u64) -> bool {
        self.ranges.iter().any(|(range, _)| range.contains(&offset))
    }

    /// The next shard to send. `parity` tells how many a block of so many shards is to have; and
    /// one that was repaired once.
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
            let Block { start, shard, count, parity, sent } = block;
            return Some(Shard { start, count, parity, index: sent - 1, len: shard as u32 });
        }
        self.coded = Vec::new();
        None
    }

    /// Codes the next block, if something of it is missed.
    fn code(&mut self, sending: &Sending, parity: impl Fn(u8, bool) -> u8) {
        let Some((range, shard)) = self.range() else { return };
        // What the peer has up to the first gap is here no longer.
        let gone = sending.acked_upto().saturating_sub(range.start).div_ceil(shard) * shard;
        let start = (range.start + gone).min(range.end);
        let repaired = start < self.repaired;
        let end = if repaired { self.repaired.min(range.end) } else { range.end };
        // The rest in blocks of one length.
        let shards = (end - start).div_ceil(shard);
        let count = shards.div_ceil(shards.div_ceil(BLOCK_MAX).max(1)) as u8;
        self.next = (start + u64::from(count) * shard).min(range.end);
        let parity = parity(count, repaired);
        self.coded.clear();
        if count == 0 || parity == 0 || !sending.is_missing(start..self.next) {
            return;
        }
        let coded = encode(sending, start, (count, parity), shard as usize, &mut self.coded);
        self.block = coded.ok().map(|()| Block { start, shard, count, parity, sent: 0 });
    }

    /// Appends a shard's bytes, of the present block, to `out`.
    pub(crate) fn copy(&self, shard: &Shard, out: &mut Vec<u8>) {
        let at = usize::from(shard.index) * shard.len as usize;
        out.extend_from_slice(&self.coded[at..at + shard.len as usize]);
    }
}

fn encode(
    sending: &Sending,
    start: u64,
    (count, parity): (u8, u8),
    shard: usize,
    out: &mut Vec<u8>,
) -> Result<(), reed_solomon_simd::Error> {
    let mut encoder = ReedSolomonEncoder::new(count.into(), parity.into(), shard)?;
    let mut bytes = Vec::with_capacity(shard);
    for i in 0..u64::from(count) {
        bytes.clear();
        sending.copy_bytes(start + i * shard as u64, shard, &mut bytes);
        encoder.add_original_shard(&bytes)?;
    }
    encoder.encode()?.recovery_iter().for_each(|shard| out.extend_from_slice(shard));
    Ok(())
}
