//! Conversations in virtual time. The engine keeps its promises and no more, and the network
//! delays, loses and duplicates. A failing seed replays exactly:
//! `ISTHMUS_SEED=N cargo test -p isthmus-substrate simulation`.

mod hostile;
mod program;
mod world;

use program::Programs;
use world::Net;

const SEEDS: u64 = 300;

/// Runs a storm for many seeds, or for the one that the environment names.
fn storm(net: impl Fn(u64) -> Net + std::panic::RefUnwindSafe) {
    let named = std::env::var("ISTHMUS_SEED").ok().and_then(|text| text.parse().ok());
    let seeds = named.map_or(0..SEEDS, |seed| seed..seed + 1);
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut programs = Programs::new(seed, net(seed));
            programs.run();
        });
        assert!(outcome.is_ok(), "seed {seed}: replay it with ISTHMUS_SEED={seed}");
    }
}

#[test]
fn over_a_calm_network_all_is_well() {
    storm(|_| Net::calm());
}

#[test]
fn completions_in_any_order_change_nothing() {
    storm(|_| Net { spread: 20_000, ..Net::calm() });
}

#[test]
fn transfers_that_are_exchanged_at_any_moment_lose_and_reorder_nothing() {
    storm(|seed| Net { switched: 300, spread: 5_000 * (seed % 2), ..Net::calm() });
}

#[test]
fn lost_doubled_and_reordered_datagrams_harm_only_unreliable_messages() {
    storm(|_| Net { loss: 300, doubled: 300, spread: 5_000, ..Net::calm() });
}

#[test]
fn a_network_that_is_cut_and_heals_only_delays() {
    storm(|seed| Net { cut: Some((20_000 + seed * 100, 200_000)), spread: 2_000, ..Net::calm() });
}

#[test]
fn peers_that_vanish_are_told_to_everyone_once() {
    storm(|seed| Net { death: Some(10_000 + seed * 700), spread: 5_000, loss: 100, ..Net::calm() });
}

#[test]
fn memory_that_is_refused_keeps_its_messages_back() {
    storm(|_| Net { refused: 500, spread: 10_000, ..Net::calm() });
}
