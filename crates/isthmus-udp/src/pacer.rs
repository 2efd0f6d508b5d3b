//! When packets leave: spread by rate, released in quanta.

use crate::Micros;

/// A quantum: sent at once, then nothing until its time has passed. Nanoseconds (1 ms).
pub(crate) const QUANTUM_NS: u64 = 1_000_000;
/// Most time that a caller who came late may catch up on. Nanoseconds (4 ms).
const LATE_NS: u64 = 4_000_000;

/// Spreads bytes over time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// Until when what was sent has used up the rate. Nanoseconds.
    paid_ns: u64,
    in_quantum: bool,
}

impl Pacer {
    /// Whether a packet may go now.
    pub(crate) fn is_open(&mut self, now: Micros) -> bool {
        let ahead = self.paid_ns.saturating_sub(now * 1_000);
        self.in_quantum = ahead == 0 || (self.in_quantum && ahead < QUANTUM_NS);
        self.in_quantum
    }

    /// Notes that so many bytes went at `pace` bytes/s.
    pub(crate) fn note(&mut self, now: Micros, bytes: u64, pace: u64) {
        let takes = (u128::from(bytes) * 1_000_000_000 / u128::from(pace.max(1))) as u64;
        self.paid_ns = self.paid_ns.max((now * 1_000).saturating_sub(LATE_NS)) + takes;
    }

    /// When the next quantum may go.
    pub(crate) fn opens_at(&self) -> Micros {
        self.paid_ns.div_ceil(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_and_quanta_are_a_millisecond_even_if_the_caller_is_late() {
        for late in [0, 500, 3_000] {
            let (mut pacer, mut now, mut total) = (Pacer::default(), 1_000_000, 0_u64);
            while now < 2_000_000 {
                let mut quantum = 0;
                while pacer.is_open(now) {
                    pacer.note(now, 1_250, 125_000_000);
                    quantum += 1_250;
                }
                assert!(
                    quantum <= 125 * (1_000 + late) + 500_000 * u64::from(total == 0) + 1_250,
                    "{quantum}"
                );
                total += quantum;
                now = pacer.opens_at().max(now) + late;
            }
            assert!((124_000_000..126_000_000).contains(&total), "late by {late}: {total}");
        }
    }
}
