//! Seeded random numbers. The same seed gives the same run on every machine.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// Numbers for the model of a link: xoshiro256++ (Blackman and Vigna, 2019), seeded through splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// A generator for one purpose. Different `stream`s of one `seed` are independent, so
    /// switching jitter on does not change which packets are lost.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed ^ stream.wrapping_mul(0xA076_1D64_78BD_642F)))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// True with the given probability (clamped to 0.0..=1.0). Draws even if the answer
    /// is certain, so that the stream does not depend on the probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Uniform from 0.0 on and below 1.0.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in 0..=`most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        ((u128::from(self.next_u64()) * (u128::from(most) + 1)) >> 64) as u64
    }
}

/// Choices of a simulation or a fuzzer. Seeds that found faults replay as long as the numbers stay the same.
#[derive(Clone, Debug)]
pub struct SplitMix64(rand_xoshiro::SplitMix64);

impl SplitMix64 {
    /// The generator with this state.
    pub fn new(seed: u64) -> Self {
        Self(rand_xoshiro::SplitMix64::from_seed(seed.to_le_bytes()))
    }

    /// The next 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From 0 to `bound` - 1; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word().checked_rem(bound).unwrap_or(0)
    }

    /// True `permille` times in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the generators' authors: recorded runs and seeds depend on them.
    #[test]
    fn the_numbers_of_a_seed_stay_the_same() {
        let mut split_mix = SplitMix64::new(1_234_567);
        assert_eq!(
            [split_mix.word(), split_mix.word()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        assert_eq!(SplitMix64::new(0).below(0), 0);
        let mut rng = Rng::new(5, 3);
        assert_eq!([rng.next_u64(), rng.next_u64()], [10_860_248_215_448_600_302, 8_310_295_808_420_818_224]);
    }
}
