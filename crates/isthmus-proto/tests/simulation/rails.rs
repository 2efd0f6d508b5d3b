//! Several rails between two endpoints: all are used at once, and any of them may fail.

use isthmus_proto::{Bulk, Channel, Config, Level};

use crate::program::Program;
use crate::scenarios::{TAGGED, at};
use crate::world::{Net, World, locator};

/// Bytes of the transfers.
const MUCH: u64 = 8 << 20;

/// Two processes, 5 ms apart, with these numbers of rails.
fn apart(seed: u64, rails: [usize; 2]) -> Program {
    let net = Net { delay: (5_000, 5_100), ..Net::calm() };
    Program::new(World::new(seed, 2, net, |config| {
        let node = config.address.incarnation as usize - 1;
        Config { also: (1..rails[node]).map(|rail| locator(node, rail)).collect(), ..config }
    }))
}

fn begin(program: &mut Program) {
    program.recv(1, Some(0), TAGGED, Some(1), MUCH);
    program.send(0, 1, TAGGED, 1, MUCH, at(Level::Delivery));
}

fn until(program: &mut Program, most: u64, done: impl Fn(&Program) -> bool) {
    let limit = program.world.now + most;
    while !done(program) {
        program.run_until(program.world.now + 1_000);
        assert!(program.world.now < limit, "not within {most} us");
    }
}

#[test]
fn all_ways_carry_a_transfer_whoever_has_them() {
    for rails in [[1, 2], [2, 1], [2, 2], [4, 4], [3, 2]] {
        let mut program = apart(3, rails);
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.completed == 2);
        program.settle();
        program.expect_rest();
        // The sender dials the rails that the receiver has.
        for rail in 0..rails[1] {
            let share = program.world.carried(rail);
            assert!(share > MUCH / (2 * rails[1] as u64), "{rails:?}: rail {rail} carried {share} bytes");
        }
    }
}

#[test]
fn a_way_that_dies_costs_what_it_held() {
    for seed in 0..100 {
        let mut program = apart(seed, [2, 2]);
        begin(&mut program);
        let after = MUCH / 10 + seed * MUCH / 200;
        until(&mut program, 60_000_000, |program| {
            program.world.carried(0) + program.world.carried(1) > after
        });
        let rail = (seed % 2) as usize;
        program.world.cut_rail(rail);
        // Both ends detect the dead rail by its silence within 2.5 s.
        until(&mut program, 20_000_000, |program| program.completed == 2);
        program.settle();
        program.expect_rest();
    }
}

#[test]
fn a_way_that_comes_back_is_used_again() {
    let mut program = apart(5, [2, 2]);
    begin(&mut program);
    until(&mut program, 60_000_000, |program| program.world.carried(1) > MUCH / 10);
    program.world.cut_rail(1);
    until(&mut program, 30_000_000, |program| program.completed == 2);
    program.world.mend_rail(1);
    let before = program.world.carried(1);
    program.run_until(program.world.now + 5_000_000);
    begin(&mut program);
    until(&mut program, 30_000_000, |program| program.completed == 4);
    let carried = program.world.carried(1) - before;
    assert!(carried > MUCH / 10, "{carried} bytes");
    program.settle();
    program.expect_rest();
}

#[test]
fn an_address_at_which_somebody_else_answers_is_left_alone() {
    let net = Net { delay: (5_000, 5_100), ..Net::calm() };
    // Process 1 announces the address of process 2 as its own.
    let world = World::new(1, 3, net, |config| {
        let mistaken = config.address.incarnation == 2;
        Config { also: if mistaken { vec![locator(2, 0)] } else { Vec::new() }, ..config }
    });
    let mut program = Program::new(world);
    for message in 1..4 {
        program.recv(1, Some(0), TAGGED, Some(message), MUCH / 4);
        program.send(0, 1, TAGGED, message, MUCH / 4, at(Level::Delivery));
    }
    until(&mut program, 60_000_000, |program| program.completed == 6);
    let dials = program.world.dials;
    assert!(dials < 10, "{dials} dials");
    program.settle();
    program.expect_rest();
}

#[test]
fn an_endpoint_with_several_ways_reaches_its_peer_when_the_first_is_cut() {
    let mut program = apart(9, [2, 2]);
    begin(&mut program);
    until(&mut program, 60_000_000, |program| program.completed == 2);
    program.world.cut_rail(0);
    program.recv(1, Some(0), Channel::Untagged, None, 100);
    program.send(0, 1, Channel::Untagged, 0, 100, at(Level::Delivery));
    until(&mut program, 20_000_000, |program| program.completed == 4);
    program.settle();
    program.expect_rest();
}

#[test]
fn where_lanes_are_outdone_one_that_fills_the_path_takes_the_bulk() {
    for (seed, rails) in (0..50).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let net = Net { delay: (5_000, 5_100), outdone: 200, ..Net::calm() };
        let mut program = Program::new(World::new(seed, 2, net, |config| {
            let node = config.address.incarnation as usize - 1;
            Config { also: (1..rails).map(|rail| locator(node, rail)).collect(), streams: 4, ..config }
        }));
        for _ in 0..2 {
            begin(&mut program);
            program.recv(0, Some(1), TAGGED, Some(1), MUCH);
            program.send(1, 0, TAGGED, 1, MUCH, at(Level::Delivery));
        }
        until(&mut program, 60_000_000, |program| program.completed == 8);
        let (carried, lanes) = program.world.filling();
        // Each end may have dialled up to `streams` (4) such lanes on each rail.
        assert!((1..=8 * rails).contains(&lanes), "seed {seed}: {lanes} lanes that fill {rails} paths");
        assert!(carried > MUCH, "seed {seed}: they carried {carried} bytes of {}", 4 * MUCH);
        program.settle();
        program.expect_rest();
    }
}

#[test]
fn near_peers_too_leave_bulk_to_one_that_fills_the_path_whoever_dialled_it() {
    for (seed, from) in (0..20).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        let mut program =
            Program::new(World::new(seed, 2, Net { outdone: 200, ..Net::calm() }, |config| config));
        for message in 0..4 {
            program.recv(1 - from, Some(from), TAGGED, Some(message), MUCH);
            program.send(from, 1 - from, TAGGED, message, MUCH, at(Level::Delivery));
        }
        until(&mut program, 60_000_000, |program| program.completed == 8);
        let (carried, lanes) = program.world.filling();
        // Either end, or both, may have dialled such a lane.
        assert!((1..=2).contains(&lanes), "seed {seed}: {lanes} lanes");
        assert!(carried > 2 * MUCH, "seed {seed}, from {from}: it carried {carried} bytes of {}", 4 * MUCH);
        program.settle();
        program.expect_rest();
    }
}

/// The first answers came late, so a near peer counted as far.
#[test]
fn a_peer_that_turns_out_near_has_one_lane_for_bulk() {
    for seed in 0..20 {
        let mut program = apart(seed, [1, 1]);
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.completed == 2);
        let before = program.world.carried_each();
        assert!(before.iter().filter(|carried| **carried > MUCH / 50).count() > 1, "seed {seed}: {before:?}");
        program.world.find_nearer(0, 200);
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.completed == 4);
        let carried = program.world.carried_each();
        let more = carried.iter().zip(&before).map(|(carried, before)| carried - before);
        assert!(more.clone().any(|more| more > MUCH), "seed {seed}: {:?}", more.collect::<Vec<_>>());
        program.settle();
        program.expect_rest();
    }
}

#[test]
fn a_lane_that_rests_leaves_bulk_to_others_and_takes_it_up_again() {
    for (seed, rails) in (0..50).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let mut program = apart(seed, [rails; 2]);
        program.world.set_bulk(0, Bulk::All);
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.world.filling().0 > MUCH / 8 + seed * MUCH / 100);
        program.world.set_bulk(0, Bulk::None);
        let (before, _) = program.world.filling();
        until(&mut program, 60_000_000, |program| program.completed == 2);
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.completed == 4);
        let carried = program.world.filling().0 - before;
        // The lane carries bulk data until other lanes are up.
        assert!(carried < MUCH, "seed {seed}, {rails} rails: it still carried {carried} bytes");
        let (before, _) = program.world.filling();
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.completed == 6);
        let carried = program.world.filling().0 - before;
        assert!(
            carried < MUCH / 16,
            "seed {seed}, {rails} rails: it carried {carried} bytes while it rested"
        );
        assert!(program.world.nodes[0].engine.counters().lanes_rested >= 1);
        program.world.set_bulk(0, Bulk::All);
        let (before, _) = program.world.filling();
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.completed == 8);
        let carried = program.world.filling().0 - before;
        assert!(
            carried > MUCH / 2,
            "seed {seed}, {rails} rails: it carried {carried} bytes when it was over"
        );
        program.settle();
        program.expect_rest();
    }
}

#[test]
fn a_lane_that_is_tried_beside_others_carries_as_they_do_and_then_alone_again() {
    for seed in 0..50 {
        let mut program = apart(seed, [1, 1]);
        program.world.set_bulk(0, Bulk::All);
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.world.filling().0 > MUCH / 8);
        program.world.set_bulk(0, Bulk::Part);
        until(&mut program, 60_000_000, |program| program.completed == 2);
        let carried = |program: &Program| {
            let (filling, all) =
                (program.world.filling().0, program.world.carried_each().iter().sum::<u64>());
            (filling, all - filling)
        };
        let before = carried(&program);
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.completed == 4);
        let after = carried(&program);
        let (own, others) = (after.0 - before.0, after.1 - before.1);
        assert!(own.min(others) > MUCH / 16, "seed {seed}: {own} and {others} bytes");
        program.world.set_bulk(0, Bulk::All);
        let before = carried(&program);
        begin(&mut program);
        until(&mut program, 60_000_000, |program| program.completed == 6);
        let own = carried(&program).0 - before.0;
        assert!(own > MUCH / 2, "seed {seed}: it carried {own} bytes alone");
        program.settle();
        program.expect_rest();
    }
}
