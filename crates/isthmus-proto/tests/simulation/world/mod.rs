//! A network in virtual time: engines, the shells around them, and byte streams that are slow, split frames anywhere,
//! and break.

mod borrowing;
mod faults;
mod lanes;
mod shell;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::LazyLock;

use isthmus_proto::{
    Batch, Completion, Config, Engine, LaneId, LaneLoss, Micros, PeerFault, PeerId, Secret, Segment, Sink,
    public_key,
};
use isthmus_wire::{Address, AsId, Key, SubnetId};

use crate::arena::Arena;
use crate::rng::Rng;

/// The properties of the network.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    /// One-way delay. Microseconds, least and most.
    pub(crate) delay: (u64, u64),
    /// Most bytes that one write takes or one read gives.
    pub(crate) chunk_max: u64,
    /// Most bytes in flight in one direction of a lane.
    pub(crate) buffer: usize,
    /// Dials, of a thousand, that are refused, that time out, and that nobody answers.
    pub(crate) refused: u64,
    pub(crate) timed_out: u64,
    pub(crate) unanswered: u64,
    /// Longest time in which a shell fills a buffer. Microseconds.
    pub(crate) fill: u64,
    /// Time between two breaks of lanes, least and most. Microseconds; `None`: no lane breaks.
    pub(crate) breaks: Option<(u64, u64)>,
    /// Longest time until a side notices that its lane broke. Microseconds.
    pub(crate) notice: u64,
    /// Writes, of a thousand, at which the shell finds that another lane would fill the path and this one does not.
    /// Lanes that fill their path are dialled from then on.
    pub(crate) outdone: u64,
    /// Writes, of a thousand, that arrive a round trip later, as after a retransmission. Later writes wait for them.
    pub(crate) lost: u64,
    /// Batches, of a thousand, that the shell borrows without a copy, and the longest time until it returns one that is
    /// not recalled. Microseconds.
    pub(crate) borrows: (u64, u64),
    /// Rate of each direction of a lane. Bytes/s; 0: as fast as the shell writes, with pauses.
    pub(crate) rate: u64,
    /// That rate is the user's limit, which the shell tells.
    pub(crate) limited: bool,
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
            lost: 0,
            borrows: (0, 0),
            rate: 0,
            limited: false,
        }
    }

    /// The limit that a shell tells of each lane. Bytes/s.
    fn limit(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.rate).filter(|_| self.limited)
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
    /// Time at which the last write has left.
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
    /// The borrowed batches, and the number of those that were returned.
    borrowed: VecDeque<Vec<Segment>>,
    returned: u64,
}

#[derive(Debug, Default)]
struct Wire {
    sides: [Side; 2],
    dirs: [Dir; 2],
    /// The router that it leads through.
    router: Option<usize>,
    /// The rail that it uses, if processes have several.
    rail: usize,
    /// Bytes that it has carried.
    carried: u64,
    /// It fills its path.
    pub(crate) fills_path: bool,
    /// The bytes that the router has read of an incomplete Hello.
    hello: Option<Vec<u8>>,
}

/// The state of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Up,
    /// Its process has ended: its lanes break, new ones are refused.
    Dead,
    /// It does nothing, but its sockets stay. Lanes can be connected, and their data vanishes.
    Hung,
}

#[derive(Debug)]
enum Event {
    Deliver(usize, usize),
    Write(usize, usize),
    Return(usize, usize),
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
    /// The lanes that it dials from now on fill their path.
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
    /// Messages take the fast path if they may. `went_short` counts those that did.
    pub(crate) shorts: bool,
    /// Every other lane is to be sealed. Only the division of frames into batches differs.
    pub(crate) seals: bool,
    pub(crate) went_short: u64,
    /// Borrowed batches that were returned because the engine recalled them.
    pub(crate) recalled: u64,
    /// The shell passes messages in by runs. `longest_run` is the most messages of one run.
    pub(crate) runs: bool,
    pub(crate) longest_run: u64,
    /// Rails that are cut: everything on them vanishes.
    cut: [bool; RAILS],
    wires: Vec<Wire>,
    events: BTreeMap<(Micros, u64), Event>,
    age: u64,
}

/// The address of the process with this number, if each process is in an AS of its own.
pub(crate) fn foreign(node: usize) -> Address {
    Address { as_id: AsId(node as u32 + 1), ..address(node) }
}

/// The address of the process with this number.
pub(crate) fn address(node: usize) -> Address {
    static KEYS: LazyLock<Vec<Key>> =
        LazyLock::new(|| (0..=254).map(|node| public_key(&secret(node))).collect());
    let (as_id, subnet, key) = (AsId(1), SubnetId(1), KEYS[node]);
    Address { as_id, subnet, locator: locator(node, 0), incarnation: node as u32 + 1, key }
}

/// The configuration of a process that admits everybody.
pub(crate) fn open(config: Config) -> Config {
    Config { address: config.address.place(), secret: None, ..config }
}

/// The secret from which the keys of the process with this number come.
pub(crate) fn secret(node: usize) -> Secret {
    Secret([node as u8 + 1; 32])
}

/// The locator of the process with this number on a rail. Each process has a host of its own; rail 0 is its address.
pub(crate) fn locator(node: usize, rail: usize) -> SocketAddr {
    SocketAddr::new([127, 0, 0, 1 + node as u8].into(), 1000 * (rail as u16 + 1) + node as u16)
}

/// First port of routers. The ports of processes begin at 1000, those of further rails at 2000.
const ROUTER_PORT: usize = 500;
/// Most rails between processes.
pub(crate) const RAILS: usize = 4;

impl World {
    pub(crate) fn new(seed: u64, nodes: usize, net: Net, config: impl Fn(Config) -> Config) -> Self {
        Self::routed(seed, nodes, 0, net, config)
    }

    /// A world with routers, in which every process is in an AS of its own.
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
        let with_routers =
            |index| Config { routers: known.clone(), seed, ..Config::new(own(index)).closed(secret(index)) };
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
            seals: false,
            went_short: 0,
            recalled: 0,
            runs: false,
            longest_run: 0,
            cut: [false; RAILS],
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

    /// The peer in the engine of `node` that stands for `other`.
    pub(crate) fn peer(&mut self, node: usize, other: usize) -> PeerId {
        let other = if self.routers.is_empty() { address(other) } else { foreign(other) };
        let is_open = self.nodes[node].engine.address().key.is_none();
        let other = if is_open { other.place() } else { other };
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

    /// Runs the next event; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(((at, _), event)) = self.events.pop_first() else { return false };
        self.now = at;
        self.steps += 1;
        match event {
            Event::Deliver(wire, dir) => self.deliver(wire, dir),
            Event::Write(wire, side) => self.write(wire, side),
            Event::Return(wire, side) => {
                self.give_back(wire, side);
                self.pump(self.wires[wire].sides[side].node);
            }
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
}
