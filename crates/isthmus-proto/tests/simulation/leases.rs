//! Buffers that lanes send from without a copy.

use isthmus_proto::{Channel, Level, OpError};

use crate::program::{How, Program};
use crate::world::{Net, World};

/// A time that never comes: only recalled batches are returned. Microseconds.
const NEVER_US: u64 = 1 << 40;

/// Two processes whose lanes borrow all batches, and return each within `hold_us`.
fn two(hold_us: u64) -> Program {
    let net = Net { borrows: (1_000, hold_us), ..Net::calm() };
    Program::new(World::new(5, 2, net, |config| config))
}

fn exchange(program: &mut Program, len: u64) {
    program.recv(1, Some(0), Channel::Tagged, Some(1), len);
    program.send(0, 1, Channel::Tagged, 1, len, How { level: Level::Delivery, ..How::default() });
}

#[test]
fn what_was_given_back_is_not_asked_for() {
    let mut program = two(0);
    (0..20).for_each(|_| exchange(&mut program, 300_000));
    program.settle();
    assert_eq!((program.completed, program.world.recalled), (40, 0));
    program.expect_rest();
}

#[test]
fn what_has_arrived_otherwise_is_asked_back() {
    let mut program = two(NEVER_US);
    (0..20).for_each(|_| exchange(&mut program, 300_000));
    program.run_until(1_000_000);
    assert_eq!(program.completed, 40, "a lane that gives nothing back holds nobody up");
    assert!(program.world.recalled > 0);
}

#[test]
fn what_a_lost_lane_had_borrowed_is_free() {
    let mut program = two(NEVER_US);
    program.mortal = true;
    exchange(&mut program, 3_000_000);
    program.run_until(1_000);
    program.world.kill(1);
    program.settle();
    assert!(matches!(&program.failures[..], [(0, OpError::PeerGone(_)), ..]), "{:?}", program.failures);
}
