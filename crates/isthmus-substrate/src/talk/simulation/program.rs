//! Programs that connect, send and leave at random, and what must hold for them.

use isthmus_proto::PeerId;
use isthmus_wire::conversation::ConnectionId;

use super::world::{NOWHERE, Net, Stamp, World};
use crate::talk::{Caller, Host, News, Other, Outgoing, Parcel};
use crate::{Error, Failure, Level};

/// The history of one end of a connection.
#[derive(Debug, Default)]
struct End {
    id: Option<ConnectionId>,
    open: bool,
    /// The program has disconnected.
    left: bool,
    /// It heard that the connection is over.
    over: bool,
    /// Messages sent, and how many had been when it left.
    sent: Vec<Sent>,
    /// Messages received, in order.
    received: Vec<Stamp>,
    /// The last ordered message whose end was told.
    told: Option<usize>,
    expired: u32,
}

#[derive(Clone, Debug)]
struct Sent {
    stamp: Stamp,
    silent: bool,
    /// Part of the order of messages.
    ordered: bool,
    /// Will not arrive: the access was refused.
    refused: bool,
    /// Has a message at all.
    message: bool,
    told: Option<Result<(), Failure>>,
}

#[derive(Debug)]
struct Talked {
    level: Level,
    nodes: [usize; 2],
    ends: [End; 2],
}

/// All programs, and all that ever happened between them.
#[derive(Debug)]
pub(super) struct Programs {
    world: World,
    talked: Vec<Talked>,
    acts: u32,
    stamps: Stamp,
}

const NODES: usize = 3;
const ACTS: u32 = 400;
const TIMEOUT_US: u64 = 3_000;

impl Programs {
    pub(super) fn new(seed: u64, net: Net) -> Self {
        let mut world = World::new(seed, net, NODES);
        for node in 0..NODES {
            world.act_after(node, 0);
        }
        Self { world, talked: Vec::new(), acts: 0, stamps: 0 }
    }

    /// Acts for a while, then leaves everything, and looks at what is left.
    pub(super) fn run(&mut self) {
        while let Some(acts) = self.world.step() {
            self.listen();
            let Some(node) = acts else { continue };
            self.acts += 1;
            if self.acts > ACTS {
                continue;
            }
            self.act(node);
            self.world.pump(node);
            self.listen();
            let pause = self.world.rng.below(600);
            self.world.act_after(node, pause);
            if self.acts == ACTS {
                self.leave_all();
            }
        }
        // Repeated, because answers to earlier requests open further connections, which are left too.
        for _ in 0..3 {
            self.leave_all();
            while self.world.step().is_some() {
                self.listen();
            }
        }
        self.check_ends();
    }

    fn act(&mut self, node: usize) {
        if self.world.net.switched > 0 && self.world.rng.chance(self.world.net.switched) {
            let peer = self.world.rng.below(NODES as u64) as usize;
            self.world.switch(node, peer);
        }
        match self.world.rng.below(20) {
            0 | 1 => self.connect(node),
            2 => self.leave_some(node),
            choice => {
                let open: Vec<_> = self.ends_of(node).filter(|(_, _, end)| end.open && !end.left).collect();
                let open: Vec<_> = open.into_iter().map(|(talked, side, _)| (talked, side)).collect();
                if open.is_empty() {
                    return;
                }
                let (talked, side) = open[self.world.rng.below(open.len() as u64) as usize];
                match choice {
                    3..=5 => self.remote(node, talked, side),
                    _ => self.send(node, talked, side),
                }
            }
        }
    }

    fn ends_of(&self, node: usize) -> impl Iterator<Item = (usize, usize, &End)> {
        self.talked.iter().enumerate().flat_map(move |(index, talked)| {
            (0..2)
                .filter(move |side| talked.nodes[*side] == node)
                .map(move |side| (index, side, &talked.ends[side]))
        })
    }

    fn host(&mut self, context: usize) -> Host {
        let keepalive_us = if self.world.rng.chance(300) { 20_000 } else { 0 };
        let send_timeout_us = if self.world.rng.chance(300) { 8_000 } else { 0 };
        let token = self.world.rng.below(u64::MAX);
        Host { context: context as u64, token, udp_port: 7, packet_max: 500, send_timeout_us, keepalive_us }
    }

    fn connect(&mut self, node: usize) {
        let peer = (node + 1 + self.world.rng.below(NODES as u64 - 1) as usize) % NODES;
        let level = [Level::Uu, Level::Ru, Level::Ro][self.world.rng.below(3) as usize];
        let index = self.talked.len();
        let timeout_us = self.world.rng.chance(300).then_some(TIMEOUT_US);
        // Sometimes the best route, or one of the others, leads nowhere.
        let way = |peer: usize| Other { peer: PeerId(peer as u32), udp_port: 7, packet_max: 500 };
        let mut routes = vec![way(peer)];
        while self.world.rng.chance(200) {
            let at = self.world.rng.below(routes.len() as u64 + 1) as usize;
            routes.insert(at, way(NOWHERE));
        }
        let first = routes.remove(0).peer;
        let caller = Caller { peer: first, level, timeout_us, host: self.host(index), others: routes };
        let payload = (index as u64).to_le_bytes();
        let id = self.world.nodes[node].talk.connect(self.world.now, &caller, &payload).expect("room");
        let mut talked = Talked { level, nodes: [node, peer], ends: Default::default() };
        talked.ends[0].id = Some(id);
        self.talked.push(talked);
    }

    fn leave_some(&mut self, node: usize) {
        let named: Vec<_> = self
            .ends_of(node)
            .filter(|(_, _, end)| end.id.is_some() && !end.left)
            .map(|(talked, side, _)| (talked, side))
            .collect();
        if !named.is_empty() {
            let (talked, side) = named[self.world.rng.below(named.len() as u64) as usize];
            self.leave(talked, side);
        }
    }

    fn leave(&mut self, talked: usize, side: usize) {
        let node = self.talked[talked].nodes[side];
        let end = &mut self.talked[talked].ends[side];
        let Some(id) = end.id.filter(|_| !end.left) else { return };
        end.left = true;
        self.world.nodes[node].talk.disconnect(id).expect("the name was still there");
        assert!(self.world.nodes[node].talk.disconnect(id).is_err(), "a name of the past");
        self.world.pump(node);
    }

    fn leave_all(&mut self) {
        for talked in 0..self.talked.len() {
            for side in 0..2 {
                if self.world.nodes[self.talked[talked].nodes[side]].alive {
                    self.leave(talked, side);
                }
            }
        }
    }

    fn send(&mut self, node: usize, talked: usize, side: usize) {
        let id = self.talked[talked].ends[side].id.expect("open");
        self.stamps += 1;
        let silent = self.world.rng.chance(300);
        let word = self.talked[talked].ends[side].sent.len() as u64;
        let lent = self.world.rng.chance(500);
        // Messages ask for it at random moments, whatever the connection's level.
        let unordered = self.world.rng.chance(200);
        let message = Outgoing { len: 1, word, silent, blocking: false, lent, unordered };
        self.world.nodes[node].talk.allow_datagrams(id);
        match self.world.nodes[node].talk.send(self.world.now, id, &message) {
            Ok(way) => {
                let stamp = self.stamps;
                let sent =
                    Sent { stamp, silent, ordered: !unordered, refused: false, message: true, told: None };
                self.talked[talked].ends[side].sent.push(sent);
                self.world.carry(node, way, stamp);
            }
            Err(Error::Full(_)) => {}
            Err(Error::State(_)) => self.expect_over(talked, side),
            Err(other) => panic!("{other}"),
        }
    }

    fn remote(&mut self, node: usize, talked: usize, side: usize) {
        let id = self.talked[talked].ends[side].id.expect("open");
        self.stamps += 1;
        let (stamp, silent) = (self.stamps, self.world.rng.chance(300));
        let word = self.talked[talked].ends[side].sent.len() as u64;
        let note = stamp.to_be_bytes().to_vec();
        let message = self.world.rng.chance(700).then_some(&note[..]);
        let write = self.world.rng.chance(600);
        let now = self.world.now;
        let talk = &mut self.world.nodes[node].talk;
        let posted = match write {
            true => talk.write(now, id, word, silent, message),
            false => talk.read(now, id, word, silent, message),
        };
        match posted {
            Ok(plan) => {
                self.world.notes.insert(note.clone(), stamp);
                let refused = !self.world.remote(node, &plan);
                let message = message.is_some();
                let sent = Sent { stamp, silent, ordered: false, refused, message, told: None };
                self.talked[talked].ends[side].sent.push(sent);
                assert_ne!(self.talked[talked].level, Level::Uu);
            }
            Err(Error::Level) => assert_eq!(self.talked[talked].level, Level::Uu),
            Err(Error::Full(_)) => {}
            Err(Error::State(_)) => self.expect_over(talked, side),
            Err(other) => panic!("{other}"),
        }
    }

    /// Takes in all news.
    fn listen(&mut self) {
        for node in 0..NODES {
            while let Some(news) = self.world.nodes[node].talk.poll_news() {
                assert!(self.world.nodes[node].alive, "the dead hear nothing");
                self.hear(node, news);
                self.world.pump(node);
            }
        }
    }

    fn hear(&mut self, node: usize, news: News) {
        match news {
            News::Requested { link, level, payload } => self.requested(node, link, level, &payload),
            News::Connected { link, context, end, .. } => self.established(context as usize, 0, link, end),
            News::Accepted { link, context, end } => self.established(context as usize, 1, link, end),
            News::Received { link, context, parcel } => self.received(node, link, context as usize, parcel),
            News::Sent { link, word, end, .. } => self.sent(node, link, word as usize, end),
            News::Disconnected { link, context, why } => {
                let side = self.side(context as usize, node, link);
                self.over(context as usize, side, &why);
            }
            News::KeepaliveExpired { link, context } => {
                let side = self.side(context as usize, node, link);
                let far = self.talked[context as usize].nodes[1 - side];
                let silent = self.world.net.cut.is_some() || !self.world.nodes[far].alive;
                assert!(silent, "a peer that lives and can be reached is not silent");
                self.talked[context as usize].ends[side].expired += 1;
            }
            News::DeviceFailed { .. } => panic!("there is no device here"),
        }
    }

    /// The index of this node's end. Ids are unique only within a node, so both ends may have the same one.
    fn side(&self, talked: usize, node: usize, link: ConnectionId) -> usize {
        let side = usize::from(self.talked[talked].nodes[1] == node);
        assert_eq!(self.talked[talked].ends[side].id, Some(link));
        side
    }

    /// Checks that a connection on which sending fails has ended or is about to end.
    fn expect_over(&self, talked: usize, side: usize) {
        let ends = &self.talked[talked].ends;
        assert!(ends[side].over || ends[1 - side].left || self.world.net.death.is_some());
    }

    fn requested(&mut self, node: usize, link: ConnectionId, level: Level, payload: &[u8]) {
        let index = u64::from_le_bytes(payload.try_into().expect("as sent")) as usize;
        assert_eq!((self.talked[index].level, self.talked[index].nodes[1]), (level, node));
        if self.world.rng.chance(200) {
            return self.world.nodes[node].talk.reject(link, 7, b"no").expect("undecided");
        }
        let host = self.host(index);
        self.world.nodes[node].talk.accept(self.world.now, link, &host).expect("undecided");
        assert!(self.world.nodes[node].talk.accept(self.world.now, link, &host).is_err(), "decided");
        self.talked[index].ends[1].id = Some(link);
    }

    fn established(&mut self, talked: usize, side: usize, link: ConnectionId, end: Result<(), Failure>) {
        let dead = self.world.net.death.is_some();
        let this = &mut self.talked[talked].ends[side];
        assert!(this.id == Some(link) && !this.open && !this.over && !this.left);
        match end {
            Ok(()) => this.open = true,
            Err(why) => {
                let fair = match why {
                    Failure::Rejected(7) | Failure::TimedOut | Failure::Busy => side == 0,
                    // An end that leaves before it has answered rejects the request.
                    Failure::Rejected(0) => side == 0,
                    _ => dead,
                };
                assert!(fair, "{why:?}");
                this.id = None;
                this.over = true;
            }
        }
    }

    fn received(&mut self, node: usize, link: ConnectionId, context: usize, parcel: Parcel) {
        let stamp = self.world.nodes[node].slots.remove(&parcel.slot).expect("a buffer that is taken");
        let side = self.side(context, node, link);
        let Talked { level, ends, .. } = &mut self.talked[context];
        assert!(ends[side].open && !ends[side].over && !ends[side].left, "told of what is over");
        let from = ends[1 - side].sent.iter().find(|sent| sent.stamp == stamp).expect("somebody sent it");
        assert!(from.message && !from.refused, "a message whose access was refused");
        if level.is_reliable() {
            assert!(!ends[side].received.contains(&stamp), "twice");
        }
        if *level == Level::Ro && from.ordered {
            let ordered = ends[1 - side].sent.iter().filter(|sent| sent.ordered);
            let earlier: Vec<_> = ordered.take_while(|sent| sent.stamp != stamp).collect();
            assert!(earlier.iter().all(|sent| ends[side].received.contains(&sent.stamp)), "out of order");
        }
        ends[side].received.push(stamp);
    }

    fn sent(&mut self, node: usize, link: ConnectionId, word: usize, end: Result<(), Failure>) {
        let found = self.talked.iter_mut().find_map(|talked| {
            let side = (0..2).find(|s| talked.nodes[*s] == node && talked.ends[*s].id == Some(link))?;
            Some((talked.level, &mut talked.ends[side]))
        });
        let (level, this) = found.expect("of a connection that was");
        let ordered = this.sent[word].ordered;
        assert!(this.sent[word].told.is_none(), "told twice");
        if level == Level::Ro && ordered {
            assert!(this.told.is_none_or(|last| last < word), "told out of order");
            this.told = Some(word);
        }
        let sent = &mut this.sent[word];
        match &end {
            Ok(()) => assert!(!sent.silent && !sent.refused),
            Err(Failure::RemoteAccess(_)) => assert!(sent.refused),
            Err(Failure::TimedOut) => {
                // A connection that was left answers no queries.
                let times = self.world.nodes[node].talk.times(link);
                assert!(times.is_err() || times.is_ok_and(|(timeout_us, _)| timeout_us > 0));
            }
            Err(Failure::PeerGone(_)) => assert!(self.world.net.death.is_some()),
            other => panic!("{other:?}"),
        }
        sent.told = Some(end);
    }

    fn over(&mut self, talked: usize, side: usize, why: &Failure) {
        let Talked { level, ends, .. } = &mut self.talked[talked];
        assert!(ends[side].open && !ends[side].over && !ends[side].left);
        ends[side].over = true;
        match why {
            Failure::Disconnected => {
                assert!(ends[1 - side].left || ends[1 - side].over, "nobody left");
                if level.is_reliable() {
                    for sent in ends[1 - side].sent.iter().filter(|sent| sent.ordered) {
                        assert!(ends[side].received.contains(&sent.stamp), "over before all had come");
                    }
                }
            }
            Failure::PeerGone(_) => assert!(self.world.net.death.is_some()),
            other => panic!("{other:?}"),
        }
    }

    /// All is over: every operation had its end, and nothing is kept.
    fn check_ends(&self) {
        for talked in &self.talked {
            for (side, end) in talked.ends.iter().enumerate() {
                if !self.world.nodes[talked.nodes[side]].alive {
                    continue;
                }
                for sent in &end.sent {
                    assert!(sent.told.is_some() || sent.silent, "an end that nobody was told: {sent:?}");
                }
            }
        }
        for node in self.world.nodes.iter().filter(|node| node.alive) {
            let (ops, halves, links, under_way) = node.talk.leftovers();
            assert_eq!((ops, links, under_way), (0, 0, 0), "kept for nothing");
            assert!(halves == 0, "{halves} halves are kept");
            assert!(node.slots.is_empty(), "{} buffers are kept", node.slots.len());
        }
        let through = self.talked.iter().filter(|talked| talked.ends.iter().all(|end| end.open)).count();
        assert!(through > 0 || self.world.net.death.is_some(), "nobody ever connected");
    }
}
