//! Turning: by the program's polls, and by the I/O thread where the program does not poll.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use isthmus_proto::Completion;

use super::Endpoint;
use crate::courtesy::{self, NAP};
use crate::poller::Poller;
use crate::shell::{Brief, Shell, Turned};
use crate::watch::{POLLS_A_LOOK, Watch};

/// Turns that the I/O thread makes before it looks at other endpoints.
const TURNS_PER_DRIVE: usize = 16;

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
        self.wakeup.note_poll(self);
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
            self.core.lock().engine.set_polls(self.polls());
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
            courtesy::found_busy(|| self.shell.wait(|shell| self.put_out(shell), NAP));
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
        self.shell.post(|shell| self.put_out(shell));
    }

    /// Works with the shell once no other thread does. Then writes what others have posted meanwhile, and wakes those who
    /// sleep until something is delivered. A fence lies between the work and the return.
    #[inline]
    pub(super) fn with_shell<R>(&self, work: impl FnOnce(&mut Shell) -> R) -> R {
        let result = self.shell.with(|shell| self.put_out(shell), work);
        self.wakeup.tell_sleepers(self);
        result
    }

    /// As [`Endpoint::with_shell`]; `None` where another thread has the shell.
    #[inline]
    pub(super) fn try_with_shell<R>(&self, work: impl FnOnce(&mut Shell) -> R) -> Option<R> {
        let result = self.shell.try_with(|shell| self.put_out(shell), work)?;
        self.wakeup.tell_sleepers(self);
        Some(result)
    }

    /// Writes what was posted, and wakes those who sleep until that is done.
    fn put_out(&self, shell: &mut Shell) {
        self.watch.stir();
        shell.put_out(&self.core);
        self.wakeup.tell_sleepers(self);
    }

    /// Whether there is nothing to do, and whatever comes will show at the descriptor.
    fn is_quiet(&self) -> bool {
        // Whoever was to be woken is roused by the next poll.
        self.watch.stir();
        self.try_with_shell(Shell::doze).unwrap_or(true)
    }

    /// Turns the shell once, unless somebody else does; what became of that.
    fn turn(&self, fully: bool) -> Option<Turned> {
        self.try_with_shell(|shell| {
            self.watch.stir();
            if self.wakeup.is_left_to_program() {
                shell.rouse();
            }
            shell.turn(&self.core, fully)
        })
    }

    /// As [`Endpoint::turn`], as far as there is a short way ([`Shell::turn_briefly`]).
    fn turn_briefly(&self, room: usize, out: &mut Vec<Completion>) -> Brief {
        let brief = self.try_with_shell(|shell| {
            if self.wakeup.is_left_to_program() {
                shell.rouse();
            }
            shell.turn_briefly(&self.core, &self.watch, room, out)
        });
        brief.unwrap_or(Brief::No)
    }

    // What follows is for the I/O thread.

    pub(crate) fn polls(&self) -> u64 {
        self.watch.polls()
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

    /// Leaves the endpoint to the program if that `polled` and no thread of it sleeps, or else takes over; whether it is
    /// left to the program.
    pub(crate) fn look(&self, polled: bool) -> bool {
        self.wakeup.look(polled)
    }

    /// The I/O thread is about to sleep until the endpoint's descriptor is readable.
    pub(crate) fn doze(&self) {
        if !self.is_closed() {
            // Who holds it now may not come again.
            self.with_shell(|shell| {
                self.watch.stir();
                shell.doze();
            });
        }
    }

    /// When the endpoint wants to be turned even without events.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.is_closed() {
            return None;
        }
        let guard = self.core.lock();
        let now = guard.now();
        let engine = guard.engine.poll_timeout().map(|at| Duration::from_micros(at.saturating_sub(now)));
        drop(guard);
        let shell = self.with_shell(|shell| shell.deadline());
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
            while endpoint.wakeup.is_left_to_program() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let start = Instant::now();
            while !endpoint.wakeup.is_left_to_program() {
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
