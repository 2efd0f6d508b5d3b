//! The lanes of one process over one fabric: their packets, credit, and bells.
//!
//! All lanes share one endpoint and its posted buffers. Each lane brings a fixed number of
//! them along, and its neighbour may have no more packets under way than that (`limit`), so
//! that no lane takes another's. What came waits in its buffer until the lane reads it.
//!
//! Who is about to sleep says Doze on the lane's connection, with the number of packets that
//! came. The neighbour answers Ring when it has sent more, at once or with its next packet.
//! Whoever was rung for packets that are still on their way looks after them often.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use isthmus_wire::frame::{Doze, Frame, Packet, PacketKind, Ring};
use slab::Slab;

use crate::FabricError;
use crate::net::{BufferId, Done, Net, Posted};
use crate::pipe::{CREDITS, Parcel, Pipe};

/// Longest packet. Bytes.
pub(crate) const PACKET_MAX: usize = 64 << 10;
/// Most payload of a packet. Bytes.
const PAYLOAD_MAX: usize = PACKET_MAX - Packet::LEN;
/// Receive buffers per lane beyond those, for packets that do not count: a probe or its
/// answer, and limits, which are told again only after half the credits were used.
const SPARE: usize = 4;
const RECEIVES: usize = CREDITS as usize + SPARE;
/// Packets of one lane that the provider has not taken yet.
const SENDS: usize = 16;
/// Most lanes of a fabric, whatever its provider has room for.
const LANES_MAX: usize = 256;
/// Rounds of completions in one turn.
const ROUNDS: usize = 4;
/// Shortest and longest pause between looks after what is under way.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// A lane that something has become of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// What the lane was named by [`Hub::set_key`].
    pub key: u64,
    /// It can be read, or has ended.
    pub readable: bool,
    /// It can be written to after it could not.
    pub writable: bool,
}

/// What reading or writing came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piped {
    /// So many bytes; of reading, 0 is the end.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    /// The lane is broken.
    Failed(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    net: Net,
    provider: String,
    pipes: Slab<Pipe>,
    /// Addresses by name, and the lanes that use them.
    addresses: HashMap<Vec<u8>, (u64, usize)>,
    /// Receive buffers: those posted, and those that are not.
    posted: usize,
    spare: Vec<BufferId>,
    /// Send buffers: those that are free, and how many there are; whose the others are.
    free: Vec<BufferId>,
    sends: usize,
    senders: HashMap<BufferId, u64>,
    done: Vec<(BufferId, Done)>,
    scratch: Vec<u8>,
    /// Lanes of which something waits to be read, to which something is owed, and that want to
    /// write.
    readers: Vec<usize>,
    todo: Vec<usize>,
    writers: Vec<usize>,
    /// News of lanes outside of a turn.
    late: Vec<News>,
    pause: Duration,
    /// Why no lane can use it any more.
    broken: Option<String>,
}

impl Hub {
    /// Opens an endpoint of `provider`, at the address `node` where that means something to it.
    ///
    /// # Errors
    /// [`FabricError`], whose text says what to do.
    pub(crate) fn open(provider: &str, node: IpAddr) -> Result<Self, FabricError> {
        let net = Net::open(provider, node)?;
        Ok(Self {
            provider: net.provider(),
            net,
            pipes: Slab::new(),
            addresses: HashMap::new(),
            posted: 0,
            spare: Vec::new(),
            free: Vec::new(),
            sends: 0,
            senders: HashMap::new(),
            done: Vec::new(),
            scratch: Vec::with_capacity(PACKET_MAX),
            readers: Vec::new(),
            todo: Vec::new(),
            writers: Vec::new(),
            late: Vec::new(),
            pause: PAUSE,
            broken: None,
        })
    }

    /// The provider's full name, such as "tcp;ofi_rxm".
    pub(crate) fn provider(&self) -> &str {
        &self.provider
    }

    /// Why it failed as a whole, if it did: lanes that it carried are broken, and there are no
    /// new ones.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// The name of the endpoint.
    pub(crate) fn name(&self) -> &[u8] {
        self.net.name()
    }

    /// Lanes that there are.
    pub(crate) fn lanes(&self) -> usize {
        self.pipes.len()
    }

    fn lanes_max(&self) -> usize {
        LANES_MAX.min(self.net.receives_max() / RECEIVES)
    }

    /// A new lane, and what the neighbour is to name it by.
    ///
    /// # Errors
    /// [`FabricError::Full`], or that the provider takes no buffers.
    pub(crate) fn add(&mut self) -> Result<u64, FabricError> {
        if self.broken.is_some() || self.pipes.len() >= self.lanes_max() {
            return Err(FabricError::Full);
        }
        let random = getrandom::u32().map_err(|_| FabricError::Full)?;
        let entry = self.pipes.vacant_entry();
        let token = u64::from(random) << 32 | entry.key() as u64;
        entry.insert(Pipe::new(token));
        match self.stock() {
            Ok(()) => Ok(token),
            Err(error) => {
                self.remove(token);
                Err(error)
            }
        }
    }

    /// Posts as many receive buffers as the lanes need.
    fn stock(&mut self) -> Result<(), FabricError> {
        while self.posted < self.pipes.len() * RECEIVES {
            let id = match self.spare.pop() {
                Some(id) => id,
                None => self.net.add_buffer(PACKET_MAX, false)?,
            };
            match self.net.receive(id) {
                Posted::Yes => self.posted += 1,
                Posted::Again => {
                    self.spare.push(id);
                    return Err(FabricError::Full);
                }
                Posted::Failed(code) => {
                    self.spare.push(id);
                    let why = format!("error {code}");
                    return Err(FabricError::Call { what: "fi_recv", why });
                }
            }
        }
        Ok(())
    }

    /// Says whose endpoint a lane leads to.
    ///
    /// # Errors
    /// The provider does not take the name.
    pub(crate) fn connect(&mut self, token: u64, name: &[u8]) -> Result<(), FabricError> {
        let to = match self.addresses.get_mut(name) {
            Some((to, users)) => {
                *users += 1;
                *to
            }
            None => {
                let to = self.net.insert(name)?;
                self.addresses.insert(name.to_vec(), (to, 1));
                to
            }
        };
        if let Some(pipe) = self.pipe(token) {
            pipe.to = Some(to);
            pipe.name = name.to_vec();
        }
        Ok(())
    }

    /// Tries a lane to a neighbour that names it `theirs`: [`Hub::is_proved`] tells the outcome.
    pub(crate) fn probe(&mut self, token: u64, theirs: u64) {
        if let Some(pipe) = self.pipe(token) {
            pipe.theirs = theirs;
            pipe.owed.push(PacketKind::Probe);
            self.todo.push(token as u32 as usize);
        }
    }

    /// Whether packets have crossed both ways.
    pub(crate) fn is_proved(&self, token: u64) -> bool {
        self.pipes.get(token as u32 as usize).is_some_and(|pipe| pipe.token == token && pipe.proved)
    }

    /// The number that news of this lane carry.
    pub(crate) fn set_key(&mut self, token: u64, key: u64) {
        if let Some(pipe) = self.pipe(token) {
            pipe.key = key;
        }
    }

    /// From now on the lane's bytes go here; `connection` is what is left of the other way.
    pub(crate) fn begin(&mut self, token: u64, connection: OwnedFd) {
        if let Some(pipe) = self.pipe(token) {
            pipe.bell = Some(connection);
        }
    }

    /// Forgets a lane; what is still under way for it is dropped.
    pub(crate) fn remove(&mut self, token: u64) {
        let index = token as u32 as usize;
        if self.pipe(token).is_none() {
            return;
        }
        let pipe = self.pipes.remove(index);
        self.readers.retain(|other| *other != index);
        self.todo.retain(|other| *other != index);
        self.writers.retain(|other| *other != index);
        for parcel in pipe.inbox.into_iter().flatten() {
            self.give_back(parcel.buffer);
        }
        let last = self.addresses.get_mut(&pipe.name).is_some_and(|(_, users)| {
            *users -= 1;
            *users == 0
        });
        // While something is under way to it, the provider needs the address.
        if last
            && pipe.sending == 0
            && let Some((to, _)) = self.addresses.remove(&pipe.name)
        {
            self.net.remove(to);
        }
    }

    fn pipe(&mut self, token: u64) -> Option<&mut Pipe> {
        self.pipes.get_mut(token as u32 as usize).filter(|pipe| pipe.token == token)
    }

    /// Copies what came to `pieces`.
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(crate) unsafe fn read(&mut self, token: u64, pieces: &[libc::iovec]) -> Piped {
        let mut total = 0;
        for piece in pieces {
            let mut filled = 0;
            while filled < piece.iov_len {
                let Some(parcel) = self.pipe(token).and_then(Pipe::front) else {
                    return self.end_of_read(token, total);
                };
                let n = (parcel.to - parcel.from).min(piece.iov_len - filled);
                let (buffer, from) = (parcel.buffer, parcel.from);
                parcel.from += n;
                let over = parcel.from == parcel.to;
                let bytes = &self.net.bytes(buffer)[from..from + n];
                let to = piece.iov_base.cast::<u8>().wrapping_add(filled);
                // SAFETY: the caller vouches for the piece, of which `filled + n` bytes exist.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, n) };
                filled += n;
                total += n;
                if over {
                    self.parcel_is_read(token, buffer);
                }
            }
        }
        Piped::Bytes(total)
    }

    fn end_of_read(&mut self, token: u64, total: usize) -> Piped {
        let Some(pipe) = self.pipe(token) else { return Piped::Failed("the lane is gone".to_owned()) };
        if total > 0 {
            return Piped::Bytes(total);
        }
        match &pipe.failed {
            Some(why) => Piped::Failed(why.clone()),
            None if pipe.end == Some(pipe.read) || pipe.parted && pipe.finished => Piped::Bytes(0),
            None if pipe.parted => Piped::Failed("the neighbour is gone".to_owned()),
            None => Piped::Blocked,
        }
    }

    fn parcel_is_read(&mut self, token: u64, buffer: BufferId) {
        let Some(pipe) = self.pipe(token) else { return };
        pipe.inbox.pop_front();
        pipe.read += 1;
        self.give_back(buffer);
        let Some(pipe) = self.pipe(token) else { return };
        if pipe.limit_to_tell() - pipe.told >= CREDITS / 2 && !pipe.owed.contains(&PacketKind::Limit) {
            pipe.owed.push(PacketKind::Limit);
            self.todo.push(token as u32 as usize);
        }
    }

    /// A receive buffer was used up.
    fn give_back(&mut self, id: BufferId) {
        self.spare.push(id);
        // Where the provider has no room now, the next turn tries again.
        let _ = self.stock();
    }

    /// Copies what `pieces` hold to packets, as far as there is credit.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call.
    pub(crate) unsafe fn write(&mut self, token: u64, pieces: &[libc::iovec]) -> Piped {
        let mut left: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let (mut total, mut at, mut offset) = (0, 0, 0);
        while left > 0 {
            let len = left.min(PAYLOAD_MAX);
            let Some(pipe) = self.pipe(token) else { return Piped::Failed("the lane is gone".to_owned()) };
            if let Some(why) = &pipe.failed {
                return Piped::Failed(why.clone());
            }
            if pipe.next >= pipe.limit {
                break;
            }
            let head = Packet {
                kind: PacketKind::Data as u8,
                lane: pipe.theirs,
                seq: pipe.next,
                limit: pipe.limit_to_tell(),
                payload: len as u32,
            };
            let posted = self.send_packet(token, head, |mut to| {
                while !to.is_empty() {
                    let piece = &pieces[at];
                    let n = to.len().min(piece.iov_len - offset);
                    let from = piece.iov_base.cast::<u8>().cast_const().wrapping_add(offset);
                    // SAFETY: the caller vouches for the piece, of which `offset + n` bytes
                    // exist; `to` has room for `n`.
                    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), n) };
                    to = &mut to[n..];
                    offset += n;
                    if offset == piece.iov_len {
                        (at, offset) = (at + 1, 0);
                    }
                }
            });
            if !posted {
                break;
            }
            total += len;
            left -= len;
        }
        if left > 0 {
            self.await_room(token);
        }
        match self.pipe(token).and_then(|pipe| pipe.failed.clone()) {
            Some(why) => Piped::Failed(why),
            None if total == 0 && left > 0 => Piped::Blocked,
            None => Piped::Bytes(total),
        }
    }

    fn await_room(&mut self, token: u64) {
        let Some(pipe) = self.pipe(token) else { return };
        if !std::mem::replace(&mut pipe.wants_to_write, true) {
            self.writers.push(token as u32 as usize);
        }
    }

    /// Ends our bytes on a lane, after those that were written.
    pub(crate) fn finish(&mut self, token: u64) {
        let Some(pipe) = self.pipe(token) else { return };
        if !std::mem::replace(&mut pipe.finished, true) {
            pipe.owed.push(PacketKind::End);
            self.todo.push(token as u32 as usize);
            self.pay(token as u32 as usize);
        }
    }

    /// Sends one packet, whose payload `fill` writes; false where that has to wait or failed.
    fn send_packet(&mut self, token: u64, head: Packet, fill: impl FnOnce(&mut [u8])) -> bool {
        let index = token as u32 as usize;
        let Some(Pipe { to: Some(to), sending, .. }) = self.pipes.get(index) else { return false };
        let (to, len) = (*to, Packet::LEN + head.payload as usize);
        self.scratch.clear();
        Frame::from(head).encode(&mut self.scratch);
        let posted = if len <= self.net.inject_max() {
            self.scratch.resize(len, 0);
            fill(&mut self.scratch[Packet::LEN..]);
            self.net.inject(&self.scratch, to)
        } else {
            if *sending >= SENDS {
                return false;
            }
            let Some(id) = self.send_buffer() else { return false };
            let bytes = self.net.bytes_mut(id);
            bytes[..Packet::LEN].copy_from_slice(&self.scratch);
            fill(&mut bytes[Packet::LEN..len]);
            let posted = self.net.send(id, len, to);
            if posted == Posted::Yes {
                self.senders.insert(id, token);
                self.pipes[index].sending += 1;
            } else {
                self.free.push(id);
            }
            posted
        };
        match posted {
            Posted::Yes => self.note_sent(index, &head),
            Posted::Again => {}
            Posted::Failed(code) => self.fail(index, format!("{}: error {code} of libfabric", self.provider)),
        }
        posted == Posted::Yes
    }

    fn send_buffer(&mut self) -> Option<BufferId> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        // Buffers of neighbours that are gone may never come back.
        if self.sends >= self.lanes_max() * SENDS {
            return None;
        }
        let id = self.net.add_buffer(PACKET_MAX, true).ok()?;
        self.sends += 1;
        Some(id)
    }

    fn note_sent(&mut self, index: usize, head: &Packet) {
        let pipe = &mut self.pipes[index];
        pipe.sent += 1;
        pipe.told = pipe.told.max(head.limit);
        if head.kind == PacketKind::Data as u8 || head.kind == PacketKind::End as u8 {
            pipe.next += 1;
        }
        if std::mem::take(&mut pipe.asleep) {
            pipe.say(Ring { sent: pipe.sent });
        }
    }

    fn fail(&mut self, index: usize, why: String) {
        let Some(pipe) = self.pipes.get_mut(index) else { return };
        pipe.failed.get_or_insert(why);
        self.late.push(News { key: pipe.key, readable: true, writable: false });
    }

    /// Sends what is owed on a lane; true where something is left.
    fn pay(&mut self, index: usize) -> bool {
        while let Some(pipe) = self.pipes.get(index) {
            let Some(&kind) = pipe.owed.first() else { return false };
            let numbered = kind == PacketKind::End;
            if pipe.failed.is_some() || numbered && pipe.next >= pipe.limit {
                return pipe.failed.is_none();
            }
            // What proves a way is as long as what is to go there.
            let payload = if matches!(kind, PacketKind::Probe | PacketKind::Proof) { PAYLOAD_MAX } else { 0 };
            let (token, theirs) = (pipe.token, pipe.theirs);
            let head = Packet {
                kind: kind as u8,
                lane: theirs,
                seq: pipe.next,
                limit: pipe.limit_to_tell(),
                payload: payload as u32,
            };
            let told = kind == PacketKind::Limit && pipe.told >= head.limit;
            let name_lane = |to: &mut [u8]| {
                if let Some(to) = to.first_chunk_mut() {
                    *to = token.to_le_bytes();
                }
            };
            if !told && !self.send_packet(token, head, name_lane) {
                return true;
            }
            if let Some(pipe) = self.pipes.get_mut(index) {
                pipe.owed.remove(0);
            }
        }
        false
    }

    /// Lets the fabric work, and adds to `news` the lanes that this concerns.
    pub(crate) fn poll(&mut self, news: &mut Vec<News>) {
        if self.pipes.is_empty() && self.senders.is_empty() || self.broken.is_some() {
            return;
        }
        for _ in 0..ROUNDS {
            let mut done = std::mem::take(&mut self.done);
            if let Err(error) = self.net.poll(&mut done) {
                self.give_up(&error);
            }
            let any = !done.is_empty();
            for (id, done) in done.drain(..) {
                self.on_done(id, done, news);
            }
            self.done = done;
            if !any {
                break;
            }
            self.pause = PAUSE;
        }
        if !self.todo.is_empty() {
            self.pay_all();
        }
        if !self.readers.is_empty() {
            self.wake_readers(news);
        }
        if !self.writers.is_empty() {
            self.wake_writers(news);
        }
        if self.posted < self.pipes.len() * RECEIVES {
            let _ = self.stock();
        }
        news.append(&mut self.late);
    }

    /// The endpoint is of no use any more, nor are its lanes.
    pub(crate) fn give_up(&mut self, error: &FabricError) {
        let why = format!("{}: {error}", self.provider);
        for index in 0..self.pipes.capacity() {
            self.fail(index, why.clone());
        }
        self.broken = Some(why);
    }

    fn pay_all(&mut self) {
        let mut todo = std::mem::take(&mut self.todo);
        todo.sort_unstable();
        todo.dedup();
        todo.retain(|index| self.pay(*index));
        self.todo.append(&mut todo);
    }

    fn wake_readers(&mut self, news: &mut Vec<News>) {
        self.readers.sort_unstable();
        self.readers.dedup();
        self.readers.retain(|index| {
            let Some(pipe) = self.pipes.get(*index).filter(|pipe| !pipe.inbox.is_empty()) else {
                return false;
            };
            if pipe.bell.is_some() {
                news.push(News { key: pipe.key, readable: true, writable: false });
            }
            true
        });
    }

    fn wake_writers(&mut self, news: &mut Vec<News>) {
        let mut writers = std::mem::take(&mut self.writers);
        writers.retain(|index| {
            let Some(pipe) = self.pipes.get_mut(*index) else { return false };
            let ready = pipe.failed.is_some() || pipe.next < pipe.limit;
            if ready {
                pipe.wants_to_write = false;
                news.push(News { key: pipe.key, readable: false, writable: true });
            }
            !ready
        });
        self.writers.append(&mut writers);
    }

    fn on_done(&mut self, id: BufferId, done: Done, news: &mut Vec<News>) {
        if let Some(token) = self.senders.remove(&id) {
            self.free.push(id);
            if let Some(pipe) = self.pipe(token) {
                pipe.sending -= 1;
                if let Done::Failed(code) = done {
                    let why = format!("{}: error {code} of libfabric", self.provider);
                    self.fail(token as u32 as usize, why);
                }
            }
            return;
        }
        self.posted -= 1;
        if let Done::Received(len) = done
            && self.on_packet(id, len, news)
        {
            return;
        }
        self.give_back(id);
    }

    /// A packet came; true where its buffer stays with its lane.
    fn on_packet(&mut self, id: BufferId, len: usize, news: &mut Vec<News>) -> bool {
        let bytes = &self.net.bytes(id)[..len.min(PACKET_MAX)];
        let Ok(Some(Frame::Packet(head))) = Frame::decode(bytes) else { return false };
        let payload = &bytes[Packet::LEN..];
        let (fits, name) = (payload.len() == head.payload as usize, payload.first_chunk().copied());
        let index = head.lane as u32 as usize;
        // Of lanes that have ended there may still come some.
        let Some(pipe) = self.pipes.get_mut(index).filter(|pipe| pipe.token == head.lane) else {
            return false;
        };
        pipe.received += 1;
        pipe.limit = pipe.limit.max(head.limit);
        let Some(kind) = PacketKind::from_code(head.kind).filter(|_| fits) else {
            self.fail(index, "a packet that makes no sense".to_owned());
            return false;
        };
        match kind {
            PacketKind::Data => {
                let parcel = Parcel { buffer: id, from: Packet::LEN, to: len };
                let fits = head.payload > 0 && pipe.put(head.seq, parcel);
                if fits && pipe.is_readable() {
                    self.readers.push(index);
                } else if !fits {
                    self.fail(index, "a packet out of turn".to_owned());
                }
                fits
            }
            PacketKind::End => {
                pipe.end = Some(head.seq);
                self.readers.push(index);
                false
            }
            PacketKind::Limit => false,
            PacketKind::Probe => {
                pipe.theirs = name.map_or(0, u64::from_le_bytes);
                if pipe.owed.is_empty() {
                    pipe.owed.push(PacketKind::Proof);
                    self.todo.push(index);
                }
                false
            }
            PacketKind::Proof => {
                pipe.proved = true;
                news.push(News { key: pipe.key, readable: true, writable: false });
                false
            }
        }
    }

    /// Somebody is about to sleep: what comes from now on is to be told by the lanes'
    /// connections.
    pub(crate) fn doze(&mut self) {
        for (_, pipe) in &mut self.pipes {
            if pipe.bell.is_some() && !pipe.dozing && !pipe.parted {
                pipe.dozing = pipe.say(Doze { received: pipe.received });
            }
        }
    }

    /// How long may pass before [`Hub::poll`] is called again; `None`: until a connection is
    /// readable.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        let busy = |pipe: &Pipe| {
            pipe.received < pipe.rung
                || pipe.sending > 0
                || pipe.wants_to_write && pipe.next < pipe.limit
                || pipe.bell.is_some() && !pipe.dozing && !pipe.parted
        };
        let restless = !self.late.is_empty()
            || !self.readers.is_empty()
            || !self.todo.is_empty()
            || self.pipes.iter().any(|(_, pipe)| busy(pipe) || pipe.bell.is_none());
        if !restless || self.broken.is_some() {
            return None;
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Some(pause)
    }

    /// A lane's connection is readable: takes what the neighbour says there. False where nothing
    /// can come any more.
    pub(crate) fn stir(&mut self, token: u64) -> bool {
        let index = token as u32 as usize;
        let Some(pipe) = self.pipe(token) else { return false };
        let told = pipe.listen();
        while let Ok(Some(frame)) = Frame::decode(&pipe.heard) {
            pipe.heard.drain(..frame.header_len());
            match frame {
                Frame::Doze(doze) if pipe.sent > doze.received => {
                    pipe.say(Ring { sent: pipe.sent });
                }
                Frame::Doze(_) => pipe.asleep = true,
                Frame::Ring(ring) => {
                    pipe.rung = ring.sent;
                    pipe.dozing = false;
                }
                _ => {
                    self.fail(index, "a frame out of place on a lane's connection".to_owned());
                    return false;
                }
            }
        }
        self.pause = PAUSE;
        if told.is_err() {
            self.part(index);
        }
        told.is_ok()
    }

    /// The connection has ended: what came before is read first.
    fn part(&mut self, index: usize) {
        let mut news = Vec::new();
        self.poll(&mut news);
        self.late.append(&mut news);
        if let Some(pipe) = self.pipes.get_mut(index) {
            pipe.parted = true;
            self.late.push(News { key: pipe.key, readable: true, writable: false });
        }
    }
}
