//! The shell of one endpoint's engine: its sockets, and the loops that move bytes
//! between them and the engine. Every loop has a bound.
//!
//! Whoever turns the shell owns it for that time; the engine is locked only between
//! system calls, never across them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isthmus_proto::{Action, Batch, Engine, LaneId, LaneLoss, Micros, PeerFault};
use isthmus_wire::Frame;
use parking_lot::{Mutex, MutexGuard};
use socket2::Socket;

use crate::congestion::{self, Judge, Trace};
use crate::log::{debug_log, info_log, warn_log};
use crate::memory::ProcessMemory;
use crate::poller::{Events, Poller};
use crate::tcp::{self, Transfer};

/// The engine and the memory that it refers to.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) memory: ProcessMemory,
    epoch: Instant,
}

impl Core {
    pub(crate) fn new(engine: Engine, memory: ProcessMemory) -> Self {
        Self { engine, memory, epoch: Instant::now() }
    }

    pub(crate) fn now(&self) -> Micros {
        self.epoch.elapsed().as_micros() as Micros
    }
}

/// Room for bytes that were read and not yet understood, per lane. Bytes.
const STAGING: usize = 64 << 10;
/// Most of the staging room that a read offers while payload goes straight to its place:
/// what lands there is copied.
const STAGING_BEHIND_PAYLOAD: usize = 4 << 10;
/// Payloads up to this are awaited whole in the staging room. Bytes.
const WHOLE_MAX: usize = 16 << 10;
/// Reads from one lane before others get their turn.
const READS_PER_TURN: usize = 8;
/// Batches written in one turn.
const WRITES_PER_TURN: usize = 64;
/// Lanes accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Lanes that may be connected without having said who they are.
const UNGREETED_MAX: usize = 1024;
/// How long a lane may take to be connected, to say who it is, or to write its last.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// How long a lane that was closed waits for its peer to close it too.
const PARTING_TIME: Duration = Duration::from_secs(1);
/// Up to so many busy lanes are read without asking first which are readable.
const DIRECT_LANES: usize = 2;
/// Turns between asking for events while lanes are read directly.
const DIRECT_TURNS: u32 = 16;
/// Direct reads in vain after which a lane counts as idle.
const IDLE_READS: u32 = 256;

const LISTENER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    /// Accepted; its first frame is to come.
    Ungreeted,
    Open,
    /// To be closed when all is written.
    Flushing,
    /// We have closed our side; the peer is to close its own.
    Parting,
}

/// One TCP stream.
#[derive(Debug)]
struct Lane {
    socket: Socket,
    phase: Phase,
    since: Instant,
    staging: Vec<u8>,
    /// Bytes of `staging` that are understood.
    read_from: usize,
    /// Bytes of `staging` that are filled.
    read_to: usize,
    batch: Batch,
    pieces: Vec<libc::iovec>,
    /// Pieces written whole.
    written: usize,
    waits_to_write: bool,
    streaming: bool,
    /// Direct reads in vain since something came.
    vain_reads: u32,
    /// What was seen of it, and when last; `None` where that changes nothing: the user chose
    /// the congestion control, the peer is on this host, or it runs what lossy paths want.
    trace: Option<Trace>,
    looked: Instant,
}

// SAFETY: `pieces` point into `batch` and into memory lent for any thread to use.
unsafe impl Send for Lane {}

impl Lane {
    fn new(socket: Socket, phase: Phase) -> Self {
        Self {
            socket,
            phase,
            since: Instant::now(),
            staging: Vec::new(),
            read_from: 0,
            read_to: 0,
            batch: Batch::default(),
            pieces: Vec::new(),
            written: 0,
            waits_to_write: phase == Phase::Connecting,
            streaming: false,
            vain_reads: IDLE_READS,
            trace: Some(Trace::default()),
            looked: Instant::now(),
        }
    }

    fn go_lossy(&mut self, index: usize, why: &str) {
        self.trace = None;
        tcp::set_congestion(&self.socket, congestion::LOSSY);
        debug_log!("lane {index}: {why}; {} from now on", congestion::LOSSY);
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
    }

    fn has_unwritten(&self) -> bool {
        self.written < self.pieces.len()
    }

    /// Makes room at the end of the staging buffer.
    fn compact(&mut self) {
        if self.read_from == self.read_to {
            (self.read_from, self.read_to) = (0, 0);
        } else if self.read_from > 0 {
            self.staging.copy_within(self.read_from..self.read_to, 0);
            self.read_to -= self.read_from;
            self.read_from = 0;
        }
    }

    /// Notes that `n` more bytes are written.
    fn advance(&mut self, mut n: usize) {
        while let Some(piece) = self.pieces.get_mut(self.written) {
            if n < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(n);
                piece.iov_len -= n;
                return;
            }
            n -= piece.iov_len;
            self.written += 1;
        }
    }
}

/// Settings that the shell itself needs.
#[derive(Clone, Debug)]
pub(crate) struct ShellConfig {
    pub(crate) congestion: String,
    /// Address to connect from, where the user named an interface.
    pub(crate) from: Option<IpAddr>,
}

/// The sockets of one endpoint.
#[derive(Debug)]
pub(crate) struct Shell {
    config: ShellConfig,
    listener: Option<Socket>,
    lanes: Vec<Option<Lane>>,
    /// Lanes that exist, in any phase.
    count: usize,
    open: usize,
    ungreeted: usize,
    poller: Poller,
    events: Events,
    scratch: Vec<libc::iovec>,
    turns: u32,
    swept: Instant,
    /// What is known of the path to each host.
    paths: HashMap<IpAddr, Judge>,
    /// Lanes that are read directly.
    busy: Vec<usize>,
    /// Whether lanes may be read directly at all: with a single peer only. What one peer
    /// sent before it told another, and that one us, must not be read after the latter.
    direct: bool,
    /// `direct` is to be found out anew.
    changed: bool,
}

// SAFETY: `scratch` is empty between calls.
unsafe impl Send for Shell {}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turned {
    pub(crate) read: bool,
}

impl Shell {
    pub(crate) fn new(config: ShellConfig, listener: Socket) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, false)?;
        Ok(Self {
            config,
            listener: Some(listener),
            lanes: Vec::new(),
            count: 0,
            open: 0,
            ungreeted: 0,
            poller,
            events: Events::with_capacity(64),
            scratch: Vec::new(),
            turns: 0,
            swept: Instant::now(),
            paths: HashMap::new(),
            busy: Vec::with_capacity(DIRECT_LANES),
            direct: false,
            changed: false,
        })
    }

    /// The descriptor that is readable when there is something to do.
    pub(crate) fn poller(&self) -> &Poller {
        &self.poller
    }

    /// Reads what has come, writes what is to go, and does what is due.
    pub(crate) fn turn(&mut self, core: &Mutex<Core>) -> Turned {
        let read = self.take_in(core);
        let mut guard = core.lock();
        if guard.engine.poll_timeout().is_some() {
            let now = guard.now();
            let Core { engine, memory, .. } = &mut *guard;
            engine.handle_timeout(now, memory);
        }
        if !read && guard.engine.owes_acks() {
            guard.engine.flush_acks();
        }
        let busy = guard.engine.has_output();
        drop(guard);
        if busy {
            self.put_out(core);
        }
        self.sweep(core);
        Turned { read }
    }

    fn take_in(&mut self, core: &Mutex<Core>) -> bool {
        self.turns = self.turns.wrapping_add(1);
        if self.changed {
            self.changed = false;
            self.direct = self.open == self.count && core.lock().engine.talks_to_one();
        }
        if self.direct && !self.busy.is_empty() && !self.turns.is_multiple_of(DIRECT_TURNS) {
            return self.read_busy(core);
        }
        if let Err(error) = self.poller.wait(&mut self.events, Some(Duration::ZERO)) {
            warn_log!("cannot ask for events: {error}");
            return false;
        }
        let mut read = false;
        for i in 0.. {
            let Some(ready) = self.events.get(i) else { break };
            if ready.key == LISTENER {
                self.accept(core);
                read = true;
                continue;
            }
            let index = ready.key as usize;
            if ready.writable {
                self.resume(index, core);
            }
            if ready.readable {
                read |= self.receive(index, core);
            }
        }
        read
    }

    /// Reads the lanes on which something came lately: one system call instead of two.
    fn read_busy(&mut self, core: &Mutex<Core>) -> bool {
        let mut read = false;
        for i in (0..self.busy.len()).rev() {
            // A lane that was lost meanwhile has left the list.
            let Some(&index) = self.busy.get(i) else { continue };
            if self.receive(index, core) {
                read = true;
            } else if let Some(Some(lane)) = self.lanes.get_mut(index) {
                lane.vain_reads += 1;
                if lane.vain_reads >= IDLE_READS {
                    self.busy.retain(|busy| *busy != index);
                }
            }
        }
        read
    }

    /// Something came on this lane: it may be read directly from now on.
    fn note_busy(&mut self, index: usize) {
        let Some(Some(lane)) = self.lanes.get_mut(index) else { return };
        let was_idle = std::mem::replace(&mut lane.vain_reads, 0) >= IDLE_READS;
        if was_idle && self.busy.len() < DIRECT_LANES {
            self.busy.push(index);
        } else if was_idle {
            lane.vain_reads = IDLE_READS;
        }
    }

    fn accept(&mut self, core: &Mutex<Core>) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = &self.listener else { return };
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    warn_log!("cannot accept a lane: {error}; raise the limit of open files if it is that");
                    return;
                }
            };
            if self.ungreeted >= UNGREETED_MAX || socket.set_nonblocking(true).is_err() {
                continue; // dropped, and so closed
            }
            let lane = core.lock().engine.lane_accepted();
            tell_rtt(&socket, lane, core);
            self.install(lane, Lane::new(socket, Phase::Ungreeted), core);
            self.ungreeted += 1;
        }
    }

    fn install(&mut self, id: LaneId, lane: Lane, core: &Mutex<Core>) {
        let index = id.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        tcp::tune(&lane.socket, &self.config.congestion);
        let added = self.poller.add(&lane.socket, u64::from(id.0), lane.waits_to_write);
        self.lanes[index] = Some(lane);
        self.start_fast(index);
        self.count += 1;
        self.changed = true;
        if let Err(error) = added {
            self.lose(index, &LaneLoss::Broken(error.to_string()), core);
        }
    }

    fn dial(&mut self, id: LaneId, locator: SocketAddr, core: &Mutex<Core>) {
        match tcp::dial(locator, self.config.from) {
            Ok(socket) => self.install(id, Lane::new(socket, Phase::Connecting), core),
            Err(error) => {
                let loss = loss_of(&error);
                let mut guard = core.lock();
                let now = guard.now();
                let Core { engine, memory, .. } = &mut *guard;
                engine.lane_lost(now, id, &loss, memory);
            }
        }
    }

    /// A lane can be written to again, or has been connected.
    fn resume(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get_mut(index).and_then(Option::as_mut) else { return };
        if lane.phase == Phase::Connecting {
            match lane.socket.take_error() {
                Ok(None) if lane.socket.peer_addr().is_ok() => {}
                Ok(None) => return,
                Ok(Some(error)) | Err(error) => return self.lose(index, &loss_of(&error), core),
            }
            lane.phase = Phase::Open;
            self.open += 1;
            self.changed = true;
            tcp::tune(&lane.socket, &self.config.congestion);
            tell_rtt(&lane.socket, LaneId(index as u32), core);
            let mut guard = core.lock();
            let now = guard.now();
            guard.engine.lane_connected(now, LaneId(index as u32));
            drop(guard);
            self.start_fast(index);
        } else {
            self.look(index);
        }
        self.wait_to_write(index, false);
        self.write(index, core);
        self.put_out(core);
    }

    /// Looks at the path of a lane that is kept busy, and takes another congestion control
    /// where it loses packets by itself.
    fn look(&mut self, index: usize) {
        let Some(Some(lane)) = self.lanes.get_mut(index) else { return };
        let Some(trace) = &mut lane.trace else { return };
        if lane.looked.elapsed() < Duration::from_millis(congestion::LOOK_MS) {
            return;
        }
        lane.looked = Instant::now();
        let (Some(sample), Some(host)) = (tcp::sample(&lane.socket), tcp::peer_ip(&lane.socket)) else {
            return;
        };
        let judge = self.paths.entry(host).or_default();
        judge.hear(trace, sample);
        if judge.is_lossy() {
            lane.go_lossy(index, "packets are lost without a queue");
        }
    }

    /// A lane that is new on a path known to lose packets, or on a long one, does not start
    /// with what clean paths want.
    fn start_fast(&mut self, index: usize) {
        let Some(Some(lane)) = self.lanes.get_mut(index) else { return };
        if self.config.congestion != congestion::AUTO || tcp::is_local(&lane.socket) {
            lane.trace = None;
            return;
        }
        let host = tcp::peer_ip(&lane.socket);
        if host.and_then(|host| self.paths.get(&host)).is_some_and(Judge::is_lossy) {
            lane.go_lossy(index, "others have lost packets without a queue");
        } else if tcp::sample(&lane.socket).is_some_and(congestion::is_long) {
            lane.go_lossy(index, "a long round trip");
        }
    }

    fn wait_to_write(&mut self, index: usize, wanted: bool) {
        let Some(lane) = self.lanes[index].as_mut() else { return };
        if lane.waits_to_write != wanted {
            lane.waits_to_write = wanted;
            if let Err(error) = self.poller.change(&lane.socket, index as u64, wanted) {
                warn_log!("cannot change what lane {index} waits for: {error}");
            }
        }
    }

    /// Writes what the engine has to send, and does what it asks.
    pub(crate) fn put_out(&mut self, core: &Mutex<Core>) {
        for _ in 0..WRITES_PER_TURN {
            let mut guard = core.lock();
            let Some(id) = guard.engine.next_ready() else {
                let Some(action) = guard.engine.poll_action() else { return };
                drop(guard);
                self.act(action, core);
                continue;
            };
            let index = id.0 as usize;
            let Some(lane) = self.lanes.get_mut(index).and_then(Option::as_mut) else { continue };
            if lane.phase == Phase::Connecting || lane.has_unwritten() {
                continue;
            }
            fill(lane, id, &mut guard);
            drop(guard);
            self.write(index, core);
        }
    }

    /// Does what the engine asks for.
    fn act(&mut self, action: Action, core: &Mutex<Core>) {
        match action {
            Action::Dial { lane, locator } => self.dial(lane, locator, core),
            Action::Abandon { lane } => {
                let text = "the other end gave no sign of life".to_owned();
                self.lose(lane.0 as usize, &LaneLoss::Broken(text), core);
            }
            Action::Close { lane } => self.flush(lane.0 as usize, core),
        }
    }

    /// Writes what the lane holds.
    fn write(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes[index].as_mut() else { return };
        if lane.has_unwritten() {
            // SAFETY: the pieces are the batch's own bytes and memory lent until the
            // engine hears that the batch is written.
            match unsafe { tcp::write(tcp::fd(&lane.socket), &mut lane.pieces[lane.written..]) } {
                Transfer::Bytes(n) => lane.advance(n),
                Transfer::Blocked => {}
                Transfer::Failed(error) => return self.lose(index, &loss_of(&error), core),
            }
            if lane.has_unwritten() {
                return self.wait_to_write(index, true);
            }
            let mut guard = core.lock();
            let Core { engine, memory, .. } = &mut *guard;
            engine.written(LaneId(index as u32), memory);
        }
        if lane.phase == Phase::Flushing {
            self.flush(index, core);
        }
    }

    /// Closes our side of a lane once all is written.
    fn flush(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get_mut(index).and_then(Option::as_mut) else { return };
        if lane.phase == Phase::Parting {
            return;
        }
        if lane.phase == Phase::Open {
            self.open -= 1;
            self.changed = true;
        }
        if lane.phase == Phase::Ungreeted {
            self.ungreeted -= 1;
        }
        lane.enter(Phase::Flushing);
        if !lane.has_unwritten() {
            fill(lane, LaneId(index as u32), &mut core.lock());
            if lane.has_unwritten() {
                return self.write(index, core);
            }
            lane.enter(Phase::Parting);
            let _ = lane.socket.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Reads from a lane; true where something came.
    fn receive(&mut self, index: usize, core: &Mutex<Core>) -> bool {
        let mut any = false;
        for _ in 0..READS_PER_TURN {
            let Some(lane) = self.lanes[index].as_mut() else { return any };
            match lane.phase {
                Phase::Connecting => return any,
                Phase::Flushing | Phase::Parting => {
                    self.discard(index, core);
                    return any;
                }
                Phase::Open | Phase::Ungreeted => {}
            }
            match read_some(lane, index, &mut self.scratch, core) {
                Ok(Some((n, offered))) => {
                    any = true;
                    if n < offered {
                        break;
                    }
                }
                Ok(None) => break,
                Err(loss) => {
                    self.lose(index, &loss, core);
                    return true;
                }
            }
        }
        if any {
            self.note_busy(index);
            self.greeted(index);
        }
        any
    }

    /// A lane that has said who it is no longer counts as unknown.
    fn greeted(&mut self, index: usize) {
        let Some(lane) = self.lanes[index].as_mut() else { return };
        if lane.phase == Phase::Ungreeted && lane.read_from == lane.read_to {
            lane.phase = Phase::Open;
            self.open += 1;
            self.ungreeted -= 1;
            self.changed = true;
        }
    }

    /// Reads and drops what still comes on a lane that is being closed.
    fn discard(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes[index].as_mut() else { return };
        lane.staging.resize(STAGING, 0);
        let mut piece = [libc::iovec { iov_base: lane.staging.as_mut_ptr().cast(), iov_len: STAGING }];
        for _ in 0..READS_PER_TURN {
            // SAFETY: the piece is the lane's own staging buffer.
            match unsafe { tcp::read(tcp::fd(&lane.socket), &mut piece) } {
                Transfer::Bytes(n) if n > 0 => {}
                Transfer::Blocked => return,
                Transfer::Bytes(_) | Transfer::Failed(_) => return self.lose(index, &LaneLoss::Closed, core),
            }
        }
    }

    /// A lane is over.
    fn lose(&mut self, index: usize, loss: &LaneLoss, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get_mut(index).and_then(Option::take) else { return };
        self.count -= 1;
        self.changed = true;
        self.busy.retain(|busy| *busy != index);
        match lane.phase {
            Phase::Open => self.open -= 1,
            Phase::Ungreeted => self.ungreeted -= 1,
            Phase::Connecting | Phase::Flushing | Phase::Parting => {}
        }
        debug_log!("lane {index} ended: {loss:?}");
        let _ = self.poller.remove(lane.socket.as_fd());
        let mut guard = core.lock();
        let now = guard.now();
        let Core { engine, memory, .. } = &mut *guard;
        engine.lane_lost(now, LaneId(index as u32), loss, memory);
    }

    /// Lanes that are on their way up or down.
    fn unsettled(&self) -> usize {
        self.count - self.open
    }

    /// Ends lanes that took too long on their way up or down.
    fn sweep(&mut self, core: &Mutex<Core>) {
        if self.unsettled() == 0 || self.swept.elapsed() < Duration::from_millis(100) {
            return;
        }
        self.swept = Instant::now();
        for index in 0..self.lanes.len() {
            let Some(lane) = &self.lanes[index] else { continue };
            let loss = match lane.phase {
                Phase::Connecting => LaneLoss::Broken("no answer within 10 s".to_owned()),
                _ => LaneLoss::Closed,
            };
            let limit = match lane.phase {
                Phase::Open => continue,
                Phase::Parting => PARTING_TIME,
                Phase::Connecting | Phase::Ungreeted | Phase::Flushing => SETTLE_TIME,
            };
            if lane.since.elapsed() > limit {
                self.lose(index, &loss, core);
            }
        }
    }

    /// When the shell wants to be turned even without events.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        (self.unsettled() > 0).then_some(Duration::from_millis(200))
    }

    /// Stops listening.
    pub(crate) fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = self.poller.remove(&listener);
        }
    }

    /// Whether any lane is left.
    pub(crate) fn has_lanes(&self) -> bool {
        self.count > 0
    }
}

fn tell_rtt(socket: &Socket, lane: LaneId, core: &Mutex<Core>) {
    if let Some(rtt_us) = tcp::rtt_us(socket) {
        core.lock().engine.path_rtt(lane, rtt_us);
    }
}

fn loss_of(error: &io::Error) -> LaneLoss {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => LaneLoss::Refused,
        _ => LaneLoss::Broken(error.to_string()),
    }
}

/// Takes the lane's next batch from the engine.
fn fill(lane: &mut Lane, id: LaneId, core: &mut MutexGuard<'_, Core>) {
    let Core { engine, memory, .. } = &mut **core;
    lane.batch.clear();
    lane.pieces.clear();
    lane.written = 0;
    if !engine.transmit(id, &mut lane.batch, memory) {
        return;
    }
    for segment in &lane.batch.segments {
        match *segment {
            isthmus_proto::Segment::Bytes { start, end } => {
                let bytes = &lane.batch.bytes[start..end];
                lane.pieces.push(libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() });
            }
            isthmus_proto::Segment::Lent { place, offset, len } => {
                memory.iovecs(place, offset, len, &mut lane.pieces);
            }
        }
    }
}

/// One read: payload straight to its place where the engine says so, the rest to the
/// staging buffer, which is then understood as far as it goes. Returns how much came
/// and how much room there was.
fn read_some(
    lane: &mut Lane,
    index: usize,
    pieces: &mut Vec<libc::iovec>,
    core: &Mutex<Core>,
) -> Result<Option<(usize, usize)>, LaneLoss> {
    let id = LaneId(index as u32);
    lane.compact();
    if lane.staging.is_empty() {
        lane.staging.resize(STAGING, 0);
    }
    pieces.clear();
    let mut direct = 0;
    let mut handed_out = false;
    if lane.streaming {
        let mut guard = core.lock();
        if let Some(sink) = guard.engine.sink(id) {
            guard.memory.iovecs(sink.place, sink.offset, sink.len, pieces);
            direct = sink.len as usize;
            handed_out = true;
        }
    }
    let room = STAGING - lane.read_to;
    let room = if direct > 0 { room.min(STAGING_BEHIND_PAYLOAD) } else { room };
    let tail = lane.staging[lane.read_to..].as_mut_ptr();
    pieces.push(libc::iovec { iov_base: tail.cast(), iov_len: room });
    // SAFETY: the pieces are memory lent for this payload, which the engine counts as
    // busy until `filled`, and the lane's own staging buffer.
    let came = unsafe { tcp::read(tcp::fd(&lane.socket), pieces) };
    pieces.clear();
    if matches!(came, Transfer::Blocked) && !handed_out {
        return Ok(None);
    }
    let n = match &came {
        Transfer::Bytes(n) => *n,
        _ => 0,
    };
    let mut guard = core.lock();
    let now = guard.now();
    let Core { engine, memory, .. } = &mut *guard;
    if handed_out {
        engine.filled(id, n.min(direct) as u64, memory).map_err(fault)?;
    }
    lane.read_to += n.saturating_sub(direct);
    match came {
        Transfer::Bytes(0) => Err(LaneLoss::Closed),
        Transfer::Bytes(n) => {
            understand(lane, id, now, engine, memory).map_err(fault)?;
            Ok(Some((n, direct + room)))
        }
        Transfer::Blocked => Ok(None),
        Transfer::Failed(error) => Err(LaneLoss::Broken(error.to_string())),
    }
}

fn fault(fault: PeerFault) -> LaneLoss {
    info_log!("a lane is closed: {fault}");
    LaneLoss::Broken(fault.to_string())
}

/// Gives the engine what is in the staging buffer, as far as frames are complete.
fn understand(
    lane: &mut Lane,
    id: LaneId,
    now: Micros,
    engine: &mut Engine,
    memory: &mut ProcessMemory,
) -> Result<(), PeerFault> {
    loop {
        if lane.streaming {
            lane.read_from += engine.feed(id, &lane.staging[lane.read_from..lane.read_to], memory)?;
            lane.streaming = engine.streaming(id).is_some();
            if lane.streaming {
                return Ok(());
            }
        }
        let bytes = &lane.staging[lane.read_from..lane.read_to];
        let Some(frame) = Frame::decode(bytes)? else { return Ok(()) };
        let (header, payload) = (frame.header_len(), frame.payload_len() as usize);
        if let Some(payload) = bytes.get(header..header + payload) {
            engine.handle(now, id, &frame, payload, memory)?;
            lane.read_from += header + payload.len();
        } else if payload > WHOLE_MAX {
            engine.begin(now, id, &frame, memory)?;
            lane.read_from += header;
            lane.streaming = engine.streaming(id).is_some();
            if !lane.streaming {
                return Ok(()); // the engine is done with this lane
            }
        } else {
            return Ok(());
        }
    }
}
