//! The disk threads of a session: they read, write, digest, seal and open.
//!
//! Each volume of the storage (`isthmus-layout`) has a queue of jobs. A free thread takes the oldest job of the volume that has
//! the fewest threads, so that no volume has two while jobs for another wait. There is a thread for each volume.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;
use isthmus_io::log::{Sparing, no_thread};
use isthmus_layout::{Load, Volume};
use parking_lot::{Condvar, Mutex};

use crate::buffer::Buffer;
use crate::disk::{self, Disk};
use crate::plan::Part;
use crate::seal::Seal;
use crate::session::Event;
use crate::source::{HEAD_ROOM, Read, Source, put_header, read_block};
use crate::target::{Reserved, Target};
use crate::wire::{Header, Outcome, Verdict};

/// Most threads that a session starts because its files lie on so many volumes. Count.
const VOLUME_THREADS: usize = 16;

/// The seal of outgoing blocks, once it is known, and the number of the next block.
#[derive(Debug, Default)]
pub(crate) struct Sealing {
    pub(crate) seal: OnceLock<Seal>,
    next: AtomicU64,
}

/// A block in its buffer: the parts that were read, and those to send.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) buffer: Buffer,
    pub(crate) read: Read,
    /// The place of the message in the buffer, once it is sealed.
    pub(crate) message: Option<std::ops::Range<usize>>,
    /// The volume that it was read from, until that is counted.
    pub(crate) from: Option<Volume>,
}

/// A job for a disk thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// Read these pieces of a volume, and seal the block if there is a seal yet.
    Read { from: Volume, parts: Vec<(Part, Arc<Source>)>, buffer: Buffer, block: u64, sealing: Arc<Sealing> },
    /// Seal a block that was read before.
    Seal { block: Block, sealing: Arc<Sealing> },
    /// Check whether this file is unchanged. If that is doubtful, read all its blocks, some at a time.
    Verdict { id: u64, source: Arc<Source>, block: u64, is_doubtful: bool },
    /// Decrypt a block and write its pieces to these files. Pieces that are no longer wanted have no file.
    Write {
        header: Header,
        lead: usize,
        buffer: Buffer,
        len: usize,
        targets: Vec<Option<Arc<Target>>>,
        seal: Arc<Seal>,
    },
    /// Reserve the next step of a file's space, from here on.
    Reserve { id: u64, target: Arc<Target>, from: u64 },
    /// The sender has read a file to its end.
    Close { id: u64, target: Arc<Target>, verdict: Verdict },
}

/// The result of a job.
#[derive(Debug)]
pub(crate) enum Done {
    Read(Block),
    /// No verdict yet: more must be read, after the blocks that wait.
    Verdict {
        id: u64,
        verdict: Option<Verdict>,
    },
    Wrote {
        buffer: Buffer,
        bytes: u64,
        /// Bytes of its pieces that crossed the network: holes did not.
        sent: u64,
        outcomes: Vec<(u64, Outcome)>,
        disk_ns: u64,
        cpu_ns: u64,
    },
    Closed {
        id: u64,
        outcome: Option<Outcome>,
    },
    /// More space must be reserved from here on, after the blocks that wait.
    Reserved {
        id: u64,
        target: Arc<Target>,
        until: u64,
    },
    /// A block was corrupt: the session must end.
    Damaged(String),
}

impl Job {
    /// The volume that it reads or writes first. `None`: it is work for the processor only.
    fn volume(&self) -> Option<Volume> {
        match self {
            Self::Read { from, .. } => Some(*from),
            Self::Seal { .. } => None,
            Self::Verdict { source, .. } => Some(source.layout.volume(0)),
            Self::Write { header, targets, .. } => {
                let mut pieces = header.pieces.iter().zip(targets);
                pieces.find_map(|(piece, target)| Some(target.as_ref()?.volume(piece.offset)))
            }
            Self::Reserve { target, from, .. } => Some(target.volume(*from)),
            Self::Close { target, .. } => Some(target.volume(0)),
        }
    }
}

/// The jobs that wait, and the threads at work, by volume.
#[derive(Debug, Default)]
struct Jobs {
    /// Each job with its number; the oldest has the least.
    waiting: BTreeMap<Option<Volume>, VecDeque<(u64, Job)>>,
    working: Load,
    next: u64,
    ended: bool,
}

impl Jobs {
    fn put(&mut self, job: Job) {
        self.waiting.entry(job.volume()).or_default().push_back((self.next, job));
        self.next += 1;
    }

    /// The oldest job of the volume with the fewest threads, for which one more is counted.
    fn take(&mut self) -> Option<(Option<Volume>, Job)> {
        let working = |volume: &Option<Volume>| volume.map_or(0, |volume| self.working.of(volume));
        let order = |(volume, jobs): &(&Option<Volume>, &VecDeque<(u64, Job)>)| {
            (working(volume), jobs.front().map(|(number, _)| *number))
        };
        let volume = *self.waiting.iter().min_by_key(order)?.0;
        let jobs = self.waiting.get_mut(&volume)?;
        let (_, job) = jobs.pop_front()?;
        if jobs.is_empty() {
            self.waiting.remove(&volume);
        }
        if let Some(volume) = volume {
            self.working.begin(volume);
        }
        Some((volume, job))
    }

    /// A thread has done a job of this volume.
    fn done(&mut self, volume: Option<Volume>) {
        if let Some(volume) = volume {
            self.working.end(volume);
        }
    }
}

/// What the threads share.
#[derive(Debug, Default)]
struct Board {
    jobs: Mutex<Jobs>,
    /// There is a job, or the session has ended.
    more: Condvar,
}

impl Board {
    /// Waits for a job. `None`: the session has ended, and all jobs are taken.
    fn take(&self) -> Option<(Option<Volume>, Job)> {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(taken) = jobs.take() {
                return Some(taken);
            }
            if jobs.ended {
                return None;
            }
            self.more.wait(&mut jobs);
        }
    }
}

/// The threads. When this is dropped, they end after the jobs that wait.
pub(crate) struct Pool {
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
    volumes: BTreeSet<Volume>,
    how: Disk,
    to: Sender<Event>,
}

impl Pool {
    pub(crate) fn new(threads: usize, how: Disk, to: &Sender<Event>) -> std::io::Result<Self> {
        let board = Arc::default();
        let mut pool = Self { board, threads: Vec::new(), volumes: BTreeSet::new(), how, to: to.clone() };
        for _ in 0..threads {
            pool.start().map_err(no_thread)?;
        }
        Ok(pool)
    }

    fn start(&mut self) -> std::io::Result<()> {
        let (board, to, how) = (self.board.clone(), self.to.clone(), self.how);
        let builder = std::thread::Builder::new().name("mover-disk".to_owned());
        self.threads.push(builder.spawn(move || {
            disk::begin(how);
            work(&board, &to);
        })?);
        Ok(())
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn put(&mut self, job: Job) {
        // Each session may meet it.
        static SPARING: Sparing = Sparing::new();
        if let Some(volume) = job.volume()
            && self.volumes.insert(volume)
            && self.volumes.len().min(VOLUME_THREADS) > self.threads.len()
            && let Err(error) = self.start()
            && let Some(left_out) = SPARING.due(Instant::now())
        {
            tracing::warn!(
                "a storage target has no thread of its own ({error}); others read and write it{left_out}"
            );
        }
        self.board.jobs.lock().put(job);
        self.board.more.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.board.jobs.lock().ended = true;
        self.board.more.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(board: &Board, to: &Sender<Event>) {
    while let Some((volume, job)) = board.take() {
        let done = run(job);
        board.jobs.lock().done(volume);
        if to.send(Event::Disk(done)).is_err() {
            return;
        }
    }
}

fn run(job: Job) -> Done {
    match job {
        Job::Read { from, parts, mut buffer, block, sealing } => {
            let read = read_block(&parts, &mut buffer, block);
            seal(Block { buffer, read, message: None, from: Some(from) }, &sealing)
        }
        Job::Seal { block, sealing } => seal(block, &sealing),
        Job::Verdict { id, source, block, is_doubtful } => {
            Done::Verdict { id, verdict: source.verdict(block, is_doubtful) }
        }
        Job::Write { header, lead, buffer, len, targets, seal } => {
            write(&header, lead, buffer, len, &targets, &seal)
        }
        Job::Reserve { id, target, from } => match target.reserve(from) {
            Reserved::Until(until) => Done::Reserved { id, target, until },
            Reserved::Over(outcome) => Done::Closed { id, outcome },
        },
        Job::Close { id, target, verdict } => Done::Closed { id, outcome: target.close(&verdict) },
    }
}

fn seal(mut block: Block, sealing: &Sealing) -> Done {
    let Some(seal) = sealing.seal.get() else { return Done::Read(block) };
    if block.read.pieces.is_empty() {
        return Done::Read(block);
    }
    let start = Instant::now();
    let number = sealing.next.fetch_add(1, Ordering::Relaxed);
    let header = Header { number, pieces: std::mem::take(&mut block.read.pieces) };
    let end = HEAD_ROOM + block.read.len;
    let sealed =
        put_header(&mut block.buffer, &header).map_err(|error| error.to_string()).and_then(|begin| {
            let (head, body) = block.buffer.split_at_mut(HEAD_ROOM);
            let tag = seal.seal(number, &head[begin..], &mut body[..end - HEAD_ROOM]);
            tag.map(|tag| (begin, tag)).map_err(|error| error.to_string())
        });
    let (begin, tag) = match sealed {
        Ok(sealed) => sealed,
        Err(error) => return Done::Damaged(error),
    };
    let tag = tag.as_ref().map_or(&[][..], |tag| &tag[..]);
    block.buffer[end..end + tag.len()].copy_from_slice(tag);
    block.message = Some(begin..end + tag.len());
    block.read.pieces = header.pieces;
    block.read.cpu_ns += start.elapsed().as_nanos() as u64;
    Done::Read(block)
}

fn write(
    header: &Header,
    lead: usize,
    mut buffer: Buffer,
    len: usize,
    targets: &[Option<Arc<Target>>],
    seal: &Seal,
) -> Done {
    let start = Instant::now();
    let mut body = match seal.open(header.number, lead, &mut buffer[..len]) {
        Ok(body) => &*body,
        Err(error) => return Done::Damaged(error.to_string()),
    };
    if body.len() as u64 != header.body() {
        return Done::Damaged("a block is not as long as its pieces".to_owned());
    }
    let mut cpu_ns = start.elapsed().as_nanos() as u64;
    let (mut bytes, mut disk_ns, mut outcomes) = (0, 0, Vec::new());
    for (piece, target) in header.pieces.iter().zip(targets) {
        let (own, rest) = body.split_at(if piece.hole { 0 } else { piece.len as usize });
        body = rest;
        let Some(target) = target else { continue };
        let start = Instant::now();
        if let Err(damage) = target.check(piece, own) {
            return Done::Damaged(damage.to_string());
        }
        let middle = Instant::now();
        cpu_ns += (middle - start).as_nanos() as u64;
        outcomes.extend(target.write(piece, own).map(|outcome| (piece.id, outcome)));
        disk_ns += middle.elapsed().as_nanos() as u64;
        bytes += u64::from(piece.len);
    }
    Done::Wrote { buffer, bytes, sent: header.body(), outcomes, disk_ns, cpu_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(device: u64) -> Job {
        let (parts, buffer) = (Vec::new(), Buffer::new(HEAD_ROOM).expect("memory"));
        Job::Read { from: Volume::of_device(device), parts, buffer, block: 1, sealing: Arc::default() }
    }

    /// The volume of the job that is taken next.
    fn take(jobs: &mut Jobs) -> Option<Volume> {
        jobs.take().and_then(|(volume, _)| volume)
    }

    #[test]
    fn no_volume_has_two_threads_while_jobs_for_another_wait() {
        let mut jobs = Jobs::default();
        [1, 1, 1, 2, 2, 3].into_iter().for_each(|device| jobs.put(read(device)));
        let [one, two, three] = [1, 2, 3].map(|device| Some(Volume::of_device(device)));
        assert_eq!([(); 3].map(|()| take(&mut jobs)), [one, two, three]);
        assert_eq!(take(&mut jobs), one, "each has a thread, and the first has the oldest job");
        jobs.done(two);
        assert_eq!([(); 2].map(|()| take(&mut jobs)), [two, one]);
        assert!(jobs.take().is_none());
    }

    #[test]
    fn jobs_of_one_volume_are_done_in_their_order_by_as_many_threads_as_there_are() {
        let mut jobs = Jobs::default();
        for block in 0..5 {
            let Job::Read { from, parts, buffer, sealing, .. } = read(7) else { unreachable!() };
            jobs.put(Job::Read { from, parts, buffer, block, sealing });
        }
        let taken = std::iter::from_fn(|| match jobs.take() {
            Some((_, Job::Read { block, .. })) => Some(block),
            _ => None,
        });
        assert_eq!(taken.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn each_volume_gets_a_thread_up_to_a_limit() {
        let (to, done) = crossbeam_channel::unbounded();
        let mut pool = Pool::new(2, Disk::default(), &to).expect("threads");
        for device in 0..40 {
            pool.put(read(device % 20));
            assert_eq!(pool.threads(), (device as usize + 1).clamp(2, VOLUME_THREADS));
        }
        drop(pool);
        assert_eq!(done.try_iter().count(), 40, "all jobs that wait are done");
    }
}
