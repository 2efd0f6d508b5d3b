//! Acknowledgements of received packets: which ones have come, and when the peer is told (RFC 9000, 13.2).

use crate::Micros;
use crate::answers::Answers;
use crate::received_numbers::{Arrival, ReceivedNumbers};
use crate::wire::{ACK_FIXED, Ack, WORDS_MAX, Words, put_ack};

/// Least time between acknowledgements. Microseconds.
const ACK_SPACE_US: Micros = 250;
/// An acknowledgement is due at once after this many packets. Count.
const ACK_PACKETS: u32 = 32;

/// The acknowledgements that we owe the peer.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    numbers: ReceivedNumbers,
    answers: Answers,
    /// When the packet with the largest number arrived.
    arrived: Micros,
    /// Packets that want an acknowledgement and have none. Count.
    pending: u32,
    due: Option<Micros>,
    acked_at: Micros,
    scratch: Vec<u8>,
}

impl Acks {
    /// Notes a packet's number. `None` if it is a duplicate, or too old to tell; else whether packets are missing between
    /// it and those before.
    pub(crate) fn note(&mut self, arrived: Micros, number: u64) -> Option<bool> {
        match self.numbers.note(number) {
            Arrival::Stale => None,
            Arrival::New { gap, largest } => {
                if largest {
                    self.arrived = arrived;
                }
                Some(gap)
            }
        }
    }

    /// Whether a packet with this number was here before, or is too old to tell.
    pub(crate) fn is_stale(&self, number: u64) -> bool {
        self.numbers.is_stale(number)
    }

    /// Whether no packet with this number or a larger one was here before.
    pub(crate) fn is_newest(&self, number: u64) -> bool {
        self.numbers.largest().is_none_or(|largest| number > largest)
    }

    /// The peer knows the fates of all numbers below `floor`.
    pub(crate) fn raise_floor(&mut self, floor: u64) {
        self.numbers.raise_floor(floor);
    }

    /// Notes an ack-eliciting packet, whose acknowledgement waits at most `most_us`. If the peer wants it `at_once`, it
    /// waits only for an answer of our program.
    pub(crate) fn owe(&mut self, now: Micros, at_once: bool, most_us: Micros, rtt_us: Micros) {
        let wait_us = at_once.then(|| self.answers.ask(now, rtt_us));
        self.pending += 1;
        let wait_us = if self.pending >= ACK_PACKETS { Some(0) } else { wait_us };
        let due = match wait_us {
            Some(0) => self.acked_at + ACK_SPACE_US,
            Some(wait) => (self.acked_at + ACK_SPACE_US).max(now + wait),
            None => now + most_us,
        };
        self.bring_forward(due);
    }

    /// Notes parity that restored data. Its sender is told as soon as possible.
    pub(crate) fn owe_for_parity(&mut self) {
        self.pending += 1;
        self.bring_forward(self.acked_at + ACK_SPACE_US);
    }

    /// An acknowledgement is due at this time at the latest.
    pub(crate) fn bring_forward(&mut self, due: Micros) {
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// When an acknowledgement is due.
    pub(crate) fn due(&self) -> Option<Micros> {
        self.due
    }

    /// New data of our program leaves, which may be an answer.
    pub(crate) fn note_answer(&mut self, now: Micros, rtt_us: Micros) {
        self.answers.answer(now, rtt_us);
    }

    /// Appends an acknowledgement of at most `room` bytes, if that is enough for one. `grant` yields the offset up to
    /// which all data is here, and the one up to which the peer may send.
    pub(crate) fn put(
        &mut self,
        now: Micros,
        room: usize,
        grant: impl FnOnce() -> (u64, u64),
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(largest) = self.numbers.largest() else { return false };
        let words = room.saturating_sub(ACK_FIXED) / 8;
        if words < 2 {
            return false;
        }
        let (recent, sweep) = self.numbers.spans(words.min(WORDS_MAX));
        self.scratch.clear();
        self.numbers.copy(sweep, &mut self.scratch);
        let split = self.scratch.len();
        self.numbers.copy(recent, &mut self.scratch);
        let (sweep_bytes, recent_bytes) = self.scratch.split_at(split);
        let (upto, window) = grant();
        let ack = Ack {
            largest,
            arrived: self.arrived as u32,
            delay_us: now.saturating_sub(self.arrived).min(u64::from(u32::MAX)) as u32,
            upto,
            window,
            recent: Words { first: recent.first, bytes: recent_bytes },
            sweep: Words { first: sweep.first, bytes: sweep_bytes },
        };
        put_ack(out, &ack);
        self.pending = 0;
        self.due = None;
        self.acked_at = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::ACK_DELAY_US;

    #[test]
    fn acknowledgements_wait_for_more_but_not_long() {
        let mut acks = Acks::default();
        acks.note(10_000, 0);
        acks.owe(10_000, false, ACK_DELAY_US, 0);
        assert_eq!(acks.due(), Some(10_000 + ACK_DELAY_US));
        acks.owe(10_001, true, ACK_DELAY_US, 0);
        assert!(acks.due().is_some_and(|due| due <= 10_001));
        assert!(acks.put(10_001, 1_000, || (0, 0), &mut Vec::new()));
        assert_eq!(acks.due(), None);
        (0..ACK_PACKETS).for_each(|_| acks.owe(10_002, false, ACK_DELAY_US, 0));
        assert_eq!(acks.due(), Some(10_001 + ACK_SPACE_US));
    }
}
