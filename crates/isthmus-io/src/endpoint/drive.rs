//! Driving an endpoint: by the program's polls, and by the I/O thread while the program does not poll.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use isthmus_proto::Completion;

use super::Endpoint;
use crate::cpu_yield::{self, NAP};
use crate::poller::Poller;
use crate::shell::{Brief, PassResult, Shell};
use crate::watch::{POLLS_A_LOOK, Watch};

/// The I/O thread waits this long for an endpoint's shell. A pass over the shell takes microseconds. If the wait fails,
/// the thread that has the shell may never return, and the I/O thread must go on to tell of it.
const SHELL_PATIENCE: Duration = Duration::from_millis(100);
/// Passes that the I/O thread makes over an endpoint before it looks at others. Count.
const TURNS_PER_DRIVE: usize = 16;

impl Endpoint {
    /// Drives the endpoint, and appends the finished operations to `out`. Returns how many.
    ///
    /// It drives the endpoint even if operations have finished already. A program that peeks has a finished operation
    /// at every poll. And if a peer sends data, then tells a third process, and that one tells the program, the next
    /// poll must see the data (`MPI_Win_test` after a barrier).
    pub fn poll(&self, out: &mut Vec<Completion>) -> usize {
        self.poll_for(usize::MAX, out, None)
    }

    /// Like [`Endpoint::poll`], for a program that has room for `room` finished operations and polls again for more.
    /// Short messages beyond those may stay in their ring until then, where prefetching brings them into the cache.
    pub fn poll_some(&self, room: usize, out: &mut Vec<Completion>) -> usize {
        self.poll_for(room, out, None)
    }

    /// Like [`Endpoint::poll`], for a program that also waits for a descriptor of its own. If the poll sleeps briefly,
    /// that descriptor wakes it.
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
        let brief = self.run_fast_pass(room, out);
        if let Brief::Yes { read, done } = brief {
            if read || done > 0 {
                cpu_yield::found();
            } else {
                cpu_yield::found_nothing(&self.event_fd, beside, || self.is_quiet());
            }
            return done;
        }
        if brief == Brief::No {
            self.core.lock().engine.set_polls(self.polls());
        }
        let pass = self.run_pass(false);
        let done = pass.is_none_or(|pass| pass.done);
        let moved = if done { self.core.lock().engine.take_completions(out) } else { 0 };
        if pass.is_some_and(|pass| pass.read) || moved > 0 {
            cpu_yield::found();
        } else if pass.is_some() {
            cpu_yield::found_nothing(&self.event_fd, beside, || self.is_quiet());
        } else {
            // The thread that drives the shell works for us, too. Polling on would only slow it down.
            cpu_yield::found_busy(|| self.shell.wait(|shell| self.put_out(shell), NAP));
        }
        moved
    }

    /// Tells without a lock whether a poll would find nothing.
    pub fn watch(&self) -> Arc<Watch> {
        self.watch.clone()
    }

    /// The program found something at a descriptor of its own, so its polls are not in vain.
    pub fn note_found(&self) {
        cpu_yield::found();
    }

    /// Lets the shell write what was just posted, on this thread or on the one that drives it.
    pub(super) fn pump(&self) {
        self.shell.post(|shell| self.put_out(shell));
    }

    /// Runs `work` with the shell once no other thread has it. Then writes what others have posted meanwhile, and wakes
    /// sleeping threads if something is delivered. There is a fence between the work and the return.
    #[inline]
    pub(super) fn with_shell<R>(&self, work: impl FnOnce(&mut Shell) -> R) -> R {
        let result = self.shell.with(|shell| self.put_out(shell), work);
        self.wakeup.tell_sleepers(self);
        result
    }

    /// Like [`Endpoint::with_shell`]; `None` if another thread has the shell.
    #[inline]
    pub(super) fn try_with_shell<R>(&self, work: impl FnOnce(&mut Shell) -> R) -> Option<R> {
        let result = self.shell.try_with(|shell| self.put_out(shell), work)?;
        self.wakeup.tell_sleepers(self);
        Some(result)
    }

    /// Like [`Endpoint::with_shell`]; `None` if other threads have the shell for all of `limit`.
    pub(super) fn with_shell_within<R>(
        &self,
        limit: Duration,
        work: impl FnOnce(&mut Shell) -> R,
    ) -> Option<R> {
        let result = self.shell.with_within(limit, |shell| self.put_out(shell), work)?;
        self.wakeup.tell_sleepers(self);
        Some(result)
    }

    /// Ends lanes that stand still, and announces flows. The I/O thread calls this once a second.
    /// If it does not get the shell, the next call does the work.
    pub(crate) fn look_at_lanes(&self) {
        if !self.is_closed() {
            self.with_shell_within(SHELL_PATIENCE, |shell| {
                shell.end_stuck(&self.core);
                shell.leave_lost_addresses(&self.core);
                shell.announce_flows();
            });
        }
    }

    /// Ends lanes from addresses that this host has lost, which are then dialled again. If the I/O thread does not get the
    /// shell, the next [look](Endpoint::look_at_lanes) does the work.
    pub(crate) fn leave_lost_addresses(&self) {
        if !self.is_closed() {
            self.with_shell_within(SHELL_PATIENCE, |shell| shell.leave_lost_addresses(&self.core));
        }
    }

    /// Writes what was posted, and wakes the threads that sleep until that is done.
    fn put_out(&self, shell: &mut Shell) {
        self.watch.stir();
        shell.put_out(&self.core);
        self.wakeup.tell_sleepers(self);
    }

    /// Whether there is nothing to do, and everything that comes will show at the descriptor.
    fn is_quiet(&self) -> bool {
        // The next poll tells the lanes' other ends that they need not wake us.
        self.watch.stir();
        self.try_with_shell(Shell::doze).unwrap_or(true)
    }

    /// Makes one pass over the shell, unless another thread has it.
    fn run_pass(&self, fully: bool) -> Option<PassResult> {
        self.try_with_shell(|shell| {
            self.watch.stir();
            if self.wakeup.is_left_to_program() {
                shell.rouse();
            }
            shell.run_pass(&self.core, fully)
        })
    }

    /// The fast form of [`Endpoint::run_pass`], if it is possible ([`Shell::run_fast_pass`]).
    fn run_fast_pass(&self, room: usize, out: &mut Vec<Completion>) -> Brief {
        let brief = self.try_with_shell(|shell| {
            if self.wakeup.is_left_to_program() {
                shell.rouse();
            }
            shell.run_fast_pass(&self.core, &self.watch, room, out)
        });
        brief.unwrap_or(Brief::No)
    }

    // The I/O thread makes the calls below.

    pub(crate) fn polls(&self) -> u64 {
        self.watch.polls()
    }

    pub(crate) fn attend(&self, attended: bool) {
        if self.burst.attend(attended) {
            self.pump();
        }
    }

    pub(crate) fn event_fd(&self) -> &Poller {
        &self.event_fd
    }

    /// Drives the endpoint until there is nothing more to read, or until the program polls again and drives it itself.
    pub(crate) fn drive(&self) {
        if self.is_closed() {
            return;
        }
        let polls = self.polls();
        for _ in 0..TURNS_PER_DRIVE {
            if !self.run_pass(true).is_some_and(|pass| pass.read) || self.polls() != polls {
                break;
            }
        }
    }

    /// Leaves the endpoint to the program if it has `polled` and no thread of it sleeps; else takes over. True if it is
    /// left to the program.
    pub(crate) fn look(&self, polled: bool) -> bool {
        self.wakeup.look(polled)
    }

    /// The I/O thread is about to sleep until the endpoint's descriptor is readable. False if other threads have kept
    /// the shell; then the descriptor does not show everything that comes.
    pub(crate) fn doze(&self) -> bool {
        // Wait for the shell: the thread that has it now may not come again.
        self.is_closed()
            || self
                .with_shell_within(SHELL_PATIENCE, |shell| {
                    self.watch.stir();
                    shell.doze();
                })
                .is_some()
    }

    /// How soon the endpoint has to be driven even without events.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.is_closed() {
            return None;
        }
        let guard = self.core.lock();
        let now = guard.now();
        let engine = guard.engine.poll_timeout().map(|at| Duration::from_micros(at.saturating_sub(now)));
        drop(guard);
        let Some(shell) = self.with_shell_within(SHELL_PATIENCE, |shell| shell.deadline()) else {
            return Some(Duration::ZERO);
        };
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
