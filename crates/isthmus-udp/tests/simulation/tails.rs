//! Ends of long transfers.

use isthmus_lab::model::Loss;

use crate::net::{Flow, Net, PathSpec};

#[test]
fn timeline() {
    let verbose = std::env::var_os("V").is_some();
    for (rtt_us, loss) in [(24_000, 0.1), (366_000, 0.01), (366_000, 0.05), (366_000, 0.1), (100_000, 0.05), (100_000, 0.1)] {
        for seed in 1..4 {
            let path = PathSpec { rtt_us, loss: Loss::Independent(loss), seed, ..Default::default() };
            let mut net = Net::pair(&path);
            let bytes = 500_000_000;
            let start = net.now;
            let mut flow = Flow::new(&mut net, 0, 1, bytes, false);
            let (mut drained, mut read, mut half) = (0, 0, 0);
            let limit = net.now + 60_000_000;
            let mut next = start;
            loop {
                flow.feed(&mut net);
                assert!(net.step(limit));
                flow.on_event(&mut net);
                flow.drain(&mut net);
                let status = net.ports[0].stream(flow.stream()).expect("lives").status();
                if net.now >= next && seed == 1 && verbose {
                    println!("  {:.2} RTT read {:.1} MB pace {:.1} MB/s inflight {:.1} loss {:.3} {} again {:.1} copied {:.1}",
                        (net.now - start) as f64 / rtt_us as f64, flow.read as f64 / 1e6, status.pace as f64 / 1e6,
                        status.in_flight as f64/1e6, status.loss, status.phase, status.counters.bytes_again as f64/1e6, status.counters.bytes_copied as f64/1e6);
                    next += rtt_us;
                }
                if half == 0 && flow.read > bytes / 2 { half = net.now; }
                if drained == 0 && status.counters.bytes_fresh == bytes { drained = net.now; }
                if read == 0 && flow.read == bytes { read = net.now; }
                if flow.is_settled(&net) { break; }
            }
            let rtts = |from: u64, to: u64| (to - from) as f64 / rtt_us as f64;
            println!("rtt {rtt_us} loss {loss} seed {seed}: drained {:.2} read +{:.2} settled +{:.2}; floor {:.2} took {:.2} RTT; fraction {:.3}",
                rtts(start, drained), rtts(drained, read), rtts(drained, net.now), path.floor_s(bytes) * 1e6 / rtt_us as f64, rtts(start, net.now), path.floor_s(bytes) * 1e6 / (net.now - start) as f64);
        }
    }
}
