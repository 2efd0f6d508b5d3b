//! Streams to an address that only some know. Others reach nothing with it, and those who know it cannot touch the
//! streams of others.

use isthmus_lab::rng::Rng;
use isthmus_udp::wire::{Header, Packet};
use isthmus_udp::{Dropped, Event, Initial, PortConfig, StreamId};

use crate::delivery::any_path;
use crate::net::{By, Net, PathSpec, address, config, initial, seeds, transfer};
use crate::sealed::{answers, first_packet, plain_opening};

fn known_config(path: &PathSpec) -> PortConfig {
    PortConfig { initial: Some(initial()), ..config(path) }
}

pub(crate) fn known_pair(path: &PathSpec) -> Net {
    let mut net = Net::new(path, vec![known_config(path), known_config(path)]);
    net.sealed = Some(By::Address);
    net
}

#[test]
fn bytes_arrive_exactly_whatever_is_altered_cut_short_and_sent_again_on_the_way() {
    let mut forged = 0;
    for seed in seeds(150) {
        let path = any_path(seed);
        let mut net = known_pair(&path);
        net.mischief = Some(Rng::new(seed, 14));
        let bytes = 1 + Rng::new(seed, 15).up_to(400_000);
        println!("seed {seed}: {bytes} bytes, {path:?}");
        transfer(&mut net, bytes, true, 600.0).expect("it ends");
        forged += net.ports.iter().map(|port| port.dropped().forged).sum::<u64>();
    }
    assert!(forged > 0);
}

#[test]
fn keys_cost_no_round_trip() {
    for seed in seeds(30) {
        let path = PathSpec { seed, ..PathSpec::default() };
        let plain = transfer(&mut Net::pair(&path), 100_000, false, 60.0).expect("it ends");
        let sealed = transfer(&mut known_pair(&path), 100_000, false, 60.0).expect("it ends");
        assert!(sealed < 1.01 * plain, "seed {seed}: plain {plain} s, sealed {sealed} s");
    }
}

/// The first packet of a stream that port 0 opens with what it knows about port 1.
fn opening(net: &mut Net, known: &Initial) -> Vec<u8> {
    let now = net.now;
    net.ports[0].open_known(now, address(1), known);
    first_packet(&mut net.ports[0], now)
}

#[test]
fn who_does_not_know_the_address_gets_no_answer_and_leaves_no_trace() {
    let mut net = known_pair(&PathSpec::default());
    let now = net.now;
    let plain = plain_opening();
    let guessed = opening(&mut net, &Initial::new(b"a guess"));
    let mut altered = opening(&mut net, &initial());
    altered[40] ^= 1;
    let header = Header::Data { target: 9, keyed: true };
    let mut data = Vec::new();
    Packet::Numbered { header, number: 0, ack_now: true, checked: false, body: 0 }.encode(&mut data);
    for mut packet in [plain, guessed, altered, data] {
        net.ports[1].on_packet(now, now, address(0), &mut packet);
        assert_eq!((net.ports[1].len(), answers(&mut net.ports[1], now)), (0, 0));
    }
    assert_eq!(net.ports[1].dropped(), Dropped { strange: 4, ..Dropped::default() });
}

#[test]
fn an_opening_that_comes_again_is_answered_by_other_keys() {
    let mut net = known_pair(&PathSpec::default());
    let now = net.now;
    let packet = opening(&mut net, &initial());
    // A recorded packet is sent again from other addresses. Each answer differs from all others.
    let mut answers = Vec::new();
    for host in [0, 5, 6] {
        net.ports[1].on_packet(now, now, address(host), &mut packet.clone());
        let out = first_packet(&mut net.ports[1], now);
        let Ok(Packet::Numbered { body, .. }) = Packet::decode(&out) else { panic!("no answer") };
        answers.push(out[body..].to_vec());
    }
    assert!(answers[0] != answers[1] && answers[1] != answers[2] && answers[0] != answers[2]);
}

/// Opens a stream, and returns its ends at both ports. Both use their own keys.
fn open_stream(net: &mut Net) -> [StreamId; 2] {
    let id = net.open(0, 1);
    let mut accepted = None;
    for _ in 0..4 {
        let limit = net.now + 1_000_000;
        while net.step(limit) {
            if let Some(Event::Accepted(id, _)) = net.event(1) {
                accepted = Some(id);
            }
        }
        let now = net.now;
        let both = [(0, id), (1, accepted.expect("it was accepted"))];
        both.iter().for_each(|(port, id)| {
            net.ports[*port].with(now, *id, |stream| stream.write(b"x"));
        });
    }
    [id, accepted.expect("it was accepted")]
}

#[test]
fn both_ends_come_to_use_keys_that_others_who_know_the_address_do_not_have() {
    let mut net = known_pair(&PathSpec::default());
    let ids = open_stream(&mut net);
    let now = net.now;
    for (port, id) in ids.into_iter().enumerate() {
        net.ports[port].with(now, id, |stream| stream.write(b"y"));
        let bytes = first_packet(&mut net.ports[port], now);
        let packet = Packet::decode(&bytes);
        assert!(
            matches!(packet, Ok(Packet::Numbered { header: Header::Data { keyed: true, .. }, .. })),
            "{packet:?}"
        );
    }
}

/// The opener takes the first answer only. The same again counts for nothing, nor does the answer of somebody else who
/// knows the address and has heard the opening.
#[test]
fn a_second_answer_to_an_opening_is_not_heard() {
    let mut net = known_pair(&PathSpec::default());
    let now = net.now;
    let id = net.ports[0].open_known(now, address(1), &initial());
    let opening = first_packet(&mut net.ports[0], now);
    // Port 1 in two roles: it answers each address by an id of its own.
    let mut answer = |host| {
        net.ports[1].on_packet(now, now, address(host), &mut opening.clone());
        let accepted = std::iter::from_fn(|| net.ports[1].poll_event()).find_map(|event| match event {
            Event::Accepted(id, _) => Some(id),
            _ => None,
        });
        let first = first_packet(&mut net.ports[1], now);
        net.ports[1].with(now, accepted.expect("it was accepted"), |stream| stream.write(b"x"));
        [first, first_packet(&mut net.ports[1], now)]
    };
    let ([first, _], [_, others]) = (answer(0), answer(5));
    let Ok(Packet::Numbered { header: Header::Accept { source, .. }, .. }) = Packet::decode(&first) else {
        panic!("no Accept")
    };
    for (packet, heard) in [(&first, (1, 0, 0)), (&first, (1, 1, 0)), (&others, (1, 1, 1))] {
        net.ports[0].on_packet(now, now, address(1), &mut packet.clone());
        let counters = net.ports[0].stream(id).expect("it lives").status().counters;
        let forged = net.ports[0].dropped().forged;
        assert_eq!((counters.packets_received, counters.packets_stale, forged), heard);
    }
    net.ports[0].with(now, id, |stream| stream.write(b"x"));
    let bytes = first_packet(&mut net.ports[0], now);
    let packet = Packet::decode(&bytes);
    assert!(
        matches!(packet, Ok(Packet::Numbered { header: Header::Data { target, .. }, .. }) if target == source),
        "{packet:?}"
    );
}
