//! Decides when a sender asks for announcements of receives, and when a message goes by one.
//!
//! By default the credit is what the path holds. Asking does not pay then: the answer to a message's first part comes
//! before the credit is used up. So a sender asks only if the credit is less than what the path holds.

use super::Message;
use crate::engine::Config;

/// The rate that a path is assumed to carry. Bytes/us: 1 Gb/s.
const RATE: u64 = 125;

/// Whether to ask: the credit is less than the path holds, and too small for this message and those that went by
/// announcements before it. The sender first waits for some credit to come back, since the receiver may still raise it.
pub(super) fn asks(message: &Message) -> bool {
    let short = message.left < message.total + message.granted && message.used > message.most;
    short && message.rtt_us >= Config::FAR_US && message.most < RATE * message.rtt_us
}

/// Whether a message goes by the announcement of a receive of `room` bytes. A longer one would be truncated, so it
/// waits for the receiver's Accept.
pub(super) fn goes(message: &Message, room: u64) -> bool {
    message.total <= room
}
