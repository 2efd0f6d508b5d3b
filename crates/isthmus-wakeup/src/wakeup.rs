//! Threads that sleep until a completion is delivered, and the I/O thread that works for them.

use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// The operations that [`Wakeup`] needs of an endpoint, or of a model of one.
pub trait Bells {
    /// Whether completions wait to be taken. It takes the lock under which completions are delivered and taken.
    fn has_completions(&self) -> bool;
    /// Wakes all threads that sleep on the endpoint's descriptor, now or later, until [`Bells::clear`].
    fn ring(&self);
    /// Undoes [`Bells::ring`].
    fn clear(&self);
    /// Makes the I/O thread call [`Wakeup::look`] once more.
    fn wake_io_thread(&self);
}

/// Tracks whether a thread sleeps, whether the bell rings, and which thread drives the endpoint.
#[derive(Debug)]
pub struct Wakeup {
    /// A thread sleeps on the bell, or is about to. Changed by exchanges only, so that each
    /// change sees what came before the last one.
    armed: AtomicBool,
    /// Threads between [`Wakeup::fall_asleep`] and [`Wakeup::wake_up`]. Polls by others do not
    /// disarm the bell for them.
    sleepers: AtomicUsize,
    /// The bell was rung and not silenced since.
    rung: AtomicBool,
    /// The program polls: the I/O thread does not sleep on the endpoint's descriptor.
    left_to_program: AtomicBool,
    /// The I/O thread was told that the program polls again.
    told: AtomicBool,
}

impl Default for Wakeup {
    fn default() -> Self {
        Self::new()
    }
}

impl Wakeup {
    /// The initial state: no thread sleeps, and the program polls.
    pub fn new() -> Self {
        Self {
            armed: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            rung: AtomicBool::new(false),
            left_to_program: AtomicBool::new(true),
            told: AtomicBool::new(false),
        }
    }

    /// Prepares to sleep until the bell rings. From now on the I/O thread drives the endpoint. Returns false if
    /// completions already wait; then the caller must not sleep.
    pub fn arm(&self, bells: &impl Bells) -> bool {
        self.armed.swap(true, Ordering::SeqCst);
        // The polls that follow may have to tell the I/O thread again.
        self.told.store(false, Ordering::SeqCst);
        // Completions are delivered under the lock that this call takes. Earlier completions are seen here. A thread
        // that delivers later sees that the bell is armed.
        if bells.has_completions() {
            return false;
        }
        bells.wake_io_thread();
        true
    }

    /// Like [`Wakeup::arm`], for a thread that sleeps while others may poll. Until [`Wakeup::wake_up`] their polls
    /// leave the bell armed. The caller must call `wake_up` whatever this returns.
    pub fn fall_asleep(&self, bells: &impl Bells) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.arm(bells)
    }

    /// The end of [`Wakeup::fall_asleep`].
    pub fn wake_up(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The program polls. After this call it takes all completions, and wakes its own threads that wait for some of
    /// them.
    #[inline]
    pub fn note_poll(&self, bells: &impl Bells) {
        if self.armed.load(Ordering::Relaxed) {
            self.disarm(bells);
        } else if !self.left_to_program.load(Ordering::Relaxed) {
            self.tell_io_thread(bells);
        }
    }

    /// Disarms the bell, unless another thread of the program sleeps.
    fn disarm(&self, bells: &impl Bells) {
        if self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::SeqCst) {
            bells.clear();
        }
        if self.sleepers.load(Ordering::SeqCst) > 0 || !self.armed.swap(false, Ordering::SeqCst) {
            return;
        }
        // A thread that fell asleep between the two looks counted itself before it armed.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.armed.swap(true, Ordering::SeqCst);
        }
    }

    /// Tells the I/O thread once that the program polls. Polls may take what would have woken
    /// it, so it would not notice when the program stops.
    #[cold]
    fn tell_io_thread(&self, bells: &impl Bells) {
        if !self.told.load(Ordering::Relaxed) && !self.told.swap(true, Ordering::SeqCst) {
            bells.wake_io_thread();
        }
    }

    /// Rings if a thread sleeps and completions wait. Call it after everything that may deliver a completion.
    #[inline]
    pub fn tell_sleepers(&self, bells: &impl Bells) {
        if self.armed.load(Ordering::Relaxed) && bells.has_completions() {
            // Before the bell rings: a poll silences it although this thread then gets no
            // processor for a while. After it: a poll may have silenced it too early.
            self.rung.store(true, Ordering::SeqCst);
            bells.ring();
            self.rung.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a thread sleeps on the bell.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    /// Whether the I/O thread leaves the endpoint to the program's polls.
    #[inline]
    pub fn is_left_to_program(&self) -> bool {
        self.left_to_program.load(Ordering::Relaxed)
    }

    /// Only the I/O thread calls this. It takes over if the program has not `polled` since the last look, or if a
    /// thread sleeps. Otherwise it leaves the endpoint to the program. Returns whether the endpoint is left to the
    /// program. If not, the next poll wakes the I/O thread once.
    pub fn look(&self, polled: bool) -> bool {
        let left = polled && !self.is_armed();
        if left != self.left_to_program.load(Ordering::Relaxed) {
            self.left_to_program.store(left, Ordering::Relaxed);
            self.told.store(false, Ordering::SeqCst);
        }
        left
    }
}
