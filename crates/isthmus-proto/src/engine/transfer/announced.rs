//! When a sender asks for receives to be announced, and goes by what was.
//!
//! Where the credit is what the path holds, which is the default, it does not pay to ask: the answer to a message's
//! first part comes before the credit is used up. So it is asked only where the credit is less than that.

use super::Message;
use crate::engine::Config;

/// Paths are taken to hold what goes by as much in a round trip. Bytes/us: 1 Gb/s.
const RATE: u64 = 125;

/// Whether the credit is less than the path holds, and too small for a message and those before it that went without, by
/// announcements. Not before some of it has come back: until then the receiver may not know yet how much the path holds.
pub(super) fn asks(message: &Message) -> bool {
    let short = message.left < message.total + message.granted && message.used > message.most;
    short && message.rtt_us >= Config::FAR_US && message.most < RATE * message.rtt_us
}

/// Whether a message whose receive was announced with so much room goes by that. Longer ones are cut off by the
/// receiver, and so wait for what it wants of them. Bytes.
pub(super) fn goes(message: &Message, room: u64) -> bool {
    message.total <= room
}
