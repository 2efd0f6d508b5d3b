//! The program's memory that a lane's stream sends and retransmits from until it is acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

/// A piece of such memory. It is in use as long as its mark is.
#[derive(Debug)]
struct Piece {
    bytes: *const [u8],
    _mark: Arc<()>,
}

// SAFETY: it only reads memory that is lent to all threads, by the promise of `Loans::lend`.
unsafe impl Send for Piece {}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the promise of `Loans::lend`: it is valid as long as the mark exists, and we have one.
        unsafe { &*self.bytes }
    }
}

/// The memory that a lane has borrowed, by batch.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// The mark of the batch that is being written, if something of it was lent.
    present: Option<Arc<()>>,
    /// Marks of earlier batches that may be in use, and where each batch ends in the stream.
    open: VecDeque<(Arc<()>, u64)>,
    /// Batches returned so far. Count.
    returned: u64,
}

impl Loans {
    /// Lends the stream a part of the batch that is being written.
    ///
    /// # Safety
    /// It is valid for reading, and nobody changes it, until [`Loans::take_returned`] has counted that batch, or until
    /// the returned value and everything made from it are dropped.
    pub(super) unsafe fn lend(&mut self, bytes: *const [u8]) -> Bytes {
        let mark = self.present.get_or_insert_default().clone();
        Bytes::from_owner(Piece { bytes, _mark: mark })
    }

    /// Closes a batch that the stream took whole, up to the position `upto`. True if the batch is borrowed now.
    pub(super) fn close(&mut self, upto: u64) -> bool {
        let mark = self.present.take().filter(is_used);
        let borrowed = mark.is_some();
        self.open.extend(mark.map(|mark| (mark, upto)));
        borrowed
    }

    /// Whether anything is borrowed.
    pub(super) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// Number of batches, oldest first, that went out of use since the last call.
    pub(super) fn take_returned(&mut self) -> usize {
        let mut count = 0;
        while self.open.front().is_some_and(|(mark, _)| !is_used(mark)) {
            self.open.pop_front();
            count += 1;
        }
        self.returned += count as u64;
        count
    }

    /// The end, in the stream, of the first `batches` batches that there ever were; `None` if all of them were
    /// returned.
    pub(super) fn end_of(&self, batches: u64) -> Option<u64> {
        let last = batches.checked_sub(self.returned + 1)?;
        self.open.get(last as usize).or(self.open.back()).map(|(_, upto)| *upto)
    }
}

/// Whether anybody else has the mark.
fn is_used(mark: &Arc<()>) -> bool {
    Arc::strong_count(mark) > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_returned_in_their_order_once_nobody_uses_them() {
        let memory = [7_u8; 100];
        let mut loans = Loans::default();
        // SAFETY: the array outlives all that is lent of it.
        let lend = |loans: &mut Loans| unsafe { loans.lend(&raw const memory[10..20]) };
        let first = [lend(&mut loans), lend(&mut loans)];
        assert!(loans.close(20));
        assert!(!loans.close(30), "nothing of it was lent");
        let second = lend(&mut loans);
        assert!(loans.close(40));
        drop(lend(&mut loans));
        assert!(!loans.close(50), "it has been sent from there already");
        assert!(first.iter().all(|bytes| bytes[..] == [7; 10]));
        assert_eq!((loans.end_of(1), loans.end_of(2)), (Some(20), Some(40)));
        drop(second);
        assert_eq!((loans.take_returned(), loans.any()), (0, true), "an earlier one is in use");
        drop(first);
        assert_eq!((loans.take_returned(), loans.any()), (2, false));
        assert_eq!((loans.end_of(1), loans.end_of(2)), (None, None));
    }
}
