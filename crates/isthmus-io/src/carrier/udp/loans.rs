//! Memory of the program's that a lane's stream sends from, and sends again, until it has arrived.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

/// A piece of such memory. It is in use as long as anybody has its mark.
#[derive(Debug)]
struct Piece {
    bytes: *const [u8],
    _mark: Arc<()>,
}

// SAFETY: it only reads memory that is lent for any thread to use, by the promise of `Loans::lend`.
unsafe impl Send for Piece {}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the promise of `Loans::lend`: it is valid as long as the mark is there, and we have one.
        unsafe { &*self.bytes }
    }
}

/// What a lane has borrowed, batch by batch.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// The mark of the batch that is being written, if something of it was lent.
    present: Option<Arc<()>>,
    /// Those of earlier batches that may be in use, and where in the stream each of them ends.
    open: VecDeque<(Arc<()>, u64)>,
    /// Batches that were returned of all there ever were.
    returned: u64,
}

impl Loans {
    /// Memory that is part of the batch that is being written, for the stream to keep.
    ///
    /// # Safety
    /// It is valid for reading, and nobody changes it, until [`Loans::take_returned`] has counted that batch, or all that
    /// came of this was dropped.
    pub(super) unsafe fn lend(&mut self, bytes: *const [u8]) -> Bytes {
        let mark = self.present.get_or_insert_default().clone();
        Bytes::from_owner(Piece { bytes, _mark: mark })
    }

    /// The batch was taken whole, up to so far in the stream. Whether it is among those that are borrowed now.
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

    /// How many batches, the oldest first, are of no more use since this was last asked.
    pub(super) fn take_returned(&mut self) -> usize {
        let mut count = 0;
        while self.open.front().is_some_and(|(mark, _)| !is_used(mark)) {
            self.open.pop_front();
            count += 1;
        }
        self.returned += count as u64;
        count
    }

    /// Where the first so many batches of all there ever were end in the stream; `None` where they were returned.
    pub(super) fn end_of(&self, batches: u64) -> Option<u64> {
        let last = batches.checked_sub(self.returned + 1)?;
        self.open.get(last as usize).or(self.open.back()).map(|(_, upto)| *upto)
    }
}

/// Whether somebody has the mark beside us.
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
