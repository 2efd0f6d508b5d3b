//! Bytes of a stream by their offsets, in chunks that are used again.

use std::collections::VecDeque;

/// Bytes of a chunk.
const CHUNK: usize = 64 << 10;
/// Free chunks that are kept for use again (16 MiB).
const FREE_MAX: usize = 256;

type Chunk = Box<[u8]>;

/// Stream bytes between what was released and what was written last. Chunks in which nothing
/// was written take no memory.
#[derive(Debug, Default)]
pub(crate) struct Store {
    chunks: VecDeque<Option<Chunk>>,
    /// Index of the first chunk: its offset divided by [`CHUNK`].
    first: u64,
    free: Vec<Chunk>,
}

impl Store {
    /// Puts `bytes` at `offset`, which was not released yet.
    pub(crate) fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = offset as usize % CHUNK;
            let (now, rest) = bytes.split_at(bytes.len().min(CHUNK - at));
            self.chunk_mut(offset)[at..at + now.len()].copy_from_slice(now);
            offset += now.len() as u64;
            bytes = rest;
        }
    }

    /// Appends `len` bytes at `offset`, all of them written and not released, to `out`.
    pub(crate) fn copy(&self, mut offset: u64, mut len: usize, out: &mut Vec<u8>) {
        while len > 0 {
            let piece = self.piece(offset, len);
            out.extend_from_slice(piece);
            offset += piece.len() as u64;
            len -= piece.len();
        }
    }

    /// Bytes from `offset` on that lie together: at least one, at most `most`.
    ///
    /// # Panics
    /// Where nothing was written at `offset`, or it was released.
    pub(crate) fn piece(&self, offset: u64, most: usize) -> &[u8] {
        let at = offset as usize % CHUNK;
        let index = (offset / CHUNK as u64 - self.first) as usize;
        let chunk = self.chunks[index].as_ref().expect("only what was written is read");
        &chunk[at..CHUNK.min(at + most)]
    }

    /// Whether `len` bytes at `offset`, all of them written, were not released.
    pub(crate) fn holds(&self, offset: u64, len: usize) -> bool {
        let last = (offset + len as u64).saturating_sub(1) / CHUNK as u64;
        let (first, chunks) = (offset / CHUNK as u64, self.chunks.len() as u64);
        (first..=last).all(|chunk| {
            chunk.checked_sub(self.first).is_some_and(|at| at < chunks && self.chunks[at as usize].is_some())
        })
    }

    /// Forgets what is below `upto`.
    pub(crate) fn release(&mut self, upto: u64) {
        let first = upto / CHUNK as u64;
        while self.first < first && !self.chunks.is_empty() {
            if let Some(Some(chunk)) = self.chunks.pop_front()
                && self.free.len() < FREE_MAX
            {
                self.free.push(chunk);
            }
            self.first += 1;
        }
        self.first = self.first.max(first);
    }

    /// Bytes of memory in use and kept.
    pub(crate) fn memory(&self) -> usize {
        (self.chunks.iter().flatten().count() + self.free.len()) * CHUNK
    }

    fn chunk_mut(&mut self, offset: u64) -> &mut [u8] {
        let index = (offset / CHUNK as u64 - self.first) as usize;
        if index >= self.chunks.len() {
            self.chunks.resize_with(index + 1, || None);
        }
        let free = &mut self.free;
        self.chunks[index]
            .get_or_insert_with(|| free.pop().unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_where_they_were_put_and_memory_is_used_again() {
        let mut store = Store::default();
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        for round in 0..10_u64 {
            let base = round * bytes.len() as u64;
            store.write(base + 100_000, &bytes[100_000..]);
            store.write(base, &bytes[..100_000]);
            let mut back = Vec::new();
            store.copy(base + 5, bytes.len() - 5, &mut back);
            assert_eq!(back, bytes[5..]);
            store.release(base + bytes.len() as u64);
            assert!(store.memory() <= 7 * CHUNK, "{}", store.memory());
        }
    }
}
