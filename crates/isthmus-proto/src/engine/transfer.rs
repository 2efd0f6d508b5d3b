//! Message transfer: how much of a message goes before its receiver has answered it.
//!
//! A message's header goes with as much of its data as the receiver's credit allows (*eager*); the
//! rest follows the receiver's Accept, which comes when a receive has matched (*rendezvous*). Where
//! the credit is used up, a sender can begin nevertheless and have the rest asked for, or wait for
//! credit. To begin is better where receives are posted early: the answer comes after a round
//! trip, for any number of messages at once. Where they are posted one after the other, each
//! such message costs a round trip of its own, and waiting is better: credit comes back as soon
//! as what went before is received.
//!
//! The measured share of messages that found a posted receive decides between the two. A sender
//! does not wait for long: a program may receive in another order than it sends, and so return no
//! credit before it gets what waits for that.

use std::fmt;
use std::str::FromStr;

use super::state::{Connection, Kind, Micros};
use super::{Decision, Engine};
use crate::PeerId;

/// Messages up to this are no matter of choice: they go as far as credit allows. Bytes.
const SHORT: u64 = 8 << 10;
/// What goes with the header, of a mixed transfer. Bytes.
const FIRST_PART: u64 = 16 << 10;
/// An Accept that comes so long after the acknowledgement of its message's first fragment was not
/// waited for: the receive was there. At least, and of the round trip. Microseconds.
const PROMPT_US: Micros = 1_000;
const PROMPT_PART: u64 = 8;
/// Messages that the measured share of those which waited for their receive remembers.
const MEMORY: u32 = 32;
/// Unaccepted messages that may go beyond the credit while little is known; two more for each that
/// was accepted.
const UNKNOWN: usize = 4;
/// Of so many messages one does not wait for credit: to learn whether it is still to be waited for.
const ASK_EVERY: u32 = 256;
/// How long a message waits for credit: so many round trips, and at most so long. Of messages that
/// are received one after the other, each in a round trip, few are to follow that go without.
const WAIT_RTTS: Micros = 4;
const WAIT_MOST_US: Micros = 1_500_000;

/// So often at most it is said that messages go another way. Microseconds.
const TELL_US: Micros = 100_000;

/// How messages are transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfer {
    /// By what is measured of the peer, message for message.
    #[default]
    Adaptive,
    /// All at once; where credit is used up, when there is some again.
    Eager,
    /// Nothing before the receiver has answered, of messages beyond 8 KiB.
    Rendezvous,
    /// The first 16 KiB, and the rest when the receiver has answered.
    Mixed,
}

impl Transfer {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Adaptive, "adaptive"),
        (Self::Eager, "eager"),
        (Self::Rendezvous, "rendezvous"),
        (Self::Mixed, "mixed"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transfer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        let names = Self::ALL.map(|(_, name)| name).join(", ");
        found.map(|(kind, _)| *kind).ok_or_else(|| format!("expected one of {names}"))
    }
}

/// What a connection has seen of its peer's receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receives {
    /// Share of messages that waited for their receive.
    late: f32,
    /// Messages that this was learned of, at most [`MEMORY`].
    known: u32,
    /// Messages that were begun.
    begun: u32,
    /// Most credit that was there at once. Bytes.
    credit_most: u64,
    /// What was said last of how messages go, and when.
    told: Option<(&'static str, Micros)>,
    /// Until when the first message in line waits for credit.
    pub(super) wait_until: Option<Micros>,
}

impl Connection {
    /// Credit that is left. Bytes.
    pub(crate) fn credit_left(&self) -> u64 {
        self.credit_limit - self.credit_used
    }
}

impl Engine {
    /// How a message is transferred: as it asks, or else as the endpoint is set.
    fn transfer_of(&self, index: usize) -> Transfer {
        match self.operations[index].options.transfer {
            Transfer::Adaptive => self.config.transfer,
            asked => asked,
        }
    }

    /// Begins a message: how much of it goes without waiting for its receiver. Bytes.
    pub(super) fn eager_part(&mut self, peer: PeerId, index: usize) -> u64 {
        let (total, kind) = (self.operations[index].total, self.transfer_of(index));
        let connection = self.connection(peer);
        let left = connection.credit_left();
        let eager = match kind {
            _ if total <= SHORT => total.min(left),
            Transfer::Rendezvous => 0,
            Transfer::Mixed => total.min(left).min(FIRST_PART),
            Transfer::Adaptive | Transfer::Eager => total.min(left),
        };
        connection.receives.wait_until = None;
        connection.receives.begun = connection.receives.begun.wrapping_add(u32::from(total > SHORT));
        if total > SHORT {
            self.tell_transfer(peer, index, eager, left);
        }
        if eager == total {
            self.counters.messages_eager += 1;
        } else {
            self.counters.messages_asked += 1;
        }
        eager
    }

    /// Says how messages of this peer go from now on, where that is another way than before.
    fn tell_transfer(&mut self, peer: PeerId, index: usize, eager: u64, left: u64) {
        let (now, kind) = (self.clock, self.transfer_of(index));
        let (total, asked) = (self.operations[index].total, self.operations[index].options.transfer);
        let receives = &mut self.connection(peer).receives;
        let how = match eager {
            0 => "rendezvous",
            eager if eager < total => "mixed",
            _ => "eager",
        };
        if receives.told.is_some_and(|(told, at)| told == how || now < at + TELL_US) {
            return;
        }
        receives.told = Some((how, now));
        let why = match kind {
            _ if asked != Transfer::Adaptive => "as the message asks",
            Transfer::Eager | Transfer::Rendezvous | Transfer::Mixed => "as set",
            Transfer::Adaptive if left >= total => "the credit lasts",
            Transfer::Adaptive if receives.late > 0.5 => "the credit does not last, receives come late",
            Transfer::Adaptive => "the credit does not last, receives are there early",
        };
        self.decide(peer, Decision::Transfer { how, why });
    }

    /// Whether a message, the first in line, is to wait for credit.
    pub(super) fn waits_for_credit(&mut self, peer: PeerId, index: usize) -> bool {
        let operation = &self.operations[index];
        let (total, kind) = (operation.total, self.transfer_of(index));
        if !matches!(operation.kind, Kind::Message { .. }) || total <= SHORT {
            return false;
        }
        let now = self.clock;
        let connection = self.connection(peer);
        let left = connection.credit_left();
        let most = connection.receives.credit_most.max(left);
        connection.receives.credit_most = most;
        // What is too long to go eagerly has its round trip paid for by its length.
        if left >= total || 2 * total > most {
            return false;
        }
        let wants = match kind {
            Transfer::Eager => true,
            // In a round trip as much goes as there is credit, or as many messages as are
            // received until one's receive is not there.
            Transfer::Adaptive if connection.receives.begun.is_multiple_of(ASK_EVERY) => false,
            Transfer::Adaptive => {
                let Receives { late, known, .. } = connection.receives;
                let unknown =
                    known < MEMORY && connection.traffic.unaccepted.len() >= UNKNOWN + 2 * known as usize;
                unknown || f64::from(late) * most as f64 > total as f64
            }
            Transfer::Rendezvous | Transfer::Mixed => false,
        };
        if !wants {
            return false;
        }
        if let Some(until) = connection.receives.wait_until {
            return now < until;
        }
        let until = now + (WAIT_RTTS * connection.rtt_us.unwrap_or(0)).min(WAIT_MOST_US);
        connection.receives.wait_until = Some(until);
        self.timers.insert((until, peer));
        now < until
    }

    /// A message need not wait for credit any longer.
    pub(super) fn end_wait(&mut self, now: Micros, peer: PeerId) {
        let Some(connection) = self.peers[peer.0 as usize].connection.as_ref() else { return };
        if connection.receives.wait_until.is_some_and(|until| until <= now)
            && !connection.traffic.fresh.is_empty()
        {
            self.kick(peer);
        }
    }

    /// A message was accepted, whose first fragment was acknowledged at `heard`, if it was.
    pub(super) fn note_receive(&mut self, peer: PeerId, heard: Option<Micros>) {
        let now = self.clock;
        let connection = self.connection(peer);
        let prompt = (connection.rtt_us.unwrap_or(0) / PROMPT_PART).max(PROMPT_US);
        let late = heard.is_some_and(|heard| now.saturating_sub(heard) > prompt);
        let receives = &mut connection.receives;
        receives.known = (receives.known + 1).min(MEMORY);
        receives.late += (f32::from(u8::from(late)) - receives.late) / receives.known as f32;
    }
}
