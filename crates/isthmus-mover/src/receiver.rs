//! The loop of the side that receives files.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::MoverError;
use crate::buffer::Buffer;
use crate::descriptors::{self, share_of_descriptors};
use crate::digest;
use crate::disk::Disk;
use crate::gauge::{at_first, is_near};
use crate::landing::{Landing, Prepared};
use crate::names::{self, said};
use crate::pool::{Done, Job, Pool};
use crate::seal::{Seal, TAG_LEN};
use crate::sender::LARGE_OPEN;
use crate::session::{BEAT, Event, Wire};
use crate::source::HEAD_ROOM;
use crate::target::Target;
use crate::watch::{
    Allowance, Bottleneck, Heard, Named, Notice, Progress, Spans, Stages, Summary, Watch, What, since,
};
use crate::wire::{
    Answer, BATCH_MAX, Control, ENTRIES_BYTES, ENTRIES_OPEN, Entry, Header, Kind, Outcome, Status, Trouble,
    Verdict,
};

/// Buffers posted beyond the sender's window, so that it never waits for one. Count.
const SPARE: u64 = 4;
/// Limit on the blocks of all long files of a session that are open, unless a single file has more. Count. Each takes
/// 33 bytes ([`BLOCKS_MAX`](crate::target::BLOCKS_MAX)), before its content comes: 138 MB. With blocks of 1 MiB these
/// are files of 4 TiB.
const BLOCKS_OPEN: u64 = 1 << 22;
/// Longest sleep of the loop, so that timers are checked.
const REST: Duration = Duration::from_millis(200);

/// Limits of the receiving side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiving {
    pub(crate) block: u64,
    /// Most bytes of buffers.
    pub(crate) memory: u64,
    /// Disk threads.
    pub(crate) threads: usize,
    pub(crate) disk: Disk,
    /// The user's rate limit, which the sender keeps. Bytes/s; 0: no limit.
    pub(crate) rate: u64,
}

/// A block whose entries are not known yet.
struct Parked {
    header: Header,
    lead: usize,
    buffer: Buffer,
    len: usize,
}

pub(crate) struct ReceivingSide<'a> {
    receiving: Receiving,
    wire: &'a mut Wire,
    watch: &'a mut Watch<'a>,
    landing: Landing,
    pool: Pool,
    seal: Option<Arc<Seal>>,
    targets: HashMap<u64, Arc<Target>>,
    /// Memory of each entry, and of all with the verdicts that came early. Bytes.
    weights: HashMap<u64, usize>,
    announced: usize,
    /// Long files that are open, and their limit.
    large: usize,
    large_most: usize,
    /// The blocks of these files that come here. Count.
    large_blocks: u64,
    next_id: u64,
    /// Entries that are not prepared yet, in order: they wait for a descriptor. When the first was tried last.
    waiting: VecDeque<Entry>,
    tried: Instant,
    /// The sender's verdicts on them.
    early: HashMap<u64, Verdict>,
    parked: Vec<Parked>,
    answers: Vec<(u64, Answer)>,
    outcomes: Vec<(u64, Outcome)>,
    /// Buffers that were made, and those posted for a block.
    made: u64,
    posted: u64,
    /// Blocks with the disk threads.
    writing: usize,
    closing: usize,
    status: Status,
    other: Heard,
    told: (Instant, Status, [u64; 3]),
    /// Three times: blocks waited for a free thread; there were no blocks; a limit was used up.
    spans: Spans<3>,
    /// What the limits of the user and of the sender's administrator allow.
    allowance: Allowance,
    totals: Option<(u64, u64)>,
    /// Folders whose end was not announced yet.
    folders: u64,
    files: u64,
    bytes_done: u64,
    summary: Summary,
}

impl<'a> ReceivingSide<'a> {
    pub(crate) fn start(
        receiving: Receiving,
        landing: Landing,
        wire: &'a mut Wire,
        watch: &'a mut Watch<'a>,
    ) -> Result<Self, MoverError> {
        let pool = Pool::new(receiving.threads, receiving.disk, &wire.sender())?;
        let now = Instant::now();
        Ok(Self {
            receiving,
            landing,
            pool,
            seal: None,
            targets: HashMap::new(),
            weights: HashMap::new(),
            announced: 0,
            large: 0,
            large_most: share_of_descriptors(LARGE_OPEN + 2),
            large_blocks: 0,
            next_id: 0,
            waiting: VecDeque::new(),
            tried: now,
            early: HashMap::new(),
            parked: Vec::new(),
            answers: Vec::new(),
            outcomes: Vec::new(),
            made: 0,
            posted: 0,
            writing: 0,
            closing: 0,
            status: Status::default(),
            other: Heard::new(now),
            told: (now, Status::default(), [0; 3]),
            spans: Spans::new(now),
            allowance: Allowance::new(receiving.rate, now),
            totals: None,
            folders: 0,
            files: 0,
            bytes_done: 0,
            summary: Summary::default(),
            wire,
            watch,
        })
    }

    /// Receives all files. `heard` are messages that came before.
    pub(crate) fn run(mut self, heard: Vec<Control>) -> Result<Summary, MoverError> {
        match self.converse(heard) {
            // The sender does not wait for the delivery of its last message, Finished.
            Err(MoverError::Lost(_)) if self.is_complete() => Ok(self.summary),
            Err(error) => {
                self.wire.end(&error);
                Err(error)
            }
            Ok(()) => Ok(self.summary),
        }
    }

    fn converse(&mut self, mut heard: Vec<Control>) -> Result<(), MoverError> {
        self.post_blocks()?;
        let mut finished = false;
        loop {
            for control in heard.drain(..) {
                if control == Control::Finished {
                    finished = true;
                } else {
                    self.on_control(control)?;
                }
            }
            // Disk threads may still have blocks of files that were not wanted.
            if finished && self.writing == 0 && self.closing == 0 {
                return self.finish();
            }
            if self.tried.elapsed() >= descriptors::PAUSE {
                self.prepare()?;
            }
            self.unpark()?;
            self.send_answers()?;
            self.measure();
            let inbox = self.wire.inbox.clone();
            let first = inbox.recv_timeout(REST).ok();
            for event in first.into_iter().chain(inbox.try_iter()) {
                self.on_event(event, &mut heard)?;
            }
            self.measure();
            if self.seal.is_none() && self.wire.channel.is_ready() {
                self.seal = Some(Arc::new(self.wire.channel.seals()?.1));
                // By now the path's round trip is known.
                self.post_blocks()?;
            }
            let status = self.status;
            self.wire.beat(false, || status)?;
            self.tell(false);
        }
    }

    /// Whether all entries of the sender are settled.
    fn is_complete(&self) -> bool {
        self.totals.is_some()
            && self.folders == 0
            && self.waiting.is_empty()
            && self.targets.is_empty()
            && self.parked.is_empty()
    }

    fn finish(&mut self) -> Result<(), MoverError> {
        if !self.is_complete() {
            return Err(MoverError::Refused("the sender ended before all was settled".to_owned()));
        }
        self.send_answers()?;
        self.tell(true);
        Ok(())
    }

    /// Sends the answers and outcomes that wait.
    fn send_answers(&mut self) -> Result<(), MoverError> {
        let mut batch = Vec::new();
        let mut len = 0;
        for (id, answer) in std::mem::take(&mut self.answers) {
            len += match &answer {
                Answer::Have(ranges) | Answer::Perhaps(ranges) => 16 + 20 * ranges.len(),
                Answer::Refused(text) => 16 + text.len(),
                _ => 24,
            };
            batch.push((id, answer));
            if len > BATCH_MAX {
                self.wire.say(&Control::Answers(std::mem::take(&mut batch)))?;
                len = 0;
            }
        }
        if !batch.is_empty() {
            self.wire.say(&Control::Answers(batch))?;
        }
        let mut batch = Vec::new();
        len = 0;
        for (id, outcome) in std::mem::take(&mut self.outcomes) {
            len += if let Outcome::Failed(text) = &outcome { 16 + text.len() } else { 48 };
            batch.push((id, outcome));
            if len > BATCH_MAX {
                self.wire.say(&Control::Outcomes(std::mem::take(&mut batch)))?;
                len = 0;
            }
        }
        if !batch.is_empty() {
            self.wire.say(&Control::Outcomes(batch))?;
        }
        self.wire.flush()
    }

    /// Keeps as many buffers posted as the sender's window needs.
    fn post_blocks(&mut self) -> Result<(), MoverError> {
        let size = HEAD_ROOM as u64 + self.receiving.block + TAG_LEN as u64;
        let round_trip = self.wire.round_trip();
        let wanted = at_first(round_trip).max(self.other.now.window).div_ceil(self.receiving.block) + SPARE;
        // If the disk is slow, a far sender goes on while there is memory, and a near one waits.
        let room = self.receiving.memory / size;
        let most = if is_near(round_trip) { room.min(wanted + SPARE) } else { room }.max(SPARE);
        while self.made < most && self.posted < wanted {
            self.made += 1;
            self.post(Buffer::new(size as usize)?)?;
        }
        Ok(())
    }

    fn post(&mut self, buffer: Buffer) -> Result<(), MoverError> {
        self.posted += 1;
        self.wire.expect_block(buffer)
    }

    fn on_event(&mut self, event: Event, heard: &mut Vec<Control>) -> Result<(), MoverError> {
        match event {
            Event::Stop(text) => return Err(MoverError::Refused(text)),
            Event::End(text) => return Err(MoverError::Lost(text)),
            Event::Unreached(why) => return self.wire.take_unreached(why),
            Event::Disk(done) => return self.on_disk(done),
            Event::Net(news) => {
                if let Some(news) = self.wire.take(news, heard)? {
                    self.posted -= 1;
                    self.allowance.take(Instant::now(), news.len as u64);
                    self.post_blocks()?;
                    let (header, lead) = Header::decode(&news.buffer[..news.len], self.receiving.block)?;
                    self.parked.push(Parked { header, lead, buffer: news.buffer, len: news.len });
                    self.unpark()?;
                }
            }
        }
        Ok(())
    }

    /// Gives the disk threads the parked blocks whose entries are known now.
    fn unpark(&mut self) -> Result<(), MoverError> {
        let Some(seal) = self.seal.clone() else { return Ok(()) };
        let unprepared = self.waiting.front().map_or(self.next_id, |entry| entry.id);
        let mut at = 0;
        while let Some(parked) = self.parked.get(at) {
            if parked.header.pieces.iter().any(|piece| piece.id >= unprepared) {
                at += 1;
                continue;
            }
            let Parked { header, lead, buffer, len } = self.parked.swap_remove(at);
            let targets: Vec<_> =
                header.pieces.iter().map(|piece| self.targets.get(&piece.id).cloned()).collect();
            self.writing += 1;
            self.pool.put(Job::Write { header, lead, buffer, len, targets, seal: seal.clone() });
        }
        Ok(())
    }

    fn on_disk(&mut self, done: Done) -> Result<(), MoverError> {
        match done {
            Done::Wrote { buffer, bytes, sent, outcomes, disk_ns, cpu_ns } => {
                self.writing -= 1;
                self.status.bytes += bytes;
                self.status.disk_ns += disk_ns;
                self.status.cpu_ns += cpu_ns;
                self.summary.sent += sent;
                for (id, outcome) in outcomes {
                    self.settle(id, outcome);
                }
                self.post(buffer)
            }
            Done::Closed { id, outcome } => {
                self.closing -= 1;
                if let Some(outcome) = outcome {
                    self.settle(id, outcome);
                }
                Ok(())
            }
            Done::Reserved { id, target, until } => {
                // The job is queued behind the blocks that came meanwhile.
                self.pool.put(Job::Reserve { id, target, from: until });
                Ok(())
            }
            Done::Damaged(text) => Err(MoverError::Refused(text)),
            Done::Read(_) | Done::Verdict { .. } => Ok(()),
        }
    }

    fn settle(&mut self, id: u64, outcome: Outcome) {
        let Some(target) = self.targets.remove(&id) else { return };
        self.announced -= self.weights.remove(&id).unwrap_or(0);
        if target.size() > self.receiving.block {
            self.large -= 1;
            self.large_blocks -= target.blocks();
        }
        self.files += 1;
        match &outcome {
            Outcome::Done(digest) => {
                self.summary.bytes += target.bytes();
                // Without a digest, other processes still have to bring their shares.
                if let Some(digest) = digest {
                    self.summary.files += 1;
                    let path = Named(target.path().to_vec());
                    (self.watch)(Notice::File { path, bytes: target.size(), blake3: digest::hex(digest) });
                }
            }
            Outcome::Failed(text) => self.fail(Named(target.path().to_vec()), text.clone()),
            Outcome::Kept | Outcome::Newer => {}
        }
        self.outcomes.push((id, outcome));
    }

    fn fail(&mut self, path: Named, text: String) {
        self.summary.failed += 1;
        if !text.is_empty() {
            (self.watch)(Notice::Failed { path, text });
        }
    }

    fn on_control(&mut self, control: Control) -> Result<(), MoverError> {
        match control {
            Control::Opened { .. } => {}
            Control::SenderLimit(rate) => self.allowance.restrict(rate),
            Control::Entries(entries) => {
                for entry in entries {
                    self.on_entry(entry)?;
                }
                self.prepare()?;
            }
            Control::Walked { files, bytes } => self.totals = Some((files, bytes)),
            Control::Closes(closes) => {
                for (id, verdict) in closes {
                    if let Some(target) = self.targets.get(&id).cloned() {
                        self.close(id, target, verdict);
                    } else if self.waiting.front().is_some_and(|first| (first.id..self.next_id).contains(&id))
                    {
                        self.hoard(verdict.weight())?;
                        if let Some(before) = self.early.insert(id, verdict) {
                            self.announced -= before.weight();
                        }
                    }
                }
            }
            Control::Status(status) => {
                self.other.take(Instant::now(), status);
                self.post_blocks()?;
            }
            Control::Warning(Trouble { path, text }) => {
                (self.watch)(Notice::Warning { path: Named(path), text: said(&text) });
            }
            Control::Trouble(Trouble { path, text }) => {
                self.fail(Named(path), descriptors::of_side(said(&text), "sending"));
            }
            _ => return Err(MoverError::Refused("the sender sent what only receivers say".to_owned())),
        }
        Ok(())
    }

    fn on_entry(&mut self, entry: Entry) -> Result<(), MoverError> {
        if entry.id != self.next_id {
            return Err(MoverError::Refused("the sender announces entries out of order".to_owned()));
        }
        if self.targets.len() + self.waiting.len() >= ENTRIES_OPEN {
            return Err(too_much());
        }
        self.hoard(entry.weight())?;
        self.next_id += 1;
        match entry.kind {
            Kind::Folder => self.folders += 1,
            Kind::FolderEnd => self.folders = self.folders.saturating_sub(1),
            _ => {}
        }
        self.waiting.push_back(entry);
        Ok(())
    }

    /// Counts memory that entries and verdicts take until they are settled.
    fn hoard(&mut self, weight: usize) -> Result<(), MoverError> {
        if self.announced + weight > ENTRIES_BYTES {
            return Err(too_much());
        }
        self.announced += weight;
        Ok(())
    }

    /// Whether an entry must wait until long files of this session are complete.
    fn is_early(&self, entry: &Entry) -> bool {
        let block = self.receiving.block;
        let Kind::File { size, share, .. } = entry.kind else { return false };
        let blocks = share.blocks(size.div_ceil(block));
        let blocks = blocks.end.saturating_sub(blocks.start);
        let has_room = self.large == 0 || self.large_blocks.saturating_add(blocks) <= BLOCKS_OPEN;
        size > block && (self.large >= self.large_most || !has_room)
    }

    /// Prepares the entries that wait, as far as there are descriptors, and memory for the blocks of long files. Those
    /// of this session come back when the files that it writes are complete, so the loop must go on meanwhile.
    fn prepare(&mut self) -> Result<(), MoverError> {
        self.tried = Instant::now();
        while let Some(entry) = self.waiting.pop_front() {
            if self.is_early(&entry) || !self.prepare_entry(&entry)? {
                self.waiting.push_front(entry);
                return Ok(());
            }
            if !self.targets.contains_key(&entry.id) {
                self.announced -= entry.weight();
            }
            if let Some(verdict) = self.early.remove(&entry.id) {
                self.announced -= verdict.weight();
                if let Some(target) = self.targets.get(&entry.id).cloned() {
                    self.close(entry.id, target, verdict);
                }
            }
        }
        Ok(())
    }

    /// Takes the sender's verdict on a file.
    fn close(&mut self, id: u64, target: Arc<Target>, verdict: Verdict) {
        self.closing += 1;
        self.pool.put(Job::Close { id, target, verdict });
    }

    /// Prepares an entry. False if it must wait for a descriptor.
    fn prepare_entry(&mut self, entry: &Entry) -> Result<bool, MoverError> {
        let (id, path, what) = (entry.id, entry.path.clone(), What::of(&entry.kind));
        let block = self.receiving.block;
        let size = if let Kind::File { size, share, .. } = entry.kind { share.bytes(size, block) } else { 0 };
        let (wire, status) = (&mut *self.wire, self.status);
        let mut lost = None;
        let mut alive = || {
            if let Err(error) = wire.beat(false, || status) {
                lost = Some(error);
            }
        };
        let prepared = self.landing.prepare(entry, &mut alive);
        let path = Named(names::called(self.landing.name(), &path));
        if let Some(error) = lost {
            return Err(error);
        }
        match prepared {
            Prepared::Later => return Ok(false),
            Prepared::Over(outcome) => {
                match (&outcome, what) {
                    (Outcome::Failed(text), _) => self.fail(path, text.clone()),
                    (Outcome::Done(_), Some(what)) => (self.watch)(what.made(path, self.landing.is_dry())),
                    (Outcome::Newer, _) => (self.watch)(Notice::Kept { path, bytes: 0, why: "newer" }),
                    (Outcome::Done(_) | Outcome::Kept, _) => {}
                }
                self.outcomes.push((id, outcome));
            }
            Prepared::Asked(answer, target) => {
                let have = self.report_answer(&answer, path, size);
                self.bytes_done += have;
                self.answers.push((id, answer));
                match target {
                    Some(target) => {
                        let target = Arc::new(*target);
                        if target.size() > self.receiving.block {
                            self.large += 1;
                            self.large_blocks += target.blocks();
                            self.closing += 1;
                            self.pool.put(Job::Reserve { id, target: target.clone(), from: 0 });
                        }
                        self.targets.insert(id, target);
                        self.weights.insert(id, entry.weight());
                    }
                    None => self.files += 1,
                }
            }
        }
        Ok(true)
    }

    /// Tells the watcher about an answer. Returns the number of bytes that need not come.
    fn report_answer(&mut self, answer: &Answer, path: Named, size: u64) -> u64 {
        match answer {
            Answer::Send => 0,
            Answer::Have(ranges) | Answer::Perhaps(ranges) => {
                let blocks: u64 = ranges.iter().map(|(_, count)| *count).sum();
                let have = blocks.saturating_mul(self.receiving.block).min(size);
                (self.watch)(Notice::Resumed { path, have });
                have
            }
            Answer::Same | Answer::Newer => {
                self.summary.kept += 1;
                let why = if *answer == Answer::Same { "same" } else { "newer" };
                (self.watch)(Notice::Kept { path, bytes: size, why });
                size
            }
            Answer::Would(bytes) => {
                self.summary.files += 1;
                self.summary.bytes += bytes;
                (self.watch)(Notice::Would { path, bytes: *bytes, kind: What::File });
                0
            }
            Answer::Refused(text) => {
                self.fail(path, text.clone());
                0
            }
        }
    }

    /// Charges the time until now to the states that the disk threads were in, and reads their new states.
    fn measure(&mut self) {
        let (is_busy, is_idle) = (self.writing > self.pool.threads(), self.writing == 0);
        let now = Instant::now();
        self.spans.change(now, [is_busy, is_idle, self.allowance.is_used_up(now)]);
        self.status.busy_ns = self.spans.ns[0];
    }

    fn tell(&mut self, last: bool) {
        let (then, writing, [_, network, limited]) = self.told;
        let interval = then.elapsed();
        if !last && interval < BEAT {
            return;
        }
        let interval = interval.as_nanos() as u64;
        let stages = Stages {
            interval,
            reading: self.other.work(interval),
            writing: since(&self.status, &writing),
            network_full: self.spans.ns[1] - network,
            limited: self.spans.ns[2] - limited,
        };
        self.told = (Instant::now(), self.status, self.spans.ns);
        (self.watch)(Notice::Progress(Progress {
            // A block that came before the answer "have" counts once.
            bytes: (self.bytes_done + self.status.bytes)
                .min(self.totals.map_or(u64::MAX, |(_, bytes)| bytes)),
            bytes_total: self.totals.map(|(_, bytes)| bytes),
            files: self.files,
            files_total: self.totals.map(|(files, _)| files),
            bottleneck: if last { Bottleneck::None } else { stages.bottleneck() },
            connected: self.wire.is_connected(),
        }));
    }
}

fn too_much() -> MoverError {
    MoverError::Refused(format!(
        "the sender announces more than {ENTRIES_OPEN} files, or {ENTRIES_BYTES} bytes of names and attributes, ahead of \
         their content"
    ))
}

#[cfg(test)]
mod tests {
    use isthmus_io::Settings;

    use super::*;
    use crate::channel::Channel;
    use crate::confine;
    use crate::port::Port;
    use crate::wire::{ENTRIES_BYTES, ENTRIES_OPEN, Meta, Rules, Share};

    /// Runs `with` with a receiver whose folder is empty.
    fn with_receiver<T>(with: impl FnOnce(&mut ReceivingSide<'_>) -> T) -> T {
        let folder = tempfile::tempdir().expect("a folder");
        let root = Arc::new(confine::folder(folder.path()).expect("it is there"));
        let settings = Settings { interface: "lo".to_owned(), ..Settings::default() };
        let port = Arc::new(Port::open(&settings).expect("opened"));
        let peer = port.peer(&port.address()).expect("itself");
        let mut wire = Wire::new(port, peer, None, 1, Channel::plain()).expect("made");
        let (block, disk) = (64 << 10, Disk::default());
        let landing = Landing::new(root, b"", true, Rules::default(), block, true).expect("a folder");
        let receiving = Receiving { block, memory: 64 << 20, threads: 1, disk, rate: 0 };
        let mut quiet = |_: Notice| ();
        with(&mut ReceivingSide::start(receiving, landing, &mut wire, &mut quiet).expect("started"))
    }

    /// Announces up to `most` entries to a receiver. Returns how many it took, and the error if it took no more.
    fn taken(most: u64, entry: impl Fn(u64) -> Entry) -> (u64, Option<MoverError>) {
        with_receiver(|side| {
            for id in 0..most {
                if let Err(error) = side.on_entry(entry(id)) {
                    return (id, Some(error));
                }
            }
            (most, None)
        })
    }

    fn file(id: u64, xattr: usize) -> Entry {
        let kind = Kind::File { size: 1, ctime: (0, 0), sparse: false, share: Share::default() };
        let meta = Meta { xattrs: vec![(b"user.x".to_vec(), vec![0; xattr])], ..Meta::default() };
        Entry { id, path: format!("file{id:06}").into_bytes(), kind, meta }
    }

    /// A sender that announces files for ever, and sends none.
    #[test]
    fn endless_entries_end_the_session() {
        let (files, end) = taken(20_000, |id| file(id, 0));
        assert_eq!(files, ENTRIES_OPEN as u64);
        assert!(matches!(end, Some(MoverError::Refused(text)) if text.contains("ahead of their content")));
        let (files, end) = taken(20_000, |id| file(id, 60 << 10));
        assert_eq!(files, (ENTRIES_BYTES / file(0, 60 << 10).weight()) as u64);
        assert!(end.is_some());
    }

    /// All that a receiver holds of an entry counts, also attributes without a byte, and the text of a symbolic link.
    #[test]
    fn entries_that_look_small_and_are_large_end_the_session() {
        let link = |id| Entry { kind: Kind::Symlink(vec![b'x'; 100 << 10]), ..file(id, 0) };
        let (links, end) = taken(20_000, link);
        assert!(end.is_some() && links <= (ENTRIES_BYTES / (100 << 10)) as u64, "{links}");
        let empty = || Meta { xattrs: vec![(vec![], vec![]); 100_000], ..Meta::default() };
        let (files, end) = taken(200, |id| Entry { meta: empty(), ..file(id, 0) });
        assert!(end.is_some() && files <= (ENTRIES_BYTES / 100_000 / size_of::<(Vec<u8>, Vec<u8>)>()) as u64);
    }

    /// Each block of a long file takes memory from the announcement on. A sender announces such files without having
    /// them.
    #[test]
    fn long_files_wait_for_the_memory_of_others() {
        with_receiver(|side| {
            let block = side.receiving.block;
            let long = |id, blocks: u64| {
                let kind =
                    Kind::File { size: blocks * block, ctime: (0, 0), sparse: true, share: Share::default() };
                Entry { kind, ..file(id, 0) }
            };
            (0..4).for_each(|id| side.on_entry(long(id, BLOCKS_OPEN / 2)).expect("announced"));
            side.prepare().expect("an empty folder");
            assert_eq!((side.targets.len(), side.waiting.len(), side.large_blocks), (2, 2, BLOCKS_OPEN));
            side.settle(0, Outcome::Failed("it is over".to_owned()));
            side.prepare().expect("room");
            assert_eq!((side.targets.len(), side.waiting.len(), side.large_blocks), (2, 1, BLOCKS_OPEN));
            [1, 2].into_iter().for_each(|id| side.settle(id, Outcome::Failed("it is over".to_owned())));
            side.on_entry(long(4, BLOCKS_OPEN + 1)).expect("announced");
            side.prepare().expect("room for one");
            assert_eq!((side.targets.len(), side.waiting.len()), (1, 1), "the longest waits for the other");
            side.settle(3, Outcome::Failed("it is over".to_owned()));
            side.prepare().expect("it is alone");
            assert_eq!((side.targets.len(), side.large_blocks), (1, BLOCKS_OPEN + 1));
        });
    }

    /// Verdicts on entries that still wait are kept, with their texts.
    #[test]
    fn verdicts_that_come_early_are_bounded() {
        let text = || Verdict::Changed("a".repeat(100 << 10));
        with_receiver(|side| {
            (0..1_000).for_each(|id| side.on_entry(file(id, 0)).expect("room"));
            let before = side.announced;
            // Each is about the same entry, and the last one counts.
            (0..1_000).for_each(|_| side.on_control(Control::Closes(vec![(7, text())])).expect("room"));
            assert_eq!((side.early.len(), side.announced), (1, before + text().weight()));
            let end = (0..1_000).find_map(|id| side.on_control(Control::Closes(vec![(id, text())])).err());
            assert!(
                matches!(end, Some(MoverError::Refused(text)) if text.contains("ahead of their content"))
            );
            assert!(side.announced <= ENTRIES_BYTES);
        });
        with_receiver(|side| {
            side.on_entry(file(0, 0)).expect("room");
            let before = side.announced;
            side.on_control(Control::Closes(vec![(0, text())])).expect("room");
            side.prepare().expect("an empty folder");
            assert_eq!((side.early.len(), side.announced), (0, before), "what was used counts no more");
        });
    }

    #[test]
    fn what_no_honest_sender_says_ends_the_session() {
        with_receiver(|side| {
            assert!(side.on_entry(file(1, 0)).is_err(), "the first has number 0");
            side.on_entry(file(0, 0)).expect("the first");
            assert!(side.on_entry(file(0, 0)).is_err(), "twice");
            for of_receivers in [Control::Answers(Vec::new()), Control::Outcomes(Vec::new())] {
                assert!(side.on_control(of_receivers).is_err());
            }
            side.on_control(Control::Closes(vec![(1, Verdict::Unchanged)])).expect("it may be over");
            assert!(side.early.is_empty(), "there is no such entry");
            assert!(side.finish().is_err(), "a file is still to come");
        });
    }
}
