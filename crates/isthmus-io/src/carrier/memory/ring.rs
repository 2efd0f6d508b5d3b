//! A ring of records in shared memory: one process writes, one reads.
//!
//! A record is a head of eight bytes (kind and length) and its payload, and begins a cache line of its
//! own: a message in a few words is one line that goes from one processor to the other. A head of zero means that
//! nothing has come yet: whoever writes puts that behind a record before it puts the record's own head. `Head`
//! positions count bytes from the beginning and never wrap; the reader tells the writer how far it has read.
//!
//! What is lent is the reader's from the moment it takes its record; until then, and while nothing was written behind it,
//! the writer may take it back. What is lent for good is there to be taken whatever is written behind it; until it was read
//! the writer may say that it lies elsewhere, or nowhere: who reads looks for that afterwards.
//!
//! Lines are asked for before they are needed: by the writer some records ahead, so that it does not wait until the
//! reader's processor has let go of them, by the reader the next one but one, as it takes one.
//!
//! Neither end trusts the other: lengths and positions are checked where they are read, and
//! a copy stays within the ring whatever they say.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use isthmus_wakeup::sleeper;

use super::streaming;

/// Bytes before a record's payload.
const HEAD: u64 = 8;
/// Records begin at multiples of this: what processors hand each other at a time.
pub(super) const LINE: u64 = 64;
/// So far ahead lines are asked for by who writes short messages, and by who reads them. A transfer from one processor's
/// cache to another's takes as long as a few short messages: who reads one line ahead waits for each.
const WRITER_AHEAD: u64 = 5 * LINE;
const READER_AHEAD: u64 = 4 * LINE;
/// Room that only the last record may take: itself and the zero behind it.
const LAST: u64 = 2 * LINE;
/// The same, and room for what lends: other bytes leave that free.
const RESERVE: u64 = LAST + LINE;
/// Longest payload of a record: the reader may begin before all is written. Bytes.
pub(super) const RECORD_MAX: u64 = 16 << 10;

/// The other end wrote what makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// So many bytes follow.
    Bytes(u64),
    /// A message in a few words ([`Words`]), and so many bytes of it.
    Short(u64),
    /// Something is lent, perhaps for good, and may be taken ([`Reader::take_lent`]).
    Offered { for_good: bool },
    /// So many bytes lie at this address of the process that writes: they are ours to read.
    Lent { address: u64, len: u64 },
    /// Nothing will follow.
    End,
}

const BYTES: u64 = 1;
const LENT: u64 = 2;
const END: u64 = 3;
const SHORT: u64 = 4;
/// What [`LENT`] and [`GIVEN`] become when the reader takes them.
const TAKEN: u64 = 5;
/// As [`LENT`], for good.
const GIVEN: u64 = 6;
/// As [`BYTES`], of what might have been lent for good.
const LONG: u64 = 7;
/// What [`TAKEN`] becomes when it lies elsewhere, and when it is not lent any more.
const MOVED: u64 = 8;
const REVOKED: u64 = 9;
/// What a record of [`SHORT`] says before its bytes: eight bits in the head, and so many words.
pub(super) const WORDS: usize = 4;
const WORDS_LEN: u64 = 8 * WORDS as u64;
/// Payload of a record of [`LENT`].
const LENT_LEN: u64 = 16;

/// Where a ring lies: `capacity` bytes (a power of two) of records, and the reader's position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) data: NonNull<u8>,
    pub(super) capacity: u64,
    pub(super) head: NonNull<AtomicU64>,
}

impl Place {
    fn word(&self, position: u64) -> &AtomicU64 {
        let offset = (position & (self.capacity - 1) & !7) as usize;
        // SAFETY: aligned, and within the ring, which outlives this by the promise of `new`.
        unsafe { self.data.byte_add(offset).cast().as_ref() }
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: it outlives this by the promise of `new`.
        unsafe { self.head.as_ref() }
    }

    /// The line at `position` is about to be written, or else read.
    #[inline]
    fn expect<const WRITTEN: bool>(&self, position: u64) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if WRITTEN {
            // SAFETY: a hint, which touches nothing; processors without it take it for nothing.
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

/// The bits that the head of a record of [`SHORT`] says; `None` of any other.
#[inline]
fn short_bits(head: u64) -> Option<u8> {
    let (kind, len) = (head >> 32, head & u64::from(u32::MAX));
    (kind & 0xff == SHORT && kind >> 16 == 0 && len <= RECORD_MAX - WORDS_LEN).then_some((kind >> 8) as u8)
}

/// Head of a record that lends.
fn lending(kind: u64) -> u64 {
    kind << 32 | LENT_LEN
}

/// Bytes from a record with so much payload to the next.
fn span(len: u64) -> u64 {
    (HEAD + len).next_multiple_of(LINE)
}

/// The end that writes.
#[derive(Debug)]
pub(super) struct Writer {
    place: Place,
    tail: u64,
    /// The reader's position when last looked at.
    head: u64,
}

// SAFETY: the memory may be used by any thread, of which one at a time has the writer.
unsafe impl Send for Writer {}

impl Writer {
    /// # Safety
    /// The place is valid while this exists, and no other writer has it. Its memory was zero
    /// when its first end was made.
    pub(super) unsafe fn new(place: Place) -> Self {
        Self { place, tail: 0, head: 0 }
    }

    /// Position behind what was written.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// How far the reader has read.
    pub(super) fn read_to(&mut self) -> Result<u64, Broken> {
        let head = self.place.head().load(Ordering::SeqCst);
        if head < self.head || head > self.tail {
            return Err(Broken);
        }
        self.head = head;
        Ok(head)
    }

    /// Most payload that a record may have now; it is asked for again once there is less than `enough`.
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

    /// Writes a record of bytes, `long` where they might have been lent for good; there is room for them.
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

    /// Writes a message in a few words, and its bytes; there is room for all of it. Whoever looks afterwards whether the
    /// reader sleeps has a fence between.
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

    /// Writes a record that lends memory, perhaps for good; false where there is no room.
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

    /// What the record that begins `at` this position lends for good, and was not read, lies at another address from now
    /// on: what the reader is reading at the moment it reads again.
    pub(super) fn move_lent(&mut self, at: u64, address: u64) {
        self.place.word(at + HEAD).store(address, Ordering::SeqCst);
        self.change(at, TAKEN, MOVED);
    }

    /// The same is not lent any more: what the reader is reading at the moment counts for nothing.
    pub(super) fn revoke(&mut self, at: u64) {
        if !self.change(at, GIVEN, 0) {
            self.change(at, TAKEN, REVOKED);
        }
    }

    /// Makes a record that lends one of another kind, if it is of this one.
    fn change(&self, at: u64, from: u64, to: u64) -> bool {
        let [from, to] = [from, to].map(|kind| if kind == 0 { 0 } else { lending(kind) });
        self.place.word(at).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes back what was lent by the last record, which begins `at` this position; false where the reader has taken it.
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

    /// Whether all was read.
    pub(super) fn is_empty(&mut self) -> Result<bool, Broken> {
        Ok(self.read_to()? == self.tail)
    }
}

/// Where the next record of a ring will show: to look at without being who reads there. At first of no ring.
#[derive(Debug, Default)]
pub(crate) struct Spot(AtomicPtr<AtomicU64>);

impl Spot {
    pub(super) fn set(&self, reader: &Reader) {
        self.0.store(std::ptr::from_ref(reader.place.word(reader.at)).cast_mut(), Ordering::Relaxed);
    }

    /// Whether a record is there. Of a place that was read meanwhile, or a ring that is given up, any answer may come.
    pub(crate) fn has_news(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        // SAFETY: it is a word of a ring: its memory stays mapped whatever became of the ring (`segment.rs`).
        !word.is_null() && unsafe { glance(word) } != 0
    }
}

/// What a word holds that may be a part of some record's bytes by now, which are not written by atomic operations.
///
/// # Safety
/// It is mapped.
unsafe fn glance(word: *const AtomicU64) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let value;
        // SAFETY: this function's promise; what the processor finds there is whole, whoever writes it.
        unsafe {
            std::arch::asm!("mov {}, [{}]", out(reg) value, in(reg) word, options(nostack, preserves_flags, readonly));
        }
        value
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: this function's promise.
    unsafe { &*word }.load(Ordering::Acquire)
}

/// The end that reads.
#[derive(Debug)]
pub(super) struct Reader {
    place: Place,
    at: u64,
    /// What the writer was told of that.
    told: u64,
    /// What is left of the present record, and the position behind it.
    current: Option<(Record, u64)>,
    /// Position of the bytes that are next of it.
    from: u64,
    /// They might have been lent for good.
    long: bool,
    /// What it says, if it is a short message.
    bits: u8,
    words: [u64; WORDS],
}

// SAFETY: as for the writer.
unsafe impl Send for Reader {}

impl Reader {
    /// # Safety
    /// As for [`Writer::new`], of readers.
    pub(super) unsafe fn new(place: Place) -> Self {
        Self { place, at: 0, told: 0, current: None, from: 0, long: false, bits: 0, words: [0; WORDS] }
    }

    /// Whether there is anything to read.
    pub(super) fn has_news(&self) -> bool {
        self.current.is_some() || self.place.word(self.at).load(Ordering::SeqCst) != 0
    }

    /// Whether a part of a record was read.
    pub(super) fn is_within(&self) -> bool {
        self.current.is_some()
    }

    /// The present record as far as it is not read; `None` while none has come.
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

    /// Whether the present record, of bytes, might have been lent for good.
    pub(super) fn is_long(&self) -> bool {
        self.long
    }

    /// Takes what is offered, which the writer cannot take back then: the record is one of [`Record::Lent`] until it is
    /// read. False where the writer was first.
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

    /// Whether what is lent by the present record still lies where it was read. False where it lies elsewhere by now, and
    /// what was just read of it has to be read again; [`Broken`] where it is not lent any more.
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

    /// The words of the record of [`SHORT`] that begins where we are.
    #[inline]
    fn words_here(&self) -> [u64; WORDS] {
        let word = |i| self.place.word(self.at + (1 + i as u64) * HEAD).load(Ordering::Relaxed);
        std::array::from_fn(word)
    }

    /// Takes the next record if it is a short message for which there is room: what it says, and the length of its
    /// bytes, which are at the beginning of `to` then.
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

    /// What the present record of [`Record::Short`] says.
    pub(super) fn words(&self) -> (u8, [u64; WORDS]) {
        (self.bits, self.words)
    }

    /// Copies the next `n` bytes of a record of bytes, or all of a short one's; it has as many.
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
    /// As for [`Reader::copy`].
    unsafe fn copy_from(&self, position: u64, to: *mut u8, n: usize) {
        let [(first, len), (second, rest)] = self.place.stretches(position, n);
        // SAFETY: the caller's promise, and `stretches` lie within the ring.
        unsafe { std::ptr::copy_nonoverlapping(first.cast_const(), to, len) };
        if rest > 0 {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(second.cast_const(), to.wrapping_add(len), rest) };
        }
    }

    /// So many bytes of the present record were taken.
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

    /// Tells the writer how far we are; true where that is further than it knew.
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
