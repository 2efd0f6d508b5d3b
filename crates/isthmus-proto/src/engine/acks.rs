//! Decides when received fragments are acknowledged.
//!
//! An acknowledgement travels beside another frame if there is one. If the peer or its program may wait for the
//! acknowledgement, it is *awaited*: it goes alone as soon as the shell finds nothing more to read, or
//! `AWAITED_PATIENCE_US` (4 µs) later if the shell looks again at once. Within that time most programs send something
//! that takes it along. Nobody awaits most acknowledgements, such as that of a message that was complete when it was
//! sent. Such an acknowledgement waits `PATIENCE_US` (200 µs) for another frame.

use std::collections::VecDeque;

use isthmus_wire::frame::{Frame, Message, flags};

use super::Engine;
use super::state::Micros;
use crate::PeerId;

/// Unacknowledged fragments after which an acknowledgement goes at once. Count; it keeps the sender's window moving.
const ACK_EVERY: u32 = 64;
/// Weight of an awaited acknowledgement in [`ACK_EVERY`]. Count; the peer waits for it, so it goes sooner.
const AWAITED: u32 = 4;
/// Shortest wait of an acknowledgement that nobody awaits; the longest is less than twice this. Microseconds. Most
/// programs answer within this time.
const PATIENCE_US: Micros = 200;
/// Wait of an awaited acknowledgement for another frame while the program polls on. Microseconds.
const AWAITED_PATIENCE_US: Micros = 4;

/// The acknowledgement that a connection owes its peer.
#[derive(Debug, Default)]
pub(crate) struct PendingAck {
    owed: bool,
    /// Time from which on it is owed.
    since: Micros,
    /// It need not wait longer for a frame beside which it could go.
    due: bool,
    /// Weight of the fragments that it is for, see [`AWAITED`].
    fragments: u32,
    /// The peer is in [`Owed::soon`], and in [`Owed::later`].
    listed_soon: bool,
    listed_later: bool,
}

impl PendingAck {
    pub(super) fn is_owed(&self) -> bool {
        self.owed
    }

    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// An acknowledgement is due at once, whatever has arrived: it repeats one that may be lost, or grants credit.
    pub(super) fn demand(&mut self) {
        (self.owed, self.due) = (true, true);
    }

    pub(super) fn on_sent(&mut self) {
        (self.owed, self.due, self.fragments) = (false, false, 0);
    }

    fn add(&mut self, now: Micros, fragments: u32, awaited: u32) {
        self.fragments += fragments - awaited + AWAITED * awaited;
        if !std::mem::replace(&mut self.owed, true) {
            self.since = now;
        }
        self.due |= self.fragments >= ACK_EVERY;
    }

    /// Its wait for another frame ends. False if none is owed.
    fn end_wait(&mut self) -> bool {
        self.due |= self.owed;
        self.owed
    }

    fn is_younger_than(&self, age: Micros, now: Micros) -> bool {
        self.owed && now < self.since + age
    }
}

/// The peers that are owed acknowledgements, each at most once in either list.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Due when there is nothing more to read.
    soon: Vec<PeerId>,
    /// Due at a time, the earliest first.
    later: VecDeque<(Micros, PeerId)>,
}

impl Owed {
    /// The time at which [`Engine::send_overdue_acks`] is next due.
    pub(super) fn due(&self) -> Option<Micros> {
        self.later.front().map(|(at, _)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.soon.len() + self.later.len()
    }
}

impl Engine {
    /// Notes that a received fragment is to be acknowledged. `awaited`: see [`is_awaited`].
    pub(super) fn owe_ack(&mut self, peer: PeerId, awaited: bool) {
        self.owe_acks(peer, 1, u32::from(awaited));
    }

    /// Like [`Engine::owe_ack`], for several fragments; `awaited` counts those with an awaited acknowledgement.
    #[inline]
    pub(super) fn owe_acks(&mut self, peer: PeerId, fragments: u32, awaited: u32) {
        let now = self.clock;
        let connection = self.connection(peer);
        let ack = &mut connection.ack;
        ack.add(now, fragments, awaited);
        if ack.fragments >= ACK_EVERY {
            return self.kick(peer);
        }
        let soon = awaited > 0 && !std::mem::replace(&mut ack.listed_soon, true);
        let later = awaited < fragments && !std::mem::replace(&mut ack.listed_later, true);
        if soon {
            self.owed.soon.push(peer);
        }
        if later {
            self.owed.later.push_back((now + PATIENCE_US, peer));
        }
    }

    /// Sends awaited acknowledgements alone: the shell found nothing more to read.
    pub fn flush_acks(&mut self) {
        while let Some(peer) = self.owed.soon.pop() {
            let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { continue };
            connection.ack.listed_soon = false;
            if connection.ack.end_wait() {
                self.kick(peer);
            }
        }
    }

    /// Like [`Engine::flush_acks`], for a shell that looks again soon. Does nothing while an awaited acknowledgement
    /// is younger than `AWAITED_PATIENCE_US` (4 µs).
    pub fn flush_old_acks(&mut self, now: Micros) {
        let is_young = |peer: &PeerId| {
            let connection = self.peers[peer.0 as usize].connection.as_ref();
            connection.is_some_and(|known| known.ack.is_younger_than(AWAITED_PATIENCE_US, now))
        };
        if !self.owed.soon.iter().any(is_young) {
            self.flush_acks();
        }
    }

    /// Whether awaited acknowledgements are due.
    #[inline]
    pub fn owes_acks(&self) -> bool {
        !self.owed.soon.is_empty()
    }

    /// Sends the acknowledgements that have waited long enough for another frame.
    pub(super) fn send_overdue_acks(&mut self, now: Micros) {
        while let Some(&(at, peer)) = self.owed.later.front() {
            if at > now {
                break;
            }
            self.owed.later.pop_front();
            let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { continue };
            if connection.ack.is_younger_than(PATIENCE_US, now) {
                // The acknowledgement of this entry has gone beside a frame, and a newer one is owed since.
                self.owed.later.push_back((now + PATIENCE_US, peer));
                continue;
            }
            connection.ack.listed_later = false;
            if connection.ack.end_wait() {
                self.kick(peer);
            }
        }
    }
}

/// Whether the peer, or its program, may wait for this fragment's acknowledgement.
pub(super) fn is_awaited(frame: &Frame) -> bool {
    match frame {
        Frame::Message(message) => is_message_awaited(message),
        // The answer to it acknowledges it, or it is an answer itself.
        Frame::Write(_)
        | Frame::Read(_)
        | Frame::Atomic(_)
        | Frame::Done(_)
        | Frame::Reply(_)
        | Frame::Accept(_)
        | Frame::Resume(_)
        | Frame::Announce(_)
        | Frame::Withdraw(_) => false,
        _ => true,
    }
}

pub(super) fn is_message_awaited(message: &Message) -> bool {
    message.flags & flags::LAZY == 0
}
