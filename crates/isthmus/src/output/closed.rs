//! Whether standard output was closed when the process started (`>&-`).
//!
//! Rust's runtime opens `/dev/null` in place of closed descriptors 0 to 2 before `main`, so that files opened later do
//! not get these numbers. After that, nothing tells a closed output from `> /dev/null`. A function in `.init_array`
//! runs before the runtime. Rust's own coreutils (uutils) look there too.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::{Errno, fcntl_getfd};
use rustix::stdio::stdout;

static CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    CLOSED.store(fcntl_getfd(stdout()) == Err(Errno::BADF), Relaxed);
}

// SAFETY: the C library calls each entry of this section once, before other threads exist. `look` makes one system call
// and stores one flag: it needs nothing that Rust's runtime sets up, and cannot panic.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

/// Whether standard output was closed at the start.
pub(super) fn at_start() -> bool {
    CLOSED.load(Relaxed)
}
