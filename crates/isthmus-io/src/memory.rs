//! Memory that programs lend: buffers of operations, and registered memory (`regions.rs`).
//!
//! The engine names memory by [`BufferRef`]; here a place is an address, or a list of pieces. Programs promise, in the
//! safety sections of the calls, that the addresses stay valid. The engine promises to stop using a place before it
//! reports the completion.

use std::cell::Cell;
use std::sync::Arc;

use isthmus_proto::{Access, BufferRef, Memory, RemoteRange};
use isthmus_wire::frame::Status;
use slab::Slab;

use crate::regions::RegionTable;

/// The engine's view of this process's memory.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    lists: Slab<List>,
    regions: Arc<RegionTable>,
    /// Key of the region that a peer named last.
    named: Cell<Option<u64>>,
}

/// The pieces of a lent buffer.
#[derive(Debug)]
struct List {
    pieces: Vec<libc::iovec>,
    /// The buffer, if it is a copy of our own: the only piece.
    _copy: Option<Vec<u8>>,
}

// SAFETY: the raw pointers are addresses that programs lent for any thread to use.
unsafe impl Send for ProcessMemory {}

/// A piece of memory: address and length. Bytes.
type Piece = (u64, usize);

impl ProcessMemory {
    pub(crate) fn new(regions: Arc<RegionTable>) -> Self {
        Self { lists: Slab::new(), regions, named: Cell::new(None) }
    }

    pub(crate) fn regions(&self) -> &Arc<RegionTable> {
        &self.regions
    }

    /// Key of the region that a peer has named since the last call.
    #[inline]
    pub(crate) fn take_named(&self) -> Option<u64> {
        self.named.take()
    }

    /// The place that stands for these pieces.
    #[inline]
    pub(crate) fn lend(&mut self, iov: &[libc::iovec]) -> BufferRef {
        match iov {
            [] => BufferRef::default(),
            [piece] => BufferRef { token: piece.iov_base as u64, list: 0 },
            pieces => self.enter(List { pieces: pieces.to_vec(), _copy: None }),
        }
    }

    fn enter(&mut self, list: List) -> BufferRef {
        BufferRef { token: 0, list: self.lists.insert(list) as u32 + 1 }
    }

    /// Calls `each` with the pieces that make up `len` bytes from `offset` of a place.
    fn pieces(&self, at: BufferRef, offset: u64, len: u64, mut each: impl FnMut(Piece)) {
        if at.list == 0 {
            return each((at.token + offset, len as usize));
        }
        let (mut skip, mut left) = (offset as usize, len as usize);
        for piece in &self.lists[at.list as usize - 1].pieces {
            let skipped = skip.min(piece.iov_len);
            let taken = left.min(piece.iov_len - skipped);
            skip -= skipped;
            left -= taken;
            if taken > 0 {
                each((piece.iov_base as u64 + skipped as u64, taken));
            }
        }
    }

    /// Appends the pieces that make up `len` bytes from `offset` of a place.
    pub(crate) fn iovecs(&self, at: BufferRef, offset: u64, len: u64, out: &mut Vec<libc::iovec>) {
        self.pieces(at, offset, len, |(address, len)| {
            out.push(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len });
        });
    }
}

impl Memory for ProcessMemory {
    #[inline]
    fn store(&mut self, at: BufferRef, offset: u64, bytes: &[u8]) {
        if at.list == 0 {
            let to = (at.token + offset) as *mut u8;
            // SAFETY: the program lent these bytes for writing until the completion, and
            // they do not overlap the engine's own `bytes`.
            return unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        if at.is_registered() {
            // Memory that is no longer registered is not written.
            self.regions.access(at, offset, bytes.len() as u64, |address| {
                // SAFETY: registered for writing, and the table is held.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
            });
            return;
        }
        let mut done = 0;
        self.pieces(at, offset, bytes.len() as u64, |(address, len)| {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), address as *mut u8, len) };
            done += len;
        });
    }

    fn load(&self, at: BufferRef, offset: u64, len: usize, out: &mut Vec<u8>) {
        if at.is_registered() {
            let found = self.regions.access(at, offset, len as u64, |address| {
                if len > 0 {
                    // SAFETY: registered for reading, and the table is held.
                    out.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, len) });
                }
            });
            if !found {
                out.resize(out.len() + len, 0); // It was deregistered: the peer gets zeros.
            }
            return;
        }
        self.pieces(at, offset, len as u64, |(address, len)| {
            if len > 0 {
                // SAFETY: the program lent these bytes for reading until the completion.
                out.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, len) });
            }
        });
    }

    fn locate(&self, range: RemoteRange, access: Access) -> Result<BufferRef, Status> {
        self.named.set(Some(range.key));
        self.regions.locate(range, access)
    }

    /// Copies in one move if both ends are contiguous; they may overlap then.
    fn copy(&mut self, from: (BufferRef, u64), to: (BufferRef, u64), len: u64) {
        let contiguous = |place: BufferRef| place.list == 0 || place.is_registered();
        if !contiguous(from.0) || !contiguous(to.0) || (from.0.is_registered() && to.0.is_registered()) {
            return self.copy_by_pieces(from, to, len);
        }
        let address = |(place, offset): (BufferRef, u64)| place.token + offset;
        // SAFETY: each end is lent by the program until the completion, or registered, and then the table is held.
        let copy = |from, to| unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len as usize) };
        // Memory that is no longer registered is neither read nor written.
        if from.0.is_registered() {
            self.regions.access(from.0, from.1, len, |from| copy(from, address(to)));
        } else if to.0.is_registered() {
            self.regions.access(to.0, to.1, len, |to| copy(address(from), to));
        } else {
            copy(address(from), address(to));
        }
    }

    fn keep(&mut self, at: BufferRef, len: u64) -> BufferRef {
        let mut copy = Vec::with_capacity(len as usize);
        self.load(at, 0, len as usize, &mut copy);
        self.release(at);
        let piece = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: copy.len() };
        self.enter(List { pieces: vec![piece], _copy: Some(copy) })
    }

    #[inline]
    fn release(&mut self, at: BufferRef) {
        if at.list != 0 && !at.is_registered() {
            self.lists.try_remove(at.list as usize - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iovec(bytes: &mut [u8]) -> libc::iovec {
        libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn a_list_of_pieces_is_one_buffer() {
        let (mut a, mut b, mut c) = ([0u8; 3], [0u8; 0], [0u8; 5]);
        let mut memory = ProcessMemory::new(Arc::default());
        let place = memory.lend(&[iovec(&mut a), iovec(&mut b), iovec(&mut c)]);
        memory.store(place, 2, &[1, 2, 3, 4]);
        let mut out = Vec::new();
        memory.load(place, 1, 6, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 4, 0]);
        assert_eq!((a, c), ([0, 0, 1], [2, 3, 4, 0, 0]));
        memory.release(place);
        assert!(memory.lists.is_empty());
    }

    #[test]
    fn a_kept_buffer_outlives_the_programs() {
        let mut memory = ProcessMemory::new(Arc::default());
        let (mut a, mut b) = ([1u8, 2], [3u8, 4]);
        let lent = memory.lend(&[iovec(&mut a), iovec(&mut b)]);
        let kept = memory.keep(lent, 3);
        (a, b) = ([9; 2], [9; 2]);
        let mut out = Vec::new();
        memory.load(kept, 1, 2, &mut out);
        assert_eq!((out, a, b), (vec![2, 3], [9; 2], [9; 2]));
        memory.release(kept);
        assert!(memory.lists.is_empty());
    }

    #[test]
    fn a_region_that_was_taken_back_is_out_of_reach_even_in_mid_access() {
        let (mut old, mut new) = ([1u8; 16], [2u8; 16]);
        let table = Arc::new(RegionTable::default());
        let all = crate::Access { remote_read: true, remote_write: true };
        // SAFETY: both outlive the table.
        let key = unsafe { table.register(&[iovec(&mut old)], None, all, false) }.expect("free");
        let place = table.locate(RemoteRange { key, addr: 0, len: 16 }, Access::Write).expect("registered");
        table.deregister(key);
        // SAFETY: as above; it takes the same slot.
        unsafe { table.register(&[iovec(&mut new)], None, all, false) }.expect("free");
        let mut memory = ProcessMemory::new(table);
        memory.store(place, 0, &[9; 16]);
        let mut read = Vec::new();
        memory.load(place, 0, 16, &mut read);
        assert_eq!((old, new, read), ([1; 16], [2; 16], vec![0; 16]));
    }
}
