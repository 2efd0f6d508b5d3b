//! Flows of one host with a ledger: what they carry together.

use std::sync::Arc;

use isthmus_lab::model::Loss;
use isthmus_ledger::{Heap, Kind, Ledger, Owner, PathKey, Plan, Report};
use isthmus_udp::Port;

use crate::net::{Flow, Net, PathSpec, address, config, seeds};

/// Two sites with ports for `flows` flows. Each port is a process of its own; those of one site share a ledger.
pub(crate) fn sites(path: &PathSpec, flows: usize) -> Net {
    sites_and_heaps(path, flows).0
}

fn sites_and_heaps(path: &PathSpec, flows: usize) -> (Net, [Arc<Heap>; 2]) {
    let heaps = [Arc::new(Heap::default()), Arc::new(Heap::default())];
    (sites_with(path, flows, &heaps), heaps)
}

fn sites_with(path: &PathSpec, flows: usize, heaps: &[Arc<Heap>; 2]) -> Net {
    let mut net = Net::new(path, (0..2 * flows).map(|_| config(path)).collect());
    for port in 0..2 * flows {
        let owner = Owner { pid: port as u32 + 1, started: 1 };
        let ledger = Ledger::new(heaps[port % 2].clone(), owner, port as u64, |_| true).expect("a ledger");
        net.ports[port].share(ledger, address(port).ip());
    }
    net
}

/// When each flow begins (microseconds), and what it carries (bytes).
type Work = Vec<(u64, u64)>;

/// Runs flows that were opened `before_us` earlier. Returns the fraction of the floor.
fn run(net: &mut Net, path: &PathSpec, plan: &Work, before_us: u64) -> f64 {
    let mut flows: Vec<Flow> = plan
        .iter()
        .enumerate()
        .map(|(i, (_, bytes))| Flow::new(net, 2 * i, 2 * i + 1, *bytes, false))
        .collect();
    flows.iter_mut().for_each(|flow| flow.greet(net));
    let start = net.now + before_us;
    while net.step(start) {
        for flow in &mut flows {
            flow.on_event(net);
            flow.drain(net);
        }
    }
    let start = net.now;
    let limit = start + 120_000_000;
    while !flows.iter().all(|flow| flow.is_settled(net)) {
        let now = net.now;
        for (flow, _) in flows.iter_mut().zip(plan).filter(|(_, (at, _))| now >= start + at) {
            flow.feed(net);
        }
        let on = net.step(limit);
        for flow in &mut flows {
            flow.on_event(net);
            flow.drain(net);
        }
        assert!(on, "not done in two minutes");
    }
    let bytes: u64 = plan.iter().map(|(_, bytes)| bytes).sum();
    path.floor_s(bytes) / ((net.now - start) as f64 / 1e6)
}

/// The worst and the mean result over seeds. The flows carry 500 MB together and begin a little apart.
fn together(rtt_us: u64, loss: f64, flows: usize, count: u64) -> (f64, f64) {
    let one = |seed: u64| {
        let path = PathSpec { rtt_us, loss: Loss::Independent(loss), seed: seed + 1, ..Default::default() };
        let mut net = sites(&path, flows);
        let begin = |flow| (seed * 1_300 * flow as u64, 500_000_000 / flows as u64);
        run(&mut net, &path, &(0..flows).map(begin).collect(), 2 * rtt_us + 10_000)
    };
    let all: Vec<f64> = seeds(count).map(one).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    println!("{rtt_us} us, loss {loss}, {flows} flows: {all:.3?}");
    (all.into_iter().fold(1.0, f64::min), mean)
}

#[test]
fn flows_of_a_host_fill_the_path_as_one_would() {
    for (rtt_us, least) in [(24_000, 0.9), (100_000, 0.9), (366_000, 0.85)] {
        for (loss, flows) in [(0.0, 4), (0.01, 2), (0.01, 8), (0.1, 4)] {
            let (worst, mean) = together(rtt_us, loss, flows, 2);
            assert!(mean >= least, "{rtt_us} us, loss {loss}, {flows} flows: {mean:.3} of the floor");
            assert!(worst >= least - 0.1, "{rtt_us} us, loss {loss}, {flows} flows: {worst:.3}");
        }
    }
}

/// A flow that joins takes its share from the others. A flow that ends leaves its share to them.
#[test]
fn flows_that_come_and_go_leave_no_gap() {
    for rtt_us in [24_000, 100_000] {
        let path = PathSpec { rtt_us, ..Default::default() };
        let mut net = sites(&path, 4);
        let plan =
            vec![(0, 300_000_000), (700_000, 50_000_000), (900_000, 100_000_000), (1_500_000, 20_000_000)];
        let fraction = run(&mut net, &path, &plan, 300_000);
        println!("{rtt_us} us: {fraction:.3}");
        assert!(fraction >= 0.9, "{rtt_us} us: {fraction:.3} of the floor");
    }
}

/// The leading process is gone, but its entry remains. It delays the others only for a moment.
#[test]
fn a_leader_that_is_gone_is_followed_by_another() {
    for planned in [false, true] {
        let path = PathSpec { rtt_us: 24_000, ..Default::default() };
        let (mut net, heaps) = sites_and_heaps(&path, 4);
        let owner = Owner { pid: 99, started: 1 };
        let ledger = Ledger::new(heaps[0].clone(), owner, 99, |_| true).expect("a ledger");
        let mut gone = ledger.flow(PathKey::new(Some(address(0).ip()), address(1).ip()), Kind::Paced);
        assert!(gone.tell(net.now, Report { rate: 0, in_flight: 1 << 20, flows: 1, sends_little: false }));
        assert!(gone.group(net.now).is_some_and(|group| group.leads));
        if planned {
            gone.teach(
                net.now,
                &Plan { capacity: 50_000_000, pace: 51_000_000, window: 2 << 20, loss: 0.0, rtt_us: 24_000 },
            );
        }
        std::mem::forget(gone);
        let fraction = run(&mut net, &path, &(0..4).map(|_| (0, 125_000_000)).collect(), 0);
        println!("planned {planned}: {fraction:.3}");
        assert!(fraction >= 0.75, "planned {planned}: {fraction:.3} of the floor");
    }
}

/// A stranger's flow keeps its share beside several flows of one host, which count as one.
#[test]
fn a_strangers_flow_keeps_its_part() {
    for rtt_us in [24_000, 100_000] {
        let path =
            PathSpec { rate_bps: 100_000_000, rtt_us, queue_us: rtt_us, mtu: 1_500, ..Default::default() };
        let (mut net, _) = sites_and_heaps(&path, 3);
        let mut settings = config(&path);
        settings.stream.composition = "cubic".parse().expect("valid");
        net.ports[4] = Port::new(settings, [77; 16]);
        let start = net.now;
        let mut flows: Vec<Flow> =
            (0..3).map(|i| Flow::new(&mut net, 2 * i, 2 * i + 1, 1 << 40, false)).collect();
        let mut at_10_s = vec![0; 3];
        while net.now < start + 40_000_000 {
            flows.iter_mut().for_each(|flow| flow.feed(&mut net));
            net.step(start + 40_000_000);
            for flow in &mut flows {
                flow.on_event(&mut net);
                flow.drain(&mut net);
            }
            if net.now < start + 10_000_000 {
                at_10_s = flows.iter().map(|flow| flow.read).collect();
            }
        }
        let rates = flows.iter().zip(&at_10_s).map(|(flow, before)| (flow.read - before) as f64 / 30.0);
        let shares: Vec<f64> = rates.map(|rate| rate / path.goodput()).collect();
        println!("{rtt_us} us: two of a host and cubic {shares:.2?}");
        assert!(shares[2] >= 0.4, "{rtt_us} us: cubic has {shares:.2?}");
        assert!(shares[0] + shares[1] >= 0.15, "{rtt_us} us: it starves them: {shares:.2?}");
        assert!(shares.iter().sum::<f64>() > 0.85, "{rtt_us} us: {shares:.2?}");
    }
}

/// The network that `others` processes find a while after the end of a process that carried bulk on `before`, if any.
fn later(before: Option<&PathSpec>, then: &PathSpec, others: usize) -> Net {
    let (mut net, heaps) = sites_and_heaps(before.unwrap_or(then), 1 + others);
    if let Some(path) = before {
        run(&mut net, path, &vec![(0, (path.rate_bps as f64 * 0.04) as u64)], 0);
        // The ports end with their process, and the path may change.
        let until = net.now + 60_000_000;
        while net.step(until) {}
        let now = net.now;
        net = sites_with(then, 1 + others, &heaps);
        net.now = now;
    }
    net
}

/// After a process has carried bulk on `before`, others begin together on `then` and carry `bytes`. Returns their
/// fraction of the floor. With `None` there was no process before.
fn after(before: Option<&PathSpec>, then: &PathSpec, bytes: u64, others: usize) -> f64 {
    let mut net = later(before, then, others);
    let mut flows: Vec<Flow> =
        (1..=others).map(|i| Flow::new(&mut net, 2 * i, 2 * i + 1, bytes / others as u64, false)).collect();
    let start = net.now;
    while !flows.iter().all(|flow| flow.is_settled(&net)) {
        flows.iter_mut().for_each(|flow| flow.feed(&mut net));
        assert!(net.step(start + 120_000_000), "not done in two minutes");
        for flow in &mut flows {
            flow.on_event(&mut net);
            flow.drain(&mut net);
        }
    }
    then.floor_s(bytes) / ((net.now - start) as f64 / 1e6)
}

/// If the path's rate has dropped since, the outdated knowledge costs little, and only for a while.
#[test]
fn a_process_starts_from_what_another_found_out_of_the_path() {
    // `more` and `less`: the least ratio to a cold start, of several processes and of a single one.
    for (mbps, rtt_us, loss, slower, more, less) in [
        (100, 24_000, 0.0, 1, 1.15, 1.0),
        (1_000, 24_000, 0.0, 1, 1.1, 1.0),
        (1_000, 366_000, 0.01, 1, 0.95, 0.95),
        (1_000, 24_000, 0.0, 2, 1.0, 0.95),
        (1_000, 24_000, 0.01, 4, 0.65, 0.9),
        (1_000, 100_000, 0.0, 4, 0.9, 0.9),
    ] {
        for others in [1, 4, 8] {
            let path = |mbps: u64| PathSpec {
                rate_bps: mbps * 1_000_000,
                rtt_us,
                queue_us: rtt_us / 4,
                loss: Loss::Independent(loss),
                ..Default::default()
            };
            let (before, then) = (path(mbps), path(mbps / slower));
            let bytes = then.rate_bps / 20;
            let (cold, warm) =
                (after(None, &then, bytes, others), after(Some(&before), &then, bytes, others));
            let what = format!(
                "{mbps} Mb/s, then {slower} times less, {rtt_us} us, loss {loss}, {others} processes: {warm:.3} of the \
                 floor, else {cold:.3}"
            );
            println!("{what}");
            assert!(warm >= cold * if others > 1 { more } else { less }, "{what}");
        }
    }
}

/// If another process knows the path's loss, it replaces the assumed initial loss.
#[test]
fn a_first_message_goes_in_as_many_copies_as_the_losses_that_another_process_has_found_ask_for() {
    let path = |loss| PathSpec { loss: Loss::Independent(loss), ..Default::default() };
    for (before, most) in [(None, 3), (Some(0.0), 0), (Some(0.01), 1), (Some(0.05), 2)] {
        let mut net = later(before.map(path).as_ref(), &path(0.0), 1);
        let (now, id) = (net.now, net.open(2, 3));
        net.ports[2].with(now, id, |stream| stream.write(b"12345678"));
        while net.step(now + 1_000_000) {}
        let copied = net.ports[2].stream(id).expect("it lives").status().counters.bytes_copied;
        assert_eq!(copied, 8 * most, "{before:?}");
    }
}
