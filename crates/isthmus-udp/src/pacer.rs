//! When packets leave: spread by rate, released in quanta; and no faster, with those of other streams, than an
//! administrator lets them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Micros;

/// A quantum: sent at once, then nothing until its time has passed. Nanoseconds (1 ms).
pub(crate) const QUANTUM_NS: u64 = 1_000_000;
/// Most time that a caller who came late may catch up on. Nanoseconds (4 ms).
const LATE_NS: u64 = 4_000_000;

/// A cap on what streams, and whoever else is asked, send together, whatever congestion controls hold their paths
/// for. Clones are the same cap. All are to go by one clock.
#[derive(Clone, Debug)]
pub struct Cap {
    bytes_per_s: u64,
    spread: Arc<Mutex<Spread>>,
}

impl Cap {
    /// Bytes/s (wire), at least 1.
    pub fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), spread: Arc::default() }
    }

    /// Bytes/s (wire).
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// How long whoever sends by other means than a stream has still to wait; `None` where it may send now.
    pub fn pause_us(&self, now: Micros) -> Option<Micros> {
        let mut spread = self.spread();
        if spread.is_open(now) { None } else { Some(spread.opens_at().saturating_sub(now).max(1)) }
    }

    /// So many bytes were sent by other means than a stream.
    pub fn note(&self, now: Micros, bytes: u64) {
        self.spread().note(now, bytes, self.bytes_per_s);
    }

    fn spread(&self) -> MutexGuard<'_, Spread> {
        self.spread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spreads a stream's packets over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pacer {
    own: Spread,
    cap: Option<Cap>,
}

impl Pacer {
    /// From now on its packets go beside others' under this cap.
    pub(crate) fn hold(&mut self, cap: Cap) {
        self.cap = Some(cap);
    }

    /// Whether a packet may go now.
    pub(crate) fn is_open(&mut self, now: Micros) -> bool {
        self.own.is_open(now) && self.cap.as_ref().is_none_or(|cap| cap.pause_us(now).is_none())
    }

    /// Notes that so many bytes went at `pace` bytes/s.
    pub(crate) fn note(&mut self, now: Micros, bytes: u64, pace: u64) {
        self.own.note(now, bytes, pace);
        if let Some(cap) = &self.cap {
            cap.note(now, bytes);
        }
    }

    /// When the next quantum may go.
    pub(crate) fn opens_at(&self) -> Micros {
        self.own.opens_at().max(self.cap.as_ref().map_or(0, |cap| cap.spread().opens_at()))
    }
}

/// Spreads bytes over time.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    /// Until when what was sent has used up the rate. Nanoseconds.
    paid_ns: u64,
    in_quantum: bool,
}

impl Spread {
    fn is_open(&mut self, now: Micros) -> bool {
        let ahead = self.paid_ns.saturating_sub(now * 1_000);
        self.in_quantum = ahead == 0 || (self.in_quantum && ahead < QUANTUM_NS);
        self.in_quantum
    }

    fn note(&mut self, now: Micros, bytes: u64, pace: u64) {
        let takes = (u128::from(bytes) * 1_000_000_000 / u128::from(pace.max(1))) as u64;
        self.paid_ns = self.paid_ns.max((now * 1_000).saturating_sub(LATE_NS)) + takes;
    }

    fn opens_at(&self) -> Micros {
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
