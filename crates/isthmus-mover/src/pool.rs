//! The disk threads of a session: they read, write, digest, seal and open.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use isthmus_io::log::no_thread;

use crate::buffer::Buffer;
use crate::disk::{self, Disk};
use crate::plan::Part;
use crate::seal::Seal;
use crate::session::Event;
use crate::source::{HEAD_ROOM, Read, Source, put_header, read_block};
use crate::target::{Reserved, Target};
use crate::wire::{Header, Outcome, Verdict};

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
}

/// A job for a disk thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// Read these pieces, and seal the block if there is a seal yet.
    Read { parts: Vec<(Part, Arc<Source>)>, buffer: Buffer, block: u64, sealing: Arc<Sealing> },
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

/// The threads. When this is dropped, they end after their present job.
pub(crate) struct Pool {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(crate) fn new(threads: usize, how: Disk, to: &Sender<Event>) -> std::io::Result<Self> {
        let (jobs, taken) = crossbeam_channel::unbounded();
        let mut pool = Self { jobs: Some(jobs), threads: Vec::new() };
        for _ in 0..threads {
            let (taken, to) = (taken.clone(), to.clone());
            let builder = std::thread::Builder::new().name("mover-disk".to_owned());
            let thread = builder.spawn(move || {
                disk::begin(how);
                work(&taken, &to);
            });
            pool.threads.push(thread.map_err(no_thread)?);
        }
        Ok(pool)
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn put(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The threads end after this only.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Receiver<Job>, to: &Sender<Event>) {
    for job in jobs {
        let done = match job {
            Job::Read { parts, mut buffer, block, sealing } => {
                let read = read_block(&parts, &mut buffer, block);
                seal(Block { buffer, read, message: None }, &sealing)
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
        };
        if to.send(Event::Disk(done)).is_err() {
            return;
        }
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
    Done::Wrote { buffer, bytes, outcomes, disk_ns, cpu_ns }
}
