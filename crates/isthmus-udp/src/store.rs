//! Bytes of a stream by offset: copies in reusable chunks, and lent buffers that are not copied.

use std::collections::VecDeque;

use bytes::Bytes;

/// Length of a chunk. Bytes (64 KiB).
const CHUNK: usize = 64 << 10;
/// Free chunks that are always kept for reuse. Count (16 MiB).
const FREE_MIN: usize = 256;
/// The recent peak of chunks in use is forgotten after this many times as many chunks were released.
const FORGETS_AFTER: usize = 64;

type Chunk = Box<[u8]>;

/// Stream bytes between the last release and the last write. Chunks in which nothing was written take no memory.
#[derive(Debug, Default)]
pub(crate) struct Store {
    chunks: VecDeque<Option<Chunk>>,
    /// Index of the first chunk: its offset divided by [`CHUNK`].
    first: u64,
    free: Vec<Chunk>,
    used: usize,
    /// Recent peak of chunks in use, times [`FORGETS_AFTER`]. That many stay allocated: on a long path each loss fills
    /// and empties them at once, and the system would clear new memory each time.
    most: usize,
    /// Lent buffers with their offsets, in order. Chunks have none of their bytes.
    kept: VecDeque<(u64, Bytes)>,
}

impl Store {
    /// Holds `bytes` at `offset`, behind everything else, without copying them. They are let go when they are released
    /// or [owned](Store::own).
    pub(crate) fn keep(&mut self, offset: u64, bytes: Bytes) {
        debug_assert!(self.kept.back().is_none_or(|(at, last)| at + last.len() as u64 <= offset));
        if !bytes.is_empty() {
            self.kept.push_back((offset, bytes));
        }
    }

    /// Copies lent buffers that begin below `upto`, and lets them go.
    pub(crate) fn own(&mut self, upto: u64) {
        while self.kept.front().is_some_and(|(at, _)| *at < upto) {
            let Some((at, bytes)) = self.kept.pop_front() else { return };
            let released = (self.first * CHUNK as u64).saturating_sub(at) as usize;
            self.write(at + released as u64, &bytes[released..]);
        }
    }

    /// Lets all lent buffers go. Nobody may read them afterwards.
    pub(crate) fn let_go(&mut self) {
        self.kept.clear();
    }

    /// Writes `bytes` at `offset`, which must not be released.
    pub(crate) fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = offset as usize % CHUNK;
            let (now, rest) = bytes.split_at(bytes.len().min(CHUNK - at));
            self.chunk_mut(offset)[at..at + now.len()].copy_from_slice(now);
            offset += now.len() as u64;
            bytes = rest;
        }
    }

    /// Appends `len` bytes at `offset` to `out`. All of them must be written and not released.
    pub(crate) fn copy(&self, offset: u64, len: usize, out: &mut Vec<u8>) {
        let last = self.copy_but_last(offset, len, out);
        out.extend_from_slice(last);
    }

    /// Like [`Store::copy`], but returns the last of them that are contiguous in memory instead of appending them.
    pub(crate) fn copy_but_last(&self, mut offset: u64, mut len: usize, out: &mut Vec<u8>) -> &[u8] {
        while len > 0 {
            let piece = self.piece(offset, len);
            if piece.len() == len {
                return piece;
            }
            out.extend_from_slice(piece);
            offset += piece.len() as u64;
            len -= piece.len();
        }
        &[]
    }

    /// Bytes from `offset` on that are contiguous in memory: at least one, at most `most`.
    ///
    /// # Panics
    /// If nothing was written at `offset`, or it was released.
    pub(crate) fn piece(&self, offset: u64, most: usize) -> &[u8] {
        let behind = self.kept.partition_point(|(from, _)| *from <= offset);
        if let Some((from, bytes)) = behind.checked_sub(1).map(|index| &self.kept[index])
            && let Some(rest) = bytes.get((offset - from) as usize..)
            && !rest.is_empty()
        {
            return &rest[..rest.len().min(most)];
        }
        let most = self.kept.get(behind).map_or(most, |(next, _)| most.min((next - offset) as usize));
        let at = offset as usize % CHUNK;
        let index = (offset / CHUNK as u64 - self.first) as usize;
        let chunk = self.chunks[index].as_ref().expect("only what was written is read");
        &chunk[at..CHUNK.min(at + most)]
    }

    /// Whether `len` bytes at `offset`, which were all written, are not released.
    pub(crate) fn holds(&self, offset: u64, len: usize) -> bool {
        let last = (offset + len as u64).saturating_sub(1) / CHUNK as u64;
        let (first, chunks) = (offset / CHUNK as u64, self.chunks.len() as u64);
        (first..=last).all(|chunk| {
            chunk.checked_sub(self.first).is_some_and(|at| at < chunks && self.chunks[at as usize].is_some())
        })
    }

    /// Forgets bytes below `upto`.
    pub(crate) fn release(&mut self, upto: u64) {
        while self.kept.front().is_some_and(|(at, bytes)| at + bytes.len() as u64 <= upto) {
            self.kept.pop_front();
        }
        let first = upto / CHUNK as u64;
        while self.first < first && !self.chunks.is_empty() {
            self.first += 1;
            let Some(Some(chunk)) = self.chunks.pop_front() else { continue };
            self.used -= 1;
            self.most -= 1;
            if self.used + self.free.len() < self.most.div_ceil(FORGETS_AFTER).max(FREE_MIN) {
                self.free.push(chunk);
            }
        }
        self.first = self.first.max(first);
    }

    /// Nothing comes for a while: frees all but [`FREE_MIN`] free chunks.
    pub(crate) fn rest(&mut self) {
        self.most = self.used * FORGETS_AFTER;
        self.free.truncate(FREE_MIN);
        self.free.shrink_to_fit();
    }

    /// Frees all free chunks.
    pub(crate) fn trim(&mut self) {
        self.most = self.used * FORGETS_AFTER;
        self.free = Vec::new();
    }

    /// Memory of chunks in use. Bytes.
    pub(crate) fn used(&self) -> usize {
        self.used * CHUNK
    }

    /// Memory of chunks in use and free. Bytes.
    pub(crate) fn memory(&self) -> usize {
        (self.used + self.free.len()) * CHUNK
    }

    fn chunk_mut(&mut self, offset: u64) -> &mut [u8] {
        let index = (offset / CHUNK as u64 - self.first) as usize;
        if index >= self.chunks.len() {
            self.chunks.resize_with(index + 1, || None);
        }
        let slot = &mut self.chunks[index];
        if slot.is_none() {
            self.used += 1;
            self.most = self.most.max(self.used * FORGETS_AFTER);
        }
        let free = &mut self.free;
        slot.get_or_insert_with(|| free.pop().unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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

    /// Tells when it is let go.
    struct Lent(Vec<u8>, #[expect(dead_code, reason = "it is counted")] Arc<()>);

    impl AsRef<[u8]> for Lent {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    fn what_is_kept_is_read_as_if_it_were_copied_and_let_go_in_time() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        let lent = Arc::new(());
        let keep = |store: &mut Store, at: usize, until: usize| {
            let part = Lent(bytes[at..until].to_vec(), lent.clone());
            store.keep(at as u64, Bytes::from_owner(part));
        };
        let uses = || Arc::strong_count(&lent) - 1;
        let check = |store: &Store, from: usize, until: usize| {
            let mut back = Vec::new();
            store.copy(from as u64, until - from, &mut back);
            assert!(back == bytes[from..until], "{from}..{until}");
        };
        let mut store = Store::default();
        store.write(0, &bytes[..70_000]);
        keep(&mut store, 70_000, 100_000);
        keep(&mut store, 100_000, 200_000);
        store.write(200_000, &bytes[200_000..200_010]);
        keep(&mut store, 200_010, 250_000);
        store.write(250_000, &bytes[250_000..]);
        for (from, until) in
            [(0, 300_000), (69_999, 70_001), (99_000, 201_000), (200_005, 200_020), (249_999, 250_001)]
        {
            check(&store, from, until);
        }
        assert_eq!(uses(), 3);
        store.release(99_999);
        assert_eq!(uses(), 3);
        store.release(100_000);
        assert_eq!(uses(), 2);
        store.release(150_000);
        store.own(200_000);
        assert_eq!(uses(), 1, "what begins before that is copied");
        check(&store, 150_000, 300_000);
        store.own(u64::MAX);
        assert_eq!(uses(), 0);
        check(&store, 150_000, 300_000);
        keep(&mut store, 0, 10);
        store.let_go();
        assert_eq!(uses(), 0);
    }

    #[test]
    fn what_a_gap_held_is_kept_for_the_next_one_and_given_back_when_there_are_no_more() {
        let mut store = Store::default();
        let mut at = 0;
        let mut pass = |store: &mut Store, chunks: usize| {
            (0..chunks).for_each(|i| store.write(at + (i * CHUNK) as u64, &[1]));
            at += (chunks * CHUNK) as u64;
            store.release(at);
            store.memory() / CHUNK
        };
        assert!((0..3).all(|_| pass(&mut store, 1_000) > 980));
        let without_gaps = (0..50_000).map(|_| pass(&mut store, 1)).last();
        assert_eq!(without_gaps, Some(FREE_MIN), "most is forgotten");
        assert!(pass(&mut store, 1_000) > FREE_MIN);
        store.rest();
        assert_eq!(store.memory(), FREE_MIN * CHUNK);
        assert!(pass(&mut store, 2) <= FREE_MIN);
    }
}
