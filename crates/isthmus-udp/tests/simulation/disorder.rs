//! Paths that lose packets in bursts, reorder them, or duplicate them.

use isthmus_lab::model::Loss;

use crate::net::{Net, PathSpec, median, transfer_after};

const BYTES: u64 = 200_000_000;

/// Bytes/s of a transfer on an open stream, the median of three seeds.
fn goodput(path: &PathSpec) -> f64 {
    median([1, 2, 3].map(|seed| {
        let path = PathSpec { seed, ..path.clone() };
        let mut net = Net::pair(&path);
        let took = transfer_after(&mut net, 2 * path.rtt_us + 10_000, BYTES, 60.0);
        BYTES as f64 / took.unwrap_or_else(|carried| panic!("{path:?}: {carried} bytes in a minute"))
    }))
}

const RTTS_US: [u64; 4] = [1_000, 24_000, 100_000, 366_000];

fn costs_at_most_a_tenth(
    what: &str,
    rtts_us: &[u64],
    spoil: impl Fn(&mut PathSpec),
    reference: impl Fn(&mut PathSpec),
) {
    for &rtt_us in rtts_us {
        let path = |change: &dyn Fn(&mut PathSpec)| {
            let mut path = PathSpec { rtt_us, ..Default::default() };
            change(&mut path);
            path
        };
        let (spoiled, clean) = (goodput(&path(&spoil)), goodput(&path(&reference)));
        println!("{what}, {rtt_us} us: {:.3} of {:.0} MB/s", spoiled / clean, clean / 1e6);
        assert!(spoiled >= 0.9 * clean, "{what}, {rtt_us} us: {spoiled} bytes/s, {clean} without");
    }
}

/// Losses in bursts of `packets` on average. Within a burst, every packet is lost.
pub(crate) fn bursts(loss: f64, packets: f64) -> Loss {
    let to_good = 1.0 / packets;
    let to_bad = to_good * loss / (1.0 - loss);
    Loss::GilbertElliott { to_bad, to_good, loss_good: 0.0, loss_bad: 1.0 }
}

#[test]
fn losses_in_bursts_cost_little_more_than_as_many_single_ones() {
    // The table of percentiles (`seeds`) shows how much this varies with seeds.
    for (loss, packets, rtts_us) in
        [(0.01, 4.0, &RTTS_US[..]), (0.01, 10.0, &RTTS_US[..]), (0.05, 4.0, &RTTS_US[..3])]
    {
        costs_at_most_a_tenth(
            &format!("{} % in bursts of {packets}", loss * 100.0),
            rtts_us,
            |path| path.loss = bursts(loss, packets),
            |path| path.loss = Loss::Independent(loss),
        );
    }
}

#[test]
fn a_tenth_out_of_order_costs_little() {
    costs_at_most_a_tenth("reordering", &RTTS_US, |path| path.reorder = 0.1, |_| {});
}

#[test]
fn a_hundredth_twice_costs_little() {
    costs_at_most_a_tenth("duplication", &RTTS_US, |path| path.duplicate = 0.01, |_| {});
}
