//! A completion queue: endpoints push, the program reads.

mod entry;

use std::collections::VecDeque;
use std::ffi::{CString, c_char};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use isthmus_io::lock::{Mutex, MutexGuard};

pub(crate) use entry::{Entry, tagged};

use crate::abi::{fi_addr_t, fi_cq_format, fi_cq_tagged_entry};
use crate::convert::errno_text;
use crate::error::Error;
use crate::live::Live;
use crate::sources::Sources;
use crate::wait::Deadline;

/// A completion queue. It grows as needed, so it cannot overrun: what is under way bounds it.
#[derive(Debug)]
pub(crate) struct Queue {
    entry_size: usize,
    /// Whether there are entries. It is changed with `inner` locked and read without.
    filled: AtomicBool,
    /// An untagged message was posted since the last read ([`Queue::note_post`]).
    posted: AtomicBool,
    inner: Mutex<Inner>,
    sources: Sources,
    texts: Mutex<Texts>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: VecDeque<Entry>,
    /// Set from the post of an untagged message until the next read: how many entries came before it.
    before_post: Option<usize>,
    /// A thread sleeps or is about to.
    armed: bool,
    /// `fi_cq_signal` was called.
    signalled: bool,
}

/// A queue that takes in finished operations. It is locked from the first entry that does not go to a reader at once.
pub(crate) struct Filling<'a> {
    queue: &'a Queue,
    /// The lock, once it was needed; held until this is dropped.
    inner: Option<MutexGuard<'a, Inner>>,
}

impl Filling<'_> {
    /// Adds a finished operation, or hands it to the program that is reading the queue right now.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry, reading: Option<&mut Reading<'_>>) {
        // This keeps the order of one endpoint. Entries that others add meanwhile have no order with these.
        let next = |reading: &&mut Reading<'_>| match &self.inner {
            None => reading.is_next_of(self.queue),
            Some(inner) => std::ptr::eq(self.queue, reading.queue) && inner.entries.is_empty(),
        };
        if !reading.filter(next).is_some_and(|reading| reading.take_good(&entry)) {
            self.inner.get_or_insert_with(|| self.queue.lock_to_fill()).entries.push_back(entry);
        }
    }

    /// Whether it fills this queue.
    pub(crate) fn is_of(&self, queue: &Queue) -> bool {
        std::ptr::eq(self.queue, queue)
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            self.queue.let_go(inner);
        }
    }
}

/// A program's read of a queue: its buffers for entries.
pub(crate) struct Reading<'a> {
    queue: &'a Queue,
    out: *mut u8,
    room: usize,
    sources: *mut fi_addr_t,
    moved: usize,
}

impl Reading<'_> {
    /// Whether it may take the next entry of this queue at once: it reads this queue, and nothing waits there.
    #[inline]
    pub(crate) fn is_next_of(&self, queue: &Queue) -> bool {
        std::ptr::eq(self.queue, queue) && !queue.filled.load(Ordering::Acquire)
    }

    /// For how many more entries it has room.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room - self.moved
    }

    /// Takes the queue's next entry, if there is room. It must be of an operation that succeeded.
    #[inline]
    pub(crate) fn take(&mut self, entry: &fi_cq_tagged_entry, source: impl FnOnce() -> fi_addr_t) -> bool {
        if self.moved >= self.room {
            return false;
        }
        let size = self.queue.entry_size;
        // SAFETY: there is room for `room` entries, by the contract of `Queue::read`, which made this.
        unsafe { entry::write(entry, self.out.add(self.moved * size), size) };
        if !self.sources.is_null() {
            // SAFETY: likewise.
            unsafe { self.sources.add(self.moved).write(source()) };
        }
        self.moved += 1;
        true
    }

    /// As [`Reading::take`], if the operation succeeded.
    fn take_good(&mut self, entry: &Entry) -> bool {
        entry.error.is_none() && self.take(&entry.tagged, || entry.source)
    }
}

/// Texts of the latest errors, found again by their number.
#[derive(Debug, Default)]
struct Texts {
    kept: VecDeque<(i32, CString)>,
    next: i32,
}

const TEXTS_KEPT: usize = 32;
/// The numbers of texts are larger. Programs that ask for the text of an error's `err` instead of its `prov_errno` do
/// not get the text of another error then. Above all errno's, those of libfabric included.
const ERRNO_MAX: i32 = 0xffff;

impl Queue {
    pub(crate) fn new(format: fi_cq_format, size: usize, waits: bool) -> Result<Self, Error> {
        let queue = Self {
            entry_size: entry::size_of_format(format),
            filled: AtomicBool::new(false),
            posted: AtomicBool::new(false),
            inner: Mutex::default(),
            sources: Sources::default(),
            texts: Mutex::default(),
        };
        queue.inner.lock().entries.reserve(size.min(4096));
        if waits {
            queue.sources.waiter()?;
        }
        Ok(queue)
    }

    pub(crate) fn add_source(&self, live: &Arc<Live>) -> Result<(), Error> {
        self.sources.add(live)
    }

    pub(crate) fn remove_source(&self, live: &Arc<Live>) {
        self.sources.remove(live);
    }

    pub(crate) fn is_bound(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Begins to take in finished operations, until the returned value is dropped.
    pub(crate) fn filling(&self) -> Filling<'_> {
        Filling { queue: self, inner: None }
    }

    /// Takes in these entries; returns how many they were.
    #[inline]
    pub(crate) fn fill(&self, entries: impl Iterator<Item = Entry>) -> usize {
        let mut entries = entries.peekable();
        if entries.peek().is_none() {
            return 0;
        }
        let mut inner = self.lock_to_fill();
        let before = inner.entries.len();
        inner.entries.extend(entries);
        let added = inner.entries.len() - before;
        self.let_go(inner);
        added
    }

    /// Tells that an untagged message is posted. The next read returns only what is in the queue by now; the read after
    /// it returns what has arrived since.
    ///
    /// The reason is MPICH: its active messages are untagged, and those to the own rank wait in a queue of MPICH's own.
    /// Within a one-sided call, MPICH reads this queue before its own (`MPIDI_progress_test_vci`). Without this rule,
    /// the answer to a message, and what others did because of it, could overtake what the rank did to itself before.
    /// No network is fast enough for that, but shared memory is (mpi4py's MCS lock then waits for ever).
    #[inline]
    pub(crate) fn note_post(&self) {
        self.posted.store(true, Ordering::Release);
    }

    /// Whether a message was posted since the last call.
    #[inline]
    fn take_post(&self) -> bool {
        self.posted.load(Ordering::Relaxed) && self.posted.swap(false, Ordering::Acquire)
    }

    /// Locks the queue to add entries.
    fn lock_to_fill(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        if inner.before_post.is_none() && self.posted.load(Ordering::Acquire) {
            inner.before_post = Some(inner.entries.len());
        }
        inner
    }

    /// Unlocks the queue after entries may have been added, and wakes sleepers.
    fn let_go(&self, mut inner: MutexGuard<'_, Inner>) {
        let filled = !inner.entries.is_empty();
        self.filled.store(filled, Ordering::Release);
        let wake = filled && std::mem::take(&mut inner.armed);
        drop(inner);
        if wake {
            self.wake();
        }
    }

    /// Whether a poll would plainly find nothing. If not, call [`Queue::read`].
    #[inline]
    pub(crate) fn is_poll_vain(&self) -> bool {
        !self.filled.load(Ordering::Relaxed) && (self.take_post() || self.sources.is_poll_vain())
    }

    /// Moves up to `count` finished operations to the program.
    ///
    /// # Safety
    /// `out` has room for `count` entries of this queue's format, `sources` is null or
    /// has room for as many numbers.
    pub(crate) unsafe fn read(
        &self,
        out: *mut u8,
        count: usize,
        sources: *mut fi_addr_t,
    ) -> Result<isize, Error> {
        let mut reading = Reading { queue: self, out, room: count, sources, moved: 0 };
        if self.take_post() {
            return self.read_older(&mut reading);
        }
        if !self.filled.load(Ordering::Relaxed) || count == 0 {
            self.sources.turn(Some(&mut reading));
            if reading.moved > 0 {
                return Ok(reading.moved as isize);
            }
            if !self.filled.load(Ordering::Relaxed) {
                return Err(Error::Again);
            }
        }
        let mut inner = self.inner.lock();
        if inner.entries.len() < count && self.sources.has_come() {
            // Fill the remaining room: programs yield the processor between two reads.
            drop(inner);
            self.sources.turn(None);
            inner = self.inner.lock();
        }
        self.hand_out(inner, usize::MAX, &mut reading)
    }

    /// The read after a post ([`Queue::note_post`]): returns what was here before it.
    #[cold]
    fn read_older(&self, reading: &mut Reading<'_>) -> Result<isize, Error> {
        let mut inner = self.inner.lock();
        let older = inner.before_post.take().unwrap_or(inner.entries.len());
        self.hand_out(inner, older, reading)
    }

    /// Moves up to `most` entries to the program, as far as there is room.
    fn hand_out(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        most: usize,
        reading: &mut Reading<'_>,
    ) -> Result<isize, Error> {
        match inner.entries.front().filter(|_| most > 0) {
            None => return Err(Error::Again),
            Some(first) if first.error.is_some() => return Err(Error::EntryFailed),
            Some(_) => {}
        }
        while reading.moved < most && inner.entries.front().is_some_and(|entry| reading.take_good(entry)) {
            inner.entries.pop_front();
        }
        self.filled.store(!inner.entries.is_empty(), Ordering::Relaxed);
        Ok(reading.moved as isize)
    }

    /// Takes the failed operation at the front.
    pub(crate) fn take_error(&self) -> Option<Entry> {
        let mut inner = self.inner.lock();
        inner.entries.front()?.error.as_ref()?;
        let entry = inner.entries.pop_front();
        self.filled.store(!inner.entries.is_empty(), Ordering::Relaxed);
        entry
    }

    /// Drives the endpoints. True if anything waits then.
    pub(crate) fn has_news(&self) -> bool {
        if !self.filled.load(Ordering::Relaxed) {
            self.sources.progress();
        }
        self.filled.load(Ordering::Relaxed)
    }

    /// As [`Queue::read`], sleeping until something comes.
    ///
    /// # Safety
    /// As for [`Queue::read`].
    pub(crate) unsafe fn read_waiting(
        &self,
        out: *mut u8,
        count: usize,
        sources: *mut fi_addr_t,
        deadline: Deadline,
    ) -> Result<isize, Error> {
        let waiter = self.sources.waiter()?;
        let mut sleeper = None;
        loop {
            // SAFETY: by this function's contract.
            match unsafe { self.read(out, count, sources) } {
                Err(Error::Again) => {}
                other => return other,
            }
            if self.take_signal() || deadline.has_passed() {
                return Err(Error::Again);
            }
            let sleeper = match &mut sleeper {
                Some(sleeper) => sleeper,
                none => none.insert(waiter.enter()?),
            };
            if self.arm()
                && let Some(_asleep) = self.sources.fall_asleep()
            {
                sleeper.sleep(deadline);
            }
        }
    }

    /// Prepares to sleep on the descriptor. False if something waits already.
    pub(crate) fn arm(&self) -> bool {
        {
            let mut inner = self.inner.lock();
            if !inner.entries.is_empty() || inner.signalled {
                return false;
            }
            inner.armed = true;
        }
        self.sources.arm()
    }

    /// For `fi_trywait`: whether the program may sleep on the descriptor now. A signal keeps it awake once.
    pub(crate) fn try_wait(&self) -> Result<(), Error> {
        let waiter = self.sources.waiter()?;
        waiter.clear();
        if !self.take_signal() && !self.has_news() && self.arm() { Ok(()) } else { Err(Error::Again) }
    }

    /// Wakes all threads that sleep in [`Queue::read_waiting`] or on the descriptor.
    pub(crate) fn signal(&self) {
        self.inner.lock().signalled = true;
        self.wake();
    }

    /// Whether `fi_cq_signal` was called since the last call.
    fn take_signal(&self) -> bool {
        std::mem::take(&mut self.inner.lock().signalled)
    }

    fn wake(&self) {
        if let Some(waiter) = self.sources.made_waiter() {
            waiter.wake();
        }
    }

    /// The descriptor to sleep on.
    pub(crate) fn fd(&self) -> Result<RawFd, Error> {
        Ok(self.sources.waiter()?.fd())
    }

    /// Keeps an error's text; its number finds it again.
    pub(crate) fn keep_text(&self, text: String) -> i32 {
        let mut texts = self.texts.lock();
        texts.next = texts.next % (i32::MAX - ERRNO_MAX) + 1;
        let number = ERRNO_MAX + texts.next;
        if texts.kept.len() == TEXTS_KEPT {
            texts.kept.pop_front();
        }
        texts.kept.push_back((number, CString::new(text).unwrap_or_default()));
        number
    }

    /// The text of one of the latest errors, or of an errno of either sign. The pointer stays good while the queue is
    /// open and fewer than [`TEXTS_KEPT`] errors follow.
    pub(crate) fn text(&self, number: i32) -> *const c_char {
        let texts = self.texts.lock();
        let found = texts.kept.iter().find(|(kept, _)| *kept == number);
        found.map_or_else(|| errno_text(number).as_ptr(), |(_, text)| text.as_ptr())
    }
}

#[cfg(test)]
#[path = "queue/tests.rs"]
mod tests;
