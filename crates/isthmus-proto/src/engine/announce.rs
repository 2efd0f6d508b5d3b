//! Announced receives: a receiver tells a sender whose credit is too small which receives it has posted. Messages for
//! those receives go whole, without credit (`granted.rs`). `transfer/announced.rs` decides when.
//!
//! The sender asks for announcements by a flag of its messages. So no sender gets announcements that it does not want
//! or, being an older release, does not know. The receiver then announces each receive that only this peer can satisfy,
//! as long as the sender keeps asking.
//!
//! The sender matches its messages with announcements as the receiver matches them with receives: each message, in
//! order, takes the first that fits, whether it goes by it or not. An announcement may cross with messages that were
//! sent before it came, but are matched after the receive was posted. Such a message takes the receive too, so the
//! sender remembers the messages that it sent.
//!
//! Announcements only decide what is sent ahead; the receiver matches as always. A receive may be gone when its message
//! arrives: it was cancelled, or an older receive that was not announced changed which message takes which. The
//! receiver then drops the data and asks for it again.

use std::collections::VecDeque;

use isthmus_wire::frame::{self, Frame};

use super::Engine;
use super::state::Connection;
use super::transfer::SHORT;
use crate::matching::{Posted, Wanted};
use crate::{Channel, PeerId};

/// Most announced receives of one peer that have not been matched. Count; it bounds the memory at both ends.
const ANNOUNCED_MAX: usize = 1024;
/// Most sent messages that the sender remembers. Count. It ignores announcements that are older than all of them.
const SENT_MAX: usize = 4096;
/// Messages for which one asking message asks. Count. If none of them asks again, announcing stops.
const ASKED_FOR: u64 = 256;
/// Messages that may be matched between an announcement and its arrival. Count; it covers lanes of different delay.
const REORDERED: u64 = 64;

/// The announcements between two endpoints, kept from the first time that one of them asks.
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
    /// Sent messages that the receiver may match after it has made one of the next announcements.
    sent: VecDeque<Sent>,
    /// Order of the first message that is remembered here.
    since: u64,
    /// Messages of a lower order ask for announcements.
    ask_until: u64,
    /// Messages that went by an announcement and are not answered: their number, and their bytes.
    pub(super) open: usize,
    pub(super) open_bytes: u64,
}

/// A receive that the peer has posted.
#[derive(Debug)]
struct Announced {
    /// Number of the fragment that announced it.
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
    /// It takes an announced receive.
    takes: bool,
}

impl Known {
    /// The room of the announced receive that a message will take. Bytes.
    pub(super) fn room_for(&self, channel: Channel, tag: u64) -> Option<u64> {
        self.receives.iter().find(|receive| receive.fits(channel, tag)).map(|receive| receive.room)
    }

    /// Records that a message is sent; returns the room of the receive that it takes. Bytes.
    fn send(&mut self, order: u64, channel: Channel, tag: u64) -> Option<u64> {
        let at = self.receives.iter().position(|receive| receive.fits(channel, tag));
        let taken = at.and_then(|at| self.receives.remove(at));
        if self.sent.len() == SENT_MAX {
            self.forget_before(self.sent[0].order + 1);
        }
        self.sent.push_back(Sent { order, channel, tag, takes: taken.is_some() });
        taken.map(|receive| receive.room)
    }

    /// Forgets sent messages of a lower order.
    fn forget_before(&mut self, order: u64) {
        self.since = self.since.max(order);
        while self.sent.pop_front_if(|sent| sent.order < order).is_some() {}
    }

    /// Enters a receive that the peer has announced.
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
            // The oldest is the most likely to be gone by now.
            self.receives.pop_front();
        }
        let at = self.receives.partition_point(|other| other.seq < seq);
        self.receives.insert(at, receive);
    }

    fn forget(&mut self, number: u32) {
        self.receives.retain(|receive| receive.number != number);
    }

    /// Forgets all announced receives: one of them was not there for its message.
    pub(super) fn distrust(&mut self) {
        self.receives.clear();
    }

    /// Counts a message of `bytes` that goes by an announcement.
    pub(super) fn open(&mut self, bytes: u64) {
        self.open += 1;
        self.open_bytes += bytes;
    }

    /// Takes a message from the counts of [`Known::open`]: it was answered.
    pub(super) fn close(&mut self, bytes: u64) {
        self.open = self.open.saturating_sub(1);
        self.open_bytes = self.open_bytes.saturating_sub(bytes);
    }
}

/// The receiver's side: what it has announced.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Number of the last announcement.
    number: u32,
    /// Announced receives that are still posted. Count.
    pub(super) posted: usize,
    /// Whether the peer asks for announcements.
    asked: bool,
    /// It asks until its message of this order.
    until: u64,
    /// Data without credit that is kept for messages that have not been matched yet. Bytes.
    pub(super) kept: u64,
}

/// Makes the announcement of a receive to the one peer whose messages it takes. `None` if the peer does not ask, if too
/// many are announced, or if the receive is for short messages, which need none.
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
    /// A message of this peer asks for announcements: announces the receives that are posted, and from now on later
    /// ones.
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

    /// Announces a new receive if the peer asks. Returns its number, or 0 if it is not announced.
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

    /// Counts an announced receive as no longer posted.
    pub(super) fn count_unposted(&mut self, posted: &Posted) {
        let Some(peer) = posted.wanted.source.filter(|_| posted.announced != 0) else { return };
        if let Some(announces) = self.connection(peer).announces.as_deref_mut() {
            announces.made.posted = announces.made.posted.saturating_sub(1);
        }
    }

    /// Takes back the announcement of a cancelled receive. A message that is on its way may still go by it.
    pub(super) fn withdraw(&mut self, posted: &Posted) {
        self.count_unposted(posted);
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

    /// Forgets the announcements of both directions: the peer is gone, or turned out to be near.
    pub(super) fn forget_announcements(&mut self, peer: PeerId) {
        let connection = self.connection(peer);
        connection.announces = None;
        connection.goes_long = false;
    }

    /// Makes the next [`ASKED_FOR`] messages to this peer ask for announcements.
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

    /// For a message that begins: the room of the announced receive that it takes, if any, and whether it asks for
    /// announcements.
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
        // Ignore announcements that we did not ask for.
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
    /// Number of the last announcement.
    fn announced(&self) -> u32 {
        self.announces.as_ref().map_or(0, |announces| announces.made.number)
    }
}
