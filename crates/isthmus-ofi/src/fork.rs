//! Objects stay in the process that opened them.
//!
//! A child of `fork` inherits our memory but neither our threads nor a right to our
//! sockets. A counter that every child increases tells its objects from the parent's.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static REGISTER: Once = Once::new();

/// The number of forks between the first process and this one.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Makes forked children increase the counter.
pub(crate) fn register() {
    REGISTER.call_once(|| {
        // SAFETY: the handler only increases an atomic, which is safe after fork; the
        // library is never unloaded (`-z nodelete`).
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(failed, 0, "pthread_atfork");
    });
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
