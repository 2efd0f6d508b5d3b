//! loom runs each of these in all orders in which its threads can run, with at most
//! [`PREEMPTIONS`] switches that the threads do not ask for, and with all values that the memory
//! model lets each load return.
//!
//! Each model fails if its protocol is broken as its comment says. After a change of a protocol, break it so once more
//! and check that the model still fails.

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::{Bells, Held, Waiters, Wakeup, WorkLock, sleeper};

/// Limit on preemptions. Faults in such protocols need one or two; a third costs seconds of search.
const PREEMPTIONS: usize = 3;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(run);
}

/// A model of an eventfd. It rings until it is silenced.
#[derive(Debug, Default)]
struct Bell {
    rings: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn set(&self, rings: bool) {
        *self.rings.lock().expect("no panic") = rings;
        self.changed.notify_all();
    }

    fn rings(&self) -> bool {
        *self.rings.lock().expect("no panic")
    }

    /// Sleeps until it rings, and silences it. loom reports a thread that never wakes up.
    fn wait(&self) {
        let mut rings = self.rings.lock().expect("no panic");
        while !*rings {
            rings = self.changed.wait(rings).expect("no panic");
        }
        *rings = false;
    }
}

/// The part of an endpoint that [`Wakeup`] uses.
#[derive(Debug)]
struct Endpoint {
    wakeup: Wakeup,
    completions: Mutex<u32>,
    bell: Bell,
    io_thread: Bell,
}

impl Endpoint {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            wakeup: Wakeup::new(),
            completions: Mutex::new(0),
            bell: Bell::default(),
            io_thread: Bell::default(),
        })
    }

    fn deliver(&self) {
        *self.completions.lock().expect("no panic") += 1;
        self.wakeup.tell_sleepers(self);
    }

    fn poll(&self) {
        self.wakeup.note_poll(self);
        *self.completions.lock().expect("no panic") = 0;
    }
}

impl Bells for Endpoint {
    fn has_completions(&self) -> bool {
        *self.completions.lock().expect("no panic") > 0
    }

    fn ring(&self) {
        self.bell.set(true);
    }

    fn clear(&self) {
        self.bell.set(false);
    }

    fn wake_io_thread(&self) {
        self.io_thread.set(true);
    }
}

/// A model of posting: work under a lock of its own, and a [`WorkLock`] in which it is done.
#[derive(Debug)]
struct Shop {
    work: Mutex<u32>,
    done: WorkLock<u32>,
}

impl Shop {
    fn new() -> Arc<Self> {
        Arc::new(Self { work: Mutex::new(0), done: WorkLock::new(0) })
    }

    fn serve(&self, done: &mut u32) {
        *done += std::mem::take(&mut *self.work.lock().expect("no panic"));
    }

    fn post(&self) {
        *self.work.lock().expect("no panic") += 1;
        self.done.post(|done| self.serve(done));
    }

    /// Holds the data for something other than the work.
    fn hold(&self) {
        self.done.with(|done| self.serve(done), |_| drop(self.work.lock()));
    }

    /// Like `hold`, if no other thread holds the data.
    fn try_hold(&self) {
        self.done.try_with(|done| self.serve(done), |_| drop(self.work.lock()));
    }

    /// The amount of work done so far.
    fn done(&self) -> u32 {
        self.done.with(|_| (), |done| *done)
    }
}

/// Fails without the fence in `WorkLock::serve_left`, and where `left` is cleared after the work.
#[test]
fn work_posted_while_another_thread_has_the_lock_is_done() {
    model(|| {
        let shop = Shop::new();
        let poster = shop.clone();
        let poster = thread::spawn(move || poster.post());
        let holder = shop.clone();
        let holder = thread::spawn(move || holder.try_hold());
        shop.post();
        poster.join().expect("no panic");
        holder.join().expect("no panic");
        assert_eq!(shop.done(), 2, "work is left although nobody is at it");
    });
}

/// Fails without the fence in `WorkLock::serve_left`, and where `WorkLock::with` does not look again.
#[test]
fn whoever_holds_the_lock_for_something_else_does_what_was_posted_meanwhile() {
    model(|| {
        let shop = Shop::new();
        let holder = shop.clone();
        let holder = thread::spawn(move || holder.hold());
        shop.post();
        holder.join().expect("no panic");
        assert_eq!(shop.done(), 1, "work is left although nobody is at it");
    });
}

/// Fails without the fence in `Held::try_hold`, and without that in `Held::attend`.
#[test]
fn work_that_is_held_is_done_when_nobody_polls_any_more() {
    model(|| {
        let shop = Shop::new();
        let held = Arc::new(Held::new());
        held.attend(true);
        let (program, polls) = (shop.clone(), held.clone());
        let program = thread::spawn(move || {
            if polls.take() {
                program.done.post(|done| program.serve(done));
            }
            *program.work.lock().expect("no panic") += 1;
            if !polls.try_hold(|| ()) {
                program.done.post(|done| program.serve(done));
            }
        });
        held.attend(false);
        if held.take() {
            shop.done.post(|done| shop.serve(done));
        }
        program.join().expect("no panic");
        assert_eq!(shop.done(), 1, "work is held although nobody polls");
    });
}

/// Fails without the fence in `Waiters::any`, and without that in `Waiters::enter`.
#[test]
fn whoever_waits_sees_the_change_or_is_seen() {
    model(|| {
        let (value, waiters) = (Arc::new(AtomicU64::new(0)), Arc::new(Waiters::new()));
        let (changed, asked) = (value.clone(), waiters.clone());
        let changes = thread::spawn(move || {
            changed.fetch_add(1, Ordering::Relaxed);
            asked.any()
        });
        waiters.enter(1);
        let seen = value.load(Ordering::Relaxed) > 0;
        let woken = changes.join().expect("no panic");
        assert!(seen || woken, "a thread waits for what has happened");
        waiters.leave(1);
    });
}

/// Fails where `Wakeup::arm` stores `armed` after its look at the completions.
#[test]
fn a_completion_delivered_while_a_thread_falls_asleep_rings() {
    model(|| {
        let endpoint = Endpoint::new();
        let other = endpoint.clone();
        let other = thread::spawn(move || other.deliver());
        let asleep = endpoint.wakeup.arm(&*endpoint);
        other.join().expect("no panic");
        assert!(!asleep || endpoint.bell.rings(), "asleep although something was delivered");
    });
}

/// Fails where a poll calls `Wakeup::note_poll` after it has taken the completions, where
/// `Wakeup::disarm` does not look at the sleepers once more, and where `Wakeup::tell_sleepers` sets
/// `rung` only before it rings.
#[test]
fn polls_by_others_do_not_take_the_bell_from_a_thread_that_sleeps() {
    model(|| {
        let endpoint = Endpoint::new();
        let other = endpoint.clone();
        let other = thread::spawn(move || {
            other.deliver();
            other.deliver();
        });
        let poller = endpoint.clone();
        let poller = thread::spawn(move || poller.poll());
        // A bell that an earlier sleeper has left armed.
        endpoint.wakeup.arm(&*endpoint);
        let asleep = endpoint.wakeup.fall_asleep(&*endpoint);
        other.join().expect("no panic");
        poller.join().expect("no panic");
        assert!(endpoint.wakeup.is_armed(), "a thread sleeps");
        let waits = endpoint.has_completions();
        assert!(!asleep || !waits || endpoint.bell.rings(), "asleep although something waits");
        endpoint.poll();
        assert!(!endpoint.bell.rings(), "the bell rings for ever");
    });
}

/// Fails where `Wakeup::look` does not reset `told`.
#[test]
fn the_io_thread_is_told_each_time_that_polls_resume() {
    model(|| {
        let endpoint = Endpoint::new();
        let done = Arc::new(AtomicBool::new(false));
        let (program, stop) = (endpoint.clone(), done.clone());
        let program = thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                program.poll();
                thread::yield_now();
            }
        });
        for _ in 0..2 {
            assert!(!endpoint.wakeup.look(false), "nobody polls");
            endpoint.io_thread.wait();
            assert!(endpoint.wakeup.look(true), "the program polls");
        }
        done.store(true, Ordering::Release);
        program.join().expect("no panic");
    });
}

/// Fails where `Wakeup::arm` wakes the I/O thread before it stores `armed`.
#[test]
fn the_io_thread_takes_over_when_a_thread_falls_asleep() {
    model(|| {
        let endpoint = Endpoint::new();
        let program = endpoint.clone();
        let program = thread::spawn(move || {
            program.poll();
            assert!(program.wakeup.arm(&*program), "nothing is delivered");
        });
        while endpoint.wakeup.look(true) {
            endpoint.io_thread.wait();
        }
        program.join().expect("no panic");
        assert!(!endpoint.wakeup.is_left_to_program());
    });
}

/// Fails without the fence in either of `sleeper::publish` and `sleeper::will_sleep`.
#[test]
fn the_reader_of_a_ring_sees_the_record_or_its_writer_sees_that_it_sleeps() {
    model(|| {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let both = words.clone();
        let writer = thread::spawn(move || {
            let [record, flag] = &*both;
            sleeper::publish(record, 1);
            sleeper::take_sleep(flag)
        });
        let [record, flag] = &*words;
        sleeper::will_sleep(flag);
        let seen = record.load(Ordering::Acquire) != 0;
        let woken = writer.join().expect("no panic");
        assert!(seen || woken, "a reader sleeps beside a record");
    });
}

/// As above for short messages, whose writer releases the lock between record and look. Fails
/// without the fence in `WorkLock::serve_left`.
#[test]
fn giving_the_lock_up_is_the_fence_of_a_short_message() {
    model(|| {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let both = words.clone();
        let writer = thread::spawn(move || {
            let [record, flag] = &*both;
            WorkLock::new(()).try_with(|()| (), |()| record.store(1, Ordering::Release));
            sleeper::sleeps(flag)
        });
        let [record, flag] = &*words;
        sleeper::will_sleep(flag);
        let seen = record.load(Ordering::Acquire) != 0;
        let woken = writer.join().expect("no panic");
        assert!(seen || woken, "a reader sleeps beside a record");
    });
}
