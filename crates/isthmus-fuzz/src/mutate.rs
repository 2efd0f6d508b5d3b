//! Makes inputs from others. The same seed gives the same inputs.

use isthmus_lab::rng::SplitMix64;

/// Bytes on which parsers often fail.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b'"', b'['];
/// The longest input that is made. Bytes.
const LEN_MAX: usize = 4096;

/// Makes inputs.
#[derive(Clone, Debug)]
pub struct Mutator {
    rng: SplitMix64,
}

impl Mutator {
    /// A mutator that `seed` determines.
    pub fn new(seed: u64) -> Self {
        Self { rng: SplitMix64::new(seed) }
    }

    /// Changes one of `inputs` one to four times. `inputs` is not empty.
    pub fn make(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = self.pick(inputs).clone();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, inputs);
        }
        bytes.truncate(LEN_MAX);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        let until = at + self.below(bytes.len() - at + 1).min(64);
        match self.below(9) {
            0 => {
                let edge = *self.pick(&EDGES);
                put(bytes, at, &[edge]);
            }
            1 => {
                let bit = 1 << self.below(8);
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= bit);
            }
            2 => {
                let number = self.number().to_le_bytes();
                let len = [2, 4, 8][self.below(3)];
                put(bytes, at, &number[..len]);
            }
            3 => drop(bytes.drain(at..until)),
            4 => bytes.truncate(at),
            5 => {
                let piece = bytes[at..until].to_vec();
                let to = self.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            6 => {
                let (byte, count) = (self.rng.word() as u8, 1 + self.below(16));
                bytes.splice(at..at, std::iter::repeat_n(byte, count));
            }
            7 => {
                let other = self.pick(inputs);
                let from = self.below(other.len() + 1);
                let piece = &other[from..from + self.below(other.len() - from + 1).min(200)];
                bytes.splice(at..until, piece.iter().copied());
            }
            _ => {
                let other = self.pick(inputs);
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }

    /// A number that is likely to reveal a fault.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => u64::MAX - self.below(3) as u64,
            1 => 1 << self.below(64),
            2 => (1 << self.below(64)) - 1,
            _ => self.below(300) as u64,
        }
    }

    /// A number from 0 to `bound` - 1. `bound` is not 0.
    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Overwrites `bytes` from `at` on with `piece`, but not beyond their end.
fn put(bytes: &mut [u8], at: usize, piece: &[u8]) {
    bytes[at..].iter_mut().zip(piece).for_each(|(byte, new)| *byte = *new);
}
