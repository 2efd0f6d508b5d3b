//! Floor: the part of the delay that is the path's own, beyond the least of the last seconds.
//!
//! A probe raises it (`probe.rs`). So does a change of route, which needs no probe: the delay of both ways jumps from
//! one packet to the next, faster than a queue grows, and stays for a round trip. A link that falls silent makes such a
//! jump too, but what it has held back then arrives at once, and the delay is gone within the round trip. The bursts of
//! many flows that start together fill a queue as fast, but that of one way.

use crate::Micros;
use crate::congestion::AckSample;

/// Least rise of the delay between two packets that may be a change of route. Microseconds; about the longest burst
/// of an operating system's timer or of one aggregated frame.
const JUMP_US: Micros = 10_000;
/// A queue grows by this many times the time between two packets at most: others' flows arrive ten times as fast as the
/// bottleneck sends, as from 10 Gb/s into 1 Gb/s.
const GROWTH_MAX: Micros = 10;

/// The path's own delay beyond the least of the last seconds. Microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor {
    /// One way, and for the round trip.
    pub(super) way_us: Micros,
    pub(super) rtt_us: Micros,
    /// Least of each in the present round.
    least: Option<Delay>,
    /// Delay of the last acknowledgement that told it, and the time between the departures of its newest packet and
    /// the present one's. Microseconds.
    last: Delay,
    sent_span_us: Micros,
    jump: Option<Jump>,
}

/// Delay beyond the least of the last seconds. Microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Delay {
    way_us: Micros,
    rtt_us: Micros,
}

impl Delay {
    fn back_us(self) -> Micros {
        self.rtt_us - self.way_us
    }

    fn min(self, other: Self) -> Self {
        Self { way_us: self.way_us.min(other.way_us), rtt_us: self.rtt_us.min(other.rtt_us) }
    }
}

/// A rise of the delay that no queue makes, until it is known whether it stays.
#[derive(Clone, Copy, Debug)]
struct Jump {
    /// Delay before it.
    before: Delay,
    /// Delay below which it is over, and above which it is a queue that grows.
    least_us: Micros,
    most_us: Micros,
    /// When it began, and when the last of its rises came. Each way has its own.
    since: Micros,
    rose_at: Micros,
    /// Least delay since then.
    least: Delay,
}

impl Jump {
    /// Whether the delay of each way has risen by half of [`JUMP_US`] at least.
    fn is_of_both_ways(&self) -> bool {
        let (least, before) = (self.least, self.before);
        least.way_us >= before.way_us + JUMP_US / 2 && least.back_us() >= before.back_us() + JUMP_US / 2
    }
}

impl Floor {
    /// Notes an acknowledgement. Returns it with the floor counted as delay of the path, not of a queue.
    pub(super) fn note(&mut self, sample: &AckSample) -> AckSample {
        self.sent_span_us += sample.sent_span_us;
        if let (Some(way_us), Some(back_us)) = (sample.queue_us, sample.back_us) {
            let delay = Delay { way_us, rtt_us: way_us + back_us };
            self.least = Some(self.least.map_or(delay, |least| least.min(delay)));
            self.note_jump(sample, delay);
            (self.last, self.sent_span_us) = (delay, 0);
        }
        if sample.round_ended
            && let Some(least) = self.least.take()
        {
            // A round with less delay than the floor lowers it.
            (self.way_us, self.rtt_us) = (self.way_us.min(least.way_us), self.rtt_us.min(least.rtt_us));
        }
        AckSample {
            queue_us: sample.queue_us.map(|queue| queue.saturating_sub(self.way_us)),
            rtt_least_us: sample.rtt_least_us + self.rtt_us,
            ..*sample
        }
    }

    /// Begins, ends or accepts a jump.
    fn note_jump(&mut self, sample: &AckSample, delay: Delay) {
        let rise_us = delay.rtt_us.saturating_sub(self.last.rtt_us);
        // The acknowledgements under way show it first, packets that left since then follow.
        let began = self.jump.is_some() || delay.back_us() >= self.last.back_us() + JUMP_US / 2;
        if began && rise_us >= JUMP_US.max(GROWTH_MAX * self.sent_span_us) {
            self.jump = Some(Jump {
                before: self.jump.map_or(self.last, |jump| jump.before),
                least_us: self.last.rtt_us + rise_us / 2,
                most_us: delay.rtt_us + JUMP_US,
                since: self.jump.map_or(sample.now, |jump| jump.since),
                rose_at: sample.now,
                least: delay,
            });
        }
        let Some(jump) = &mut self.jump else { return };
        jump.least = jump.least.min(delay);
        if !(jump.least_us..jump.most_us).contains(&delay.rtt_us) {
            self.jump = None;
        } else if sample.now - jump.rose_at >= sample.rtt_least_us + jump.least.rtt_us {
            if jump.is_of_both_ways() {
                (self.way_us, self.rtt_us) = (jump.least.way_us, jump.least.rtt_us);
            }
            self.jump = None;
        }
    }

    /// Whether the delay jumped at this time or before, and a round trip has not passed since.
    pub(super) fn may_have_jumped_by(&self, now: Micros) -> bool {
        self.jump.is_some_and(|jump| jump.since <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_US: Micros = 24_000;

    /// A floor that has seen an acknowledgement each millisecond, with the delay (one way, back) of each in
    /// milliseconds.
    fn after(delays_ms: impl IntoIterator<Item = (Micros, Micros)>) -> Floor {
        let mut floor = Floor::default();
        for (at, (way, back)) in (0..).zip(delays_ms) {
            floor.note(&AckSample {
                now: at * 1_000,
                sent_span_us: 1_000,
                rtt_least_us: RTT_US,
                queue_us: Some(way * 1_000),
                back_us: Some(back * 1_000),
                ..AckSample::default()
            });
        }
        floor
    }

    fn steady(delay_ms: (Micros, Micros), for_ms: usize) -> impl Iterator<Item = (Micros, Micros)> {
        std::iter::repeat_n(delay_ms, for_ms)
    }

    #[test]
    fn a_longer_route_is_accepted_after_a_round_trip() {
        let jump = || steady((1, 0), 10).chain(steady((1, 28), 30)).chain(steady((29, 28), 80));
        let before = after(jump());
        assert!(before.may_have_jumped_by(10_000) && before.rtt_us == 0, "{before:?}");
        let floor = after(jump().chain(steady((30, 28), 5)));
        assert_eq!((floor.way_us, floor.rtt_us), (29_000, 57_000));
    }

    #[test]
    fn delay_that_goes_grows_or_is_of_one_way_is_none() {
        let start = || steady((1, 0), 10);
        let silence = start().chain((0..60).map(|ms| (60 - ms, 0))).chain(steady((1, 0), 100));
        let grows = start().chain((10..150).map(|ms| (ms / 2, ms)));
        let crowd = start().chain(steady((60, 0), 200));
        let back = start().chain(steady((1, 60), 200));
        for (name, floor) in [
            ("silence", after(silence)),
            ("grows", after(grows)),
            ("crowd", after(crowd)),
            ("back", after(back)),
        ] {
            assert!((floor.way_us, floor.rtt_us) == (0, 0) && floor.jump.is_none(), "{name}: {floor:?}");
        }
    }

    #[test]
    fn a_queue_that_grows_ten_times_as_fast_as_packets_leave_is_none() {
        let floor =
            after(steady((1, 0), 10).chain((1..20).map(|ms| (1, 9 * ms))).chain(steady((1, 180), 300)));
        assert_eq!((floor.rtt_us, floor.jump.is_none()), (0, true));
    }
}
