//! Calls in any order, with names that are right, stale, foreign or invented: an error at
//! most, and afterwards the endpoints still work. Replay: `ISTHMUS_SEED=N`.

#[path = "support/player.rs"]
#[allow(unreachable_pub, reason = "the fuzzer uses it too")]
mod player;

use isthmus_lab::rng::SplitMix64;
use player::{Choices, Player};

#[test]
fn calls_in_any_order_are_refused_at_most() {
    let named = std::env::var("ISTHMUS_SEED").ok().and_then(|text| text.parse().ok());
    for seed in named.map_or(0..6, |seed: u64| seed..seed + 1) {
        println!("seed {seed}");
        let mut rng = SplitMix64::new(seed);
        let mut player = Player::new();
        for _ in 0..3_000 {
            player.call(&mut Choices(&mut |limit| rng.below(limit as u64) as usize));
        }
        player.still_works();
    }
}
