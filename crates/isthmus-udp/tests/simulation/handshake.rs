//! How streams open and close.

use isthmus_lab::model::Loss;
use isthmus_udp::{Event, Failure, PortConfig};

use crate::net::{Net, PathSpec, address, config, seeds, transfer};

fn path() -> PathSpec {
    PathSpec { rtt_us: 100_000, ..Default::default() }
}

fn strict(path: &PathSpec) -> PortConfig {
    PortConfig { strangers_max: 0, ..config(path) }
}

/// Time until `bytes`, sent with the opening, are readable at the other side. Microseconds.
fn first_bytes(net: &mut Net, bytes: &[u8]) -> u64 {
    let (start, limit) = (net.now, net.now + 10_000_000);
    let id = net.open(0, 1);
    let now = net.now;
    net.ports[0].with(now, id, |stream| stream.write(bytes));
    let mut accepted = None;
    loop {
        assert!(net.step(limit), "nothing came");
        while let Some(event) = net.event(1) {
            if let Event::Accepted(id, _) = event {
                accepted = Some(id);
            }
        }
        let stream = accepted.and_then(|id| net.ports[1].stream(id));
        if stream.is_some_and(|stream| stream.readable() == bytes.len() as u64) {
            return net.now - start;
        }
    }
}

#[test]
fn data_goes_with_the_first_flight() {
    let mut net = Net::pair(&path());
    let took = first_bytes(&mut net, &[7; 3_000]);
    assert!(took < 51_000, "{took} us for half a round trip of 50,000");
}

/// A lane is opened ahead of its first message, while its carrier is still to be chosen.
#[test]
fn who_asks_for_a_stream_is_answered_within_a_round_trip_though_a_tenth_is_lost() {
    for rtt_us in [24_000, 100_000] {
        let mut took: Vec<u64> = seeds(1_000)
            .map(|seed| {
                let path = PathSpec { rtt_us, loss: Loss::Independent(0.1), seed, ..Default::default() };
                let mut net = Net::pair(&path);
                let (start, limit, id) = (net.now, net.now + 10_000_000, net.open(0, 1));
                while !net.ports[0].stream(id).is_some_and(|stream| stream.is_open()) {
                    assert!(net.step(limit), "no answer");
                }
                net.now - start
            })
            .collect();
        took.sort_unstable();
        let p99 = took[took.len() * 99 / 100] as f64 / rtt_us as f64;
        println!("{rtt_us} us: p99 {p99:.2} RTT");
        assert!(p99 <= 1.1, "{rtt_us} us: {p99} RTT");
    }
}

#[test]
fn strangers_beyond_their_number_are_asked_to_prove_their_address() {
    let mut net = Net::new(&path(), vec![config(&path()), strict(&path())]);
    let took = first_bytes(&mut net, &[7; 3_000]);
    assert!((150_000..152_000).contains(&took), "{took} us for one and a half round trips");
}

#[test]
fn who_has_proved_its_address_is_known_later() {
    let mut net = Net::new(&path(), vec![config(&path()), strict(&path())]);
    transfer(&mut net, 1_000, true, 10.0).expect("it ends");
    let limit = net.now + 20_000_000;
    // The application closes the stream, but what it learned about the path stays.
    close_all(&mut net, limit);
    let took = first_bytes(&mut net, &[7; 100]);
    assert!(took < 51_000, "{took} us");
}

fn close_all(net: &mut Net, limit: u64) {
    let ids: Vec<_> = net.opened.clone();
    for (port, id) in ids {
        let now = net.now;
        net.ports[port].release(now, id);
    }
    while net.step(limit) && !net.ports[0].is_empty() {}
    assert!(net.ports[0].is_empty());
}

#[test]
fn a_second_transfer_starts_from_what_the_first_learned() {
    let path = PathSpec { rtt_us: 366_000, ..Default::default() };
    let mut net = Net::pair(&path);
    let cold = transfer(&mut net, 100_000_000, false, 60.0).expect("it ends");
    let limit = net.now + 20_000_000;
    close_all(&mut net, limit);
    let warm = transfer(&mut net, 100_000_000, false, 60.0).expect("it ends");
    assert!(warm < cold - 0.3, "cold {cold} s, warm {warm} s");
    assert!(warm < 1.1 * path.floor_s(100_000_000), "{warm} s");
}

/// Others, such as TCP, may have measured the path's rate, rightly or wrongly.
#[test]
fn a_transfer_starts_from_what_others_have_found_and_finds_more() {
    for (supposed, bytes) in [(115_000_000, 1_000_000), (40_000_000, 20_000_000)] {
        let path = PathSpec { rtt_us: 100, queue_us: 1_200, ..Default::default() };
        let mut net = Net::pair(&path);
        let now = net.now;
        net.ports[0].suppose(now, address(1).ip(), supposed, 100);
        let took = transfer(&mut net, bytes, false, 10.0).expect("it ends");
        let counters = net.ports[0].stream(net.opened[0].1).expect("it lives").status().counters;
        println!(
            "{supposed} B/s: {:.3} of the floor, {} lost",
            path.floor_s(bytes) / took,
            counters.packets_lost
        );
        assert!(took < 1.15 * path.floor_s(bytes), "{supposed} B/s: {took} s");
        assert_eq!(counters.packets_lost, 0, "{supposed} B/s");
    }
}

/// The few packets of a short stream do not show the path's loss. Those of a long one do.
#[test]
fn a_later_stream_knows_the_losses_of_the_path_only_if_enough_packets_have_shown_them() {
    for (bytes, copied) in [(8, 3 * 8), (10_000_000, 0)] {
        let mut net = Net::pair(&PathSpec::default());
        transfer(&mut net, bytes, false, 10.0).expect("it ends");
        let limit = net.now + 20_000_000;
        close_all(&mut net, limit);
        let (now, id) = (net.now, net.open(0, 1));
        net.ports[0].with(now, id, |stream| stream.write(b"12345678"));
        while net.step(now + 1_000_000) {}
        let counters = net.ports[0].stream(id).expect("it lives").status().counters;
        assert_eq!(counters.bytes_copied, copied, "after {bytes} bytes");
    }
}

#[test]
fn streams_end_without_traces_and_a_late_copy_of_the_opening_does_not_revive_them() {
    let mut net = Net::pair(&path());
    let (now, id) = (net.now, net.open(0, 1));
    net.ports[0].with(now, id, |stream| stream.write(b"hello"));
    let mut opening = Vec::new();
    let transmit = net.ports[0].poll_transmit(now, 1, 2_000, &mut opening).expect("it opens");
    assert_eq!(transmit.to, address(1));
    net.put(0, address(1), &opening);
    net.ports[0].release(now, id);
    let limit = net.now + 30_000_000;
    while net.step(limit) && !(net.ports[0].is_empty() && net.ports[1].is_empty() && net.now > 5_000_000) {
        while let Some(event) = net.event(1) {
            if let Event::Accepted(id, _) = event {
                let now = net.now;
                net.ports[1].release(now, id);
            }
        }
    }
    assert!(net.ports[0].is_empty() && net.ports[1].is_empty());
    net.put(0, address(1), &opening);
    net.step(limit + 1_000_000);
    assert!(net.ports[1].is_empty(), "a ghost");
}

#[test]
fn what_is_left_to_say_to_who_has_ended_its_side_is_not_said_for_long() {
    let path = PathSpec { rtt_us: 24_000, ..Default::default() };
    let mut net = Net::pair(&path);
    let id = net.open(0, 1);
    let now = net.now;
    net.ports[0].with(now, id, |stream| stream.write(b"farewell"));
    net.ports[0].release(now, id);
    let limit = net.now + 200_000;
    while net.step(limit) {}
    let Some(Event::Accepted(id, _)) = net.event(1) else { panic!("nobody called") };
    // The process ends, and its host does not report that.
    net.ports[0] = isthmus_udp::Port::new(PortConfig { sessions_only: true, ..config(&path) }, [99; 16]);
    let (now, before) = (net.now, net.sent[1]);
    net.ports[1].with(now, id, |stream| stream.write(b"and you"));
    net.ports[1].release(now, id);
    while net.step(now + 1_200_000) {}
    assert!(net.ports[1].is_empty(), "it is still being told");
    assert!(net.sent[1] - before < 200, "{} packets into the void", net.sent[1] - before);
}

#[test]
fn a_peer_that_has_forgotten_the_stream_resets_it_and_one_that_is_gone_is_noticed() {
    let mut net = Net::pair(&path());
    let id = net.open(0, 1);
    let limit = net.now + 1_000_000;
    while net.step(limit) {}
    assert!(net.ports[0].stream(id).is_some_and(|stream| stream.is_open()));
    // A new process listens at the same address.
    net.ports[1] = isthmus_udp::Port::new(config(&path()), [99; 16]);
    let now = net.now;
    net.ports[0].with(now, id, |stream| stream.write(b"are you there"));
    while net.step(limit + 1_000_000) {}
    assert_eq!(net.ports[0].stream(id).and_then(|stream| stream.failure()), Some(Failure::Reset));

    let mut net = Net::pair(&PathSpec { loss: Loss::Independent(1.0), ..path() });
    let id = net.open(0, 1);
    let limit = net.now + 21_000_000;
    while net.step(limit) {}
    assert_eq!(net.ports[0].stream(id).and_then(|stream| stream.failure()), Some(Failure::Silent));
    assert!(net.sent[0] < 200, "{} packets into the void", net.sent[0]);
}

#[test]
fn an_idle_stream_lives_and_costs_little() {
    let mut net = Net::pair(&path());
    let id = net.open(0, 1);
    let limit = net.now + 100_000_000;
    while net.step(limit) {}
    assert_eq!(net.ports[0].stream(id).and_then(|stream| stream.failure()), None);
    assert!(net.sent[0] + net.sent[1] < 100, "{:?}", net.sent);
}

#[test]
fn a_handshake_survives_loss() {
    for seed in seeds(200) {
        let path = PathSpec { loss: Loss::Independent(0.3), seed, ..path() };
        let mut net = Net::new(&path, vec![config(&path), strict(&path)]);
        transfer(&mut net, 10, true, 30.0).expect("it ends");
    }
}
