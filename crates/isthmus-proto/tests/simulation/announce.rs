//! Announced receives: each message arrives at the receive that MPI's order gives it, whatever is posted, cancelled and
//! lost meanwhile. Receivers announce nothing to peers that do not need it.

use std::sync::atomic::{AtomicU64, Ordering};

use isthmus_proto::{Channel, Config, Counters, Level, PeekAction, Transfer};

use crate::program::{How, Program};
use crate::rng::Rng;
use crate::scenarios::{TAGGED, at};
use crate::storms::for_seeds;
use crate::world::{Net, World};

const DELAY_US: u64 = 12_000;
/// Rate of a lane. Bytes/s: 100 Mb/s.
const RATE: u64 = 12_500_000;
const CREDIT: u64 = 64 << 10;
const LONG: u64 = 60 << 10;

fn far() -> Net {
    Net { delay: (DELAY_US, DELAY_US), buffer: 4 << 20, fill: 0, rate: RATE, ..Net::calm() }
}

fn counters(program: &Program, node: usize) -> Counters {
    program.world.nodes[node].engine.counters()
}

/// Two processes. Process 0 sends to 1, and has just asked for announcements, since its credit did not last.
fn asking(net: Net, config: impl Fn(Config) -> Config) -> Program {
    let config = |first| config(Config { credit: CREDIT, streams: 1, ..first });
    let mut program = Program::new(World::new(3, 2, net, config));
    program.recv(1, Some(0), TAGGED, Some(0), 64);
    program.send(0, 1, TAGGED, 0, 64, How::default());
    program.settle();
    for _ in 0..2 {
        for _ in 0..3 {
            program.send(0, 1, TAGGED, 0, LONG, How::default());
        }
        for _ in 0..3 {
            program.recv(1, Some(0), TAGGED, Some(0), LONG);
        }
        program.settle();
    }
    program
}

fn adaptive(net: Net) -> Program {
    asking(net, |config| config)
}

fn time_until(program: &mut Program, context: u64) -> u64 {
    let began = program.world.now;
    while !program.is_over(context) {
        assert!(program.world.step(), "nothing happens");
        program.check();
    }
    program.world.now - began
}

#[test]
fn a_message_longer_than_the_credit_takes_half_a_round_trip_and_its_length() {
    const BYTES: u64 = 1 << 20;
    let mut program = adaptive(far());
    let before = counters(&program, 1).receives_announced;
    let received = program.recv(1, Some(0), TAGGED, Some(1), BYTES);
    program.settle();
    program.send(0, 1, TAGGED, 1, BYTES, How::default());
    let (took, floor) = (time_until(&mut program, received), DELAY_US + BYTES * 1_000_000 / RATE);
    assert!(took <= floor + floor / 50, "{took} us, not {floor}");
    let (sent, announced) = (counters(&program, 0), counters(&program, 1).receives_announced - before);
    assert_eq!((sent.messages_announced, sent.messages_resumed, announced), (1, 0, 1));
    program.finish();
}

#[test]
fn a_cancelled_receive_is_not_written_to_and_its_message_goes_again() {
    let mut program = adaptive(far());
    let cancelled = program.recv(1, Some(0), TAGGED, Some(1), 4 * LONG);
    program.settle();
    program.send(0, 1, TAGGED, 1, 4 * LONG, at(Level::Match));
    let sent = program.newest();
    // The message's data is on its way.
    program.run_until(program.world.now + DELAY_US / 2);
    assert!(program.cancel(cancelled), "no message has matched it");
    program.run_until(program.world.now + 4 * DELAY_US);
    assert!(!program.is_over(sent), "nobody has received it");
    assert_eq!(program.world.nodes[1].engine.held().iter().map(|(held, _)| held).sum::<u64>(), 0);
    program.recv(1, Some(0), TAGGED, Some(1), 4 * LONG);
    time_until(&mut program, sent);
    let counted = counters(&program, 0);
    assert_eq!((counted.messages_announced, counted.messages_resumed), (1, 1));
    program.finish();
}

#[test]
fn a_receive_that_was_withdrawn_in_time_is_not_relied_on() {
    let mut program = adaptive(far());
    let cancelled = program.recv(1, Some(0), TAGGED, Some(1), 4 * LONG);
    program.settle();
    assert!(program.cancel(cancelled));
    program.settle();
    program.send(0, 1, TAGGED, 1, 4 * LONG, How::default());
    program.settle();
    program.recv(1, Some(0), TAGGED, Some(1), 4 * LONG);
    program.settle();
    let counted = counters(&program, 0);
    assert_eq!((counted.messages_announced, counted.messages_resumed), (0, 0));
    program.finish();
}

#[test]
fn a_message_that_crosses_an_announcement_takes_its_receive() {
    let mut program = adaptive(far());
    // Both messages are sent before the second receive is announced. The first one's receive was announced.
    let first = program.recv(1, Some(0), TAGGED, Some(1), LONG);
    program.settle();
    program.send(0, 1, TAGGED, 1, LONG, How::default());
    program.send(0, 1, TAGGED, 1, 2 * LONG, How::default());
    let second = program.recv(1, Some(0), TAGGED, Some(1), 2 * LONG);
    program.run_until(program.world.now + 2 * DELAY_US);
    // There is no receive for this one.
    program.send(0, 1, TAGGED, 1, 3 * LONG, How::default());
    time_until(&mut program, first);
    time_until(&mut program, second);
    program.settle();
    let counted = counters(&program, 0);
    assert_eq!((counted.messages_announced, counted.messages_resumed), (1, 0));
    program.recv(1, Some(0), TAGGED, Some(1), 3 * LONG);
    program.finish();
}

#[test]
fn a_message_goes_to_an_older_receive_from_any_source() {
    let mut program = adaptive(far());
    let any = program.recv(1, None, TAGGED, Some(1), 4 * LONG);
    let directed = program.recv(1, Some(0), TAGGED, Some(1), 4 * LONG);
    program.settle();
    program.send(0, 1, TAGGED, 1, 3 * LONG, How::default());
    time_until(&mut program, any);
    assert!(!program.is_over(directed));
    program.send(0, 1, TAGGED, 1, 3 * LONG, How::default());
    time_until(&mut program, directed);
    program.finish();
}

#[test]
fn a_message_that_is_too_long_for_its_receive_is_cut_off() {
    let mut program = adaptive(far());
    program.recv(1, Some(0), TAGGED, Some(1), LONG);
    program.settle();
    program.send(0, 1, TAGGED, 1, 4 * LONG, How::default());
    program.settle();
    assert_eq!(counters(&program, 0).messages_announced, 0, "no more is sent than is wanted");
    program.finish();
}

#[test]
fn nothing_is_announced_where_the_credit_lasts_or_the_peer_is_near_or_another_protocol_is_set() {
    let small = |config| Config { credit: CREDIT, ..config };
    let told = |mut program: Program| {
        for class in 0..40 {
            program.recv(1, Some(0), TAGGED, Some(class), 4 * LONG);
            program.send(0, 1, TAGGED, class, 4 * LONG, How::default());
        }
        program.finish();
        counters(&program, 1).receives_announced
    };
    assert!(told(asking(far(), small)) > 0);
    assert_eq!(told(asking(Net { delay: (100, 100), ..far() }, small)), 0);
    assert_eq!(told(asking(far(), |config| Config { credit: Config::CREDIT, ..config })), 0);
    for transfer in [Transfer::Eager, Transfer::Rendezvous, Transfer::Mixed] {
        let set = |config| Config { transfers: transfer.into(), ..small(config) };
        assert_eq!(told(asking(far(), set)), 0, "{transfer}");
    }
}

#[test]
fn nothing_is_announced_before_a_long_path_is_known_that_has_enough_credit() {
    const FAR_US: u64 = 183_000;
    let net = Net { delay: (FAR_US, FAR_US), rate: 10 * RATE, buffer: 64 << 20, ..far() };
    let config = |config| Config { credit_grows: true, streams: 1, ..config };
    let mut program = Program::new(World::new(3, 2, net, config));
    for class in 0..8 {
        program.recv(1, Some(0), TAGGED, Some(class), 4 << 20);
        program.send(0, 1, TAGGED, class, 4 << 20, How::default());
    }
    program.finish();
    assert_eq!(counters(&program, 1).receives_announced, 0);
}

#[test]
fn no_more_receives_are_announced_than_are_kept_and_none_after_nobody_has_asked_for_long() {
    let mut program = adaptive(far());
    let before = counters(&program, 1).receives_announced;
    let posted: Vec<_> = (0..1500).map(|_| program.recv(1, Some(0), TAGGED, Some(1), LONG)).collect();
    program.settle();
    let announced = counters(&program, 1).receives_announced;
    assert_eq!(announced - before, 1024);
    posted.into_iter().for_each(|context| assert!(program.cancel(context)));
    program.settle();
    for _ in 0..300 {
        program.send(0, 1, TAGGED, 0, 10, How::default());
        program.recv(1, Some(0), TAGGED, Some(0), 10);
    }
    program.settle();
    program.recv(1, Some(0), TAGGED, Some(0), LONG);
    assert_eq!(counters(&program, 1).receives_announced, announced);
    program.send(0, 1, TAGGED, 0, LONG, How::default());
    program.finish();
}

/// Messages that went by announcements in all storms, and those of them that were sent again.
static ANNOUNCED: AtomicU64 = AtomicU64::new(0);
static RESUMED: AtomicU64 = AtomicU64::new(0);

fn storm(seed: u64, mortal: bool) {
    let mut rng = Rng::new(seed);
    let nodes = rng.within((2, 3)) as usize;
    let delay = 2_000 + rng.below(20_000);
    let breaks = rng.chance(500).then_some((delay, 40 * delay));
    let net = Net {
        delay: (delay, delay + rng.below(delay)),
        chunk_max: 1 << rng.within((10, 18)),
        buffer: 1 << rng.within((14, 20)),
        fill: delay * rng.pick(&[0, 0, 1]),
        notice: rng.below(10 * delay),
        lost: rng.pick(&[0, 0, 5]),
        breaks,
        ..Net::calm()
    };
    let streams = rng.within((1, 4)) as u32;
    let config = |config| Config {
        credit: CREDIT,
        streams,
        refusals_max: if mortal { 6 } else { 1000 },
        peer_timeout_us: if mortal { 3_000_000 } else { u64::MAX },
        ..config
    };
    let mut program = Program::new(World::new(seed + 1, nodes, net, config));
    program.mortal = mortal;
    program.world.shorts = rng.chance(500);
    let classes = rng.pick(&[1, 2, 5]);
    let (mut receives, mut budget) = (Vec::new(), 10u64 << 20);
    let ops = rng.within((40, 200));
    for op in 0..ops {
        if mortal && op == ops / 2 {
            let node = rng.below(nodes as u64) as usize;
            if rng.chance(500) {
                program.world.close(node, rng.clone().below(1_000_000));
                program.run_until(program.world.now + delay);
            }
            program.world.kill(node);
        }
        act(&mut program, &mut rng, classes, &mut receives, &mut budget);
        if rng.chance(200) {
            let pause = rng.below(4 * delay);
            program.run_until(program.world.now + pause);
        }
    }
    program.finish();
    for node in 0..nodes {
        let counted = counters(&program, node);
        ANNOUNCED.fetch_add(counted.messages_announced, Ordering::Relaxed);
        RESUMED.fetch_add(counted.messages_resumed, Ordering::Relaxed);
    }
}

fn act(program: &mut Program, rng: &mut Rng, classes: u64, receives: &mut Vec<u64>, budget: &mut u64) {
    let nodes = program.world.nodes.len() as u64;
    let [node, to] = [(); 2].map(|()| rng.below(nodes) as usize);
    if !program.world.nodes[node].alive {
        return;
    }
    let channel = rng.pick(&[TAGGED, TAGGED, TAGGED, Channel::Untagged]);
    let class = rng.below(classes);
    let len = if rng.chance(150) { rng.below(9_000) } else { rng.within((8 << 10, 150 << 10)) }.min(*budget);
    match rng.below(100) {
        0..=44 => {
            *budget -= len;
            let level = rng.pick(&[Level::Transmit, Level::Delivery, Level::Match]);
            program.send(node, to, channel, class, len, How { data: rng.chance(300), ..at(level) });
        }
        45..=89 => {
            let source = rng.chance(850).then_some(to);
            let class = rng.chance(850).then_some(class);
            let room = if rng.chance(850) { 150 << 10 } else { len };
            receives.push(program.recv(node, source, channel, class, room));
        }
        90..=91 => {
            let room = rng.within((8 << 10, 300 << 10));
            receives.push(program.receive(node, None, Channel::Untagged, None, room, Some(room / 2)));
        }
        92..=93 => {
            let action = rng.pick(&[PeekAction::Look, PeekAction::Claim, PeekAction::Discard]);
            program.peek(node, rng.chance(500).then_some(to), Some(class), action);
        }
        94 => {
            let room = rng.chance(700).then_some(100 << 10);
            program.claim(room);
        }
        _ => {
            if !receives.is_empty() {
                let context = rng.pick(receives);
                program.cancel(context);
            }
        }
    }
}

#[test]
fn messages_find_their_receives_whatever_was_announced() {
    for_seeds("messages_find_their_receives", 12_000_000, 1500, |seed| storm(seed, false));
    if std::env::var_os("ISTHMUS_SEED").is_none() {
        let [announced, resumed] = [&ANNOUNCED, &RESUMED].map(|count| count.load(Ordering::Relaxed));
        println!("{announced} messages went by announcements, {resumed} of them in part again");
        assert!(announced > 1000 && resumed > 100, "{announced} announced, {resumed} resumed");
    }
}

#[test]
fn processes_that_end_take_their_announcements_with_them() {
    for_seeds("processes_that_end_take", 13_000_000, 500, |seed| storm(seed, true));
}
