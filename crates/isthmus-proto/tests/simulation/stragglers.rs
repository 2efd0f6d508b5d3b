//! Lanes that stop, and paths that are cut for a while.

use isthmus_proto::{Config, Level};

use crate::program::Program;
use crate::scenarios::{TAGGED, at};
use crate::world::{Net, World};

/// Bytes of a transfer.
const MUCH: u64 = 16 << 20;

fn far(seed: u64) -> Program {
    let net = Net { delay: (12_000, 12_100), buffer: 1 << 20, ..Net::calm() };
    between(seed, net)
}

fn between(seed: u64, net: Net) -> Program {
    Program::new(World::new(seed, 2, net, |config| Config { peer_timeout_us: 60_000_000, ..config }))
}

fn in_the_middle(program: &mut Program) {
    program.recv(1, Some(0), TAGGED, Some(1), MUCH);
    program.send(0, 1, TAGGED, 1, MUCH, at(Level::Delivery));
    while program.world.nodes[0].engine.counters().fragments_sent < 100 {
        program.run_until(program.world.now + 1_000);
    }
}

/// Runs until both ends are done. Returns the time that it took. Microseconds.
fn until_done(program: &mut Program) -> u64 {
    let began = program.world.now;
    while program.completed < 2 {
        program.run_until(program.world.now + 1_000);
        assert!(program.world.now < began + 30_000_000, "nothing goes on");
    }
    program.world.now - began
}

#[test]
fn what_a_stuck_lane_holds_goes_by_the_others() {
    for seed in 0..6 {
        let mut program = far(seed);
        in_the_middle(&mut program);
        let wires = program.world.open_wires();
        assert!(wires.len() > 2, "{} lanes", wires.len());
        let fullest = wires.into_iter().max_by_key(|wire| program.world.under_way(*wire));
        program.world.hang_wire(fullest.expect("a lane"));
        let took = until_done(&mut program);
        let counters = program.world.nodes[0].engine.counters();
        assert!(took < 3_000_000, "seed {seed}: {took} us, {counters:?}");
        assert!(counters.fragments_late > 0, "seed {seed}: {counters:?}");
        program.settle();
        program.expect_rest();
    }
}

#[test]
fn a_receiver_that_has_all_may_close_while_a_stuck_lane_is_still_written_to() {
    let mut met = 0;
    for seed in 0..20 {
        let mut program = far(seed);
        in_the_middle(&mut program);
        let wires = program.world.open_wires();
        program.world.hang_wire(wires[1 + seed as usize % (wires.len() - 1)]);
        while program.completed < 1 {
            program.run_until(program.world.now + 1_000);
        }
        // The sender learns of both at once: all has arrived, and the peer is gone.
        program.world.close(1, 0);
        met += u64::from(program.world.nodes[0].engine.counters().fragments_late > 0);
        until_done(&mut program);
    }
    assert!(met > 0);
}

/// Four lanes that a rate limit of 8 Mb/s shares, at this delay one way in microseconds.
fn limited(seed: u64, delay_us: u64) -> Program {
    let (delay, rate) = ((delay_us, delay_us + 100), 250_000);
    // What is in flight, and what the kernel holds.
    let buffer = (rate * 2 * delay_us / 1_000_000) as usize + (32 << 10);
    let net = Net { delay, rate, limited: true, buffer, ..Net::calm() };
    let config = |config| Config { peer_timeout_us: 60_000_000, streams: 4, ..config };
    Program::new(World::new(seed, 2, net, config))
}

#[test]
fn what_waits_for_a_rate_limit_is_not_sent_again() {
    const ALL: u64 = 4 << 20;
    for (seed, delay_us) in (0..12).zip([1_000, 12_000, 50_000, 180_000].into_iter().cycle()) {
        let mut program = limited(seed, delay_us);
        program.recv(1, Some(0), TAGGED, Some(1), ALL);
        program.send(0, 1, TAGGED, 1, ALL, at(Level::Delivery));
        let took = until_done(&mut program);
        let counters = program.world.nodes[0].engine.counters();
        assert!(program.world.open_wires().len() == 4, "{}", program.world.open_wires().len());
        assert_eq!(counters.fragments_late, 0, "seed {seed}, {delay_us} us one way: {counters:?}");
        // The first lane is kept free for small messages, and carries alone until the others are up.
        let limit = ALL * 4 / 3 + 8 * delay_us;
        assert!(took < limit + limit / 8, "seed {seed}: {took} us instead of {limit} us");
    }
}

#[test]
fn what_a_stuck_lane_with_a_rate_limit_holds_goes_by_the_others() {
    for seed in 0..6 {
        let mut program = limited(seed, 12_000);
        in_the_middle(&mut program);
        let wires = program.world.open_wires();
        program.world.hang_wire(wires[1 + seed as usize % (wires.len() - 1)]);
        let took = until_done(&mut program);
        // 16 MiB by three lanes.
        assert!(took < 26_000_000, "seed {seed}: {took} us");
    }
}

/// Cuts the path for `cut_us` in the middle of a transfer. Returns the time from its return until data came again.
/// Microseconds.
fn cut_for(program: &mut Program, cut_us: u64) -> u64 {
    const ALL: u64 = 4 * MUCH;
    program.recv(1, Some(0), TAGGED, Some(1), ALL);
    program.send(0, 1, TAGGED, 1, ALL, at(Level::Delivery));
    while program.world.nodes[1].engine.counters().fragments_received < 100 {
        program.run_until(program.world.now + 1_000);
    }
    program.world.cut_rail(0);
    program.run_until(program.world.now + cut_us);
    // Duplicates count too: the acknowledgement of the original may have been lost.
    let came = |program: &Program| {
        let counters = program.world.nodes[1].engine.counters();
        counters.fragments_received + counters.duplicates
    };
    let before = came(program);
    program.world.mend_rail(0);
    let mended = program.world.now;
    while came(program) == before {
        program.run_until(program.world.now + 1_000);
        assert!(program.world.now < mended + 10_000_000, "nothing goes on");
    }
    program.world.now - mended
}

#[test]
fn a_path_that_was_cut_is_used_within_two_round_trips_of_its_return() {
    for (seed, delay_us) in (0..12).zip([12_000, 50_000, 180_000].into_iter().cycle()) {
        let delay = (delay_us, delay_us + 100);
        let net = Net { delay, buffer: 1 << 20, rate: 125_000_000, ..Net::calm() };
        let mut program = between(seed, net);
        let silent = cut_for(&mut program, 2_000_000);
        assert!(silent < 4 * delay_us, "seed {seed}: {silent} us after {delay_us} us one way");
        // The buffers from which the old lanes were writing are free when these lanes are given up.
        let took = until_done(&mut program);
        let counters = program.world.nodes[0].engine.counters();
        assert!(took < 15_000_000, "seed {seed}: {took} us, {counters:?}");
        assert!(counters.probes > 1, "seed {seed}: {counters:?}");
        program.world.heal();
        program.settle();
        program.expect_rest();
    }
}

#[test]
fn a_long_silence_is_probed_ever_more_rarely_and_an_idle_one_not_at_all() {
    let mut program = far(1);
    cut_for(&mut program, 15_000_000);
    let probes = program.world.nodes[0].engine.counters().probes;
    // The pause is a quarter of a round trip at first, and a 512th of the silence later. So the number of probes grows
    // with the logarithm of the silence.
    assert!((400..1_600).contains(&probes), "{probes}");
    until_done(&mut program);
    program.world.heal();
    program.settle();
    let before = program.world.nodes[0].engine.counters().probes;
    program.world.cut_rail(0);
    program.run_until(program.world.now + 10_000_000);
    assert_eq!(program.world.nodes[0].engine.counters().probes, before);
}
