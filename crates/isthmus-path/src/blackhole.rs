//! Blackhole detection: a UDP lane whose packets are no longer acknowledged.
//!
//! The path may be cut, the peer may be gone, or UDP may be blocked, for example because a firewall forgot the flow.
//! TCP probes to the same host tell which. If those are answered while nothing is acknowledged by UDP, lanes should go
//! by TCP.
//!
//! Only acknowledgements count as a sign of life. Packets may get through in one direction only, and then both ends
//! keep sending for each other. So each end whose packets are not acknowledged sends probes.
//!
//! A report that packets are refused (ICMP) makes this faster. It proves nothing by itself, because anybody can forge
//! one: the lane must be silent, and TCP probes must be answered.
//!
//! Silence is summed over looks, and each look counts for at most `MAX_LOOK_US` (250 ms): a process that was stopped
//! could not hear anything.

use crate::Micros;
use crate::thresholds::blackhole::{
    ANSWERS, ASK_TIMES, ASK_US, BLOCKED_TIMES, BLOCKED_US, LATER_TIMES, LEFT_US, MAX_LOOK_US, REFUSED_ASK_US,
    REFUSED_BEFORE_US, REFUSED_US, UNHEARD_US,
};

/// The silence of one lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blackhole {
    /// Acknowledgements received so far.
    answers_by_udp: u64,
    /// Unanswered probes by UDP until the last acknowledgement.
    probes: u64,
    /// When the lane was last looked at.
    looked_at: Micros,
    /// Length of the silence. Microseconds.
    us: Micros,
    /// TCP probes answered during the silence.
    answers: u32,
    /// The length of the silence when the last one was answered. Microseconds.
    answered_us: Micros,
    /// When packets were last reported as refused.
    refused_at: Option<Micros>,
    /// The peer has made a lane by TCP during the silence.
    has_tcp_lane: bool,
    /// The peer has made a lane by TCP while packets waited for their acknowledgements.
    has_gone_to_tcp: bool,
    /// The peer has made a lane from another address during the silence, or before it while nothing was sent.
    has_moved: bool,
}

impl Blackhole {
    /// Takes in a look at the lane: the acknowledgements that it has received, and the probes that it has sent in vain.
    pub fn look(&mut self, now: Micros, answers: u64, probes: u64) {
        let since = now.saturating_sub(self.looked_at).min(MAX_LOOK_US);
        if self.answers_by_udp != answers {
            let refused_at = self.refused_at;
            *self = Self { answers_by_udp: answers, probes, refused_at, ..Self::default() };
        } else if probes > self.probes {
            self.us += since;
        }
        self.looked_at = now;
    }

    /// A TCP probe was answered, or the host connected by TCP.
    pub fn on_tcp_answer(&mut self, rtt_us: Micros) {
        if self.us >= self.next_probe_us(rtt_us) {
            self.answers += 1;
            self.answered_us = self.us;
        }
    }

    /// Packets were reported as refused. Acknowledgements of earlier packets may still be on the way.
    pub fn on_refusal(&mut self, now: Micros) {
        self.refused_at = Some(now);
    }

    /// Whether packets were refused during the silence, or shortly before it.
    fn is_refused(&self) -> bool {
        self.refused_at.is_some_and(|at| at + self.us + REFUSED_BEFORE_US >= self.looked_at)
    }

    /// The peer has made a lane by TCP.
    pub fn on_tcp_lane(&mut self) {
        self.has_tcp_lane = true;
        self.has_gone_to_tcp |= self.us > 0;
    }

    /// The peer has made a lane from another address. The counts are those of [`Blackhole::look`]: acknowledgements until
    /// now do not show that the peer still has the old address.
    pub fn on_move(&mut self, now: Micros, answers: u64, probes: u64) {
        self.look(now, answers, probes);
        self.has_moved = true;
    }

    /// Whether the peer has probably lost the address to which this lane leads. A lane whose round trip is not known yet
    /// is given more time.
    pub fn is_left(&self, rtt_us: Option<Micros>) -> bool {
        let least_us = rtt_us.map_or(UNHEARD_US, |rtt_us| LEFT_US.max(LATER_TIMES * rtt_us));
        self.has_moved && self.us >= least_us
    }

    fn next_probe_us(&self, rtt_us: Micros) -> Micros {
        let pause_us =
            if self.is_refused() { REFUSED_ASK_US.max(rtt_us) } else { ASK_US.max(ASK_TIMES * rtt_us) };
        self.answered_us + pause_us
    }

    /// Whether a TCP probe is due.
    pub fn asks(&self, rtt_us: Micros) -> bool {
        self.us >= self.next_probe_us(rtt_us)
    }

    /// Whether UDP no longer gets through. The end that dialled the lane finds that first, so that it dials again.
    pub fn is_blocked(&self, rtt_us: Micros, dialled: bool) -> bool {
        let (least_us, later_us) = if self.is_refused() {
            (REFUSED_US.max(LATER_TIMES * rtt_us), REFUSED_US.max(LATER_TIMES * rtt_us))
        } else {
            (BLOCKED_US.max(BLOCKED_TIMES * rtt_us), ASK_US.max(LATER_TIMES * rtt_us))
        };
        let later_us = if dialled { 0 } else { later_us };
        let is_unheard = !dialled && self.answers_by_udp == 0 && self.has_tcp_lane && self.us >= UNHEARD_US;
        // The path is not cut, and the end that dialled dials no more by UDP.
        let is_deserted = !dialled && self.has_gone_to_tcp && self.us >= LEFT_US.max(LATER_TIMES * rtt_us);
        is_unheard || is_deserted || self.answers >= ANSWERS && self.us >= least_us + later_us
    }

    /// Length of the silence. Milliseconds.
    pub fn ms(&self) -> Micros {
        self.us / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_US: Micros = 24_000;

    /// Looks every 50 ms during a silence of `us` microseconds.
    fn silent(blackhole: &mut Blackhole, from: Micros, us: Micros) -> Micros {
        (0..=us / 50_000).for_each(|look| blackhole.look(from + look * 50_000, 7, 3));
        from + us
    }

    fn begun() -> Blackhole {
        let mut blackhole = Blackhole::default();
        blackhole.look(0, 7, 2);
        blackhole
    }

    #[test]
    fn a_lane_is_given_up_where_tcp_goes_on_answering() {
        let mut blackhole = begun();
        let at = silent(&mut blackhole, 0, 900_000);
        assert!(!blackhole.asks(RTT_US), "a moment");
        let at = silent(&mut blackhole, at, 100_000);
        assert!(blackhole.asks(RTT_US));
        blackhole.on_tcp_answer(RTT_US);
        assert!(!blackhole.asks(RTT_US), "it has just answered");
        blackhole.on_tcp_answer(RTT_US);
        let at = silent(&mut blackhole, at, 1_000_000);
        assert!(blackhole.asks(RTT_US));
        blackhole.on_tcp_answer(RTT_US);
        assert!(!blackhole.is_blocked(RTT_US, true), "a path may have been cut for so long");
        silent(&mut blackhole, at, 1_000_000);
        assert!(blackhole.is_blocked(RTT_US, true) && !blackhole.is_blocked(366_000, true));
    }

    /// As from a firewall that begins to reject UDP.
    #[test]
    fn a_lane_whose_packets_are_refused_is_given_up_sooner() {
        let mut blackhole = begun();
        blackhole.on_refusal(0);
        // An acknowledgement was on its way.
        blackhole.look(10_000, 8, 2);
        let mut at = 10_000;
        for _ in 0..10 {
            at += 50_000;
            blackhole.look(at, 8, 3);
            if blackhole.asks(RTT_US) {
                blackhole.on_tcp_answer(RTT_US);
            }
        }
        assert!(blackhole.is_blocked(RTT_US, true) && !blackhole.is_blocked(RTT_US, false), "{blackhole:?}");
        assert!(!blackhole.is_blocked(200_000, true), "the path is long");
        (1..=10).for_each(|look| blackhole.look(at + look * 50_000, 8, 3));
        assert!(blackhole.is_blocked(RTT_US, false));
    }

    /// As where a firewall rejects what the end that dialled sends: only that end is told.
    #[test]
    fn a_silent_lane_is_left_where_its_peer_has_gone_to_tcp() {
        let mut blackhole = begun();
        blackhole.on_tcp_lane();
        let at = silent(&mut blackhole, 0, 600_000);
        assert!(!blackhole.is_blocked(RTT_US, false), "that lane was made before");
        blackhole.on_tcp_lane();
        assert!(blackhole.is_blocked(RTT_US, false) && !blackhole.is_blocked(200_000, false));
        assert!(!blackhole.is_blocked(RTT_US, true), "the end that dialled makes the lanes");
        blackhole.look(at, 8, 3);
        (1..=12).for_each(|look| blackhole.look(at + look * 50_000, 8, 4));
        assert!(!blackhole.is_blocked(RTT_US, false), "it was heard since");
    }

    /// Anybody can send such reports.
    #[test]
    fn refusals_end_no_lane_that_is_heard_or_whose_peer_is_not_heard_by_tcp() {
        let mut blackhole = begun();
        for look in 1..100 {
            blackhole.on_refusal(look * 50_000);
            blackhole.look(look * 50_000, 7 + look, 3);
            blackhole.on_tcp_answer(RTT_US);
            assert!(!blackhole.is_blocked(RTT_US, true));
        }
        for look in 100..200 {
            blackhole.on_refusal(look * 50_000);
            blackhole.look(look * 50_000, 106, 4);
            assert!(!blackhole.is_blocked(RTT_US, true), "it may be cut for a moment");
        }
        let mut earlier = begun();
        earlier.on_refusal(0);
        earlier.look(2_000_000, 8, 3);
        for look in 1..40 {
            earlier.look(2_000_000 + look * 50_000, 8, 4);
            earlier.on_tcp_answer(RTT_US);
        }
        assert!(!earlier.is_blocked(RTT_US, true), "the refusal has nothing to do with it");
    }

    #[test]
    fn whoever_was_dialled_gives_the_lane_up_a_moment_later() {
        let mut blackhole = begun();
        let mut at = 0;
        for _ in 0..3 {
            at = silent(&mut blackhole, at, 1_000_000);
            blackhole.on_tcp_answer(RTT_US);
        }
        assert!(blackhole.is_blocked(RTT_US, true) && !blackhole.is_blocked(RTT_US, false));
        silent(&mut blackhole, at, 1_000_000);
        assert!(blackhole.is_blocked(RTT_US, false));
    }

    #[test]
    fn a_silent_lane_is_left_where_its_peer_has_another_address() {
        let mut blackhole = begun();
        let at = silent(&mut blackhole, 0, 600_000);
        assert!(!blackhole.is_left(Some(RTT_US)), "the peer has not moved");
        blackhole.on_move(at, 7, 3);
        assert!(
            blackhole.is_left(Some(RTT_US)) && !blackhole.is_left(Some(400_000)) && !blackhole.is_left(None)
        );
        blackhole.on_move(at, 8, 3);
        assert!(!blackhole.is_left(Some(RTT_US)), "it was heard until now");
        (1..=10).for_each(|look| blackhole.look(at + look * 50_000, 8, 4));
        assert!(blackhole.is_left(Some(RTT_US)), "it is silent since");
        blackhole.look(at, 9, 4);
        (1..=20).for_each(|look| blackhole.look(at + look * 50_000, 9, 5));
        assert!(!blackhole.is_left(Some(RTT_US)), "it was heard at the old address since");
    }

    #[test]
    fn a_lane_that_was_never_heard_is_given_up_where_its_peer_has_gone_to_tcp() {
        let silent = |answers, tcp_lane: bool| {
            let mut blackhole = Blackhole::default();
            blackhole.look(0, answers, 0);
            if tcp_lane {
                blackhole.on_tcp_lane();
            }
            (1..=44).for_each(|look| blackhole.look(look * 50_000, answers, 3));
            blackhole
        };
        let unheard = silent(0, true);
        assert!(unheard.is_blocked(0, false) && !unheard.is_blocked(0, true));
        assert!(!silent(0, false).is_blocked(0, false), "the path may be long");
        assert!(!silent(7, true).is_blocked(0, false), "it was heard, so the path may be cut for a moment");
        let mut heard = silent(0, true);
        heard.look(2_250_000, 1, 3);
        assert!(!heard.is_blocked(0, false));
    }

    #[test]
    fn a_cut_path_is_not_given_up_and_any_acknowledgement_ends_the_silence() {
        let mut blackhole = begun();
        let at = silent(&mut blackhole, 0, 15_000_000);
        assert!(
            blackhole.asks(RTT_US) && !blackhole.is_blocked(RTT_US, true),
            "nobody answers by TCP either"
        );
        blackhole.on_tcp_answer(RTT_US);
        assert!(!blackhole.is_blocked(RTT_US, true), "the path is back: UDP is to have time");
        blackhole.look(at, 8, 40);
        blackhole.look(at + 250_000, 8, 40);
        assert!(!blackhole.asks(RTT_US) && blackhole.ms() == 0);
    }

    #[test]
    fn who_stood_still_has_heard_nothing_for_that() {
        let mut blackhole = begun();
        blackhole.look(20_000_000, 7, 3);
        assert!(!blackhole.asks(RTT_US) && blackhole.ms() == 250);
    }
}
