//! Buffers that encrypted lanes share, and the list of lanes that hold decrypted data.

/// The shared buffers of encrypted lanes. A lane has one only while it reads or writes.
#[derive(Debug, Default)]
pub(super) struct SharedBuffers {
    /// A read buffer, while no lane has it.
    spare: Vec<u8>,
    /// A write buffer, while no lane has it.
    outward: Vec<u8>,
    /// Lanes that hold bytes, so that they must be read although their connection is not readable.
    lanes: Vec<usize>,
}

impl SharedBuffers {
    /// A read buffer of `len` bytes.
    pub(super) fn lend(&mut self, len: usize) -> Vec<u8> {
        let mut room = std::mem::take(&mut self.spare);
        room.resize(len, 0);
        room
    }

    /// Takes back a read buffer that holds nothing.
    pub(super) fn give_back(&mut self, room: &mut Vec<u8>) {
        if !room.is_empty() {
            self.spare = std::mem::take(room);
        }
    }

    /// A write buffer of `len` bytes. All calls ask for the same length.
    pub(super) fn lend_outward(&mut self, len: usize) -> Vec<u8> {
        let room = std::mem::take(&mut self.outward);
        // Zeroed pages of the system take memory only when they are written.
        if room.is_empty() { vec![0; len] } else { room }
    }

    /// Takes back a write buffer.
    pub(super) fn give_back_outward(&mut self, room: &mut Vec<u8>) {
        if !room.is_empty() {
            self.outward = std::mem::take(room);
        }
    }

    /// Makes this lane be read in the next pass, although its connection may not be readable.
    pub(super) fn must_read(&mut self, lane: usize) {
        self.lanes.push(lane);
    }

    /// The lanes that must be read although their connections may not be readable.
    pub(super) fn take_readable(&mut self) -> std::vec::Drain<'_, usize> {
        self.lanes.drain(..)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}
