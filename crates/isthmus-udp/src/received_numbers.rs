//! Records which packet numbers have arrived, and makes the bitmaps of acknowledgements.
//!
//! Successive acknowledgements repeat the newest numbers several times, so a lost acknowledgement costs nothing. If
//! many are lost in a row, the sender does not know the fates of older numbers. So each acknowledgement also sweeps a
//! part of those, in turn, down to the floor that the sender tells.

use crate::wire::WORDS_MAX;

/// Words of the bitmap: 2^17 packet numbers, more than 10 Gb/s over 500 ms at 9,000 bytes.
const RING: usize = 1 << 11;
/// Most words of an acknowledgement's swept part. Count.
const SWEEP_WORDS: u64 = 32;
/// Least words of its recent part. Count.
const RECENT_WORDS: u64 = 4;
/// Repetitions of a number in recent parts, if acknowledgements come evenly. Count.
const REPEATS: u64 = 8;

/// Packet numbers that have arrived.
#[derive(Debug)]
pub(crate) struct ReceivedNumbers {
    words: Box<[u64]>,
    largest: Option<u64>,
    floor: u64,
    /// The word below which the next sweep continues.
    swept: u64,
    /// Largest number at the last acknowledgement.
    told: u64,
}

/// Meaning of a number's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It has not arrived before.
    New { gap: bool, largest: bool },
    /// It has arrived before, or is too old to tell.
    Stale,
}

/// A range of words: index of the first, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) len: u64,
}

impl Default for ReceivedNumbers {
    fn default() -> Self {
        Self { words: vec![0; RING].into(), largest: None, floor: 0, swept: 0, told: 0 }
    }
}

impl ReceivedNumbers {
    pub(crate) fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// The sender knows the fates of all numbers below `floor`.
    pub(crate) fn raise_floor(&mut self, floor: u64) {
        let most = self.largest.map_or(0, |largest| largest + 1);
        self.floor = self.floor.max(floor.min(most));
    }

    /// Whether `number` has arrived before, or is too old to tell.
    pub(crate) fn is_stale(&self, number: u64) -> bool {
        let Some(largest) = self.largest.filter(|largest| number <= *largest) else { return false };
        let word = number / 64;
        largest / 64 - word >= RING as u64 || self.words[slot(word)] & (1 << (number % 64)) != 0
    }

    /// Notes that `number` has arrived.
    pub(crate) fn note(&mut self, number: u64) -> Arrival {
        let word = number / 64;
        let bit = 1 << (number % 64);
        let Some(largest) = self.largest else {
            self.words[slot(word)] |= bit;
            self.largest = Some(number);
            return Arrival::New { gap: number > 0, largest: true };
        };
        if number > largest {
            let (from, to) = (largest / 64 + 1, word);
            // A jump clears each word of the ring at most once.
            for cleared in from.max(to.saturating_sub(RING as u64 - 1))..=to {
                self.words[slot(cleared)] = 0;
            }
            self.words[slot(word)] |= bit;
            self.largest = Some(number);
            return Arrival::New { gap: number > largest + 1, largest: true };
        }
        if self.is_stale(number) {
            return Arrival::Stale;
        }
        self.words[slot(word)] |= bit;
        Arrival::New { gap: false, largest: false }
    }

    /// Chooses the words of the next acknowledgement: recent ones, and swept ones before them, at most `words_max`
    /// together. The newest word is always among them.
    pub(crate) fn spans(&mut self, words_max: usize) -> (Span, Span) {
        let Some(largest) = self.largest else { return Default::default() };
        let last = largest / 64;
        let oldest = (self.floor / 64).max((last + 1).saturating_sub(RING as u64));
        let news = (largest.saturating_sub(self.told) * REPEATS).div_ceil(64) + 1;
        self.told = largest;
        let most = (words_max as u64).clamp(1, WORDS_MAX as u64);
        let len = news.max(RECENT_WORDS).min(most).min(last + 1);
        let recent = Span { first: last + 1 - len, len };
        (recent, self.sweep(oldest.min(recent.first), recent.first, most - len))
    }

    /// The next older words below `end`. Sweeps go from the newest to the oldest and start again.
    fn sweep(&mut self, oldest: u64, end: u64, most: u64) -> Span {
        let from = if self.swept <= oldest || self.swept > end { end } else { self.swept };
        let len = (from - oldest).min(SWEEP_WORDS).min(most);
        self.swept = from - len;
        Span { first: from - len, len }
    }

    /// Appends the words of a span to `out`.
    pub(crate) fn copy(&self, span: Span, out: &mut Vec<u8>) {
        for word in span.first..span.first + span.len {
            out.extend_from_slice(&self.words[slot(word)].to_le_bytes());
        }
    }
}

fn slot(word: u64) -> usize {
    word as usize % RING
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(numbers: &ReceivedNumbers, span: Span) -> Vec<u64> {
        let mut bytes = Vec::new();
        numbers.copy(span, &mut bytes);
        let words = bytes.chunks_exact(8).map(|raw| raw.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)));
        let bits =
            |(i, word): (u64, u64)| (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| i * 64 + b);
        (span.first..).zip(words).flat_map(bits).collect()
    }

    #[test]
    fn a_number_is_new_once() {
        let mut numbers = ReceivedNumbers::default();
        assert_eq!(numbers.note(0), Arrival::New { gap: false, largest: true });
        assert_eq!(numbers.note(5), Arrival::New { gap: true, largest: true });
        assert_eq!(numbers.note(3), Arrival::New { gap: false, largest: false });
        assert_eq!(numbers.note(3), Arrival::Stale);
        assert_eq!(numbers.note(5), Arrival::Stale);
        let far = 64 * RING as u64 * 3;
        assert_eq!(numbers.note(far), Arrival::New { gap: true, largest: true });
        assert_eq!(numbers.note(5), Arrival::Stale, "older than is remembered");
        assert_eq!(numbers.note(far - 1), Arrival::New { gap: false, largest: false });
    }

    #[test]
    fn every_number_above_the_floor_is_told_again_and_again() {
        let mut numbers = ReceivedNumbers::default();
        let has = |n: u64| n % 10 != 3;
        (0..20_000).filter(|n| has(*n)).for_each(|n| {
            numbers.note(n);
        });
        numbers.raise_floor(1_000);
        let mut known = std::collections::BTreeSet::new();
        for _ in 0..20_000 / 64 / SWEEP_WORDS + 2 {
            let (recent, sweep) = numbers.spans(WORDS_MAX);
            assert!(recent.len + sweep.len <= WORDS_MAX as u64);
            known.extend(told(&numbers, recent));
            known.extend(told(&numbers, sweep));
        }
        let expected: Vec<u64> = (960..20_000).filter(|n| has(*n)).collect();
        assert_eq!(known.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn without_gaps_above_the_floor_an_acknowledgement_is_short() {
        let mut numbers = ReceivedNumbers::default();
        for n in 0..10_000 {
            numbers.note(n);
            numbers.raise_floor(n.saturating_sub(50));
            let (recent, sweep) = numbers.spans(WORDS_MAX);
            assert!(recent.len <= RECENT_WORDS && sweep.len == 0, "{recent:?} {sweep:?}");
        }
    }
}
