//! Message transfer: decides how much of a message goes before its receiver has answered.
//!
//! A message's header goes with as much of its data as the receiver's credit allows (*eager*). The rest follows the
//! receiver's Accept, which comes when a receive has matched (*rendezvous*). A small [`Protocol`] decides how much goes
//! ahead, and whether a message waits for credit: [`eager`], [`rendezvous`], [`mixed`], or [`adaptive`], which chooses
//! between them. A message may ask for a protocol; else the settings choose ([`crate::Transfers`]). The choice is made anew for
//! each message, so the settings may change at any time.
//!
//! If the credit is less than the path holds, receivers announce what they have posted (`engine/announce.rs`), and
//! messages for those receives go whole ([`announced`]).
//!
//! A sender waits for a bounded time only. A program may receive in another order than it sends, and so return no
//! credit before it gets the message that waits for credit.

mod adaptive;
mod announced;
mod eager;
mod mixed;
mod rendezvous;

use super::state::{Connection, Kind, Micros};
use super::{Decision, Engine};
use crate::{Channel, PeerId, Transfer, Transfers};
pub(crate) use adaptive::Receives;

/// Messages up to this length are always sent as far as credit allows, whatever the protocol. Bytes.
pub(super) const SHORT: u64 = 8 << 10;
/// Longest wait for credit. Round trips; enough for several messages that are received one after the other.
const WAIT_RTTS: Micros = 4;
/// Longest wait for credit on a path with a long round trip. Microseconds.
const MAX_WAIT_US: Micros = 1_500_000;

/// Shortest pause between two reports that messages of a peer are transferred differently. Microseconds.
const TELL_US: Micros = 100_000;

/// A message longer than [`SHORT`], and the figures by which its protocol decides.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// Its length. Bytes.
    total: u64,
    /// Credit that is left. Bytes.
    left: u64,
    /// Most credit that was ever left. Bytes.
    most: u64,
    /// Credit that was used so far. Bytes.
    used: u64,
    /// Earlier messages that the receiver has not accepted, without those that go by announcements. Count.
    unaccepted: usize,
    /// Length of the unaccepted messages that go by announcements. Bytes.
    granted: u64,
    rtt_us: Micros,
}

/// Decides how messages are transferred.
trait Protocol: Sync {
    /// Bytes of a message that go before its receiver's answer; at most the credit that is left.
    fn ahead(&self, message: &Message) -> u64;

    /// Whether a message waits for more credit if the credit is too small for it.
    fn waits(&self, _: &Message, _: &Receives) -> bool {
        false
    }

    /// Whether to ask for announcements of receives, for this message and the next ones.
    fn asks(&self, _: &Message) -> bool {
        false
    }

    /// Whether a message goes whole without credit, as a receive of `room` bytes was announced for it.
    fn goes_announced(&self, _: &Message, _room: u64) -> bool {
        false
    }

    /// Why the message is transferred as it is; `None` if the protocol does the same for all messages.
    fn why(&self, _: &Message, _: &Receives) -> Option<&'static str> {
        None
    }
}

/// The protocol that transfers messages so.
fn protocol_of(transfer: Transfer) -> &'static dyn Protocol {
    match transfer {
        Transfer::Adaptive => &adaptive::Adaptive,
        Transfer::Eager => &eager::Eager,
        Transfer::Rendezvous => &rendezvous::Rendezvous,
        Transfer::Mixed => &mixed::Mixed,
    }
}

impl Connection {
    fn message(&self, total: u64) -> Message {
        let left = self.credit_out.left();
        let most = self.receives.credit_most.max(left);
        let (open, granted) = self
            .announces
            .as_ref()
            .map_or((0, 0), |announces| (announces.known.open, announces.known.open_bytes));
        let unaccepted = self.traffic.unaccepted.len().saturating_sub(open);
        let (used, rtt_us) = (self.credit_out.used(), self.rtt_us.unwrap_or(0));
        Message { total, left, most, used, unaccepted, granted, rtt_us }
    }
}

impl Engine {
    /// Sets the [`Transfer`] of messages that do not ask for one.
    pub fn set_transfers(&mut self, transfers: Transfers) {
        self.config.transfers = transfers;
        // Messages that wait for credit under the old setting may not have to wait under the new one.
        for index in 0..self.peers.len() {
            let connection = self.peers[index].connection.as_mut();
            let waits = |connection: &mut Box<Connection>| connection.receives.wait_until.take();
            if connection.and_then(waits).is_some() {
                self.kick(PeerId(index as u32));
            }
        }
    }

    /// The protocol of a message, which it asks for or else the settings choose; and the reason.
    fn transfer_of(&self, index: usize) -> (&'static dyn Protocol, &'static str) {
        let operation = &self.operations[index];
        let host = self.peers[operation.peer.0 as usize].address.locator.ip();
        let (transfer, why) = match operation.options.transfer {
            Some(asked) => (asked, "as the message asks"),
            None => self.config.transfers.of(operation.options.service, host),
        };
        (protocol_of(transfer), why)
    }

    /// Begins a message. Returns how much of it goes by credit before its receiver's answer. Bytes; 0 also if all of it
    /// goes by an announcement.
    pub(super) fn eager_part(&mut self, peer: PeerId, index: usize, channel: Channel, tag: u64) -> u64 {
        let total = self.operations[index].total;
        if total > SHORT {
            self.ask_if_short(peer, index);
        }
        let (room, asks) = self.take_announcement(peer, channel, tag);
        self.connection(peer).receives.wait_until = None;
        let eager = if total <= SHORT {
            total.min(self.connection(peer).credit_out.left())
        } else {
            self.operations[index].asks = asks;
            if room.is_some_and(|room| self.begin_announced(peer, index, room)) {
                return 0;
            }
            self.long_part(peer, index)
        };
        self.count_message(peer, total, eager);
        eager
    }

    /// Asks for announcements if the credit is too small for a message.
    fn ask_if_short(&mut self, peer: PeerId, index: usize) {
        let (protocol, _) = self.transfer_of(index);
        let total = self.operations[index].total;
        let message = self.connection(peer).message(total);
        if protocol.asks(&message) {
            self.ask(peer);
        }
    }

    /// Begins a message by the announcement of a receive of `room` bytes. False if it does not go by that.
    fn begin_announced(&mut self, peer: PeerId, index: usize, room: u64) -> bool {
        let (protocol, _) = self.transfer_of(index);
        let operation = &mut self.operations[index];
        let total = operation.total;
        let Some(connection) = self.peers[peer.0 as usize].connection.as_deref_mut() else { return false };
        let message = connection.message(total);
        if !protocol.goes_announced(&message, room) {
            return false;
        }
        (operation.granted_before, operation.awaiting) = (u64::MAX, true);
        if let Some(announces) = connection.announces.as_deref_mut() {
            announces.known.open(total);
        }
        self.counters.messages_announced += 1;
        self.connection(peer).counters.messages_announced += 1;
        self.tell(peer, "announced", "its receive was announced");
        true
    }

    /// Begins a message that is longer than [`SHORT`]. Returns how much of it goes before its receiver's answer. Bytes.
    fn long_part(&mut self, peer: PeerId, index: usize) -> u64 {
        let (protocol, _) = self.transfer_of(index);
        let total = self.operations[index].total;
        let connection = self.connection(peer);
        let message = connection.message(total);
        let eager = protocol.ahead(&message);
        connection.receives.count_begun();
        self.tell_transfer(peer, index, eager, &message);
        eager
    }

    /// Reports how messages to this peer are transferred from now on, if that has changed.
    fn tell_transfer(&mut self, peer: PeerId, index: usize, eager: u64, message: &Message) {
        let (protocol, set) = self.transfer_of(index);
        let why = protocol.why(message, &self.connection(peer).receives).unwrap_or(set);
        let how = match eager {
            0 => "rendezvous",
            eager if eager < message.total => "mixed",
            _ => "eager",
        };
        self.tell(peer, how, why);
    }

    fn tell(&mut self, peer: PeerId, how: &'static str, why: &'static str) {
        let now = self.clock;
        let receives = &mut self.connection(peer).receives;
        if receives.told.is_some_and(|(told, at)| told == how || now < at + TELL_US) {
            return;
        }
        receives.told = Some((how, now));
        self.decide(peer, Decision::Transfer { how, why });
    }

    /// Makes the first message in line wait for credit if its protocol says so. True while it has to wait.
    pub(super) fn wait_for_credit(&mut self, peer: PeerId, index: usize) -> bool {
        let operation = &self.operations[index];
        let total = operation.total;
        let Kind::Message { channel, tag, .. } = operation.kind else { return false };
        if total <= SHORT {
            return false;
        }
        let (now, (protocol, _)) = (self.clock, self.transfer_of(index));
        let connection = self.connection(peer);
        let message = connection.message(total);
        connection.receives.credit_most = message.most;
        // For a message of more than half the credit, the round trip of a rendezvous is small beside its own time.
        let lasts = message.left >= total || 2 * total > message.most;
        if lasts || !protocol.waits(&message, &connection.receives) {
            return false;
        }
        let announced = connection.announces.as_ref();
        let room = announced.and_then(|announces| announces.known.room_for(channel, tag));
        if room.is_some_and(|room| protocol.goes_announced(&message, room)) {
            return false;
        }
        if protocol.asks(&message) {
            self.ask(peer);
        }
        let connection = self.connection(peer);
        if let Some(until) = connection.receives.wait_until {
            return now < until;
        }
        let until = now + (WAIT_RTTS * connection.rtt_us.unwrap_or(0)).min(MAX_WAIT_US);
        connection.receives.wait_until = Some(until);
        self.timers.insert((until, peer));
        now < until
    }

    /// Ends the wait for credit if its time is over.
    pub(super) fn end_wait(&mut self, now: Micros, peer: PeerId) {
        let Some(connection) = self.peers[peer.0 as usize].connection.as_ref() else { return };
        if connection.receives.wait_until.is_some_and(|until| until <= now)
            && !connection.traffic.fresh.is_empty()
        {
            self.kick(peer);
        }
    }

    /// A message was accepted. Its first fragment was acknowledged at `heard`, if at all.
    pub(super) fn on_message_accepted(&mut self, peer: PeerId, heard: Option<Micros>) {
        let now = self.clock;
        let connection = self.connection(peer);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        connection.receives.on_accept(rtt_us, heard.map(|heard| now.saturating_sub(heard)));
    }
}
