//! Turning: by the program's polls, and by the I/O thread where the program does not poll.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isthmus_proto::Completion;
use parking_lot::MutexGuard;

use super::Endpoint;
use crate::courtesy::{self, NAP};
use crate::poller::Poller;
use crate::shell::{Brief, Shell, Turned};
use crate::watch::{POLLS_A_LOOK, Watch};

/// Turns that the I/O thread makes before it looks at other endpoints.
const TURNS_PER_DRIVE: usize = 16;

/// A fence, where an atomic exchange was made just before: on some processors that is one.
#[inline]
fn fence_after_exchange() {
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

impl Endpoint {
    /// Turns the engine and moves finished operations into `out` (appending; `out` is
    /// the caller's to reuse). Returns how many.
    ///
    /// The engine is turned even where operations have finished already: a program that
    /// peeks has one at every poll, and what a peer had sent before it told the program so
    /// by way of a third must be seen by the next poll (`MPI_Win_test` after a barrier).
    pub fn poll(&self, out: &mut Vec<Completion>) -> usize {
        self.poll_for(usize::MAX, out, None)
    }

    /// As [`Endpoint::poll`], of a program that has room for so many finished operations and asks again for what may be
    /// more: short messages beyond those may stay where they are until then, on their way into the cache meanwhile.
    pub fn poll_some(&self, room: usize, out: &mut Vec<Completion>) -> usize {
        self.poll_for(room, out, None)
    }

    /// As [`Endpoint::poll`], of a program that also waits for a descriptor of its own: where
    /// the poll sleeps a little for others' sake, that wakes it.
    pub fn poll_beside(&self, out: &mut Vec<Completion>, beside: Option<BorrowedFd<'_>>) -> usize {
        self.poll_for(usize::MAX, out, beside)
    }

    #[inline]
    fn poll_for(&self, room: usize, out: &mut Vec<Completion>, beside: Option<BorrowedFd<'_>>) -> usize {
        if self.is_closed() {
            return 0;
        }
        if self.watch.count_poll().is_multiple_of(POLLS_A_LOOK) {
            self.driver.put_off();
        }
        if self.armed.load(Ordering::Relaxed) {
            self.disarm();
        } else if !self.standby.load(Ordering::Relaxed) {
            self.tell_driver();
        }
        if self.burst.end() {
            self.pump();
        }
        let brief = self.turn_briefly(room, out);
        if let Brief::Yes { read, done } = brief {
            if read || done > 0 {
                courtesy::found();
            } else {
                courtesy::found_nothing(&self.event_fd, beside, || self.is_quiet());
            }
            return done;
        }
        if brief == Brief::No {
            self.core.lock().engine.note_polls(self.polls());
        }
        let turned = self.turn(false);
        let done = turned.is_none_or(|turned| turned.done);
        let moved = if done { self.core.lock().engine.take_completions(out) } else { 0 };
        if turned.is_some_and(|turned| turned.read) || moved > 0 {
            courtesy::found();
        } else if turned.is_some() {
            courtesy::found_nothing(&self.event_fd, beside, || self.is_quiet());
        } else {
            // Whoever turns the shell works for us: polling on would only hold that up.
            courtesy::found_busy(|| self.shell.try_lock_for(NAP).map_or((), drop));
        }
        moved
    }

    /// What tells without a lock whether a poll would be in vain.
    pub fn watch(&self) -> Arc<Watch> {
        self.watch.clone()
    }

    /// The program found something by a descriptor of its own: its polls are not in vain.
    pub fn note_found(&self) {
        courtesy::found();
    }

    /// Lets the shell write what was just posted, here or where it is being turned.
    pub(super) fn pump(&self) {
        self.pending.store(true, Ordering::SeqCst);
        while self.pending.load(Ordering::SeqCst) {
            fence_after_exchange();
            let Some(mut shell) = self.shell.try_lock() else { return };
            self.watch.stir();
            self.pending.store(false, Ordering::SeqCst);
            shell.put_out(&self.core);
            drop(shell);
            self.tell_sleepers();
        }
    }

    /// Whether there is nothing to do, and whatever comes will show at the descriptor.
    fn is_quiet(&self) -> bool {
        // Whoever was to be woken is roused by the next poll.
        self.watch.stir();
        self.shell.try_lock().is_none_or(|mut shell| shell.doze())
    }

    /// Turns the shell once, unless somebody else does; what became of that.
    fn turn(&self, fully: bool) -> Option<Turned> {
        let mut shell = self.shell.try_lock()?;
        self.watch.stir();
        if self.standby.load(Ordering::Relaxed) {
            shell.rouse();
        }
        let turned = shell.turn(&self.core, fully);
        self.release(shell);
        Some(turned)
    }

    /// As [`Endpoint::turn`], as far as there is a short way ([`Shell::turn_briefly`]).
    fn turn_briefly(&self, room: usize, out: &mut Vec<Completion>) -> Brief {
        let Some(mut shell) = self.shell.try_lock() else { return Brief::No };
        if self.standby.load(Ordering::Relaxed) {
            shell.rouse();
        }
        let brief = shell.turn_briefly(&self.core, &self.watch, room, out);
        self.release(shell);
        brief
    }

    /// The program polls, and the I/O thread sleeps until something comes. Polls may take that before the thread has seen
    /// it, which then would not know that nobody is woken any more when they end.
    #[cold]
    fn tell_driver(&self) {
        if !self.told.load(Ordering::Relaxed) && !self.told.swap(true, Ordering::SeqCst) {
            self.driver.wake();
        }
    }

    /// Gives the shell up, which is a fence, and does what came while it was held.
    #[inline]
    pub(super) fn release(&self, shell: MutexGuard<'_, Shell>) {
        drop(shell);
        fence_after_exchange();
        if self.pending.load(Ordering::SeqCst) {
            self.pump();
        }
        self.tell_sleepers();
    }

    /// Wakes who sleeps until something is delivered, if something is: after whatever may have finished an operation,
    /// posting and cancelling among it.
    #[inline]
    pub(super) fn tell_sleepers(&self) {
        if self.armed.load(Ordering::Relaxed) && self.core.lock().engine.has_completions() {
            // Before it: polls silence it while this thread has no processor. After it: one may have done so too early.
            self.rung.store(true, Ordering::SeqCst);
            self.bell.ring();
            self.rung.store(true, Ordering::SeqCst);
        }
    }

    // What follows is for the I/O thread.

    pub(crate) fn polls(&self) -> u64 {
        self.watch.polls()
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    pub(crate) fn attend(&self, attended: bool) {
        self.burst.attend(attended);
    }

    pub(crate) fn event_fd(&self) -> &Poller {
        &self.event_fd
    }

    /// Turns the endpoint until there is nothing more to read, or the program polls again and can
    /// do so itself: a thread beside it would take a processor from others.
    pub(crate) fn drive(&self) {
        if self.is_closed() {
            return;
        }
        let polls = self.polls();
        for _ in 0..TURNS_PER_DRIVE {
            if !self.turn(true).is_some_and(|turned| turned.read) || self.polls() != polls {
                break;
            }
        }
    }

    /// The I/O thread leaves the endpoint to the program, or takes over.
    pub(crate) fn set_standby(&self, standby: bool) {
        self.standby.store(standby, Ordering::Relaxed);
        self.told.store(false, Ordering::SeqCst);
    }

    /// The I/O thread is about to sleep until the endpoint's descriptor is readable.
    pub(crate) fn doze(&self) {
        if !self.is_closed() {
            // Who holds it now may not come again.
            let mut shell = self.shell.lock();
            self.watch.stir();
            shell.doze();
        }
    }

    /// When the endpoint wants to be turned even without events.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let guard = self.core.lock();
        let now = guard.now();
        let engine = guard.engine.poll_timeout().map(|at| Duration::from_micros(at.saturating_sub(now)));
        drop(guard);
        let shell = if self.is_closed() { None } else { self.shell.lock().deadline() };
        engine.into_iter().chain(shell).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{RegionTable, Settings};

    #[test]
    fn polls_are_noticed_by_the_thread_that_waits_for_something_to_come() {
        let settings = Settings { interface: "127.0.0.1".into(), ..Settings::default() };
        let regions: Arc<RegionTable> = Arc::default();
        let endpoint = Endpoint::open(&settings, None, regions).expect("an endpoint");
        let mut out = Vec::new();
        let mut notice = || {
            endpoint.poll(&mut out);
            while endpoint.standby.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let start = Instant::now();
            while !endpoint.standby.load(Ordering::Relaxed) {
                endpoint.poll(&mut out);
                std::thread::yield_now();
            }
            start.elapsed()
        };
        // It looks by itself once a second.
        assert!((0..5).any(|_| notice() < Duration::from_millis(500)));
        endpoint.close();
    }
}
