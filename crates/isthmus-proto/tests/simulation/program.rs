//! The programs on the nodes; `oracle.rs` checks their completions.

mod oracle;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use isthmus_proto::{
    AtomicKind, AtomicOp, AtomicRequest, AtomicType, BufferRef, Channel, Fence, Level, OpError, Options,
    PeekAction, PeekRequest, PeerId, RecvRequest, RemoteRange, RmaRequest, SendRequest, ServiceLevel,
    Transfer,
};
use isthmus_wire::frame::Status;

use crate::arena::KEY;
use crate::world::{Node, World};

/// Length of a slot of the region (bytes), and the number of slots that every process has at every other.
pub(crate) const SLOT: u64 = 1 << 20;
pub(crate) const SLOTS: usize = 2;
/// Elements of the cells that one process alone changes. Count.
pub(crate) const CELLS: usize = 4;

/// The content of message or write number `id`.
pub(crate) fn content(id: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len as usize + 8);
    let mut word = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    out.extend_from_slice(&id.to_le_bytes());
    while (out.len() as u64) < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(id);
        out.extend_from_slice(&(word ^ (word >> 29)).to_le_bytes());
    }
    out.truncate(len as usize);
    out
}

/// A message that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Msg {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) channel: Channel,
    pub(crate) class: u64,
    pub(crate) len: u64,
    pub(crate) data: Option<u64>,
    /// Index of the match, if there was one.
    matched: Option<usize>,
}

impl Msg {
    fn tag(&self, id: u64) -> u64 {
        id << 8 | self.class
    }
}

/// A receive or a peek.
#[derive(Clone, Debug)]
struct Getter {
    node: usize,
    source: Option<usize>,
    channel: Channel,
    class: Option<u64>,
    room: u64,
    place: BufferRef,
    multi: bool,
    /// The action, if it is a peek. A peek finds its message at once.
    peek: Option<PeekAction>,
    over: bool,
    /// Slices of a multi-receive buffer: offset, length, message.
    slices: Vec<(u64, u64, u64)>,
}

impl Getter {
    fn fits(&self, msg: &Msg) -> bool {
        self.node == msg.to
            && self.channel == msg.channel
            && self.source.is_none_or(|source| source == msg.from)
            && (self.channel == Channel::Untagged || self.class.is_none_or(|class| class == msg.class))
    }
}

#[derive(Clone, Debug)]
enum Kind {
    Send,
    Recv { getter: usize },
    Claim { getter: usize, msg: u64, discard: bool },
    Write { target: usize, slot: usize, content: Vec<u8> },
    Read { expected: Vec<u8>, slot: Option<(usize, usize)> },
    Atomic { expected: Option<Vec<u8>> },
    Refused { status: Status },
}

#[derive(Clone, Debug)]
struct Op {
    node: usize,
    peer: usize,
    /// Number among all operations of this node to this peer.
    number: u64,
    kind: Kind,
    place: Option<BufferRef>,
    fence: Fence,
}

impl Op {
    /// Whether [`Fence::Remote`] waits for it.
    fn is_remote(&self) -> bool {
        matches!(self.kind, Kind::Write { .. } | Kind::Read { .. } | Kind::Atomic { .. })
    }
}

#[derive(Clone, Copy, Debug)]
enum Claimed {
    Open { context: u64, msg: u64 },
}

/// The programs and the oracle.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) world: World,
    /// Whether peers may fail. If so, the oracle accepts errors of peers.
    pub(crate) mortal: bool,
    pub(crate) failures: Vec<(usize, OpError)>,
    ops: BTreeMap<u64, Op>,
    pub(crate) msgs: Vec<Msg>,
    getters: Vec<Getter>,
    /// Matches of a message and a receive, in the order of the completions.
    matches: Vec<(u64, usize)>,
    pending: HashMap<(usize, usize), BTreeSet<u64>>,
    claimed: Vec<(usize, Claimed)>,
    slots: HashMap<(usize, usize, usize), (Vec<u8>, bool)>,
    cells: HashMap<(usize, usize), Vec<u64>>,
    shared: HashMap<usize, BTreeSet<u64>>,
    shared_posted: HashMap<usize, u64>,
    remote_data: BTreeMap<u64, usize>,
    next: u64,
    pub(crate) completed: u64,
}

/// Options of a post.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    pub(crate) inject: bool,
    pub(crate) level: Level,
    pub(crate) fence: Fence,
    pub(crate) data: bool,
    pub(crate) listed: bool,
    pub(crate) transfer: Option<Transfer>,
    /// The message may complete from a copy.
    pub(crate) buffered: bool,
}

/// Added to the context of a message whose failure is told after it has completed from a copy.
pub(crate) const LATE: u64 = 1 << 63;

impl Program {
    pub(crate) fn new(mut world: World) -> Self {
        let nodes = world.nodes.len();
        let region = nodes * SLOTS * SLOT as usize + (nodes * CELLS + 1) * 8;
        for node in &mut world.nodes {
            assert_eq!(node.mem.register(vec![0; region]), KEY);
        }
        Self {
            world,
            mortal: false,
            failures: Vec::new(),
            ops: BTreeMap::new(),
            msgs: Vec::new(),
            getters: Vec::new(),
            matches: Vec::new(),
            pending: HashMap::new(),
            claimed: Vec::new(),
            slots: HashMap::new(),
            cells: HashMap::new(),
            shared: HashMap::new(),
            shared_posted: HashMap::new(),
            remote_data: BTreeMap::new(),
            next: 1,
            completed: 0,
        }
    }

    fn nodes(&self) -> usize {
        self.world.nodes.len()
    }

    fn enter(&mut self, node: usize, peer: usize, kind: Kind, place: Option<BufferRef>, fence: Fence) -> u64 {
        let number = self.next;
        self.next += 1;
        self.ops.insert(number, Op { node, peer, number, kind, place, fence });
        self.pending.entry((node, peer)).or_default().insert(number);
        number
    }

    fn options(context: u64, how: How) -> Options {
        let How { inject, level, fence, transfer, buffered, .. } = how;
        let buffered = buffered.then_some(LATE | context);
        // One operation in four belongs to no connection.
        let service = ServiceLevel::ALL.get(context as usize % 4).copied();
        Options { context, notify: true, silent: false, inject, level, buffered, fence, transfer, service }
    }

    /// Drains the engine and checks the completions, after every call of a program.
    fn after(&mut self, node: usize) {
        self.world.pump(node);
        self.check();
    }

    pub(crate) fn send(
        &mut self,
        node: usize,
        to: usize,
        channel: Channel,
        class: u64,
        len: u64,
        how: How,
    ) -> u64 {
        let peer = self.world.peer(node, to);
        self.send_to(node, to, peer, channel, class, len, how)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn send_to(
        &mut self,
        node: usize,
        to: usize,
        peer: PeerId,
        channel: Channel,
        class: u64,
        len: u64,
        how: How,
    ) -> u64 {
        let id = self.msgs.len() as u64;
        let data = (how.data || channel == Channel::Untagged).then_some(id);
        let msg = Msg { from: node, to, channel, class, len, data, matched: None };
        let tag = msg.tag(id);
        self.msgs.push(msg);
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place = mem.lend(content(id, len), false, how.listed);
        let context = self.enter(node, to, Kind::Send, (!how.inject).then_some(place), how.fence);
        let request = SendRequest { peer, channel, tag, data, options: Self::options(context, how) };
        if !self.world.send_short(node, &request, place, len) {
            let Node { engine, mem, .. } = &mut self.world.nodes[node];
            engine.send(&request, place, len, mem).expect("posted");
        }
        let Node { mem, .. } = &mut self.world.nodes[node];
        if how.inject {
            mem.reclaim(place);
        }
        self.after(node);
        id
    }

    pub(crate) fn recv(
        &mut self,
        node: usize,
        source: Option<usize>,
        channel: Channel,
        class: Option<u64>,
        room: u64,
    ) -> u64 {
        self.receive(node, source, channel, class, room, None)
    }

    pub(crate) fn receive(
        &mut self,
        node: usize,
        source: Option<usize>,
        channel: Channel,
        class: Option<u64>,
        room: u64,
        multi: Option<u64>,
    ) -> u64 {
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place = mem.lend(vec![0xEE; room as usize], true, multi.is_none() && room.is_multiple_of(3));
        let getter = self.getter(node, source, channel, class, room, place, None);
        self.getters[getter].multi = multi.is_some();
        let context = self.enter(node, usize::MAX, Kind::Recv { getter }, Some(place), Fence::None);
        let request = RecvRequest {
            source: source.map(|source| self.world.peer(node, source)),
            channel,
            tag: class.unwrap_or(0),
            ignore: if class.is_some() { !0xff } else { u64::MAX },
            multi,
            options: Self::options(context, How::default()),
        };
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        engine.recv(&request, place, room, mem);
        self.after(node);
        context
    }

    #[allow(clippy::too_many_arguments)]
    fn getter(
        &mut self,
        node: usize,
        source: Option<usize>,
        channel: Channel,
        class: Option<u64>,
        room: u64,
        place: BufferRef,
        peek: Option<PeekAction>,
    ) -> usize {
        let getter = Getter {
            node,
            source,
            channel,
            class,
            room,
            place,
            multi: false,
            peek,
            over: false,
            slices: Vec::new(),
        };
        self.getters.push(getter);
        self.getters.len() - 1
    }

    pub(crate) fn peek(
        &mut self,
        node: usize,
        source: Option<usize>,
        class: Option<u64>,
        action: PeekAction,
    ) -> bool {
        let context = self.next;
        self.next += 1;
        let request = PeekRequest {
            source: source.map(|source| self.world.peer(node, source)),
            tag: class.unwrap_or(0),
            ignore: if class.is_some() { !0xff } else { u64::MAX },
            action,
            options: Self::options(context, How::default()),
        };
        self.after(node);
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        engine.peek(&request, mem);
        let found = engine.poll_completion().expect("a peek answers at once");
        assert_eq!(found.context, context);
        self.after(node);
        if found.error.is_some() {
            assert_eq!(found.error, Some(OpError::NoMessage));
            return false;
        }
        let id = found.tag >> 8;
        let getter = self.getter(node, source, Channel::Tagged, class, 0, BufferRef::default(), Some(action));
        self.getters[getter].over = true;
        let msg = &self.msgs[id as usize];
        assert!(self.getters[getter].fits(msg), "peeked at a message that was not asked for");
        assert_eq!((found.len, found.data, msg.matched), (msg.len, msg.data, None));
        if action != PeekAction::Look {
            self.note_match(id, getter);
        }
        if action == PeekAction::Claim {
            self.claimed.push((node, Claimed::Open { context, msg: id }));
        }
        true
    }

    /// Receives or drops a message that was claimed before; false if there is none.
    pub(crate) fn claim(&mut self, room: Option<u64>) -> bool {
        let Some((node, Claimed::Open { context, msg })) = self.claimed.pop() else { return false };
        if !self.world.nodes[node].alive {
            return true;
        }
        let room_or_none = room.unwrap_or(0);
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place = mem.lend(vec![0xEE; room_or_none as usize], true, false);
        let getter =
            self.getter(node, None, Channel::Tagged, None, room_or_none, place, Some(PeekAction::Claim));
        self.getters[getter].over = true;
        let kind = Kind::Claim { getter, msg, discard: room.is_none() };
        let op = Op { node, peer: usize::MAX, number: context, kind, place: Some(place), fence: Fence::None };
        self.ops.insert(context, op);
        let request = RecvRequest {
            source: None,
            channel: Channel::Tagged,
            tag: 0,
            ignore: 0,
            multi: None,
            options: Self::options(context, How::default()),
        };
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        assert!(engine.claim(&request, place, room_or_none, room.is_none(), mem));
        self.after(node);
        true
    }

    /// The context of the operation that was posted last.
    pub(crate) fn newest(&self) -> u64 {
        self.next - 1
    }

    /// Whether the operation has completed.
    pub(crate) fn is_over(&self, context: u64) -> bool {
        !self.ops.contains_key(&context)
    }

    /// Cancels a receive; false if it is over or under way.
    pub(crate) fn cancel(&mut self, context: u64) -> bool {
        let Some(Op { node, .. }) = self.ops.get(&context) else { return false };
        let node = *node;
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        let cancelled = engine.cancel(context, mem);
        self.after(node);
        cancelled
    }

    /// Writes to a slot of the target's region; false if the slot is in use.
    pub(crate) fn write(&mut self, node: usize, to: usize, slot: usize, len: u64, how: How) -> bool {
        let id = self.next;
        let addr = ((node * SLOTS + slot) as u64) * SLOT;
        let entry = self.slots.entry((node, to, slot)).or_default();
        if entry.1 {
            return false;
        }
        entry.1 = true;
        let bytes = content(id, len);
        let peer = self.world.peer(node, to);
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place = mem.lend(bytes.clone(), false, how.listed);
        let kind = Kind::Write { target: to, slot, content: bytes };
        let context = self.enter(node, to, kind, (!how.inject).then_some(place), how.fence);
        if how.data {
            self.remote_data.insert(context, to);
        }
        let remote = RemoteRange { key: KEY, addr, len };
        let data = how.data.then_some(context);
        let request = RmaRequest { peer, remote, data, options: Self::options(context, how) };
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        engine.write(&request, place, mem).expect("posted");
        if how.inject {
            mem.reclaim(place);
        }
        self.after(node);
        true
    }

    /// Reads a slot back; false if it is in use.
    pub(crate) fn read(&mut self, node: usize, to: usize, slot: usize, how: How) -> bool {
        let addr = ((node * SLOTS + slot) as u64) * SLOT;
        let entry = self.slots.entry((node, to, slot)).or_default();
        if entry.1 {
            return false;
        }
        entry.1 = true;
        let expected = entry.0.clone();
        let len = expected.len() as u64;
        let peer = self.world.peer(node, to);
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place = mem.lend(vec![0xEE; len as usize], true, how.listed);
        let kind = Kind::Read { expected, slot: Some((to, slot)) };
        let context = self.enter(node, to, kind, Some(place), how.fence);
        let remote = RemoteRange { key: KEY, addr, len };
        let request = RmaRequest {
            peer,
            remote,
            data: None,
            options: Self::options(context, How { inject: false, ..how }),
        };
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        engine.read(&request, place, mem).expect("posted");
        self.after(node);
        true
    }

    /// Reads or writes memory that is not registered.
    pub(crate) fn trespass(&mut self, node: usize, to: usize, read: bool, len: u64, status: Status) {
        let peer = self.world.peer(node, to);
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place = mem.lend(vec![0xEE; len as usize], read, false);
        let context = self.enter(node, to, Kind::Refused { status }, Some(place), Fence::None);
        let remote = match status {
            Status::Key => RemoteRange { key: 7, addr: 0, len },
            _ => RemoteRange { key: KEY, addr: u64::MAX - 5, len },
        };
        let request =
            RmaRequest { peer, remote, data: None, options: Self::options(context, How::default()) };
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        if read { engine.read(&request, place, mem) } else { engine.write(&request, place, mem) }
            .expect("posted");
        self.after(node);
    }

    /// Posts an atomic on cells that only this process uses. The model changes at once, since the target carries the
    /// atomics out in order.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn atomic(
        &mut self,
        node: usize,
        to: usize,
        kind: AtomicKind,
        op: AtomicOp,
        operands: &[u64],
        compare: &[u64],
        fence: Fence,
    ) {
        let addr = (self.nodes() * SLOTS) as u64 * SLOT + (node * CELLS * 8) as u64;
        let cells = self.cells.entry((node, to)).or_insert_with(|| vec![0; CELLS]);
        let earlier: Vec<u8> = cells[..operands.len()].iter().flat_map(|cell| cell.to_le_bytes()).collect();
        for (i, cell) in cells[..operands.len()].iter_mut().enumerate() {
            *cell = model(op, *cell, operands[i], compare.get(i).copied());
        }
        let mut bytes = Vec::new();
        if op != AtomicOp::AtomicRead {
            bytes.extend(operands.iter().flat_map(|operand| operand.to_le_bytes()));
        }
        bytes.extend(compare.iter().flat_map(|operand| operand.to_le_bytes()));
        let expected = (kind != AtomicKind::Update).then_some(earlier);
        self.post_atomic(node, to, addr, 8 * operands.len() as u64, kind, op, &bytes, expected, fence);
    }

    #[allow(clippy::too_many_arguments)]
    fn post_atomic(
        &mut self,
        node: usize,
        to: usize,
        addr: u64,
        len: u64,
        kind: AtomicKind,
        op: AtomicOp,
        operands: &[u8],
        expected: Option<Vec<u8>>,
        fence: Fence,
    ) -> u64 {
        let peer = self.world.peer(node, to);
        let fetches = kind != AtomicKind::Update;
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place =
            if fetches { mem.lend(vec![0xEE; len as usize], true, false) } else { BufferRef::default() };
        let context = self.enter(node, to, Kind::Atomic { expected }, fetches.then_some(place), fence);
        let request = AtomicRequest {
            peer,
            remote: RemoteRange { key: KEY, addr, len },
            kind,
            op,
            datatype: AtomicType::Uint64,
            options: Self::options(context, How { fence, ..How::default() }),
        };
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        engine.atomic(&request, operands, place, mem).expect("posted");
        self.after(node);
        context
    }

    /// Adds one to the counter that all processes share; every earlier value is seen once.
    pub(crate) fn count(&mut self, node: usize, to: usize) {
        let nodes = self.nodes();
        let addr = (nodes * SLOTS) as u64 * SLOT + (nodes * CELLS * 8) as u64;
        *self.shared_posted.entry(to).or_default() += 1;
        let one = 1u64.to_le_bytes();
        self.post_atomic(node, to, addr, 8, AtomicKind::Fetch, AtomicOp::Sum, &one, None, Fence::None);
    }

    /// Runs until nothing happens.
    pub(crate) fn settle(&mut self) {
        for _ in 0..3_000_000 {
            if !self.world.step() {
                return self.check();
            }
            self.check();
        }
        panic!("the network does not come to rest");
    }

    pub(crate) fn run_until(&mut self, until: u64) {
        while self.world.next_at().is_some_and(|at| at <= until) {
            self.world.step();
            self.check();
        }
        self.world.now = self.world.now.max(until);
    }

    /// Cancels the receives that got no message, receives the messages that are left, and checks that nothing remains.
    pub(crate) fn finish(&mut self) {
        self.world.heal();
        self.settle();
        while self.claim(Some(3 << 20)) {}
        self.cancel_receives();
        let unmatched: Vec<Msg> = self.msgs.iter().filter(|msg| msg.matched.is_none()).cloned().collect();
        for msg in unmatched {
            if self.world.nodes[msg.to].alive {
                self.recv(msg.to, None, msg.channel, None, 3 << 20);
            }
        }
        self.settle();
        if self.mortal {
            self.cancel_receives();
        }
        self.expect_rest();
    }

    fn cancel_receives(&mut self) {
        let receives: Vec<u64> = self
            .ops
            .iter()
            .filter(|(_, op)| matches!(op.kind, Kind::Recv { .. }) && self.world.nodes[op.node].alive)
            .map(|(context, _)| *context)
            .collect();
        for context in receives {
            self.cancel(context);
        }
        self.settle();
    }

    pub(crate) fn expect_rest(&mut self) {
        assert_eq!(self.world.faults, [], "a correct peer was called faulty");
        for node in 0..self.nodes() {
            let Node { engine, mem, alive, .. } = &self.world.nodes[node];
            if !alive {
                continue;
            }
            let mut mine: Vec<_> =
                self.ops.iter().filter(|(_, op)| op.node == node).map(|(id, _)| id).collect();
            mine.truncate(5);
            let left = engine.leftovers();
            assert!(mine.is_empty(), "node {node} never completed {mine:?}; left are {left:?}");
            assert_eq!(left, Vec::<String>::new(), "node {node}");
            assert_eq!((engine.pending(), mem.lent()), (0, 0));
        }
        if !self.mortal {
            self.check_memory();
            self.check_order();
        }
    }
}

/// The effect of an atomic on one element, implemented a second time.
fn model(op: AtomicOp, old: u64, new: u64, compare: Option<u64>) -> u64 {
    match op {
        AtomicOp::Sum => old.wrapping_add(new),
        AtomicOp::Max => old.max(new),
        AtomicOp::Min => old.min(new),
        AtomicOp::Bxor => old ^ new,
        AtomicOp::AtomicWrite => new,
        AtomicOp::Cswap if compare == Some(old) => new,
        AtomicOp::CswapLt if compare.is_some_and(|compare| compare < old) => new,
        AtomicOp::Mswap => (new & compare.unwrap_or(0)) | (old & !compare.unwrap_or(0)),
        _ => old,
    }
}
