//! Loss detection: decides when a missing packet counts as lost.

use crate::Micros;

/// A loss detection rule. It judges packets that the peer reports missing while later ones have arrived.
pub trait LossDetection: Send + std::fmt::Debug {
    /// Whether a packet counts as lost. It was sent `packets` and `behind_us` before the latest one that has arrived.
    /// If it is lost, one further behind in both must be too.
    fn is_lost(&self, packets: u64, behind_us: Micros) -> bool;
    /// A packet that counted as lost has arrived, this far behind.
    fn on_late(&mut self, packets: u64, behind_us: Micros, rtt_us: Micros);
    /// A round trip has passed.
    fn on_round(&mut self);
    /// Its name in a composition.
    fn name(&self) -> &'static str;
}

/// Least packets behind for a loss, in both rules (as in RFC 5681 and RFC 9002).
const PACKETS: u64 = 3;

/// A packet is lost when 3 later ones have arrived, as with TCP's duplicate acknowledgements.
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

/// A packet is lost when it is 3 packets behind, and behind by more time than recent reordering took (as in RACK, RFC
/// 8985). The wait grows with each late packet, up to a round trip, and shrinks again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive {
    wait_us: Micros,
    rounds: u32,
}

/// Rounds without a late packet after which the wait shrinks by a quarter.
const CALM_ROUNDS: u32 = 16;
/// Limit of the wait if the round trip is shorter. Microseconds.
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
