//! The rates and losses of one link in the last minutes, for the status page and `isthmus top`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::wire::Sample;

/// Looks that are kept. Count; one look a second makes two minutes.
pub(crate) const KEPT: usize = 120;
/// The loss is counted over this many looks, because in one second too few packets are sent again to tell. Count.
const LOSS_LOOKS: usize = 10;

/// The rates and packets of a link between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Look {
    /// Bits per second.
    out: f64,
    /// Bits per second.
    back: f64,
    sent: u64,
    sent_again: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Look>);

impl History {
    /// Adds what happened between two samples that were `took` apart.
    pub(crate) fn add(&mut self, before: &Sample, now: &Sample, took: Duration) {
        let grown = |of: fn(&Sample) -> u64| of(now).saturating_sub(of(before));
        let seconds = took.as_secs_f64().max(f64::EPSILON);
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Look {
            out: 8.0 * grown(|sample| sample.acknowledged) as f64 / seconds,
            back: 8.0 * grown(|sample| sample.received) as f64 / seconds,
            sent: grown(|sample| sample.sent),
            sent_again: grown(|sample| sample.retransmitted),
        });
    }

    /// The rates of the last second, out and in. Bits per second.
    pub(crate) fn rates(&self) -> (f64, f64) {
        self.0.back().map_or((0.0, 0.0), |look| (look.out, look.back))
    }

    /// The share of packets that were sent again lately. `None` if none was sent.
    pub(crate) fn loss(&self) -> Option<f64> {
        let recent = self.0.iter().rev().take(LOSS_LOOKS);
        let (sent, again) =
            recent.fold((0, 0), |(sent, again), look| (sent + look.sent, again + look.sent_again));
        (sent > 0).then(|| (again as f64 / sent as f64).min(1.0))
    }

    /// The rate of both directions together at each look, oldest first. Bits per second.
    pub(crate) fn both(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|look| look.out + look.back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(acknowledged: u64, received: u64, sent: u64, retransmitted: u64) -> Sample {
        Sample { acknowledged, received, sent, retransmitted, ..Sample::default() }
    }

    #[test]
    fn rates_are_of_the_last_second_and_losses_of_the_last_ten() {
        let (mut history, second) = (History::default(), Duration::from_secs(1));
        assert_eq!((history.rates(), history.loss()), ((0.0, 0.0), None));
        history.add(&at(0, 0, 0, 0), &at(1_000_000, 500_000, 900, 90), second);
        history.add(&at(1_000_000, 500_000, 900, 90), &at(1_000_000, 750_000, 1000, 90), second);
        assert_eq!(history.rates(), (0.0, 2e6));
        assert_eq!(history.loss(), Some(0.09));
        assert_eq!(history.both().collect::<Vec<_>>(), [12e6, 2e6]);
        (0..LOSS_LOOKS).for_each(|_| history.add(&at(0, 0, 0, 0), &at(0, 0, 10, 0), second));
        assert_eq!(history.loss(), Some(0.0));
        (0..2 * KEPT).for_each(|_| history.add(&at(0, 0, 0, 0), &at(0, 0, 10, 0), second));
        assert_eq!(history.both().count(), KEPT);
    }
}
