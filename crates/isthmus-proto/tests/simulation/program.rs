//! What the programs on the nodes do, and the oracle that judges what they are told.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use isthmus_proto::{
    AtomicKind, AtomicOp, AtomicRequest, AtomicType, Channel, Completion, CompletionKind, Level, OpError,
    Options, PeekAction, PeekRequest, PeerId, Place, RecvRequest, RemoteRange, RmaRequest, SendRequest,
    Transfer,
};
use isthmus_wire::frame::Status;

use crate::arena::KEY;
use crate::world::{Node, World};

/// Bytes of a slot of the region, and slots that every process has at every other.
pub(crate) const SLOT: u64 = 1 << 20;
pub(crate) const SLOTS: usize = 2;
/// Elements of the cells on which every process works alone.
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
    /// Index of the match, where there was one.
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
    place: Place,
    multi: bool,
    /// A look, claim or discard takes what it takes at once.
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
    place: Option<Place>,
    fence: bool,
}

#[derive(Clone, Copy, Debug)]
enum Claimed {
    Open { context: u64, msg: u64 },
}

/// The programs and the oracle.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) world: World,
    /// Whether peers may fail: then errors of peers are no surprise.
    pub(crate) mortal: bool,
    pub(crate) failures: Vec<(usize, OpError)>,
    ops: BTreeMap<u64, Op>,
    pub(crate) msgs: Vec<Msg>,
    getters: Vec<Getter>,
    /// Message, receive: in the order in which the completions came.
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

/// How an operation is posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    pub(crate) inject: bool,
    pub(crate) level: Level,
    pub(crate) fence: bool,
    pub(crate) data: bool,
    pub(crate) listed: bool,
    pub(crate) transfer: Transfer,
}

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

    fn enter(&mut self, node: usize, peer: usize, kind: Kind, place: Option<Place>, fence: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        self.ops.insert(number, Op { node, peer, number, kind, place, fence });
        self.pending.entry((node, peer)).or_default().insert(number);
        number
    }

    fn options(context: u64, how: How) -> Options {
        let How { inject, level, fence, transfer, .. } = how;
        Options { context, notify: true, silent: false, inject, level, fence, transfer }
    }

    /// What follows every call of a program.
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
        let context = self.enter(node, usize::MAX, Kind::Recv { getter }, Some(place), false);
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
        place: Place,
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
        let getter = self.getter(node, source, Channel::Tagged, class, 0, Place::default(), Some(action));
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

    /// Receives or drops something claimed before; false where there is nothing.
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
        let op = Op { node, peer: usize::MAX, number: context, kind, place: Some(place), fence: false };
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

    /// Whether the operation has completed.
    /// The context of the operation that was posted last.
    pub(crate) fn newest(&self) -> u64 {
        self.next - 1
    }

    pub(crate) fn is_over(&self, context: u64) -> bool {
        !self.ops.contains_key(&context)
    }

    /// Cancels a receive; false where it is over or under way.
    pub(crate) fn cancel(&mut self, context: u64) -> bool {
        let Some(Op { node, .. }) = self.ops.get(&context) else { return false };
        let node = *node;
        let Node { engine, mem, .. } = &mut self.world.nodes[node];
        let cancelled = engine.cancel(context, mem);
        self.after(node);
        cancelled
    }

    /// Writes to a slot of the target's region; false where the slot is in use.
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

    /// Reads a slot back; false where it is in use.
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

    /// Reads or writes where nothing is registered.
    pub(crate) fn trespass(&mut self, node: usize, to: usize, read: bool, len: u64, status: Status) {
        let peer = self.world.peer(node, to);
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place = mem.lend(vec![0xEE; len as usize], read, false);
        let context = self.enter(node, to, Kind::Refused { status }, Some(place), false);
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

    /// An atomic on cells that only this process uses; the model is brought up to date
    /// at once, since the target carries them out in order.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn atomic(
        &mut self,
        node: usize,
        to: usize,
        kind: AtomicKind,
        op: AtomicOp,
        operands: &[u64],
        compare: &[u64],
        fence: bool,
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
        fence: bool,
    ) -> u64 {
        let peer = self.world.peer(node, to);
        let fetches = kind != AtomicKind::Update;
        let Node { mem, .. } = &mut self.world.nodes[node];
        let place = if fetches { mem.lend(vec![0xEE; len as usize], true, false) } else { Place::default() };
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
        self.post_atomic(node, to, addr, 8, AtomicKind::Fetch, AtomicOp::Sum, &one, None, false);
    }

    // The oracle.

    /// Judges all completions that have come.
    pub(crate) fn check(&mut self) {
        for node in 0..self.nodes() {
            while let Some(completion) = self.world.nodes[node].done.pop_front() {
                self.judge(node, &completion);
            }
        }
    }

    fn judge(&mut self, node: usize, completion: &Completion) {
        match completion.kind {
            CompletionKind::RemoteWrite => {
                let context = completion.data.expect("data of a remote write");
                assert_eq!(
                    self.remote_data.remove(&context),
                    Some(node),
                    "data of a write came twice or astray"
                );
                return;
            }
            CompletionKind::RemoteAccess { .. } => return,
            _ => {}
        }
        self.completed += 1;
        let context = completion.context;
        let op = self
            .ops
            .get(&context)
            .unwrap_or_else(|| panic!("completed twice or never posted: {completion:?}"));
        let op = op.clone();
        assert_eq!(op.node, node);
        if let Kind::Recv { getter } = op.kind
            && self.getters[getter].multi
        {
            return self.judge_multi(getter, context, completion);
        }
        self.ops.remove(&context);
        self.retire(&op, completion.error.is_none());
        let bytes = op.place.map(|place| self.world.nodes[node].mem.reclaim(place));
        match op.kind {
            Kind::Send => self.expect_success(node, completion),
            Kind::Recv { getter } => self.judge_recv(getter, completion, &bytes.unwrap_or_default()),
            Kind::Claim { getter, msg, discard } => {
                if self.forgives(node, completion) {
                    return;
                }
                if discard {
                    assert_eq!(completion.error, None);
                } else {
                    self.judge_content(
                        msg,
                        self.getters[getter].room,
                        completion,
                        &bytes.unwrap_or_default(),
                    );
                }
            }
            Kind::Write { target, slot, content } => {
                let entry = self.slots.get_mut(&(node, target, slot)).expect("a slot");
                entry.1 = false;
                let addr = (node * SLOTS + slot) * SLOT as usize;
                let region = &self.world.nodes[target].mem.region(KEY)[addr..];
                let arrived = region[..content.len()] == content[..];
                if content.len() >= entry.0.len() {
                    entry.0 = content;
                } else {
                    entry.0[..content.len()].copy_from_slice(&content);
                }
                self.expect_success(node, completion);
                assert!(arrived || completion.error.is_some(), "complete but not written");
            }
            Kind::Read { expected, slot } => {
                if let Some((to, slot)) = slot {
                    self.slots.get_mut(&(node, to, slot)).expect("a slot").1 = false;
                }
                self.expect_success(node, completion);
                assert!(bytes == Some(expected) || completion.error.is_some(), "read something else");
            }
            Kind::Atomic { expected } => {
                self.expect_success(node, completion);
                if completion.error.is_some() {
                    return;
                }
                match (expected, bytes) {
                    (Some(expected), bytes) => assert_eq!(bytes, Some(expected), "fetched something else"),
                    (None, Some(bytes)) => {
                        let seen = u64::from_le_bytes(bytes.try_into().expect("one element"));
                        assert!(self.shared.entry(op.peer).or_default().insert(seen), "counted twice");
                    }
                    (None, None) => {}
                }
            }
            Kind::Refused { status } => {
                if !self.forgives(node, completion) {
                    assert_eq!(completion.error, Some(OpError::RemoteAccess(status.text())));
                }
            }
        }
    }

    fn retire(&mut self, op: &Op, succeeded: bool) {
        if op.peer == usize::MAX {
            return;
        }
        let pending = self.pending.get_mut(&(op.node, op.peer)).expect("posted");
        if op.fence && succeeded {
            let earlier = pending.range(..op.number).next();
            assert_eq!(earlier, None, "an operation behind a fence ended before one in front of it");
        }
        pending.remove(&op.number);
    }

    /// Whether this is an error of a peer, and peers may fail.
    fn forgives(&mut self, node: usize, completion: &Completion) -> bool {
        match &completion.error {
            Some(error @ (OpError::PeerGone(_) | OpError::Unreachable(_) | OpError::Protocol(_))) => {
                assert!(self.mortal, "{error}");
                self.failures.push((node, error.clone()));
                true
            }
            _ => false,
        }
    }

    fn expect_success(&mut self, node: usize, completion: &Completion) {
        if !self.forgives(node, completion) {
            assert_eq!(completion.error, None);
        }
    }

    fn message_of(&self, completion: &Completion, bytes: &[u8]) -> u64 {
        if let Some(data) = completion.data {
            return data;
        }
        if completion.kind == CompletionKind::Recv(Channel::Tagged) {
            return completion.tag >> 8;
        }
        u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
    }

    fn judge_recv(&mut self, getter: usize, completion: &Completion, bytes: &[u8]) {
        self.getters[getter].over = true;
        let node = self.getters[getter].node;
        if completion.error == Some(OpError::Cancelled) || self.forgives(node, completion) {
            self.getters[getter].node = usize::MAX; // fits nothing from now on
            return;
        }
        let msg = self.message_of(completion, bytes);
        self.note_match(msg, getter);
        self.judge_content(msg, self.getters[getter].room, completion, bytes);
    }

    fn judge_content(&mut self, id: u64, room: u64, completion: &Completion, bytes: &[u8]) {
        let msg = &self.msgs[id as usize];
        let kept = msg.len.min(room);
        assert_eq!((completion.len, completion.data), (kept, msg.data));
        assert!(bytes[..kept as usize] == content(id, msg.len)[..kept as usize], "message {id} is garbled");
        assert!(bytes[kept as usize..].iter().all(|byte| *byte == 0xEE), "written beyond message {id}");
        if msg.len > room {
            assert_eq!(completion.error, Some(OpError::Truncated { sent: msg.len, room }));
        } else {
            assert_eq!(completion.error, None);
        }
        if msg.channel == Channel::Tagged {
            assert_eq!(completion.tag, msg.tag(id));
        }
        let from = msg.from;
        let node = msg.to;
        assert_eq!(completion.peer, Some(self.world.peer(node, from)), "from somebody else");
    }

    fn judge_multi(&mut self, getter: usize, context: u64, completion: &Completion) {
        let node = self.getters[getter].node;
        let released = completion.released || completion.kind == CompletionKind::BufferReleased;
        let gone = completion.kind == CompletionKind::BufferReleased
            || completion.error == Some(OpError::Cancelled)
            || self.forgives(node, completion);
        let Getter { place, room, .. } = self.getters[getter];
        if !gone {
            let start = completion.buffer - place.token;
            let mem = &mut self.world.nodes[node].mem;
            let bytes = mem.peek(place)[start as usize..(start + completion.len) as usize].to_vec();
            let id = self.message_of(completion, &bytes);
            self.note_match(id, getter);
            let truncated = self.msgs[id as usize].len > completion.len;
            assert!(!truncated || (start == 0 && completion.len == room), "cut short without need");
            self.judge_content(id, if truncated { room } else { completion.len }, completion, &bytes);
            self.getters[getter].slices.push((start, completion.len, id));
        }
        if released {
            self.getters[getter].over = true;
            let op = self.ops.remove(&context).expect("posted");
            self.retire(&op, false);
            let bytes = self.world.nodes[node].mem.reclaim(place);
            for (start, len, id) in &self.getters[getter].slices {
                let slice = &bytes[*start as usize..(start + len) as usize];
                let whole = content(*id, self.msgs[*id as usize].len);
                assert!(slice == &whole[..*len as usize], "a slice changed later");
            }
        } else {
            assert!(!gone || self.mortal, "ended without being released");
        }
    }

    fn note_match(&mut self, msg: u64, getter: usize) {
        let record = &mut self.msgs[msg as usize];
        assert!(self.getters[getter].fits(record), "matched what does not fit");
        assert_eq!(record.matched, None, "message {msg} arrived twice");
        record.matched = Some(self.matches.len());
        self.matches.push((msg, getter));
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

    /// Cancels what receives nothing, receives what nobody received, and checks that
    /// nothing is left.
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

    fn check_memory(&self) {
        assert!(self.remote_data.is_empty(), "data of writes never came");
        for ((node, to, slot), (expected, _)) in &self.slots {
            let addr = (node * SLOTS + slot) * SLOT as usize;
            let region = &self.world.nodes[*to].mem.region(KEY)[addr..addr + expected.len()];
            assert!(region == expected, "a slot changed after its write was complete");
        }
        let cells = self.nodes() * SLOTS * SLOT as usize;
        for ((node, to), expected) in &self.cells {
            let bytes: Vec<u8> = expected.iter().flat_map(|cell| cell.to_le_bytes()).collect();
            let region = &self.world.nodes[*to].mem.region(KEY)[cells + node * CELLS * 8..];
            assert_eq!(&region[..CELLS * 8], bytes, "atomics gave something else");
        }
        for (to, posted) in &self.shared_posted {
            let expected: Vec<u64> = (0..*posted).collect();
            assert!(self.shared[to].iter().eq(&expected), "the shared counter was not counted one by one");
        }
    }

    /// MPI's order: there is an order of all matches in which no message overtakes an
    /// earlier one of its sender, and no receive an earlier one, where both fit.
    fn check_order(&self) {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.matches.len()];
        for (at, (id, getter)) in self.matches.iter().enumerate() {
            let (msg, taker) = (&self.msgs[*id as usize], &self.getters[*getter]);
            for earlier in &self.msgs[..*id as usize] {
                if earlier.from == msg.from && taker.fits(earlier) {
                    let other = earlier.matched.expect("an earlier message was overtaken for good");
                    before[at].push(other);
                }
            }
            for (other, earlier) in self.getters[..*getter].iter().enumerate() {
                if !earlier.multi && earlier.peek.is_none() && earlier.fits(msg) {
                    let taken = self.matches.iter().position(|(_, getter)| *getter == other);
                    before[at].push(taken.expect("an earlier receive was passed over for good"));
                }
            }
        }
        assert_acyclic(&before);
    }
}

fn assert_acyclic(before: &[Vec<usize>]) {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); before.len()];
    let mut missing: Vec<usize> = before.iter().map(Vec::len).collect();
    for (at, earlier) in before.iter().enumerate() {
        for other in earlier {
            after[*other].push(at);
        }
    }
    let mut ready: Vec<usize> = (0..before.len()).filter(|at| missing[*at] == 0).collect();
    let mut done = 0;
    while let Some(at) = ready.pop() {
        done += 1;
        for next in &after[at] {
            missing[*next] -= 1;
            if missing[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    assert_eq!(done, before.len(), "messages and receives overtook each other");
}

/// What an atomic does to one element, said once more.
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
