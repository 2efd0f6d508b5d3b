//! Messages that ask to go twice, by two lanes.

use crate::program::{How, Program};
use crate::scenarios::TAGGED;
use crate::world::{Net, World};

/// Sends messages and receives them; the time until all of that is done. Microseconds.
fn some(program: &mut Program, messages: u64) -> u64 {
    let (began, before) = (program.world.now, program.completed);
    for message in 0..messages {
        program.recv(1, Some(0), TAGGED, Some(message), 60_000);
        let how = How { twice: true, ..How::default() };
        program.send(0, 1, TAGGED, message, 1_000 * (message % 2) * 50 + 100, how);
    }
    while program.completed < before + 2 * messages {
        program.run_until(program.world.now + 1_000);
        assert!(program.world.now < began + 60_000_000, "nothing goes on");
    }
    program.world.now - began
}

/// The time that messages take when one of two lanes has stopped. Microseconds.
fn beside_a_stopped_lane(seed: u64) -> (u64, u64) {
    let net = Net { delay: (12_000, 12_100), ..Net::calm() };
    let mut program = Program::new(World::new(seed, 2, net, |config| config));
    (0..4).for_each(|_| {
        some(&mut program, 8);
    });
    let wires = program.world.open_wires();
    assert_eq!(wires.len(), 2, "the second lane is there for what goes twice");
    program.world.hang_wire(wires[seed as usize % 2]);
    let took = some(&mut program, 32);
    let doubled = program.world.nodes[0].engine.counters().fragments_doubled;
    program.world.heal();
    program.settle();
    program.expect_rest();
    (took, doubled)
}

#[test]
fn what_goes_twice_comes_once_and_whole_though_one_of_two_lanes_has_stopped() {
    for seed in 0..6 {
        let (took, doubled) = beside_a_stopped_lane(seed);
        // Not at once: what the receiver answers to a long one goes once.
        assert!(took < 3_000_000 && doubled > 32, "seed {seed}: {took} us, {doubled} doubled");
    }
}
