//! Buffers for incoming messages. They circulate: lent to the engine, then to the program, then to the engine again.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// One buffer. Only one of engine, conversation and program has it at a time.
#[derive(Debug)]
struct Buffer {
    /// Its first byte, within the allocation.
    at: NonNull<u8>,
    raw: NonNull<u8>,
}

/// All buffers of an endpoint, of the same length. Their pages take no memory until they are first used.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Length of each. Bytes.
    len: usize,
    layout: Layout,
    buffers: Vec<Option<Buffer>>,
    free_slots: Vec<u32>,
    /// Allocations that are kept for further buffers.
    spares: Vec<Buffer>,
}

/// Alignment of a buffer: a cache line. Bytes.
const ALIGNMENT: usize = 64;
/// Alignment of the allocations. Bytes. With a larger one, allocators write zeros to every page themselves.
const EASY_ALIGNMENT: usize = 16;
/// Most spare allocations that are kept. Count.
const SPARES_MAX: usize = 64;

// SAFETY: the buffers are plain memory, reached through `&self` by address only.
unsafe impl Send for Buffers {}

impl Buffers {
    /// No buffers yet, of `len` bytes each.
    pub(crate) fn new(len: u32) -> Self {
        let len = (len.max(1) as usize).next_multiple_of(ALIGNMENT);
        let layout = Layout::from_size_align(len + ALIGNMENT - EASY_ALIGNMENT, EASY_ALIGNMENT);
        let layout = layout.unwrap_or(Layout::new::<u128>());
        Self { len, layout, buffers: Vec::new(), free_slots: Vec::new(), spares: Vec::new() }
    }

    /// Adds a buffer; returns its slot. `None` if the system has no memory for it.
    pub(crate) fn add(&mut self) -> Option<u32> {
        let buffer = Some(self.spares.pop().or_else(|| self.allocate())?);
        Some(match self.free_slots.pop() {
            Some(slot) => {
                self.buffers[slot as usize] = buffer;
                slot
            }
            None => {
                self.buffers.push(buffer);
                self.buffers.len() as u32 - 1
            }
        })
    }

    fn allocate(&self) -> Option<Buffer> {
        // SAFETY: the layout has more than 64 bytes.
        let raw = NonNull::new(unsafe { alloc_zeroed(self.layout) })?;
        let skip = raw.as_ptr().addr().next_multiple_of(ALIGNMENT) - raw.as_ptr().addr();
        // SAFETY: the allocation is longer than the buffer by the most that is skipped.
        Some(Buffer { at: unsafe { raw.add(skip) }, raw })
    }

    /// Removes a buffer that nobody else has any more.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(buffer) = self.buffers.get_mut(slot as usize).and_then(Option::take) {
            self.free_slots.push(slot);
            match self.spares.len() < SPARES_MAX {
                true => self.spares.push(buffer),
                false => self.free(&buffer),
            }
        }
    }

    fn free(&self, buffer: &Buffer) {
        // SAFETY: `allocate` made it with this layout, and this is its one end: it is neither
        // among the buffers nor the spares any more.
        unsafe { dealloc(buffer.raw.as_ptr(), self.layout) };
    }

    /// The number of buffers.
    pub(crate) fn count(&self) -> u32 {
        (self.buffers.len() - self.free_slots.len()) as u32
    }

    /// Length of each. Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of a buffer.
    pub(crate) fn address(&self, slot: u32) -> NonNull<u8> {
        self.buffers.get(slot as usize).and_then(Option::as_ref).map_or(NonNull::dangling(), |b| b.at)
    }

    /// The first `len` bytes of a buffer, before anybody else has it.
    pub(crate) fn bytes(&self, slot: u32, len: u32) -> &[u8] {
        let Some(Some(buffer)) = self.buffers.get(slot as usize) else { return &[] };
        // SAFETY: initialised when allocated, at least as long, and the engine has given it
        // back: the caller holds the endpoint's lock and has not passed the slot on.
        unsafe { std::slice::from_raw_parts(buffer.at.as_ptr(), (len as usize).min(self.len)) }
    }

    /// Leaks the memory: somebody may still write to it.
    pub(crate) fn leak(&mut self) {
        self.buffers.clear();
        self.free_slots.clear();
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let buffers = std::mem::take(&mut self.buffers).into_iter().flatten();
        buffers.chain(std::mem::take(&mut self.spares)).for_each(|buffer| self.free(&buffer));
    }
}
