//! Bytes arrive in order and exactly once, whatever the path does.

use isthmus_lab::model::Loss;
use isthmus_lab::rng::Rng;
use isthmus_udp::{ChecksumKind, Composition, CongestionKind, DetectionKind, MtuKind, RedundancyKind};

use crate::net::{Flow, Net, PathSpec, config, seeds, transfer};

pub(crate) fn any_path(seed: u64) -> PathSpec {
    let mut rng = Rng::new(seed, 9);
    let loss = match rng.up_to(2) {
        0 => Loss::Independent(0.0),
        1 => Loss::Independent(rng.up_to(300) as f64 / 1_000.0),
        _ => Loss::GilbertElliott { to_bad: 0.01, to_good: 0.1, loss_good: 0.001, loss_bad: 0.7 },
    };
    PathSpec {
        rate_bps: [2_000_000, 50_000_000, 1_000_000_000][rng.up_to(2) as usize],
        rtt_us: [100, 5_000, 80_000, 366_000][rng.up_to(3) as usize],
        queue_us: [1_000, 20_000, 200_000][rng.up_to(2) as usize],
        loss,
        reorder: [0.0, 0.1][rng.up_to(1) as usize],
        duplicate: [0.0, 0.05][rng.up_to(1) as usize],
        jitter_us: [0, 3_000][rng.up_to(1) as usize],
        mtu: [1_280, 1_500, 4_100, 9_000][rng.up_to(3) as usize],
        down: if rng.up_to(3) == 0 { vec![(1_200_000, 3_200_000)] } else { Vec::new() },
        seed,
        ..Default::default()
    }
}

fn any_composition(seed: u64) -> Composition {
    let mut rng = Rng::new(seed, 10);
    Composition {
        congestion: CongestionKind::ALL[rng.up_to(2) as usize],
        detection: DetectionKind::ALL[rng.up_to(1) as usize],
        redundancy: RedundancyKind::ALL[rng.up_to(1) as usize],
        mtu: MtuKind::ALL[rng.up_to(1) as usize],
        checksum: ChecksumKind::ALL[rng.up_to(1) as usize],
    }
}

#[test]
fn bytes_arrive_exactly_over_any_path_and_composition() {
    for seed in seeds(1_000) {
        let path = any_path(seed);
        let mut settings = config(&path);
        settings.stream.composition = any_composition(seed);
        let mut net = Net::new(&path, vec![settings.clone(), settings]);
        net.mischief = (seed % 3 == 0).then(|| Rng::new(seed, 11));
        let bytes = 1 + Rng::new(seed, 12).up_to(400_000);
        println!("seed {seed}: {bytes} bytes, {path:?}");
        transfer(&mut net, bytes, true, 600.0).expect("it ends");
    }
}

#[test]
fn bytes_arrive_exactly_over_a_path_that_alters_them() {
    let mut damaged = 0;
    for seed in seeds(200) {
        let path = any_path(seed);
        let mut settings = config(&path);
        settings.stream.composition = Composition { checksum: ChecksumKind::Crc32c, ..any_composition(seed) };
        let mut net = Net::new(&path, vec![settings.clone(), settings]);
        net.noise = Some(Rng::new(seed, 16));
        let bytes = 1 + Rng::new(seed, 17).up_to(400_000);
        println!("seed {seed}: {bytes} bytes, {path:?}");
        transfer(&mut net, bytes, true, 600.0).expect("it ends");
        damaged += net.ports.iter().map(|port| port.dropped().damaged).sum::<u64>();
    }
    assert!(damaged > 0, "nothing was altered");
}

#[test]
fn both_directions_carry_at_once() {
    for seed in seeds(50) {
        let path = PathSpec {
            loss: Loss::Independent(0.05),
            reorder: 0.05,
            duplicate: 0.01,
            seed,
            ..Default::default()
        };
        let mut net = Net::pair(&path);
        let mut flows =
            [Flow::new(&mut net, 0, 1, 2_000_000, true), Flow::new(&mut net, 1, 0, 2_000_000, true)];
        let limit = net.now + 60_000_000;
        while !flows.iter().all(|flow| flow.is_settled(&net)) {
            for flow in &mut flows {
                flow.feed(&mut net);
            }
            assert!(net.step(limit), "seed {seed}");
            // Each port opens one stream and accepts one.
            let events: Vec<_> =
                (0..2).map(|port| std::iter::from_fn(|| net.event(port)).collect::<Vec<_>>()).collect();
            for (flow, port) in flows.iter_mut().zip([1, 0]) {
                for event in &events[port] {
                    if let isthmus_udp::Event::Accepted(id, _) = event {
                        flow.accepted = Some(*id);
                    }
                }
                flow.drain(&mut net);
            }
        }
    }
}

#[test]
fn protocols_are_exchanged_at_any_moment_while_data_flows() {
    let mut switched = 0;
    for seed in seeds(100) {
        let path = PathSpec {
            loss: Loss::Independent(0.02),
            reorder: 0.02,
            rtt_us: 10_000,
            seed,
            ..Default::default()
        };
        let mut net = Net::pair(&path);
        let mut flow = Flow::new(&mut net, 0, 1, 4_000_000, true);
        let mut rng = Rng::new(seed, 13);
        let limit = net.now + 120_000_000;
        let mut rest = rng.up_to(400);
        while !flow.is_settled(&net) {
            flow.feed(&mut net);
            assert!(net.step(limit), "seed {seed}");
            flow.on_event(&mut net);
            flow.drain(&mut net);
            rest = rest.saturating_sub(1);
            if rest == 0 {
                // Switches follow each other at once, or after a long pause.
                let most = [1, 20, 800][rng.up_to(2) as usize];
                rest = rng.up_to(most);
                let mtu = MtuKind::ALL[rng.up_to(1) as usize];
                let next = Composition { mtu, ..any_composition(rng.next_u64()) };
                let (side, now) = (rng.up_to(1) as usize, net.now);
                if let Some(id) = [Some(flow.stream()), flow.accepted][side] {
                    net.ports[side].compose(now, id, next);
                    switched += 1;
                }
            }
        }
    }
    assert!(switched > 0, "nothing was exchanged");
}

#[test]
fn a_slow_reader_stalls_its_sender_and_memory_stays_bounded() {
    let path = PathSpec { loss: Loss::Independent(0.01), ..Default::default() };
    let mut settings = config(&path);
    (settings.stream.receive_max, settings.stream.send_max) = (2 << 20, 2 << 20);
    let mut net = Net::new(&path, vec![settings.clone(), settings]);
    let mut flow = Flow::new(&mut net, 0, 1, 20_000_000, true);
    let (mut most, mut next_read) = (0, 0);
    let limit = net.now + 60_000_000;
    while !flow.is_settled(&net) {
        flow.feed(&mut net);
        assert!(net.step(limit));
        flow.on_event(&mut net);
        if net.now >= next_read {
            flow.drain(&mut net);
            next_read = net.now + 200_000;
        }
        let memory = |port: usize, id| net.ports[port].stream(id).map_or(0, |stream| stream.memory());
        most = most.max(memory(0, flow.stream())).max(flow.accepted.map_or(0, |id| memory(1, id)));
    }
    assert!(most < (2 << 20) + (256 << 10), "{most} bytes");
}

#[test]
fn a_link_that_was_down_for_two_seconds_is_used_again_within_two_round_trips() {
    for (rtt_us, loss) in
        [(1_000, 0.0), (24_000, 0.0), (24_000, 0.05), (100_000, 0.0), (100_000, 0.1), (366_000, 0.0)]
    {
        // Times on a clock that begins at 1 s.
        let (cut, back) = (1_500_000 + 4 * rtt_us, 3_500_000 + 4 * rtt_us);
        let loss = Loss::Independent(loss);
        let path = PathSpec { rtt_us, loss, down: vec![(cut, back)], ..Default::default() };
        let mut net = Net::pair(&path);
        let mut flow = Flow::new(&mut net, 0, 1, 1 << 40, false);
        let mut resumed = 0;
        let end = back + 1_500_000 + 3 * rtt_us;
        while net.now < end {
            flow.feed(&mut net);
            net.step(end);
            flow.on_event(&mut net);
            let before = flow.read;
            flow.drain(&mut net);
            if flow.read > before && net.now > back && resumed == 0 {
                resumed = net.now;
            }
        }
        let took = resumed - back;
        println!("{rtt_us} us, {loss:?}: {:.2} RTT", took as f64 / rtt_us as f64);
        // Probes are at least 5 ms apart.
        assert!(took <= (2 * rtt_us).max(10_000), "{rtt_us}: {took} us");
        let rate = flow.read as f64 * 1e6 / (end - 3_000_000) as f64;
        assert!(rate > 0.6 * path.goodput(), "{rtt_us}: {rate}");
    }
}
