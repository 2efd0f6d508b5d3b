//! Storms: random operations on a random network, for many seeds.

use std::net::SocketAddr;

use isthmus_proto::{
    AtomicKind, AtomicOp, Bulk, Channel, Config, Fence, Level, PeekAction, Transfer, Transfers,
};
use isthmus_wire::frame::Status;

use crate::program::{CELLS, How, Program, SLOT, SLOTS};
use crate::rng::Rng;
use crate::world::{Net, RAILS, World, locator};

/// The make-up of a storm.
#[derive(Clone, Debug)]
struct Storm {
    nodes: (u64, u64),
    ops: (u64, u64),
    net: fn(&mut Rng) -> Net,
    len: fn(&mut Rng) -> u64,
    rma: u64,
    /// Processes end in the middle, with or without a Bye.
    mortal: bool,
    /// Routers between all processes, which die, hang and come back. 0: none.
    routers: u64,
    /// Most rails between processes, which are cut and mended. 0: one rail that is never cut.
    rails: u64,
}

impl Default for Storm {
    fn default() -> Self {
        Self {
            nodes: (2, 4),
            ops: (20, 200),
            net: rough,
            len: mixed,
            rma: 0,
            mortal: false,
            routers: 0,
            rails: 0,
        }
    }
}

fn small(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => 0,
        1..=5 => rng.below(200),
        6..=8 => rng.below(9000),
        _ => rng.below(40_000),
    }
}

fn mixed(rng: &mut Rng) -> u64 {
    match rng.below(40) {
        0 => rng.below(2_500_000),
        1..=6 => rng.below(200_000),
        _ => small(rng),
    }
}

fn calm(_: &mut Rng) -> Net {
    Net::calm()
}

fn rough(rng: &mut Rng) -> Net {
    let far = rng.chance(500);
    let delay = if far { (1000, 1000 + rng.below(9000)) } else { (5, 5 + rng.below(200)) };
    Net {
        delay,
        chunk_max: 1 << rng.within((9, 18)),
        buffer: 1 << rng.within((13, 20)),
        refused: rng.below(300),
        timed_out: rng.below(100),
        unanswered: if rng.chance(200) { 50 } else { 0 },
        fill: delay.1 * rng.pick(&[0, 1, 2, 40]),
        breaks: Some((delay.1, 20 * delay.1)),
        notice: rng.below(40 * delay.1),
        outdone: if far { rng.pick(&[0, 2, 20]) } else { 0 },
        lost: 0,
        borrows: (rng.pick(&[0, 300, 1000]), delay.1 * rng.pick(&[0, 4, 1_000])),
        rate: 0,
        limited: false,
    }
}

fn run(seed: u64, storm: &Storm) {
    let mut rng = Rng::new(seed);
    let nodes = rng.within(storm.nodes) as usize;
    let net = (storm.net)(&mut rng);
    let credit = 1 << rng.within((16, 22));
    let streams = rng.within((1, 4)) as u32;
    let routers = rng.below(storm.routers + 1).max(storm.routers.min(1)) as usize;
    let rails: Vec<usize> = (0..nodes).map(|_| rng.below(storm.rails + 1).max(1) as usize).collect();
    let world = World::routed(seed + 1, nodes, routers, net, |config| Config {
        credit,
        credit_grows: seed.is_multiple_of(2),
        credit_total: 1 << (20 + seed % 11),
        streams,
        transfers: Transfer::ALL[seed as usize % Transfer::ALL.len()].0.into(),
        also: also(&config, &rails),
        refusals_max: if storm.mortal { 6 } else { 1000 },
        peer_timeout_us: if storm.mortal { 3_000_000 } else { u64::MAX },
        ..config
    });
    let mut program = Program::new(world);
    program.mortal = storm.mortal;
    program.world.shorts = !seed.is_multiple_of(4);
    program.world.seals = seed.is_multiple_of(3);
    program.world.runs = seed % 4 > 1;
    let mut receives = Vec::new();
    let mut budget = 12u64 << 20;
    let ops = rng.within(storm.ops);
    let mut switches = Rng::new(seed ^ 0x0073_7769_7463_6865);
    for op in 0..ops {
        if storm.mortal && op == ops / 2 {
            end_one(&mut program, &mut rng);
        }
        act(&mut program, &mut rng, storm, &mut receives, &mut budget);
        switch(&mut program.world, &mut switches);
        if routers > 0 && rng.chance(30) {
            trouble(&mut program.world, &mut rng);
        }
        if storm.rails > 0 && rng.chance(60) {
            cut_or_mend(&mut program.world, &mut rng);
        }
        if rng.chance(300) {
            let pause = rng.below(4 * program.world.net.delay.1);
            program.run_until(program.world.now + pause);
        }
    }
    if rng.chance(300) {
        let pause = rng.below(100 * program.world.net.delay.1);
        program.run_until(program.world.now + pause);
    }
    (0..RAILS).for_each(|rail| program.world.mend_rail(rail));
    program.finish();
}

/// Further locators at which a process listens.
fn also(config: &Config, rails: &[usize]) -> Vec<SocketAddr> {
    let node = config.address.incarnation as usize - 1;
    (1..rails[node]).map(|rail| locator(node, rail)).collect()
}

fn cut_or_mend(world: &mut World, rng: &mut Rng) {
    let rail = rng.below(RAILS as u64) as usize;
    if rng.chance(500) {
        world.cut_rail(rail);
    } else {
        world.mend_rail(rail);
    }
}

/// Sometimes changes the transfer protocol of a process, also for one host or one service level alone.
fn switch(world: &mut World, rng: &mut Rng) {
    let [node, other] = [(); 2].map(|()| rng.below(world.nodes.len() as u64) as usize);
    if !world.nodes[node].alive || !rng.chance(60) {
        return;
    }
    let kinds = Transfer::ALL.map(|(kind, _)| kind);
    let mut transfers = Transfers::from(rng.pick(&kinds));
    transfers.all.set(Some(locator(other, 0).ip().into()), rng.pick(&kinds));
    transfers.ro.set(None, rng.pick(&kinds));
    world.nodes[node].engine.set_transfers(transfers);
    world.pump(node);
    if world.net.outdone > 0 {
        world.set_bulk(node, rng.pick(&[Bulk::All, Bulk::Part, Bulk::None]));
    }
}

/// Kills, hangs or starts a router at random.
fn trouble(world: &mut World, rng: &mut Rng) {
    let router = rng.below(world.routers.len() as u64) as usize;
    match rng.below(4) {
        0 => world.kill_router(router),
        1 => world.hang_router(router),
        _ => world.start_router(router),
    }
}

fn end_one(program: &mut Program, rng: &mut Rng) {
    let node = rng.below(program.world.nodes.len() as u64) as usize;
    if rng.chance(500) {
        let linger = rng.below(1_000_000);
        program.world.close(node, linger);
        let exit = program.world.now + rng.below(10 * program.world.net.delay.1);
        program.run_until(exit);
    }
    program.world.kill(node);
}

fn fence(rng: &mut Rng, per_mille: u64) -> Fence {
    match rng.chance(per_mille) {
        false => Fence::None,
        true => rng.pick(&[Fence::Remote, Fence::Remote, Fence::All]),
    }
}

fn how(rng: &mut Rng, len: u64) -> How {
    How {
        inject: len <= 4096 && rng.chance(300),
        level: rng.pick(&[Level::Transmit, Level::Transmit, Level::Delivery, Level::Match]),
        fence: fence(rng, 30),
        data: rng.chance(400),
        listed: rng.chance(200),
        // Some messages ask for a protocol, whatever the endpoint is set to.
        transfer: Some(Transfer::ALL[len as usize / 3 % Transfer::ALL.len()].0)
            .filter(|asked| *asked != Transfer::Adaptive),
        buffered: len % 4 < 2,
    }
}

fn act(program: &mut Program, rng: &mut Rng, storm: &Storm, receives: &mut Vec<u64>, budget: &mut u64) {
    let nodes = program.world.nodes.len() as u64;
    let node = rng.below(nodes) as usize;
    if !program.world.nodes[node].alive {
        return;
    }
    let to = if rng.chance(100) { node } else { rng.below(nodes) as usize };
    let len = (storm.len)(rng).min(*budget);
    if rng.chance(storm.rma) {
        *budget -= len;
        return access(program, rng, node, to, len);
    }
    let channel = rng.pick(&[Channel::Tagged, Channel::Tagged, Channel::Untagged]);
    let class = rng.below(3);
    match rng.below(100) {
        0..=47 => {
            *budget -= len;
            program.send(node, to, channel, class, len, how(rng, len));
        }
        48..=87 => {
            let source = rng.chance(500).then_some(to);
            let class = rng.chance(800).then_some(class);
            let room = if rng.chance(700) { len.max(60_000) } else { (storm.len)(rng) };
            receives.push(program.recv(node, source, channel, class, room));
        }
        88..=89 => {
            let room = 1000 + rng.below(200_000);
            let least = rng.below(room);
            receives.push(program.receive(node, None, Channel::Untagged, None, room, Some(least)));
        }
        90..=94 => {
            let action = rng.pick(&[PeekAction::Look, PeekAction::Claim, PeekAction::Discard]);
            let source = rng.chance(300).then_some(to);
            let class = rng.chance(700).then_some(class);
            program.peek(node, source, class, action);
        }
        95..=97 => {
            let room = rng.chance(700).then(|| (storm.len)(rng));
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

fn access(program: &mut Program, rng: &mut Rng, node: usize, to: usize, len: u64) {
    let slot = rng.below(SLOTS as u64) as usize;
    match rng.below(10) {
        0..=2 => {
            program.write(node, to, slot, len.min(SLOT), how(rng, len));
        }
        3..=5 => {
            program.read(node, to, slot, how(rng, len));
        }
        6 => {
            let status = rng.pick(&[Status::Key, Status::Bounds]);
            program.trespass(node, to, rng.chance(500), 6 + len, status);
        }
        7 => program.count(node, to),
        _ => atomic(program, rng, node, to),
    }
}

fn atomic(program: &mut Program, rng: &mut Rng, node: usize, to: usize) {
    let kind = rng.pick(&[AtomicKind::Update, AtomicKind::Fetch, AtomicKind::Compare]);
    let op = match kind {
        AtomicKind::Compare => rng.pick(&[AtomicOp::Cswap, AtomicOp::CswapLt, AtomicOp::Mswap]),
        AtomicKind::Update => {
            rng.pick(&[AtomicOp::Sum, AtomicOp::Max, AtomicOp::Bxor, AtomicOp::AtomicWrite])
        }
        AtomicKind::Fetch => rng.pick(&[AtomicOp::Sum, AtomicOp::Min, AtomicOp::AtomicRead]),
    };
    let n = 1 + rng.below(CELLS as u64) as usize;
    let mut words = || (0..n).map(|_| rng.below(3)).collect::<Vec<u64>>();
    let (operands, compare) = (words(), words());
    let compare = if kind == AtomicKind::Compare { &compare[..] } else { &[] };
    let fence = fence(rng, 50);
    program.atomic(node, to, kind, op, &operands, compare, fence);
}

/// Runs a storm over `count` seeds.
fn over_seeds(name: &str, first: u64, count: u64, storm: &Storm) {
    for_seeds(name, first, count, |seed| run(seed, storm));
}

/// Calls `run` with `count` seeds from `first` on, or with the one in `ISTHMUS_SEED`.
pub(crate) fn for_seeds(name: &str, first: u64, count: u64, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let chosen =
        std::env::var("ISTHMUS_SEED").ok().map(|text| text.parse().expect("ISTHMUS_SEED is a number"));
    for seed in chosen.map_or(first..first + count * scale(), |seed: u64| seed..seed + 1) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            let test = format!("cargo test -p isthmus-proto --test simulation {name}");
            eprintln!("seed {seed} failed; replay: ISTHMUS_SEED={seed} {test}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// `ISTHMUS_SEEDS_SCALE` multiplies the number of seeds, for long runs.
fn scale() -> u64 {
    std::env::var("ISTHMUS_SEEDS_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn calm_seas_deliver_everything_in_order() {
    let storm = Storm { ops: (20, 250), net: calm, rma: 200, ..Storm::default() };
    over_seeds("calm_seas", 1_000_000, 150, &storm);
}

#[test]
fn small_messages_survive_breaking_lanes() {
    let storm = Storm { ops: (20, 300), len: small, ..Storm::default() };
    over_seeds("small_messages", 2_000_000, 350, &storm);
}

#[test]
fn large_messages_survive_breaking_lanes() {
    let storm = Storm { nodes: (2, 3), ops: (10, 120), rma: 100, ..Storm::default() };
    over_seeds("large_messages", 3_000_000, 250, &storm);
}

#[test]
fn remote_memory_survives_breaking_lanes() {
    let storm = Storm { nodes: (2, 3), rma: 750, ..Storm::default() };
    over_seeds("remote_memory", 4_000_000, 250, &storm);
}

#[test]
fn processes_that_end_fail_every_operation_once() {
    let storm = Storm { rma: 300, mortal: true, ..Storm::default() };
    over_seeds("processes_that_end", 5_000_000, 250, &storm);
}

#[test]
fn messages_survive_routers_that_die_and_hang() {
    let storm = Storm { rma: 300, routers: 3, ..Storm::default() };
    over_seeds("messages_survive_routers", 6_000_000, 250, &storm);
}

#[test]
fn messages_survive_ways_that_are_cut() {
    let storm = Storm { nodes: (2, 3), rma: 300, rails: RAILS as u64, ..Storm::default() };
    over_seeds("messages_survive_ways", 8_000_000, 250, &storm);
}

#[test]
fn processes_that_end_behind_routers_fail_every_operation_once() {
    let storm = Storm { rma: 300, mortal: true, routers: 2, ..Storm::default() };
    over_seeds("processes_that_end_behind_routers", 7_000_000, 100, &storm);
}
