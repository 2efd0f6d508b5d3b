//! The half of a stream that is received: what has arrived until it is read, and when that
//! is acknowledged.

use crate::Micros;
use crate::parity::BLOCK_MAX;
use crate::ranges::RangeSet;
use crate::rebuild::Rebuild;
use crate::seen::{Arrival, Seen};
use crate::store::Store;
use crate::wire::{ACK_FIXED, Ack, ParityShard, WORDS_MAX, Words, put_ack};

/// Longest that an acknowledgement waits. Microseconds.
pub(crate) const ACK_DELAY_US: Micros = 1_000;
/// Least time between acknowledgements. Microseconds.
const ACK_SPACE_US: Micros = 250;
/// Packets that are not acknowledged together.
const ACK_PACKETS: u32 = 32;
/// The shares of the window that parity may take of memory, and what was read and may be needed to
/// rebuild what follows.
const PARITY_SHARE: u64 = 32;
const KEPT_SHARE: u64 = 64;
/// What a stream may always hold behind what was read, so that it goes on however short memory is. Bytes.
pub(crate) const LITTLE_BYTES: u64 = 64 << 10;

/// Why the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// Data that it was not granted room for.
    #[error("data beyond the granted window")]
    Window,
    /// The stream's end is here, and there too.
    #[error("data behind the end of the stream")]
    End,
    /// It is the largest of those that have not proved who they are and take too much memory together.
    #[error("too much data before its proof of who it is")]
    Guests,
    /// It acknowledged what was never sent.
    #[error("acknowledgement of what was never sent")]
    Ack,
}

/// How much a stream may hold now of what its peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// All that the window grants.
    All,
    /// So many bytes behind the first that is missing.
    Gap(u64),
    /// [`LITTLE_BYTES`] behind what was read.
    Little,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Receiving {
    store: Store,
    have: RangeSet,
    read: u64,
    end: Option<u64>,
    /// Bytes beyond what was read that the peer may send.
    window: u64,
    /// The offset that the peer was last told.
    told_window: u64,
    /// Parity of what is missing.
    rebuild: Rebuild,
    /// The longest piece that came; and whether a later one was ever before an earlier one.
    longest: u64,
    loses: bool,
    seen: Seen,
    /// When the largest number arrived.
    arrived: Micros,
    pending: u32,
    ack_due: Option<Micros>,
    acked_at: Micros,
    scratch: Vec<u8>,
}

impl Receiving {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            store: Store::default(),
            have: RangeSet::default(),
            read: 0,
            end: None,
            window,
            told_window: window,
            rebuild: Rebuild::default(),
            longest: 0,
            loses: false,
            seen: Seen::default(),
            arrived: 0,
            pending: 0,
            ack_due: None,
            acked_at: 0,
            scratch: Vec::new(),
        }
    }

    /// Offset up to which the peer may send.
    pub(crate) fn limit(&self) -> u64 {
        self.read + self.window
    }

    pub(crate) fn widen(&mut self, window: u64) {
        self.window = self.window.max(window);
    }

    /// Notes a packet's number. False where it was here before.
    pub(crate) fn note(&mut self, arrived: Micros, number: u64) -> bool {
        match self.seen.note(number) {
            Arrival::Stale => false,
            Arrival::New { largest, .. } => {
                if largest {
                    self.arrived = arrived;
                }
                true
            }
        }
    }

    /// Whether a packet of this number was here before, or is too late to tell.
    pub(crate) fn is_stale(&self, number: u64) -> bool {
        self.seen.is_stale(number)
    }

    pub(crate) fn raise_floor(&mut self, floor: u64) {
        self.seen.raise_floor(floor);
    }

    /// A packet that wants an acknowledgement has come, within `wait_us` where that is given, else within `most_us`.
    pub(crate) fn owe_ack(&mut self, now: Micros, wait_us: Option<Micros>, most_us: Micros) {
        self.pending += 1;
        let wait_us = if self.pending >= ACK_PACKETS { Some(0) } else { wait_us };
        let due = match wait_us {
            Some(0) => self.acked_at + ACK_SPACE_US,
            Some(wait) => (self.acked_at + ACK_SPACE_US).max(now + wait),
            None => now + most_us.min(ACK_DELAY_US),
        };
        self.ack_due = Some(self.ack_due.map_or(due, |before| before.min(due)));
    }

    /// When an acknowledgement is due.
    pub(crate) fn ack_due(&self) -> Option<Micros> {
        self.ack_due
    }

    /// Whether data lies within what was granted.
    pub(crate) fn has_room(&self, offset: u64, data: &[u8]) -> bool {
        let end = offset.checked_add(data.len() as u64);
        end.is_some_and(|end| end <= self.told_window.max(self.limit()))
    }

    /// Whether data at `offset` may be held.
    pub(crate) fn may_hold(&self, hold: Hold, offset: u64) -> bool {
        match hold {
            Hold::All => true,
            Hold::Gap(bytes) => offset <= self.have.upto().saturating_add(bytes),
            Hold::Little => offset <= self.read.saturating_add(LITTLE_BYTES),
        }
    }

    /// Takes in stream data.
    pub(crate) fn take(&mut self, offset: u64, data: &[u8], fin: bool) -> Result<(), StreamFault> {
        if !self.has_room(offset, data) {
            return Err(StreamFault::Window);
        }
        let end = offset + data.len() as u64;
        let known = self.end.unwrap_or(u64::MAX);
        if end > known || (fin && self.end.is_some_and(|known| known != end)) {
            return Err(StreamFault::End);
        }
        if fin {
            self.end = Some(end);
        }
        self.longest = self.longest.max(data.len() as u64);
        self.loses |= offset > self.have.upto();
        self.put(offset, data);
        if !self.rebuild.is_empty() {
            self.rebuild.forget(self.have.upto());
            self.mend(offset);
        }
        Ok(())
    }

    fn put(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        // What was read already is gone from the store.
        let from = offset.max(self.read.min(end));
        if self.have.insert(offset..end) > 0 {
            self.store.write(from, &data[(from - offset) as usize..]);
        }
    }

    /// Takes in parity. True if what was missing is here because of it.
    pub(crate) fn take_parity(&mut self, shard: &ParityShard<'_>) -> bool {
        let len = u64::from(shard.count) * shard.bytes.len() as u64;
        let end = shard.start + len;
        let granted = end <= self.told_window.max(self.limit()).min(self.end.unwrap_or(u64::MAX));
        if !granted || self.have.upto() >= end {
            return false;
        }
        self.rebuild.note(shard, (self.window / PARITY_SHARE) as usize);
        self.mend(shard.start)
    }

    /// Rebuilds the block that `offset` is in, if that can be done.
    fn mend(&mut self, offset: u64) -> bool {
        let mut rebuild = std::mem::take(&mut self.rebuild);
        let mut pieces = Vec::new();
        let done =
            rebuild.rebuild(offset, &self.have, &self.store, |at, data| pieces.push((at, data.to_vec())));
        self.rebuild = rebuild;
        pieces.iter().for_each(|(at, data)| self.put(*at, data));
        done
    }

    /// Bytes that can be read.
    pub(crate) fn readable(&self) -> u64 {
        self.have.upto() - self.read
    }

    /// The next bytes that lie together, at most `most`.
    pub(crate) fn peek(&self, most: usize) -> &[u8] {
        let most = self.readable().min(most as u64) as usize;
        if most == 0 { &[] } else { self.store.piece(self.read, most) }
    }

    /// The first `len` bytes were read.
    pub(crate) fn consume(&mut self, now: Micros, len: u64) {
        debug_assert!(len <= self.readable());
        self.read += len;
        // Of a block of which something is missing all else is needed to rebuild that.
        let wanted = if self.loses && !self.is_finished() { BLOCK_MAX * self.longest } else { 0 };
        let kept = wanted.min(self.window / KEPT_SHARE);
        self.store.release(self.read.saturating_sub(kept));
        // The peer is told of the room in time, without an acknowledgement for each read.
        if self.limit() - self.told_window >= self.window / 4 {
            self.ack_due = Some(self.ack_due.map_or(now, |before| before.min(now)));
        }
    }

    /// Nothing comes for a while: what was read is of no use any more.
    pub(crate) fn rest(&mut self) {
        self.store.release(self.read);
        self.store.rest();
        (self.rebuild, self.loses) = (Rebuild::default(), false);
    }

    /// Whether everything up to the stream's end has been read.
    pub(crate) fn is_finished(&self) -> bool {
        self.end == Some(self.read)
    }

    /// Whether everything up to the stream's end is here.
    pub(crate) fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.have.upto() >= end)
    }

    /// Appends an acknowledgement that takes at most `room` bytes, if that is enough for one.
    pub(crate) fn put_ack(&mut self, now: Micros, room: usize, out: &mut Vec<u8>) -> bool {
        let Some(largest) = self.seen.largest() else { return false };
        let words = room.saturating_sub(ACK_FIXED) / 8;
        if words < 2 {
            return false;
        }
        let (recent, sweep) = self.seen.spans(words.min(WORDS_MAX));
        self.scratch.clear();
        self.seen.copy(sweep, &mut self.scratch);
        let split = self.scratch.len();
        self.seen.copy(recent, &mut self.scratch);
        let (sweep_bytes, recent_bytes) = self.scratch.split_at(split);
        // The end counts as a byte once all before it is here.
        let upto = self.have.upto() + u64::from(self.is_complete());
        let limit = self.read + self.window;
        let ack = Ack {
            largest,
            arrived: self.arrived as u32,
            delay_us: now.saturating_sub(self.arrived).min(u64::from(u32::MAX)) as u32,
            upto,
            window: limit,
            recent: Words { first: recent.first, bytes: recent_bytes },
            sweep: Words { first: sweep.first, bytes: sweep_bytes },
        };
        put_ack(out, &ack);
        self.told_window = limit;
        self.pending = 0;
        self.ack_due = None;
        self.acked_at = now;
        true
    }

    /// Bytes of memory that data takes.
    pub(crate) fn held(&self) -> usize {
        self.store.used() + self.rebuild.memory()
    }

    /// Keeps no memory for later use.
    pub(crate) fn trim(&mut self) {
        self.store.trim();
    }

    /// Bytes of memory in use, and kept for later use.
    pub(crate) fn memory(&self) -> usize {
        self.store.memory() + self.rebuild.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_order_once_and_the_end_is_known() {
        let mut receiving = Receiving::new(1_000);
        receiving.take(3, b"def", true).expect("within the window");
        assert_eq!(receiving.readable(), 0);
        receiving.take(0, b"abcd", false).expect("within the window");
        assert_eq!(receiving.peek(100), b"abcdef");
        receiving.consume(0, 4);
        receiving.take(1, b"bcdef", true).expect("a late copy");
        assert_eq!(receiving.peek(100), b"ef");
        receiving.consume(0, 2);
        assert!(receiving.is_finished());
    }

    #[test]
    fn what_exceeds_the_window_or_the_end_is_a_fault() {
        let mut receiving = Receiving::new(10);
        assert_eq!(receiving.take(8, b"abc", false), Err(StreamFault::Window));
        assert_eq!(receiving.take(u64::MAX, b"a", false), Err(StreamFault::Window));
        receiving.take(0, b"abc", true).expect("within the window");
        assert_eq!(receiving.take(3, b"d", false), Err(StreamFault::End));
        assert_eq!(receiving.take(0, b"ab", true), Err(StreamFault::End));
    }

    #[test]
    fn acknowledgements_wait_for_more_but_not_long() {
        let mut receiving = Receiving::new(1 << 20);
        receiving.note(10_000, 0);
        receiving.owe_ack(10_000, None, ACK_DELAY_US);
        assert_eq!(receiving.ack_due(), Some(10_000 + ACK_DELAY_US));
        receiving.owe_ack(10_001, Some(0), ACK_DELAY_US);
        assert!(receiving.ack_due().is_some_and(|due| due <= 10_001));
        assert!(receiving.put_ack(10_001, 1_000, &mut Vec::new()));
        assert_eq!(receiving.ack_due(), None);
        (0..ACK_PACKETS).for_each(|_| receiving.owe_ack(10_002, None, ACK_DELAY_US));
        assert_eq!(receiving.ack_due(), Some(10_001 + ACK_SPACE_US));
    }
}
