//! Repeats the last flight while the path is idle, so that its losses are repaired before they are known.
//!
//! The newest packets are repeated first, because the fates of older ones are known sooner. A flight's packets are
//! repeated only if they were sent within RTT / (times + 1) before the end: all their repeats are sent before any of
//! their fates is known. Older packets are left to retransmission, which is as fast.

use std::ops::Range;

use crate::Micros;
use crate::sent::{Carried, Sent};

/// Repeats the last flight; the module's text says how.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// The present pass has yet to look at the numbers below this.
    next: u64,
    /// Each pass starts below this number, and ends at packets sent before `since`.
    top: u64,
    since: Micros,
    /// Passes left.
    passes: u8,
    /// Numbers below this were repeated at an earlier end of data.
    done: u64,
    /// Stream bytes that had been sent when it began.
    sent_to: u64,
    /// Bytes that did not fit in the packet before.
    rest: Option<Range<u64>>,
}

impl Repeats {
    /// Whether the end of data at `sent_to` is a new one, for which [`Repeats::begin`] was not called.
    pub(crate) fn is_new(&self, sent_to: u64) -> bool {
        self.sent_to != sent_to
    }

    /// Begins to repeat, `times` times, what was sent since `since`.
    pub(crate) fn begin(&mut self, sent: &Sent, sent_to: u64, since: Micros, times: u8) {
        self.done = self.top.max(self.done);
        (self.top, self.next) = (sent.next_number(), sent.next_number());
        (self.since, self.passes, self.sent_to) = (since, times, sent_to);
        self.rest = None;
    }

    /// Whether there may be something left to repeat.
    pub(crate) fn is_pending(&self) -> bool {
        self.passes > 0
    }

    /// The next bytes to repeat; the end of a stream counts as one byte.
    pub(crate) fn next(&mut self, sent: &Sent) -> Option<Range<u64>> {
        if let Some(rest) = self.rest.take() {
            return Some(rest);
        }
        while self.passes > 0 {
            let oldest = self.next <= self.done.max(sent.floor());
            let number = self.next.saturating_sub(1);
            let transmission = sent.transmission(number).filter(|before| before.sent_at >= self.since);
            let (false, Some(transmission)) = (oldest, transmission) else {
                self.passes -= 1;
                self.next = self.top;
                continue;
            };
            self.next = number;
            if let Carried::Stream { offset, len, fin } = transmission.carried
                && !transmission.copy
                && sent.is_open(number)
            {
                return Some(offset..offset + u64::from(len) + u64::from(fin));
            }
        }
        None
    }

    /// Puts back bytes that did not fit.
    pub(crate) fn leave(&mut self, rest: Range<u64>) {
        self.rest = Some(rest).filter(|rest| !rest.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sent::Transmission;

    fn sent(count: u64) -> Sent {
        let mut sent = Sent::default();
        for number in 0..count {
            let carried = Carried::Stream { offset: number * 100, len: 100, fin: false };
            let copy = number == 7;
            sent.note(Transmission { sent_at: number, carried, wire: 100, copy, ..Default::default() }, true);
        }
        sent
    }

    #[test]
    fn the_newest_goes_first_and_what_left_too_early_not_at_all() {
        let sent = sent(10);
        let mut repeats = Repeats::default();
        assert!(!repeats.is_pending() && repeats.is_new(1_000));
        repeats.begin(&sent, 1_000, 6, 2);
        assert!(!repeats.is_new(1_000));
        let offsets: Vec<_> = std::iter::from_fn(|| repeats.next(&sent)).map(|range| range.start).collect();
        assert_eq!(offsets, [900, 800, 600, 900, 800, 600], "7 is a copy itself");
        assert!(!repeats.is_pending());
    }

    #[test]
    fn nothing_is_repeated_for_a_second_end_of_data_and_a_rest_is_not_forgotten() {
        let mut sent = sent(10);
        let mut repeats = Repeats::default();
        repeats.begin(&sent, 1_000, 0, 1);
        assert_eq!(repeats.next(&sent), Some(900..1_000));
        repeats.leave(950..1_000);
        assert_eq!(repeats.next(&sent), Some(950..1_000));
        let carried = Carried::Stream { offset: 1_000, len: 0, fin: true };
        sent.note(Transmission { sent_at: 10, carried, wire: 60, ..Default::default() }, true);
        repeats.begin(&sent, 1_001, 0, 1);
        assert_eq!(repeats.next(&sent), Some(1_000..1_001));
        assert_eq!(repeats.next(&sent), None);
    }
}
