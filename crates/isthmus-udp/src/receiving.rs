//! The receiving half of a stream: holds data until it is read, and grants the peer a window.

use crate::parity::BLOCK_MAX;
use crate::ranges::RangeSet;
use crate::rebuild::Rebuild;
use crate::store::Store;
use crate::wire::ParityShard;

/// Limits as parts of the window (window divided by these): memory of parity, and data kept after it was read because
/// rebuilding may need it.
const PARITY_SHARE: u64 = 32;
const KEPT_SHARE: u64 = 64;
/// Data that a stream may always hold behind the data read: progress even if memory is short. Bytes (64 KiB).
pub(crate) const LITTLE_BYTES: u64 = 64 << 10;

/// Breach of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// It sent data beyond its window.
    #[error("data beyond the granted window")]
    Window,
    /// It sent data behind the end of the stream, or two different ends.
    #[error("data behind the end of the stream")]
    End,
    /// It has not proved who it is, and holds the most memory of such peers, which together exceed their limit.
    #[error("too much data before its proof of who it is")]
    Guests,
    /// It acknowledged a packet that was never sent.
    #[error("acknowledgement of what was never sent")]
    Ack,
}

/// Limit on the peer's data that a stream may hold now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Everything within the window.
    All,
    /// This many bytes behind the first missing one.
    Gap(u64),
    /// [`LITTLE_BYTES`] behind the data read.
    Little,
}

/// The receiving half; the module's text says what it does.
#[derive(Debug)]
pub(crate) struct Receiving {
    store: Store,
    have: RangeSet,
    read: u64,
    end: Option<u64>,
    /// Bytes beyond those read that the peer may send.
    window: u64,
    /// The window's end that the peer was last told.
    told_window: u64,
    /// Parity of blocks with missing data.
    rebuild: Rebuild,
    /// Length of the longest piece that came; and whether data has come behind a gap.
    longest: u64,
    loses: bool,
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
        }
    }

    /// Offset up to which the peer may send.
    pub(crate) fn limit(&self) -> u64 {
        self.read + self.window
    }

    pub(crate) fn widen(&mut self, window: u64) {
        self.window = self.window.max(window);
    }

    /// Whether data lies within the granted window.
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
        // The store no longer has what was read.
        let from = offset.max(self.read.min(end));
        if self.have.insert(offset..end) > 0 {
            self.store.write(from, &data[(from - offset) as usize..]);
        }
    }

    /// Takes in a parity shard. True if it restored missing data.
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

    /// Rebuilds the block that contains `offset`, if possible.
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

    /// The next bytes that are contiguous in memory, at most `most`.
    pub(crate) fn peek(&self, most: usize) -> &[u8] {
        let most = self.readable().min(most as u64) as usize;
        if most == 0 { &[] } else { self.store.piece(self.read, most) }
    }

    /// Marks the next `len` bytes as read. True if the peer should be told of a larger window: in time, but not for each
    /// read.
    pub(crate) fn consume(&mut self, len: u64) -> bool {
        debug_assert!(len <= self.readable());
        self.read += len;
        // On a path that loses packets, a block's data stays after it was read: rebuilding the rest needs it.
        let wanted = if self.loses && !self.is_finished() { BLOCK_MAX * self.longest } else { 0 };
        let kept = wanted.min(self.window / KEPT_SHARE);
        self.store.release(self.read.saturating_sub(kept));
        self.limit() - self.told_window >= self.window / 4
    }

    /// Nothing comes for a while, so data that was read is no longer needed.
    pub(crate) fn rest(&mut self) {
        self.store.release(self.read);
        self.store.rest();
        (self.rebuild, self.loses) = (Rebuild::default(), false);
    }

    /// Whether everything up to the stream's end has been read.
    pub(crate) fn is_finished(&self) -> bool {
        self.end == Some(self.read)
    }

    /// Whether everything up to the stream's end has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.have.upto() >= end)
    }

    /// What the peer is told now: the offset up to which all data is here, and the one up to which it may send.
    pub(crate) fn tell(&mut self) -> (u64, u64) {
        self.told_window = self.limit();
        // The end counts as one byte once all data before it is here.
        (self.have.upto() + u64::from(self.is_complete()), self.told_window)
    }

    /// Memory of data. Bytes.
    pub(crate) fn held(&self) -> usize {
        self.store.used() + self.rebuild.memory()
    }

    /// Releases free memory that was kept for later use.
    pub(crate) fn trim(&mut self) {
        self.store.trim();
    }

    /// Memory in use or kept for later use. Bytes.
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
        receiving.consume(4);
        receiving.take(1, b"bcdef", true).expect("a late copy");
        assert_eq!(receiving.peek(100), b"ef");
        receiving.consume(2);
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

    /// One shard of parity is all of a block of one shard. It brings no more than data may.
    #[test]
    fn parity_beyond_the_window_restores_nothing() {
        let mut receiving = Receiving::new(100_000);
        let shard = |start| ParityShard { start, count: 1, index: 0, bytes: &[7; 100] };
        for start in [99_901, 1 << 40] {
            assert!(!receiving.take_parity(&shard(start)) && receiving.held() == 0, "{start}");
        }
        assert!(receiving.take_parity(&shard(99_900)) && receiving.held() > 0);
    }
}
