//! Named situations.

use isthmus_proto::{
    AtomicKind, AtomicOp, Channel, Config, Engine, Fence, Level, OpError, Options, PeekAction, Refusal,
    SendRequest,
};
use isthmus_wire::frame::Status;
use isthmus_wire::{Address, SubnetId};

use crate::program::{How, Program};
use crate::world::{Net, Node, World, address, locator, open};

pub(crate) const TAGGED: Channel = Channel::Tagged;
const UNTAGGED: Channel = Channel::Untagged;

fn far() -> Net {
    Net { delay: (12_000, 12_100), buffer: 1 << 20, ..Net::calm() }
}

fn program(nodes: usize, net: Net, config: impl Fn(Config) -> Config) -> Program {
    Program::new(World::new(7, nodes, net, config))
}

fn calm(nodes: usize) -> Program {
    program(nodes, Net::calm(), |config| config)
}

pub(crate) fn at(level: Level) -> How {
    How { level, ..How::default() }
}

#[test]
fn a_dead_lane_moves_its_data_to_the_others() {
    let mut program = program(2, far(), |config| config);
    program.recv(1, Some(0), TAGGED, Some(1), 24 << 20);
    program.send(0, 1, TAGGED, 1, 24 << 20, How::default());
    while program.world.nodes[0].engine.counters().fragments_sent < 120 {
        program.run_until(program.world.now + 1000);
    }
    let wires = program.world.open_wires();
    assert!(wires.len() >= 4, "a far peer with bulk is worth more than {} lanes", wires.len());
    program.world.break_wire(wires[2]);
    program.settle();
    let counters = program.world.nodes[0].engine.counters();
    assert!(counters.fragments_resent > 0 && counters.lanes_lost == 1, "{counters:?}");
    assert_eq!(program.completed, 2);
    program.expect_rest();
}

/// Messages of collective operations match only receives of groups, although programs ask for any tag.
#[test]
fn messages_of_groups_are_out_of_reach_of_tagged_receives_and_searches() {
    let mut program = calm(2);
    let receive = program.recv(1, None, TAGGED, None, 3 << 20);
    for len in [100, 2 << 20] {
        program.send(0, 1, Channel::Group, 1, len, How { data: true, ..How::default() });
        program.run_until(program.world.now + 1_000_000);
        assert!(!program.peek(1, None, None, PeekAction::Discard), "a search found a group's message");
        program.recv(1, Some(0), Channel::Group, None, len);
    }
    program.send(0, 1, TAGGED, 1, 100, How::default());
    program.settle();
    assert!(program.is_over(receive), "the program's receive waited for its own message");
    program.expect_rest();
}

/// A program may rely on this order: anything that it tells others afterwards, and their answers, come later. It holds
/// for a message that is received, one that waits for its receive, and a long one with a short one behind it.
#[test]
fn a_short_message_to_oneself_is_there_before_anything_that_follows_from_it() {
    let mut program = calm(1);
    let now = program.world.now;
    for (len, how) in
        [(100, How::default()), (0, at(Level::Delivery)), (4 << 10, How { inject: true, ..How::default() })]
    {
        let receive = program.recv(0, Some(0), TAGGED, Some(1), len);
        let sent = program.send(0, 0, TAGGED, 1, len, how);
        program.run_until(now);
        assert!(program.is_over(receive) && program.is_over(sent), "{len} bytes took a lane");
    }
    program.send(0, 0, TAGGED, 2, 100, How::default());
    program.run_until(now);
    assert!(program.peek(0, Some(0), Some(2), PeekAction::Look), "it does not wait for its receive");
    let long = program.recv(0, Some(0), UNTAGGED, None, 1 << 20);
    let behind = program.recv(0, Some(0), UNTAGGED, None, 100);
    program.send(0, 0, UNTAGGED, 0, 1 << 20, How::default());
    program.send(0, 0, UNTAGGED, 0, 100, How::default());
    program.recv(0, Some(0), TAGGED, Some(2), 100);
    program.settle();
    assert!(program.is_over(long) && program.is_over(behind));
    program.expect_rest();
}

/// Credit comes back as short messages are received, though no frame says so.
#[test]
fn any_number_of_short_messages_to_oneself_take_no_lane() {
    let mut program = calm(1);
    for _ in 0..200 {
        program.recv(0, Some(0), TAGGED, Some(1), 4 << 10);
        program.send(0, 0, TAGGED, 1, 4 << 10, How::default());
    }
    program.settle();
    assert!(program.world.open_wires().is_empty(), "credit was used up");
    program.expect_rest();
}

/// A short rest would otherwise wait behind the first fragments of all messages that are posted.
#[test]
fn a_little_more_than_a_fragment_is_one() {
    // 64 KiB go to a peer that is not known yet; the rest is one fragment.
    let whole = (64 << 10) + (256 << 10);
    for (len, fragments) in [(whole, 2), (whole + 100, 2), (whole + (1 << 16), 3)] {
        let mut program = calm(2);
        program.recv(1, Some(0), TAGGED, Some(1), len);
        program.send(0, 1, TAGGED, 1, len, How::default());
        program.settle();
        assert_eq!(program.world.nodes[0].engine.counters().fragments_sent, fragments, "{len} bytes");
        program.expect_rest();
    }
}

#[test]
fn long_messages_with_a_short_one_after_each_open_lanes_too() {
    let mut program = program(2, far(), |config| config);
    // One lane is up, and known to be far.
    program.recv(1, Some(0), TAGGED, Some(1), 100);
    program.send(0, 1, TAGGED, 1, 100, How::default());
    program.settle();
    for _ in 0..16 {
        for len in [1 << 20, 100] {
            program.recv(1, Some(0), TAGGED, Some(1), len);
            program.send(0, 1, TAGGED, 1, len, How::default());
        }
    }
    program.settle();
    let lanes = program.world.open_wires().len();
    assert!(lanes >= 4, "{lanes} lanes for 16 MiB");
    program.expect_rest();
}

#[test]
fn all_lanes_die_and_come_back() {
    let mut program = program(2, far(), |config| config);
    program.recv(1, None, TAGGED, Some(1), 24 << 20);
    program.send(0, 1, TAGGED, 1, 24 << 20, How::default());
    for at in [200_000, 500_000, 900_000] {
        program.run_until(at);
        for wire in program.world.open_wires() {
            program.world.break_wire(wire);
        }
    }
    program.settle();
    assert_eq!(program.completed, 2);
    program.expect_rest();
}

#[test]
fn a_peer_that_vanishes_fails_its_operations_once() {
    let mut program = program(3, far(), |config| Config { refusals_max: 3, ..config });
    program.mortal = true;
    program.recv(0, Some(1), TAGGED, Some(1), 100);
    program.recv(0, None, TAGGED, Some(2), 100);
    program.read(0, 1, 0, How::default());
    for (class, len) in [(0, 10), (0, 100_000), (0, 5 << 20)] {
        program.send(0, 1, TAGGED, class, len, at(Level::Delivery));
        program.write(0, 1, 1, len.min(1 << 20), How::default());
    }
    program.run_until(60_000);
    program.world.kill(1);
    program.settle();
    assert!(program.failures.len() >= 3);
    for (node, error) in &program.failures {
        assert_eq!(*node, 0);
        assert!(matches!(error, OpError::PeerGone(text) if text.contains("nobody listens")), "{error}");
    }
    // Operations with the dead peer fail at once, and other peers are not affected.
    let before = program.failures.len();
    program.send(0, 1, TAGGED, 0, 10, How::default());
    program.recv(0, Some(1), TAGGED, Some(1), 10);
    assert_eq!(program.failures.len(), before + 2);
    program.send(2, 0, TAGGED, 2, 10, How::default());
    program.settle();
    program.expect_rest();
}

/// A receive from anybody does not go down with the sender of its message: it takes the next one that fits, before
/// receives that were posted later. Nor does a receive take a message of which only a part ever came.
#[test]
fn a_receive_from_anybody_outlives_the_sender_of_its_message() {
    const LEN: u64 = 24 << 20;
    for waits in [true, false] {
        let mut program =
            program(3, far(), |config| Config { refusals_max: 3, receives_wait: waits, ..config });
        program.mortal = true;
        let other = program.recv(0, Some(2), TAGGED, Some(3), LEN);
        let first = program.recv(0, None, TAGGED, Some(1), LEN);
        let second = program.recv(0, None, TAGGED, Some(1), LEN);
        program.send(1, 0, TAGGED, 2, LEN, How::default());
        program.send(1, 0, TAGGED, 1, LEN, How::default());
        while program.world.nodes[0].engine.counters().fragments_received < 100 {
            program.run_until(program.world.now + 100);
        }
        assert!(!program.is_over(first));
        program.world.kill(1);
        program.settle();
        assert_eq!(program.is_over(first), !waits, "{:?}", program.failures);
        let third = program.recv(0, None, TAGGED, Some(2), LEN);
        assert_eq!(program.is_over(third), !waits, "{:?}", program.failures);
        program.send(2, 0, TAGGED, 1, LEN, How::default());
        program.settle();
        assert!(program.is_over(first) && program.is_over(second) != waits);
        for class in 1..=3 {
            program.send(2, 0, TAGGED, class, LEN, How::default());
        }
        program.settle();
        assert!([other, first, second, third].into_iter().all(|receive| program.is_over(receive)) || !waits);
    }
}

/// Two messages of the lost sender fit a receive of any source: the first is under way, and only a part of the second has
/// come. The receive takes the next message of another sender.
#[test]
fn a_receive_from_anybody_takes_no_part_of_a_second_message_of_a_lost_sender() {
    const LEN: u64 = 24 << 20;
    let mut program = program(3, far(), |config| Config { refusals_max: 3, receives_wait: true, ..config });
    program.mortal = true;
    let receive = program.recv(0, None, TAGGED, Some(1), LEN);
    program.send(1, 0, TAGGED, 1, LEN, How::default());
    program.send(1, 0, TAGGED, 1, LEN, How::default());
    let has_both = |engine: &Engine| {
        engine.counters().fragments_received > 100
            && engine.leftovers().contains(&"2 inbound messages".to_owned())
    };
    while !has_both(&program.world.nodes[0].engine) {
        program.run_until(program.world.now + 100);
        assert!(program.world.now < 1_000_000, "{:?}", program.world.nodes[0].engine.leftovers());
    }
    assert!(!program.is_over(receive));
    program.world.kill(1);
    program.settle();
    assert!(!program.is_over(receive), "{:?}", program.failures);
    program.send(2, 0, TAGGED, 1, LEN, How::default());
    program.settle();
    assert!(program.is_over(receive), "{:?}", program.failures);
}

#[test]
fn who_watches_peers_hears_of_each_loss_once() {
    let mut program = program(3, far(), |config| Config { refusals_max: 3, ..config });
    program.mortal = true;
    program.world.nodes[0].engine.watch_peers();
    program.recv(1, None, TAGGED, Some(1), 10);
    program.recv(2, None, TAGGED, Some(1), 10);
    program.send(0, 1, TAGGED, 1, 10, How::default());
    program.send(0, 2, TAGGED, 1, 10, How::default());
    program.settle();
    assert!(program.world.nodes[0].engine.poll_lost().is_none());
    // No operation waits for the peer, and the engine still notices its loss.
    program.world.kill(1);
    program.settle();
    let gone = program.world.peer(0, 1);
    let engine = &mut program.world.nodes[0].engine;
    assert!(engine.has_completions());
    let (peer, error) = engine.poll_lost().expect("one is gone");
    assert_eq!(peer, gone);
    assert!(matches!(&error, OpError::PeerGone(text) if text.contains("nobody listens")), "{error}");
    assert!(engine.poll_lost().is_none() && !engine.has_completions());
    program.expect_rest();
}

#[test]
fn a_peer_out_of_reach_fails_in_bounded_time() {
    let net = Net { timed_out: 1000, ..Net::calm() };
    let mut program = program(2, net, |config| Config { peer_timeout_us: 5_000_000, ..config });
    program.mortal = true;
    program.send(0, 1, TAGGED, 0, 10, at(Level::Delivery));
    program.settle();
    assert!(matches!(&program.failures[..], [(0, OpError::Unreachable(_))]), "{:?}", program.failures);
    assert!(program.world.now < 8_000_000);
}

#[test]
fn a_wildcard_that_is_a_known_peer_joins_it() {
    let mut program = program(2, Net::calm(), open);
    program.recv(1, None, TAGGED, Some(1), 2 << 20);
    program.recv(1, None, TAGGED, Some(1), 100);
    program.send(0, 1, TAGGED, 1, 1 << 20, How::default());
    let typed = Address { incarnation: 0, ..address(1).place() };
    let wildcard = program.world.nodes[0].engine.peer(&typed).unwrap();
    let known = program.world.peer(0, 1);
    assert_ne!(wildcard, known);
    program.send_to(0, 1, wildcard, TAGGED, 1, 50, How::default());
    program.settle();
    assert_eq!(program.world.nodes[0].engine.peer_address(wildcard), Some(address(1).place()));
    assert_eq!(program.completed, 4);
    program.expect_rest();
}

#[test]
fn a_wildcard_becomes_the_peer_that_answers() {
    let mut program = program(2, Net::calm(), open);
    let typed = Address::from(address(1).locator);
    let wildcard = program.world.nodes[0].engine.peer(&typed).unwrap();
    program.recv(1, None, TAGGED, Some(1), 2 << 20);
    program.send_to(0, 1, wildcard, TAGGED, 1, 1 << 20, How::default());
    program.settle();
    assert_eq!(program.world.peer(0, 1), wildcard);
    program.recv(0, Some(1), TAGGED, Some(1), 100);
    program.send(1, 0, TAGGED, 1, 100, How::default());
    program.settle();
    program.expect_rest();
}

/// An endpoint that calls only one peer sends data with its Hello, even without the peer's whole address. A message
/// arrives half a round trip after the lane is connected, and not one and a half.
#[test]
fn what_goes_to_the_one_peer_goes_with_hello() {
    let arrives = |calls_one| {
        let mut program = program(2, far(), |config| Config { calls_one, ..open(config) });
        let wildcard = program.world.nodes[0].engine.peer(&Address::from(address(1).locator)).unwrap();
        program.recv(1, None, TAGGED, Some(1), 100);
        program.send_to(0, 1, wildcard, TAGGED, 1, 100, How::default());
        while program.completed == 0 {
            program.run_until(program.world.now + 1_000);
        }
        let at = program.world.now;
        program.settle();
        assert_eq!(program.world.peer(0, 1), wildcard);
        // The peer is like any other from then on.
        for (from, to) in [(0, 1), (1, 0)] {
            program.recv(to, Some(from), TAGGED, Some(2), 1 << 20);
            program.send(from, to, TAGGED, 2, 1 << 20, How::default());
        }
        program.settle();
        assert_eq!(program.completed, 6);
        program.expect_rest();
        at
    };
    let (waits, goes) = (arrives(false), arrives(true));
    let trip = 2 * far().delay.1;
    assert!(goes + trip / 2 < waits, "{goes} and {waits} us, where a round trip takes up to {trip}");
}

/// Lanes break before the answer comes, and every message still arrives once.
#[test]
fn what_goes_with_hello_arrives_once_however_lanes_break() {
    for seed in 0..60 {
        let mut program = program(2, far(), |config| Config { calls_one: true, seed, ..open(config) });
        let wildcard = program.world.nodes[0].engine.peer(&Address::from(address(1).locator)).unwrap();
        for _ in 0..20 {
            program.recv(1, None, TAGGED, Some(1), 200_000);
            program.send_to(0, 1, wildcard, TAGGED, 1, 1 + 10_000 * seed % 190_000, How::default());
        }
        for step in 1..6 {
            program.run_until(seed * 997 + step * 9_000);
            for wire in program.world.open_wires() {
                program.world.break_wire(wire);
            }
        }
        program.settle();
        assert_eq!((program.completed, program.failures.len()), (40, 0), "seed {seed}");
        program.expect_rest();
    }
}

#[test]
fn both_sides_connect_at_once() {
    let mut program = program(2, far(), |config| config);
    for (node, to) in [(0, 1), (1, 0)] {
        program.recv(node, Some(to), UNTAGGED, None, 1 << 20);
        program.send(node, to, UNTAGGED, 0, 1 << 20, at(Level::Match));
    }
    program.settle();
    assert_eq!(program.completed, 4);
    program.expect_rest();
}

#[test]
fn an_endpoint_that_closes_delivers_what_was_injected() {
    for broken in [false, true] {
        let mut program = program(2, far(), |config| config);
        program.mortal = true;
        for _ in 0..50 {
            program.recv(1, Some(0), TAGGED, Some(1), 100);
        }
        for _ in 0..50 {
            program.send(0, 1, TAGGED, 1, 100, How { inject: true, ..How::default() });
        }
        if broken {
            program.run_until(26_000);
            for wire in program.world.open_wires() {
                program.world.break_wire(wire);
            }
        }
        program.world.close(0, 5_000_000);
        program.settle();
        assert_eq!((program.completed, program.failures.len()), (100, 0), "broken {broken}");
        program.send(1, 0, TAGGED, 1, 100, at(Level::Delivery));
        assert!(matches!(&program.failures[..], [(1, OpError::PeerGone(text))] if text.contains("closed")));
        assert_eq!(program.world.nodes[0].engine.lanes() + program.world.nodes[1].engine.lanes(), 0);
    }
}

#[test]
fn a_slow_receiver_stalls_only_its_own_sender() {
    let mut program = program(3, Net::calm(), |config| Config { credit: 256 << 10, ..config });
    for _ in 0..100 {
        program.send(0, 2, TAGGED, 1, 100_000, How::default());
    }
    program.run_until(500_000);
    let held = program.world.nodes[2].engine.held();
    assert!(held.iter().all(|(held, granted)| held <= granted && *granted <= 256 << 10), "{held:?}");
    assert!(program.world.nodes[0].engine.pending() >= 97);
    let before = program.completed;
    program.recv(2, Some(1), TAGGED, Some(2), 1 << 20);
    program.send(1, 2, TAGGED, 2, 1 << 20, How::default());
    program.run_until(1_000_000);
    assert_eq!(program.completed, before + 2);
    program.finish();
}

#[test]
fn ten_thousand_unexpected_then_another_tag_first() {
    let mut program = calm(2);
    for i in 0..10_000 {
        program.send(0, 1, TAGGED, 1, i % 3 * 8, How { inject: true, ..How::default() });
    }
    program.send(0, 1, TAGGED, 2, 1 << 20, How::default());
    program.run_until(1_000_000);
    let wanted = program.recv(1, Some(0), TAGGED, Some(2), 1 << 20);
    program.settle();
    assert!(program.is_over(wanted), "held up by messages that nobody receives");
    for _ in 0..10_000 {
        program.recv(1, Some(0), TAGGED, Some(1), 16);
    }
    program.settle();
    assert_eq!(program.completed, 20_002);
    // The contents alone are checked, not the order: the full check is quadratic.
    assert_eq!(program.world.nodes[1].engine.leftovers(), Vec::<String>::new());
}

#[test]
fn self_messages() {
    let mut program = calm(1);
    for len in [0, 1, 9000, 3 << 20] {
        program.send(0, 0, TAGGED, 1, len, at(Level::Match));
        program.recv(0, Some(0), TAGGED, Some(1), 4 << 20);
        program.recv(0, None, UNTAGGED, None, 4 << 20);
        program.send(0, 0, UNTAGGED, 1, len, How::default());
    }
    program.write(0, 0, 0, 1 << 20, How::default());
    program.settle();
    program.read(0, 0, 0, How::default());
    program.write(0, 0, 1, 10, How { fence: Fence::All, ..How::default() });
    program.count(0, 0);
    program.settle();
    for wire in program.world.open_wires() {
        program.world.break_wire(wire);
    }
    program.send(0, 0, TAGGED, 1, 2 << 20, How::default());
    program.recv(0, Some(0), TAGGED, Some(1), 4 << 20);
    program.settle();
    program.expect_rest();
}

#[test]
fn a_fence_of_each_side_does_not_hold_up_the_other() {
    let mut program = program(2, far(), |config| config);
    for (node, to) in [(0, 1), (1, 0)] {
        program.write(node, to, 0, 1 << 20, How::default());
    }
    program.settle();
    for (node, to) in [(0, 1), (1, 0)] {
        program.read(node, to, 0, How::default());
        program.send(node, to, TAGGED, 1, 100_000, How { fence: Fence::All, ..How::default() });
        program.write(node, to, 1, 100_000, How { fence: Fence::All, ..How::default() });
        program.recv(node, None, TAGGED, Some(1), 100_000);
    }
    program.settle();
    program.expect_rest();
}

#[test]
fn what_is_in_order_with_writes_and_reads_waits_for_those_only() {
    let mut program = program(2, far(), |config| config);
    let after = || How { fence: Fence::Remote, ..How::default() };
    program.write(0, 1, 0, 1 << 20, How::default());
    program.settle();
    let start = program.world.now;
    for _ in 0..20 {
        program.send(0, 1, TAGGED, 1, 1000, after());
        program.recv(1, None, TAGGED, Some(1), 1000);
    }
    program.settle();
    let many = program.world.now - start;
    program.write(0, 1, 1, 1 << 20, How::default());
    program.send(0, 1, TAGGED, 1, 1000, after());
    program.read(0, 1, 1, after());
    program.write(0, 1, 1, 100_000, after());
    program.recv(1, None, TAGGED, Some(1), 1000);
    program.settle();
    assert!(many < (program.world.now - start - many), "messages waited for one another: {many} us");
    program.expect_rest();
}

#[test]
fn match_level_waits_for_the_receive() {
    let mut program = calm(2);
    for len in [0, 100, 100_000, 2 << 20] {
        program.send(0, 1, TAGGED, 1, len, at(Level::Match));
    }
    program.run_until(100_000);
    assert_eq!(program.completed, 0);
    program.recv(1, None, TAGGED, Some(1), 0);
    program.settle();
    assert_eq!(program.completed, 2);
    program.peek(1, None, Some(1), PeekAction::Discard);
    program.settle();
    assert_eq!(program.completed, 3);
    program.peek(1, None, Some(1), PeekAction::Claim);
    program.claim(Some(10));
    program.settle();
    assert_eq!(program.completed, 5);
    program.recv(1, None, TAGGED, Some(1), 1000);
    program.settle();
    assert_eq!(program.completed, 7);
    program.expect_rest();
}

#[test]
fn a_message_longer_than_the_credit_waits_only_for_its_receive() {
    let mut program = program(2, far(), |config| Config { credit: 64 << 10, ..config });
    program.send(0, 1, TAGGED, 1, 10 << 20, How::default());
    program.run_until(200_000);
    program.recv(1, None, TAGGED, Some(1), 10 << 20);
    program.settle();
    program.expect_rest();
}

#[test]
fn memory_that_is_not_registered_is_refused_by_name() {
    let mut program = calm(2);
    for read in [false, true] {
        for status in [Status::Key, Status::Bounds] {
            for len in [6, 10_000, 3 << 20] {
                program.trespass(0, 1, read, len, status);
            }
        }
    }
    program.settle();
    program.expect_rest();
}

#[test]
fn atomics_and_messages_keep_their_order() {
    let mut program = calm(2);
    for round in 0..40u64 {
        program.atomic(0, 1, AtomicKind::Fetch, AtomicOp::Sum, &[round, 1, 2], &[], Fence::None);
        program.atomic(
            0,
            1,
            AtomicKind::Compare,
            AtomicOp::Cswap,
            &[7],
            &[round],
            [Fence::None, Fence::All][usize::from(round % 5 == 0)],
        );
        program.send(0, 1, TAGGED, 1, 100, How::default());
        program.recv(1, None, TAGGED, Some(1), 100);
    }
    program.settle();
    program.expect_rest();
}

/// mpi4py's MCS lock relies on it: an atomic on a rank's own memory must precede the rank's next operation.
#[test]
fn operations_to_oneself_are_over_when_they_are_posted_and_take_no_lane() {
    let mut program = program(2, far(), |config| Config { credit: 256 << 10, ..config });
    // Something is under way on every path that an operation could take: messages that wait for receives, within the
    // credit and beyond it, and bulk to another peer.
    for len in [0, 100, 200 << 10, 1 << 20] {
        program.send(0, 0, TAGGED, 1, len, How::default());
    }
    program.send(0, 0, UNTAGGED, 0, 70_000, at(Level::Match));
    program.send(0, 1, TAGGED, 1, 4 << 20, How::default());
    for round in 0..20u64 {
        let fence = [Fence::None, Fence::Remote, Fence::All][round as usize % 3];
        let how = How { fence, data: round % 2 == 0, inject: round % 5 == 0, ..How::default() };
        let len = [8, 4096, 5000, 1 << 20][round as usize % 4];
        assert!(program.write(0, 0, 0, len, how), "the write before it is over");
        assert!(program.is_over(program.newest()));
        assert!(program.read(0, 0, 0, How { fence, ..How::default() }));
        assert!(program.is_over(program.newest()));
        program.atomic(0, 0, AtomicKind::Fetch, AtomicOp::Sum, &[round, 1, 2], &[], fence);
        assert!(program.is_over(program.newest()));
        program.atomic(0, 0, AtomicKind::Update, AtomicOp::AtomicWrite, &[7], &[], Fence::None);
        assert!(program.is_over(program.newest()));
        program.count(0, 0);
        program.trespass(0, 0, round % 2 == 0, 100, Status::Key);
        let receive = program.recv(0, Some(0), TAGGED, Some(2), len);
        program.send(0, 0, TAGGED, 2, len, how);
        assert!(program.is_over(receive) && program.is_over(program.newest()));
    }
    assert_eq!((program.world.now, program.world.dials), (0, 1), "one lane, to the other process");
    for (len, class) in [(0, 1), (100, 1), (200 << 10, 1), (1 << 20, 1)] {
        let receive = program.recv(0, None, TAGGED, Some(class), len);
        assert!(program.is_over(receive));
    }
    program.recv(0, None, UNTAGGED, None, 100);
    program.recv(1, None, TAGGED, Some(1), 4 << 20);
    program.settle();
    program.expect_rest();
}

/// The data of a message to oneself beyond the credit stays with its sender, so memory is bounded.
#[test]
fn messages_to_oneself_that_wait_are_copied_within_the_credit_only() {
    let mut program = program(1, Net::calm(), |config| Config { credit: 100_000, ..config });
    for _ in 0..3 {
        program.send(0, 0, TAGGED, 1, 40_000, How::default());
    }
    assert!(!program.is_over(program.newest()) && program.completed == 2);
    assert!(program.world.nodes[0].engine.held().iter().all(|(held, _)| *held <= 100_000));
    assert!(program.peek(0, Some(0), Some(1), PeekAction::Claim));
    assert!(program.claim(None));
    assert!(program.peek(0, None, Some(1), PeekAction::Discard));
    program.recv(0, Some(0), TAGGED, Some(1), 10);
    program.settle();
    program.expect_rest();
}

#[test]
fn an_endpoint_that_is_told_its_own_locator_knows_that_it_is_meant() {
    let mut program = calm(1);
    let typed = Address::from(address(0).locator);
    let own = program.world.nodes[0].engine.peer(&typed).unwrap();
    assert_eq!(own, program.world.peer(0, 0));
    program.recv(0, Some(0), TAGGED, Some(1), 1 << 20);
    program.send_to(0, 0, own, TAGGED, 1, 1 << 20, How::default());
    assert_eq!((program.completed, program.world.dials), (2, 0));
    program.expect_rest();
}

/// Behind a port forward, only the answer shows that the endpoint has dialled itself.
#[test]
fn an_endpoint_that_dials_itself_by_another_locator_takes_what_waits_for_the_lane() {
    let mut program = program(2, Net::calm(), open);
    let elsewhere = Address::from(locator(0, 1));
    let own = program.world.nodes[0].engine.peer(&elsewhere).unwrap();
    program.recv(0, None, TAGGED, Some(1), 1 << 20);
    program.send_to(0, 0, own, TAGGED, 1, 1 << 20, How::default());
    program.send_to(0, 0, own, TAGGED, 1, 100, How::default());
    program.settle();
    assert_eq!(program.world.nodes[0].engine.peer_address(own), Some(address(0).place()));
    program.recv(0, Some(0), TAGGED, Some(1), 100);
    program.settle();
    assert_eq!((program.completed, program.world.nodes[0].engine.lanes()), (4, 0));
    program.expect_rest();
}

#[test]
fn lanes_that_cannot_be_added_are_not_tried_in_a_tight_loop() {
    let mut program = program(2, far(), |config| config);
    program.recv(1, None, TAGGED, Some(1), 100);
    program.send(0, 1, TAGGED, 1, 100, How::default());
    program.settle();
    program.world.net.refused = 1000;
    program.recv(1, None, TAGGED, Some(1), 48 << 20);
    program.send(0, 1, TAGGED, 1, 48 << 20, How::default());
    program.settle();
    assert!(program.world.dials < 60, "{} dials in {} us", program.world.dials, program.world.now);
    program.expect_rest();
}

#[test]
fn a_peer_that_accepts_but_never_answers_is_given_up() {
    let net = Net { unanswered: 1000, ..Net::calm() };
    let mut program = program(2, net, |config| Config { peer_timeout_us: 30_000_000, ..config });
    program.mortal = true;
    program.send(0, 1, TAGGED, 1, 100, at(Level::Delivery));
    program.settle();
    assert!(matches!(&program.failures[..], [(0, OpError::Unreachable(_))]), "{:?}", program.failures);
    assert!(program.world.now < 60_000_000);
    program.expect_rest();
}

#[test]
fn an_address_of_another_subnet_is_refused() {
    let mut world = World::new(1, 1, Net::calm(), |config| config);
    let other = Address { subnet: SubnetId(9), ..address(3) };
    let refusal = world.nodes[0].engine.peer(&other);
    assert!(matches!(refusal, Err(Refusal::Unreachable(text)) if text.contains("no router")));
}

#[test]
fn a_peer_that_is_told_it_is_of_another_subnet_learns_why() {
    let mut program = calm(2);
    program.mortal = true;
    // The other side was configured differently: its own address is not what we think.
    program.world.nodes[1] = {
        let mut other = World::new(1, 2, Net::calm(), |config| {
            let address = Address { subnet: SubnetId(9), ..config.address };
            Config { address, ..config }
        });
        other.nodes.remove(1)
    };
    program.send(0, 1, TAGGED, 1, 100, at(Level::Delivery));
    program.settle();
    assert!(
        matches!(&program.failures[..], [(0, OpError::Unreachable(text))] if text.contains("not in AS 1 subnet"))
    );
}

#[test]
fn a_stranger_at_the_port_is_told() {
    let mut program = calm(2);
    program.mortal = true;
    let former = Address { incarnation: 99, ..address(1) };
    let peer = program.world.nodes[0].engine.peer(&former).unwrap();
    program.send_to(0, 1, peer, TAGGED, 1, 100, at(Level::Delivery));
    program.settle();
    assert!(matches!(&program.failures[..], [(0, OpError::PeerGone(text))] if text.contains("has ended")));
    assert_eq!(program.world.nodes[0].engine.lanes() + program.world.nodes[1].engine.lanes(), 0);
}

#[test]
fn a_post_to_nobody_is_refused_at_once() {
    let mut world = World::new(1, 1, Net::calm(), |config| config);
    let Node { engine, mem, .. } = &mut world.nodes[0];
    let place = mem.lend(vec![0; 4], false, false);
    let request = SendRequest {
        peer: isthmus_proto::PeerId(77),
        channel: TAGGED,
        tag: 0,
        data: None,
        options: Options::default(),
    };
    assert!(matches!(engine.send(&request, place, 4, mem), Err(Refusal::Invalid(_))));
    assert_eq!(mem.lent(), 1);
}

pub(crate) fn routed(routers: usize, config: impl Fn(Config) -> Config) -> Program {
    Program::new(World::routed(7, 2, routers, far(), config))
}

/// Sends 64 MiB from one AS to another. In the middle, `befalls` harms one of two routers.
fn transfer_through_routers(befalls: impl Fn(&mut World, usize)) -> Program {
    let mut program = routed(2, |config| config);
    program.recv(1, Some(0), TAGGED, Some(1), 64 << 20);
    program.send(0, 1, TAGGED, 1, 64 << 20, at(Level::Delivery));
    while program.world.nodes[0].engine.counters().fragments_sent < 120 {
        program.run_until(program.world.now + 1000);
    }
    assert!(program.world.lanes_of(0) > 0 && program.world.lanes_of(1) > 0, "lanes spread over both routers");
    befalls(&mut program.world, 1);
    let since = program.world.now;
    while program.completed < 2 {
        program.run_until(program.world.now + 1000);
        assert!(program.world.now < since + 10_000_000, "a router's trouble costs less than 10 s");
    }
    assert!(program.world.nodes[0].engine.counters().fragments_resent > 0);
    program.settle();
    program.expect_rest();
    program
}

#[test]
fn a_router_that_dies_in_mid_transfer_is_left_for_the_other() {
    transfer_through_routers(World::kill_router);
}

#[test]
fn a_router_that_hangs_in_mid_transfer_is_left_for_the_other() {
    transfer_through_routers(World::hang_router);
}

/// Exchanges messages, and sends another when the router of the only lane hangs already.
fn hang_after_an_exchange(pause: u64) {
    let mut program = routed(2, |config| config);
    for message in 0..3 {
        program.recv(1, Some(0), TAGGED, Some(message), 10);
    }
    let exchange = |program: &mut Program, message, most| {
        let (since, completed) = (program.world.now, program.completed + 2);
        program.send(0, 1, TAGGED, message, 10, at(Level::Delivery));
        while program.completed < completed {
            program.run_until(program.world.now + 1000);
            assert!(program.world.now < since + most, "message {message} takes too long, paused {pause} us");
        }
    };
    exchange(&mut program, 0, 1_000_000);
    program.run_until(program.world.now + pause);
    exchange(&mut program, 1, 1_000_000);
    let carries = usize::from(program.world.lanes_of(1) > 0);
    assert_eq!(program.world.lanes_of(0) + program.world.lanes_of(1), 1, "one lane will do");
    program.world.hang_router(carries);
    exchange(&mut program, 2, 10_000_000);
    program.settle();
    program.expect_rest();
}

#[test]
fn a_router_that_hangs_between_two_messages_is_left_for_the_other() {
    (0..20).for_each(|i| hang_after_an_exchange(i * 50_000));
}

#[test]
fn routed_lanes_that_rest_are_not_asked() {
    let mut program = transfer_through_routers(|world, router| world.kill_router(router));
    let events = program.world.steps;
    program.run_until(program.world.now + 60_000_000);
    assert_eq!(program.world.steps, events);
}

#[test]
fn without_any_router_left_an_operation_fails_and_names_those_tried() {
    let mut program = routed(2, |config| Config { peer_timeout_us: 5_000_000, ..config });
    program.mortal = true;
    program.world.kill_router(0);
    program.world.kill_router(1);
    program.send(0, 1, TAGGED, 0, 10, at(Level::Delivery));
    program.settle();
    let [(0, OpError::Unreachable(text))] = &program.failures[..] else { panic!("{:?}", program.failures) };
    assert!(text.contains("routers tried: 127.0.0.1:500, 127.0.0.1:501"), "{text}");
    assert!(program.world.now < 8_000_000);
}

#[test]
fn a_process_that_ended_behind_a_router_is_known_to_be_gone() {
    let mut program = routed(2, |config| Config { refusals_max: 4, ..config });
    program.mortal = true;
    program.world.kill(1);
    program.send(0, 1, TAGGED, 0, 10, at(Level::Delivery));
    program.settle();
    assert!(
        matches!(&program.failures[..], [(0, OpError::PeerGone(text))] if text.contains("nobody listens"))
    );
}

#[test]
fn what_stands_still_says_what_it_waits_for() {
    let mut program = program(2, Net::calm(), |config| Config { credit: 100_000, ..config });
    program.send(0, 1, TAGGED, 1, 4 << 20, How::default());
    program.send(0, 0, TAGGED, 2, 200_000, at(Level::Match));
    program.run_until(40_000_000);
    let now = program.world.now;
    let engine = &mut program.world.nodes[0].engine;
    assert_eq!(engine.stall(now, 50_000_000), None);
    let (age, text) = engine.stall(now, 30_000_000).expect("nobody receives");
    assert!(age > 30_000_000 && text.contains("the peer has not posted its receive"), "{text}");
    let state = engine.state(now);
    assert!(
        state.contains("to this endpoint itself")
            && state.contains("shared memory") | state.contains("TCP, open"),
        "{state}"
    );
    program.recv(0, None, TAGGED, Some(2), 200_000);
    program.recv(1, None, TAGGED, Some(1), 4 << 20);
    program.settle();
    let now = program.world.now + 60_000_000;
    assert_eq!(program.world.nodes[0].engine.stall(now, 1), None);
    program.expect_rest();
}
