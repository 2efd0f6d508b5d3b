//! Mixed transfer: the first part goes with the header, the rest when the receiver has answered.

use super::{Message, Protocol};

/// Data that goes with the header. Bytes.
const FIRST_PART: u64 = 16 << 10;

pub(super) struct Mixed;

impl Protocol for Mixed {
    fn ahead(&self, message: &Message) -> u64 {
        message.total.min(message.left).min(FIRST_PART)
    }
}
