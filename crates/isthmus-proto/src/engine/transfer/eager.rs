//! Eager transfer: all at once. When the credit is used up, a message waits for more.

use super::{Message, Protocol, Receives};

pub(super) struct Eager;

impl Protocol for Eager {
    fn ahead(&self, message: &Message) -> u64 {
        message.total.min(message.left)
    }

    fn waits(&self, _: &Message, _: &Receives) -> bool {
        true
    }
}
