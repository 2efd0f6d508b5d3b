//! Acknowledgements that come in lumps on a short path: what a lump covers stays in flight until it comes.
//!
//! Wi-Fi, cable modems and radio links hold acknowledgements back, and let many go at once. The window then has room for
//! what was acknowledged beyond the capacity, as in BBR (draft-ietf-ccwg-bbr, "ACK aggregation"). An acknowledgement must
//! have waited as long on its way: if the capacity is merely higher than was known, none has. On longer paths, what
//! leaves in silence (`Silence`) makes up for lumps.

use super::*;

/// Rounds for which a lump counts, at least; at most twice as many. Count. BBR's filter has 10.
const ROUNDS: u32 = 5;
/// Longest lump, as a time at the capacity. As in BBR of Linux. Microseconds (100 ms).
const MOST_US: Micros = 100_000;
/// After such a growth of the capacity, what came beyond it before was no lump. A ratio.
const GROWN: f64 = 1.05;

/// How much was acknowledged beyond the capacity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aggregation {
    /// Since when acknowledgements have come faster than the capacity, and what they covered. Bytes (wire).
    since: Micros,
    bytes: f64,
    /// The most beyond the capacity in these rounds, and in those before them. Bytes (wire).
    most: [f64; 2],
    /// Longest that an acknowledgement waited on its way in the same rounds. Microseconds.
    waits_us: [Micros; 2],
    rounds: u32,
    /// The capacity when these rounds began. Bytes/s (wire).
    capacity: f64,
}

impl Aggregation {
    /// Processes an acknowledgement. `capacity` is in bytes/s (wire).
    pub(super) fn note(&mut self, sample: &AckSample, capacity: f64) {
        if capacity > GROWN * self.capacity {
            *self = Self { capacity, since: sample.now, ..Self::default() };
        }
        if sample.round_ended {
            self.rounds += 1;
            if self.rounds >= ROUNDS {
                (self.rounds, self.capacity) = (0, capacity);
                self.most = [0.0, self.most[0]];
                self.waits_us = [0, self.waits_us[0]];
            }
        }
        let expected = |since: Micros| capacity * sample.now.saturating_sub(since) as f64 / 1e6;
        if self.bytes <= expected(self.since) {
            (self.since, self.bytes) = (sample.now, 0.0);
        }
        self.bytes += sample.acked_bytes as f64;
        let beyond = self.bytes - expected(self.since);
        self.most[0] = self.most[0].max(beyond.min(capacity * MOST_US as f64 / 1e6));
        self.waits_us[0] = self.waits_us[0].max(sample.back_us.unwrap_or(0));
    }

    /// What lumps add to the round trip at this capacity (bytes/s, wire). Microseconds.
    pub(super) fn us(&self, capacity: f64) -> Micros {
        let bytes = self.most[0].max(self.most[1]);
        let waited_us = self.waits_us[0].max(self.waits_us[1]);
        ((bytes * 1e6 / capacity.max(1.0)) as Micros).min(waited_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: f64 = 1e6;

    /// 10 rounds of 10 ms: 10,000 bytes each, in one lump, of which the first packet waited for so long.
    fn lumps(waited_us: Micros) -> Aggregation {
        let mut aggregation = Aggregation::default();
        for round in 0..10 {
            let sample = AckSample {
                now: round * 10_000,
                acked_bytes: 1_000,
                back_us: Some(waited_us),
                ..Default::default()
            };
            (0..10).for_each(|packet| {
                aggregation.note(&AckSample { round_ended: packet == 0, ..sample }, CAPACITY);
            });
        }
        aggregation
    }

    #[test]
    fn a_lump_adds_its_length_to_the_round_trip() {
        assert_eq!(lumps(12_000).us(CAPACITY), 10_000);
        assert_eq!(lumps(0).us(CAPACITY), 0, "nothing waited");
    }

    #[test]
    fn lumps_are_forgotten_after_ten_rounds_or_when_the_capacity_grows() {
        let even = |mut aggregation: Aggregation, capacity: f64, rounds: u64| {
            for round in 0..rounds {
                let now = 100_000 + round * 10_000;
                let sample = AckSample { now, acked_bytes: 9_000, round_ended: true, ..Default::default() };
                aggregation.note(&sample, capacity);
            }
            aggregation.us(capacity)
        };
        assert!(even(lumps(12_000), CAPACITY, 4) > 0);
        assert_eq!(even(lumps(12_000), CAPACITY, 10), 0);
        assert_eq!(even(lumps(12_000), 2.0 * CAPACITY, 1), 0);
    }
}
