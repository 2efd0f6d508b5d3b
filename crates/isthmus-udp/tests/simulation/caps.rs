//! The administrator's cap: the total rate of streams stays below it, and comes close to it.

use isthmus_udp::{Cap, Micros};

use crate::net::{Flow, Net, PathSpec, config};
use crate::together::sites;

const SECOND_US: Micros = 1_000_000;
/// Ethernet bytes of a packet with an MTU of 9,000, and the stream's share of them.
const WIRE: f64 = 9_038.0;
const STREAM: f64 = 8_940.0;

/// Runs flows that always have data to send. Each begins at the time given with it. Returns the bytes read of all
/// flows, every 0.1 s.
fn run(net: &mut Net, flows: &mut [(Micros, Flow)], time_us: Micros) -> Vec<u64> {
    let start = net.now;
    let mut seen = Vec::new();
    while net.now < start + time_us {
        let now = net.now;
        for (_, flow) in flows.iter_mut().filter(|(at, _)| start + at <= now) {
            flow.feed(net);
        }
        let next = start + (seen.len() as Micros + 1) * SECOND_US / 10;
        net.step(next);
        for (_, flow) in flows.iter_mut() {
            flow.on_event(net);
            flow.drain(net);
        }
        if net.now >= next {
            seen.push(flows.iter().map(|(_, flow)| flow.read).sum());
        }
    }
    seen
}

/// Checks that the rate never exceeds the cap in any second, apart from quanta, and comes close to it at the end.
fn check(what: &str, cap: u64, seen: &[u64]) {
    let most = cap as f64 * STREAM / WIRE;
    let by_second = seen.iter().zip(&seen[10..]).map(|(from, to)| (to - from) as f64 / most);
    let fastest = by_second.clone().fold(0.0, f64::max);
    let last = by_second.skip(seen.len() - 10 - 20).fold(f64::MAX, f64::min);
    println!("{what}: {fastest:.3} at most, {last:.3} at least in the end");
    assert!(fastest <= 1.02, "{what}: {fastest:.3} of the cap");
    assert!(last >= 0.95, "{what}: {last:.3} of the cap");
}

#[test]
fn streams_of_a_port_stay_below_their_cap_together_and_reach_it() {
    for (rtt_us, cap) in [(300, 12_500_000), (24_000, 12_500_000), (100_000, 62_500_000), (24_000, 1_250_000)]
    {
        for composition in ["rate", "cubic"] {
            let path = PathSpec { rtt_us, ..Default::default() };
            let mut settings = config(&path);
            settings.stream.composition = composition.parse().expect("valid");
            let mut net = Net::new(&path, vec![settings; 6]);
            let cap = Cap::new(cap);
            let mut flows = Vec::new();
            for i in 0..3 {
                let flow = Flow::new(&mut net, 0, 2 * i + 1, 1 << 40, false);
                net.ports[0].with(net.now, flow.stream(), |stream| stream.hold(&cap));
                flows.push((i as Micros * SECOND_US / 2, flow));
            }
            let seen = run(&mut net, &mut flows, 12 * SECOND_US);
            check(&format!("{composition}, {rtt_us} us, {}", cap.bytes_per_s()), cap.bytes_per_s(), &seen);
            let least = flows.iter().map(|(_, flow)| flow.read).min().unwrap_or(0);
            assert!(least > seen[seen.len() - 1] / 8, "{composition}, {rtt_us} us: one has {least}");
        }
    }
}

/// Separate processes, each with the same cap, share it by the ledger.
#[test]
fn flows_of_a_host_that_share_a_plan_stay_below_the_cap_as_one_would() {
    for (rtt_us, bytes_per_s) in [(24_000, 12_500_000), (100_000, 62_500_000)] {
        let path = PathSpec { rtt_us, ..Default::default() };
        let mut net = sites(&path, 4);
        let mut flows = Vec::new();
        for i in 0..4 {
            let flow = Flow::new(&mut net, 2 * i, 2 * i + 1, 1 << 40, false);
            let cap = Cap::new(bytes_per_s);
            net.ports[2 * i].with(net.now, flow.stream(), |stream| stream.hold(&cap));
            flows.push((0, flow));
        }
        let seen = run(&mut net, &mut flows, 12 * SECOND_US);
        // In the first 2 s, new processes do not know of each other yet.
        check(&format!("{rtt_us} us, four processes"), bytes_per_s, &seen[20..]);
        let least = flows.iter().map(|(_, flow)| flow.read).min().unwrap_or(0);
        assert!(least > seen[seen.len() - 1] / 8, "{rtt_us} us: one has {least}");
    }
}

/// Within a site the bandwidth-delay product is less than a packet. A host that sleeps wakes by timers of a millisecond,
/// and a busy one after some.
#[test]
fn low_caps_are_reached_with_coarse_timers() {
    for (rtt_us, mtu, cap, tick_us, least) in [
        (50, 1_500, 8_000_000, 1_000, 0.99),
        (50, 9_000, 8_000_000, 1_000, 0.99),
        (300, 1_500, 40_000_000, 1_000, 0.99),
        (300, 1_500, 10_000_000, 5_000, 0.93),
        (24_000, 1_500, 10_000_000, 5_000, 0.99),
        (24_000, 1_500, 1_000_000, 12_000, 0.98),
    ] {
        for flows in [1, 3] {
            let path = PathSpec { rtt_us, mtu, ..Default::default() };
            let mut net = Net::new(&path, vec![config(&path); 6]);
            net.tick_us = tick_us;
            let cap = Cap::new(cap);
            let mut flows: Vec<_> =
                (0..flows).map(|i| (0, Flow::new(&mut net, 0, 2 * i + 1, 1 << 40, false))).collect();
            for (_, flow) in &flows {
                net.ports[0].with(net.now, flow.stream(), |stream| stream.hold(&cap));
            }
            let seen = run(&mut net, &mut flows, 5 * SECOND_US);
            let rate = (seen[seen.len() - 1] - seen[20]) as f64 / 2.9;
            let ip = f64::from(mtu);
            let part = rate / cap.bytes_per_s() as f64 * (ip + 38.0) / (ip - 60.0);
            println!(
                "{rtt_us} us, MTU {mtu}, {} B/s, timers of {tick_us} us, {} flows: {part:.3}",
                cap.bytes_per_s(),
                flows.len()
            );
            assert!(part >= least, "{rtt_us} us, MTU {mtu}, timers of {tick_us} us: {part:.3} of the cap");
        }
    }
}
