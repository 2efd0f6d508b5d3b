//! The state of one lane at one end.

use crate::piece::Queue;

/// A lane's number on its link. The dialling end opens lanes with even numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// Whether this end has ended its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OwnEnd {
    #[default]
    Open,
    /// The Finish frame follows the queued bytes.
    Wanted,
    Said,
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Bytes that the program wrote and that were not sent.
    pub(crate) out: Queue,
    /// Bytes sent for which no credit came back.
    pub(crate) outstanding: u64,
    /// Bytes that came and were not read.
    pub(crate) inbox: Queue,
    /// Bytes read for which no credit was returned.
    pub(crate) owed: u32,
    pub(crate) own_end: OwnEnd,
    /// The other end has ended its stream.
    pub(crate) finished: bool,
    /// The other end has reset the lane.
    pub(crate) reset: bool,
    /// The program has released the lane.
    pub(crate) released: bool,
    /// It is in the rotation of lanes with something to send.
    pub(crate) queued: bool,
    /// The program waits to write.
    pub(crate) full: bool,
}

impl Lane {
    /// Whether it has something to send that must wait in the rotation.
    pub(crate) fn has_output(&self) -> bool {
        !self.reset && (!self.out.is_empty() || self.own_end == OwnEnd::Wanted)
    }

    /// Bytes received for which no credit was returned.
    pub(crate) fn held(&self) -> u64 {
        self.inbox.len() as u64 + u64::from(self.owed)
    }

    /// Whether neither end needs it.
    pub(crate) fn is_over(&self) -> bool {
        let settled = self.own_end == OwnEnd::Said && self.finished && self.outstanding == 0;
        self.released && (self.reset || settled)
    }
}

/// The part of `bytes` beyond the `base` credit of a lane.
pub(crate) fn excess(bytes: u64, base: u32) -> u64 {
    bytes.saturating_sub(u64::from(base))
}
