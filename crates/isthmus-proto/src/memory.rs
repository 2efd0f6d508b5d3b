//! Names for memory that the engine does not touch itself.

use isthmus_wire::frame::Status;

use crate::RemoteRange;

/// A buffer lent by the program, or a piece of registered memory. The [`Memory`] beside the engine gives it its
/// meaning: shells use addresses, simulations use offsets into an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferRef {
    /// The start of a contiguous buffer, in the [`Memory`]'s terms.
    pub token: u64,
    /// 0 for a contiguous buffer; else index + 1 of a list of pieces known to the [`Memory`].
    pub list: u32,
}

impl BufferRef {
    /// Bit of `list` that marks registered memory. The program may deregister it at any time, so it is only accessed
    /// through the [`Memory`] and never lent to a shell.
    pub const REGISTERED: u32 = 1 << 31;

    /// Whether this is registered memory.
    pub fn is_registered(self) -> bool {
        self.list & Self::REGISTERED != 0
    }
}

/// A peer's kind of access to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Read and write it, as atomics do.
    Update,
}

/// Lent buffers and registered regions.
pub trait Memory {
    /// Copies `bytes` to `offset` of a buffer.
    fn store(&mut self, at: BufferRef, offset: u64, bytes: &[u8]);

    /// Appends `len` bytes from `offset` of a buffer to `out`.
    fn load(&self, at: BufferRef, offset: u64, len: usize, out: &mut Vec<u8>);

    /// Finds a range of registered memory that a peer names, and checks that the peer may access it.
    fn locate(&self, range: RemoteRange, access: Access) -> Result<BufferRef, Status>;

    /// Copies `len` bytes within the process, each end given as a buffer and an offset in it. Default:
    /// [`Memory::copy_by_pieces`].
    fn copy(&mut self, from: (BufferRef, u64), to: (BufferRef, u64), len: u64) {
        self.copy_by_pieces(from, to, len);
    }

    /// Like [`Memory::copy`], through a buffer of at most `COPY_MAX` (64 KiB); the two ranges must not overlap.
    fn copy_by_pieces(&mut self, from: (BufferRef, u64), to: (BufferRef, u64), len: u64) {
        let mut bytes = Vec::with_capacity(len.min(COPY_MAX) as usize);
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(COPY_MAX);
            bytes.clear();
            self.load(from.0, from.1 + done, piece as usize, &mut bytes);
            self.store(to.0, to.1 + done, &bytes);
            done += piece;
        }
    }

    /// Copies a lent buffer of `len` bytes and gives it back. The copy is a lent buffer too.
    fn keep(&mut self, at: BufferRef, len: u64) -> BufferRef;

    /// Gives a lent buffer back: its operation is over.
    fn release(&mut self, at: BufferRef);
}

/// Size of the buffer through which [`Memory::copy_by_pieces`] copies: small enough to stay in the processor's cache.
/// Bytes.
const COPY_MAX: u64 = 64 << 10;

impl<M: Memory + ?Sized> Memory for &mut M {
    fn store(&mut self, at: BufferRef, offset: u64, bytes: &[u8]) {
        (**self).store(at, offset, bytes);
    }

    fn load(&self, at: BufferRef, offset: u64, len: usize, out: &mut Vec<u8>) {
        (**self).load(at, offset, len, out);
    }

    fn locate(&self, range: RemoteRange, access: Access) -> Result<BufferRef, Status> {
        (**self).locate(range, access)
    }

    fn copy(&mut self, from: (BufferRef, u64), to: (BufferRef, u64), len: u64) {
        (**self).copy(from, to, len);
    }

    fn keep(&mut self, at: BufferRef, len: u64) -> BufferRef {
        (**self).keep(at, len)
    }

    fn release(&mut self, at: BufferRef) {
        (**self).release(at);
    }
}
