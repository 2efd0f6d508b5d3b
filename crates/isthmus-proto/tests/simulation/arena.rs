//! Memory that checks each access: a buffer is lent at most once and released exactly once, and the engine neither
//! reads nor writes it after that.

use isthmus_proto::{Access, BufferRef, Memory, RemoteRange};
use isthmus_wire::frame::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Lent,
    Released,
    /// Registered: peers reach it.
    Region,
}

#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    state: State,
    writable: bool,
}

/// One node's memory.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    buffers: Vec<Buffer>,
}

/// Regions are the first buffers; their key is `KEY` + index.
pub(crate) const KEY: u64 = 100;

impl Arena {
    fn add(&mut self, bytes: Vec<u8>, state: State, writable: bool) -> usize {
        self.buffers.push(Buffer { bytes, state, writable });
        self.buffers.len() - 1
    }

    /// Registers memory; returns its key.
    pub(crate) fn register(&mut self, bytes: Vec<u8>) -> u64 {
        KEY + self.add(bytes, State::Region, true) as u64
    }

    pub(crate) fn region(&self, key: u64) -> &[u8] {
        &self.buffers[(key - KEY) as usize].bytes
    }

    /// Lends a buffer, as one piece or as a list.
    pub(crate) fn lend(&mut self, bytes: Vec<u8>, writable: bool, listed: bool) -> BufferRef {
        let index = self.add(bytes, State::Lent, writable) as u64;
        if listed {
            BufferRef { token: 0, list: index as u32 + 1 }
        } else {
            BufferRef { token: (index + 1) << 32, list: 0 }
        }
    }

    fn at(&self, place: BufferRef) -> (usize, usize) {
        match place.list {
            0 if place.token == 0 => (usize::MAX, 0),
            0 => ((place.token >> 32) as usize - 1, place.token as u32 as usize),
            list => (list as usize - 1, place.token as usize),
        }
    }

    /// Takes back a buffer whose operation is over; returns its content.
    pub(crate) fn reclaim(&mut self, place: BufferRef) -> Vec<u8> {
        let (index, _) = self.at(place);
        let buffer = &mut self.buffers[index];
        assert_eq!(buffer.state, State::Released, "reported as complete but not released");
        std::mem::take(&mut buffer.bytes)
    }

    /// The content of a buffer that is still lent.
    pub(crate) fn peek(&self, place: BufferRef) -> &[u8] {
        &self.buffers[self.at(place).0].bytes
    }

    /// The number of buffers that the engine still has.
    pub(crate) fn lent(&self) -> usize {
        self.buffers.iter().filter(|buffer| buffer.state == State::Lent).count()
    }
}

impl Memory for Arena {
    fn store(&mut self, at: BufferRef, offset: u64, bytes: &[u8]) {
        let (index, start) = self.at(at);
        if bytes.is_empty() && index == usize::MAX {
            return;
        }
        let buffer = &mut self.buffers[index];
        assert_ne!(buffer.state, State::Released, "write into a buffer that is the program's again");
        assert!(buffer.writable, "write into a buffer that was lent for reading");
        let start = start + offset as usize;
        buffer.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn load(&self, at: BufferRef, offset: u64, len: usize, out: &mut Vec<u8>) {
        let (index, start) = self.at(at);
        if len == 0 && index == usize::MAX {
            return;
        }
        let buffer = &self.buffers[index];
        assert_ne!(buffer.state, State::Released, "read from a buffer that is the program's again");
        let start = start + offset as usize;
        out.extend_from_slice(&buffer.bytes[start..start + len]);
    }

    fn locate(&self, range: RemoteRange, _: Access) -> Result<BufferRef, Status> {
        let index = range.key.checked_sub(KEY).ok_or(Status::Key)?;
        let region = self.buffers.get(usize::try_from(index).map_err(|_| Status::Key)?).ok_or(Status::Key)?;
        if region.state != State::Region {
            return Err(Status::Key);
        }
        let end = range.addr.checked_add(range.len).ok_or(Status::Bounds)?;
        if end > region.bytes.len() as u64 {
            return Err(Status::Bounds);
        }
        Ok(BufferRef { token: ((index + 1) << 32) + range.addr, list: 0 })
    }

    fn keep(&mut self, at: BufferRef, len: u64) -> BufferRef {
        let mut bytes = Vec::new();
        self.load(at, 0, len as usize, &mut bytes);
        self.release(at);
        self.lend(bytes, false, len.is_multiple_of(2))
    }

    fn release(&mut self, at: BufferRef) {
        let (index, _) = self.at(at);
        let buffer = &mut self.buffers[index];
        assert_eq!(buffer.state, State::Lent, "released what was not lent");
        buffer.state = State::Released;
    }
}
