//! Lanes that are dialled by TCP and by UDP at once, to learn what the path is like.
//!
//! If the round trip is short, TCP carries: it costs less processor time, and repairs a loss soon enough. If it is long,
//! UDP carries, provided that it gets through. UDP also carries if TCP lanes have found that the path loses packets by
//! itself ([`losses`](crate::losses)), or that it is slow and has a short queue that TCP overflows
//! ([`pacing`](crate::pacing)).

use crate::thresholds::transport::{GRACE_TIMES, MIN_GRACE_US};
use crate::{Finding, Micros};

/// How much longer than TCP, which took `took` microseconds, UDP may take to answer.
pub(crate) fn grace_us(took: Micros) -> Micros {
    (GRACE_TIMES * took).max(MIN_GRACE_US)
}

/// The rule of a race.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    /// UDP carries whatever the round trip is.
    pub prefers_udp: bool,
    /// UDP carries from this round trip on. Microseconds.
    pub long_us: Micros,
}

/// The course of a race so far. Microseconds since it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct RaceSeen {
    /// Now.
    pub elapsed_us: Micros,
    /// Time that TCP took to connect, and its round trip, once it can carry data.
    pub tcp: Option<(Micros, Micros)>,
    /// The round trip that was measured by UDP.
    pub udp_rtt_us: Option<Micros>,
    /// UDP has answered.
    pub udp_answered: bool,
}

/// The result of a race.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RaceResult {
    /// Not known yet.
    NotYet,
    /// TCP has won. The finding, if the race tells more than that.
    Tcp(Finding),
    /// UDP has won.
    Udp(Finding),
}

impl Race {
    /// Whether UDP would carry on a path of this round trip. Microseconds.
    #[must_use]
    pub fn is_for_udp(&self, rtt_us: Micros) -> bool {
        self.prefers_udp || rtt_us >= self.long_us
    }

    /// Judges the race.
    #[must_use]
    pub fn judge(&self, seen: RaceSeen) -> RaceResult {
        let Some(rtt_us) = seen.tcp.map(|(_, rtt_us)| rtt_us).or(seen.udp_rtt_us) else {
            return RaceResult::NotYet;
        };
        let by_udp = self.is_for_udp(rtt_us);
        if by_udp && seen.udp_answered {
            return RaceResult::Udp(if self.prefers_udp {
                Finding::GetsThrough
            } else {
                Finding::Far { rtt_us }
            });
        }
        match seen.tcp {
            None => RaceResult::NotYet,
            Some(_) if !by_udp => RaceResult::Tcp(Finding::Near { below_us: self.long_us }),
            Some((took, _)) if seen.elapsed_us > took + grace_us(took) => RaceResult::Tcp(Finding::NoAnswer),
            Some(_) => RaceResult::NotYet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACE: Race = Race { prefers_udp: false, long_us: 10_000 };

    #[test]
    fn the_round_trip_decides_once_it_is_known() {
        let tcp =
            |rtt_us| RaceSeen { elapsed_us: rtt_us, tcp: Some((rtt_us, rtt_us)), ..RaceSeen::default() };
        assert_eq!(RACE.judge(RaceSeen::default()), RaceResult::NotYet);
        assert_eq!(RACE.judge(tcp(9_000)), RaceResult::Tcp(Finding::Near { below_us: 10_000 }));
        assert_eq!(RACE.judge(tcp(24_000)), RaceResult::NotYet, "UDP may come a moment later");
        let udp = RaceSeen { udp_rtt_us: Some(24_000), udp_answered: true, ..RaceSeen::default() };
        assert_eq!(RACE.judge(udp), RaceResult::Udp(Finding::Far { rtt_us: 24_000 }));
        let both = RaceSeen { udp_answered: true, ..tcp(24_000) };
        assert_eq!(RACE.judge(both), RaceResult::Udp(Finding::Far { rtt_us: 24_000 }));
        let near = RaceSeen { udp_rtt_us: Some(900), udp_answered: true, ..RaceSeen::default() };
        assert_eq!(RACE.judge(near), RaceResult::NotYet, "TCP carries, and is not there yet");
    }

    #[test]
    fn udp_that_is_wanted_wins_on_any_path_and_one_that_does_not_answer_in_time_on_none() {
        let wanted = Race { prefers_udp: true, ..RACE };
        let seen = |elapsed_us, udp_answered| RaceSeen {
            elapsed_us,
            tcp: Some((900, 300)),
            udp_answered,
            ..RaceSeen::default()
        };
        assert_eq!(wanted.judge(seen(1_000, true)), RaceResult::Udp(Finding::GetsThrough));
        assert_eq!(wanted.judge(seen(900 + MIN_GRACE_US, false)), RaceResult::NotYet);
        assert_eq!(wanted.judge(seen(901 + MIN_GRACE_US, false)), RaceResult::Tcp(Finding::NoAnswer));
    }
}
