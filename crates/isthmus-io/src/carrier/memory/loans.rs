//! What a lane's writer has lent for good: pieces that the reader copies by itself when it comes to them, while the writer
//! goes on.

use std::collections::VecDeque;

/// A piece that is lent.
#[derive(Debug)]
pub(super) struct Loan {
    /// Position of its record, and behind it.
    pub(super) at: u64,
    behind: u64,
    address: u64,
    len: usize,
    /// Where it lies since it was wanted back.
    copy: Option<Box<[u8]>>,
}

impl Loan {
    /// Keeps a copy; where that lies.
    ///
    /// # Safety
    /// The piece is still valid for reading.
    pub(super) unsafe fn copy(&mut self) -> u64 {
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len) };
        self.copy.insert(bytes.into()).as_ptr() as u64
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// What was not read yet, as far as that was looked at.
    pieces: VecDeque<Loan>,
    /// Of each batch that was written and is in use the position behind what it lends, and how many there were before.
    batches: VecDeque<u64>,
    returned: u64,
    /// What is lent before this position lies elsewhere by now.
    recalled: u64,
}

impl Loans {
    /// A piece was lent, by a record that begins and ends at these positions.
    pub(super) fn add(&mut self, at: u64, behind: u64, piece: &libc::iovec) {
        let (address, len) = (piece.iov_base as u64, piece.iov_len);
        self.pieces.push_back(Loan { at, behind, address, len, copy: None });
    }

    pub(super) fn any(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// What is lent: behind where the reader is, whose records before that may have given way to others.
    pub(super) fn unread(&mut self, read: u64) -> impl Iterator<Item = &mut Loan> {
        self.pieces.iter_mut().filter(move |loan| loan.behind > read)
    }

    /// Whether any was read, as the reader is at this position, that still counts as lent.
    pub(super) fn any_read(&self, read: u64) -> bool {
        self.pieces.front().is_some_and(|loan| loan.behind <= read)
    }

    /// A batch was written whole; whether any of it is in use, and counts until it is returned.
    pub(super) fn close_batch(&mut self, read: u64) -> bool {
        let last = self.pieces.back().map_or(0, |loan| loan.behind);
        let before = self.batches.back().copied().unwrap_or(0);
        let in_use = last > before.max(read);
        if in_use {
            self.batches.push_back(last);
        }
        in_use
    }

    /// How many batches, the oldest first, are of no more use since this was last asked, and whether there are others.
    pub(super) fn take_returned(&mut self, read: u64) -> (usize, bool) {
        while self.any_read(read) {
            self.pieces.pop_front();
        }
        let free = read.max(self.recalled);
        let count = self.batches.iter().take_while(|behind| **behind <= free).count();
        self.batches.drain(..count);
        self.returned += count as u64;
        (count, !self.batches.is_empty())
    }

    /// The first so many batches of all there ever were are wanted back: what of them lies where it was lent, as the reader
    /// is at this position. They count as returned.
    pub(super) fn recall(&mut self, batches: u64, read: u64) -> impl Iterator<Item = &mut Loan> {
        let last = batches.checked_sub(self.returned + 1).and_then(|last| self.batches.get(last as usize));
        let upto = last.copied().unwrap_or(0);
        self.recalled = self.recalled.max(upto);
        self.unread(read).filter(move |loan| loan.behind <= upto && loan.copy.is_none())
    }
}
