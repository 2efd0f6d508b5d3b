//! An event queue, as the objects that it is bound to share it.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::RawFd;

use parking_lot::Mutex;

use crate::error::Error;
use crate::flags::{FI_JOIN_COMPLETE, FI_PEEK};
use crate::wait::{Sleeper, Waiter};

/// The queue of events; the objects that it is bound to share it.
#[derive(Debug)]
pub(crate) struct EventQueue {
    events: Mutex<VecDeque<Event>>,
    waiter: Waiter,
}

#[derive(Debug)]
enum Event {
    Done { kind: u32, data: Box<[u8]> },
    Failed(Failure),
}

/// An address that could not be inserted, or a group that could not be joined. Object and context are the program's
/// pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) object: usize,
    pub(crate) context: usize,
    pub(crate) index: u64,
    pub(crate) errno: c_int,
}

impl EventQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { events: Mutex::default(), waiter: Waiter::new()? })
    }

    /// Adds this thread to those that an event wakes.
    pub(crate) fn enter(&self) -> io::Result<Sleeper<'_>> {
        self.waiter.enter()
    }

    /// Moves the first event to the program, or copies it (`FI_PEEK`).
    ///
    /// # Safety
    /// `kind` is null or writable; `out` has room for `len` bytes.
    pub(crate) unsafe fn read(
        &self,
        kind: *mut u32,
        out: *mut c_void,
        len: usize,
        flags: u64,
    ) -> Result<isize, Error> {
        let mut events = self.events.lock();
        let Event::Done { kind: found, data } = events.front().ok_or(Error::Again)? else {
            return Err(Error::EntryFailed);
        };
        if data.len() > len {
            return Err(Error::TooSmall);
        }
        let kind = std::ptr::NonNull::new(kind).ok_or(Error::Null)?;
        // SAFETY: by this function's contract.
        unsafe { kind.write(*found) };
        // SAFETY: by this function's contract; the event fits.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), out.cast::<u8>(), data.len()) };
        let moved = data.len() as isize;
        if flags & FI_PEEK == 0 {
            self.take(&mut events);
        }
        Ok(moved)
    }

    /// The failure at the head of the queue. It is taken out, unless the flags only ask to look at it.
    pub(crate) fn failure(&self, flags: u64) -> Result<Failure, Error> {
        let mut events = self.events.lock();
        let Some(&Event::Failed(failure)) = events.front() else { return Err(Error::Again) };
        if flags & FI_PEEK == 0 {
            self.take(&mut events);
        }
        Ok(failure)
    }

    fn take(&self, events: &mut VecDeque<Event>) {
        events.pop_front();
        if events.is_empty() {
            self.waiter.clear();
        }
    }

    fn push(&self, event: Event) {
        let mut events = self.events.lock();
        events.push_back(event);
        self.waiter.wake();
    }

    pub(crate) fn write(&self, kind: u32, data: &[u8]) {
        self.push(Event::Done { kind, data: data.into() });
    }

    /// Adds an `fi_eq_entry`: two pointers and a number.
    pub(crate) fn write_entry(&self, kind: u32, words: [u64; 3]) {
        let entry: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        self.write(kind, &entry);
    }

    /// Adds a failure, which the program reads by `fi_eq_readerr`.
    pub(crate) fn fail(&self, failure: Failure) {
        self.push(Event::Failed(failure));
    }

    /// Adds the event of an endpoint that has joined a group, or the reason why it cannot. Object and context are the
    /// program's pointers.
    pub(crate) fn joined(&self, object: usize, context: usize, failed: Option<c_int>) {
        match failed {
            None => self.write_entry(FI_JOIN_COMPLETE, [object as u64, context as u64, 0]),
            Some(errno) => self.fail(Failure { object, context, index: 0, errno }),
        }
    }

    /// The descriptor to sleep on.
    pub(crate) fn fd(&self) -> RawFd {
        self.waiter.fd()
    }

    /// For `fi_trywait`: whether the program may sleep on the descriptor now.
    pub(crate) fn try_wait(&self) -> Result<(), Error> {
        if self.events.lock().is_empty() { Ok(()) } else { Err(Error::Again) }
    }
}
