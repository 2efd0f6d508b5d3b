//! Reports between the two ends: that a host does not read packets as fast as they come ([`Strain`]), and how many of
//! them routers have marked (CE of RFC 3168).

use crate::Micros;
use crate::wire::Strain;

/// A peer's overload report holds this long, or two round trips if that is longer; the peer repeats it after a fifth of
/// this time. Microseconds (100 ms).
const LASTS_US: Micros = 100_000;
/// Time between reports of our host's overload if no packets were dropped. Microseconds (20 ms).
const EVERY_US: Micros = 20_000;
/// The reported busy time may exceed the time since the last report by this much, as reports can be late. Microseconds.
const LATE_US: Micros = 1_000_000;

/// Our reports to the peer. What the peer was told is never reported twice, except to repeat an overload that lasts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnReports {
    /// The host's counters when the stream began.
    from: Strain,
    news: Option<Strain>,
    told: Strain,
    told_at: Micros,
    /// Marked packets that have come, and the count that the peer was told. Modulo 2^32.
    marked: u32,
    marked_told: u32,
}

impl OwnReports {
    /// Counts our host's overload from these counters on.
    pub(super) fn count_from(&mut self, strain: Strain) {
        self.from = strain;
    }

    /// Sets what to tell of our host's counters; `None` for nothing.
    pub(super) fn set(&mut self, strain: Option<Strain>) {
        self.news = strain.map(|strain| Strain {
            busy_us: strain.busy_us.wrapping_sub(self.from.busy_us),
            dropped: strain.dropped.wrapping_sub(self.from.dropped),
        });
    }

    /// Counts a packet that a router has marked.
    pub(super) fn note_marked(&mut self) {
        self.marked = self.marked.wrapping_add(1);
    }

    /// Whether to report overload. Drops are reported with the acknowledgement that reveals the losses: if `acks`.
    pub(super) fn is_strain_due(&self, now: Micros, acks: impl FnOnce() -> bool) -> bool {
        let Some(news) = self.news else { return false };
        now >= self.told_at + EVERY_US || news.dropped != self.told.dropped && acks()
    }

    /// The report of overload, if there is one. The peer is told now.
    pub(super) fn tell_strain(&mut self, now: Micros) -> Option<Strain> {
        let news = self.news?;
        (self.told, self.told_at) = (news, now);
        Some(news)
    }

    /// Whether the peer has yet to hear of packets that a router has marked.
    pub(super) fn has_marks(&self) -> bool {
        self.marked != self.marked_told
    }

    /// The count of marked packets. The peer is told now.
    pub(super) fn tell_marks(&mut self) -> u32 {
        self.marked_told = self.marked;
        self.marked
    }
}

/// The peer's reports. Each dropped or marked packet counts once, and there are never more than we have sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerReports {
    last: Strain,
    heard_at: Micros,
    /// The last report of overload holds until then.
    until: Micros,
    /// Packets that the peer's host dropped and that are not declared lost yet.
    dropped: u64,
    /// The peer's last count of marked packets, and those of them that no acknowledgement has answered for.
    marks: u32,
    marked: u64,
}

impl PeerReports {
    pub(super) fn new(now: Micros) -> Self {
        Self { last: Strain::default(), heard_at: now, until: 0, dropped: 0, marks: 0, marked: 0 }
    }

    /// Takes in the report that the peer's host does not read packets as fast as they come. Returns the time that it
    /// was busy since the last report. Microseconds.
    pub(super) fn on_strain(&mut self, now: Micros, strain: Strain, sent: u64, rtt_us: Micros) -> Micros {
        let busy_us = strain.busy_us.wrapping_sub(self.last.busy_us);
        let dropped = strain.dropped.wrapping_sub(self.last.dropped);
        if busy_us.max(dropped) > u32::MAX / 2 {
            return 0; // a report older than the last one
        }
        let most_us = now.saturating_sub(self.heard_at) + LATE_US;
        self.dropped = (self.dropped + u64::from(dropped)).min(sent);
        self.until = now + LASTS_US.max(2 * rtt_us);
        (self.last, self.heard_at) = (strain, now);
        u64::from(busy_us).min(most_us)
    }

    /// Takes in the peer's count of marked packets. Returns how many are new.
    pub(super) fn on_marks(&mut self, told: u32, sent: u64) -> u64 {
        let more = told.wrapping_sub(self.marks);
        if more > u32::MAX / 2 {
            return 0; // a report older than the last one
        }
        self.marks = told;
        self.marked = (self.marked + u64::from(more)).min(sent);
        u64::from(more)
    }

    /// Whether the peer's host is overloaded.
    pub(super) fn is_strained(&self, now: Micros) -> bool {
        now < self.until
    }

    /// Number of the `lost` newly lost packets that the peer's host dropped by its own report.
    pub(super) fn take_dropped(&mut self, now: Micros, lost: usize) -> usize {
        if !self.is_strained(now) {
            self.dropped = 0;
        }
        let dropped = self.dropped.min(lost as u64);
        self.dropped -= dropped;
        dropped as usize
    }

    /// Number of marked packets that no acknowledgement has answered for.
    pub(super) fn take_marked(&mut self) -> u64 {
        std::mem::take(&mut self.marked)
    }
}
