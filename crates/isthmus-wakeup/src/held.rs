//! Posted work that waits for the program's next poll.

use crate::sync::{AtomicBool, Ordering, fence_after_exchange};

/// Whether posted work is held back, and whether the program polls and so will get it done.
///
/// A thread that posts work and holds it back relies on the next poll. If the program does not poll any more, the I/O
/// thread takes over. Then either that thread sees that work is held, or the poster sees that nobody polls.
#[derive(Debug)]
pub struct Held {
    held: AtomicBool,
    attended: AtomicBool,
}

impl Default for Held {
    fn default() -> Self {
        Self::new()
    }
}

impl Held {
    /// Nothing is held, and nobody polls.
    pub fn new() -> Self {
        Self { held: AtomicBool::new(false), attended: AtomicBool::new(false) }
    }

    /// Whether the program polls, as far as known.
    #[inline]
    pub fn is_attended(&self) -> bool {
        self.attended.load(Ordering::Relaxed)
    }

    /// Holds the work that the caller has just posted. If it returns false, nobody polls, and the caller gets the work
    /// done itself. `begins` is called if nothing was held before.
    #[inline]
    pub fn try_hold(&self, begins: impl FnOnce()) -> bool {
        let was_held = self.held.swap(true, Ordering::SeqCst);
        fence_after_exchange();
        if !was_held {
            begins();
        }
        self.is_attended()
    }

    /// Whether work is held. If so, it no longer is: the caller gets it done.
    #[inline]
    pub fn take(&self) -> bool {
        // Fast for all polls but those after a post that was held.
        self.held.load(Ordering::Relaxed) && self.held.swap(false, Ordering::SeqCst)
    }

    /// Only the I/O thread calls this: the program polls, or does not. If it does not, the caller must
    /// [`Held::take`] after this call.
    pub fn attend(&self, attended: bool) {
        self.attended.swap(attended, Ordering::SeqCst);
        fence_after_exchange();
    }
}
