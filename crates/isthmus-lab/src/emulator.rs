//! The link model applied to real packets between two TAP devices, or packet sockets if there
//! is no access to TAP devices.
//!
//! One thread serves each direction. It reads super-packets whole, asks the model about each wire
//! packet, and writes the survivors when they are due. Memory is allocated and touched before the
//! link opens. An idle thread sleeps in `poll`. A busy one wakes once per period: 1 % of the
//! delay, within 50..=200 us.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::model::{Direction, DirectionSpec, Drop, Fate};
use crate::packet::{Frame, HEADER_BYTES_MAX};
use crate::report::{DirectionReport, Histogram};
use crate::store::{Full, Run, Store};
use crate::sys;

/// Longest span of a run of wire packets that is sent as one super-packet. Nanoseconds.
const RUN_NS_MAX: u64 = 100_000;
/// Most reads, then writes, per turn. A sender may burst tens of megabytes at once, and packets
/// that are due must not wait for all of it. Counts.
const READS_PER_TURN: usize = 8;
const WRITES_PER_TURN: usize = 32;

/// A running link emulator.
#[derive(Debug)]
pub struct LinkEmulator {
    stop: Arc<OwnedFd>,
    start: [Sender<u64>; 2],
    threads: [JoinHandle<DirectionReport>; 2],
}

/// Time of the monotonic clock. Nanoseconds.
pub fn monotonic_ns() -> u64 {
    to_ns(clock_gettime(ClockId::Monotonic))
}

fn to_ns(t: Timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn to_timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

impl LinkEmulator {
    /// Allocates memory for both directions, and holds packets until [`LinkEmulator::open`].
    /// `ends` are the two devices. `specs` are for first to second, and back.
    ///
    /// # Errors
    /// If no descriptors or threads are left.
    pub fn prepare(ends: [OwnedFd; 2], specs: [DirectionSpec; 2]) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let [first, second] = ends.map(Arc::new);
        let [there, back] = specs;
        let (ready, is_ready) = channel();
        let there = spawn("lab-there", &first, &second, there, &stop, ready.clone())?;
        let back = spawn("lab-back", &second, &first, back, &stop, ready)?;
        for _ in 0..2 {
            is_ready.recv().map_err(|_| io::Error::other("an emulator thread ended early"))?;
        }
        Ok(Self { stop, start: [there.0, back.0], threads: [there.1, back.1] })
    }

    /// Opens the link. Outages count from `epoch_ns` on the monotonic clock.
    pub fn open(&self, epoch_ns: u64) {
        for start in &self.start {
            // A thread that has ended reports when it is joined.
            let _ = start.send(epoch_ns);
        }
    }

    /// Closes the link and reports what each direction did.
    pub fn stop(self) -> [DirectionReport; 2] {
        // This fails only if the counter is full, which wakes the threads as well.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        drop(self.start);
        self.threads.map(|thread| thread.join().unwrap_or_default())
    }
}

fn spawn(
    name: &str,
    input: &Arc<OwnedFd>,
    output: &Arc<OwnedFd>,
    spec: DirectionSpec,
    stop: &Arc<OwnedFd>,
    ready: Sender<()>,
) -> io::Result<(Sender<u64>, JoinHandle<DirectionReport>)> {
    let (start, started) = channel();
    let (input, output, stop) = (input.clone(), output.clone(), stop.clone());
    let body = move || {
        let mut worker = Worker::new(input, output, stop, spec);
        // The receiver is gone only if the lab is being given up.
        let _ = ready.send(());
        worker.serve(started);
        worker.into_report()
    };
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
    Ok((start, thread))
}

/// One direction's thread.
struct Worker {
    input: Arc<OwnedFd>,
    output: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    model: Direction,
    store: Store,
    fates: Vec<Fate>,
    period_ns: u64,
    epoch_ns: u64,
    lateness: Histogram,
    wake_lateness: Histogram,
    report: DirectionReport,
}

/// Result of a turn of the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Idle,
    Busy,
    /// A bound was reached, and there is more to do.
    Unfinished,
}

impl Worker {
    fn new(input: Arc<OwnedFd>, output: Arc<OwnedFd>, stop: Arc<OwnedFd>, spec: DirectionSpec) -> Self {
        let realtime = sys::become_realtime().is_ok();
        if !realtime {
            sys::prefer_short_slices();
        }
        // No effect under real-time scheduling, where timers have no slack.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let seed = spec.seed;
        Self {
            input,
            output,
            stop,
            period_ns: (spec.delay_ns / 100).clamp(50_000, 200_000),
            store: Store::new(&spec),
            model: Direction::new(spec),
            fates: Vec::with_capacity(2048),
            epoch_ns: 0,
            lateness: Histogram::default(),
            wake_lateness: Histogram::default(),
            report: DirectionReport { realtime, seed, ..Default::default() },
        }
    }

    fn now(&self) -> u64 {
        monotonic_ns().saturating_sub(self.epoch_ns)
    }

    fn serve(&mut self, started: Receiver<u64>) {
        let Ok(epoch_ns) = started.recv() else { return };
        self.epoch_ns = epoch_ns;
        loop {
            let woke = self.now();
            let mut turn = Turn::Idle;
            loop {
                let done = [self.take_in(), self.deliver()];
                turn = if done == [Turn::Idle; 2] { turn } else { Turn::Busy };
                if !done.contains(&Turn::Unfinished) {
                    break;
                }
            }
            let stopped = if turn == Turn::Busy { self.rest(woke) } else { self.wait() };
            if stopped {
                return;
            }
        }
    }

    /// After work: sleeps to the end of the period, whatever arrives. True if stopped.
    fn rest(&mut self, woke: u64) -> bool {
        let until = woke + self.period_ns;
        let left = to_timespec(until.saturating_sub(self.now()));
        let mut stop = [PollFd::new(&*self.stop, PollFlags::IN)];
        // An interrupted sleep only makes the next turn earlier.
        let _ = poll(&mut stop, Some(&left));
        self.wake_lateness.add(self.now().saturating_sub(until));
        !stop[0].revents().is_empty()
    }

    /// Without work: sleeps until a packet arrives or is due. True if stopped.
    fn wait(&mut self) -> bool {
        let left = self.store.next_due().map(|at| to_timespec(at.saturating_sub(self.now())));
        let mut fds = [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&*self.input, PollFlags::IN)];
        // An interrupted wait only makes this turn earlier.
        let _ = poll(&mut fds, left.as_ref());
        !fds[0].revents().is_empty()
    }

    fn take_in(&mut self) -> Turn {
        for i in 0..READS_PER_TURN {
            let Ok(len) = rustix::io::read(self.input.as_fd(), self.store.room()) else {
                return if i == 0 { Turn::Idle } else { Turn::Busy };
            };
            self.admit(len);
        }
        Turn::Unfinished
    }

    /// Decides the fate of the frame of `len` bytes in the store's room.
    fn admit(&mut self, len: usize) {
        let now = self.now();
        let Ok(frame) = Frame::parse(&self.store.room()[..len]) else {
            self.report.drops.emulator += 1;
            return;
        };
        self.fates.clear();
        self.model.offer(now, frame.is_udp(), frame.wire_sizes(), &mut self.fates);
        self.count(&frame);
        if !self.fates.iter().any(|f| matches!(f, Fate::Deliver { .. })) {
            return;
        }
        if let Err(Full { packets }) = self.store.keep(&frame, &self.fates, RUN_NS_MAX) {
            self.report.drops.emulator += packets;
        }
    }

    fn count(&mut self, frame: &Frame) {
        let report = &mut self.report;
        for (fate, bytes) in self.fates.iter().zip(frame.wire_sizes()) {
            report.offered_packets += 1;
            report.offered_bytes += u64::from(bytes);
            match fate {
                Fate::Dropped(Drop::Queue | Drop::Policer) => report.drops.queue += 1,
                Fate::Dropped(Drop::Size) => report.drops.size += 1,
                Fate::Dropped(Drop::Down) => report.drops.down += 1,
                Fate::Dropped(Drop::Loss) => report.drops.loss += 1,
                Fate::Deliver { twice, .. } => report.duplicated_packets += u64::from(*twice),
            }
        }
    }

    fn deliver(&mut self) -> Turn {
        for i in 0..WRITES_PER_TURN {
            let now = self.now();
            let Some(run) = self.store.pop_due(now) else {
                return if i == 0 { Turn::Idle } else { Turn::Busy };
            };
            self.lateness.add(now - run.at_ns);
            self.write(&run);
            self.store.release(&run);
        }
        Turn::Unfinished
    }

    fn write(&mut self, run: &Run) {
        let mut header = [0; HEADER_BYTES_MAX];
        let (frame, original, payload) = self.store.parts(run);
        let (first, end) = (run.first as usize, run.end as usize);
        frame.run_header(original, first, end, &mut header);
        if run.marked {
            self.report.marked_packets += frame.mark(&mut header, end - first);
        }
        let header = &header[..frame.header_len()];
        let parts = [io::IoSlice::new(header), io::IoSlice::new(payload)];
        let packets = (end - first) as u64;
        let wire_bytes: u64 = frame.wire_sizes().skip(first).take(end - first).map(u64::from).sum();
        match rustix::io::writev(self.output.as_fd(), &parts) {
            Ok(_) => {
                self.report.deliveries += 1;
                self.report.delivered_packets += packets;
                self.report.deliver(run.at_ns, wire_bytes);
            }
            Err(_) => self.report.drops.emulator += packets,
        }
    }

    fn into_report(mut self) -> DirectionReport {
        self.report.lateness = self.lateness.summary();
        self.report.wake_lateness = self.wake_lateness.summary();
        self.report.drops.unseen = sys::socket_drops(self.input.as_fd());
        self.report.cpu_s = to_ns(clock_gettime(ClockId::ThreadCPUTime)) as f64 / 1e9;
        self.report
    }
}
