//! What lanes that take in more than they deliver at once have in common.

/// Room to read into, and which lanes hold something.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Room, when no lane has it.
    spare: Vec<u8>,
    /// Room for what is to be written, empty, when no lane has it.
    outward: Vec<u8>,
    /// Lanes that hold bytes which their connection no longer shows.
    lanes: Vec<usize>,
}

impl Held {
    /// Room of so many bytes.
    pub(super) fn lend(&mut self, len: usize) -> Vec<u8> {
        let mut room = std::mem::take(&mut self.spare);
        room.resize(len, 0);
        room
    }

    /// Takes room back that holds nothing.
    pub(super) fn give_back(&mut self, room: &mut Vec<u8>) {
        if !room.is_empty() {
            self.spare = std::mem::take(room);
        }
    }

    /// Room for what is to be written: empty.
    pub(super) fn lend_outward(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outward)
    }

    /// Takes that back.
    pub(super) fn give_back_outward(&mut self, room: &mut Vec<u8>) {
        if room.capacity() > 0 {
            self.outward = std::mem::take(room);
            self.outward.clear();
        }
    }

    /// This lane is to be read though nothing shows it.
    pub(super) fn note(&mut self, lane: usize) {
        self.lanes.push(lane);
    }

    /// Lanes to be read though nothing shows it.
    pub(super) fn take(&mut self) -> std::vec::Drain<'_, usize> {
        self.lanes.drain(..)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}
