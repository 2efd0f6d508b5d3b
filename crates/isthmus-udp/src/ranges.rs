//! A set of stream offsets, held as sorted, disjoint ranges.
//!
//! A deque suffices: most data extends the last range, and gaps are mostly filled near the front. So little is moved,
//! and nothing is allocated per packet.

use std::collections::VecDeque;
use std::ops::Range;

/// Stream offsets that have arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet(VecDeque<Range<u64>>);

impl RangeSet {
    /// End of the range that starts at 0: all offsets below are in the set.
    pub(crate) fn upto(&self) -> u64 {
        self.0.front().map_or(0, |first| if first.start == 0 { first.end } else { 0 })
    }

    /// Number of ranges.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a range. Returns how many of its offsets are new.
    pub(crate) fn insert(&mut self, add: Range<u64>) -> u64 {
        if add.is_empty() {
            return 0;
        }
        // The new range joins `touching` ranges from index `first` on: those that end at or behind its start and start
        // at or before its end.
        let first = match self.0.back() {
            Some(back) if back.end < add.start => self.0.len(),
            Some(back) if back.start <= add.start => self.0.len() - 1,
            _ => self.0.partition_point(|range| range.end < add.start),
        };
        let touching = self.0.range(first..).take_while(|range| range.start <= add.end).count();
        if touching == 0 {
            self.0.insert(first, add.clone());
            return add.end - add.start;
        }
        let had: u64 = self.0.range(first..first + touching).map(|range| overlap(range, &add)).sum();
        let end = self.0[first + touching - 1].end.max(add.end);
        let joined = &mut self.0[first];
        joined.start = joined.start.min(add.start);
        joined.end = end;
        if touching > 1 {
            self.0.drain(first + 1..first + touching);
        }
        add.end - add.start - had
    }

    /// The first part of `of` that is not in the set, if any.
    pub(crate) fn first_missing(&self, of: Range<u64>) -> Option<Range<u64>> {
        let at = self.0.partition_point(|range| range.end <= of.start);
        let Some(range) = self.0.get(at) else { return (!of.is_empty()).then_some(of) };
        if range.start > of.start {
            let end = of.end.min(range.start);
            return (of.start < end).then_some(of.start..end);
        }
        if range.end >= of.end {
            return None;
        }
        let end = self.0.get(at + 1).map_or(of.end, |next| next.start.min(of.end));
        Some(range.end..end)
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_agrees_with_a_table_of_offsets(
            adds in proptest::collection::vec((0..60_u64, 0..20_u64), 0..60),
        ) {
            let (mut set, mut table) = (RangeSet::default(), [false; 80]);
            for (start, len) in adds {
                let new = (start..start + len).filter(|at| !table[*at as usize]).count() as u64;
                prop_assert_eq!(set.insert(start..start + len), new);
                table[start as usize..(start + len) as usize].fill(true);
                prop_assert_eq!(set.upto() as usize, table.iter().take_while(|has| **has).count());
                let starts = (0..80).filter(|at| table[*at] && (*at == 0 || !table[*at - 1]));
                prop_assert_eq!(set.len(), starts.count());
                for end in start..80 {
                    let missing = (start..end).find(|at| !table[*at as usize]).map(|from| {
                        from..(from..end).find(|at| table[*at as usize]).unwrap_or(end)
                    });
                    prop_assert_eq!(set.first_missing(start..end), missing);
                }
            }
        }
    }
}
