//! Signals and fork: what a library in somebody else's process has to mind.

use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Restores the thread's signal mask when dropped.
pub(crate) struct Restore(libc::sigset_t);

/// Blocks all signals in this thread, and so in those it starts meanwhile.
pub(crate) fn block_all() -> Restore {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set that it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` was initialised above; `before` is written by the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: written by the call above, which cannot fail with these arguments.
    Restore(unsafe { before.assume_init() })
}

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: the set came from pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

static FORKED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// From now on [`is_forked_child`] is true in children that this process forks.
pub(crate) fn watch_forks() {
    WATCH.call_once(|| {
        // SAFETY: `in_child` only stores to an atomic, which is safe after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Whether this process was forked from the one that opened the endpoints: those belong
/// to the parent, and their I/O thread does not exist here.
pub(crate) fn is_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}
