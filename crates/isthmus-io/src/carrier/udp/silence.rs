//! Silence of a lane by UDP: a path that is cut, a peer that is gone, or packets that are let through no more,
//! as where a firewall forgets who talks with whom. TCP to the same host tells which: while that answers, and nothing
//! is acknowledged by UDP, lanes had better go by TCP.
//!
//! What comes is no sign of life but for acknowledgements: packets may get through in one direction only, and then
//! both ends go on for the sake of those. So either end asks whose packets are not acknowledged.
//!
//! Time counts by looks, each for a moment at most: who stood still has heard nothing for that.

use isthmus_udp::Micros;

/// Most that a look counts for. Microseconds.
const LOOK_MOST_US: Micros = 250_000;
/// Silence after which TCP is asked, and between questions: so many round trips, and at least so long. Microseconds.
const ASK_US: Micros = 1_000_000;
const ASK_TIMES: Micros = 8;
/// The same after which the lane is given up where TCP answers. A path that was cut for two seconds is used again as
/// soon as it is back.
const BLOCKED_US: Micros = 3_000_000;
const BLOCKED_TIMES: Micros = 10;
/// Round trips that a new lane needs, and so long as before a question at least, the other end waits beyond that.
const LATER_TIMES: Micros = 4;
/// Answers by TCP that are wanted for that: when one comes the path may just have come back.
const ANSWERS: u32 = 2;

/// What is known of one lane's silence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Acknowledgements received, and probes in vain until then.
    answers_by_udp: u64,
    probes: u64,
    looked_at: Micros,
    /// How long probes have been in vain.
    us: Micros,
    /// Answers by TCP meanwhile, and when the last one came.
    answers: u32,
    answered_us: Micros,
}

impl Silence {
    /// A look at the lane, of whose packets so many acknowledgements have told, and which has sent so many probes in
    /// vain.
    pub(super) fn look(&mut self, now: Micros, answers: u64, probes: u64) {
        let since = now.saturating_sub(self.looked_at).min(LOOK_MOST_US);
        if self.answers_by_udp != answers {
            *self = Self { answers_by_udp: answers, probes, ..Self::default() };
        } else if probes > self.probes {
            self.us += since;
        }
        self.looked_at = now;
    }

    /// TCP answers there, or somebody there calls by it.
    pub(super) fn hear_tcp(&mut self, rtt_us: Micros) {
        if self.us >= self.next_question_us(rtt_us) {
            self.answers += 1;
            self.answered_us = self.us;
        }
    }

    fn next_question_us(&self, rtt_us: Micros) -> Micros {
        self.answered_us + ASK_US.max(ASK_TIMES * rtt_us)
    }

    /// Whether TCP is to be asked.
    pub(super) fn asks(&self, rtt_us: Micros) -> bool {
        self.us >= self.next_question_us(rtt_us)
    }

    /// Whether UDP gets through no more. Where both ends find that, whoever dialled is to be the first, and to dial
    /// again.
    pub(super) fn is_blocked(&self, rtt_us: Micros, dialled: bool) -> bool {
        let later = if dialled { 0 } else { ASK_US.max(LATER_TIMES * rtt_us) };
        self.answers >= ANSWERS && self.us >= BLOCKED_US.max(BLOCKED_TIMES * rtt_us) + later
    }

    /// How long it has lasted.
    pub(super) fn ms(&self) -> Micros {
        self.us / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_US: Micros = 24_000;

    /// Looks every 50 ms of a silence that begins now and lasts so long.
    fn silent(silence: &mut Silence, from: Micros, us: Micros) -> Micros {
        (0..=us / 50_000).for_each(|look| silence.look(from + look * 50_000, 7, 3));
        from + us
    }

    fn begun() -> Silence {
        let mut silence = Silence::default();
        silence.look(0, 7, 2);
        silence
    }

    #[test]
    fn a_lane_is_given_up_where_tcp_goes_on_answering() {
        let mut silence = begun();
        let at = silent(&mut silence, 0, 900_000);
        assert!(!silence.asks(RTT_US), "a moment");
        let at = silent(&mut silence, at, 100_000);
        assert!(silence.asks(RTT_US));
        silence.hear_tcp(RTT_US);
        assert!(!silence.asks(RTT_US), "it has just answered");
        silence.hear_tcp(RTT_US);
        let at = silent(&mut silence, at, 1_000_000);
        assert!(silence.asks(RTT_US));
        silence.hear_tcp(RTT_US);
        assert!(!silence.is_blocked(RTT_US, true), "a path may have been cut for so long");
        silent(&mut silence, at, 1_000_000);
        assert!(silence.is_blocked(RTT_US, true) && !silence.is_blocked(366_000, true));
    }

    #[test]
    fn whoever_was_dialled_gives_the_lane_up_a_moment_later() {
        let mut silence = begun();
        let mut at = 0;
        for _ in 0..3 {
            at = silent(&mut silence, at, 1_000_000);
            silence.hear_tcp(RTT_US);
        }
        assert!(silence.is_blocked(RTT_US, true) && !silence.is_blocked(RTT_US, false));
        silent(&mut silence, at, 1_000_000);
        assert!(silence.is_blocked(RTT_US, false));
    }

    #[test]
    fn a_cut_path_is_not_given_up_and_any_acknowledgement_ends_the_silence() {
        let mut silence = begun();
        let at = silent(&mut silence, 0, 15_000_000);
        assert!(silence.asks(RTT_US) && !silence.is_blocked(RTT_US, true), "nobody answers by TCP either");
        silence.hear_tcp(RTT_US);
        assert!(!silence.is_blocked(RTT_US, true), "the path is back: UDP is to have time");
        silence.look(at, 8, 40);
        silence.look(at + 250_000, 8, 40);
        assert!(!silence.asks(RTT_US) && silence.ms() == 0);
    }

    #[test]
    fn who_stood_still_has_heard_nothing_for_that() {
        let mut silence = begun();
        silence.look(20_000_000, 7, 3);
        assert!(!silence.asks(RTT_US) && silence.ms() == 250);
    }
}
