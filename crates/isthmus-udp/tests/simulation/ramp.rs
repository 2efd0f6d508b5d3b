//! Start-up on paths too fast for the first flight to build a queue, which would show the rate.

use isthmus_lab::model::Loss;

use crate::net::{Net, PathSpec, transfer, transfer_measured};

/// Sends `bytes` from a cold start. Returns the fraction of the floor, and the number of lost packets.
fn start(path: &PathSpec, bytes: u64) -> (f64, u64) {
    let mut net = Net::pair(path);
    let seconds = transfer(&mut net, bytes, false, 60.0).expect("it ends in time");
    let (_, id) = net.opened[0];
    let lost = net.ports[0].stream(id).map_or(0, |stream| stream.status().counters.packets_lost);
    (path.floor_s(bytes) / seconds, lost)
}

/// Bursts show the path's rate in a few round trips, and overfill at most a short queue.
#[test]
fn a_fast_path_is_filled_in_a_few_round_trips_and_no_queue_overflows() {
    for (rate, rtt_us, least) in
        [(5, 24_000, 0.93), (10, 24_000, 0.9), (10, 100_000, 0.6), (25, 24_000, 0.7), (40, 100_000, 0.2)]
    {
        for loss in [0.0, 0.0001, 0.01] {
            let path = PathSpec {
                rate_bps: rate * 1_000_000_000,
                rtt_us,
                queue_us: rtt_us / 4,
                loss: Loss::Independent(loss),
                ..Default::default()
            };
            let (fraction, lost) = start(&path, 500_000_000);
            println!(
                "{rate} Gb/s, {rtt_us} us, loss {loss}: {fraction:.3} of the floor, {lost} packets lost"
            );
            assert!(fraction >= least, "{rate} Gb/s, {rtt_us} us, loss {loss}: {fraction:.3} of the floor");
            let by_chance = (60_000.0 * loss) as u64;
            assert!(
                lost <= 100 + 2 * by_chance,
                "{rate} Gb/s, {rtt_us} us, loss {loss}: {lost} packets lost"
            );
        }
    }
}

/// Data behind a lost packet wait for it. There is room for them.
#[test]
fn single_losses_do_not_keep_a_fast_long_path_from_being_filled() {
    let fraction = |loss| {
        let (rate_bps, rtt_us, loss) = (10_000_000_000, 100_000, Loss::Independent(loss));
        start(&PathSpec { rate_bps, rtt_us, queue_us: rtt_us, loss, ..Default::default() }, 1_500_000_000).0
    };
    let (clean, lossy) = (fraction(0.0), fraction(0.0001));
    println!("{lossy:.3} of the floor, {clean:.3} without loss");
    assert!(lossy >= 0.97 * clean, "{lossy} of the floor, {clean} without loss");
}

/// The fraction of the floor for `bytes` that are sent when the peer has answered. Meanwhile the path was measured with
/// `train` bytes.
fn start_measured(path: &PathSpec, train: u32, bytes: u64) -> f64 {
    let mut net = Net::pair(path);
    let seconds = transfer_measured(&mut net, train, path.rtt_us + 2_000, bytes, 60.0);
    path.floor_s(bytes) / seconds.expect("it ends in time")
}

/// Bulk data wait for an answer. Meanwhile the sender measures the path.
#[test]
fn a_path_is_measured_while_the_stream_opens() {
    for (mbps, rtt_us, bytes, least) in [
        (100, 24_000, 20_000_000, 0.95),
        (1_000, 24_000, 50_000_000, 0.985),
        (1_000, 100_000, 50_000_000, 0.97),
        (1_000, 366_000, 100_000_000, 0.9),
        (5_000, 24_000, 250_000_000, 0.95),
        (10_000, 24_000, 500_000_000, 0.95),
    ] {
        for loss in [0.0, 0.01] {
            let path = PathSpec {
                rate_bps: mbps * 1_000_000,
                rtt_us,
                queue_us: rtt_us / 4,
                loss: Loss::Independent(loss),
                ..Default::default()
            };
            let (cold, measured) = (start_measured(&path, 0, bytes), start_measured(&path, 1 << 20, bytes));
            let what =
                format!("{mbps} Mb/s, {rtt_us} us, loss {loss}: {measured:.3} of the floor, else {cold:.3}");
            println!("{what}");
            assert!(measured >= least && measured > cold - 0.02, "{what}");
        }
    }
}
