//! Hostile peers: they send anything, with true and invented numbers, twice, late, and out of order.

use std::collections::HashSet;

use isthmus_lab::rng::SplitMix64;
use isthmus_proto::{OpError, PeerId};
use isthmus_wire::conversation::{ConnectionId, DatagramHeader, End, Letter, Objection, Subject};

use crate::talk::{
    Caller, ESCORTED_MAX, Host, Limits, News, OpId, Other, Outgoing, Parcel, Post, SendPath, Talk,
};
use crate::{Failure, Level};

const PEERS: u64 = 3;
const REQUESTS: u32 = 5;

/// An endpoint that hostile peers attack.
struct Victim {
    rng: SplitMix64,
    talk: Talk,
    now: u64,
    /// Buffers that the conversation has.
    slots: HashSet<u32>,
    next_slot: u32,
    links: Vec<ConnectionId>,
    requests: Vec<ConnectionId>,
    ops: Vec<OpId>,
    /// Tickets and tokens that were seen; hostile peers reuse them where they do not belong.
    numbers: Vec<u64>,
}

impl Victim {
    fn new(seed: u64) -> Self {
        let limits = Limits { send_buffers: 16, requests: REQUESTS, message_max: 100, datagram_max: 50 };
        Self {
            rng: SplitMix64::new(seed),
            talk: Talk::new(limits, 1),
            now: 0,
            slots: HashSet::new(),
            next_slot: 0,
            links: vec![ConnectionId::default(), ConnectionId::new(5, 5)],
            requests: Vec::new(),
            ops: Vec::new(),
            numbers: vec![0, 1, u64::MAX],
        }
    }

    fn number(&mut self) -> u64 {
        let at = self.rng.below(self.numbers.len() as u64) as usize;
        let step = self.rng.below(3);
        self.numbers[at].wrapping_add(step)
    }

    fn link(&mut self) -> ConnectionId {
        self.links[self.rng.below(self.links.len() as u64) as usize]
    }

    fn parcel(&mut self) -> Parcel {
        self.next_slot += 1;
        self.slots.insert(self.next_slot);
        Parcel { slot: self.next_slot, len: 1 }
    }

    fn host(&mut self) -> Host {
        let token = self.rng.below(u64::MAX);
        self.numbers.push(token);
        let keepalive_us = self.rng.below(2) * 500;
        let send_timeout_us = self.rng.below(2) * 300;
        Host { context: 1, token, udp_port: 7, packet_max: 50, send_timeout_us, keepalive_us }
    }

    fn step(&mut self) {
        self.now += self.rng.below(100);
        let (now, peer) = (self.now, PeerId(self.rng.below(PEERS) as u32));
        match self.rng.below(16) {
            0..=4 => {
                let letter = self.letter();
                let mut bytes = Vec::new();
                letter.encode(&mut bytes);
                bytes.truncate(
                    bytes.len() - self.rng.below(2) as usize * self.rng.below(9) as usize % bytes.len(),
                );
                self.talk.on_letter(now, peer, &bytes);
            }
            5..=7 => {
                let (id, data, parcel) = (self.link(), self.number(), self.parcel());
                let subject = match self.rng.below(3) {
                    0 => Subject::Message(id),
                    1 => Subject::Datagram(id),
                    _ => Subject::Remote(id),
                };
                self.talk.on_message(now, peer, subject, data, parcel);
            }
            8 => {
                let ticket = self.number();
                self.talk.on_written(peer, ticket);
            }
            9 => {
                let (to, token, parcel) = (self.link(), self.number(), self.parcel());
                if self.talk.on_datagram(now, DatagramHeader { to, token }, parcel).is_none() {
                    self.slots.remove(&parcel.slot);
                }
            }
            10 if !self.ops.is_empty() => self.end_some(),
            11 if self.rng.chance(50) => self.talk.on_lost(peer, &gone()),
            12 => self.talk.handle_timeout(now),
            _ => self.act(peer),
        }
        self.pump();
    }

    fn letter(&mut self) -> Letter {
        let (to, token) = (self.link(), self.number());
        let from = End { id: self.link(), token: self.number(), udp_port: 9, message_max: 100 };
        match self.rng.below(5) {
            0 => Letter::Connect {
                version: 1 + u8::from(self.rng.chance(100)),
                level: self.rng.below(4) as u8,
                from,
                payload: vec![1; 3],
            },
            1 => Letter::Accept { to, token, from },
            2 => Letter::Reject { to, token, objection: Objection::Busy, reason: 1, payload: Vec::new() },
            3 => Letter::Disconnect { to, sent: self.rng.below(5) },
            _ => Letter::Void { to, ticket: token },
        }
    }

    fn act(&mut self, peer: PeerId) {
        let id = self.link();
        match self.rng.below(7) {
            0 | 1 => {
                let level = [Level::Uu, Level::Ru, Level::Ro][self.rng.below(3) as usize];
                let timeout_us = self.rng.chance(500).then_some(300);
                let other = |peer| Other { peer: PeerId(peer), udp_port: 7, packet_max: 50 };
                let others = (0..self.rng.below(3) as u32).map(other).collect();
                let caller = Caller { peer, level, timeout_us, host: self.host(), others };
                self.links.extend(self.talk.connect(self.now, &caller, b"hi"));
            }
            2 if !self.requests.is_empty() => {
                let at = self.rng.below(self.requests.len() as u64) as usize;
                let (request, host) = (self.requests.swap_remove(at), self.host());
                let _ = match self.rng.below(3) {
                    0 => self.talk.reject(request, 1, b""),
                    _ => self.talk.accept(self.now, request, &host),
                };
            }
            3 => drop(self.talk.disconnect(id)),
            4 => {
                let plan = self.talk.write(self.now, id, 1, false, Some(b"note"));
                self.ops.extend(plan.map(|plan| plan.op));
            }
            5 => {
                let plan = self.talk.read(self.now, id, 1, true, Some(b"note"));
                self.ops.extend(plan.map(|plan| plan.op));
            }
            _ => {
                let message = Outgoing {
                    len: 1,
                    word: 1,
                    silent: false,
                    blocking: false,
                    lent: true,
                    unordered: false,
                };
                if let Ok(SendPath::Reliable(lane) | SendPath::Lossy(lane)) =
                    self.talk.send(self.now, id, &message)
                {
                    self.ops.push(lane.op);
                }
            }
        }
    }

    fn end_some(&mut self) {
        let at = self.rng.below(self.ops.len() as u64) as usize;
        let op = self.ops.swap_remove(at);
        let error = self.rng.chance(300).then_some(OpError::RemoteAccess("no such key"));
        self.talk.on_end(self.now, op, error.as_ref().map_or(Ok(()), Err));
    }

    fn pump(&mut self) {
        while let Some(post) = self.talk.poll_post() {
            match post {
                Post::Drop(parcel) => assert!(self.slots.remove(&parcel.slot), "dropped twice"),
                Post::Disown { op, .. } => self.talk.disowned(op),
                Post::Message { op, data, .. } => {
                    self.numbers.push(data);
                    self.ops.push(op);
                }
                Post::Ping { op, .. } => self.ops.push(op),
            }
        }
        while let Some(news) = self.talk.poll_news() {
            match news {
                News::Received { parcel, .. } => assert!(self.slots.remove(&parcel.slot), "given twice"),
                News::Requested { link, .. } => {
                    self.requests.push(link);
                    self.links.push(link);
                }
                _ => {}
            }
        }
    }

    /// Ends all operations, loses all peers and lets the program leave; then no record may remain.
    fn leave(mut self) {
        for _ in 0..3 {
            for id in self.links.clone() {
                let _ = self.talk.disconnect(id);
            }
            self.pump();
            for op in std::mem::take(&mut self.ops) {
                self.talk.on_end(self.now, op, Err(&gone()));
            }
            for peer in 0..PEERS as u32 {
                self.talk.on_lost(PeerId(peer), &gone());
            }
            self.pump();
        }
        assert_eq!((self.talk.leftovers(), self.talk.held()), ((0, 0, 0, 0), 0), "kept for nothing");
        assert!(self.slots.is_empty(), "{} buffers are kept", self.slots.len());
    }
}

fn gone() -> OpError {
    OpError::PeerGone("nobody listens there".to_owned())
}

#[test]
fn whatever_peers_say_nothing_is_lost_or_kept() {
    for seed in 0..400 {
        let mut victim = Victim::new(seed);
        for _ in 0..500 {
            victim.step();
        }
        victim.leave();
    }
}

#[test]
fn whoever_sends_messages_of_writes_and_never_writes_is_cut_off() {
    let mut victim = Victim::new(1);
    let (bad, good) = (PeerId(0), PeerId(1));
    let mut open = |peer: PeerId| {
        let from = End { id: ConnectionId::new(9, 1), token: 3, udp_port: 0, message_max: 100 };
        let mut bytes = Vec::new();
        Letter::Connect { version: 1, level: 1, from, payload: Vec::new() }.encode(&mut bytes);
        victim.talk.on_letter(0, peer, &bytes);
        let Some(News::Requested { link, .. }) = victim.talk.poll_news() else { panic!("no request") };
        let host = victim.host();
        victim.talk.accept(0, link, &host).expect("undecided");
        link
    };
    let (from_bad, from_good) = (open(bad), open(good));
    let mut send = |peer, link, ticket| {
        let parcel = victim.parcel();
        victim.talk.on_message(0, peer, Subject::Remote(link), ticket, parcel);
        victim.talk.held()
    };
    // The peer sends as many messages as a correct one may have under way. Each keeps a buffer.
    assert_eq!(send(good, from_good, 1), 1);
    for ticket in 0..u64::from(ESCORTED_MAX) {
        assert_eq!(u64::from(send(bad, from_bad, ticket)), ticket + 2);
    }
    let most = (u64::from(ESCORTED_MAX)..10_000).map(|ticket| send(bad, from_bad, ticket)).max();
    assert!(most.is_some_and(|most| most <= 2 * ESCORTED_MAX + 1), "{most:?}");
    assert_eq!(victim.talk.held(), 1, "what the other sent is still there");
    let cut = std::iter::from_fn(|| victim.talk.poll_news())
        .find(|news| matches!(news, News::Disconnected { link, .. } if *link == from_bad));
    let Some(News::Disconnected { why: Failure::Protocol(text), .. }) = cut else { panic!("{cut:?}") };
    assert!(text.contains("do not come"), "{text}");
    victim.talk.on_written(good, 1);
    let received = std::iter::from_fn(|| victim.talk.poll_news())
        .any(|news| matches!(news, News::Received { link, .. } if link == from_good));
    assert!(received && victim.talk.held() == 0);
}

/// Datagrams are not encrypted, so a message goes as one only after somebody has said that it may.
#[test]
fn unreliable_messages_go_by_lanes_until_datagrams_are_allowed() {
    let mut victim = Victim::new(3);
    let from = End { id: ConnectionId::new(9, 1), token: 3, udp_port: 7, message_max: 100 };
    let mut bytes = Vec::new();
    Letter::Connect { version: 1, level: 0, from, payload: Vec::new() }.encode(&mut bytes);
    victim.talk.on_letter(0, PeerId(0), &bytes);
    let Some(News::Requested { link, .. }) = victim.talk.poll_news() else { panic!("no request") };
    let host = victim.host();
    victim.talk.accept(0, link, &host).expect("undecided");
    victim.talk.settle(link);
    let send = |victim: &mut Victim| {
        let message =
            Outgoing { len: 1, word: 1, silent: true, blocking: false, lent: false, unordered: false };
        victim.talk.send(0, link, &message).expect("open")
    };
    assert!(matches!(send(&mut victim), SendPath::Lossy(_)));
    assert_eq!(victim.talk.asks_for_datagrams(link), Some(PeerId(0)));
    victim.talk.allow_datagrams(link);
    assert!(matches!(send(&mut victim), SendPath::Udp { .. }));
    assert_eq!(victim.talk.asks_for_datagrams(link), None);
    victim.talk.leave_datagrams(link);
    assert!(matches!(send(&mut victim), SendPath::Lossy(_)));
}

#[test]
fn a_gap_in_the_order_is_cut_off_unless_something_on_its_way_may_fill_it() {
    let mut victim = Victim::new(2);
    let peer = PeerId(0);
    let from = End { id: ConnectionId::new(9, 1), token: 3, udp_port: 0, message_max: 100 };
    let mut bytes = Vec::new();
    Letter::Connect { version: 1, level: 2, from, payload: Vec::new() }.encode(&mut bytes);
    victim.talk.on_letter(0, peer, &bytes);
    let Some(News::Requested { link, .. }) = victim.talk.poll_news() else { panic!("no request") };
    let host = victim.host();
    victim.talk.accept(0, link, &host).expect("undecided");
    let send = |victim: &mut Victim, place| {
        let parcel = victim.parcel();
        victim.talk.on_message(0, peer, Subject::Message(link), place, parcel);
    };
    assert!(victim.talk.gaps(|_| true).is_empty());
    send(&mut victim, 1);
    assert!(victim.talk.gaps(|_| false).is_empty(), "the first may be on its way");
    assert_eq!(victim.talk.gaps(|_| true), [(link, 0)]);
    // It comes between two looks; the next gap is another one.
    send(&mut victim, 0);
    send(&mut victim, 3);
    victim.talk.cut_gap(link, 0);
    let arrived = std::iter::from_fn(|| victim.talk.poll_news())
        .inspect(|news| assert!(!matches!(news, News::Disconnected { .. }), "{news:?}"))
        .filter(|news| matches!(news, News::Received { .. }));
    assert_eq!(arrived.count(), 2);
    victim.talk.cut_gap(link, 2);
    let last = std::iter::from_fn(|| victim.talk.poll_news()).last();
    let Some(News::Disconnected { why: Failure::Protocol(text), .. }) = last else { panic!("{last:?}") };
    assert!(text.contains("left out message 2"), "{text}");
    assert!(std::iter::from_fn(|| victim.talk.poll_post()).any(|post| matches!(post, Post::Drop(_))));
}
