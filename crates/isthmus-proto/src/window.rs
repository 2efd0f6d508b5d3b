//! Windows of numbered fragments: the sender's unacknowledged ones, and those that the receiver has.

use std::collections::VecDeque;

use isthmus_wire::frame::ACK_WORDS;

/// Most fragments from the oldest unacknowledged one to the newest. At the longest fragment (1 MiB) that is 64 GiB,
/// more than any path holds; it bounds what a receiver has to remember.
pub(crate) const WINDOW: u64 = 1 << 16;

/// The sender's side: every fragment from the oldest unacknowledged one on.
#[derive(Debug)]
pub(crate) struct SendWindow<T> {
    base: u64,
    slots: VecDeque<Option<T>>,
}

impl<T> Default for SendWindow<T> {
    fn default() -> Self {
        Self { base: 0, slots: VecDeque::new() }
    }
}

impl<T> SendWindow<T> {
    /// Number that the next fragment will get.
    pub(crate) fn next_seq(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        (self.slots.len() as u64) < WINDOW
    }

    #[inline]
    pub(crate) fn push(&mut self, item: T) -> u64 {
        let seq = self.next_seq();
        self.slots.push_back(Some(item));
        seq
    }

    pub(crate) fn get_mut(&mut self, seq: u64) -> Option<&mut T> {
        let index = seq.checked_sub(self.base)?;
        self.slots.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    /// Takes out an acknowledged fragment.
    pub(crate) fn take(&mut self, seq: u64) -> Option<T> {
        let index = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        let item = self.slots.get_mut(index)?.take();
        self.skip_taken();
        item
    }

    /// Drops the acknowledged fragments below `upto`, oldest first. It stops at the first for which `with` returns
    /// false.
    pub(crate) fn drop_before(&mut self, upto: u64, mut with: impl FnMut(&mut T) -> bool) {
        let most = self.slots.len().min(upto.saturating_sub(self.base) as usize);
        let kept = |slot: &mut Option<T>| slot.as_mut().is_some_and(|item| !with(item));
        let done = self.slots.iter_mut().take(most).position(kept).unwrap_or(most);
        self.slots.drain(..done);
        self.base += done as u64;
        self.skip_taken();
    }

    fn skip_taken(&mut self) {
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    /// The oldest unacknowledged fragment's number.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Numbers and items of all unacknowledged fragments, oldest first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        let base = self.base;
        self.slots.iter_mut().enumerate().filter_map(move |(i, slot)| Some((base + i as u64, slot.as_mut()?)))
    }

    /// Frees its memory if it is empty.
    pub(crate) fn shed(&mut self) {
        if self.slots.is_empty() {
            self.slots = VecDeque::new();
        }
    }

    /// Takes out everything, oldest first.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.base += self.slots.len() as u64;
        self.slots.drain(..).flatten()
    }
}

/// The receiver's side: the fragments that have arrived.
#[derive(Debug, Default)]
pub(crate) struct ReceiveWindow {
    upto: u64,
    /// Bit i of word w: fragment `upto` rounded down to 64, plus 64 w + i.
    words: VecDeque<u64>,
}

/// The window's answer for an arriving fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receipt {
    New,
    Duplicate,
    /// The number is beyond the window of a correct sender.
    OutOfWindow,
}

impl ReceiveWindow {
    /// Frees its memory if there are no gaps.
    pub(crate) fn shed(&mut self) {
        if self.words.is_empty() {
            self.words = VecDeque::new();
        }
    }

    /// First fragment not yet received.
    pub(crate) fn upto(&self) -> u64 {
        self.upto
    }

    pub(crate) fn has_gaps(&self) -> bool {
        if self.words.is_empty() {
            return false;
        }
        self.words.iter().skip(1).any(|word| *word != 0)
            || self.words.front().is_some_and(|word| word >> (self.upto % 64) != 0)
    }

    /// The result that [`ReceiveWindow::insert`] would return for `seq`.
    pub(crate) fn check(&self, seq: u64) -> Receipt {
        if seq < self.upto {
            return Receipt::Duplicate;
        }
        if seq - self.upto >= WINDOW {
            return Receipt::OutOfWindow;
        }
        let at = self.bit_index(seq);
        match self.words.get(at / 64) {
            Some(word) if word >> (at % 64) & 1 == 1 => Receipt::Duplicate,
            _ => Receipt::New,
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, seq: u64) -> Receipt {
        let receipt = self.check(seq);
        if receipt != Receipt::New {
            return receipt;
        }
        if seq == self.upto && self.words.is_empty() {
            self.upto += 1; // The usual case: in order, and nothing beyond it has arrived.
            return receipt;
        }
        let at = self.bit_index(seq);
        while self.words.len() <= at / 64 {
            self.words.push_back(0);
        }
        self.words[at / 64] |= 1 << (at % 64);
        self.advance();
        receipt
    }

    /// The fragments received beyond `upto`, as [`isthmus_wire::frame::AckMap`] has them.
    pub(crate) fn map(&self) -> [u64; ACK_WORDS] {
        let mut map = [0; ACK_WORDS];
        for (i, seq) in (self.upto + 1..).take(64 * ACK_WORDS).enumerate() {
            if self.check(seq) == Receipt::Duplicate {
                map[i / 64] |= 1 << (i % 64);
            }
        }
        map
    }

    /// Records that the next `count` fragments have arrived. The window must have no gaps.
    #[inline]
    pub(crate) fn advance_by(&mut self, count: u64) {
        debug_assert!(!self.has_gaps());
        self.words.clear();
        self.upto += count;
    }

    fn bit_index(&self, seq: u64) -> usize {
        (seq - self.upto / 64 * 64) as usize
    }

    fn advance(&mut self) {
        while let Some(word) = self.words.front() {
            let ones = u64::from((word >> (self.upto % 64)).trailing_ones());
            let left = 64 - self.upto % 64;
            self.upto += ones.min(left);
            if ones < left {
                break;
            }
            self.words.pop_front();
        }
        if self.words.iter().all(|word| *word == 0) || !self.has_gaps() {
            self.words.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_base_moves_past_what_is_acknowledged() {
        let mut window = SendWindow::default();
        for item in 0..4 {
            window.push(item);
        }
        assert_eq!(window.take(1), Some(1));
        assert_eq!(window.base(), 0);
        assert_eq!(window.take(0), Some(0));
        assert_eq!(window.base(), 2);
        assert_eq!(window.take(0), None);
        assert_eq!(window.take(9), None);
        let drop_before = |window: &mut SendWindow<i32>, upto, last| {
            let mut seen = Vec::new();
            window.drop_before(upto, |item| {
                seen.push(*item);
                *item <= last
            });
            (seen, window.base())
        };
        assert_eq!(drop_before(&mut window, 2, 9), (vec![], 2));
        assert_eq!(drop_before(&mut window, 4, 1), (vec![2], 2), "no further than it is done with");
        for item in 4..8 {
            window.push(item);
        }
        assert_eq!(window.take(3), Some(3));
        assert_eq!(window.take(5), Some(5));
        assert_eq!(drop_before(&mut window, 3, 9), (vec![2], 4), "past what was acknowledged before it");
        assert_eq!(drop_before(&mut window, 7, 9), (vec![4, 6], 7));
        assert_eq!(window.drain().collect::<Vec<_>>(), [7]);
        assert_eq!(window.next_seq(), 8);
    }

    #[test]
    fn what_no_sender_may_send_is_noticed() {
        let mut window = ReceiveWindow::default();
        assert_eq!(window.insert(WINDOW), Receipt::OutOfWindow);
        assert_eq!(window.insert(WINDOW - 1), Receipt::New);
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_a_plain_set(seqs in proptest::collection::vec(0u64..300, 0..600)) {
            let mut window = ReceiveWindow::default();
            let mut model = BTreeSet::new();
            for seq in seqs {
                let expected = if model.insert(seq) { Receipt::New } else { Receipt::Duplicate };
                prop_assert_eq!(window.insert(seq), expected);
                let upto = (0..).find(|n| !model.contains(n)).unwrap_or(0);
                prop_assert_eq!(window.upto(), upto);
                prop_assert_eq!(window.has_gaps(), model.iter().any(|n| *n > upto));
                let map = window.map();
                for i in 0..(64 * ACK_WORDS as u64) {
                    let bit = map[(i / 64) as usize] >> (i % 64) & 1 == 1;
                    prop_assert_eq!(bit, model.contains(&(upto + 1 + i)));
                }
            }
        }
    }
}
