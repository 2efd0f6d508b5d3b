//! The loop of the side that sends files.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, TryRecvError};

use crate::MoverError;
use crate::buffer::Buffer;
use crate::descriptors::{self, share_of_descriptors};
use crate::digest;
use crate::disk::Disk;
use crate::gauge::{Gauge, scaled};
use crate::names::{self, said};
use crate::plan::Plan;
use crate::pool::{Block, Done, Job, Pool, Sealing};
use crate::seal::TAG_LEN;
use crate::session::{BEAT, Event, Wire, key};
use crate::source::{HEAD_ROOM, Source};
use crate::walk::{self, Filter, Found, Item, Roots};
use crate::watch::{
    Allowance, Bottleneck, Heard, Named, Notice, Progress, Spans, Stages, Summary, Watch, What, since,
};
use crate::wire::{
    Answer, BATCH_MAX, Control, ENTRIES_BYTES, ENTRIES_OPEN, Entry, Kind, Outcome, Piece, Rules, Status,
    Verdict,
};

/// Bytes sent before the first answer, and the round trip up to which this holds; on a longer path it is more in
/// proportion. It is more than 1 Gb/s carries in four such round trips, or 5 Gb/s in one, because the first answer may be
/// lost.
const AHEAD: u64 = 8 << 20;
const AHEAD_TRIP: Duration = Duration::from_millis(12);
/// With a round trip below this, answers come at once, so nothing is sent ahead of them.
const PROMPT: Duration = Duration::from_millis(5);
/// Limit on announced files of several blocks: each costs the receiver two descriptors.
pub(crate) const LARGE_OPEN: usize = 64;
/// Longest sleep of the loop, so that timers are checked.
const REST: Duration = Duration::from_millis(200);

/// Limits of the sending side.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) block: u64,
    /// Limit on the memory of buffers. Bytes.
    pub(crate) memory: u64,
    /// Disk threads.
    pub(crate) threads: usize,
    pub(crate) disk: Disk,
    /// The user's rate limit. Bytes/s; 0: no limit.
    pub(crate) rate: u64,
    /// The administrator's limit (`rate_limit`), which the endpoint enforces. Bytes/s; 0: no limit.
    pub(crate) rate_limit: u64,
    pub(crate) rules: Rules,
}

/// What one walk finds.
struct List {
    found: Receiver<Found>,
    ended: bool,
    /// Files of several blocks that it found, announced and not settled. Count.
    large: usize,
}

struct Flying {
    source: Arc<Source>,
    /// The list that it was found in.
    list: usize,
    /// Blocks that the receiver already has: first and count.
    have: Vec<(u64, u64)>,
    /// Blocks handed to the disk threads and not read yet.
    reading: u64,
    /// All its blocks were given to the disk threads.
    exhausted: bool,
    closed: bool,
    /// The receiver's blocks may be of another version of the file.
    is_doubtful: bool,
}

enum Entity {
    File(Flying),
    /// A folder or a symbolic link. The watcher is not told about a folder's end.
    Other {
        path: Vec<u8>,
        what: Option<What>,
    },
}

pub(crate) struct SendingSide<'a> {
    sending: Sending,
    wire: &'a mut Wire,
    watch: &'a mut Watch<'a>,
    pool: Pool,
    plan: Plan,
    /// What the walks find, device by device.
    lists: Vec<List>,
    walked: bool,
    sealing: Arc<Sealing>,
    entities: HashMap<u64, Entity>,
    /// Name of a single file at the destination, if it differs.
    name: Option<Vec<u8>>,
    /// Most files of several blocks that are announced and not settled. Count.
    large_most: usize,
    next_id: u64,
    entries: Vec<Entry>,
    entries_len: usize,
    closes: Vec<(u64, Verdict)>,
    /// Folders that were left, and the first entry after their contents.
    ends: VecDeque<(u64, Item)>,
    free: Vec<Buffer>,
    made: usize,
    /// Blocks that were read before the seal was known, or before an answer that comes at once.
    held: Vec<Block>,
    answers_promptly: bool,
    /// Blocks with the disk threads.
    reading: usize,
    /// Bytes handed to the network and not acknowledged.
    in_network: u64,
    gauge: Gauge,
    /// The window that the receiver was last told.
    window_told: u64,
    status: Status,
    other: Heard,
    told: (Instant, Status, [u64; 3]),
    /// Three times: blocks waited for a free thread; the window was full; the user's limit held.
    spans: Spans<3>,
    may_read_at: Instant,
    /// What `rate_limit` allows.
    allowance: Allowance,
    files_total: u64,
    bytes_total: u64,
    files: u64,
    bytes_done: u64,
    summary: Summary,
}

impl<'a> SendingSide<'a> {
    /// Starts the walk and the reading. Nothing is sent before [`SendingSide::run`].
    pub(crate) fn start(
        sending: Sending,
        roots: Roots,
        filter: Filter,
        wire: &'a mut Wire,
        watch: &'a mut Watch<'a>,
    ) -> Result<Self, MoverError> {
        let lists = walk::start(roots, &filter)?;
        let lists = lists.into_iter().map(|found| List { found, ended: false, large: 0 }).collect();
        let pool = Pool::new(sending.threads, sending.disk, &wire.sender())?;
        let now = Instant::now();
        let ahead = if sending.rules.dry_run || sending.rules.update { 0 } else { AHEAD };
        Ok(Self {
            plan: Plan::new(sending.block, ahead),
            pool,
            lists,
            walked: false,
            sealing: Arc::default(),
            entities: HashMap::new(),
            name: None,
            large_most: share_of_descriptors(LARGE_OPEN),
            next_id: 0,
            entries: Vec::new(),
            entries_len: 0,
            closes: Vec::new(),
            ends: VecDeque::new(),
            free: Vec::new(),
            made: 0,
            held: Vec::new(),
            answers_promptly: false,
            reading: 0,
            in_network: 0,
            gauge: Gauge::new(sending.block, sending.memory),
            window_told: 0,
            status: Status::default(),
            other: Heard::new(now),
            told: (now, Status::default(), [0; 3]),
            spans: Spans::new(now),
            may_read_at: now,
            allowance: Allowance::new(sending.rate_limit, now),
            files_total: 0,
            bytes_total: 0,
            files: 0,
            bytes_done: 0,
            summary: Summary::default(),
            sending,
            wire,
            watch,
        })
    }

    /// Sends all files.
    pub(crate) fn run(mut self) -> Result<Summary, MoverError> {
        let done = self.converse();
        if let Err(error) = &done {
            self.wire.end(error);
        }
        done.map(|()| self.summary)
    }

    fn converse(&mut self) -> Result<(), MoverError> {
        let mut heard = Vec::new();
        loop {
            self.fill()?;
            if self.is_settled() {
                // The receiver has reported the outcome of every entry, so no answer is needed.
                self.wire.say(&Control::Finished)?;
                self.wire.flush()?;
                self.tell(true);
                return Ok(());
            }
            self.wire.flush()?;
            self.measure();
            self.wait(&mut heard)?;
            self.measure();
            for control in heard.drain(..) {
                self.on_control(control)?;
            }
            if self.wire.channel.is_ready() && self.sealing.seal.get().is_none() {
                self.know_path();
                let _ = self.sealing.seal.set(self.wire.channel.seals()?.0);
            }
            self.release()?;
            let status = Status { window: self.gauge.window(), ..self.status };
            // Tell the receiver the new window early, so that it has buffers in time.
            let has_grown = status.window > self.window_told;
            if self.wire.beat(has_grown, || status)? {
                self.window_told = status.window;
            }
            self.tell(false);
        }
    }

    /// Sets the window, and the bytes sent ahead of answers, now that the path's round trip is known.
    fn know_path(&mut self) {
        let round_trip = self.wire.round_trip();
        tracing::debug!(?round_trip, "both sides know each other");
        self.gauge.expect(round_trip);
        self.window_told = self.gauge.window(); // the receiver assumes the same
        self.plan.run_ahead(scaled(AHEAD, AHEAD_TRIP, round_trip).saturating_sub(AHEAD));
        self.answers_promptly = round_trip.is_some_and(|it| it < PROMPT);
        if self.answers_promptly {
            self.plan.distrust();
        }
    }

    fn is_settled(&self) -> bool {
        self.walked
            && self.plan.unsettled() == 0
            && self.ends.is_empty()
            && self.entries.is_empty()
            && self.closes.is_empty()
            && self.reading == 0
            && self.held.is_empty()
            && self.in_network == 0
    }

    /// Waits for an event, and processes all events that are there.
    fn wait(&mut self, heard: &mut Vec<Control>) -> Result<(), MoverError> {
        let mut pause = REST;
        let now = Instant::now();
        if self.may_read_at > now {
            pause = pause.min(self.may_read_at - now);
        }
        let inbox = self.wire.inbox.clone();
        let mut select = Select::new();
        select.recv(&inbox);
        if self.wants_entries() {
            for list in self.lists.iter().filter(|list| !list.ended) {
                select.recv(&list.found);
            }
        }
        // What the walks have found is taken next (`fill`).
        let _ = select.ready_timeout(pause);
        for event in inbox.try_iter() {
            self.on_event(event, heard)?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event, heard: &mut Vec<Control>) -> Result<(), MoverError> {
        match event {
            Event::Stop(text) => return Err(MoverError::Refused(text)),
            Event::End(text) => return Err(MoverError::Lost(text)),
            Event::Unreached(why) => return self.wire.take_unreached(why),
            Event::Disk(done) => return self.on_disk(done),
            Event::Net(news) => {
                if let Some(news) = self.wire.take(news, heard)? {
                    debug_assert_eq!(news.key, key::BLOCK_OUT);
                    self.in_network -= news.len as u64;
                    self.gauge.delivered(news.len as u64);
                    self.free.push(news.buffer);
                }
            }
        }
        Ok(())
    }

    // --- what there is to send ---

    fn wants_entries(&self) -> bool {
        let has_room = self.plan.unsettled() < ENTRIES_OPEN && self.plan.weight() < ENTRIES_BYTES / 2;
        let large: usize = self.lists.iter().map(|list| list.large).sum();
        !self.walked && has_room && large < self.large_most
    }

    /// The next thing that a walk has found, and its list: the one with the fewest files of several blocks that are
    /// announced, so that slow devices leave room for the others. `None`: nothing is there yet, or the walks have ended.
    fn next_found(&mut self) -> Option<(usize, Found)> {
        let mut order: Vec<usize> = (0..self.lists.len()).filter(|list| !self.lists[*list].ended).collect();
        order.sort_by_key(|list| self.lists[*list].large);
        for at in order {
            match self.lists[at].found.try_recv() {
                Ok(found) => return Some((at, found)),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.lists[at].ended = true,
            }
        }
        None
    }

    fn find(&mut self, list: usize, found: Found) -> Result<(), MoverError> {
        match found {
            Found::Trouble(trouble) => {
                self.wire.say(&Control::Trouble(trouble.clone()))?;
                self.fail(Named(trouble.path), &trouble.text);
            }
            Found::Skipped(trouble) => {
                self.wire.say(&Control::Warning(trouble.clone()))?;
                (self.watch)(Notice::Warning { path: Named(trouble.path), text: trouble.text });
            }
            Found::Item(item) if item.kind == Kind::FolderEnd => self.ends.push_back((self.next_id, item)),
            Found::Item(item) => self.announce(list, item)?,
        }
        Ok(())
    }

    fn announce(&mut self, list: usize, item: Item) -> Result<(), MoverError> {
        let id = self.next_id;
        self.next_id += 1;
        let source = Source::new(&item).map(Arc::new);
        let entry = Entry { id, path: item.path, kind: item.kind, meta: item.meta };
        let weight = entry.weight();
        let block = self.sending.block;
        let entity = match source {
            Some(source) => {
                let Source { size, share, .. } = *source;
                self.plan.announce_blocks(id, size, share.blocks(size.div_ceil(block)), &source.layout);
                self.files_total += 1;
                self.bytes_total += share.bytes(size, block);
                self.lists[list].large += usize::from(source.size > block);
                Entity::File(Flying {
                    source,
                    list,
                    have: Vec::new(),
                    reading: 0,
                    exhausted: false,
                    closed: false,
                    is_doubtful: false,
                })
            }
            None => {
                self.plan.announce(id, None);
                Entity::Other { path: entry.path.clone(), what: What::of(&entry.kind) }
            }
        };
        self.plan.weigh(id, weight);
        self.entities.insert(id, entity);
        let len = 64 + weight;
        if self.entries_len + len > BATCH_MAX {
            self.put_entries()?;
        }
        self.entries_len += len;
        self.entries.push(entry);
        Ok(())
    }

    fn put_entries(&mut self) -> Result<(), MoverError> {
        self.entries_len = 0;
        let entries = std::mem::take(&mut self.entries);
        if entries.is_empty() { Ok(()) } else { self.wire.say(&Control::Entries(entries)) }
    }

    fn end_walk(&mut self) -> Result<(), MoverError> {
        self.walked = true;
        self.put_entries()?;
        let (files, bytes) = (self.files_total, self.bytes_total);
        self.wire.say(&Control::Walked { files, bytes })
    }

    /// Announces the entries found, and gives the disk threads as many blocks as there is room for.
    fn fill(&mut self) -> Result<(), MoverError> {
        while self.wants_entries() {
            match self.next_found() {
                Some((list, found)) => self.find(list, found)?,
                None if self.lists.iter().all(|list| list.ended) => self.end_walk()?,
                None => break,
            }
        }
        while self.ends.front().is_some_and(|(before, _)| self.plan.settled_before(*before)) {
            if let Some((_, item)) = self.ends.pop_front() {
                self.announce(0, item)?;
            }
        }
        self.put_entries()?;
        while Instant::now() >= self.may_read_at && self.has_room() {
            let Some((from, parts)) = self.plan.next_block() else { break };
            let bytes: u64 = parts.iter().map(|part| part.len).sum();
            if let Some(pause) = self.pause(bytes) {
                self.may_read_at = self.may_read_at.max(Instant::now()) + pause;
            }
            let mut sources = Vec::with_capacity(parts.len());
            for part in parts {
                if let Some(Entity::File(file)) = self.entities.get_mut(&part.id) {
                    file.reading += 1;
                    sources.push((part, file.source.clone()));
                }
            }
            let len = HEAD_ROOM + self.sending.block as usize + TAG_LEN;
            let buffer = match self.free.pop() {
                Some(buffer) => buffer,
                None => Buffer::new(len).inspect(|_| self.made += 1)?,
            };
            self.reading += 1;
            let (block, sealing) = (self.sending.block, self.sealing.clone());
            self.pool.put(Job::Read { from, parts: sources, buffer, block, sealing });
        }
        for id in self.plan.take_exhausted() {
            if let Some(Entity::File(file)) = self.entities.get_mut(&id) {
                file.exhausted = true;
            }
            self.try_close(id);
        }
        if !self.closes.is_empty() {
            let closes = std::mem::take(&mut self.closes);
            self.wire.say(&Control::Closes(closes))?;
        }
        Ok(())
    }

    /// The time that `bytes` take at the user's rate limit, if there is one.
    fn pause(&self, bytes: u64) -> Option<Duration> {
        let rate = self.sending.rate;
        (rate > 0).then(|| Duration::from_secs_f64(bytes as f64 / rate as f64))
    }

    /// Takes bytes that were read and are not sent off the count for the user's limit.
    fn spare(&mut self, bytes: u64) {
        let pause = self.pause(bytes).unwrap_or_default();
        self.may_read_at = self.may_read_at.checked_sub(pause).unwrap_or(self.may_read_at);
    }

    fn has_room(&self) -> bool {
        let under_way = (self.made - self.free.len()) as u64 * self.sending.block;
        under_way < self.gauge.window()
    }

    /// Starts the check whether a file is unchanged, if all of it was read.
    fn try_close(&mut self, id: u64) {
        let Some(Entity::File(file)) = self.entities.get_mut(&id) else { return };
        if file.exhausted && file.reading == 0 && !std::mem::replace(&mut file.closed, true) {
            self.judge(id);
        }
    }

    /// Gives a disk thread the check of a file that was read.
    fn judge(&mut self, id: u64) {
        let Some(Entity::File(Flying { source, is_doubtful, .. })) = self.entities.get(&id) else { return };
        let (source, is_doubtful, block) = (source.clone(), *is_doubtful, self.sending.block);
        self.pool.put(Job::Verdict { id, source, block, is_doubtful });
    }

    fn on_disk(&mut self, done: Done) -> Result<(), MoverError> {
        match done {
            Done::Read(block) => self.on_read(block)?,
            Done::Verdict { id, verdict: Some(verdict) } => self.closes.push((id, verdict)),
            Done::Verdict { id, verdict: None } => self.judge(id),
            Done::Damaged(text) => return Err(MoverError::Local(text)),
            Done::Wrote { .. } | Done::Closed { .. } | Done::Reserved { .. } => {}
        }
        Ok(())
    }

    fn on_read(&mut self, mut block: Block) -> Result<(), MoverError> {
        self.reading -= 1;
        if let Some(volume) = block.from.take() {
            self.plan.on_read(volume);
        }
        let read = &mut block.read;
        self.status.disk_ns += std::mem::take(&mut read.disk_ns);
        self.status.cpu_ns += std::mem::take(&mut read.cpu_ns);
        let failed = std::mem::take(&mut read.failed);
        self.record_failures(&failed);
        self.held.push(block);
        self.release()
    }

    /// Seals and sends the blocks that were read, as far as the limits allow.
    fn release(&mut self) -> Result<(), MoverError> {
        let has_seal = self.sealing.seal.get().is_some();
        for block in std::mem::take(&mut self.held) {
            let pieces = &block.read.pieces;
            let is_wanted = pieces.iter().any(|piece| self.is_wanted(piece));
            let may_go = !self.answers_promptly || pieces.iter().all(|piece| self.plan.is_answered(piece.id));
            if !is_wanted {
                self.drop_block(block);
            } else if !has_seal || !may_go {
                self.held.push(block);
            } else if block.message.is_none() {
                self.reading += 1;
                self.pool.put(Job::Seal { block, sealing: self.sealing.clone() });
            } else {
                self.send(block)?;
            }
        }
        Ok(())
    }

    /// Whether a piece must be sent: its file is not settled, and the receiver lacks the block.
    fn is_wanted(&self, piece: &Piece) -> bool {
        let Some(Entity::File(file)) = self.entities.get(&piece.id) else { return false };
        let index = piece.offset / self.sending.block;
        let after = file.have.partition_point(|(first, _)| *first <= index);
        let held = after.checked_sub(1).map(|at| file.have[at]);
        held.is_none_or(|(first, count)| index.checked_sub(first).is_none_or(|at| at >= count))
    }

    /// Drops a block if none of its pieces is wanted.
    fn drop_block(&mut self, block: Block) {
        self.have_left(&block);
        self.spare(block.read.pieces.iter().map(|piece| u64::from(piece.len)).sum());
        self.free.push(block.buffer);
    }

    /// Counts the pieces of this block as no longer in work.
    fn have_left(&mut self, block: &Block) {
        for piece in &block.read.pieces {
            if let Some(Entity::File(file)) = self.entities.get_mut(&piece.id) {
                file.reading -= 1;
            }
            self.try_close(piece.id);
        }
    }

    fn send(&mut self, block: Block) -> Result<(), MoverError> {
        self.have_left(&block);
        for piece in &block.read.pieces {
            let bytes = u64::from(piece.len);
            self.status.bytes += bytes;
            if piece.hole {
                // The rate limit counted these bytes before the hole was found.
                self.spare(bytes);
            } else {
                self.summary.sent += bytes;
            }
        }
        let Block { buffer, message, .. } = block;
        let range = message.unwrap_or_default();
        self.in_network += range.len() as u64;
        self.gauge.posted(range.len() as u64);
        self.allowance.take(Instant::now(), range.len() as u64);
        self.wire.send_block(buffer, range)
    }

    /// Records files that could not be read or have changed. Nothing more of them is sent.
    fn record_failures(&mut self, failed: &[(u64, Verdict)]) {
        for (id, verdict) in failed {
            self.plan.abandon(*id);
            if let Some(Entity::File(file)) = self.entities.get_mut(id) {
                file.reading -= 1;
                if !std::mem::replace(&mut file.closed, true) {
                    self.closes.push((*id, verdict.clone()));
                }
            }
        }
    }

    // --- what the receiver says ---

    fn on_control(&mut self, control: Control) -> Result<(), MoverError> {
        match control {
            Control::Opened { name } => self.name = name,
            Control::Answers(answers) => {
                for (id, answer) in answers {
                    self.on_answer(id, answer)?;
                }
            }
            Control::Outcomes(outcomes) => {
                for (id, outcome) in outcomes {
                    self.on_outcome(id, outcome);
                }
            }
            Control::Status(status) => self.other.take(Instant::now(), status),
            _ => return Err(MoverError::Refused("the receiver sent what only senders say".to_owned())),
        }
        Ok(())
    }

    fn on_answer(&mut self, id: u64, answer: Answer) -> Result<(), MoverError> {
        let last = match self.plan.answer(id, &answer) {
            Ok(last) => last,
            // The file failed before this answer came.
            Err(_) if id < self.next_id => return Ok(()),
            Err(unasked) => return Err(MoverError::Refused(unasked.to_string())),
        };
        let block = self.sending.block;
        let Some(Entity::File(file)) = self.entities.get(&id) else { return Ok(()) };
        let Source { size, share, .. } = *file.source;
        let path = Named(names::called(self.name.as_deref(), &file.source.path));
        let bytes = share.bytes(size, block);
        match answer {
            Answer::Send => {}
            Answer::Have(_) | Answer::Perhaps(_) => {
                let is_doubtful = matches!(answer, Answer::Perhaps(_));
                let (Answer::Have(ranges) | Answer::Perhaps(ranges)) = answer else { return Ok(()) };
                // The ranges are kept until the file is settled.
                if ranges.len() as u64 > size.div_ceil(block) {
                    let text = "the receiver has more ranges of a file than the file has blocks";
                    return Err(MoverError::Refused(text.to_owned()));
                }
                let blocks: u64 = ranges.iter().map(|(_, count)| *count).fold(0, u64::saturating_add);
                let have = blocks.saturating_mul(block).min(bytes);
                self.bytes_done += have;
                (self.watch)(Notice::Resumed { path, have });
                if let Some(Entity::File(file)) = self.entities.get_mut(&id) {
                    file.have = ranges;
                    if is_doubtful && !std::mem::replace(&mut file.is_doubtful, true) && file.closed {
                        // The file was checked before this was known.
                        self.judge(id);
                    }
                }
            }
            Answer::Same | Answer::Newer => {
                self.summary.kept += 1;
                self.bytes_done += bytes;
                let why = if answer == Answer::Same { "same" } else { "newer" };
                (self.watch)(Notice::Kept { path, bytes, why });
            }
            Answer::Would(bytes) => {
                self.summary.files += 1;
                self.summary.bytes += bytes;
                (self.watch)(Notice::Would { path, bytes, kind: What::File });
            }
            Answer::Refused(text) => self.fail(path, &descriptors::of_side(text, "receiving")),
        }
        if last {
            self.forget(id);
        }
        Ok(())
    }

    fn fail(&mut self, path: Named, text: &str) {
        self.summary.failed += 1;
        if !text.is_empty() {
            (self.watch)(Notice::Failed { path, text: said(text) });
        }
    }

    fn forget(&mut self, id: u64) {
        if let Some(Entity::File(file)) = self.entities.remove(&id) {
            self.files += 1;
            self.lists[file.list].large -= usize::from(file.source.size > self.sending.block);
        }
    }

    fn on_outcome(&mut self, id: u64, outcome: Outcome) {
        if !self.plan.settle(id) {
            return;
        }
        let Some(entity) = self.entities.get(&id) else { return };
        let (path, what) = match entity {
            Entity::File(file) => (names::called(self.name.as_deref(), &file.source.path), None),
            Entity::Other { path, what } => (path.clone(), *what),
        };
        let path = Named(path);
        match (entity, outcome) {
            (Entity::File(file), Outcome::Done(digest)) => {
                let Source { size: bytes, share, .. } = *file.source;
                self.summary.bytes += share.bytes(bytes, self.sending.block);
                // Without a digest, other processes still have to send their shares.
                if let Some(digest) = &digest {
                    self.summary.files += 1;
                    (self.watch)(Notice::File { path, bytes, blake3: digest::hex(digest) });
                }
            }
            (_, Outcome::Failed(text)) => self.fail(path, &descriptors::of_side(text, "receiving")),
            (Entity::Other { .. }, Outcome::Done(_)) => {
                if let Some(what) = what {
                    (self.watch)(what.made(path, self.sending.rules.dry_run));
                }
            }
            (_, Outcome::Newer) => (self.watch)(Notice::Kept { path, bytes: 0, why: "newer" }),
            (_, Outcome::Kept) => {}
        }
        self.forget(id);
    }

    // --- how it goes ---

    /// Charges the time until now to the states that the stages were in, and reads their new states.
    fn measure(&mut self) {
        let now = Instant::now();
        let is_busy = self.reading > self.pool.threads();
        let is_full = self.in_network + self.sending.block >= self.gauge.window();
        let is_limited = self.may_read_at > now || self.allowance.is_used_up(now);
        self.spans.change(now, [is_busy, is_full, is_limited]);
        self.status.busy_ns = self.spans.ns[0];
        self.gauge.look();
    }

    fn tell(&mut self, last: bool) {
        let (then, reading, [_, network_full, limited]) = self.told;
        let interval = then.elapsed();
        if !last && interval < BEAT {
            return;
        }
        let interval = interval.as_nanos() as u64;
        let stages = Stages {
            interval,
            reading: since(&self.status, &reading),
            writing: self.other.work(interval),
            network_full: self.spans.ns[1] - network_full,
            limited: self.spans.ns[2] - limited,
        };
        self.told = (Instant::now(), self.status, self.spans.ns);
        let moved = if last { self.status.bytes } else { self.other.now.bytes.min(self.status.bytes) };
        (self.watch)(Notice::Progress(Progress {
            // A block sent before the answer "have" counts once.
            bytes: (self.bytes_done + moved).min(if self.walked { self.bytes_total } else { u64::MAX }),
            bytes_total: self.walked.then_some(self.bytes_total),
            files: self.files,
            files_total: self.walked.then_some(self.files_total),
            bottleneck: if last { Bottleneck::None } else { stages.bottleneck() },
            connected: self.wire.is_connected(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use isthmus_io::Settings;

    use super::*;
    use crate::channel::Channel;
    use crate::confine;
    use crate::port::Port;
    use crate::walk::Root;
    use crate::wire::Choice;

    #[test]
    fn what_no_honest_receiver_says_ends_the_session() {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::write(place.path().join("file"), "f").expect("written");
        let dir = Arc::new(confine::folder(place.path()).expect("opened"));
        let root = Root { dir, at: b"file".to_vec(), name: Some(b"file".to_vec()) };
        let settings = Settings { interface: "lo".to_owned(), ..Settings::default() };
        let port = Arc::new(Port::open(&settings).expect("opened"));
        let peer = port.peer(&port.address()).expect("itself");
        let mut wire = Wire::new(port, peer, None, 1, Channel::plain()).expect("made");
        let (block, disk) = (64 << 10, Disk::default());
        let sending = Sending {
            block,
            memory: 64 << 20,
            threads: 1,
            disk,
            rate: 0,
            rate_limit: 0,
            rules: Rules::default(),
        };
        let (roots, filter) = (Roots::new([Ok(root)].into_iter()), Filter::new(&Choice::default(), block));
        let mut quiet = |_: Notice| ();
        let (roots, filter) = (roots.expect("one"), filter.expect("all files"));
        let side = SendingSide::start(sending, roots, filter, &mut wire, &mut quiet);
        let mut side = side.expect("started");
        let until = Instant::now() + Duration::from_secs(20);
        while side.entities.is_empty() {
            assert!(Instant::now() < until, "the file is not found");
            side.fill().expect("it finds the file");
        }
        for of_senders in [Control::Entries(Vec::new()), Control::Finished] {
            assert!(side.on_control(of_senders).is_err());
        }
        assert!(side.on_answer(1, Answer::Send).is_err(), "there is no such file");
        // The sender keeps the ranges.
        assert!(side.on_answer(0, Answer::Have(vec![(0, 0); 2])).is_err(), "of a file of one block");
        side.on_answer(0, Answer::Have(vec![(0, 1)])).expect("that may be");
    }
}
