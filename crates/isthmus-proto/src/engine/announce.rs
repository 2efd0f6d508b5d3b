//! Receives that are announced: a receiver tells a sender whose credit does not last which receives it has posted,
//! and messages for them go whole, without credit (`granted.rs`). When they do is in `transfer/announced.rs`.
//!
//! The sender asks by a flag of its messages, so that nobody is told what nobody wants, nor what an older release
//! does not know. The receiver then announces each receive that only this peer can satisfy, as long as it is asked.
//! The sender does with announcements what the receiver does with receives: each message, in order, takes the first
//! that fits, whether it goes by it or not. Messages that were sent before an announcement came, but have not had
//! their turn when it was made, take it too, so it is kept which those are.
//!
//! All this decides only what is sent ahead. The receiver matches messages and receives as ever, and where a receive
//! is not there, since it was cancelled, or older ones that were not announced have changed who takes which, the data
//! is dropped and asked for again.

use std::collections::VecDeque;

use isthmus_wire::frame::{self, Frame};

use super::Engine;
use super::state::Connection;
use super::transfer::SHORT;
use crate::matching::{Posted, Wanted};
use crate::{Channel, PeerId};

/// Most receives that are announced to one peer and have not been matched.
const ANNOUNCED_MAX: usize = 1024;
/// Most messages of which the sender remembers what they take; announcements that were made before older ones had
/// their turn are void.
const SENT_MAX: usize = 4096;
/// A message that asks does so for so many: without a further one receives are no longer announced.
const ASKED_FOR: u64 = 256;
/// Lanes may bring an announcement after others that were made so many messages later.
const REORDERED: u64 = 64;

/// What is announced between two endpoints; there is none before one of them has asked.
#[derive(Debug, Default)]
pub(crate) struct Announces {
    pub(super) known: Known,
    pub(super) made: Made,
}

impl Announces {
    pub(super) fn leftovers(&self, note: &mut impl FnMut(&str, usize)) {
        note("receives announced", self.made.posted);
        note("bytes kept beyond the credit", self.made.kept as usize);
        note("messages that went by announcements", self.known.open);
        note("bytes of those", self.known.open_bytes as usize);
    }
}

/// The sender's side: the receives that the peer has announced.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// In the order in which they were posted.
    receives: VecDeque<Announced>,
    /// Messages that may have their turn after one of the next announcements is made.
    sent: VecDeque<Sent>,
    /// Place in the order of the first message that is known here.
    since: u64,
    /// Messages before this place ask for announcements.
    ask_until: u64,
    /// Messages that went by an announcement and were not answered, and their length. Bytes.
    pub(super) open: usize,
    pub(super) open_bytes: u64,
}

/// A receive that the peer has posted.
#[derive(Debug)]
struct Announced {
    /// Number of the fragment that said so.
    seq: u64,
    number: u32,
    channel: Channel,
    wanted: Wanted,
    room: u64,
}

impl Announced {
    fn fits(&self, channel: Channel, tag: u64) -> bool {
        self.channel == channel && self.wanted.fits_tag(tag)
    }
}

/// A message that was sent.
#[derive(Debug)]
struct Sent {
    order: u64,
    channel: Channel,
    tag: u64,
    /// An announced receive is taken by it.
    takes: bool,
}

impl Known {
    /// The room of the receive that a message will find, by what is known.
    pub(super) fn room_for(&self, channel: Channel, tag: u64) -> Option<u64> {
        self.receives.iter().find(|receive| receive.fits(channel, tag)).map(|receive| receive.room)
    }

    /// A message is sent; the room of the receive that it takes.
    fn send(&mut self, order: u64, channel: Channel, tag: u64) -> Option<u64> {
        let at = self.receives.iter().position(|receive| receive.fits(channel, tag));
        let taken = at.and_then(|at| self.receives.remove(at));
        if self.sent.len() == SENT_MAX {
            self.forget_before(self.sent[0].order + 1);
        }
        self.sent.push_back(Sent { order, channel, tag, takes: taken.is_some() });
        taken.map(|receive| receive.room)
    }

    /// Messages before this place in the order are asked about no more.
    fn forget_before(&mut self, order: u64) {
        self.since = self.since.max(order);
        while self.sent.pop_front_if(|sent| sent.order < order).is_some() {}
    }

    /// The peer has announced a receive.
    fn learn(&mut self, announce: &frame::Announce) {
        let &frame::Announce { seq, number, order, tag, ignore, room, .. } = announce;
        if order < self.since {
            return;
        }
        self.forget_before(order.saturating_sub(REORDERED));
        let channel = Channel::of(announce.flags);
        let receive = Announced { seq, number, channel, wanted: Wanted { source: None, tag, ignore }, room };
        let crossed =
            |sent: &&mut Sent| sent.order >= order && !sent.takes && receive.fits(sent.channel, sent.tag);
        if let Some(sent) = self.sent.iter_mut().find(crossed) {
            sent.takes = true;
            return;
        }
        if self.receives.len() == ANNOUNCED_MAX {
            // The oldest is the likeliest to have been taken by what was not foreseen.
            self.receives.pop_front();
        }
        let at = self.receives.partition_point(|other| other.seq < seq);
        self.receives.insert(at, receive);
    }

    fn forget(&mut self, number: u32) {
        self.receives.retain(|receive| receive.number != number);
    }

    /// What is known has proved wrong: there was no receive for a message.
    pub(super) fn distrust(&mut self) {
        self.receives.clear();
    }

    /// A message of so many bytes goes by an announcement.
    pub(super) fn open(&mut self, bytes: u64) {
        self.open += 1;
        self.open_bytes += bytes;
    }

    /// A message of so many bytes that went by an announcement was answered.
    pub(super) fn close(&mut self, bytes: u64) {
        self.open = self.open.saturating_sub(1);
        self.open_bytes = self.open_bytes.saturating_sub(bytes);
    }
}

/// The receiver's side: what it has announced.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// The number of the last.
    number: u32,
    /// Those that are posted still.
    pub(super) posted: usize,
    /// The peer asks for them, up to this place in the order of its messages.
    asked: bool,
    until: u64,
    /// Data of messages whose turn has not come that is kept beyond the credit. Bytes.
    pub(super) kept: u64,
}

/// How a receive is announced, if it is: to the one peer whose messages it takes. Those for messages that go at once
/// anyway are left out.
fn announcement(connection: &mut Connection, channel: Channel, posted: &Posted) -> Option<Frame> {
    let (order, waiting) = (connection.expected_order, connection.traffic.urgent.len());
    let made = &mut connection.announces.as_deref_mut()?.made;
    let room = posted.end - posted.offset;
    if !made.asked || posted.multi.is_some() || room <= SHORT || made.posted.max(waiting) >= ANNOUNCED_MAX {
        return None;
    }
    made.posted += 1;
    made.number = made.number.checked_add(1).unwrap_or(1);
    let &Wanted { tag, ignore, .. } = &posted.wanted;
    let (flags, number) = (channel.flags(), made.number);
    Some(frame::Announce { flags, connection: 0, seq: 0, number, order, tag, ignore, room }.into())
}

impl Engine {
    /// A message of this peer that has had its turn asks for announcements: of receives that are posted already, and
    /// of later ones.
    pub(super) fn on_ask(&mut self, peer: PeerId) {
        let connection = self.connection(peer);
        if !connection.is_far() {
            return;
        }
        let until = connection.expected_order + ASKED_FOR;
        let made = &mut connection.announces.get_or_insert_default().made;
        made.until = until;
        if std::mem::replace(&mut made.asked, true) {
            return;
        }
        let Some(connection) = self.peers[peer.0 as usize].connection.as_deref_mut() else { return };
        for (channel, posted) in self.matcher.directed(peer) {
            if posted.announced == 0
                && let Some(frame) = announcement(connection, channel, posted)
            {
                posted.announced = connection.announced();
                self.counters.receives_announced += 1;
                connection.traffic.urgent.push_back(frame);
            }
        }
        self.kick(peer);
    }

    /// A receive is posted, for which no message has come: its number if it is announced, or 0.
    pub(super) fn announce(&mut self, channel: Channel, posted: &Posted) -> u32 {
        let Some(peer) = posted.wanted.source.filter(|_| !self.closing) else { return 0 };
        let Some(record) = self.peers.get_mut(peer.0 as usize) else { return 0 };
        let Some(connection) = record.connection.as_deref_mut() else { return 0 };
        let turn = connection.expected_order;
        let Some(announces) = connection.announces.as_deref_mut() else { return 0 };
        announces.made.asked &= turn < announces.made.until;
        let Some(frame) = announcement(connection, channel, posted) else { return 0 };
        let number = connection.announced();
        connection.traffic.urgent.push_back(frame);
        self.counters.receives_announced += 1;
        self.kick(peer);
        number
    }

    /// A receive is no longer posted.
    pub(super) fn note_taken(&mut self, posted: &Posted) {
        let Some(peer) = posted.wanted.source.filter(|_| posted.announced != 0) else { return };
        if let Some(announces) = self.connection(peer).announces.as_deref_mut() {
            announces.made.posted = announces.made.posted.saturating_sub(1);
        }
    }

    /// A receive is cancelled: no message goes by its announcement any more, but for one that is on its way.
    pub(super) fn withdraw(&mut self, posted: &Posted) {
        self.note_taken(posted);
        let Some(peer) = posted.wanted.source.filter(|_| posted.announced != 0) else { return };
        let (number, closing) = (posted.announced, self.closing);
        let connection = self.connection(peer);
        let unsaid = |frame: &Frame| matches!(frame, Frame::Announce(announce) if announce.number == number);
        if let Some(at) = connection.traffic.urgent.iter().position(unsaid) {
            connection.traffic.urgent.remove(at);
        } else if connection.announces.is_some() && !closing {
            connection.traffic.urgent.push_back(frame::Withdraw { connection: 0, seq: 0, number }.into());
            self.kick(peer);
        }
    }

    /// The peer is gone, or near: nothing is announced any more, in either direction.
    pub(super) fn forget_announcements(&mut self, peer: PeerId) {
        let connection = self.connection(peer);
        connection.announces = None;
        connection.goes_long = false;
    }

    /// Asks the peer for announcements, by this message and the next ones.
    pub(super) fn ask(&mut self, peer: PeerId) {
        let connection = self.connection(peer);
        let order = connection.next_order;
        let known = &mut connection.announces.get_or_insert_default().known;
        if known.ask_until == 0 {
            known.since = order;
        }
        known.ask_until = order + ASKED_FOR;
        connection.goes_long = true;
    }

    /// A message begins: the room of the receive that it takes, where one was announced, and whether it asks for more.
    pub(super) fn take_announcement(
        &mut self,
        peer: PeerId,
        channel: Channel,
        tag: u64,
    ) -> (Option<u64>, bool) {
        let connection = self.connection(peer);
        let order = connection.next_order;
        let known = connection.announces.as_deref_mut().map(|announces| &mut announces.known);
        let Some(known) = known.filter(|known| known.ask_until > 0) else { return (None, false) };
        (known.send(order, channel, tag), order < known.ask_until)
    }

    pub(super) fn on_announce(&mut self, peer: PeerId, announce: &frame::Announce) {
        let connection = self.connection(peer);
        // Who has not asked does not want to know.
        let Some(announces) = connection.announces.as_deref_mut() else { return };
        if announces.known.ask_until == 0 {
            return;
        }
        announces.known.learn(announce);
        if connection.receives.wait_until.is_some() {
            self.kick(peer);
        }
    }

    pub(super) fn on_withdraw(&mut self, peer: PeerId, withdraw: &frame::Withdraw) {
        if let Some(announces) = self.connection(peer).announces.as_deref_mut() {
            announces.known.forget(withdraw.number);
        }
    }
}

impl Connection {
    /// The number of the announcement that was made last.
    fn announced(&self) -> u32 {
        self.announces.as_ref().map_or(0, |announces| announces.made.number)
    }
}
