//! Registered memory: peers access it through this process or, on the same host, directly.
//!
//! A process of this host that may write our memory (`process_vm_writev(2)`) can access regions directly. The lane
//! between us shows it the regions that it uses (`carrier/memory/regions.rs`). It looks them up there for each access,
//! and we take no part. A region is shown once it was accessed by messages. Before it is deregistered it is hidden,
//! which waits for an access that is under way.

use std::collections::HashMap;

use isthmus_proto::{Access as Wanted, BufferRef, RemoteRange};
use isthmus_wire::frame::Status;
use parking_lot::RwLock;
use slab::Slab;

use crate::carrier::ShownRegion;
use crate::region::{Access, OFFSET_BITS, Region};

/// Why a region cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The key is taken.
    #[error("memory key {0:#x} is already registered in this domain")]
    KeyInUse(u64),
    /// The registration has more than one piece.
    #[error("a registration of {0} pieces; register each piece by itself")]
    Pieces(usize),
    /// The system gave no random number for a key.
    #[error("no key for memory: the system gives no random numbers ({0})")]
    Random(String),
}

/// The registered regions of one domain.
///
/// A region's [`BufferRef`] names a slot and its generation, not an address. Every access looks the region up and holds
/// the table's lock meanwhile, so no access outlives [`RegionTable::deregister`]. By [`Default`], this process takes
/// part in every access.
#[derive(Debug, Default)]
pub struct RegionTable {
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    slots: Slab<(u16, Region)>,
    by_key: HashMap<u64, usize>,
    generation: u16,
    /// Processes of this host may access regions directly.
    shows: bool,
    /// The regions that are shown to other processes, by key.
    shown: Vec<(u64, ShownRegion)>,
}

impl RegionTable {
    /// A table whose regions processes of this host may access directly, if the system permits it. This process then
    /// neither takes part in an access nor learns of it, until it calls [`RegionTable::watch`].
    #[must_use]
    pub fn within_reach() -> Self {
        Self { table: RwLock::new(Table { shows: true, ..Table::default() }) }
    }

    /// Makes this process take part in every access from now on. Its endpoints then report each
    /// ([`isthmus_proto::CompletionKind::RemoteAccess`]).
    pub fn watch(&self) {
        let mut table = self.table.write();
        table.shows = false;
        let shown = std::mem::take(&mut table.shown);
        drop(table);
        shown.iter().for_each(|(_, shown)| shown.hide());
    }

    /// Calls `with` to show the region with this key, if regions may be shown.
    pub(crate) fn show(&self, key: u64, with: impl FnOnce(&Region) -> Option<ShownRegion>) {
        let mut table = self.table.write();
        let Table { slots, by_key, shows: true, shown, .. } = &mut *table else { return };
        let Some(slot) = by_key.get(&key) else { return };
        if let Some(made) = with(&slots[*slot].1) {
            // A lane that has ended has hidden whatever it showed.
            shown.retain(|(_, shown)| !shown.is_gone());
            shown.push((key, made));
        }
    }

    /// Registers `iov` (one piece, or none) under `key`, or under a random key of 64 bits if `key` is `None`; returns
    /// the key. A peer cannot guess a random key, so it reaches only regions whose keys it was told. With
    /// `virtual_addressing`, peers name bytes by virtual address, else by offset from the start.
    ///
    /// # Errors
    /// [`RegisterError`] if the key is taken, there are several pieces, or the system gives no random number.
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
            None => table.free_key()?,
        };
        table.generation = table.generation.wrapping_add(1);
        let generation = table.generation;
        let slot = table.slots.insert((generation, Region { base, len, access, virtual_addressing }));
        table.by_key.insert(key, slot);
        Ok(key)
    }

    /// Deregisters a region: no access touches it after this returns. This waits for a process of this host that is in
    /// the middle of an access (at most 1 MiB), as long as that process lives.
    pub fn deregister(&self, key: u64) {
        let mut table = self.table.write();
        if let Some(slot) = table.by_key.remove(&key) {
            table.slots.remove(slot);
        }
        let hidden: Vec<_> = table.shown.extract_if(.., |(shown, _)| *shown == key).collect();
        drop(table);
        hidden.iter().for_each(|(_, shown)| shown.hide());
    }

    /// The address in this process of a range that a peer named; `None` if the peer may not write to it, or not any
    /// more.
    pub fn address(&self, range: RemoteRange) -> Option<u64> {
        let table = self.table.read();
        let (_, region) = table.slots[*table.by_key.get(&range.key)?];
        Some(region.base + region.find(range, Wanted::Write).ok()?)
    }

    /// Runs `with` while no access through this process touches any region. By [`Default`], there are no other
    /// accesses.
    pub fn exclusively<T>(&self, with: impl FnOnce() -> T) -> T {
        let _table = self.table.write();
        with()
    }

    pub(crate) fn locate(&self, range: RemoteRange, wanted: Wanted) -> Result<BufferRef, Status> {
        let table = self.table.read();
        let slot = *table.by_key.get(&range.key).ok_or(Status::Key)?;
        let (generation, region) = table.slots[slot];
        let offset = region.find(range, wanted)?;
        Ok(BufferRef {
            token: u64::from(generation) << OFFSET_BITS | offset,
            list: BufferRef::REGISTERED | slot as u32,
        })
    }

    /// Calls `with` with the address of `len` bytes from `offset` of a registered place, if it is still registered.
    /// It stays registered during the call.
    pub(crate) fn access(&self, at: BufferRef, offset: u64, len: u64, with: impl FnOnce(u64)) -> bool {
        let table = self.table.read();
        let Some((generation, region)) = table.slots.get((at.list & !BufferRef::REGISTERED) as usize) else {
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
    /// A random key that is not in use. Never `u64::MAX`, which libfabric reserves (`FI_KEY_NOTAVAIL`).
    fn free_key(&self) -> Result<u64, RegisterError> {
        loop {
            let key = getrandom::u64().map_err(|error| RegisterError::Random(error.to_string()))?;
            if key != u64::MAX && !self.by_key.contains_key(&key) {
                return Ok(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iovec(bytes: &mut [u8]) -> libc::iovec {
        libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    fn first_byte(table: &RegionTable, place: BufferRef) -> Option<u64> {
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
        for wanted in [Wanted::Write, Wanted::Update] {
            assert_eq!(table.locate(range(key, 0, 1), wanted), Err(Status::Access), "{wanted:?}");
        }
        assert_eq!(table.locate(range(8, 0, 1), Wanted::Read), Err(Status::Key));
        // SAFETY: as above.
        let again = unsafe { table.register(&[], Some(7), read, false) };
        assert_eq!(again, Err(RegisterError::KeyInUse(7)));
        table.deregister(key);
        assert_eq!(table.locate(range(key, 0, 1), Wanted::Read), Err(Status::Key));
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

    #[test]
    fn keys_that_are_chosen_here_cannot_be_guessed() {
        let mut bytes = [0u8; 16];
        let table = RegionTable::default();
        let all = Access { remote_read: true, remote_write: true };
        let mut keys: Vec<u64> = (0..64)
            // SAFETY: `bytes` outlives the table.
            .map(|_| unsafe { table.register(&[iovec(&mut bytes)], None, all, false) }.expect("free"))
            .collect();
        // With 64 random bits each: one chance in 2^32 that one of 64 keys is below 2^26, and less that two are near.
        assert!(keys.iter().all(|key| *key >= 1 << 26), "{keys:x?}");
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[1] - pair[0] > 1 << 20), "{keys:x?}");
        let guess = |key| table.locate(RemoteRange { key, addr: 0, len: 1 }, Wanted::Read);
        assert!((0..4096).all(|key| guess(key) == Err(Status::Key)), "a key that counts from 0");
    }
}
