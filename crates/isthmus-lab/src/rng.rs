//! A small seeded random generator. The same seed gives the same run on every machine.

/// xoshiro256++ (Blackman and Vigna, 2019), seeded through splitmix64.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// A generator for one purpose. Different `stream`s of one `seed` are independent, so
    /// switching jitter on does not change which packets are lost.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut state = seed ^ stream.wrapping_mul(0xA076_1D64_78BD_642F);
        Self(std::array::from_fn(|_| splitmix(&mut state)))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
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

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
