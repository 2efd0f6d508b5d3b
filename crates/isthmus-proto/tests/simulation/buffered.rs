//! Messages to far peers that complete from a copy.

use isthmus_proto::{Config, Level, OpError};

use crate::credit::{DELAY_US, RATE, long};
use crate::program::{How, Program};
use crate::scenarios::{TAGGED, routed};
use crate::world::{Net, World};

fn buffered() -> How {
    How { buffered: true, ..How::default() }
}

/// Sends and receives a message, which may complete from a copy. Returns whether it did so before anything happened.
fn send(program: &mut Program, bytes: u64) -> bool {
    program.recv(0, Some(1), TAGGED, Some(1), bytes);
    program.send(1, 0, TAGGED, 1, bytes, buffered());
    let sent = program.newest();
    program.is_over(sent)
}

#[test]
fn a_program_that_waits_for_each_message_fills_a_far_path() {
    const BYTES: u64 = 64 << 10;
    const MESSAGES: u64 = 500;
    let mut program = long(2, 1 << 30);
    let began = program.world.now;
    for _ in 0..MESSAGES {
        assert!(send(&mut program, BYTES));
    }
    program.settle();
    // The last acknowledgement comes a round trip after the first message has left.
    let (took, length) = (program.world.now - began, MESSAGES * BYTES * 1_000_000 / RATE);
    assert!(took < 22 * DELAY_US / 10 + length, "{took} us for {length} us of bytes");
    program.finish();
}

#[test]
fn near_peers_get_messages_from_the_programs_own_buffer() {
    let mut program = Program::new(World::new(5, 2, Net::calm(), |config| config));
    send(&mut program, 1_000);
    program.settle();
    assert!(!send(&mut program, 100_000), "it is copied although its peer is near");
    program.settle();
    program.finish();
}

#[test]
fn a_peer_behind_routers_counts_as_far() {
    let mut program = routed(2, |config| config);
    send(&mut program, 1_000);
    program.settle();
    assert!(send(&mut program, 100_000));
    program.finish();
}

#[test]
fn what_does_not_fit_completes_when_the_peer_has_it() {
    let mut program = long(2, 1 << 30);
    let most = 1 << 20;
    assert!(!send(&mut program, most + 1), "too long for a copy");
    // One less than fits without the records of each.
    let fit = Config::BUFFERED_TOTAL / most - 1;
    for number in 0..fit + 10 {
        assert_eq!(send(&mut program, most), number < fit, "message {number}");
    }
    program.settle();
    assert!(send(&mut program, most), "the copies have gone, so there is room again");
    program.settle();
    program.finish();
}

#[test]
fn of_all_messages_lost_with_a_peer_one_is_told() {
    let mut program = long(2, 1 << 30);
    program.mortal = true;
    for bytes in [100, 100_000, 1 << 20, 9_000] {
        program.recv(0, Some(1), TAGGED, Some(1), bytes);
        program.send(1, 0, TAGGED, 1, bytes, How { level: Level::Delivery, ..buffered() });
        let sent = program.newest();
        assert!(program.is_over(sent));
    }
    program.world.kill(0);
    program.settle();
    assert!(
        matches!(&program.failures[..], [(1, OpError::PeerGone(_))]),
        "one error, under a context of its own: {:?}",
        program.failures
    );
}

#[test]
fn writes_reads_and_atomics_do_not_use_its_room() {
    let mut program = long(2, 1 << 30);
    for _ in 0..3 {
        assert!(program.write(1, 0, 0, 100_000, buffered()));
        program.settle();
        assert!(program.read(1, 0, 0, buffered()));
        program.settle();
    }
    assert_eq!(program.world.nodes[1].engine.buffered_bytes(), 0);
    assert!(send(&mut program, 1 << 20));
    program.finish();
}
