//! When what has arrived is acknowledged.
//!
//! Acknowledgements travel with other frames where there are any. Where somebody waits for
//! one alone, it goes as soon as the shell finds nothing more to read, or, where a frame costs a system call and the program
//! looks again at once, a few microseconds later: most programs go on by then with something that takes it along. Most are awaited by
//! nobody: the answer to a write, a small message that was complete when it was sent. They
//! have time to find company: a program that goes on with what it got sends one.

use std::collections::VecDeque;

use isthmus_wire::frame::{Frame, Message, flags};

use super::Engine;
use super::state::Micros;
use crate::PeerId;

/// Fragments after which an acknowledgement no longer waits for company: those that somebody waits for count
/// as [`AWAITED`].
const ACK_EVERY: u32 = 64;
const AWAITED: u32 = 4;
/// How long one that nobody waits for does: so long at least, and less than twice that.
/// Microseconds.
const PATIENCE_US: Micros = 200;
/// The same of one that somebody waits for, of a program that polls on. Microseconds.
const AWAITED_PATIENCE_US: Micros = 4;

/// The peers that are owed acknowledgements, each at most once in either list.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// When there is nothing more to read.
    soon: Vec<PeerId>,
    /// When the time has come, the earliest first.
    later: VecDeque<(Micros, PeerId)>,
}

impl Owed {
    /// When [`Engine::send_late_acks`] is next due.
    pub(super) fn due(&self) -> Option<Micros> {
        self.later.front().map(|(at, _)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.soon.len() + self.later.len()
    }
}

impl Engine {
    /// A fragment was received, whose acknowledgement the peer or its program may wait for ([`is_awaited`]) or not.
    pub(super) fn owe_ack(&mut self, peer: PeerId, awaited: bool) {
        self.owe_acks(peer, 1, u32::from(awaited));
    }

    /// As [`Engine::owe_ack`], of several fragments, so many of which are awaited.
    #[inline]
    pub(super) fn owe_acks(&mut self, peer: PeerId, fragments: u32, awaited: u32) {
        let now = self.clock;
        let connection = self.connection(peer);
        connection.unacked += fragments - awaited + AWAITED * awaited;
        if !std::mem::replace(&mut connection.ack_owed, true) {
            connection.owed_since = now;
        }
        if connection.unacked >= ACK_EVERY {
            connection.ack_due = true;
            return self.kick(peer);
        }
        if awaited > 0 && !std::mem::replace(&mut connection.owing, true) {
            self.owed.soon.push(peer);
        }
        let connection = self.connection(peer);
        if awaited < fragments && !std::mem::replace(&mut connection.owing_later, true) {
            self.owed.later.push_back((now + PATIENCE_US, peer));
        }
    }

    /// The shell found nothing more to read: acknowledgements that somebody waits for are
    /// sent alone.
    pub fn flush_acks(&mut self) {
        while let Some(peer) = self.owed.soon.pop() {
            let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { continue };
            connection.owing = false;
            if connection.ack_owed {
                connection.ack_due = true;
                self.kick(peer);
            }
        }
    }

    /// As [`Engine::flush_acks`], of those that have waited for company for a while, where the shell looks again soon.
    pub fn flush_old_acks(&mut self, now: Micros) {
        let is_young = |peer: &PeerId| {
            let connection = self.peers[peer.0 as usize].connection.as_ref();
            connection.is_some_and(|known| known.ack_owed && now < known.owed_since + AWAITED_PATIENCE_US)
        };
        if !self.owed.soon.iter().any(is_young) {
            self.flush_acks();
        }
    }

    /// Whether acknowledgements that somebody waits for wait for company.
    #[inline]
    pub fn owes_acks(&self) -> bool {
        !self.owed.soon.is_empty()
    }

    /// Sends those that have waited for company in vain.
    pub(super) fn send_late_acks(&mut self, now: Micros) {
        while let Some(&(at, peer)) = self.owed.later.front() {
            if at > now {
                break;
            }
            self.owed.later.pop_front();
            let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { continue };
            if connection.ack_owed && connection.owed_since + PATIENCE_US > now {
                // What it was listed for has gone, with company; this is owed since then.
                self.owed.later.push_back((now + PATIENCE_US, peer));
                continue;
            }
            connection.owing_later = false;
            if connection.ack_owed {
                connection.ack_due = true;
                self.kick(peer);
            }
        }
    }
}

/// Whether the peer, or its program, may wait for this fragment's acknowledgement.
pub(super) fn is_awaited(frame: &Frame) -> bool {
    match frame {
        Frame::Message(message) => is_message_awaited(message),
        // The answer brings it, or it ends the answer.
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
