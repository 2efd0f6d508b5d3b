//! Ranks that begin to send at about the same time, from a cold start. Measures their total rate over seeds, including
//! seeds in which they once took half as long again.

use isthmus_lab::model::Loss;
use isthmus_lab::rng::Rng;

use crate::net::{Flow, Net, PathSpec, seeds};
use crate::stalls::StallSpec;
use crate::together::sites;

const FLOWS: usize = 4;
const BYTES: u64 = 100_000_000;

/// How the ranks begin.
struct Crowd {
    path: PathSpec,
    /// Bytes that each sends to measure the path while its stream opens.
    train: u32,
    /// Time between opening the streams and sending. Microseconds.
    before_us: u64,
    /// Longest time between two openings, and between the first send and any other. Microseconds.
    apart_us: u64,
}

fn step(net: &mut Net, flows: &mut [Flow], until: u64) -> bool {
    let on = net.step(until);
    for flow in flows {
        flow.on_event(net);
        flow.drain(net);
    }
    on
}

impl Crowd {
    /// Runs the ranks. Returns the fraction of the floor that they reach.
    fn run(&self) -> f64 {
        let mut net = sites(&self.path, FLOWS);
        let mut rng = Rng::new(self.path.seed, 31);
        let mut flows: Vec<Flow> = Vec::new();
        for rank in 0..FLOWS {
            let mut flow = Flow::new(&mut net, 2 * rank, 2 * rank + 1, BYTES / FLOWS as u64, false);
            let now = net.now;
            if self.train > 0 {
                net.ports[2 * rank].with(now, flow.stream(), |stream| stream.measure(self.train));
            }
            flow.greet(&mut net);
            flows.push(flow);
            let next = net.now + rng.up_to(self.apart_us);
            while step(&mut net, &mut flows, next) {}
        }
        let start = net.now + self.before_us;
        while step(&mut net, &mut flows, start) {}
        let begin: [u64; FLOWS] =
            std::array::from_fn(|rank| start + if rank == 0 { 0 } else { rng.up_to(self.apart_us) });
        while !flows.iter().all(|flow| flow.is_settled(&net)) {
            for (flow, begin) in flows.iter_mut().zip(begin) {
                if net.now >= begin {
                    flow.feed(&mut net);
                }
            }
            let next = begin.into_iter().filter(|at| *at > net.now).min();
            let on = step(&mut net, &mut flows, next.unwrap_or(start + 60_000_000));
            assert!(on || next.is_some(), "not done in a minute");
        }
        self.path.floor_s(BYTES) / ((net.now - start) as f64 / 1e6)
    }
}

#[test]
fn ranks_that_begin_at_once_fill_the_path_whatever_chance_has_them_do() {
    let stalls = StallSpec { every_us: 20_000, least_us: 1_000, most_us: 5_000 };
    // RTT, loss, train, open before sending, spread, whether hosts stall; the least fraction of the floor for any seed.
    let cases = [
        (24_000, 0.0, 0, 58_000, 30_000, false, 0.96),
        (24_000, 0.0, 0, 30_000, 30_000, true, 0.92),
        (24_000, 0.0, 0, 0, 30_000, false, 0.95),
        (24_000, 0.0, 0, 58_000, 3_000, true, 0.93),
        (24_000, 0.0, 1 << 20, 30_000, 30_000, false, 0.95),
        (24_000, 0.0, 1 << 20, 30_000, 30_000, true, 0.92),
        (24_000, 0.01, 0, 58_000, 30_000, false, 0.92),
        (100_000, 0.0, 0, 210_000, 30_000, false, 0.94),
        (100_000, 0.0, 0, 210_000, 30_000, true, 0.85),
    ];
    for (rtt_us, loss, train, before_us, apart_us, stall, least) in cases {
        let one = |seed| {
            let host_stalls = if stall { stalls } else { StallSpec::default() };
            let path =
                PathSpec { rtt_us, loss: Loss::Independent(loss), host_stalls, seed, ..Default::default() };
            (Crowd { path, train, before_us, apart_us }.run(), seed)
        };
        let all: Vec<(f64, u64)> = seeds(40).map(one).collect();
        let worst = all.iter().copied().fold((1.0, 0), |a, b| if b.0 < a.0 { b } else { a });
        let mean = all.iter().map(|one| one.0).sum::<f64>() / all.len() as f64;
        let what = format!(
            "{rtt_us} us, loss {loss}, train {train}, open {before_us} us, {apart_us} us apart, stalls {stall}: \
             mean {mean:.3}, least {:.3} at seed {}",
            worst.0, worst.1
        );
        println!("{what}");
        assert!(worst.0 >= least, "{what}");
    }
}

/// The ledger does not plan for flows over a short path, and the path's queue is short.
#[test]
fn ranks_fill_a_short_path_whose_queue_is_short() {
    let busy = StallSpec { every_us: 1_000, least_us: 20, most_us: 300 };
    for (rtt_us, loss, host_stalls, least) in [
        (100, 0.0, StallSpec::default(), 0.9),
        (100, 0.0, busy, 0.9),
        (100, 0.01, StallSpec::default(), 0.9),
        (100, 0.01, busy, 0.9),
        (2_000, 0.0, StallSpec::default(), 0.9),
        (2_000, 0.0, busy, 0.9),
        (2_000, 0.01, busy, 0.9),
        (5_000, 0.0, StallSpec::default(), 0.9),
        (10_000, 0.0, busy, 0.9),
    ] {
        let one = |seed| {
            let path = PathSpec {
                rtt_us,
                queue_us: rtt_us.max(1_157),
                loss: Loss::Independent(loss),
                host_stalls,
                seed,
                ..Default::default()
            };
            Crowd { path, train: 0, before_us: 10_000, apart_us: 3_000 }.run()
        };
        let all: Vec<f64> = seeds(10).map(one).collect();
        let worst = all.iter().copied().fold(1.0, f64::min);
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let what =
            format!("{rtt_us} us, loss {loss}, stalls {host_stalls:?}: mean {mean:.3}, least {worst:.3}");
        println!("{what}");
        assert!(worst >= least, "{what}");
    }
}
