//! When a packet that has not arrived counts as lost.

use crate::Micros;

/// A rule for loss, asked about packets of which the peer says that they have not arrived
/// while later ones have.
pub trait LossDetection: Send + std::fmt::Debug {
    /// Whether a packet counts as lost that was sent `packets` and `behind_us` before the
    /// latest one that has arrived. Never less so when both are larger.
    fn is_lost(&self, packets: u64, behind_us: Micros) -> bool;
    /// A packet that counted as lost has come, so far behind.
    fn on_late(&mut self, packets: u64, behind_us: Micros, rtt_us: Micros);
    /// A round trip has passed.
    fn on_round(&mut self);
    /// Its name in compositions.
    fn name(&self) -> &'static str;
}

/// Packets behind at which the rules begin (RFC 5681 and RFC 9002 have the same).
const PACKETS: u64 = 3;

/// Lost when 3 later packets have arrived, as TCP's duplicate acknowledgements once had it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed(());

impl LossDetection for Fixed {
    fn is_lost(&self, packets: u64, _: Micros) -> bool {
        packets >= PACKETS
    }
    fn on_late(&mut self, _: u64, _: Micros, _: Micros) {}
    fn on_round(&mut self) {}
    fn name(&self) -> &'static str {
        "fixed"
    }
}

/// Lost when 3 packets behind, and by more time than reordering has lately been seen to
/// take (as RACK has it, RFC 8985): the wait grows with each packet that came late, up to a
/// round trip, and shrinks again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive {
    wait_us: Micros,
    rounds: u32,
}

/// Rounds without a late packet after which the wait shrinks by a quarter.
const CALM_ROUNDS: u32 = 16;
/// Largest wait on paths with a shorter round trip. Microseconds.
const WAIT_US: Micros = 2_000;

impl LossDetection for Adaptive {
    fn is_lost(&self, packets: u64, behind_us: Micros) -> bool {
        packets >= PACKETS && behind_us >= self.wait_us
    }

    fn on_late(&mut self, _: u64, behind_us: Micros, rtt_us: Micros) {
        self.wait_us = self.wait_us.max(behind_us + behind_us / 4).min(rtt_us.max(WAIT_US));
        self.rounds = 0;
    }

    fn on_round(&mut self) {
        self.rounds += 1;
        if self.rounds >= CALM_ROUNDS {
            self.rounds = 0;
            self.wait_us -= self.wait_us.div_ceil(4);
        }
    }

    fn name(&self) -> &'static str {
        "adaptive"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_reordering_and_forgets_it() {
        let mut rule = Adaptive::default();
        assert!(!rule.is_lost(2, 1_000) && rule.is_lost(3, 0));
        rule.on_late(50, 1_000, 100_000);
        assert!(!rule.is_lost(60, 1_200) && rule.is_lost(60, 1_250));
        rule.on_late(50, 500_000, 100_000);
        assert!(rule.is_lost(3, 100_000), "never more than a round trip");
        for _ in 0..CALM_ROUNDS * 50 {
            rule.on_round();
        }
        assert!(rule.is_lost(3, 0));
    }
}
