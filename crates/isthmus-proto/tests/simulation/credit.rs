//! Credit that follows the path: a message of any length costs one round trip, whether its receive is posted or not,
//! and peers share the credit.

use isthmus_proto::{Config, Level};

use crate::program::{How, Program};
use crate::scenarios::{TAGGED, at};
use crate::world::{Net, World};

/// Half a round trip of 366 ms.
pub(crate) const DELAY_US: u64 = 183_000;
/// Rate of a lane. Bytes/s: 1 Gb/s.
pub(crate) const RATE: u64 = 125_000_000;

pub(crate) fn long(nodes: usize, credit_total: u64) -> Program {
    let net = Net {
        delay: (DELAY_US, DELAY_US),
        chunk_max: 64 << 10,
        buffer: 64 << 20,
        fill: 0,
        rate: RATE,
        ..Net::calm()
    };
    let config = |config| Config { credit_grows: true, credit_total, streams: 1, ..config };
    let mut program = Program::new(World::new(5, nodes, net, config));
    for node in 1..nodes {
        program.recv(0, Some(node), TAGGED, Some(0), 64);
        program.send(node, 0, TAGGED, 0, 64, How::default());
        program.settle();
    }
    program
}

fn granted(program: &Program, node: usize) -> Vec<u64> {
    program.world.nodes[node].engine.held().into_iter().map(|(_, granted)| granted).collect()
}

#[test]
fn a_message_whose_receive_is_not_there_costs_a_round_trip_and_its_length() {
    for bytes in [64 << 10, 1 << 20, 16 << 20, 40 << 20] {
        let mut program = long(2, 1 << 30);
        let began = program.world.now;
        program.send(1, 0, TAGGED, 1, bytes, at(Level::Delivery));
        let sent = program.newest();
        // The receive is posted half a round trip after the message has come.
        program.run_until(began + 2 * DELAY_US);
        let received = program.recv(0, Some(1), TAGGED, Some(1), bytes);
        while !program.is_over(received) || !program.is_over(sent) {
            assert!(program.world.step(), "nothing happens");
            program.check();
        }
        let (took, length) = (program.world.now - began, bytes * 1_000_000 / RATE);
        let most = 22 * DELAY_US / 10 + length;
        assert!(took <= most, "{bytes} bytes took {took} us, more than {most}");
        program.finish();
    }
}

/// The reason why receives are announced only if credit is short: otherwise the answer to a message's first part comes
/// before the credit is used up, so it costs nothing to wait for it.
#[test]
fn what_is_longer_than_the_credit_finds_its_answer_there_when_the_credit_is_used_up() {
    for bytes in [16 << 20, 64 << 20, 200 << 20] {
        let mut program = long(2, 1 << 30);
        let received = program.recv(0, Some(1), TAGGED, Some(1), bytes);
        let began = program.world.now;
        program.send(1, 0, TAGGED, 1, bytes, How::default());
        while !program.is_over(received) {
            assert!(program.world.step(), "nothing happens");
            program.check();
        }
        let (took, floor) = (program.world.now - began, DELAY_US + bytes * 1_000_000 / RATE);
        println!("{} MiB: {:.3} of its floor", bytes >> 20, took as f64 / floor as f64);
        assert!(took <= floor + floor / 50, "{bytes} bytes took {took} us, not {floor}");
        assert_eq!(program.world.nodes[0].engine.counters().receives_announced, 0);
        program.finish();
    }
}

#[test]
fn peers_share_what_an_endpoint_grants() {
    const TOTAL: u64 = 128 << 20;
    let mut program = long(2, TOTAL);
    let alone = granted(&program, 0)[0];
    assert!(alone > 30 << 20, "{alone} bytes where there is one peer");
    program.finish();

    let mut program = long(9, TOTAL);
    for _ in 0..12 {
        for node in 1..9 {
            program.recv(0, Some(node), TAGGED, Some(node as u64), 8 << 20);
            program.send(node, 0, TAGGED, node as u64, 8 << 20, How::default());
        }
        program.settle();
    }
    let all = granted(&program, 0);
    let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
    assert!(all.iter().sum::<u64>() <= TOTAL + (9 << 16), "{all:?}");
    assert!(*most <= TOTAL / 8 + (64 << 10) && *least >= 4 << 20, "{all:?}");
    let counters = program.world.nodes[0].engine.counters();
    assert!(counters.credit_lowered > 0, "{counters:?}");
    program.finish();
}

#[test]
fn credit_grows_with_what_arrives() {
    let mut program = long(2, 1 << 30);
    program.world.net.rate = 10 * RATE;
    let before = granted(&program, 0)[0];
    for _ in 0..6 {
        for _ in 0..4 {
            program.recv(0, Some(1), TAGGED, Some(1), 48 << 20);
            program.send(1, 0, TAGGED, 1, 48 << 20, How::default());
        }
        program.settle();
    }
    let after = granted(&program, 0)[0];
    assert!(after > before + before / 4, "{before} bytes, then {after}");
    program.finish();
}
