//! Buffers that encrypted lanes share, and the list of lanes that hold decrypted data.

/// The shared buffers of encrypted lanes. A lane has one only while it reads or writes.
#[derive(Debug, Default)]
pub(super) struct SharedBuffers {
    /// A read buffer, while no lane has it.
    spare: Vec<u8>,
    /// An empty write buffer, while no lane has it.
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

    /// An empty write buffer.
    pub(super) fn lend_outward(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outward)
    }

    /// Takes back a write buffer.
    pub(super) fn give_back_outward(&mut self, room: &mut Vec<u8>) {
        if room.capacity() > 0 {
            self.outward = std::mem::take(room);
            self.outward.clear();
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
