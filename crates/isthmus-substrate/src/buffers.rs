//! Buffers for messages that come in: lent to the engine, then to the program, by turns.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// One buffer. Whoever has it in turn (engine, conversation, program) is alone with it.
#[derive(Debug)]
struct Buffer {
    at: NonNull<u8>,
}

/// All buffers of an endpoint, each of the same length. Their pages cost nothing until
/// they are first used.
#[derive(Debug)]
pub(crate) struct Buffers {
    layout: Layout,
    buffers: Vec<Option<Buffer>>,
    free_slots: Vec<u32>,
    /// Memory for further buffers, some of which come and go.
    spares: Vec<Buffer>,
}

/// Spares that are kept.
const SPARES_MAX: usize = 64;

// SAFETY: the buffers are plain memory, reached through `&self` by address only.
unsafe impl Send for Buffers {}

impl Buffers {
    /// No buffers yet, of `len` bytes each.
    pub(crate) fn new(len: u32) -> Self {
        let len = (len.max(1) as usize).next_multiple_of(64);
        let layout = Layout::from_size_align(len, 64).unwrap_or(Layout::new::<[u64; 8]>());
        Self { layout, buffers: Vec::new(), free_slots: Vec::new(), spares: Vec::new() }
    }

    /// One more buffer; its slot.
    pub(crate) fn add(&mut self) -> u32 {
        let buffer = Some(self.spares.pop().unwrap_or_else(|| self.allocate()));
        match self.free_slots.pop() {
            Some(slot) => {
                self.buffers[slot as usize] = buffer;
                slot
            }
            None => {
                self.buffers.push(buffer);
                self.buffers.len() as u32 - 1
            }
        }
    }

    fn allocate(&self) -> Buffer {
        // SAFETY: the layout has at least 64 bytes.
        let raw = unsafe { alloc_zeroed(self.layout) };
        let Some(at) = NonNull::new(raw) else { handle_alloc_error(self.layout) };
        Buffer { at }
    }

    /// Takes away a buffer that nobody else has any more.
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
        unsafe { dealloc(buffer.at.as_ptr(), self.layout) };
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        (self.buffers.len() - self.free_slots.len()) as u32
    }

    /// Length of each. Bytes.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    /// Where a buffer is.
    pub(crate) fn address(&self, slot: u32) -> NonNull<u8> {
        self.buffers.get(slot as usize).and_then(Option::as_ref).map_or(NonNull::dangling(), |b| b.at)
    }

    /// The first `len` bytes of a buffer, for a look before anybody else has it.
    pub(crate) fn bytes(&self, slot: u32, len: u32) -> &[u8] {
        let Some(Some(buffer)) = self.buffers.get(slot as usize) else { return &[] };
        // SAFETY: initialised when allocated, at least as long, and the engine has given it
        // back: the caller holds the endpoint's lock and has not passed the slot on.
        unsafe { std::slice::from_raw_parts(buffer.at.as_ptr(), (len as usize).min(self.layout.size())) }
    }

    /// Keeps the memory for good: somebody may still write to it.
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
