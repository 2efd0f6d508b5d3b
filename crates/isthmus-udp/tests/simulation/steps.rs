//! Ranks of a host that exchange messages step by step, as bulk-synchronous programs do. All send at once, and go on
//! when everything has arrived.
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation steps` writes the table anew.

use std::fmt::Write;

use isthmus_lab::model::Loss;

use crate::floors::Better;
use crate::golden::compare;
use crate::net::{Flow, Net, PathSpec, config};
use crate::together::sites;

const TABLE: &str = "tests/simulation/steps.txt";
/// Steps of a run. The first is reported separately.
const STEPS: u32 = 8;

/// What steps reach of their limit (half a round trip and the time for all bytes): the first, and all later ones.
fn steps(path: &PathSpec, mut net: Net, ranks: usize, bytes: u64) -> (f64, f64) {
    let mut flows: Vec<Flow> =
        (0..ranks).map(|rank| Flow::new(&mut net, 2 * rank, 2 * rank + 1, 1 << 40, false)).collect();
    for flow in &mut flows {
        flow.greet(&mut net);
        flow.given = 20;
    }
    let open = net.now + 2 * path.rtt_us + 10_000;
    let turn = |net: &mut Net, flows: &mut [Flow], until| {
        let on = net.step(until);
        for flow in flows {
            flow.on_event(net);
            flow.drain(net);
        }
        on
    };
    while turn(&mut net, &mut flows, open) {}
    let limit_s = path.floor_s(bytes * ranks as u64) - path.rtt_us as f64 / 2e6;
    let mut first = 0.0;
    let begin = net.now;
    for step in 0..STEPS {
        flows.iter_mut().for_each(|flow| flow.given += bytes);
        let (start, end) = (net.now, net.now + 60_000_000);
        while flows.iter().any(|flow| flow.read < flow.given) {
            flows.iter_mut().for_each(|flow| flow.feed(&mut net));
            assert!(turn(&mut net, &mut flows, end), "a step of {ranks} times {bytes} bytes takes a minute");
        }
        if step == 0 {
            first = limit_s / ((net.now - start) as f64 / 1e6);
        }
    }
    let all_s = (net.now - begin) as f64 / 1e6;
    (first, (f64::from(STEPS) * limit_s - limit_s) / (all_s - limit_s / first))
}

/// A path. `least`: what its later steps must reach with 4 ranks, with 16, and in the mean of the row.
struct Row {
    rtt_us: u64,
    queue_us: u64,
    loss: f64,
    least: [f64; 3],
}

const ROWS: [Row; 4] = [
    Row { rtt_us: 24_000, queue_us: 20_000, loss: 0.0, least: [0.80, 0.50, 0.80] },
    Row { rtt_us: 100_000, queue_us: 20_000, loss: 0.0, least: [0.90, 0.90, 0.95] },
    Row { rtt_us: 24_000, queue_us: 2_500, loss: 0.0, least: [0.55, 0.40, 0.60] },
    Row { rtt_us: 24_000, queue_us: 20_000, loss: 0.01, least: [0.80, 0.40, 0.65] },
];

#[test]
fn ranks_that_go_step_by_step_wait_for_the_wire_and_not_for_each_other() {
    let mut text = format!(
        "What steps in which all ranks of a host send one message at once reach of their limit, half a round trip\n\
         and the bytes of all: the first step from a cold start, and the {} after it. 1 Gb/s, MTU 9000. In brackets\n\
         the same of ranks that know nothing of each other.\n\n{:<40}",
        STEPS - 1,
        "message KiB"
    );
    const SIZES: [u64; 6] = [64, 128, 256, 512, 1 << 10, 4 << 10];
    SIZES.iter().for_each(|size| {
        let _ = write!(text, "{size:>24}");
    });
    text.push('\n');
    let mut short = Vec::new();
    for Row { rtt_us, queue_us, loss, least } in &ROWS {
        let path = PathSpec {
            rtt_us: *rtt_us,
            queue_us: *queue_us,
            loss: Loss::Independent(*loss),
            ..Default::default()
        };
        for (ranks, least_of_cell) in [(4, least[0]), (16, least[1])] {
            let queue = *queue_us as f64 / 1e3;
            let name = format!("{} ms, queue {queue} ms, {} % lost, {ranks}", rtt_us / 1_000, loss * 100.0);
            let _ = write!(text, "{name:<40}");
            let mut sum = 0.0;
            for size in SIZES {
                let alone = Net::new(&path, (0..2 * ranks).map(|_| config(&path)).collect());
                let (first, later) = steps(&path, sites(&path, ranks), ranks, size << 10);
                let (first_alone, later_alone) = steps(&path, alone, ranks, size << 10);
                let cell = format!("{first:.2} {later:.2} ({first_alone:.2} {later_alone:.2})");
                let _ = write!(text, "{cell:>24}");
                sum += later;
                if later < least_of_cell {
                    short.push(format!("{name}, {size} KiB: {later:.3}"));
                }
            }
            let mean = sum / SIZES.len() as f64;
            if mean < least[2] {
                short.push(format!("{name}: mean {mean:.3}"));
            }
            text.push('\n');
        }
    }
    println!("{text}");
    assert!(short.is_empty(), "below what is asked for: {short:#?}");
    compare(TABLE, &text, &[Better::More(0.02), Better::More(0.02), Better::Either, Better::Either]);
}
