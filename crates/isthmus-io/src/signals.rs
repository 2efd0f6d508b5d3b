//! Signals and fork, which a library in another program's process has to mind.

use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Restores the thread's signal mask when dropped.
#[derive(Debug)]
pub struct Restore(libc::sigset_t);

/// Blocks all signals in this thread, and so in threads that it starts meanwhile.
pub fn block_all() -> Restore {
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

static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that distinguishes a process from those it was forked from. An endpoint of another number belongs to an
/// ancestor, whose I/O thread does not exist here.
///
/// It is cheaper than `getpid(2)`, which is a system call each time.
#[inline]
pub fn process_number() -> u32 {
    WATCH.call_once(|| {
        // SAFETY: `in_child` only adds to an atomic, which is safe after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    FORKS.load(Ordering::Relaxed)
}
