//! A ring of records in shared memory: one process writes, one reads.
//!
//! A record is a head of eight bytes (kind and length) and a payload. It begins a cache line of its own, so a short
//! message is one line that goes from one processor to the other. A head of zero means that nothing has come yet: the
//! writer puts a zero behind a record before it puts the record's own head. Positions count bytes from the beginning
//! and never wrap; the reader tells the writer how far it has read.
//!
//! A loan belongs to the reader from the moment it takes the record. Before that, and while nothing is written behind
//! it, the writer may take it back. A loan for good may be taken whatever is written behind it. Until it is read, the
//! writer may say that it is at another address, or revoked; the reader checks that after it has read.
//!
//! Both ends prefetch lines: the writer some records ahead, so that it need not wait for the reader's processor to
//! release them; the reader some lines ahead of the record that it takes.
//!
//! Neither end trusts the other. Lengths and positions are checked where they are read, and a copy stays within the
//! ring whatever they say.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use isthmus_wakeup::sleeper;

use super::streaming;

/// Length of a record's head. Bytes.
const HEAD: u64 = 8;
/// Length of a cache line. Bytes; records begin at multiples of it.
pub(super) const LINE: u64 = 64;
/// The writer of short messages prefetches this far ahead. Bytes. A line takes as long from one processor's cache to
/// another's as a few short messages; prefetching one line ahead would wait for each.
const WRITER_AHEAD: u64 = 5 * LINE;
/// The reader of short messages prefetches this far ahead. Bytes.
const READER_AHEAD: u64 = 4 * LINE;
/// Room that is kept for the last record: itself and the zero behind it. Bytes.
const LAST: u64 = 2 * LINE;
/// [`LAST`], and a loan's record; records of bytes leave this free. Bytes.
const RESERVE: u64 = LAST + LINE;
/// Longest payload of a record. Bytes. With short records, the reader begins before everything is written.
pub(super) const RECORD_MAX: u64 = 16 << 10;

/// The other end broke the format of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// This many bytes.
    Bytes(u64),
    /// A short message: [`WORDS`] words, and this many bytes.
    Short(u64),
    /// A loan, perhaps for good, that may be taken ([`Reader::take_lent`]).
    Offered { for_good: bool },
    /// A loan that we have taken: `len` bytes at this address of the writer's process.
    Lent { address: u64, len: u64 },
    /// The end of the stream.
    End,
}

/// Kind of a record: bytes.
const BYTES: u64 = 1;
/// Kind: a loan that the writer may take back.
const LENT: u64 = 2;
/// Kind: the end of the stream.
const END: u64 = 3;
/// Kind: a short message.
const SHORT: u64 = 4;
/// Kind: a [`LENT`] or [`GIVEN`] loan that the reader has taken.
const TAKEN: u64 = 5;
/// Kind: a loan for good.
const GIVEN: u64 = 6;
/// Kind: bytes that might have been lent for good.
const LONG: u64 = 7;
/// Kind: a [`TAKEN`] loan that the writer has moved to another address.
const MOVED: u64 = 8;
/// Kind: a [`TAKEN`] loan that the writer has revoked.
const REVOKED: u64 = 9;
/// Words of a short message before its bytes. Count; eight more bits are in the head.
pub(super) const WORDS: usize = 4;
/// Length of these words. Bytes.
const WORDS_LEN: u64 = 8 * WORDS as u64;
/// Payload of a loan's record: address and length. Bytes.
const LENT_LEN: u64 = 16;

/// The memory of a ring: `capacity` bytes (a power of two) of records, and the reader's position.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingMemory {
    pub(super) data: NonNull<u8>,
    pub(super) capacity: u64,
    pub(super) head: NonNull<AtomicU64>,
}

impl RingMemory {
    fn word(&self, position: u64) -> &AtomicU64 {
        let offset = (position & (self.capacity - 1) & !7) as usize;
        // SAFETY: aligned, and within the ring, which outlives this by the promise of `new`.
        unsafe { self.data.byte_add(offset).cast().as_ref() }
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: it outlives this by the promise of `new`.
        unsafe { self.head.as_ref() }
    }

    /// Prefetches the line at `position`, to write it or else to read it.
    #[inline]
    fn expect<const WRITTEN: bool>(&self, position: u64) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if WRITTEN {
            // SAFETY: a hint that changes nothing; processors without it ignore it.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) self.word(position), options(nostack, preserves_flags));
            }
        } else {
            // SAFETY: as above.
            unsafe {
                std::arch::asm!("prefetcht0 [{}]", in(reg) self.word(position), options(nostack, preserves_flags));
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = position;
    }

    /// The two stretches of `len` bytes from `position`.
    fn stretches(&self, position: u64, len: usize) -> [(*mut u8, usize); 2] {
        let offset = (position & (self.capacity - 1)) as usize;
        let first = len.min(self.capacity as usize - offset);
        let rest = (len - first).min(offset);
        [(self.data.as_ptr().wrapping_add(offset), first), (self.data.as_ptr(), rest)]
    }
}

/// The eight bits in the head of a [`SHORT`] record; `None` for other heads.
#[inline]
fn short_bits(head: u64) -> Option<u8> {
    let (kind, len) = (head >> 32, head & u64::from(u32::MAX));
    (kind & 0xff == SHORT && kind >> 16 == 0 && len <= RECORD_MAX - WORDS_LEN).then_some((kind >> 8) as u8)
}

/// Head of a loan's record.
fn lending(kind: u64) -> u64 {
    kind << 32 | LENT_LEN
}

/// Bytes from a record with a payload of `len` bytes to the next record.
fn span(len: u64) -> u64 {
    (HEAD + len).next_multiple_of(LINE)
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Writer {
    place: RingMemory,
    tail: u64,
    /// The reader's position when last looked at.
    head: u64,
}

// SAFETY: any thread may use the memory, and one thread at a time has the writer.
unsafe impl Send for Writer {}

impl Writer {
    /// # Safety
    /// The place is valid while this exists, and no other writer has it. Its memory was zero
    /// when its first end was made.
    pub(super) unsafe fn new(place: RingMemory) -> Self {
        Self { place, tail: 0, head: 0 }
    }

    /// Position behind the last record.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Position up to which the reader has read.
    pub(super) fn read_to(&mut self) -> Result<u64, Broken> {
        let head = self.place.head().load(Ordering::SeqCst);
        if head < self.head || head > self.tail {
            return Err(Broken);
        }
        self.head = head;
        Ok(head)
    }

    /// The longest payload that a record may have now. Reads the reader's position only if less than `enough` is known
    /// to be free.
    #[inline]
    pub(super) fn room(&mut self, enough: u64) -> Result<u64, Broken> {
        let known = self.known_room();
        if known >= enough {
            return Ok(known);
        }
        self.read_to()?;
        Ok(self.known_room())
    }

    fn known_room(&self) -> u64 {
        self.known_free().saturating_sub(HEAD + RESERVE).min(RECORD_MAX)
    }

    fn known_free(&self) -> u64 {
        (self.place.capacity - (self.tail - self.head)) & !(LINE - 1)
    }

    /// Writes a record of bytes, for which there must be room. `long` says that they might have been lent for good.
    ///
    /// # Safety
    /// The pieces are valid for reading.
    pub(super) unsafe fn push_bytes(&mut self, pieces: &[(*const u8, usize)], long: bool) {
        let mut position = self.tail + HEAD;
        for &(from, len) in pieces {
            // SAFETY: the caller's promise.
            unsafe { self.put(position, from, len) };
            position += len as u64;
        }
        self.publish(if long { LONG } else { BYTES }, position - self.tail - HEAD);
    }

    /// Writes a short message, for which there must be room. A fence must come before a check whether the reader
    /// sleeps.
    #[inline]
    pub(super) fn push_short(&mut self, bits: u8, words: [u64; WORDS], payload: &[u8]) {
        for (index, word) in (1..).zip(words) {
            self.place.word(self.tail + index * HEAD).store(word, Ordering::Relaxed);
        }
        let len = payload.len() as u64;
        // SAFETY: a slice is valid for reading.
        unsafe { self.put(self.tail + HEAD + WORDS_LEN, payload.as_ptr(), payload.len()) };
        let next = self.tail + span(WORDS_LEN + len);
        self.place.word(next).store(0, Ordering::Relaxed);
        let head = u64::from(bits) << 40 | SHORT << 32 | len;
        self.place.word(self.tail).store(head, Ordering::Release);
        self.place.expect::<true>(next + WRITER_AHEAD);
        self.tail = next;
    }

    /// # Safety
    /// `from` is valid for reading `len` bytes.
    unsafe fn put(&self, position: u64, from: *const u8, len: usize) {
        let [(first, n), (second, m)] = self.place.stretches(position, len);
        // SAFETY: the caller's promise, and `stretches` lie within the ring; what the
        // other end does there meanwhile changes only what it gets.
        unsafe { streaming::copy(from, first, n) };
        if m > 0 {
            // SAFETY: as above.
            unsafe { streaming::copy(from.wrapping_add(n), second, m) };
        }
    }

    /// Writes a loan's record. False if there is no room.
    pub(super) fn push_lent(&mut self, address: u64, len: u64, for_good: bool) -> Result<bool, Broken> {
        const { assert!(HEAD + LENT_LEN <= LINE) };
        if self.known_free() < LINE + LAST {
            self.read_to()?;
            if self.known_free() < LINE + LAST {
                return Ok(false);
            }
        }
        self.place.word(self.tail + HEAD).store(address, Ordering::Relaxed);
        self.place.word(self.tail + 2 * HEAD).store(len, Ordering::Relaxed);
        self.publish(if for_good { GIVEN } else { LENT }, LENT_LEN);
        Ok(true)
    }

    /// Moves the loan of the record `at` this position to another address. If the reader is reading it at the moment,
    /// it will read again.
    pub(super) fn move_lent(&mut self, at: u64, address: u64) {
        self.place.word(at + HEAD).store(address, Ordering::SeqCst);
        self.change(at, TAKEN, MOVED);
    }

    /// Revokes the loan of the record `at` this position. If the reader is reading it at the moment, it will
    /// discard that.
    pub(super) fn revoke(&mut self, at: u64) {
        if !self.change(at, GIVEN, 0) {
            self.change(at, TAKEN, REVOKED);
        }
    }

    /// Changes the kind of a loan's record, if it is `from`.
    fn change(&self, at: u64, from: u64, to: u64) -> bool {
        let [from, to] = [from, to].map(|kind| if kind == 0 { 0 } else { lending(kind) });
        self.place.word(at).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes back the loan of the last record, `at` this position. False if the reader has taken it.
    pub(super) fn take_back(&mut self, at: u64) -> bool {
        let back = self.change(at, LENT, 0);
        if back {
            self.tail = at;
        }
        back
    }

    /// Writes the last record, for which there is always room.
    pub(super) fn push_end(&mut self) {
        self.publish(END, 0);
    }

    fn publish(&mut self, kind: u64, len: u64) {
        let next = self.tail + span(len);
        self.place.word(next).store(0, Ordering::Relaxed);
        sleeper::publish(self.place.word(self.tail), kind << 32 | len);
        self.tail = next;
    }

    /// Whether everything was read.
    pub(super) fn is_empty(&mut self) -> Result<bool, Broken> {
        Ok(self.read_to()? == self.tail)
    }
}

/// Address where the next record of a ring will show. Threads look there without the reader. At first none.
#[derive(Debug, Default)]
pub(crate) struct Spot(AtomicPtr<AtomicU64>);

impl Spot {
    pub(super) fn set(&self, reader: &Reader) {
        self.0.store(std::ptr::from_ref(reader.place.word(reader.at)).cast_mut(), Ordering::Relaxed);
    }

    /// Whether a record is there. The answer is arbitrary if the record was read meanwhile or the ring was given up.
    pub(crate) fn has_news(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        // SAFETY: it is a word of a ring, whose memory stays mapped even if the ring was given up (`segment.rs`).
        !word.is_null() && unsafe { glance(word) } != 0
    }
}

/// Reads a word that may by now be part of a record's bytes, which are not written by atomic operations.
///
/// # Safety
/// It is mapped.
unsafe fn glance(word: *const AtomicU64) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let value;
        // SAFETY: this function's promise; an aligned load is never torn, whoever writes.
        unsafe {
            std::arch::asm!("mov {}, [{}]", out(reg) value, in(reg) word, options(nostack, preserves_flags, readonly));
        }
        value
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: this function's promise.
    unsafe { &*word }.load(Ordering::Acquire)
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Reader {
    place: RingMemory,
    at: u64,
    /// The position that the writer was told.
    told: u64,
    /// The rest of the present record, and the position behind it.
    current: Option<(Record, u64)>,
    /// Position of its next bytes.
    from: u64,
    /// These bytes might have been lent for good.
    long: bool,
    /// The bits and words of a short message.
    bits: u8,
    words: [u64; WORDS],
}

// SAFETY: as for the writer.
unsafe impl Send for Reader {}

impl Reader {
    /// # Safety
    /// See [`Writer::new`]; no other reader has the place.
    pub(super) unsafe fn new(place: RingMemory) -> Self {
        Self { place, at: 0, told: 0, current: None, from: 0, long: false, bits: 0, words: [0; WORDS] }
    }

    /// Whether there is anything to read.
    pub(super) fn has_news(&self) -> bool {
        self.current.is_some() || self.place.word(self.at).load(Ordering::SeqCst) != 0
    }

    /// Whether a record was read in part.
    pub(super) fn is_within(&self) -> bool {
        self.current.is_some()
    }

    /// The rest of the present record; `None` while none has come.
    pub(super) fn record(&mut self) -> Result<Option<Record>, Broken> {
        if let Some((record, _)) = self.current {
            return Ok(Some(record));
        }
        let head = self.place.word(self.at).load(Ordering::Acquire);
        if head == 0 {
            return Ok(None);
        }
        let (kind, len) = (head >> 32, head & u64::from(u32::MAX));
        if let Some(bits) = short_bits(head) {
            let record = Record::Short(len);
            (self.bits, self.words) = (bits, self.words_here());
            self.from = self.at + HEAD + WORDS_LEN;
            self.current = Some((record, self.at + span(WORDS_LEN + len)));
            return Ok(Some(record));
        }
        let record = match kind {
            BYTES | LONG if (1..=RECORD_MAX).contains(&len) => Record::Bytes(len),
            LENT | GIVEN if len == LENT_LEN => {
                return Ok(Some(Record::Offered { for_good: kind == GIVEN }));
            }
            END if len == 0 => Record::End,
            _ => return Err(Broken),
        };
        self.from = self.at + HEAD;
        self.long = kind == LONG;
        self.current = Some((record, self.at + span(len)));
        Ok(Some(record))
    }

    /// Whether the bytes of the present record might have been lent for good.
    pub(super) fn is_long(&self) -> bool {
        self.long
    }

    /// Takes an offered loan, which the writer then cannot take back. The record becomes [`Record::Lent`]. False if the
    /// writer took it back first.
    pub(super) fn take_lent(&mut self, for_good: bool) -> Result<bool, Broken> {
        let (word, lent) = (self.place.word(self.at), lending(if for_good { GIVEN } else { LENT }));
        if word.compare_exchange(lent, lending(TAKEN), Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Ok(false);
        }
        let address = self.place.word(self.at + HEAD).load(Ordering::SeqCst);
        let len = self.place.word(self.at + 2 * HEAD).load(Ordering::Relaxed);
        if len == 0 || address.checked_add(len).is_none() {
            return Err(Broken);
        }
        self.current = Some((Record::Lent { address, len }, self.at + span(LENT_LEN)));
        Ok(true)
    }

    /// Whether the present loan was still at its address after it was read. False if the writer has moved it: read
    /// again. [`Broken`] if it was revoked.
    pub(super) fn is_in_place(&mut self) -> Result<bool, Broken> {
        let Some((Record::Lent { address, len: left }, _)) = &mut self.current else { return Err(Broken) };
        let word = |i: u64| self.place.word(self.at + i * HEAD);
        match word(0).compare_exchange(lending(MOVED), lending(TAKEN), Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                let (at, len) = (word(1).load(Ordering::SeqCst), word(2).load(Ordering::Relaxed));
                *address = len.checked_sub(*left).and_then(|done| at.checked_add(done)).ok_or(Broken)?;
                address.checked_add(*left).ok_or(Broken)?;
                Ok(false)
            }
            Err(head) if head == lending(TAKEN) => Ok(true),
            Err(_) => Err(Broken),
        }
    }

    /// The words of the [`SHORT`] record at our position.
    #[inline]
    fn words_here(&self) -> [u64; WORDS] {
        let word = |i| self.place.word(self.at + (1 + i as u64) * HEAD).load(Ordering::Relaxed);
        std::array::from_fn(word)
    }

    /// Takes the next record if it is a short message that fits into `to`: returns its bits and words, and the length
    /// of its bytes, which are then at the start of `to`.
    #[inline]
    pub(super) fn take_short(&mut self, to: &mut [u8]) -> Option<((u8, [u64; WORDS]), u64)> {
        let (said, len) = match self.current {
            None => {
                let head = self.place.word(self.at).load(Ordering::Acquire);
                self.from = self.at + HEAD + WORDS_LEN;
                ((short_bits(head)?, self.words_here()), head & u64::from(u32::MAX))
            }
            Some((Record::Short(len), _)) => (self.words(), len),
            Some(_) => return None,
        };
        let to = to.get_mut(..len as usize)?;
        let next = self.at + span(WORDS_LEN + len);
        self.place.expect::<false>(next + READER_AHEAD);
        // SAFETY: a slice is valid for writing, and as long as the record.
        unsafe { self.copy_from(self.from, to.as_mut_ptr(), to.len()) };
        (self.at, self.current) = (next, None);
        Some((said, len))
    }

    /// The bits and words of the present [`Record::Short`].
    pub(super) fn words(&self) -> (u8, [u64; WORDS]) {
        (self.bits, self.words)
    }

    /// Copies the next `n` bytes of a record of bytes, or all bytes of a short message. It must have that many.
    ///
    /// # Safety
    /// `to` is valid for writing `n` bytes.
    pub(super) unsafe fn copy(&mut self, to: *mut u8, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_from(self.from, to, n) };
        self.from += n as u64;
        self.took(n as u64);
    }

    /// # Safety
    /// See [`Reader::copy`].
    unsafe fn copy_from(&self, position: u64, to: *mut u8, n: usize) {
        let [(first, len), (second, rest)] = self.place.stretches(position, n);
        // SAFETY: the caller's promise, and `stretches` lie within the ring.
        unsafe { std::ptr::copy_nonoverlapping(first.cast_const(), to, len) };
        if rest > 0 {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(second.cast_const(), to.wrapping_add(len), rest) };
        }
    }

    /// Counts `n` bytes of the present record as taken.
    pub(super) fn took(&mut self, n: u64) {
        let Some((record, next)) = &mut self.current else { return };
        let left = match record {
            Record::Bytes(len) => {
                *len = len.saturating_sub(n);
                *len
            }
            Record::Lent { address, len } => {
                *address += n.min(*len);
                *len = len.saturating_sub(n);
                *len
            }
            Record::End | Record::Short(_) | Record::Offered { .. } => 0,
        };
        if left == 0 {
            self.at = *next;
            self.current = None;
        }
    }

    /// Tells the writer our position. True if that is new to it.
    pub(super) fn tell(&mut self) -> bool {
        if self.told == self.at {
            return false;
        }
        self.told = self.at;
        sleeper::publish(self.place.head(), self.at);
        true
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
