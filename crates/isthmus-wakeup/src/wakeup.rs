//! Threads that sleep until a completion is delivered, and the I/O thread that works for them.

use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// What a [`Wakeup`] works on: the endpoint, or a model of it.
pub trait Bells {
    /// Whether completions wait to be taken. Looks under the lock under which they are delivered
    /// and taken.
    fn has_completions(&self) -> bool;
    /// Wakes those who sleep on the endpoint's descriptor, now or later, until it is silenced.
    fn ring(&self);
    /// Undoes [`Bells::ring`].
    fn silence(&self);
    /// Has the I/O thread look at the endpoint ([`Wakeup::look`]) once more.
    fn wake_io_thread(&self);
}

/// Whether anybody sleeps, whether the bell rings, and who looks after the endpoint.
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
    /// Nobody sleeps, and the endpoint is left to the program.
    pub fn new() -> Self {
        Self {
            armed: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            rung: AtomicBool::new(false),
            left_to_program: AtomicBool::new(true),
            told: AtomicBool::new(false),
        }
    }

    /// Prepares to sleep until the bell rings. From now on the I/O thread looks after the
    /// endpoint. False where completions already wait: then the caller is not to sleep.
    pub fn arm(&self, bells: &impl Bells) -> bool {
        self.armed.swap(true, Ordering::SeqCst);
        // The polls that follow may have to tell the I/O thread again.
        self.told.store(false, Ordering::SeqCst);
        // Whoever delivers does so under the lock that this takes. What comes before is seen
        // here; whoever delivers after sees that the bell is armed.
        if bells.has_completions() {
            return false;
        }
        bells.wake_io_thread();
        true
    }

    /// As [`Wakeup::arm`], for a thread that sleeps while others may poll: until
    /// [`Wakeup::wake_up`] their polls leave the bell armed. To be undone either way.
    pub fn fall_asleep(&self, bells: &impl Bells) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.arm(bells)
    }

    /// The end of [`Wakeup::fall_asleep`].
    pub fn wake_up(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The program polls: it takes all completions after this, and wakes its own threads for
    /// whom some of them are.
    #[inline]
    pub fn note_poll(&self, bells: &impl Bells) {
        if self.armed.load(Ordering::Relaxed) {
            self.disarm(bells);
        } else if !self.left_to_program.load(Ordering::Relaxed) {
            self.tell_io_thread(bells);
        }
    }

    /// The program needs no bell while it polls, unless another thread of it sleeps.
    fn disarm(&self, bells: &impl Bells) {
        if self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::SeqCst) {
            bells.silence();
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

    /// Rings if anybody sleeps and completions wait. To be called after whatever may deliver one.
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

    /// For the I/O thread alone: takes over where the program has not `polled` since the last
    /// look, or a thread sleeps; leaves the endpoint to the program otherwise. Returns whether it
    /// is left to the program. Where it is not, polls wake the I/O thread once.
    pub fn look(&self, polled: bool) -> bool {
        let left = polled && !self.is_armed();
        if left != self.left_to_program.load(Ordering::Relaxed) {
            self.left_to_program.store(left, Ordering::Relaxed);
            self.told.store(false, Ordering::SeqCst);
        }
        left
    }
}
