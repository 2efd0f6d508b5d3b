//! The engine against one hostile peer: any bytes on its lanes, in any pieces, at any time.
//!
//! The input is a script. The first byte of each step says what happens. Its arguments follow,
//! such as a lane, a length or the bytes themselves. If the script ends in the middle of a step,
//! the missing bytes count as zeros.

use std::net::SocketAddr;

use isthmus_proto::{
    Action, Batch, Channel, Config, Engine, LaneId, LaneLoss, Memory, Options, PeerFault, RecvRequest,
    RemoteRange, RmaRequest, SendRequest, Sink,
};
use isthmus_wire::frame::{self, Frame, HEADER_MAX, Hello, MAGIC, PROTOCOL_VERSION};
use isthmus_wire::{Address, AsId, Key, SubnetId};

use crate::arena::{Arena, KEY};
use crate::hello;

/// Limits that the script cannot exceed: lanes at once, and operations and steps in all. Counts.
const LANES: usize = 4;
const OPERATIONS: usize = 64;
const STEPS: usize = 2000;

/// The kinds of steps, numbered by the step's first byte.
mod step {
    pub(super) const ACCEPT: u8 = 0;
    pub(super) const SAY: u8 = 1;
    pub(super) const FLOOD: u8 = 2;
    pub(super) const LEND: u8 = 3;
    pub(super) const WAIT: u8 = 4;
    pub(super) const POST: u8 = 5;
    pub(super) const BREAK: u8 = 6;
    pub(super) const WRITE: u8 = 7;
    pub(super) const KINDS: u8 = 8;
}

fn address(process: u8) -> Address {
    let locator = SocketAddr::from(([127, 0, 0, 1], 1000 + u16::from(process)));
    Address {
        as_id: AsId(1),
        subnet: SubnetId(1),
        locator,
        incarnation: u32::from(process) + 1,
        key: Key::NONE,
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    [transfers(), announcements()].concat()
}

fn message(total: u64, payload: u32) -> frame::Message {
    let flags = frame::flags::TAGGED;
    frame::Message { flags, connection: 0, seq: 0, order: 0, tag: 1, data: 0, total, eager: total, payload }
}

fn welcome() -> frame::Welcome {
    frame::Welcome {
        magic: MAGIC,
        version: PROTOCOL_VERSION,
        source: address(1),
        credit: 1 << 16,
        payload: 0,
    }
}

/// Messages, and accesses to memory.
fn transfers() -> Vec<Vec<u8>> {
    let more = frame::More { connection: 0, seq: 1, message: 0, offset: 300, payload: 200 };
    let write = frame::Write {
        flags: frame::flags::DATA,
        connection: 0,
        seq: 0,
        token: 1,
        key: KEY,
        addr: 16,
        data: 5,
        total: 5000,
        offset: 0,
        payload: 5000,
    };
    let read = frame::Read { connection: 0, seq: 1, token: 2, key: KEY, addr: 0, len: 4000 };
    let atomic = frame::Atomic {
        connection: 0,
        seq: 2,
        order: 0,
        token: 3,
        key: KEY,
        addr: 8,
        len: 8,
        kind: 1,
        op: 2,
        datatype: 7,
        payload: 8,
    };
    let ack = frame::Ack { connection: 0, upto: 1, credit: 1 << 20 };
    let accept = frame::Accept { connection: 0, seq: 0, message: 0, wanted: 60_000 };
    let reply = frame::Reply { connection: 0, seq: 0, token: 0, offset: 0, status: 0, payload: 100 };
    let done = frame::Done { connection: 0, seq: 0, token: 0, status: 0 };
    let bye = frame::Bye { connection: 0 };
    vec![
        Script::greeted().say(message(500, 300)).flood(300).say(more).flood(200).post(2, 500).write().0,
        Script::default().post(2, 600).accept().hello().say(message(600, 600)).lend(300).flood(300).write().0,
        Script::greeted().say(write).flood(5000).say(read).write().say(atomic).flood(8).write().0,
        Script::default().post(0, 60_000).say(welcome()).write().say(ack).say(accept).write().write().0,
        Script::default().post(4, 100).say(welcome()).write().say(reply).lend(60).flood(40).wait(20).0,
        Script::default().post(3, 100).say(welcome()).write().say(done).wait(24).broken().wait(24).wait(24).0,
        Script::greeted().say(frame::Ping { id: 1 }).write().say(bye).wait(20).0,
    ]
}

/// Receives that are announced: to a peer that asks, and by one that was asked.
fn announcements() -> Vec<Vec<u8>> {
    let asking =
        frame::Message { flags: frame::flags::TAGGED | frame::flags::ANNOUNCE, eager: 0, ..message(500, 0) };
    let long = frame::Message { seq: 1, order: 1, total: 20_000, ..asking };
    let granted = frame::Granted { connection: 0, seq: 2, message: 1, offset: 0, payload: 20_000 };
    let early = frame::Granted { seq: 4, message: 3, ..granted };
    let late = frame::Message { seq: 3, order: 2, ..long };
    let announce = frame::Announce {
        flags: frame::flags::TAGGED,
        connection: 0,
        seq: 0,
        number: 1,
        order: 3,
        tag: 1,
        ignore: u64::MAX,
        room: 1 << 20,
    };
    let other = frame::Announce { seq: 1, number: 2, ..announce };
    let withdraw = frame::Withdraw { connection: 0, seq: 2, number: 2 };
    let resume = frame::Resume { connection: 0, seq: 3, message: 3, from: 100, wanted: 60_000 };
    let pong = frame::Pong { id: 0 };
    vec![
        Script::greeted()
            .wait(12)
            .say(pong)
            .say(asking)
            .post(67, 20_000)
            .post(67, 20_000)
            .write()
            .say(long)
            .say(granted)
            .flood(20_000)
            .say(early)
            .flood(20_000)
            .say(late)
            .post(67, 10_000)
            .write()
            .0,
        Script::default()
            .post(0, 60_000)
            .wait(12)
            .say(welcome())
            .write()
            .say(frame::Ack { connection: 0, upto: 1, credit: 1 << 17 })
            .post(0, 60_000)
            .post(0, 60_000)
            .write()
            .say(announce)
            .say(other)
            .say(withdraw)
            .post(0, 60_000)
            .write()
            .say(resume)
            .write()
            .0,
    ]
}

/// A script, written step by step; all on lane 0.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn greeted() -> Self {
        Self::default().accept().hello()
    }

    fn with(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn accept(self) -> Self {
        self.with(&[step::ACCEPT])
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        self.with(&[step::SAY, 0, bytes.len() as u8]).with(bytes)
    }

    fn hello(self) -> Self {
        let bytes = hello::encoded(address(1), address(0));
        let (first, second) = bytes.split_at(20);
        self.bytes(first).bytes(second)
    }

    fn say(self, frame: impl Into<Frame>) -> Self {
        let mut bytes = Vec::new();
        frame.into().encode(&mut bytes);
        self.bytes(&bytes)
    }

    fn flood(self, len: u16) -> Self {
        self.with(&[step::FLOOD, 0]).with(&len.to_le_bytes())
    }

    fn lend(self, len: u16) -> Self {
        self.with(&[step::LEND, 0, step::LEND, 0]).with(&len.to_le_bytes())
    }

    fn wait(self, bits: u8) -> Self {
        self.with(&[step::WAIT, bits])
    }

    fn post(self, kind: u8, len: u16) -> Self {
        self.with(&[step::POST, kind]).with(&len.to_le_bytes())
    }

    fn broken(self) -> Self {
        self.with(&[step::BREAK, 0])
    }

    fn write(self) -> Self {
        self.with(&[step::WRITE])
    }
}

/// Nothing panics, nobody touches memory that it does not own, and the engine never buffers
/// more for a peer than the credit that it granted.
pub(crate) fn property(input: &[u8]) {
    let mut victim = Victim::new();
    let mut script = Cursor(input);
    for _ in 0..STEPS {
        if script.0.is_empty() {
            break;
        }
        victim.step(&mut script);
        victim.settle();
        assert!(victim.engine.held().iter().all(|(held, granted)| held <= granted));
    }
    while let Some(lane) = victim.lanes.pop() {
        victim.lose(lane);
    }
    victim.settle();
}

/// The rest of a script.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, left) = self.0.split_at(most.min(self.0.len()));
        self.0 = left;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
}

/// The state that a shell keeps of a lane.
struct Lane {
    id: LaneId,
    /// Bytes of an incomplete header.
    staged: Vec<u8>,
    /// The buffer that the engine lent for the next payload.
    lent: Option<Sink>,
    /// Batches that were borrowed and given back.
    returned: u64,
}

struct Victim {
    engine: Engine,
    mem: Arena,
    lanes: Vec<Lane>,
    now: u64,
    operations: usize,
}

impl Victim {
    fn new() -> Self {
        let engine = Engine::new(Config { credit: 128 << 10, refusals_max: 3, ..Config::new(address(0)) });
        let mut mem = Arena::default();
        assert_eq!(mem.register(vec![0; 64 << 10]), KEY);
        Self { engine, mem, lanes: Vec::new(), now: 0, operations: 0 }
    }

    fn step(&mut self, script: &mut Cursor<'_>) {
        match script.byte() % step::KINDS {
            step::ACCEPT if self.lanes.len() < LANES => {
                let id = self.engine.lane_accepted();
                self.lanes.push(Lane { id, staged: Vec::new(), lent: None, returned: 0 });
            }
            step::SAY => {
                let (lane, len) = (script.byte(), usize::from(script.byte()));
                self.say(lane, script.take(len));
            }
            step::FLOOD => {
                let lane = script.byte();
                self.say(lane, &vec![0x5a; usize::from(script.number())]);
            }
            step::LEND => {
                let lane = script.byte();
                self.lend_or_fill(lane, script);
            }
            step::WAIT => {
                self.now += 1 << (script.byte() % 28);
                self.engine.flush_acks();
                self.engine.handle_timeout(self.now, &mut self.mem);
            }
            step::POST => self.post(script.byte(), u64::from(script.number())),
            step::BREAK => {
                let lane = usize::from(script.byte());
                if lane < self.lanes.len() {
                    let lane = self.lanes.remove(lane);
                    self.lose(lane);
                }
            }
            _ => self.write(),
        }
    }

    fn say(&mut self, lane: u8, bytes: &[u8]) {
        let index = usize::from(lane);
        // A lane with a lent buffer takes its next bytes there, by `lend_or_fill`.
        let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.lent.is_none()) else { return };
        lane.staged.extend_from_slice(bytes);
        if understand(lane, self.now, &mut self.engine, &mut self.mem).is_err() {
            let lane = self.lanes.remove(index);
            self.lose(lane);
        }
    }

    fn lend_or_fill(&mut self, lane: u8, script: &mut Cursor<'_>) {
        let index = usize::from(lane);
        let Some(lane) = self.lanes.get_mut(index) else { return };
        match lane.lent.take() {
            None => lane.lent = self.engine.sink(lane.id),
            Some(sink) => {
                let len = u64::from(script.number()).min(sink.len);
                self.mem.store(sink.place, sink.offset, &vec![0x5a; len as usize]);
                if self.engine.filled(lane.id, len, &mut self.mem).is_err() {
                    let lane = self.lanes.remove(index);
                    self.lose(lane);
                }
            }
        }
    }

    fn lose(&mut self, lane: Lane) {
        if lane.lent.is_some() {
            // The error can be ignored: the lane is lost anyway.
            let _ = self.engine.filled(lane.id, 0, &mut self.mem);
        }
        self.engine.lane_lost(self.now, lane.id, &LaneLoss::Closed, &mut self.mem);
    }

    fn post(&mut self, kind: u8, len: u64) {
        self.operations += 1;
        if self.operations > OPERATIONS {
            return;
        }
        let Ok(peer) = self.engine.peer(&address(1)) else { return };
        let options = Options::default();
        let reads = !matches!(kind % 5, 0 | 3);
        let place = self.mem.lend(vec![1; len as usize], reads, kind >= 128);
        let rma = RmaRequest { peer, remote: RemoteRange { key: KEY, addr: 0, len }, data: None, options };
        let receive = |channel, multi| {
            let source = (channel == Channel::Tagged && kind >= 64).then_some(peer);
            RecvRequest { source, channel, tag: 1, ignore: 0, multi, options }
        };
        let Self { engine, mem, .. } = self;
        // After a refusal the caller still has the buffer, and needs to do nothing.
        let _ = match kind % 5 {
            0 => {
                let request = SendRequest { peer, channel: Channel::Tagged, tag: 0, data: None, options };
                engine.send(&request, place, len, mem)
            }
            3 => engine.write(&rma, place, mem),
            4 => engine.read(&rma, place, mem),
            1 => {
                engine.recv(&receive(Channel::Untagged, (kind >= 64).then_some(100)), place, len, mem);
                Ok(())
            }
            _ => {
                engine.recv(&receive(Channel::Tagged, None), place, len, mem);
                Ok(())
            }
        };
    }

    /// Writes everything that the engine wants to send.
    fn write(&mut self) {
        let mut batch = Batch::default();
        while let Some(lane) = self.engine.next_ready() {
            batch.clear();
            if !self.engine.transmit(lane, &mut batch, &mut self.mem) {
                continue;
            }
            // Lanes with odd ids borrow their batches and keep them until the engine recalls them.
            if lane.0 % 2 == 1 && self.lanes.iter().any(|known| known.id == lane) {
                self.engine.borrowed(lane);
            } else {
                self.engine.written(lane, &mut self.mem);
            }
        }
    }

    /// Carries out the engine's actions, and takes its events.
    fn settle(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Dial { lane, .. } if self.lanes.len() < LANES => {
                    self.engine.lane_connected(self.now, lane);
                    self.lanes.push(Lane { id: lane, staged: Vec::new(), lent: None, returned: 0 });
                }
                Action::Dial { lane, .. } => {
                    self.engine.lane_lost(self.now, lane, &LaneLoss::Refused, &mut self.mem);
                }
                Action::Recall { lane, batches } => {
                    let known = self.lanes.iter_mut().find(|known| known.id == lane);
                    let known = known.expect("what is recalled was borrowed by a lane that is there");
                    assert!(batches > known.returned, "recalled twice");
                    for _ in known.returned..batches {
                        self.engine.returned(lane, &mut self.mem);
                    }
                    known.returned = batches;
                }
                Action::Abandon { lane } | Action::Close { lane } => {
                    self.write();
                    if let Some(index) = self.lanes.iter().position(|other| other.id == lane) {
                        let lane = self.lanes.remove(index);
                        self.lose(lane);
                    }
                }
            }
        }
        while self.engine.poll_completion().is_some() {}
    }
}

/// Gives the engine the staged bytes as far as they form whole headers, as a shell does.
fn understand(lane: &mut Lane, now: u64, engine: &mut Engine, mem: &mut Arena) -> Result<(), PeerFault> {
    let mut bytes = &lane.staged[..];
    loop {
        if engine.streaming(lane.id).is_some() {
            let fed = engine.feed(lane.id, bytes, mem)?;
            bytes = &bytes[fed..];
        }
        if engine.streaming(lane.id).is_some() {
            assert!(bytes.is_empty(), "payload that the engine did not take");
            break;
        }
        let Some(frame) = Frame::decode(bytes)? else { break };
        let (header, payload) = (frame.header_len(), frame.payload_len() as usize);
        match bytes.get(header..header + payload) {
            Some(payload) => {
                engine.handle(now, lane.id, &frame, payload, mem)?;
                bytes = &bytes[header + payload.len()..];
            }
            None if matches!(frame, Frame::Atomic(_) | Frame::Hello(_) | Frame::Welcome(_))
                && payload <= HEADER_MAX =>
            {
                break;
            }
            None => {
                engine.begin(now, lane.id, &frame, mem)?;
                bytes = &bytes[header..];
            }
        }
    }
    lane.staged = bytes.to_vec();
    assert!(lane.staged.len() <= 2 * HEADER_MAX);
    Ok(())
}

const _: () = assert!(Hello::LEN < 256, "a Hello fits into one step");
