//! What one round trip tells a rate control.

use super::{TRAIN_PACKETS, TRAIN_US};
use crate::Micros;
use crate::congestion::AckSample;

/// What one round trip brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) since: Option<Micros>,
    /// What the flow of this control and all flows had delivered of it.
    pub(super) acked_bytes: u64,
    pub(super) delivered_before: u64,
    /// How long it lasted by the receiver's clock.
    pub(super) clock_us: Micros,
    /// Of what the sender did not pause before: bytes, and how long they took to arrive.
    pub(super) bytes: u64,
    pub(super) span_us: Micros,
    /// And to leave.
    pub(super) sent_span_us: Micros,
    /// For how long nothing had arrived before it, and the longest time in which nothing did.
    pub(super) led_by_us: Micros,
    pub(super) gap_us: Micros,
    pub(super) acked: u64,
    pub(super) lost: u64,
    /// Of these, those of which was heard while no long queue stood.
    pub(super) calm: Losses,
    /// Packets that the receiver's host dropped, which do not count as lost here.
    pub(super) refused: u64,
    /// The newest that arrived had waited long.
    pub(super) queued: bool,
    pub(super) queue_least_us: Option<Micros>,
    /// The same of both ways together.
    pub(super) extra_least_us: Option<Micros>,
    /// The same as the first, of its second half.
    pub(super) late_least_us: Option<Micros>,
    pub(super) app_limited: bool,
    /// It was, but what would have told of it was lost.
    pub(super) app_limited_lost: bool,
    /// Packets without data were among it: beside others' of the kind they tell of a part of the path alone.
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
    /// Takes in an acknowledgement; a queue from `long_us` on is a long one. `delivered` is what all flows have.
    pub(super) fn note(&mut self, sample: &AckSample, long_us: Micros, delivered: u64) {
        if self.since.is_none() {
            (self.since, self.delivered_before) = (Some(sample.now), delivered);
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
        }
        self.acked += sample.acked_packets;
        let lost = sample.lost_packets.saturating_sub(sample.refused_packets);
        self.lost += lost;
        self.refused += sample.refused_packets;
        self.app_limited |= sample.app_limited;
        self.app_limited_lost |= sample.app_limited_lost;
        self.is_train |= sample.is_train;
        if let Some(queue) = sample.queue_us {
            let least = |before: Option<Micros>| Some(before.map_or(queue, |least| least.min(queue)));
            self.queue_least_us = least(self.queue_least_us);
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

    /// Losses that no long queue accounts for, unless one stood for most of the time.
    pub(super) fn calm(&self) -> Option<Losses> {
        Some(self.calm).filter(|calm| 2 * calm.all >= self.acked + self.lost)
    }

    pub(super) fn losses(&self) -> Losses {
        Losses { all: self.acked + self.lost, lost: self.lost }
    }

    /// Whether enough has arrived, over enough time, for a rate.
    pub(super) fn tells_rate(&self) -> bool {
        self.span_us >= TRAIN_US && self.acked >= TRAIN_PACKETS
    }

    pub(super) fn loss(&self) -> f64 {
        self.losses().ratio()
    }
}
