//! UDP lanes that carry data before it is known whether UDP suits the path. Waiting to know would cost a round trip. If
//! the path turns out short, or UDP does not get through, the lane ends, and its data goes by TCP.

use crate::Micros;
use crate::race::grace_us;
use crate::thresholds::transport::{DOUBT_US, NO_TCP_US};

/// The findings about the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Nothing yet.
    NotYet,
    /// Send a TCP probe, and tell when it is sent ([`Provisional::on_tcp_asked`]).
    Doubt,
    /// The path is long, so UDP suits it.
    Far,
    /// The path is short, so TCP does better, and TCP connects.
    Near,
    /// The path is short, but TCP does not connect: a firewall or a port forward passes UDP only.
    OnlyUdp,
    /// UDP does not get through, and TCP does.
    Blocked,
}

/// The state of such a lane.
#[derive(Clone, Copy, Debug)]
pub struct Provisional {
    /// UDP carries from this round trip on.
    long_us: Micros,
    since: Micros,
    /// When the TCP probe was sent.
    asked: Option<Micros>,
    /// When it was answered.
    answered: Option<Micros>,
    /// It was refused.
    refused: bool,
}

impl Provisional {
    /// A lane that began now. UDP suits paths from a round trip of `long_us` microseconds on.
    pub fn new(now: Micros, long_us: Micros) -> Self {
        Self { long_us, since: now, asked: None, answered: None, refused: false }
    }

    /// The TCP probe was sent.
    pub fn on_tcp_asked(&mut self, now: Micros) {
        self.asked.get_or_insert(now);
    }

    /// The TCP probe was answered: somebody listens there.
    pub fn on_tcp_answer(&mut self, now: Micros) {
        self.answered.get_or_insert(now);
    }

    /// The TCP probe was refused.
    pub fn on_tcp_refusal(&mut self) {
        self.refused = true;
    }

    /// Judges the path. `rtt_us` is the round trip that was measured on this lane, once there was an answer.
    pub fn look(&self, now: Micros, rtt_us: Option<Micros>) -> Outlook {
        if let Some(rtt_us) = rtt_us {
            return if rtt_us < self.long_us { self.look_for_tcp(now) } else { Outlook::Far };
        }
        match (self.asked, self.answered) {
            (Some(asked), Some(answered)) => {
                let took = answered.saturating_sub(asked);
                let until = answered + grace_us(took);
                if now >= until { Outlook::Blocked } else { Outlook::NotYet }
            }
            (None, _) if now >= self.since + DOUBT_US => Outlook::Doubt,
            _ => Outlook::NotYet,
        }
    }

    /// UDP gets through on a short path. It goes on until TCP is known to connect.
    fn look_for_tcp(&self, now: Micros) -> Outlook {
        match self.asked {
            _ if self.answered.is_some() => Outlook::Near,
            _ if self.refused => Outlook::OnlyUdp,
            Some(asked) if now >= asked + NO_TCP_US => Outlook::OnlyUdp,
            Some(_) => Outlook::NotYet,
            None => Outlook::Doubt,
        }
    }

    /// UDP carries from this round trip on. Microseconds.
    pub fn long_us(&self) -> Micros {
        self.long_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Micros = 10_000;

    #[test]
    fn the_first_answer_tells_which_it_is() {
        assert_eq!(Provisional::new(0, LONG).look(24_000, Some(24_000)), Outlook::Far);
        // A late answer by UDP counts, too.
        let mut provisional = Provisional::new(0, LONG);
        assert_eq!(provisional.look(DOUBT_US, None), Outlook::Doubt);
        provisional.on_tcp_asked(DOUBT_US);
        provisional.on_tcp_answer(DOUBT_US + 30_000);
        assert_eq!(provisional.look(400_000, Some(24_000)), Outlook::Far);
    }

    #[test]
    fn a_short_path_is_left_to_tcp_once_that_connects() {
        let asked = || {
            let mut provisional = Provisional::new(0, LONG);
            assert_eq!(provisional.look(300, Some(300)), Outlook::Doubt);
            provisional.on_tcp_asked(300);
            assert_eq!(provisional.look(5_000, Some(300)), Outlook::NotYet);
            provisional
        };
        let mut connects = asked();
        connects.on_tcp_answer(5_000);
        assert_eq!(connects.look(5_000, Some(300)), Outlook::Near);
        let mut refused = asked();
        refused.on_tcp_refusal();
        assert_eq!(refused.look(5_000, Some(300)), Outlook::OnlyUdp);
        let silent = asked();
        assert_eq!(silent.look(300 + NO_TCP_US - 1, Some(300)), Outlook::NotYet);
        assert_eq!(silent.look(300 + NO_TCP_US, Some(300)), Outlook::OnlyUdp);
    }

    #[test]
    fn tcp_is_asked_once_and_its_answer_is_no_verdict_before_udp_had_time() {
        let mut provisional = Provisional::new(1_000, LONG);
        assert_eq!(provisional.look(DOUBT_US, None), Outlook::NotYet);
        assert_eq!(provisional.look(DOUBT_US + 1_000, None), Outlook::Doubt);
        provisional.on_tcp_asked(DOUBT_US + 1_000);
        // While nobody answers by TCP either, nothing is known.
        assert_eq!(provisional.look(5_000_000, None), Outlook::NotYet);
        provisional.on_tcp_answer(5_000_000);
        let took = 5_000_000 - DOUBT_US - 1_000;
        assert_eq!(provisional.look(5_000_000 + 2 * took - 1, None), Outlook::NotYet);
        assert_eq!(provisional.look(5_000_000 + 2 * took, None), Outlook::Blocked);
        let mut quick = Provisional::new(0, LONG);
        assert_eq!(quick.look(DOUBT_US, None), Outlook::Doubt);
        quick.on_tcp_asked(DOUBT_US);
        quick.on_tcp_answer(DOUBT_US + 300);
        assert_eq!(quick.look(DOUBT_US + 300 + grace_us(0) - 1, None), Outlook::NotYet);
        assert_eq!(quick.look(DOUBT_US + 300 + grace_us(0), None), Outlook::Blocked);
    }

    #[test]
    fn while_no_probe_could_be_sent_nothing_is_known_of_tcp() {
        let mut provisional = Provisional::new(0, LONG);
        assert_eq!(provisional.look(300, Some(300)), Outlook::Doubt);
        assert_eq!(
            provisional.look(300 + NO_TCP_US, Some(300)),
            Outlook::Doubt,
            "others had to be asked first"
        );
        provisional.on_tcp_asked(300 + NO_TCP_US);
        assert_eq!(provisional.look(300 + NO_TCP_US, Some(300)), Outlook::NotYet);
        assert_eq!(provisional.look(300 + 2 * NO_TCP_US, Some(300)), Outlook::OnlyUdp);
    }
}
