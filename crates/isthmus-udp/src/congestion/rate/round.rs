//! A round: what one round trip of acknowledgements tells a rate control.

use super::{TRAIN_PACKETS, TRAIN_US};
use crate::Micros;
use crate::congestion::{AckSample, per_second};

/// Rate of the fastest part of a flight that no bottleneck makes, as a multiple of the whole flight's. Packets that a
/// host hands over every millisecond make it 2 at most.
const UNEVEN: f64 = 2.0;

/// Totals of one round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) since: Option<Micros>,
    /// Bytes (wire) that this flow delivered.
    pub(super) acked_bytes: u64,
    /// When the round before ended, and what all flows had delivered by then. Bytes (wire).
    before: Option<(Micros, u64)>,
    /// The same, or of the first acknowledgement if a pause came before it: from here on others' deliveries count.
    pub(super) counted: (Micros, u64),
    /// Its length by the receiver's clock. Microseconds.
    pub(super) clock_us: Micros,
    /// Bytes (wire) that followed no pause of the sender, and how long they took to arrive.
    pub(super) bytes: u64,
    pub(super) span_us: Micros,
    /// How long they took to leave.
    pub(super) sent_span_us: Micros,
    /// The longest of them without an arrival, and the same beyond the time in which these packets left.
    pub(super) pause_us: Micros,
    pub(super) held_us: Micros,
    /// Time without arrivals before the round, and the longest within it.
    pub(super) led_by_us: Micros,
    pub(super) gap_us: Micros,
    /// Its present part, of [`TRAIN_US`] or more: bytes (wire) and time.
    part: (u64, Micros),
    /// Rate of the fastest of these. Bytes/s (wire).
    fastest: f64,
    pub(super) acked: u64,
    pub(super) lost: u64,
    /// Packets acknowledged or lost while no long queue stood.
    pub(super) calm: Losses,
    /// Packets that the receiver's host dropped. They do not count as lost here.
    pub(super) refused: u64,
    /// Packets that a router has marked.
    pub(super) marked: u64,
    /// The newest packet had waited in a long queue.
    pub(super) queued: bool,
    /// Shortest queue on the way there. Microseconds.
    pub(super) queue_least_us: Option<Micros>,
    /// Longest queue on the way there. Microseconds.
    pub(super) queue_most_us: Micros,
    /// Shortest queue of both ways together.
    pub(super) extra_least_us: Option<Micros>,
    /// Shortest queue on the way there in the second half.
    pub(super) late_least_us: Option<Micros>,
    pub(super) app_limited: bool,
    /// A packet that would have shown `app_limited` was lost.
    pub(super) app_limited_lost: bool,
    /// Packets of a train arrived. Beside others' trains they show only a part of the path's rate.
    pub(super) is_train: bool,
}

/// Packets, and how many of them were lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    pub(super) all: u64,
    pub(super) lost: u64,
}

impl Losses {
    pub(super) fn add(&mut self, other: Self) {
        self.all += other.all;
        self.lost += other.lost;
    }

    pub(super) fn ratio(&self) -> f64 {
        self.lost as f64 / self.all.max(1) as f64
    }
}

impl Round {
    /// A round that follows another one, which ended now; all flows have delivered so much. Flows of a host that share a
    /// path take turns: what others deliver between two rounds of this flow counts, and so does that time.
    pub(super) fn after(now: Micros, delivered: u64) -> Self {
        Self { before: Some((now, delivered)), ..Self::default() }
    }

    /// All flows have delivered so much: what they delivered before does not count.
    pub(super) fn count_from(&mut self, delivered: u64) {
        (self.before, self.counted.1) = (None, delivered.wrapping_sub(self.acked_bytes));
    }

    /// Notes an acknowledgement. A queue of `long_us` or more is long; `delivered` bytes are of all flows.
    pub(super) fn note(&mut self, sample: &AckSample, long_us: Micros, delivered: u64) {
        if self.since.is_none() {
            self.since = Some(sample.now);
            let before = self.before.filter(|(at, _)| sample.now - at <= sample.rtt_us);
            self.counted = before.unwrap_or((sample.now, delivered));
            self.led_by_us = sample.span_us;
        } else {
            self.clock_us += sample.span_us;
            self.gap_us = self.gap_us.max(sample.span_us);
        }
        self.acked_bytes += sample.acked_bytes;
        if !sample.resumed {
            self.bytes += sample.acked_bytes;
            self.span_us += sample.span_us;
            self.sent_span_us += sample.sent_span_us;
            self.pause_us = self.pause_us.max(sample.span_us);
            self.held_us = self.held_us.max(sample.span_us.saturating_sub(sample.sent_span_us));
            self.part = (self.part.0 + sample.acked_bytes, self.part.1 + sample.span_us);
            if self.part.1 >= TRAIN_US {
                self.fastest = self.fastest.max(per_second(self.part.0, self.part.1));
                self.part = (0, 0);
            }
        }
        self.acked += sample.acked_packets;
        let lost = sample.lost_packets.saturating_sub(sample.refused_packets);
        self.lost += lost;
        self.refused += sample.refused_packets;
        self.marked += sample.marked_packets;
        self.app_limited |= sample.app_limited;
        self.app_limited_lost |= sample.app_limited_lost;
        self.is_train |= sample.is_train;
        if let Some(queue) = sample.queue_us {
            let least = |before: Option<Micros>| Some(before.map_or(queue, |least| least.min(queue)));
            self.queue_least_us = least(self.queue_least_us);
            self.queue_most_us = self.queue_most_us.max(queue);
            let extra = queue + sample.back_us.unwrap_or(0);
            self.extra_least_us = Some(self.extra_least_us.map_or(extra, |least| least.min(extra)));
            if self.since.is_some_and(|since| sample.now - since >= sample.rtt_us / 2) {
                self.late_least_us = least(self.late_least_us);
            }
            self.queued = queue >= long_us;
        }
        if !self.queued {
            self.calm.all += sample.acked_packets + lost;
            self.calm.lost += lost;
        }
    }

    /// Losses without a long queue. `None` if one stood for more than half of the packets.
    pub(super) fn calm(&self) -> Option<Losses> {
        Some(self.calm).filter(|calm| 2 * calm.all >= self.acked + self.lost)
    }

    pub(super) fn losses(&self) -> Losses {
        Losses { all: self.acked + self.lost, lost: self.lost }
    }

    /// Whether enough packets arrived, over enough time, to tell a rate.
    pub(super) fn tells_rate(&self) -> bool {
        self.span_us >= TRAIN_US && self.acked >= TRAIN_PACKETS
    }

    /// Whether a part of it arrived more than twice as fast as the whole. A bottleneck lets packets through evenly; what
    /// holds them back and lets them go makes bursts.
    pub(super) fn is_uneven(&self) -> bool {
        self.fastest > UNEVEN * per_second(self.bytes, self.span_us)
    }

    pub(super) fn loss(&self) -> f64 {
        self.losses().ratio()
    }
}
