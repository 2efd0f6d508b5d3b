//! One lane, as one end sees it.

use crate::piece::Queue;

/// A lane's number on its link. Those that the end that dialled opens are even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// How far this end has come with saying that it has no more to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OwnEnd {
    #[default]
    Open,
    /// It is to be said after what is queued.
    Wanted,
    Said,
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// What the program wrote and was not sent.
    pub(crate) out: Queue,
    /// What was sent and not given back. Bytes.
    pub(crate) outstanding: u64,
    /// What came and was not read.
    pub(crate) inbox: Queue,
    /// What was read and not given back. Bytes.
    pub(crate) owed: u32,
    pub(crate) own_end: OwnEnd,
    /// The other end has no more to send.
    pub(crate) finished: bool,
    /// The other end has nothing to do with the lane any longer.
    pub(crate) reset: bool,
    /// The program has nothing to do with it any longer.
    pub(crate) released: bool,
    /// It is among those that have something to send.
    pub(crate) queued: bool,
    /// The program waits to write.
    pub(crate) full: bool,
}

impl Lane {
    /// Has something to say that needs its turn.
    pub(crate) fn has_output(&self) -> bool {
        !self.reset && (!self.out.is_empty() || self.own_end == OwnEnd::Wanted)
    }

    /// What came and was not given back. Bytes.
    pub(crate) fn held(&self) -> u64 {
        self.inbox.len() as u64 + u64::from(self.owed)
    }

    /// Neither end needs it any longer.
    pub(crate) fn is_over(&self) -> bool {
        let settled = self.own_end == OwnEnd::Said && self.finished && self.outstanding == 0;
        self.released && (self.reset || settled)
    }
}

/// How much of `bytes` is beyond what every lane has.
pub(crate) fn excess(bytes: u64, base: u32) -> u64 {
    bytes.saturating_sub(u64::from(base))
}
