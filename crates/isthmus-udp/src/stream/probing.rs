//! Probes: packets that are sent when no acknowledgement comes (RFC 9002, 6.2).

use crate::Micros;
use crate::sending::{Piece, end_of};

/// Longest wait between probes in a long silence or without an RTT; a longer probe timeout wins. Microseconds (50 ms).
const MAX_US: Micros = 50_000;
/// Silence (4 s) during which probes are at most RTT/2 apart, or 5 ms if that is more. Microseconds.
const OFTEN_US: Micros = 4_000_000;
const SPACE_US: Micros = 5_000;
/// Probes before the waits begin to grow: the answers to the first ones may themselves be lost. Count.
const EARLY: u32 = 3;
/// This many probes without an answer are a silence, and not only a lost tail. Count.
const SILENCE: u32 = 2;

/// The probe timer, and the present probe. The timer runs only while an acknowledgement is awaited.
#[derive(Debug, Default)]
pub(super) struct Probing {
    /// When a probe is sent, unless an acknowledgement comes first.
    at: Option<Micros>,
    /// Probes since the last acknowledgement.
    count: u32,
    /// Packets of the present probe that are still to be sent.
    due: u8,
    /// Where the data of its next packet begin at the earliest.
    from: u64,
}

impl Probing {
    pub(super) fn at(&self) -> Option<Micros> {
        self.at
    }

    /// Whether packets of a probe are still to be sent.
    pub(super) fn is_due(&self) -> bool {
        self.due > 0
    }

    /// Whether there was a probe since the last acknowledgement.
    pub(super) fn has_begun(&self) -> bool {
        self.count > 0
    }

    /// Whether the present probe is one of the first.
    pub(super) fn is_early(&self) -> bool {
        self.count <= EARLY
    }

    /// Sets when the next probe is sent: after the probe timeout `once_us`, or later in a long silence. The waits grow
    /// only a little: the stream should notice within a round trip that a link is back.
    pub(super) fn arm(&mut self, now: Micros, once_us: Micros, rtt_us: Option<Micros>, silent_us: Micros) {
        let doublings = self.count.saturating_sub(EARLY).min(6);
        let most = match rtt_us {
            Some(rtt) if silent_us < OFTEN_US => (rtt / 2).max(SPACE_US),
            _ => once_us.max(MAX_US),
        };
        let wait = if self.count < EARLY { once_us } else { (once_us << doublings).min(most) };
        self.at = Some(now + wait);
    }

    /// Begins a probe if its time has come.
    pub(super) fn begin(&mut self, now: Micros) -> bool {
        let begins = self.at.is_some_and(|at| now >= at);
        self.count += u32::from(begins);
        begins
    }

    /// Sets the number of packets of the probe that has begun.
    pub(super) fn set_packets(&mut self, packets: u8) {
        (self.due, self.from) = (packets, 0);
    }

    /// Takes one packet of the present probe. Returns where its data begin at the earliest, and whether it must be
    /// small, in case large packets no longer get through.
    pub(super) fn next(&mut self) -> (u64, bool) {
        self.due -= 1;
        (self.from, self.from == 0 && self.count > 2)
    }

    /// The next packet of the probe carries what follows this piece.
    pub(super) fn note_piece(&mut self, piece: &Piece) {
        self.from = end_of(piece);
    }

    /// An acknowledgement has come. True if there had been a silence.
    pub(super) fn end(&mut self) -> bool {
        let was_silent = self.count >= SILENCE;
        (self.at, self.count, self.due) = (None, 0, 0);
        was_silent
    }
}
