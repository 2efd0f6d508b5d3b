//! The ends of long transfers over paths that lose packets.

use isthmus_lab::model::Loss;

use crate::net::{Flow, Net, PathSpec, config, transfer_after};

const RTT_US: u64 = 366_000;

struct End {
    /// Time from sending the last fresh byte until the sender knew that everything had arrived. Round trips.
    took: f64,
    /// Bytes sent as copies.
    copied: u64,
}

fn end_of_transfer(loss: f64, seed: u64) -> End {
    let path = PathSpec { rtt_us: RTT_US, loss: Loss::Independent(loss), seed, ..Default::default() };
    let mut net = Net::pair(&path);
    let bytes = 150_000_000;
    let mut flow = Flow::new(&mut net, 0, 1, bytes, false);
    let limit = net.now + 60_000_000;
    let mut drained = None;
    while !flow.is_settled(&net) {
        flow.feed(&mut net);
        assert!(net.step(limit), "loss {loss}, seed {seed}");
        flow.on_event(&mut net);
        flow.drain(&mut net);
        let counters = net.ports[0].stream(flow.stream()).expect("it lives").status().counters;
        if counters.bytes_fresh == bytes {
            drained.get_or_insert(net.now);
        }
    }
    let took = (net.now - drained.expect("all was sent")) as f64 / RTT_US as f64;
    let status = net.ports[0].stream(flow.stream()).expect("it lives").status();
    End { took, copied: status.counters.bytes_copied }
}

/// Without losses this takes one round trip. If each loss were repaired after its detection, it would take two.
#[test]
fn losses_of_the_last_flight_are_repaired_before_they_are_known_of() {
    for (loss, most) in [(0.001, 1.6), (0.01, 1.75), (0.05, 1.9)] {
        let mut ends: Vec<End> = (1..6).map(|seed| end_of_transfer(loss, seed)).collect();
        ends.sort_by(|a, b| a.took.total_cmp(&b.took));
        let flight = PathSpec { rtt_us: RTT_US, ..Default::default() }.goodput() * RTT_US as f64 / 1e6;
        let copied = ends.iter().map(|end| end.copied).max().unwrap_or(0) as f64 / flight;
        println!("loss {loss}: {:.2} RTT, at most {copied:.2} flights copied", ends[2].took);
        assert!(ends[2].took <= most, "loss {loss}: {} RTT", ends[2].took);
        assert!(copied <= 1.0, "loss {loss}: {copied} flights");
    }
}

#[test]
fn where_nothing_is_lost_no_flight_is_repeated() {
    let end = end_of_transfer(0.0, 1);
    assert_eq!(end.copied, 0);
    assert!(end.took < 1.05, "{} RTT", end.took);
}

/// After a loss, all later data wait for one more round trip. With room for a flight and a half, the sender pauses for
/// lack of room, not because it is at its end.
#[test]
fn who_can_hold_no_more_has_not_come_to_an_end() {
    let path = PathSpec { rtt_us: 100_000, loss: Loss::Independent(0.001), ..Default::default() };
    let flight = path.goodput() * path.rtt_us as f64 / 1e6;
    let mut settings = config(&path);
    settings.stream.send_max = (1.5 * flight) as u64;
    let mut net = Net::new(&path, vec![settings.clone(), settings]);
    transfer_after(&mut net, 210_000, 300_000_000, 60.0).expect("it ends in time");
    let (_, id) = net.opened[0];
    let copied = net.ports[0].stream(id).map_or(0, |stream| stream.status().counters.bytes_copied);
    println!("{:.3} flights copied", copied as f64 / flight);
    assert!(copied as f64 <= 0.1 * flight, "{:.2} flights copied", copied as f64 / flight);
}
