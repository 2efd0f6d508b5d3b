//! Memory that programs lend: buffers of operations and registered regions.
//!
//! The engine names memory by [`Place`]; here a place is an address, or a list of
//! pieces. Programs promise, in the safety sections of the calls, that the addresses stay
//! valid; the engine promises to stop using a place before it reports its completion.

use std::collections::HashMap;
use std::sync::Arc;

use isthmus_proto::{Access as Wanted, Memory, Place, RemoteRange};
use isthmus_wire::frame::Status;
use parking_lot::RwLock;
use slab::Slab;

/// What a peer may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it (`FI_REMOTE_READ`).
    pub remote_read: bool,
    /// Peers may write it (`FI_REMOTE_WRITE`).
    pub remote_write: bool,
}

/// Why a region cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The key is taken.
    #[error("memory key {0:#x} is already registered in this domain")]
    KeyInUse(u64),
    /// More than one piece.
    #[error("a registration of {0} pieces; register each piece by itself")]
    Pieces(usize),
}

#[derive(Clone, Copy, Debug)]
struct Region {
    base: u64,
    len: u64,
    access: Access,
    virtual_addressing: bool,
}

impl Region {
    /// Where a range that a peer names starts, if it lies inside.
    fn offset(&self, range: RemoteRange) -> Option<u64> {
        let offset = if self.virtual_addressing { range.addr.checked_sub(self.base)? } else { range.addr };
        let end = offset.checked_add(range.len)?;
        (end <= self.len && end < 1 << OFFSET_BITS).then_some(offset)
    }
}

/// The registered regions of one domain.
///
/// A region's [`Place`] names a slot and its generation, not an address: every access looks
/// the region up and holds the table meanwhile, so none outlives
/// [`RegionTable::deregister`].
#[derive(Debug, Default)]
pub struct RegionTable {
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    slots: Slab<(u16, Region)>,
    by_key: HashMap<u64, usize>,
    next_key: u64,
    generation: u16,
}

/// Bits of a registered place's token that are the offset; the generation is above.
const OFFSET_BITS: u32 = 48;

impl RegionTable {
    /// Registers `iov` (one piece, or none) under `key`, or under a key chosen here where
    /// `key` is `None`; returns the key. With `virtual_addressing` peers name bytes by
    /// virtual address, else by offset from the start.
    ///
    /// # Errors
    /// [`RegisterError`] where the key is taken or there are several pieces.
    ///
    /// # Safety
    /// The memory stays valid until [`RegionTable::deregister`] returns.
    pub unsafe fn register(
        &self,
        iov: &[libc::iovec],
        key: Option<u64>,
        access: Access,
        virtual_addressing: bool,
    ) -> Result<u64, RegisterError> {
        let (base, len) = match iov {
            [] => (0, 0),
            [piece] => (piece.iov_base as u64, piece.iov_len as u64),
            pieces => return Err(RegisterError::Pieces(pieces.len())),
        };
        let mut table = self.table.write();
        let key = match key {
            Some(key) if table.by_key.contains_key(&key) => return Err(RegisterError::KeyInUse(key)),
            Some(key) => key,
            None => table.free_key(),
        };
        table.generation = table.generation.wrapping_add(1);
        let generation = table.generation;
        let slot = table.slots.insert((generation, Region { base, len, access, virtual_addressing }));
        table.by_key.insert(key, slot);
        Ok(key)
    }

    /// Takes a region back: no access touches it after this returns.
    pub fn deregister(&self, key: u64) {
        let mut table = self.table.write();
        if let Some(slot) = table.by_key.remove(&key) {
            table.slots.remove(slot);
        }
    }

    /// Runs `with` while no peer's access touches any region.
    pub fn exclusively<T>(&self, with: impl FnOnce() -> T) -> T {
        let _table = self.table.write();
        with()
    }

    fn locate(&self, range: RemoteRange, wanted: Wanted) -> Result<Place, Status> {
        let table = self.table.read();
        let slot = *table.by_key.get(&range.key).ok_or(Status::Key)?;
        let (generation, region) = table.slots[slot];
        let permitted = match wanted {
            Wanted::Read => region.access.remote_read,
            Wanted::Write | Wanted::Update => region.access.remote_write,
        };
        if !permitted {
            return Err(Status::Access);
        }
        let offset = region.offset(range).ok_or(Status::Bounds)?;
        Ok(Place {
            token: u64::from(generation) << OFFSET_BITS | offset,
            list: Place::REGISTERED | slot as u32,
        })
    }

    /// Calls `with` with the address of `len` bytes from `offset` of a registered place, if
    /// it is still registered, and keeps it so meanwhile.
    fn access(&self, at: Place, offset: u64, len: u64, with: impl FnOnce(u64)) -> bool {
        let table = self.table.read();
        let Some((generation, region)) = table.slots.get((at.list & !Place::REGISTERED) as usize) else {
            return false;
        };
        let start = (at.token & ((1 << OFFSET_BITS) - 1)) + offset;
        let valid = u64::from(*generation) == at.token >> OFFSET_BITS && start + len <= region.len;
        if valid {
            with(region.base + start);
        }
        valid
    }
}

impl Table {
    fn free_key(&mut self) -> u64 {
        while self.by_key.contains_key(&self.next_key) {
            self.next_key += 1;
        }
        self.next_key += 1;
        self.next_key - 1
    }
}

/// The engine's view of this process's memory.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    lists: Slab<Vec<libc::iovec>>,
    regions: Arc<RegionTable>,
}

// SAFETY: the raw pointers are addresses that programs lent for any thread to use.
unsafe impl Send for ProcessMemory {}

/// A piece of memory: address and length. Bytes.
type Piece = (u64, usize);

impl ProcessMemory {
    pub(crate) fn new(regions: Arc<RegionTable>) -> Self {
        Self { lists: Slab::new(), regions }
    }

    /// The place that stands for these pieces.
    #[inline]
    pub(crate) fn lend(&mut self, iov: &[libc::iovec]) -> Place {
        match iov {
            [] => Place::default(),
            [piece] => Place { token: piece.iov_base as u64, list: 0 },
            pieces => Place { token: 0, list: self.lists.insert(pieces.to_vec()) as u32 + 1 },
        }
    }

    /// Calls `each` with the pieces that make up `len` bytes from `offset` of a place.
    fn pieces(&self, at: Place, offset: u64, len: u64, mut each: impl FnMut(Piece)) {
        if at.list == 0 {
            return each((at.token + offset, len as usize));
        }
        let (mut skip, mut left) = (offset as usize, len as usize);
        for piece in &self.lists[at.list as usize - 1] {
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
    pub(crate) fn iovecs(&self, at: Place, offset: u64, len: u64, out: &mut Vec<libc::iovec>) {
        self.pieces(at, offset, len, |(address, len)| {
            out.push(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len });
        });
    }
}

impl Memory for ProcessMemory {
    #[inline]
    fn store(&mut self, at: Place, offset: u64, bytes: &[u8]) {
        if at.list == 0 {
            let to = (at.token + offset) as *mut u8;
            // SAFETY: the program lent these bytes for writing until the completion, and
            // they do not overlap the engine's own `bytes`.
            return unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        if at.is_registered() {
            // What is no longer registered is no longer written.
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

    fn load(&self, at: Place, offset: u64, len: usize, out: &mut Vec<u8>) {
        if at.is_registered() {
            let found = self.regions.access(at, offset, len as u64, |address| {
                if len > 0 {
                    // SAFETY: registered for reading, and the table is held.
                    out.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, len) });
                }
            });
            if !found {
                out.resize(out.len() + len, 0); // taken back: the peer gets nothing of it
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

    fn locate(&self, range: RemoteRange, access: Wanted) -> Result<Place, Status> {
        self.regions.locate(range, access)
    }

    #[inline]
    fn release(&mut self, at: Place) {
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

    fn first_byte(table: &RegionTable, place: Place) -> Option<u64> {
        let mut found = None;
        table.access(place, 0, 1, |address| found = Some(address));
        found
    }

    #[test]
    fn peers_reach_only_what_was_registered_for_them() {
        let mut bytes = [0u8; 16];
        let table = RegionTable::default();
        let read = Access { remote_read: true, remote_write: false };
        // SAFETY: `bytes` outlives the table.
        let key = unsafe { table.register(&[iovec(&mut bytes)], Some(7), read, false) }.expect("free");
        let range = |key, addr, len| RemoteRange { key, addr, len };
        let base = bytes.as_ptr() as u64;
        let place = table.locate(range(key, 4, 12), Wanted::Read).expect("registered");
        assert_eq!(first_byte(&table, place), Some(base + 4));
        assert_eq!(table.locate(range(key, 5, 12), Wanted::Read), Err(Status::Bounds));
        assert_eq!(table.locate(range(key, u64::MAX, 2), Wanted::Read), Err(Status::Bounds));
        assert_eq!(table.locate(range(key, 0, 1), Wanted::Write), Err(Status::Access));
        assert_eq!(table.locate(range(8, 0, 1), Wanted::Read), Err(Status::Key));
        // SAFETY: as above.
        let again = unsafe { table.register(&[], Some(7), read, false) };
        assert_eq!(again, Err(RegisterError::KeyInUse(7)));
        table.deregister(key);
        assert_eq!(table.locate(range(key, 0, 1), Wanted::Read), Err(Status::Key));
    }

    #[test]
    fn a_region_that_was_taken_back_is_out_of_reach_even_in_mid_access() {
        let (mut old, mut new) = ([1u8; 16], [2u8; 16]);
        let table = Arc::new(RegionTable::default());
        let all = Access { remote_read: true, remote_write: true };
        // SAFETY: both outlive the table.
        let key = unsafe { table.register(&[iovec(&mut old)], None, all, false) }.expect("free");
        let place = table.locate(RemoteRange { key, addr: 0, len: 16 }, Wanted::Write).expect("registered");
        table.deregister(key);
        // SAFETY: as above; it takes the same slot.
        unsafe { table.register(&[iovec(&mut new)], None, all, false) }.expect("free");
        let mut memory = ProcessMemory::new(table);
        memory.store(place, 0, &[9; 16]);
        let mut read = Vec::new();
        memory.load(place, 0, 16, &mut read);
        assert_eq!((old, new, read), ([1; 16], [2; 16], vec![0; 16]));
    }

    #[test]
    fn virtual_addresses_are_checked_too() {
        let mut bytes = [0u8; 16];
        let table = RegionTable::default();
        let all = Access { remote_read: true, remote_write: true };
        // SAFETY: `bytes` outlives the table.
        let key = unsafe { table.register(&[iovec(&mut bytes)], None, all, true) }.expect("free");
        let base = bytes.as_ptr() as u64;
        let range = |addr, len| RemoteRange { key, addr, len };
        let place = table.locate(range(base + 8, 8), Wanted::Write).expect("inside");
        assert_eq!(first_byte(&table, place), Some(base + 8));
        assert_eq!(table.locate(range(base - 1, 1), Wanted::Write), Err(Status::Bounds));
    }
}
