//! Registered memory: peers may access it, and reads and writes use it at this end.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use isthmus_io::{Access, RegionTable};
use isthmus_wire::conversation::MemoryHandle;

use crate::Error;

/// A key that no region ever has. A request for it is only answered.
pub(crate) const NO_KEY: u64 = u64::MAX;

/// Copied at a time while peers wait. Bytes.
const COPY_STEP: usize = 1 << 20;

/// Memory registered with an endpoint. Dropping it deregisters it at once. It is freed when the last operation that
/// uses it at this end is complete.
#[derive(Debug)]
pub struct Region {
    shared: Arc<Shared>,
}

/// The memory, kept while operations use it.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The endpoint that it is registered with.
    pub(crate) owner: u64,
    table: Arc<RegionTable>,
    handle: MemoryHandle,
    at: NonNull<u8>,
    /// Layout of our allocation; `None` if the memory is the program's.
    layout: Option<Layout>,
    /// Our operations under way that read it, and those that write it. Counts.
    pub(crate) read_from: AtomicU32,
    pub(crate) written_to: AtomicU32,
}

// SAFETY: an address, and memory that is only touched through the table's lock or by
// operations that are counted.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Region {
    /// Allocates zeroed memory.
    pub(crate) fn allocate(
        owner: u64,
        table: &Arc<RegionTable>,
        len: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let layout =
            Layout::from_size_align(len.max(1), 4096).map_err(|_| Error::Memory("no memory is as long"))?;
        // SAFETY: the layout has at least one byte.
        let Some(at) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            return Err(Error::Memory("the system has not got as much memory; register less"));
        };
        // SAFETY: allocated just now, and freed only by `Shared`'s end.
        unsafe { Self::enter(owner, table, at, len, access, Some(layout)) }
    }

    /// Registers the program's memory.
    ///
    /// # Safety
    /// It stays valid, and nobody else touches it where operations or peers may, until the region is dropped while
    /// [`Region::is_in_use`] is false.
    pub(crate) unsafe fn lend(
        owner: u64,
        table: &Arc<RegionTable>,
        at: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let at = match NonNull::new(at) {
            Some(at) => at,
            None if len == 0 => NonNull::dangling(),
            None => return Err(Error::Memory("a null pointer cannot be registered")),
        };
        // SAFETY: by this function's contract.
        unsafe { Self::enter(owner, table, at, len, access, None) }
    }

    /// # Safety
    /// The memory stays valid until `Shared` ends.
    unsafe fn enter(
        owner: u64,
        table: &Arc<RegionTable>,
        at: NonNull<u8>,
        len: usize,
        access: Access,
        layout: Option<Layout>,
    ) -> Result<Self, Error> {
        let piece = libc::iovec { iov_base: at.as_ptr().cast(), iov_len: len };
        for _ in 0..16 {
            let key = getrandom::u64().map_err(|error| Error::System(error.to_string()))?;
            // SAFETY: by this function's contract.
            if key != NO_KEY && unsafe { table.register(&[piece], Some(key), access, false) }.is_ok() {
                let (read, write) = (access.remote_read, access.remote_write);
                let handle = MemoryHandle { key, len: len as u64, read, write };
                let (read_from, written_to) = (AtomicU32::new(0), AtomicU32::new(0));
                let table = table.clone();
                let shared = Shared { owner, table, handle, at, layout, read_from, written_to };
                return Ok(Self { shared: Arc::new(shared) });
            }
        }
        Err(Error::System("no free key for memory was found".to_owned()))
    }

    /// The handle with which peers access it. Send it to them in a message.
    pub fn handle(&self) -> MemoryHandle {
        self.shared.handle
    }

    /// Length. Bytes.
    pub fn len(&self) -> usize {
        self.shared.handle.len as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether operations of this endpoint use it.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.shared) > 1
    }

    /// Copies bytes from `offset` out of it. Peers wait meanwhile, so each piece of 1 MiB is consistent.
    ///
    /// # Errors
    /// [`Error::Memory`] beyond its end, and while one of our operations writes it.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.check(offset, into.len())?;
        for (step, part) in into.chunks_mut(COPY_STEP).enumerate() {
            self.shared.table.exclusively(|| {
                if self.shared.written_to.load(Ordering::Acquire) > 0 {
                    return Err(Error::Memory("a read of ours still writes this memory; wait for its event"));
                }
                // SAFETY: checked to be inside; no operation of ours writes it, nor can begin to
                // while the table is held, which keeps peers out; `part` is the caller's alone.
                unsafe {
                    let from = self.shared.at.as_ptr().add(offset + step * COPY_STEP);
                    std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len());
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Copies bytes into it at `offset`, as [`Region::read_at`].
    ///
    /// # Errors
    /// [`Error::Memory`] beyond its end, and while one of our operations uses it.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset, bytes.len())?;
        let users = &self.shared;
        for (step, part) in bytes.chunks(COPY_STEP).enumerate() {
            self.shared.table.exclusively(|| {
                if users.written_to.load(Ordering::Acquire) + users.read_from.load(Ordering::Acquire) > 0 {
                    return Err(Error::Memory(
                        "an operation of ours still uses this memory; wait for its event",
                    ));
                }
                // SAFETY: as above, with nobody of ours reading either.
                unsafe {
                    let to = self.shared.at.as_ptr().add(offset + step * COPY_STEP);
                    std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Its address, for programs that avoid races themselves.
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.at.as_ptr()
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::Memory("beyond the end of the registered memory")),
        }
    }

    /// A piece for an operation of the endpoint `owner`. Keep the returned guard until the operation is complete.
    pub(crate) fn piece(
        &self,
        owner: u64,
        offset: u64,
        len: u64,
        written: bool,
    ) -> Result<(libc::iovec, InUse), Error> {
        if self.shared.owner != owner {
            return Err(Error::Memory("this memory is registered with another endpoint"));
        }
        let inside = |value: u64| usize::try_from(value).map_err(|_| Error::Memory("no memory is as long"));
        let (offset, len) = (inside(offset)?, inside(len)?);
        self.check(offset, len)?;
        // SAFETY: inside the memory.
        let at = unsafe { self.shared.at.as_ptr().add(offset) };
        let users = if written { &self.shared.written_to } else { &self.shared.read_from };
        // Wait while the program is copying.
        self.shared.table.exclusively(|| users.fetch_add(1, Ordering::AcqRel));
        Ok((
            libc::iovec { iov_base: at.cast(), iov_len: len },
            InUse { shared: self.shared.clone(), written },
        ))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.shared.table.deregister(self.shared.handle.key);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated with this layout; deregistered, and no operation uses it.
            unsafe { dealloc(self.at.as_ptr(), layout) };
        }
    }
}

/// One of our operations uses a region as long as this exists.
#[derive(Debug)]
pub(crate) struct InUse {
    shared: Arc<Shared>,
    written: bool,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let users = if self.written { &self.shared.written_to } else { &self.shared.read_from };
        users.fetch_sub(1, Ordering::AcqRel);
    }
}
