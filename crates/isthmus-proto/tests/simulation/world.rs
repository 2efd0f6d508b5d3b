//! A network in virtual time: engines, the shells around them, and byte streams that
//! are slow, cut anywhere, and break.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use isthmus_proto::{
    Action, Batch, Completion, Config, Engine, LaneId, LaneLoss, Memory, Micros, PeerFault, PeerId, Place,
    SHORT_FRAME_MAX, Segment, SendRequest, Sink,
};
use isthmus_wire::frame::{Hello, MAGIC, Message, PROTOCOL_VERSION, Refuse, RefuseReason};
use isthmus_wire::{Address, AsId, Frame, SubnetId};

use crate::arena::Arena;
use crate::rng::Rng;

/// How the network treats its users.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    /// One-way delay. Microseconds, least and most.
    pub(crate) delay: (u64, u64),
    /// Most bytes that one write takes or one read gives.
    pub(crate) chunk_max: u64,
    /// Bytes on their way in one direction of a lane.
    pub(crate) buffer: usize,
    /// Dials that are refused, of a thousand; and that time out; and that nobody answers.
    pub(crate) refused: u64,
    pub(crate) timed_out: u64,
    pub(crate) unanswered: u64,
    /// How long a shell may take to fill a buffer.
    pub(crate) fill: u64,
    /// Time between lanes breaking; `None` for never.
    pub(crate) breaks: Option<(u64, u64)>,
    /// How long a side may take to notice that its lane broke.
    pub(crate) notice: u64,
    /// Writes, of a thousand, at which the shell finds that a lane is outdone by one that fills its
    /// path; such are dialled from then on.
    pub(crate) outdone: u64,
    /// How fast each direction of a lane is. Bytes/s; 0: as fast as is written, with pauses.
    pub(crate) rate: u64,
}

impl Net {
    pub(crate) fn calm() -> Self {
        Self {
            delay: (50, 60),
            chunk_max: 64 << 10,
            buffer: 256 << 10,
            refused: 0,
            timed_out: 0,
            unanswered: 0,
            fill: 20,
            breaks: None,
            notice: 1000,
            outdone: 0,
            rate: 0,
        }
    }
}

#[derive(Debug)]
enum Chunk {
    Bytes(Vec<u8>),
    Fin,
}

/// One direction of a lane.
#[derive(Debug, Default)]
struct Dir {
    flight: VecDeque<Chunk>,
    bytes: usize,
    /// When what was written has left.
    left: Micros,
    last: Micros,
    dead: bool,
}

/// One end of a lane, as its shell sees it.
#[derive(Debug, Default)]
struct Side {
    node: usize,
    lane: Option<LaneId>,
    batch: Batch,
    segment: usize,
    offset: u64,
    pending: bool,
    staging: Vec<u8>,
    filling: Option<(Sink, Vec<u8>)>,
    closing: bool,
    over: bool,
}

#[derive(Debug, Default)]
struct Wire {
    sides: [Side; 2],
    dirs: [Dir; 2],
    /// The router that it leads through.
    router: Option<usize>,
    /// The way that it takes, where processes have several.
    way: usize,
    /// Bytes that it has carried.
    carried: u64,
    /// It uses all that its path has.
    pub(crate) fills_path: bool,
    /// What the router has read of a Hello that is not yet whole.
    hello: Option<Vec<u8>>,
}

/// How a router does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Up,
    /// Its process has ended: its lanes break, new ones are refused.
    Dead,
    /// It does nothing, but its sockets stay: lanes can be connected, and whatever they
    /// carry vanishes.
    Hung,
}

#[derive(Debug)]
enum Event {
    Deliver(usize, usize),
    Write(usize, usize),
    Fill(usize, usize),
    Lost(usize, usize, LaneLoss),
    Accept(usize),
    Connected(usize),
    DialFailed(usize, LaneId, LaneLoss),
    Timer(usize),
    Idle(usize),
    Break,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) mem: Arena,
    pub(crate) done: VecDeque<Completion>,
    pub(crate) alive: bool,
    lanes: HashMap<u32, (usize, usize)>,
    timer: Option<Micros>,
    idle: bool,
    /// From now on it dials lanes that use all of their path.
    dials_filling: bool,
}

/// All processes, the network and the clock.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Micros,
    pub(crate) net: Net,
    pub(crate) nodes: Vec<Node>,
    pub(crate) rng: Rng,
    pub(crate) faults: Vec<PeerFault>,
    pub(crate) dials: u64,
    /// Events that happened.
    pub(crate) steps: u64,
    pub(crate) routers: Vec<Health>,
    /// Messages go the short way where they may, and how many did.
    pub(crate) shorts: bool,
    pub(crate) went_short: u64,
    /// Messages are taken in by runs, and most that came in at one go.
    pub(crate) runs: bool,
    pub(crate) longest_run: u64,
    /// Ways between processes on which everything vanishes.
    cut: [bool; WAYS],
    wires: Vec<Wire>,
    events: BTreeMap<(Micros, u64), Event>,
    age: u64,
}

/// The address of the process with this number, where each is in an AS of its own.
pub(crate) fn foreign(node: usize) -> Address {
    Address { as_id: AsId(node as u32 + 1), ..address(node) }
}

/// The address of the process with this number.
pub(crate) fn address(node: usize) -> Address {
    Address {
        as_id: AsId(1),
        subnet: SubnetId(1),
        locator: SocketAddr::new([127, 0, 0, 1].into(), 1000 + node as u16),
        incarnation: node as u32 + 1,
    }
}

/// Where the process with this number listens on a way: 0 is that of its address.
pub(crate) fn locator(node: usize, way: usize) -> SocketAddr {
    SocketAddr::new([127, 0, 0, 1].into(), 1000 * (way as u16 + 1) + node as u16)
}

/// First port of routers; the processes' follow at 1000, those of further ways at 2000.
const ROUTER_PORT: usize = 500;
/// Most ways between processes.
pub(crate) const WAYS: usize = 4;

impl World {
    pub(crate) fn new(seed: u64, nodes: usize, net: Net, config: impl Fn(Config) -> Config) -> Self {
        Self::routed(seed, nodes, 0, net, config)
    }

    /// With routers, every process is in an AS of its own.
    pub(crate) fn routed(
        seed: u64,
        nodes: usize,
        routers: usize,
        net: Net,
        config: impl Fn(Config) -> Config,
    ) -> Self {
        let own = |index| if routers > 0 { foreign(index) } else { address(index) };
        let locators = (0..routers).map(|router| ([127, 0, 0, 1], (ROUTER_PORT + router) as u16).into());
        let known: Vec<SocketAddr> = locators.collect();
        let with_routers = |index| Config { routers: known.clone(), seed, ..Config::new(own(index)) };
        let node = |index| Node {
            engine: Engine::new(config(with_routers(index))),
            mem: Arena::default(),
            done: VecDeque::new(),
            alive: true,
            lanes: HashMap::new(),
            timer: None,
            idle: false,
            dials_filling: false,
        };
        let mut world = Self {
            now: 0,
            net,
            nodes: (0..nodes).map(node).collect(),
            rng: Rng::new(seed),
            faults: Vec::new(),
            dials: 0,
            steps: 0,
            routers: vec![Health::Up; routers],
            shorts: false,
            went_short: 0,
            runs: false,
            longest_run: 0,
            cut: [false; WAYS],
            wires: Vec::new(),
            events: BTreeMap::new(),
            age: 0,
        };
        world.schedule_break();
        world
    }

    fn schedule_break(&mut self) {
        if let Some(range) = self.net.breaks {
            let pause = self.rng.within(range);
            self.after(pause, Event::Break);
        }
    }

    /// What node `node` calls node `other`.
    pub(crate) fn peer(&mut self, node: usize, other: usize) -> PeerId {
        let other = if self.routers.is_empty() { address(other) } else { foreign(other) };
        self.nodes[node].engine.peer(&other).expect("within reach")
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, at: Micros, event: Event) {
        self.age += 1;
        self.events.insert((at, self.age), event);
    }

    /// Time of the next event.
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets the next event happen; false where there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(((at, _), event)) = self.events.pop_first() else { return false };
        self.now = at;
        self.steps += 1;
        match event {
            Event::Deliver(wire, dir) => self.deliver(wire, dir),
            Event::Write(wire, side) => self.write(wire, side),
            Event::Fill(wire, side) => self.fill(wire, side),
            Event::Lost(wire, side, loss) => self.lose(wire, side, &loss),
            Event::Accept(wire) => self.accept(wire),
            Event::Connected(wire) => self.connected(wire),
            Event::DialFailed(node, lane, loss) => self.dial_failed(node, lane, &loss),
            Event::Timer(node) => self.timer(node),
            Event::Idle(node) => self.idle(node),
            Event::Break => self.break_some(),
        }
        for node in 0..self.nodes.len() {
            for (held, granted) in self.nodes[node].engine.held() {
                assert!(held <= granted, "{held} bytes held, {granted} granted");
            }
        }
        true
    }

    // What a shell does.

    /// After any news: writes, actions, timer, completions.
    pub(crate) fn pump(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        loop {
            let mut quiet = true;
            while let Some(lane) = self.nodes[node].engine.next_ready() {
                quiet = false;
                if let Some(&(wire, side)) = self.nodes[node].lanes.get(&lane.0) {
                    self.take_batch(wire, side);
                }
            }
            while let Some(action) = self.nodes[node].engine.poll_action() {
                quiet = false;
                self.act(node, action);
            }
            if quiet {
                break;
            }
        }
        let due = self.nodes[node].engine.poll_timeout();
        if let Some(at) = due
            && self.nodes[node].timer.is_none_or(|set| at < set)
        {
            self.nodes[node].timer = Some(at);
            self.at(at.max(self.now), Event::Timer(node));
        }
        while let Some(completion) = self.nodes[node].engine.poll_completion() {
            self.nodes[node].done.push_back(completion);
        }
        if self.nodes[node].engine.owes_acks() && !self.nodes[node].idle {
            self.nodes[node].idle = true;
            let pause = self.rng.below(300);
            self.after(pause, Event::Idle(node));
        }
    }

    fn timer(&mut self, node: usize) {
        self.nodes[node].timer = None;
        let Node { engine, mem, alive, .. } = &mut self.nodes[node];
        if *alive && engine.poll_timeout().is_some_and(|at| at <= self.now) {
            engine.handle_timeout(self.now, mem);
        }
        self.pump(node);
    }

    fn idle(&mut self, node: usize) {
        self.nodes[node].idle = false;
        if self.nodes[node].alive {
            self.nodes[node].engine.flush_acks();
        }
        self.pump(node);
    }

    fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Dial { lane, locator } => self.dial(node, lane, locator),
            Action::Abandon { lane } => {
                let dialled = || {
                    let comes_up = |wire: &Wire| {
                        let side = &wire.sides[0];
                        side.node == node && side.lane == Some(lane) && !side.over
                    };
                    self.wires.iter().rposition(comes_up).map(|wire| (wire, 0))
                };
                let place = self.nodes[node].lanes.get(&lane.0).copied().or_else(dialled);
                if let Some((wire, side)) = place {
                    self.lose(wire, side, &LaneLoss::Broken("abandoned".into()));
                    // Nobody hears it through a router that hangs.
                    if !self.wires[wire].dirs[side].dead {
                        self.after(100, Event::Lost(wire, 1 - side, LaneLoss::Closed));
                    }
                }
            }
            Action::Close { lane } => {
                if let Some(&(wire, side)) = self.nodes[node].lanes.get(&lane.0) {
                    self.wires[wire].sides[side].closing = true;
                    let loss = LaneLoss::Broken("the peer does not read".into());
                    self.after(5_000_000, Event::Lost(wire, side, loss));
                    if !self.wires[wire].sides[side].pending {
                        self.take_batch(wire, side);
                    }
                }
            }
        }
    }

    fn dial(&mut self, node: usize, lane: LaneId, locator: SocketAddr) {
        self.dials += 1;
        let delay = 2 * self.rng.within(self.net.delay);
        let port = usize::from(locator.port());
        let (target, way) = (port % 1000, (port / 1000).saturating_sub(1));
        let router = port.checked_sub(ROUTER_PORT).filter(|router| *router < self.routers.len());
        let health = router.map(|router| self.routers[router]);
        if router.is_none() && self.cut[way] {
            // Nobody hears of it.
            let wire = self.wires.len();
            self.wires.push(Wire { way, ..Wire::default() });
            self.wires[wire].sides[0] = Side { node, lane: Some(lane), ..Side::default() };
            self.wires[wire].sides[1].over = true;
            return self.after(3_000_000, Event::Lost(wire, 0, LaneLoss::Broken("timed out".into())));
        }
        let listens = match health {
            Some(health) => health != Health::Dead,
            None => self.nodes.get(target).is_some_and(|node| node.alive),
        };
        if !listens || self.rng.chance(self.net.refused) {
            return self.after(delay, Event::DialFailed(node, lane, LaneLoss::Refused));
        }
        if self.rng.chance(self.net.timed_out) {
            let loss = LaneLoss::Broken("timed out".into());
            return self.after(delay * 50, Event::DialFailed(node, lane, loss));
        }
        let wire = self.wires.len();
        self.wires.push(Wire::default());
        self.wires[wire].sides[0].node = node;
        self.wires[wire].sides[0].lane = Some(lane);
        self.after(delay, Event::Connected(wire));
        self.wires[wire].router = router;
        self.wires[wire].way = way;
        self.wires[wire].fills_path = router.is_none() && self.nodes[node].dials_filling;
        if health == Some(Health::Hung) || self.rng.chance(self.net.unanswered) {
            self.wires[wire].dirs[0].dead = true;
            self.wires[wire].sides[1].over = true;
            return;
        }
        if router.is_some() {
            self.wires[wire].hello = Some(Vec::new());
            return;
        }
        self.wires[wire].sides[1].node = target;
        let later = delay / 2 + self.rng.below(delay);
        self.after(later, Event::Accept(wire));
    }

    fn dial_failed(&mut self, node: usize, lane: LaneId, loss: &LaneLoss) {
        let Node { engine, mem, alive, .. } = &mut self.nodes[node];
        if *alive {
            engine.lane_lost(self.now, lane, loss, mem);
            self.pump(node);
        }
    }

    fn connected(&mut self, wire: usize) {
        let side = &self.wires[wire].sides[0];
        let (node, over) = (side.node, side.over);
        let Some(lane) = side.lane else { return };
        if over || !self.nodes[node].alive {
            return;
        }
        self.nodes[node].lanes.insert(lane.0, (wire, 0));
        if self.wires[wire].fills_path {
            self.nodes[node].engine.lane_fills_path(lane);
        }
        self.nodes[node].engine.lane_connected(self.now, lane);
        self.pump(node);
    }

    fn accept(&mut self, wire: usize) {
        let fills_path = self.wires[wire].fills_path;
        let side = &mut self.wires[wire].sides[1];
        let node = side.node;
        if side.over {
            return;
        }
        if !self.nodes[node].alive {
            side.over = true;
            return self.after(50, Event::Lost(wire, 0, LaneLoss::Closed));
        }
        let lane = self.nodes[node].engine.lane_accepted();
        side.lane = Some(lane);
        self.nodes[node].lanes.insert(lane.0, (wire, 1));
        if fills_path {
            self.nodes[node].engine.lane_fills_path(lane);
        }
        self.pump(node);
    }

    fn take_batch(&mut self, wire: usize, side: usize) {
        let Side { node, lane, batch, segment, offset, pending, over, closing, .. } =
            &mut self.wires[wire].sides[side];
        let Some(lane) = *lane else { return };
        if *over || *pending {
            return;
        }
        batch.clear();
        (*segment, *offset) = (0, 0);
        let Node { engine, mem, .. } = &mut self.nodes[*node];
        engine.note_time(self.now);
        *pending = engine.transmit(lane, batch, mem);
        if *pending {
            self.write_some(wire, side);
        } else if *closing {
            self.shut(wire, side);
        }
    }

    /// Sends a message the short way, if it may go so and its lane takes all of it now.
    pub(crate) fn send_short(&mut self, node: usize, request: &SendRequest, place: Place, len: u64) -> bool {
        let short = self.nodes[node].engine.short_lane(request, len).filter(|_| self.shorts);
        let Some((lane, message)) = short else { return false };
        let Some(&(wire, side)) = self.nodes[node].lanes.get(&lane.0) else { return false };
        let (state, waits) = (&self.wires[wire].sides[side], self.wires[wire].dirs[side].bytes);
        if state.pending || state.over || state.closing || waits + SHORT_FRAME_MAX > self.net.buffer {
            return false;
        }
        let Node { engine, mem, .. } = &mut self.nodes[node];
        let mut payload = Vec::new();
        mem.load(place, 0, len as usize, &mut payload);
        mem.release(place);
        engine.note_short(lane, request, &message, &payload);
        let frame = [&message.to_bytes()[..], &payload].concat();
        let cut = frame.len() / 2;
        let parts = [frame[..cut].to_vec(), frame[cut..].to_vec()];
        for part in parts {
            self.wires[wire].dirs[side].bytes += part.len();
            self.wires[wire].carried += part.len() as u64;
            self.send_chunk(wire, side, Chunk::Bytes(part));
        }
        self.went_short += 1;
        true
    }

    /// All is written: says so to the other side, and goes.
    fn shut(&mut self, wire: usize, side: usize) {
        self.wires[wire].sides[side].closing = false;
        self.send_chunk(wire, side, Chunk::Fin);
        let linger = self.rng.below(3 * self.net.delay.1);
        self.after(linger, Event::Lost(wire, side, LaneLoss::Closed));
    }

    fn write(&mut self, wire: usize, side: usize) {
        self.write_some(wire, side);
        let node = self.wires[wire].sides[side].node;
        self.pump(node);
    }

    fn write_some(&mut self, wire: usize, side: usize) {
        loop {
            let from = &self.wires[wire].sides[side];
            let space = self.net.buffer.saturating_sub(self.wires[wire].dirs[side].bytes) as u64;
            if !from.pending || from.over || space == 0 {
                return;
            }
            let most = 1 + self.rng.below(self.net.chunk_max);
            let bytes = self.cut(wire, side, most.min(space));
            self.wires[wire].dirs[side].bytes += bytes.len();
            self.wires[wire].carried += bytes.len() as u64;
            self.send_chunk(wire, side, Chunk::Bytes(bytes));
            let Side { pending, batch, segment, .. } = &mut self.wires[wire].sides[side];
            if *segment == batch.segments.len() {
                *pending = false;
                let (fills_path, outdone) = (self.wires[wire].fills_path, self.net.outdone);
                let Side { node, lane, .. } = &self.wires[wire].sides[side];
                let Node { engine, mem, dials_filling, .. } = &mut self.nodes[*node];
                let lane = lane.expect("a lane that writes");
                engine.written(lane, mem);
                if outdone > 0 && !fills_path && (*dials_filling || self.rng.chance(outdone)) {
                    *dials_filling = true;
                    engine.lane_is_outdone(lane);
                }
                if self.wires[wire].sides[side].closing {
                    self.take_batch(wire, side);
                }
                return;
            }
            if self.net.rate == 0 && self.rng.chance(200) {
                let pause = self.rng.below(self.net.delay.0 + 10);
                return self.after(pause, Event::Write(wire, side));
            }
        }
    }

    /// The next bytes of a batch.
    fn cut(&mut self, wire: usize, side: usize, most: u64) -> Vec<u8> {
        let Side { node, batch, segment, offset, .. } = &mut self.wires[wire].sides[side];
        let mut out = Vec::new();
        while *segment < batch.segments.len() && (out.len() as u64) < most {
            let room = most - out.len() as u64;
            let len = match batch.segments[*segment] {
                Segment::Bytes { start, end } => {
                    let from = start + *offset as usize;
                    let to = end.min(from + room as usize);
                    out.extend_from_slice(&batch.bytes[from..to]);
                    (end - start) as u64
                }
                Segment::Lent { place, offset: at, len } => {
                    let n = room.min(len - *offset);
                    self.nodes[*node].mem.load(place, at + *offset, n as usize, &mut out);
                    len
                }
            };
            *offset += room.min(len - *offset);
            if *offset == len {
                *segment += 1;
                *offset = 0;
            }
        }
        out
    }

    fn send_chunk(&mut self, wire: usize, side: usize, chunk: Chunk) {
        let delay = self.rng.within(self.net.delay);
        let dir = &mut self.wires[wire].dirs[side];
        if dir.dead {
            return;
        }
        if let (Chunk::Bytes(bytes), true) = (&chunk, self.net.rate > 0) {
            dir.left = dir.left.max(self.now) + bytes.len() as u64 * 1_000_000 / self.net.rate;
        }
        dir.last = dir.last.max(self.now.max(dir.left) + delay);
        dir.flight.push_back(chunk);
        let at = dir.last;
        self.at(at, Event::Deliver(wire, side));
    }

    /// What a router does with the start of a lane: it reads the Hello, and connects the
    /// lane with whom it names.
    fn route(&mut self, wire: usize) {
        let Some(Chunk::Bytes(bytes)) = self.wires[wire].dirs[0].flight.pop_front() else { return };
        let mut read = self.wires[wire].hello.take().unwrap_or_default();
        read.extend(bytes);
        let Ok(Some(Frame::Hello(mut hello))) = Frame::decode(&read) else {
            self.wires[wire].hello = Some(read);
            return;
        };
        let target = usize::from(hello.target.locator.port()) - 1000;
        if !self.nodes[target].alive {
            let reason = RefuseReason::Absent as u8;
            let mut refuse = Vec::new();
            Frame::from(Refuse { magic: MAGIC, version: PROTOCOL_VERSION, reason }).encode(&mut refuse);
            self.wires[wire].sides[1].over = true;
            self.wires[wire].dirs[1].bytes += refuse.len();
            self.send_chunk(wire, 1, Chunk::Bytes(refuse));
            return self.send_chunk(wire, 1, Chunk::Fin);
        }
        hello.hops += 1;
        let mut onward = Vec::new();
        Frame::from(hello).encode(&mut onward);
        onward.extend(&read[Hello::LEN..]);
        self.wires[wire].dirs[0].flight.push_front(Chunk::Bytes(onward));
        self.wires[wire].sides[1].node = target;
        let delay = self.rng.within(self.net.delay);
        self.after(delay, Event::Accept(wire));
        self.after(delay, Event::Deliver(wire, 0));
    }

    fn deliver(&mut self, wire: usize, dir: usize) {
        if dir == 0 && self.wires[wire].hello.is_some() {
            return self.route(wire);
        }
        let to = &self.wires[wire].sides[1 - dir];
        if to.lane.is_none() && !to.over {
            return self.after(20, Event::Deliver(wire, dir)); // not yet accepted
        }
        let Some(chunk) = self.wires[wire].dirs[dir].flight.pop_front() else { return };
        let node = self.wires[wire].sides[1 - dir].node;
        let over = self.wires[wire].sides[1 - dir].over || !self.nodes[node].alive;
        match chunk {
            Chunk::Fin => return self.lose(wire, 1 - dir, &LaneLoss::Closed),
            Chunk::Bytes(bytes) => {
                self.wires[wire].dirs[dir].bytes -= bytes.len();
                if !over {
                    self.wires[wire].sides[1 - dir].staging.extend(bytes);
                    let more = matches!(self.wires[wire].dirs[dir].flight.front(), Some(Chunk::Bytes(_)));
                    // Whoever reads is late.
                    if !(self.runs && more && self.rng.chance(700)) {
                        self.understand(wire, 1 - dir);
                        self.pump(node);
                    }
                }
            }
        }
        self.write(wire, dir);
    }

    fn understand(&mut self, wire: usize, side: usize) {
        while self.wires[wire].sides[side].filling.is_none() && !self.wires[wire].sides[side].over {
            match self.understand_one(wire, side) {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    self.faults.push(fault);
                    self.lose(wire, side, &LaneLoss::Broken(fault.to_string()));
                    self.after(100, Event::Lost(wire, 1 - side, LaneLoss::Closed));
                }
            }
        }
    }

    fn understand_one(&mut self, wire: usize, side: usize) -> Result<bool, PeerFault> {
        let (place_it, whole_max) = (self.rng.chance(600), 1 << self.rng.below(20));
        let Side { node, lane, staging, filling, .. } = &mut self.wires[wire].sides[side];
        let Node { engine, mem, .. } = &mut self.nodes[*node];
        let Some(lane) = *lane else { return Ok(false) };
        if engine.streaming(lane).is_some() {
            if staging.is_empty() {
                return Ok(false);
            }
            if place_it && let Some(sink) = engine.sink(lane) {
                let n = staging.len().min(sink.len as usize);
                *filling = Some((sink, staging.drain(..n).collect()));
                let pause = self.rng.below(self.net.fill + 1);
                self.after(pause, Event::Fill(wire, side));
                return Ok(false);
            }
            let n = engine.feed(lane, staging, mem)?;
            staging.drain(..n);
            return Ok(true);
        }
        if self.runs && place_it {
            let (mut room, mut taken, mut count) = ([0; SHORT_FRAME_MAX], 0, 0);
            let next = |room: &mut [u8]| {
                let rest = &staging[taken..];
                let message = Message::decode(rest).ok()??;
                let payload = rest[Message::LEN..].get(..message.payload as usize)?;
                room.get_mut(..payload.len())?.copy_from_slice(payload);
                (taken, count) = (taken + Message::LEN + payload.len(), count + 1);
                Some(message)
            };
            if engine.handle_messages(self.now, lane, &mut room, next, mem)? {
                staging.drain(..taken);
                self.longest_run = self.longest_run.max(count);
                return Ok(true);
            }
        }
        let Some(frame) = Frame::decode(staging)? else { return Ok(false) };
        let (header, payload) = (frame.header_len(), frame.payload_len() as usize);
        let atomic = matches!(frame, Frame::Atomic(_));
        if payload > 0 && !atomic && (payload > whole_max || staging.len() < header + payload) {
            staging.drain(..header);
            engine.begin(self.now, lane, &frame, mem)?;
            return Ok(true);
        }
        let Some(bytes) = staging.get(header..header + payload) else { return Ok(false) };
        engine.handle(self.now, lane, &frame, bytes, mem)?;
        staging.drain(..header + payload);
        Ok(true)
    }

    fn fill(&mut self, wire: usize, side: usize) {
        if self.wires[wire].sides[side].over {
            return;
        }
        self.end_fill(wire, side);
        self.understand(wire, side);
        let node = self.wires[wire].sides[side].node;
        self.pump(node);
    }

    fn end_fill(&mut self, wire: usize, side: usize) {
        let Side { node, lane, filling, .. } = &mut self.wires[wire].sides[side];
        let Some((sink, bytes)) = filling.take() else { return };
        let Node { engine, mem, .. } = &mut self.nodes[*node];
        mem.store(sink.place, sink.offset, &bytes);
        let lane = lane.expect("a lane that reads");
        if let Err(fault) = engine.filled(lane, bytes.len() as u64, mem) {
            self.faults.push(fault);
        }
    }

    fn lose(&mut self, wire: usize, side: usize, loss: &LaneLoss) {
        if self.wires[wire].sides[side].over {
            return;
        }
        self.end_fill(wire, side);
        let Side { node, lane, over, .. } = &mut self.wires[wire].sides[side];
        *over = true;
        let (node, Some(lane)) = (*node, *lane) else { return };
        self.nodes[node].lanes.remove(&lane.0);
        if self.nodes[node].alive {
            let Node { engine, mem, .. } = &mut self.nodes[node];
            engine.lane_lost(self.now, lane, loss, mem);
            self.pump(node);
        }
    }

    // What goes wrong.

    fn break_some(&mut self) {
        let open = self.open_wires();
        if !open.is_empty() {
            let wire = self.rng.pick(&open);
            self.break_wire(wire);
        }
        self.schedule_break();
    }

    /// Wires of which both ends work.
    pub(crate) fn open_wires(&self) -> Vec<usize> {
        let open = |wire: &usize| {
            let wire = &self.wires[*wire];
            wire.sides.iter().all(|side| !side.over) && wire.dirs.iter().all(|dir| !dir.dead)
        };
        (0..self.wires.len()).filter(open).collect()
    }

    /// What is on its way is lost from a random point on; each side learns of it later.
    pub(crate) fn break_wire(&mut self, wire: usize) {
        for side in 0..2 {
            let keep = self.rng.below(self.wires[wire].dirs[side].flight.len() as u64 + 1);
            let dir = &mut self.wires[wire].dirs[side];
            dir.flight.truncate(keep as usize);
            dir.dead = true;
            let notice = self.rng.below(self.net.notice + 1);
            let loss = if self.rng.chance(500) {
                LaneLoss::Closed
            } else {
                LaneLoss::Broken("reset by peer".into())
            };
            self.after(notice, Event::Lost(wire, side, loss));
        }
    }

    /// What this lane carries vanishes from now on, and TCP finds out by itself after long.
    pub(crate) fn hang_wire(&mut self, wire: usize) {
        for side in 0..2 {
            self.wires[wire].dirs[side].flight.clear();
            self.wires[wire].dirs[side].dead = true;
            let loss = LaneLoss::Broken("timed out".into());
            self.after(20_000_000, Event::Lost(wire, side, loss));
        }
    }

    /// A router's process ends.
    pub(crate) fn kill_router(&mut self, router: usize) {
        self.routers[router] = Health::Dead;
        for wire in self.wires_of(router) {
            self.break_wire(wire);
        }
    }

    /// A router stops, and keeps its sockets.
    pub(crate) fn hang_router(&mut self, router: usize) {
        self.routers[router] = Health::Hung;
        for wire in self.wires_of(router) {
            for dir in &mut self.wires[wire].dirs {
                dir.flight.clear();
                dir.dead = true;
            }
        }
    }

    /// Everything on this way vanishes from now on, and nobody is told for long.
    pub(crate) fn cut_way(&mut self, way: usize) {
        self.cut[way] = true;
        for wire in 0..self.wires.len() {
            if self.wires[wire].router.is_some() || self.wires[wire].way != way {
                continue;
            }
            self.hang_wire(wire);
        }
    }

    /// New lanes can be made on this way again.
    pub(crate) fn mend_way(&mut self, way: usize) {
        self.cut[way] = false;
    }

    /// Bytes that were written to lanes on this way.
    pub(crate) fn carried(&self, way: usize) -> u64 {
        self.wires.iter().filter(|wire| wire.way == way).map(|wire| wire.carried).sum()
    }

    /// Bytes that lanes carried which use all of their path, and how many of those there are.
    pub(crate) fn filling(&self) -> (u64, usize) {
        let filling = self.wires.iter().filter(|wire| wire.fills_path);
        (filling.clone().map(|wire| wire.carried).sum(), filling.count())
    }

    /// A router's process starts anew.
    pub(crate) fn start_router(&mut self, router: usize) {
        if self.routers[router] == Health::Hung {
            self.kill_router(router);
        }
        self.routers[router] = Health::Up;
    }

    /// Lanes that work through a router.
    pub(crate) fn lanes_of(&self, router: usize) -> usize {
        self.wires_of(router).len()
    }

    fn wires_of(&self, router: usize) -> Vec<usize> {
        let through = |wire: &usize| {
            let wire = &self.wires[*wire];
            wire.router == Some(router) && wire.sides.iter().any(|side| !side.over)
        };
        (0..self.wires.len()).filter(through).collect()
    }

    /// The network works from now on.
    pub(crate) fn heal(&mut self) {
        for router in 0..self.routers.len() {
            self.start_router(router);
        }
        let Net { delay, chunk_max, buffer, fill, .. } = self.net.clone();
        self.net = Net { delay, chunk_max, buffer, fill, ..Net::calm() };
    }

    /// A process ends without a word.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].alive = false;
        for wire in self.open_wires() {
            if self.wires[wire].sides.iter().any(|side| side.node == node) {
                self.break_wire(wire);
            }
        }
    }

    /// The process closes its endpoint in good order.
    pub(crate) fn close(&mut self, node: usize, linger: u64) {
        let until = self.now + linger;
        self.nodes[node].engine.begin_close();
        while !self.nodes[node].engine.is_drained() && self.next_at().is_some_and(|at| at <= until) {
            self.step();
        }
        self.nodes[node].engine.say_bye();
        self.pump(node);
    }
}
