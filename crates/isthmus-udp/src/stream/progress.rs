//! Progress by acknowledgements: round trips, and the time between events that successive acknowledgements tell.

use crate::Micros;

/// What the acknowledgements have shown so far. All times only grow, so that each span counts once.
#[derive(Debug)]
pub(super) struct Progress {
    /// First packet number of the present round trip.
    round_from: u64,
    /// When data was last acknowledged.
    answered_at: Micros,
    /// When the newest packet known to have arrived was sent.
    sent_at: Micros,
    /// Newest arrival that an acknowledgement reported, by the receiver's clock.
    arrived: Option<u64>,
    /// When the peer had read what its last acknowledgement reports, by the peer's clock.
    read_at: u64,
}

/// Times from the last acknowledgement to this one. Microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans {
    /// Between the sendings of the newest packets, by our clock.
    pub(super) sent_us: Micros,
    /// Between the arrivals of the newest packets, by the receiver's clock.
    pub(super) arrived_us: Micros,
    /// Between their reads there.
    pub(super) read_us: Micros,
}

impl Progress {
    pub(super) fn new(now: Micros) -> Self {
        Self { round_from: 0, answered_at: now, sent_at: 0, arrived: None, read_at: 0 }
    }

    /// When data was last acknowledged.
    pub(super) fn answered_at(&self) -> Micros {
        self.answered_at
    }

    /// Data was acknowledged.
    pub(super) fn note_answer(&mut self, now: Micros) {
        self.answered_at = now;
    }

    /// Notes when the newest packet of an acknowledgement arrived and was read by the receiver's clock, and when it was
    /// sent; `None` if the acknowledgement tells nothing new about it.
    pub(super) fn spans(&mut self, arrived: u64, read_at: u64, sent_at: Option<Micros>) -> Spans {
        let sent_at = sent_at.unwrap_or(self.sent_at);
        let spans = Spans {
            sent_us: sent_at.saturating_sub(self.sent_at),
            arrived_us: self.arrived.map_or(0, |before| arrived.saturating_sub(before)),
            read_us: read_at.saturating_sub(self.read_at),
        };
        self.sent_at = self.sent_at.max(sent_at);
        self.arrived = Some(self.arrived.map_or(arrived, |before| before.max(arrived)));
        self.read_at = self.read_at.max(read_at);
        spans
    }

    /// Whether a packet of the present round trip is acknowledged.
    pub(super) fn ends_round(&self, mut acked: impl Iterator<Item = u64>) -> bool {
        acked.any(|number| number >= self.round_from)
    }

    /// Begins a round trip with the next packet.
    pub(super) fn begin_round(&mut self, next_number: u64) {
        self.round_from = next_number;
    }
}
