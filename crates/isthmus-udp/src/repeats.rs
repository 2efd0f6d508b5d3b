//! What is under way when nothing more is to be sent is sent again while the path is idle, so
//! that losses in the last flight are repaired before they are known of.
//!
//! Newest first: of what left earlier the fate is known sooner. Of what left within
//! RTT / (times + 1) before the end all repetitions are on their way before any such fate
//! is known; what is older is left to the ordinary repair, which is ready as soon.

use std::ops::Range;

use crate::Micros;
use crate::sent::{Carried, Sent};

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// Numbers below this are still to be looked at in the present pass,
    next: u64,
    /// which began at this one, and ends at what left before then.
    top: u64,
    since: Micros,
    /// Passes still to come.
    passes: u8,
    /// Numbers below were looked at when data ended before.
    done: u64,
    /// Stream bytes that had been sent when it began.
    sent_to: u64,
    /// What did not fit in the packet before.
    rest: Option<Range<u64>>,
}

impl Repeats {
    /// Whether the end of the data that was sent up to `sent_to` has not been seen to.
    pub(crate) fn is_new(&self, sent_to: u64) -> bool {
        self.sent_to != sent_to
    }

    /// Begins: what left since `since` is to be repeated so many times.
    pub(crate) fn begin(&mut self, sent: &Sent, sent_to: u64, since: Micros, times: u8) {
        self.done = self.top.max(self.done);
        (self.top, self.next) = (sent.next_number(), sent.next_number());
        (self.since, self.passes, self.sent_to) = (since, times, sent_to);
        self.rest = None;
    }

    /// Whether something may be left to repeat.
    pub(crate) fn is_pending(&self) -> bool {
        self.passes > 0
    }

    /// The next bytes to repeat; the end of a stream counts as a byte.
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

    /// These bytes did not fit.
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
