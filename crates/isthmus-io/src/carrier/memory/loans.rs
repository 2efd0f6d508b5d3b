//! Loans for good: pieces that the reader copies from the writer's memory when it gets to them, while the writer goes
//! on.

use std::collections::VecDeque;

/// A piece that is lent.
#[derive(Debug)]
pub(super) struct Loan {
    /// Position of its record.
    pub(super) at: u64,
    /// Position behind its record.
    behind: u64,
    address: u64,
    len: usize,
    /// The copy, if it was recalled.
    copy: Option<Box<[u8]>>,
}

impl Loan {
    /// Copies the piece; returns the copy's address.
    ///
    /// # Safety
    /// The piece is still valid for reading.
    pub(super) unsafe fn copy(&mut self) -> u64 {
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len) };
        self.copy.insert(bytes.into()).as_ptr() as u64
    }
}

/// The loans of a lane.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// Loans that were not read when last looked at.
    pieces: VecDeque<Loan>,
    /// For each batch in use, the position behind its last loan.
    batches: VecDeque<u64>,
    /// Number of batches returned before those.
    returned: u64,
    /// Loans before this position were copied.
    recalled: u64,
}

impl Loans {
    /// Adds a loan, whose record begins and ends at these positions.
    pub(super) fn add(&mut self, at: u64, behind: u64, piece: &libc::iovec) {
        let (address, len) = (piece.iov_base as u64, piece.iov_len);
        self.pieces.push_back(Loan { at, behind, address, len, copy: None });
    }

    pub(super) fn any(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Loans that are not read yet: those behind the reader's position `read`. Earlier records may be overwritten
    /// by now.
    pub(super) fn unread(&mut self, read: u64) -> impl Iterator<Item = &mut Loan> {
        self.pieces.iter_mut().filter(move |loan| loan.behind > read)
    }

    /// Whether the reader, at position `read`, is past a loan that still counts as lent.
    pub(super) fn any_read(&self, read: u64) -> bool {
        self.pieces.front().is_some_and(|loan| loan.behind <= read)
    }

    /// Closes a batch that was written whole. True if a loan of it is in use.
    pub(super) fn close_batch(&mut self, read: u64) -> bool {
        let last = self.pieces.back().map_or(0, |loan| loan.behind);
        let before = self.batches.back().copied().unwrap_or(0);
        let in_use = last > before.max(read);
        if in_use {
            self.batches.push_back(last);
        }
        in_use
    }

    /// Number of batches, oldest first, that went out of use since the last call, and whether others are in use.
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

    /// Recalls the first `batches` batches that there ever were; they count as returned. Returns their loans that the
    /// reader, at position `read`, has not read: they must be copied.
    pub(super) fn recall(&mut self, batches: u64, read: u64) -> impl Iterator<Item = &mut Loan> {
        let last = batches.checked_sub(self.returned + 1).and_then(|last| self.batches.get(last as usize));
        let upto = last.copied().unwrap_or(0);
        self.recalled = self.recalled.max(upto);
        self.unread(read).filter(move |loan| loan.behind <= upto && loan.copy.is_none())
    }
}
