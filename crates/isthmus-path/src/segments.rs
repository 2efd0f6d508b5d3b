//! Paths that drop large packets silently, and lanes that something on the path has ended.
//!
//! A TCP lane that stands still while its peer's host answers new connections is given up. If its large packets may be
//! the reason, further lanes with that host have smaller segments.

use crate::Micros;
use crate::thresholds::segments::{ANSWERS, SIZES, STEP, VALID_US};

/// A lane that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Largest segment. Bytes.
    pub segment: u32,
    /// Sent and not acknowledged. Bytes.
    pub unacked: u64,
    /// Mean length of the segments that the peer has acknowledged. Bytes; 0 if it has acknowledged none.
    pub mean_acked: u64,
}

/// Why a lane stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Large packets do not get through. Further lanes have segments of at most this size. Bytes.
    Size(u32),
    /// Something on the path has ended the connection.
    Ended,
}

/// The largest segment for a host, as far as it was found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentLimit(Option<(u32, Micros)>);

impl SegmentLimit {
    /// The largest segment for lanes to the host; `None` if the interface decides. Bytes.
    pub(crate) fn get(self, now: Micros) -> Option<u32> {
        self.0.filter(|(_, since)| now < since + VALID_US).map(|(limit, _)| limit)
    }

    /// A lane stands still, while `answers` new connections to its peer succeeded. `None` if that does not tell yet.
    pub(crate) fn judge(&mut self, now: Micros, answers: u32, stuck: Stuck) -> Option<Cause> {
        if answers < ANSWERS {
            return None;
        }
        let Some(next) = stuck.next_size() else { return Some(Cause::Ended) };
        self.0 = Some((next, now));
        Some(Cause::Size(next))
    }
}

impl Stuck {
    /// The segment size with which to try again. `None` if the size is not the reason.
    fn next_size(&self) -> Option<u32> {
        let next = next_size(self.segment)?;
        let may_be_the_reason = self.unacked > u64::from(next) && self.mean_acked <= u64::from(next);
        may_be_the_reason.then_some(next)
    }
}

fn next_size(segment: u32) -> Option<u32> {
    SIZES.into_iter().find(|size| size + STEP <= segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane with jumbo frames whose first large packets are not acknowledged.
    const STUCK: Stuck = Stuck { segment: 8_948, unacked: 64_000, mean_acked: 300 };

    #[test]
    fn sizes_go_down_step_by_step() {
        // The size that the kernel reports is less by 12 bytes of options.
        assert_eq!(next_size(8_948), Some(1_440));
        assert_eq!(next_size(1_448), Some(1_340));
        assert_eq!(next_size(1_440 - 12), Some(1_340));
        assert_eq!(next_size(1_340 - 12), Some(1_220));
        assert_eq!(next_size(1_220 - 12), None);
    }

    #[test]
    fn size_is_no_reason_if_large_packets_got_through_or_none_is_large() {
        assert_eq!(STUCK.next_size(), Some(1_440));
        assert_eq!(Stuck { mean_acked: 0, ..STUCK }.next_size(), Some(1_440));
        assert_eq!(Stuck { mean_acked: 5_000, ..STUCK }.next_size(), None);
        assert_eq!(Stuck { unacked: 900, ..STUCK }.next_size(), None);
        assert_eq!(Stuck { segment: 1_208, ..STUCK }.next_size(), None, "there is no smaller one");
    }

    #[test]
    fn a_lane_is_judged_once_new_connections_have_succeeded_and_sizes_stay_small_for_ten_minutes() {
        let mut limit = SegmentLimit::default();
        assert_eq!((limit.judge(7, ANSWERS - 1, STUCK), limit.get(7)), (None, None));
        assert_eq!(limit.judge(7, ANSWERS, STUCK), Some(Cause::Size(1_440)));
        assert_eq!(
            [7, 6 + VALID_US, 7 + VALID_US].map(|now| limit.get(now)),
            [Some(1_440), Some(1_440), None]
        );
        let ended = Stuck { mean_acked: 5_000, ..STUCK };
        assert_eq!(SegmentLimit::default().judge(7, ANSWERS, ended), Some(Cause::Ended));
    }
}
