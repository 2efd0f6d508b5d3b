//! Calls in any order, with names that are right, stale, foreign or invented: an error at
//! most, and afterwards the endpoints still work. Replay: `ISTHMUS_SEED=N`.

#[path = "support/player.rs"]
#[allow(unreachable_pub, reason = "the fuzzer uses it too")]
mod player;

use player::{Choices, Player};

/// A generator whose seed replays (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

#[test]
fn calls_in_any_order_are_refused_at_most() {
    let named = std::env::var("ISTHMUS_SEED").ok().and_then(|text| text.parse().ok());
    for seed in named.map_or(0..6, |seed: u64| seed..seed + 1) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let mut player = Player::new();
        for _ in 0..3_000 {
            player.call(&mut Choices(&mut |limit| rng.below(limit)));
        }
        player.still_works();
    }
}
