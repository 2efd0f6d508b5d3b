//! The thread that starts operations that wait for counters while the program computes (`FI_PROGRESS_AUTO`). It exists
//! only while something waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::Board;
use crate::error::Error;
use crate::live::Live;
use crate::log::{self, Level};
use crate::sources::Sources;
use crate::wait::{Deadline, Waiter};

/// Jobs without room are tried again after this time, since room may come without a completion. Milliseconds.
const RETRY_MS: i32 = 100;

#[derive(Debug, Default)]
pub(super) struct Attendant {
    /// The domain's endpoints that may have triggers.
    sources: Sources,
    /// Set by the thread when it ends by itself, under the lock of `thread`.
    idle: AtomicBool,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Attendant {
    pub(super) fn watch(&self, live: &Arc<Live>) -> Result<(), Error> {
        self.sources.add(live)
    }

    pub(super) fn forget(&self, live: &Arc<Live>) {
        self.sources.remove(live);
    }

    /// Starts the thread if it does not run.
    pub(super) fn begin(&self, board: &Arc<Board>) {
        let mut thread = self.thread.lock();
        if thread.is_some() && !self.idle.load(Ordering::SeqCst) {
            return;
        }
        if let Some(ended) = thread.take() {
            let _ = ended.join();
        }
        if let Err(error) = self.sources.waiter() {
            return untended(&error);
        }
        self.idle.store(false, Ordering::SeqCst);
        let board = board.clone();
        // Signals are for the program's own threads.
        let _restored = isthmus_io::block_signals();
        let spawned =
            std::thread::Builder::new().name("isthmus-trigger".into()).spawn(move || attend(&board));
        match spawned {
            Ok(handle) => *thread = Some(handle),
            Err(error) => untended(&isthmus_io::log::no_thread(error).into()),
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(waiter) = self.sources.made_waiter() {
            waiter.wake();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Logs that there is no thread: operations then start when the program reads a queue or counter.
fn untended(error: &Error) {
    log::write(Level::Warn, format_args!("triggered operations go on only in calls of the program: {error}"));
}

fn attend(board: &Board) {
    let this = &board.attendant;
    let Some(Ok(sleeper)) = this.sources.made_waiter().map(Waiter::enter) else {
        // There is no descriptor to sleep on; the next operation that waits tries again.
        return this.idle.store(true, Ordering::SeqCst);
    };
    while !this.stop.load(Ordering::SeqCst) {
        this.sources.progress();
        board.start();
        if board.is_empty() {
            // `begin` is called after a job was queued, and takes this lock, so one of the two threads sees the other.
            let Some(_held) = this.thread.try_lock() else { continue };
            if board.is_empty() {
                this.idle.store(true, Ordering::SeqCst);
                return;
            }
        }
        if let Some(_asleep) = this.sources.fall_asleep() {
            sleeper.sleep(Deadline::after(if board.has_ready() { RETRY_MS } else { -1 }));
        }
    }
}
