//! UDP lanes that carry data before it is known whether UDP suits the path. Waiting to know would cost a round trip. If
//! the path turns out short, or UDP does not get through, the lane ends, and its data goes by TCP.

use std::time::Duration;

use isthmus_udp::Micros;

/// After this time without an answer, a TCP probe asks whether somebody is there. Microseconds.
const DOUBT_US: Micros = 200_000;
/// UDP may take this many times longer than TCP to answer. Either may have lost its first packet.
const GRACE_TIMES: Micros = 2;
/// It may always take this much longer than TCP. Microseconds.
const MIN_GRACE_US: Micros = 500_000;

/// The error of a lane that ends because its path turned out short.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the round trip is short: TCP does better")]
pub(crate) struct Outdone;

/// The findings about the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    NotYet,
    /// Send a TCP probe.
    Doubt,
    /// The path is long, so UDP suits it.
    Far,
    /// The path is short, so TCP does better.
    Near,
    /// UDP does not get through, and TCP does.
    Blocked,
}

/// The state of such a lane. Times are those of the [`Udp`](super::Udp)'s clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Provisional {
    /// UDP carries from this round trip on.
    long_us: Micros,
    since: Micros,
    /// When the TCP probe was sent.
    asked: Option<Micros>,
    /// When it was answered.
    answered: Option<Micros>,
}

impl Provisional {
    pub(super) fn new(now: Micros, long: Duration) -> Self {
        Self { long_us: long.as_micros() as Micros, since: now, asked: None, answered: None }
    }

    /// The TCP probe was answered: somebody listens there.
    pub(super) fn on_tcp_answer(&mut self, now: Micros) {
        self.answered.get_or_insert(now);
    }

    /// Judges the path. `rtt_us` is the round trip that was measured on this lane, once there was an answer.
    pub(super) fn look(&mut self, now: Micros, rtt_us: Option<Micros>) -> Outlook {
        if let Some(rtt_us) = rtt_us {
            return if rtt_us < self.long_us { Outlook::Near } else { Outlook::Far };
        }
        match (self.asked, self.answered) {
            (Some(asked), Some(answered)) => {
                let took = answered.saturating_sub(asked);
                let until = answered + (GRACE_TIMES * took).max(MIN_GRACE_US);
                if now >= until { Outlook::Blocked } else { Outlook::NotYet }
            }
            (None, _) if now >= self.since + DOUBT_US => {
                self.asked = Some(now);
                Outlook::Doubt
            }
            _ => Outlook::NotYet,
        }
    }

    /// [`Provisional::long_us`] in milliseconds, for people.
    pub(super) fn long_ms(&self) -> Micros {
        self.long_us / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(10);

    #[test]
    fn the_first_answer_tells_which_it_is() {
        assert_eq!(Provisional::new(0, LONG).look(24_000, Some(24_000)), Outlook::Far);
        assert_eq!(Provisional::new(0, LONG).look(300, Some(300)), Outlook::Near);
        // A late answer by UDP counts, too.
        let mut provisional = Provisional::new(0, LONG);
        assert_eq!(provisional.look(DOUBT_US, None), Outlook::Doubt);
        provisional.on_tcp_answer(DOUBT_US + 30_000);
        assert_eq!(provisional.look(400_000, Some(24_000)), Outlook::Far);
    }

    #[test]
    fn tcp_is_asked_once_and_its_answer_is_no_verdict_before_udp_had_time() {
        let mut provisional = Provisional::new(1_000, LONG);
        assert_eq!(provisional.look(DOUBT_US, None), Outlook::NotYet);
        assert_eq!(provisional.look(DOUBT_US + 1_000, None), Outlook::Doubt);
        // While nobody answers by TCP either, nothing is known.
        assert_eq!(provisional.look(5_000_000, None), Outlook::NotYet);
        provisional.on_tcp_answer(5_000_000);
        let took = 5_000_000 - DOUBT_US - 1_000;
        assert_eq!(provisional.look(5_000_000 + 2 * took - 1, None), Outlook::NotYet);
        assert_eq!(provisional.look(5_000_000 + 2 * took, None), Outlook::Blocked);
        let mut quick = Provisional::new(0, LONG);
        assert_eq!(quick.look(DOUBT_US, None), Outlook::Doubt);
        quick.on_tcp_answer(DOUBT_US + 300);
        assert_eq!(quick.look(DOUBT_US + 300 + MIN_GRACE_US - 1, None), Outlook::NotYet);
        assert_eq!(quick.look(DOUBT_US + 300 + MIN_GRACE_US, None), Outlook::Blocked);
    }
}
