//! Pacer: spreads packets over time in short bursts (quanta), and keeps streams below the administrator's rate limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Micros;

/// Pacing quantum: packets for this time leave at once, then none until it has passed. Microseconds.
pub(crate) const QUANTUM_US: Micros = 1_000;
/// On a short path the quantum is this part of the round trip. The queue of such a path holds little more.
const QUANTUM_PART: Micros = 16;
/// Shortest quantum. Microseconds.
pub(crate) const QUANTUM_MIN_US: Micros = 250;
/// A stream rests if it has nothing to send for this part of a round trip.
const REST_PART: Micros = 4;
/// Quanta of queue left free after a rest: one for the next burst, one for packets that stand there.
const ROOM_QUANTA: Micros = 2;
/// Quanta that a late caller may catch up on at most.
const LATE: Micros = 4;

/// What a sender with a limit may always catch up on: as much as TCP hands to a network card at once (TSO). A busy host
/// wakes a sender late by milliseconds, and a slow one on a short path would lose that time. Its limit is below the
/// path's rate, so such a burst does no harm. Bytes.
const BURST_BYTES: u64 = 64 << 10;
/// But no longer than this at the sender's rate, so that a slow limit holds in each second. Microseconds.
const BURST_US: Micros = 16_000;

/// Whether the round trip is so short (under 16 ms) that quanta are shorter than `QUANTUM_US`.
pub(crate) fn is_short(rtt_us: Micros) -> bool {
    quantum_us(rtt_us) < QUANTUM_US
}

/// Quantum for a round trip, which is 0 if unknown. Microseconds.
pub(crate) fn quantum_us(rtt_us: Micros) -> Micros {
    if rtt_us == 0 { QUANTUM_US } else { (rtt_us / QUANTUM_PART).clamp(QUANTUM_MIN_US, QUANTUM_US) }
}

/// Time that a late caller may catch up on at most. Microseconds. For the shortest quantum it is one quantum: a longer
/// burst would bunch the acknowledgements behind it, and so make the other end burst.
fn late_us(quantum_us: Micros) -> Micros {
    LATE * quantum_us * quantum_us / QUANTUM_US
}

/// Time that a sender with a limit may always catch up on, at this rate in bytes/s. Microseconds.
fn burst_us(rate: u64) -> Micros {
    (BURST_BYTES * 1_000_000 / rate.max(1)).min(BURST_US)
}

/// A limit on what streams and other senders send together, whatever their congestion controls allow. Clones share the
/// limit. All users need the same clock.
#[derive(Clone, Debug)]
pub struct Cap {
    bytes_per_s: u64,
    spread: Arc<Mutex<Spread>>,
}

impl Cap {
    /// Limits to this rate. Bytes/s (wire), at least 1.
    pub fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), spread: Arc::default() }
    }

    /// The limit. Bytes/s (wire).
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Time that a sender other than a stream has to wait. Microseconds; `None` if it may send now.
    pub fn pause_us(&self, now: Micros) -> Option<Micros> {
        let mut spread = self.spread();
        if spread.is_open(now, QUANTUM_US) {
            None
        } else {
            Some(spread.opens_at().saturating_sub(now).max(1))
        }
    }

    /// Counts bytes (wire) sent by a sender other than a stream.
    pub fn note(&self, now: Micros, bytes: u64) {
        let late_us = late_us(QUANTUM_US).max(burst_us(self.bytes_per_s));
        self.spread().note(now, bytes, self.bytes_per_s, late_us);
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
    /// When the present rest begins to count, and how much time may be caught up on after it. Microseconds.
    rests: Option<(Micros, Micros)>,
}

impl Pacer {
    /// Counts packets against this limit too from now on.
    pub(crate) fn hold(&mut self, cap: Cap) {
        self.cap = Some(cap);
    }

    /// Whether a packet may leave now.
    pub(crate) fn is_open(&mut self, now: Micros, quantum_us: Micros) -> bool {
        self.own.is_open(now, quantum_us) && self.cap.as_ref().is_none_or(|cap| cap.pause_us(now).is_none())
    }

    /// Notes that these bytes left at `pace` bytes/s.
    pub(crate) fn note(&mut self, now: Micros, bytes: u64, pace: u64, quantum_us: Micros) {
        if let Some((from, most_us)) = self.rests.take()
            && now >= from
        {
            self.own.forget(now.saturating_sub(most_us));
        }
        let burst_us = if self.cap.is_some() { burst_us(pace) } else { 0 };
        self.own.note(now, bytes, pace, late_us(quantum_us).max(burst_us));
        if let Some(cap) = &self.cap {
            cap.note(now, bytes);
        }
    }

    /// Notes that there is nothing to send. The path was seen to hold a queue of `queue_us`. If the rest lasts for a
    /// good part of a round trip, the stream catches up only on what such a queue has room for. Writers may pause for
    /// less.
    pub(crate) fn rest(&mut self, now: Micros, rtt_us: Micros, queue_us: Micros) {
        let from = self.rests.map_or(now + (rtt_us / REST_PART).max(QUANTUM_US), |(from, _)| from);
        self.rests = Some((from, queue_us.saturating_sub(ROOM_QUANTA * QUANTUM_US)));
    }

    /// When the next quantum may leave.
    pub(crate) fn opens_at(&self) -> Micros {
        self.own.opens_at().max(self.cap.as_ref().map_or(0, |cap| cap.spread().opens_at()))
    }
}

/// Spreads bytes over time.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    /// Until when the bytes sent use up the rate. Nanoseconds.
    paid_ns: u64,
    in_quantum: bool,
}

impl Spread {
    fn is_open(&mut self, now: Micros, quantum_us: Micros) -> bool {
        let ahead = self.paid_ns.saturating_sub(now * 1_000);
        self.in_quantum = ahead == 0 || (self.in_quantum && ahead < quantum_us * 1_000);
        self.in_quantum
    }

    /// Notes that these bytes left. The caller may catch up on `late_us`.
    fn note(&mut self, now: Micros, bytes: u64, pace: u64, late_us: Micros) {
        let takes = (u128::from(bytes) * 1_000_000_000 / u128::from(pace.max(1))) as u64;
        self.paid_ns = self.paid_ns.max((now * 1_000).saturating_sub(late_us * 1_000)) + takes;
    }

    /// Gives up catching up on the time before `until`.
    fn forget(&mut self, until: Micros) {
        self.paid_ns = self.paid_ns.max(until * 1_000);
    }

    fn opens_at(&self) -> Micros {
        self.paid_ns.div_ceil(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_short_path_what_goes_at_once_fits_a_short_queue_however_late_the_caller_is() {
        assert_eq!([100, 4_000, 8_000, 16_000, 366_000].map(quantum_us), [250, 250, 500, 1_000, 1_000]);
        assert!(!is_short(0) && is_short(100) && !is_short(24_000));
        let (mut pacer, mut now) = (Pacer::default(), 1_000_000);
        for late in [0, 300, 2_000, 5_000] {
            now = pacer.opens_at().max(now) + late;
            let mut bytes = 0;
            while pacer.is_open(now, quantum_us(100)) {
                pacer.note(now, 1_250, 125_000_000, quantum_us(100));
                bytes += 1_250;
            }
            assert!(bytes <= 125 * 2 * 250 + 1_250, "{bytes} after {late} us");
        }
    }

    #[test]
    fn what_goes_at_once_after_a_rest_fits_the_queue() {
        let bytes_after = |pause_us: Micros, queue_us: Micros| {
            let mut pacer = Pacer::default();
            let mut quantum = |now: Micros| {
                let mut bytes = 0;
                while pacer.is_open(now, QUANTUM_US) {
                    pacer.note(now, 1_250, 125_000_000, QUANTUM_US);
                    bytes += 1_250;
                }
                pacer.rest(now, 24_000, queue_us);
                bytes
            };
            quantum(1_000_000);
            quantum(1_001_000 + pause_us)
        };
        assert_eq!(
            [0, 1_160, 3_000, 50_000].map(|queue| bytes_after(100_000, queue) / 125),
            [1_000, 1_000, 2_000, 5_000]
        );
        assert_eq!([0, 50_000].map(|queue| bytes_after(3_000, queue) / 125), [4_000; 2], "no rest");
    }

    #[test]
    fn the_rate_holds_and_quanta_are_a_millisecond_even_if_the_caller_is_late() {
        for late in [0, 500, 3_000] {
            let (mut pacer, mut now, mut total) = (Pacer::default(), 1_000_000, 0_u64);
            while now < 2_000_000 {
                let mut quantum = 0;
                while pacer.is_open(now, QUANTUM_US) {
                    pacer.note(now, 1_250, 125_000_000, QUANTUM_US);
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
