//! Reusable buffers of one frame each.

use std::collections::VecDeque;

use crate::frame::{HEADER, PIECE};

/// Limit on unused buffers kept for reuse: 16 hold 512 KiB.
const SPARE_MAX: usize = 16;

/// A buffer for a frame's header and payload, of which a part is filled.
#[derive(Debug)]
pub struct Piece {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Piece {
    fn new() -> Self {
        Self { bytes: vec![0; HEADER + PIECE].into_boxed_slice(), start: HEADER, end: HEADER }
    }

    /// The bytes that are filled and not consumed.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Number of filled bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether nothing is filled.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Free room behind the filled bytes, `max` bytes at most.
    pub fn room(&mut self, max: usize) -> &mut [u8] {
        let to = self.bytes.len().min(self.end + max);
        &mut self.bytes[self.end..to]
    }

    /// Marks the next `bytes` bytes of the room as filled.
    ///
    /// # Panics
    /// If there is less room.
    pub fn fill(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes.len() - self.end, "no more than the room");
        self.end += bytes;
    }

    /// Removes the first `bytes` filled bytes.
    ///
    /// # Panics
    /// If fewer are filled.
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "no more than is filled");
        self.start += bytes;
    }

    /// Appends as many bytes as there is room for, and returns their number.
    pub(crate) fn append(&mut self, from: &[u8]) -> usize {
        let room = self.room(from.len());
        let taken = room.len();
        room.copy_from_slice(&from[..taken]);
        self.fill(taken);
        taken
    }

    /// Puts a header before the payload. None of the payload may have been consumed.
    pub(crate) fn prepend_header(&mut self, header: [u8; HEADER]) {
        debug_assert_eq!(self.start, HEADER, "the place before the payload is free");
        self.start = 0;
        self.bytes[..HEADER].copy_from_slice(&header);
    }
}

/// Unused buffers.
#[derive(Debug, Default)]
pub(crate) struct Spares(Vec<Piece>);

impl Spares {
    pub(crate) fn take(&mut self) -> Piece {
        self.0.pop().unwrap_or_else(Piece::new)
    }

    pub(crate) fn give(&mut self, mut piece: Piece) {
        if self.0.len() < SPARE_MAX {
            (piece.start, piece.end) = (HEADER, HEADER);
            self.0.push(piece);
        }
    }
}

/// A queue of bytes, in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pieces: VecDeque<Piece>,
    len: usize,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy of `from`.
    pub(crate) fn copy_in(&mut self, mut from: &[u8], spares: &mut Spares) {
        self.len += from.len();
        while !from.is_empty() {
            let taken = self.pieces.back_mut().map_or(0, |last| last.append(from));
            from = &from[taken..];
            if !from.is_empty() {
                self.pieces.push_back(spares.take());
            }
        }
    }

    /// Appends a piece. It first fills the room of the last one by copying, so only the first and the last piece are
    /// not full.
    pub(crate) fn push(&mut self, mut piece: Piece, spares: &mut Spares) {
        self.len += piece.len();
        if let Some(last) = self.pieces.back_mut() {
            let taken = last.append(piece.filled());
            piece.consume(taken);
        }
        if piece.is_empty() {
            return spares.give(piece);
        }
        self.pieces.push_back(piece);
    }

    /// Takes the first piece.
    pub(crate) fn pop(&mut self) -> Option<Piece> {
        let piece = self.pieces.pop_front()?;
        self.len -= piece.len();
        Some(piece)
    }

    /// Length of the first piece. Bytes.
    pub(crate) fn first_len(&self) -> usize {
        self.pieces.front().map_or(0, Piece::len)
    }

    /// Moves bytes from the front to `to`, and returns their number.
    pub(crate) fn copy_out(&mut self, to: &mut [u8], spares: &mut Spares) -> usize {
        let mut moved = 0;
        while moved < to.len()
            && let Some(first) = self.pieces.front_mut()
        {
            let part = first.len().min(to.len() - moved);
            to[moved..moved + part].copy_from_slice(&first.filled()[..part]);
            first.consume(part);
            moved += part;
            if first.is_empty()
                && let Some(piece) = self.pieces.pop_front()
            {
                spares.give(piece);
            }
        }
        self.len -= moved;
        moved
    }

    pub(crate) fn clear(&mut self, spares: &mut Spares) {
        self.pieces.drain(..).for_each(|piece| spares.give(piece));
        self.len = 0;
    }
}
