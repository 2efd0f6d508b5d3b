//! A way back that carries a small part of what the way there does: acknowledgements must fit into it.

use isthmus_lab::catalogue::Catalogue;

use crate::wild::Row;

/// Rates of the way there. Mb/s.
const RATES: [f64; 3] = [20.0, 50.0, 100.0];
/// Round trip in milliseconds, MTU, part of the rate that the way back has, and the fraction of each link's capacity
/// that must be delivered in 6 s from a cold start.
const FLOORS: [(f64, u32, f64, [f64; 3]); 18] = [
    (3.0, 1500, 20.0, [0.94, 0.93, 0.96]),
    (3.0, 1500, 50.0, [0.86, 0.90, 0.96]),
    (3.0, 1500, 100.0, [0.37, 0.89, 0.91]),
    (3.0, 9000, 20.0, [0.92, 0.95, 0.97]),
    (3.0, 9000, 50.0, [0.69, 0.92, 0.95]),
    (3.0, 9000, 100.0, [0.63, 0.85, 0.89]),
    (24.0, 1500, 20.0, [0.94, 0.95, 0.95]),
    (24.0, 1500, 50.0, [0.90, 0.95, 0.95]),
    (24.0, 1500, 100.0, [0.67, 0.90, 0.94]),
    (24.0, 9000, 20.0, [0.93, 0.96, 0.97]),
    (24.0, 9000, 50.0, [0.84, 0.93, 0.96]),
    (24.0, 9000, 100.0, [0.60, 0.87, 0.93]),
    (100.0, 1500, 20.0, [0.93, 0.95, 0.96]),
    (100.0, 1500, 50.0, [0.79, 0.89, 0.96]),
    (100.0, 1500, 100.0, [0.59, 0.79, 0.90]),
    (100.0, 9000, 20.0, [0.93, 0.96, 0.97]),
    (100.0, 9000, 50.0, [0.81, 0.93, 0.95]),
    (100.0, 9000, 100.0, [0.39, 0.80, 0.90]),
];

fn row(mbit: f64, part: f64, rtt_ms: f64, mtu: u32) -> Row {
    let (queue, kbit) = ((mbit * rtt_ms * 125.0).max(20e3), mbit * 1e3 / part);
    let text = format!(
        "[[link]]\nname = \"slow back\"\nrate = \"{mbit}Mbit\"\nrtt = \"{rtt_ms}ms\"\nmtu = {mtu}\n\
         queue = {queue:.0}\nbackward = {{ rate = \"{kbit:.0}kbit\" }}\n"
    );
    Row::of(Catalogue::parse("slow back", &text).expect("a link").links.remove(0))
}

#[test]
fn acknowledgements_fit_into_a_slow_way_back() {
    let mut low = Vec::new();
    for (rtt_ms, mtu, part, floors) in FLOORS {
        let shares = RATES.map(|mbit| row(mbit, part, rtt_ms, mtu).measure("rate", 1).0);
        let line = format!("{rtt_ms} ms, MTU {mtu}, back 1/{part}: {shares:.3?} at {RATES:?} Mb/s");
        println!("{line}");
        if shares.iter().zip(floors).any(|(share, floor)| *share < floor) {
            low.push(line);
        }
    }
    assert!(low.is_empty(), "{low:#?}");
}

/// Eight packets of a probe had taken all of the window. The queue held two, and nothing told of the loss of the others.
#[test]
fn a_probe_leaves_room_in_the_window() {
    for part in [40.0, 45.0] {
        let (share, _) = row(50.0, part, 3.0, 9000).measure("rate", 1);
        assert!(share > 0.9, "back 1/{part}: {share:.3}");
    }
}
