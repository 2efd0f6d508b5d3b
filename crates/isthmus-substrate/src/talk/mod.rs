//! The conversation: the behaviour of an endpoint's connections, without I/O.
//!
//! The program's requests, the engine's reports and the time come in as arguments. [`Post`]s for the engine and
//! [`News`] for the program come out. The engine delivers each message of a reliable connection exactly once, and ends
//! each operation exactly once. The rest is here: who is connected to whom, the order of RO, what a completion implies,
//! time-outs, keepalive, and what happens when a peer is lost.

mod link;
mod opening;
mod receiving;
mod sending;
#[cfg(test)]
mod simulation;
mod timing;

use std::collections::{BTreeSet, HashMap, VecDeque};

use isthmus_proto::{Micros, PeerId};
use isthmus_wire::conversation::{ConnectionId, Letter, Subject};
use slab::Slab;

use crate::{Failure, Level};
use link::{ConnectionTable, State};

pub(crate) use opening::{Caller, Host, Other};
#[cfg(test)]
pub(crate) use sending::Plan;
pub(crate) use sending::{Lane, Outgoing, SendPath};

/// The limits of a conversation.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Most operations of the program under way. Count.
    pub(crate) send_buffers: u32,
    /// Most requests that wait for the program's decision. Count.
    pub(crate) requests: u32,
    /// Longest message that may come. Bytes.
    pub(crate) message_max: u32,
    /// Longest message over UU. Bytes.
    pub(crate) datagram_max: u32,
}

/// An operation of the engine, as its context says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OpId(u64);

impl OpId {
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

/// A buffer of the shell with a message in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parcel {
    /// The shell's name of the buffer.
    pub(crate) slot: u32,
    /// Length of the message. Bytes.
    pub(crate) len: u32,
}

/// A request to the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Post {
    /// Send a message through the engine, complete when delivered.
    Message { op: OpId, peer: PeerId, tag: u64, data: u64, bytes: Vec<u8> },
    /// Ping the other endpoint, which answers whatever its program does.
    Ping { op: OpId, peer: PeerId },
    /// Make the engine copy what the program lent it, then call [`Talk::disowned`].
    Disown { op: OpId, peer: PeerId },
    /// Drop this message, which nobody takes.
    Drop(Parcel),
}

/// The properties of a connection that a program can query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    pub(crate) level: Level,
    /// Longest message that may be sent. Bytes; 0 until it is established.
    pub(crate) message_max: u32,
    pub(crate) peer: PeerId,
}

/// An event for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Requested {
        link: ConnectionId,
        level: Level,
        payload: Vec<u8>,
    },
    /// The end of a request of ours; on failure the connection is no more.
    Connected {
        link: ConnectionId,
        context: u64,
        end: Result<(), Failure>,
        payload: Vec<u8>,
    },
    /// The end of an acceptance of ours; as above.
    Accepted {
        link: ConnectionId,
        context: u64,
        end: Result<(), Failure>,
    },
    Received {
        link: ConnectionId,
        context: u64,
        parcel: Parcel,
    },
    /// The end of an operation.
    Sent {
        op: OpId,
        link: ConnectionId,
        context: u64,
        word: u64,
        end: Result<(), Failure>,
    },
    Disconnected {
        link: ConnectionId,
        context: u64,
        why: Failure,
    },
    KeepaliveExpired {
        link: ConnectionId,
        context: u64,
    },
    DeviceFailed {
        /// The device, and its trouble.
        why: String,
    },
}

/// The kinds of operations.
#[derive(Clone, Debug)]
enum What {
    /// A letter (control message) to this peer. `opens` says that a connection depends on it.
    Letter {
        peer: PeerId,
        opens: bool,
    },
    /// A message; on RO its end is reported in order.
    Message,
    /// A datagram through the engine; its end was reported at once.
    Datagram,
    /// A write; with the ticket of the message that goes with it.
    Write {
        ticket: Option<u64>,
    },
    /// A read, with the message that will follow it.
    Read {
        follow: Option<Vec<u8>>,
    },
    /// The message of a write or read, whose end it shares.
    Remote {
        of: OpId,
    },
    Ping,
}

#[derive(Debug)]
struct Op {
    id: OpId,
    link: ConnectionId,
    what: What,
    /// The context that the program gave; the event returns it.
    word: u64,
    silent: bool,
    /// Its buffer is the program's until it is told.
    lent: bool,
    /// A message that is not in RO's order.
    unordered: bool,
    /// Its end was reported to the program.
    told: bool,
    /// Parts of a write or read that must still end. Count.
    parts: u8,
    failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Op(OpId),
    Link(ConnectionId),
}

/// Whichever came first of a write and its message.
#[derive(Debug)]
enum Half {
    Written,
    Message(ConnectionId, Parcel),
    /// The message came, but its connection has ended.
    Dropped,
    Void,
}

/// Limit on writes and messages that wait for their other half, over all peers. Only a faulty peer exceeds it.
const HALVES_MAX: usize = 1 << 16;

/// Writes with messages under way by one connection; the next is refused as full.
const ESCORTED_MAX: u32 = 256;
/// Messages of one connection that wait for their writes: more than the other end may have
/// sent, even where news of those that failed is still on its way.
const HELD_MAX: u32 = 2 * ESCORTED_MAX;

/// All connections of one endpoint.
#[derive(Debug)]
pub(crate) struct Talk {
    limits: Limits,
    links: ConnectionTable,
    ops: Slab<Op>,
    op_age: u32,
    /// Operations of the program that are not complete.
    under_way: u32,
    requests: u32,
    halves: HashMap<(PeerId, u64), Half>,
    /// Messages among them: each keeps a buffer.
    held: u32,
    next_ticket: u64,
    timers: BTreeSet<(Micros, Timer)>,
    posts: VecDeque<Post>,
    news: VecDeque<News>,
}

impl Talk {
    /// A conversation without connections. `seed` makes the tickets of writes differ from those of other endpoints of
    /// the same process.
    pub(crate) fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            links: ConnectionTable::default(),
            ops: Slab::new(),
            op_age: 0,
            under_way: 0,
            requests: 0,
            halves: HashMap::new(),
            held: 0,
            next_ticket: seed,
            timers: BTreeSet::new(),
            posts: VecDeque::new(),
            news: VecDeque::new(),
        }
    }

    pub(crate) fn poll_post(&mut self) -> Option<Post> {
        self.posts.pop_front()
    }

    pub(crate) fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// The number of connections, in any state.
    pub(crate) fn links(&self) -> usize {
        self.links.len()
    }

    /// The number of buffers with messages that wait for writes of peers. The caller replaces these buffers, so that
    /// nobody else waits.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    pub(crate) fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// The number of records still kept, for tests of leaks.
    #[cfg(test)]
    pub(crate) fn leftovers(&self) -> (usize, usize, usize, u32) {
        (self.ops.len(), self.halves.len(), self.links.len(), self.under_way)
    }

    /// Reports that a device carries nothing any more.
    pub(crate) fn device_failed(&mut self, why: String) {
        self.news.push_back(News::DeviceFailed { why });
    }

    /// Drops a message that nobody takes.
    pub(crate) fn drop_parcel(&mut self, parcel: Parcel) {
        self.posts.push_back(Post::Drop(parcel));
    }

    /// Takes out the ends of operations for which `taken` returns true.
    pub(crate) fn take_ends(&mut self, mut taken: impl FnMut(OpId, &Result<(), Failure>) -> bool) {
        self.news.retain(|news| !matches!(news, News::Sent { op, end, .. } if taken(*op, end)));
    }

    fn enter_op(&mut self, link: ConnectionId, what: What, word: u64, silent: bool) -> OpId {
        self.op_age = self.op_age.wrapping_add(1) & 0x00ff_ffff;
        let entry = self.ops.vacant_entry();
        let id = OpId(u64::from(self.op_age) << 32 | entry.key() as u64);
        entry.insert(Op {
            id,
            link,
            what,
            word,
            silent,
            lent: false,
            unordered: false,
            told: false,
            parts: 1,
            failure: None,
        });
        id
    }

    fn op(&mut self, id: OpId) -> Option<&mut Op> {
        self.ops.get_mut(id.index()).filter(|op| op.id == id)
    }

    fn take_op(&mut self, id: OpId) -> Option<Op> {
        self.op(id)?;
        self.ops.try_remove(id.index())
    }

    /// Sends a letter. `opens` says that the connection depends on it.
    fn write_letter(&mut self, link: ConnectionId, peer: PeerId, letter: &Letter, opens: bool) {
        let op = self.enter_op(link, What::Letter { peer, opens }, 0, true);
        let mut bytes = Vec::new();
        letter.encode(&mut bytes);
        self.posts.push_back(Post::Message { op, peer, tag: Subject::Letter.to_tag(), data: 0, bytes });
    }

    /// Forgets a connection that nothing refers to any more.
    fn forget(&mut self, id: ConnectionId) {
        self.drop_held(id);
        let Some(link) = self.links.remove(id) else { return };
        self.timers.remove(&(link.timer_at, Timer::Link(id)));
        if link.state == State::Requested {
            self.requests -= 1;
        }
        for parcel in link.busy.into_iter().flat_map(|busy| busy.early.into_values()) {
            self.posts.push_back(Post::Drop(parcel));
        }
    }

    /// Ends a connection for the program, which keeps the handle. True where it was alive.
    fn end(&mut self, id: ConnectionId, why: Failure) -> bool {
        let Some(link) = self.links.get_mut(id) else { return false };
        if !matches!(link.state, State::Open | State::Ending(_)) {
            return false;
        }
        link.state = State::Ended;
        let context = link.context;
        let early = link.busy.as_mut().map(|busy| std::mem::take(&mut busy.early)).unwrap_or_default();
        link.shrink();
        self.timers.remove(&(link.timer_at, Timer::Link(id)));
        self.posts.extend(early.into_values().map(Post::Drop));
        self.drop_held(id);
        self.news.push_back(News::Disconnected { link: id, context, why });
        true
    }
}
