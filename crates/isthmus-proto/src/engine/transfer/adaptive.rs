//! By what is measured of the peer, message for message.
//!
//! As much goes ahead as there is credit. Where that is used up, a sender can begin nevertheless and have
//! the rest asked for, or wait for credit. To begin is better where receives are posted early: the answer
//! comes after a round trip, for any number of messages at once. Where they are posted one after the other,
//! each such message costs a round trip of its own, and waiting is better: credit comes back as soon as what
//! went before is received. The measured share of messages that found a posted receive decides between the
//! two.
//!
//! A message whose receive was announced needs no credit, and leaves it to the others ([`announced`]). While such
//! are on their way, one that has neither credit nor an announcement waits: it is likely that either comes soon.

use super::{Message, Protocol, announced};
use crate::engine::state::Micros;

/// An Accept that comes so long after the acknowledgement of its message's first fragment was not
/// waited for: the receive was there. At least, and of the round trip. Microseconds.
const PROMPT_US: Micros = 1_000;
const PROMPT_PART: u64 = 8;
/// Messages that the measured share of those which waited for their receive remembers.
const MEMORY: u32 = 32;
/// Unaccepted messages that may go beyond the credit while little is known; two more for each that
/// was accepted.
const UNKNOWN: usize = 4;
/// Waiting has to promise so many times what beginning does: what is lost keeps credit too from coming back.
const WAIT_MARGIN: f64 = 1.4;
/// Of so many messages one does not wait for credit: to learn whether it is still to be waited for.
const ASK_EVERY: u32 = 256;

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
    pub(super) credit_most: u64,
    /// What was said last of how messages go, and when.
    pub(super) told: Option<(&'static str, Micros)>,
    /// Until when the first message in line waits for credit.
    pub(in crate::engine) wait_until: Option<Micros>,
}

impl Receives {
    /// A message was begun.
    pub(super) fn note_begun(&mut self) {
        self.begun = self.begun.wrapping_add(1);
    }

    /// A message was accepted, so long after its first fragment was acknowledged, if it was. Microseconds.
    pub(super) fn note(&mut self, rtt_us: Micros, after_us: Option<Micros>) {
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
        // In a round trip as much goes as there is credit, or as many messages as are received until
        // one's receive is not there.
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
