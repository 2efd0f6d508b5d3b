//! Adaptive transfer: decides for each message by measurements of the peer's receives.
//!
//! A message goes ahead as far as the credit lasts. When the credit is used up, a sender can begin a message anyway, so
//! that the receiver asks for the rest, or wait for credit. Beginning is better if receives are posted early: the
//! answer comes after one round trip, for any number of messages at once. Waiting is better if receives are posted one
//! after the other: each message that was begun would cost a round trip of its own, while credit comes back as soon as
//! earlier messages are received. The measured share of messages that had to wait for their receive decides between the
//! two.
//!
//! A message whose receive was announced needs no credit, and leaves it to the others ([`announced`]). While such
//! messages are under way, a message without credit or announcement waits: either is likely to come soon.

use super::{Message, Protocol, announced};
use crate::engine::state::Micros;

/// An Accept is prompt, so the receive was posted already, if it comes this soon after the acknowledgement of the
/// message's first fragment. Microseconds.
const PROMPT_US: Micros = 1_000;
/// An Accept within the round trip divided by this is prompt too.
const PROMPT_PART: u64 = 8;
/// Messages over which the share of late receives is averaged. Count.
const MEMORY: u32 = 32;
/// Unaccepted messages that may go beyond the credit while little is known. Count; two more for each accepted one.
const UNKNOWN: usize = 4;
/// Waiting must promise this many times as much data as beginning, since losses delay returned credit too.
const WAIT_MARGIN: f64 = 1.4;
/// One of this many messages does not wait for credit, to measure again. Count.
const ASK_EVERY: u32 = 256;

/// A connection's measurements of its peer's receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receives {
    /// Share of messages that had to wait for their receive.
    late: f32,
    /// Messages behind that share, at most [`MEMORY`]. Count.
    known: u32,
    /// Messages that were begun.
    begun: u32,
    /// Most credit that was there at once. Bytes.
    pub(super) credit_most: u64,
    /// The last decision that was reported, and when.
    pub(super) told: Option<(&'static str, Micros)>,
    /// The time until which the first message in line waits for credit.
    pub(in crate::engine) wait_until: Option<Micros>,
}

impl Receives {
    /// A message was begun.
    pub(super) fn count_begun(&mut self) {
        self.begun = self.begun.wrapping_add(1);
    }

    /// A message was accepted `after_us` microseconds after its first fragment was acknowledged; `None`: before that.
    pub(super) fn on_accept(&mut self, rtt_us: Micros, after_us: Option<Micros>) {
        let prompt = (rtt_us / PROMPT_PART).max(PROMPT_US);
        let late = after_us.is_some_and(|after| after > prompt);
        self.known = (self.known + 1).min(MEMORY);
        self.late += (f32::from(u8::from(late)) - self.late) / self.known as f32;
    }
}

pub(super) struct Adaptive;

impl Protocol for Adaptive {
    fn ahead(&self, message: &Message) -> u64 {
        message.total.min(message.left)
    }

    fn waits(&self, message: &Message, receives: &Receives) -> bool {
        if receives.begun.is_multiple_of(ASK_EVERY) {
            return false;
        }
        // In a round trip, waiting sends as much as there is credit. Beginning sends messages until one finds
        // no receive.
        let unknown = receives.known < MEMORY && message.unaccepted >= UNKNOWN + 2 * receives.known as usize;
        message.granted > 0
            || unknown
            || f64::from(receives.late) * message.most as f64 > WAIT_MARGIN * message.total as f64
    }

    fn asks(&self, message: &Message) -> bool {
        announced::asks(message)
    }

    fn goes_announced(&self, message: &Message, room: u64) -> bool {
        announced::goes(message, room)
    }

    fn why(&self, message: &Message, receives: &Receives) -> Option<&'static str> {
        Some(if message.left >= message.total {
            "the credit lasts"
        } else if receives.late > 0.5 {
            "the credit does not last, receives come late"
        } else {
            "the credit does not last, receives are there early"
        })
    }
}
