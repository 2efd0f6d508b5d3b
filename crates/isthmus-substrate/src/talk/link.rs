//! One connection, and the table of them.

use std::collections::{BTreeMap, VecDeque};

use isthmus_proto::{Micros, PeerId};
use isthmus_wire::conversation::{ConnectionId, End};
use slab::Slab;

use super::{OpId, Other, Parcel};
use crate::{Error, Failure, Level};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// We asked, and wait for the answer.
    Connecting,
    /// A peer asks; the program has not decided.
    Requested,
    /// The program accepted; the peer does not know it yet.
    Accepting,
    /// Messages may be sent.
    Open,
    /// The peer has disconnected after this many messages, of which some are still to come.
    Ending(u64),
    /// It has ended, and the program knows; the program still has the handle.
    Ended,
    /// The program has disconnected; some of its operations are not complete yet.
    Leaving,
}

impl State {
    /// The state as text, for errors.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Connecting => "not established yet; wait for its event",
            Self::Requested => "only requested; accept it first",
            Self::Accepting => "not established yet; wait for its event",
            Self::Open => "established already",
            Self::Ending(_) | Self::Ended => "over: the other end has disconnected, or is gone",
            Self::Leaving => "disconnected",
        }
    }
}

/// One connection. A silent one takes no more memory than this.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    pub(crate) id: ConnectionId,
    pub(crate) peer: PeerId,
    pub(crate) level: Level,
    /// Longest message that goes as a datagram; 0: none does. Bytes.
    pub(crate) packet_max: u32,
    /// Datagrams may go there unencrypted: the peer is known to be near, or nothing is encrypted.
    pub(crate) clear: bool,
    pub(crate) state: State,
    /// The context that the program gave; the event returns it.
    pub(crate) context: u64,
    /// The token that the peer must show.
    pub(crate) token: u64,
    /// The other end; all 0 until it is known.
    pub(crate) remote: End,
    /// Reliable messages sent; also the next one's number.
    pub(crate) sent: u64,
    /// Ordered messages among them; also the next one's position in the order.
    pub(crate) next_place: u64,
    /// Reliable messages that came, including void ones.
    pub(crate) received: u64,
    /// RO: the next message to be given to the program.
    pub(crate) expected: u64,
    /// Operations that are not complete.
    pub(crate) outstanding: u32,
    /// Messages that will follow reads that are not complete.
    pub(crate) followers: u32,
    /// Writes with messages that are not complete.
    pub(crate) escorted: u32,
    /// Messages that wait for their writes.
    pub(crate) held: u32,
    /// While we ask for it: the other routes to the peer.
    pub(crate) asking: Option<Box<Asking>>,
    /// State that only busy connections have.
    pub(crate) busy: Option<Box<Busy>>,
    pub(crate) send_timeout_us: Micros,
    pub(crate) keepalive_us: Micros,
    /// When anything was last heard from the other end.
    pub(crate) heard_at: Micros,
    pub(crate) pinging: bool,
    /// The time of the valid timer; earlier ones that were set are ignored.
    pub(crate) timer_at: Micros,
}

/// The state of a request that may have to be sent again by another route.
#[derive(Debug)]
pub(crate) struct Asking {
    /// Routes that were not tried yet, the best one last.
    pub(crate) others: Vec<Other>,
    pub(crate) payload: Vec<u8>,
    /// When the program's patience ends.
    pub(crate) until: Option<Micros>,
    /// The other end has the request and decides.
    pub(crate) arrived: bool,
}

/// Messages that wait for earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// RO: messages that came before earlier ones, by position.
    pub(crate) early: BTreeMap<u64, Parcel>,
    /// RO: sent messages whose ends were not reported yet, in order.
    pub(crate) unsaid: VecDeque<Unsaid>,
}

/// An ordered message whose end was not reported yet.
#[derive(Debug)]
pub(crate) struct Unsaid {
    pub(crate) op: OpId,
    /// The context that the program gave.
    pub(crate) word: u64,
    pub(crate) silent: bool,
    /// Set if it has ended and earlier ones have not.
    pub(crate) end: Option<Result<(), Failure>>,
}

impl ConnectionRecord {
    pub(crate) fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_default()
    }

    /// Longest message that may be sent. `datagram_max` is the longest datagram. Bytes.
    pub(crate) fn message_max(&self, datagram_max: u32) -> u32 {
        if self.level.is_reliable() {
            self.remote.message_max
        } else {
            self.remote.message_max.min(datagram_max)
        }
    }

    /// Frees what a silent connection does not need.
    pub(crate) fn shrink(&mut self) {
        if self.busy.as_ref().is_some_and(|busy| busy.early.is_empty() && busy.unsaid.is_empty()) {
            self.busy = None;
        }
    }
}

/// All connections of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct ConnectionTable {
    links: Slab<ConnectionRecord>,
    /// Uses of each index. Counts.
    ages: Vec<u32>,
}

impl ConnectionTable {
    /// Adds a connection.
    pub(crate) fn insert(
        &mut self,
        make: impl FnOnce(ConnectionId) -> ConnectionRecord,
    ) -> Option<ConnectionId> {
        let entry = self.links.vacant_entry();
        let index = entry.key();
        if index >= ConnectionId::LIMIT as usize {
            return None;
        }
        if self.ages.len() <= index {
            self.ages.resize(index + 1, 0);
        }
        self.ages[index] = self.ages[index].wrapping_add(1);
        let id = ConnectionId::new(index as u32, self.ages[index]);
        entry.insert(make(id));
        Some(id)
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&ConnectionRecord> {
        self.links.get(id.index() as usize).filter(|link| link.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut ConnectionRecord> {
        self.links.get_mut(id.index() as usize).filter(|link| link.id == id)
    }

    /// The connection of this name. An error if the program has disconnected it.
    pub(crate) fn named(&mut self, id: ConnectionId) -> Result<&mut ConnectionRecord, Error> {
        self.get_mut(id).filter(|link| link.state != State::Leaving).ok_or(Error::Stale("connection"))
    }

    pub(crate) fn remove(&mut self, id: ConnectionId) -> Option<ConnectionRecord> {
        self.get(id)?;
        self.links.try_remove(id.index() as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ConnectionRecord> {
        self.links.iter().map(|(_, link)| link)
    }

    pub(crate) fn of_peer(&self, peer: PeerId) -> Vec<ConnectionId> {
        self.links.iter().filter(|(_, link)| link.peer == peer).map(|(_, link)| link.id).collect()
    }

    pub(crate) fn ids(&self) -> Vec<ConnectionId> {
        self.links.iter().map(|(_, link)| link.id).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }
}
