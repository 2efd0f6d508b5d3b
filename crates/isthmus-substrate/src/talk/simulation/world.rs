//! Simulated engines, which deliver each message once and end each operation once, and their network.

use std::collections::{BTreeMap, HashMap};

use isthmus_lab::rng::SplitMix64;
use isthmus_proto::{Micros, OpError, PeerId};
use isthmus_wire::conversation::{DatagramHeader, Subject};

use crate::Level;
use crate::talk::{Lane, Limits, OpId, Parcel, Plan, Post, SendPath, Talk};

/// A peer that is not there.
pub(super) const NOWHERE: usize = 99;

/// The properties of the network.
#[derive(Clone, Debug)]
pub(super) struct Net {
    /// One-way delay. Microseconds, least and most.
    pub(super) delay: (u64, u64),
    /// Longest time between a message's match and its completion. Microseconds.
    pub(super) spread: u64,
    /// Datagrams lost, and doubled, of a thousand.
    pub(super) loss: u64,
    pub(super) doubled: u64,
    /// Start and length of an outage in which nothing gets through.
    pub(super) cut: Option<(Micros, u64)>,
    /// When node 1 vanishes.
    pub(super) death: Option<Micros>,
    /// Accesses to memory that are refused, of a thousand.
    pub(super) refused: u64,
    /// Acts that set an engine to another transfer of messages, and messages that ask for one, of a thousand.
    pub(super) switched: u64,
}

impl Net {
    pub(super) fn calm() -> Self {
        let delay = (50, 400);
        Self { delay, spread: 0, loss: 0, doubled: 0, cut: None, death: None, refused: 100, switched: 0 }
    }
}

/// The identity of a message: its sender, and the sender's count.
pub(super) type Stamp = u64;

#[derive(Clone, Debug)]
enum Event {
    /// A message is complete at its receiver.
    Arrive {
        from: usize,
        to: usize,
        tag: u64,
        data: u64,
        bytes: Vec<u8>,
        stamp: Stamp,
    },
    Written {
        from: usize,
        to: usize,
        ticket: u64,
    },
    Datagram {
        to: usize,
        header: DatagramHeader,
        stamp: Stamp,
    },
    End {
        at: usize,
        op: OpId,
        error: Option<OpError>,
    },
    Lost {
        at: usize,
        peer: usize,
    },
    Timer {
        at: usize,
    },
    Die {
        node: usize,
    },
    /// A program acts.
    Act {
        node: usize,
    },
}

/// One endpoint.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) talk: Talk,
    pub(super) alive: bool,
    /// The messages in occupied buffers.
    pub(super) slots: HashMap<u32, Stamp>,
    next_slot: u32,
    /// Operations under way, and to whom.
    under_way: BTreeMap<OpId, usize>,
    timer: Option<Micros>,
    /// It has been told that node 1 is gone.
    knows: bool,
}

/// All endpoints, the network and the clock.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Micros,
    pub(super) net: Net,
    pub(super) rng: SplitMix64,
    pub(super) nodes: Vec<Node>,
    /// Longest time between match and completion for a pair of nodes, if it was set. Microseconds.
    spreads: HashMap<(usize, usize), u64>,
    /// When the latest message from one to another was matched.
    matched: HashMap<(usize, usize), Micros>,
    events: BTreeMap<(Micros, u64), Event>,
    age: u64,
    /// Stamps of messages that come with operations on memory, for when they are sent.
    pub(super) notes: HashMap<Vec<u8>, Stamp>,
}

fn gone() -> OpError {
    OpError::PeerGone("nobody listens there".to_owned())
}

impl World {
    pub(super) fn new(seed: u64, net: Net, nodes: usize) -> Self {
        let limits = Limits { send_buffers: 64, requests: 8, message_max: 1000, datagram_max: 500 };
        let node = |index: usize| Node {
            talk: Talk::new(limits.clone(), index as u64),
            alive: true,
            slots: HashMap::new(),
            next_slot: 0,
            under_way: BTreeMap::new(),
            timer: None,
            knows: false,
        };
        let mut world = Self {
            now: 0,
            rng: SplitMix64::new(seed),
            nodes: (0..nodes).map(node).collect(),
            spreads: HashMap::new(),
            matched: HashMap::new(),
            events: BTreeMap::new(),
            age: 0,
            notes: HashMap::new(),
            net,
        };
        if let Some(at) = world.net.death {
            world.at(at, Event::Die { node: 1 });
        }
        world
    }

    fn at(&mut self, at: Micros, event: Event) {
        self.age += 1;
        self.events.insert((at, self.age), event);
    }

    pub(super) fn act_after(&mut self, node: usize, pause: u64) {
        self.at(self.now + pause, Event::Act { node });
    }

    /// When something that leaves now arrives.
    fn arrival(&mut self) -> Micros {
        let (least, most) = self.net.delay;
        let at = self.now + least + self.rng.below(most - least);
        match self.net.cut {
            Some((from, long)) if at >= from && self.now < from + long => at.max(from + long),
            _ => at,
        }
    }

    /// The next event; `Some` where a program is to act. `None` at the end.
    pub(super) fn step(&mut self) -> Option<Option<usize>> {
        let ((at, _), event) = self.events.pop_first()?;
        assert!(at >= self.now);
        self.now = at;
        let mut acts = None;
        match event {
            Event::Arrive { from, to, tag, data, bytes, stamp } if self.nodes[to].alive => {
                self.arrive(from, to, tag, data, &bytes, stamp);
            }
            Event::Written { from, to, ticket } if self.nodes[to].alive => {
                self.nodes[to].talk.on_written(PeerId(from as u32), ticket);
            }
            Event::Datagram { to, header, stamp } if self.nodes[to].alive => {
                let parcel = self.fill_slot(to, stamp);
                if self.nodes[to].talk.on_datagram(at, header, parcel).is_none() {
                    self.nodes[to].slots.remove(&parcel.slot);
                }
            }
            Event::End { at: node, op, error } if self.nodes[node].alive => self.end(node, op, error),
            Event::Lost { at: node, peer } if self.nodes[node].alive => {
                self.nodes[node].knows |= peer != NOWHERE;
                let ops: Vec<_> = self.nodes[node].under_way.iter().filter(|(_, to)| **to == peer).collect();
                for op in ops.into_iter().map(|(op, _)| *op).collect::<Vec<_>>() {
                    self.end(node, op, Some(gone()));
                }
                self.nodes[node].talk.on_lost(PeerId(peer as u32), &gone());
            }
            Event::Timer { at: node } if self.nodes[node].alive => {
                self.nodes[node].timer = None;
                self.nodes[node].talk.handle_timeout(at);
            }
            Event::Act { node } if self.nodes[node].alive => acts = Some(node),
            Event::Die { node } => {
                self.nodes[node].alive = false;
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    let at = self.now + 5_000 + self.rng.below(5_000);
                    self.at(at, Event::Lost { at: other, peer: node });
                }
            }
            _ => {}
        }
        for node in 0..self.nodes.len() {
            self.pump(node);
        }
        Some(acts)
    }

    fn fill_slot(&mut self, node: usize, stamp: Stamp) -> Parcel {
        let node = &mut self.nodes[node];
        node.next_slot += 1;
        node.slots.insert(node.next_slot, stamp);
        Parcel { slot: node.next_slot, len: 1 }
    }

    fn arrive(&mut self, from: usize, to: usize, tag: u64, data: u64, bytes: &[u8], stamp: Stamp) {
        let (now, peer) = (self.now, PeerId(from as u32));
        match Subject::from_tag(tag).expect("of the substrate") {
            Subject::Letter => self.nodes[to].talk.on_letter(now, peer, bytes),
            subject => {
                let parcel = self.fill_slot(to, stamp);
                self.nodes[to].talk.on_message(now, peer, subject, data, parcel);
            }
        }
    }

    fn end(&mut self, node: usize, op: OpId, error: Option<OpError>) {
        if self.nodes[node].under_way.remove(&op).is_some() {
            self.nodes[node].talk.on_end(self.now, op, error.as_ref().map_or(Ok(()), Err));
        }
    }

    /// Does what a conversation asks.
    pub(super) fn pump(&mut self, node: usize) {
        while let Some(post) = self.nodes[node].talk.poll_post() {
            match post {
                Post::Message { op, peer, tag, data, bytes } => {
                    let stamp = self.notes.get(&bytes).copied().unwrap_or(0);
                    self.send(node, Lane { op, peer, level: Level::Ru, tag, data }, bytes, stamp);
                }
                Post::Ping { op, peer } => {
                    let refused = Some(OpError::RemoteAccess("no such key"));
                    let at = self.arrival() + 100;
                    self.begin(node, op, peer.0 as usize, at, refused);
                }
                Post::Disown { op, .. } => match self.rng.chance(500) {
                    true => self.nodes[node].talk.disowned(op),
                    false => self.nodes[node].talk.not_disowned(self.now, op),
                },
                Post::Drop(parcel) => {
                    assert!(self.nodes[node].slots.remove(&parcel.slot).is_some(), "dropped twice");
                }
            }
        }
        let due = self.nodes[node].talk.poll_timeout();
        if let Some(due) = due
            && self.nodes[node].timer.is_none_or(|at| due < at)
        {
            self.nodes[node].timer = Some(due);
            self.at(due.max(self.now), Event::Timer { at: node });
        }
    }

    /// Enters an operation that ends at a time, unless the peer is lost before.
    fn begin(&mut self, node: usize, op: OpId, to: usize, at: Micros, error: Option<OpError>) {
        self.nodes[node].under_way.insert(op, to);
        // If the peer is gone by then, its loss ends the operation.
        if self.nodes[to].alive && self.net.death.is_none_or(|death| to != 1 || at < death) {
            self.at(at, Event::End { at: node, op, error });
        } else if self.nodes[node].knows {
            self.at(self.now, Event::End { at: node, op, error: Some(gone()) });
        }
    }

    /// A message through the engine: matched in order, complete whenever.
    pub(super) fn send(&mut self, from: usize, lane: Lane, bytes: Vec<u8>, stamp: Stamp) {
        let to = lane.peer.0 as usize;
        let arrival = self.arrival();
        if to == NOWHERE {
            return self.refuse(from, lane.op, arrival);
        }
        let matched = self.matched.entry((from, to)).or_default();
        *matched = arrival.max(*matched + 1);
        let letter = Subject::from_tag(lane.tag) == Some(Subject::Letter);
        // Letters are short, and complete when matched.
        let matched = *matched;
        let spread = if letter { 0 } else { self.spread(from, to) };
        let complete = if spread > 0 { matched + self.rng.below(spread) } else { matched };
        let Lane { op, tag, data, .. } = lane;
        if self.survives(from, complete) {
            self.at(complete, Event::Arrive { from, to, tag, data, bytes, stamp });
        }
        let heard = complete + self.rng.below(self.net.delay.1);
        self.begin(from, op, to, heard, None);
    }

    /// Longest time between a message's match and its completion. It depends on the transfer, which the
    /// message may ask for or its engine is set to. Microseconds.
    fn spread(&mut self, from: usize, to: usize) -> u64 {
        if self.net.switched > 0 && self.rng.chance(self.net.switched) {
            return self.any_spread();
        }
        self.spreads.get(&(from, to)).copied().unwrap_or(self.net.spread)
    }

    /// One of the times of the three transfers: the whole message is sent at once (eager), a part waits
    /// (mixed), or all of it waits until the receiver asks (rendezvous).
    fn any_spread(&mut self) -> u64 {
        let round_trip = 2 * self.net.delay.1;
        [0, round_trip, 20 * round_trip][self.rng.below(3) as usize]
    }

    /// Sets an engine to another transfer of messages to a peer.
    pub(super) fn switch(&mut self, from: usize, to: usize) {
        let spread = self.any_spread();
        self.spreads.insert((from, to), spread);
    }

    /// Nobody answers there: the operation fails and the peer is lost, in either order.
    fn refuse(&mut self, from: usize, op: OpId, at: Micros) {
        self.nodes[from].under_way.insert(op, NOWHERE);
        let (end, lost) = (at + self.rng.below(50), at + self.rng.below(100));
        self.at(end, Event::End { at: from, op, error: Some(gone()) });
        self.at(lost, Event::Lost { at: from, peer: NOWHERE });
    }

    /// Whether the node lives until this time, so that what it sent still arrives.
    fn survives(&self, from: usize, at: Micros) -> bool {
        self.net.death.is_none_or(|death| from != 1 || at < death)
    }

    /// A write or read; true where it is granted.
    pub(super) fn remote(&mut self, from: usize, plan: &Plan) -> bool {
        let to = plan.peer.0 as usize;
        let granted = !self.rng.chance(self.net.refused);
        let done = self.arrival() + self.rng.below(self.net.spread.max(1));
        let heard = done + self.rng.below(self.net.delay.1);
        if let Some(ticket) = plan.data
            && granted
            && self.survives(from, done)
        {
            self.at(done, Event::Written { from, to, ticket });
        }
        let error = (!granted).then_some(OpError::RemoteAccess("the key is wrong"));
        self.begin(from, plan.op, to, heard, error);
        granted
    }

    pub(super) fn carry(&mut self, from: usize, way: SendPath, stamp: Stamp) {
        match way {
            SendPath::Reliable(lane) => self.send(from, lane, Vec::new(), stamp),
            // The lanes lose nothing, and the conversation has told the end.
            SendPath::Lossy(lane) => self.send(from, lane, Vec::new(), stamp),
            SendPath::Udp { peer, header, .. } => {
                let to = peer.0 as usize;
                for _ in 0..1 + u64::from(self.rng.chance(self.net.doubled)) {
                    let at = self.arrival() + self.rng.below(self.net.spread.max(1));
                    let cut =
                        self.net.cut.is_some_and(|(from, long)| (from..from + long).contains(&self.now));
                    if !cut && !self.rng.chance(self.net.loss) && self.survives(from, at) {
                        self.at(at, Event::Datagram { to, header, stamp });
                    }
                }
            }
            SendPath::Lost => {}
        }
    }
}
