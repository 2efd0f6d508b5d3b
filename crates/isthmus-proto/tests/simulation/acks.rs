//! Acknowledgements that go beside other frames, and alone.

use isthmus_proto::{Channel, Level};

use crate::program::{How, Program};
use crate::world::{Net, World};

fn two() -> Program {
    Program::new(World::new(11, 2, Net::calm(), |config| config))
}

/// Runs the program until so many operations are over.
fn until_over(program: &mut Program, operations: u64) {
    while program.completed < operations {
        program.run_until(program.world.now + 1);
    }
}

fn alone(program: &Program, node: usize) -> u64 {
    program.world.nodes[node].engine.counters().acks_alone
}

/// Posts a receive and sends it a small message.
fn message(program: &mut Program, from: usize, level: Level) {
    program.recv(1 - from, Some(from), Channel::Tagged, Some(1), 64);
    program.send(from, 1 - from, Channel::Tagged, 1, 64, How { level, ..How::default() });
}

#[test]
fn a_write_and_its_answer_are_all_that_goes() {
    let mut program = two();
    for round in 1..=100 {
        assert!(program.write(0, 1, 0, 64, How::default()));
        until_over(&mut program, round);
    }
    assert_eq!((alone(&program, 0), alone(&program, 1)), (0, 0));
    program.settle();
    // One acknowledgement went alone: that of the last answer.
    assert_eq!((alone(&program, 0), alone(&program, 1)), (1, 0));
    program.expect_rest();
}

#[test]
fn small_messages_are_acknowledged_by_those_that_go_back() {
    let mut program = two();
    for round in 0..100u64 {
        message(&mut program, (round % 2) as usize, Level::Transmit);
        until_over(&mut program, 2 * round + 2);
    }
    assert_eq!((alone(&program, 0), alone(&program, 1)), (0, 0));
    program.settle();
    program.expect_rest();
}

#[test]
fn who_wants_to_hear_of_the_delivery_does_at_once() {
    let mut program = two();
    message(&mut program, 0, Level::Transmit);
    program.settle();
    let began = program.world.now;
    message(&mut program, 0, Level::Delivery);
    until_over(&mut program, 4);
    // There and back, and the pause until the shell finds that there is nothing more to read.
    let took = program.world.now - began;
    assert!(took < 500, "{took} us");
    program.settle();
    assert_eq!(alone(&program, 1), 2);
    program.expect_rest();
}

#[test]
fn one_that_somebody_waits_for_has_a_moment_for_company() {
    let mut program = two();
    message(&mut program, 0, Level::Delivery);
    // The message has been received, and the shell is about to find that there is nothing more to read.
    until_over(&mut program, 1);
    let now = program.world.now;
    let engine = &mut program.world.nodes[1].engine;
    assert!(engine.owes_acks());
    engine.flush_old_acks(now);
    assert!(engine.owes_acks() && !engine.has_output(), "it is young");
    engine.flush_old_acks(now + 10);
    assert!(!engine.owes_acks() && engine.has_output());
    program.settle();
    program.expect_rest();
}

#[test]
fn the_short_way_needs_few_acknowledgements() {
    let mut program = two();
    program.world.shorts = true;
    for round in 0..1000u64 {
        message(&mut program, (round % 2) as usize, Level::Transmit);
        until_over(&mut program, 2 * round + 2);
    }
    assert!(program.world.went_short > 900, "{} went the short way", program.world.went_short);
    // Messages are about 60 us apart here, so most acknowledgements become due.
    let (alone, messages) = (alone(&program, 0) + alone(&program, 1), 1000);
    assert!(alone < messages / 2, "{alone} acknowledgements");
    program.settle();
    program.expect_rest();
}

#[test]
fn small_messages_that_wait_are_taken_in_together() {
    let mut program = two();
    (program.world.shorts, program.world.runs) = (true, true);
    for burst in 1..=20 {
        for _ in 0..50 {
            message(&mut program, 0, Level::Transmit);
        }
        until_over(&mut program, 100 * burst);
    }
    assert!(program.world.went_short > 800, "{} went the short way", program.world.went_short);
    assert!(program.world.longest_run > 3, "at most {} at one go", program.world.longest_run);
    program.settle();
    program.expect_rest();
}
