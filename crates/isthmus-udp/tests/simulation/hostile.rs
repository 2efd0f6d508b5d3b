//! Hostile packets: no bytes cause a panic, and their cost is bounded.

use std::net::{IpAddr, Ipv4Addr};

use isthmus_lab::model::Loss;
use isthmus_lab::rng::Rng;
use isthmus_udp::wire::{
    Ack, Frame, Header, Packet, Strain, Words, put_parity_head, put_small, put_stream_head,
};
use isthmus_udp::{Event, Failure, Port, PortConfig, StreamFault};

use crate::net::{Flow, Net, PathSpec, address, config, seeds, transfer};

fn random_bytes(rng: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..rng.up_to(100)).map(|_| rng.next_u64() as u8).collect();
    // Make most of them look like our packets.
    if let Some(first) = bytes.first_mut()
        && rng.chance(0.9)
    {
        *first = *first & 0x87 | 0x10;
    }
    bytes
}

#[test]
fn random_packets_neither_panic_nor_leave_much_behind() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed, 1);
        let mut port = Port::new(PortConfig::default(), [1; 16]);
        let mut out = Vec::new();
        for now in 0..20_000 {
            port.on_packet(now, now, address(rng.up_to(50) as usize), &mut random_bytes(&mut rng));
            while port.poll_transmit(now, 64, 65_000, &mut out).is_some() {
                out.clear();
            }
        }
        assert!(port.len() <= PortConfig::default().strangers_max, "seed {seed}: {}", port.len());
    }
}

fn open_packet(source: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header::Open { source, token: [0; 24], window: 1 << 20 };
    Packet::Numbered { header, number: 0, ack_now: true, checked: false, body: 0 }.encode(&mut bytes);
    put_small(&mut bytes, &Frame::Ping);
    bytes
}

#[test]
fn a_flood_of_openings_is_answered_with_less_than_three_times_its_bytes_and_soon_forgotten() {
    let mut port = Port::new(PortConfig::default(), [1; 16]);
    let (mut came, mut went, mut out) = (0, 0, Vec::new());
    for now in 0..100_000_u64 {
        let mut bytes = open_packet(now + 1);
        came += bytes.len();
        port.on_packet(now, now, address((now % 1_000) as usize), &mut bytes);
        while let Some(transmit) = port.poll_transmit(now, 64, 65_000, &mut out) {
            went += transmit.len;
        }
        out.clear();
    }
    assert!(went <= 3 * came, "{went} bytes went for {came} that came");
    assert!(port.len() <= 64);
    let mut now = 100_000;
    while let Some(due) = port.poll_timeout().filter(|due| *due < 60_000_000) {
        now = due.max(now + 1);
        while port.poll_transmit(now, 64, 65_000, &mut out).is_some() {
            out.clear();
        }
    }
    assert!(port.is_empty(), "{} are left", port.len());
}

/// A packet forged by somebody on the path, who knows the ids.
fn forged(target: u64, number: u64, frames: &[Frame<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Packet::Numbered {
        header: Header::Data { target, keyed: false },
        number,
        ack_now: false,
        checked: false,
        body: 0,
    }
    .encode(&mut bytes);
    frames.iter().for_each(|frame| put_small(&mut bytes, frame));
    bytes
}

/// The id in packets to port 1.
fn id_of_port_1(net: &mut Net) -> u64 {
    let flow = Flow::new(net, 0, 1, 0, true);
    let limit = net.now + 1_000_000;
    while net.step(limit) {}
    let id = net.ports[0].stream(flow.stream()).expect("it lives");
    assert!(id.is_open());
    let now = net.now;
    net.ports[0].with(now, flow.stream(), |stream| stream.write(b"x"));
    let mut bytes = Vec::new();
    net.ports[0].poll_transmit(now, 1, 9_000, &mut bytes).expect("there is data");
    match Packet::decode(&bytes) {
        Ok(Packet::Numbered { header: Header::Data { target, .. }, .. }) => target,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lies_end_the_stream_with_the_reason() {
    let words = [0xff; 8];
    let ack = |largest, upto| {
        let recent = Words { first: largest / 64, bytes: &words };
        let sweep = Words { first: largest / 64, bytes: &[] };
        Frame::Ack(Ack { largest, arrived: 0, delay_us: 0, upto, window: 0, recent, sweep })
    };
    let lies: [(Frame<'_>, StreamFault); 4] = [
        (Frame::Stream { offset: 1 << 40, data: b"x", fin: false }, StreamFault::Window),
        (Frame::Stream { offset: u64::MAX, data: b"x", fin: false }, StreamFault::Window),
        (ack(1 << 30, 0), StreamFault::Ack),
        (ack(0, 1 << 30), StreamFault::Ack),
    ];
    for (lie, fault) in lies {
        let path = PathSpec::default();
        let mut net = Net::new(&path, vec![config(&path), config(&path)]);
        let target = id_of_port_1(&mut net);
        let mut bytes = forged(target, 1_000, &[lie]);
        let now = net.now;
        net.ports[1].on_packet(now, now, address(0), &mut bytes);
        let failures: Vec<_> = std::iter::from_fn(|| net.event(1))
            .filter_map(|event| if let Event::Failed(_, failure) = event { Some(failure) } else { None })
            .collect();
        assert_eq!(failures, [Failure::Fault(fault)]);
    }
}

#[test]
fn who_does_not_know_the_id_or_writes_from_elsewhere_changes_nothing() {
    let mut net = Net::pair(&PathSpec::default());
    let target = id_of_port_1(&mut net);
    let close = [Frame::Close { reason: 0 }];
    let now = net.now;
    net.ports[1].on_packet(now, now, address(0), &mut forged(target ^ 1, 1_000, &close));
    net.ports[1].on_packet(now, now, address(2), &mut forged(target, 1_000, &close));
    let mut reset = Vec::new();
    Packet::Reset { target: target ^ 1 }.encode(&mut reset);
    net.ports[0].on_packet(now, now, address(1), &mut reset);
    let mut reset = Vec::new();
    Packet::Reset { target }.encode(&mut reset);
    net.ports[0].on_packet(now, now, address(2), &mut reset);
    let failed =
        |port| std::iter::from_fn(|| net.event(port)).any(|event| matches!(event, Event::Failed(..)));
    assert!(![0, 1].into_iter().any(failed));
}

/// Strangers send all but their first byte, so that nothing can be read. Together they take at most the guests' memory,
/// and an honest stream among them loses nothing.
#[test]
fn what_guests_send_takes_bounded_memory_until_they_are_admitted() {
    const MOST: usize = 4 << 20;
    let config = PortConfig { guests_memory: MOST, strangers_max: 1_000, ..PortConfig::default() };
    let mut port = Port::new(config, [1; 16]);
    let say = |port: &mut Port, from: usize, source, number, offset| {
        let mut bytes = Vec::new();
        let header = Header::Open { source, token: [0; 24], window: 1 << 20 };
        Packet::Numbered { header, number, ack_now: false, checked: false, body: 0 }.encode(&mut bytes);
        put_stream_head(&mut bytes, offset, 1000, false);
        bytes.resize(bytes.len() + 1000, 7);
        port.on_packet(number, number, address(from), &mut bytes);
    };
    say(&mut port, 0, 1, 0, 0);
    let Some(Event::Accepted(honest, _)) = port.poll_event() else { panic!("not accepted") };
    for source in 2..200 {
        for number in 0..100 {
            say(&mut port, source as usize, source, number, 1 + 1000 * number);
            assert!(port.guests_memory() <= MOST, "{} bytes", port.guests_memory());
        }
    }
    assert!(port.guests_memory() > MOST / 2);
    let mut failed = 0;
    while let Some(event) = port.poll_event() {
        failed += usize::from(matches!(event, Event::Failed(_, Failure::Fault(StreamFault::Guests))));
    }
    assert!(failed > 50, "{failed}");
    assert_eq!(port.with(100, honest, |stream| (stream.failure(), stream.readable())), Some((None, 1000)));
    // An admitted stream no longer counts as a guest.
    let before = port.guests_memory();
    port.admit_stream(honest);
    assert!(port.guests_memory() < before);
    for number in 1..500 {
        say(&mut port, 0, 1, number, 1000 * number);
    }
    assert_eq!(port.with(500, honest, |stream| stream.failure()), Some(None));
}

/// Delivers a packet of `source` with 1,000 bytes at `offset`. Returns the packet's length.
fn say(port: &mut Port, source: u64, number: u64, offset: u64) -> usize {
    let mut bytes = Vec::new();
    let header = Header::Open { source, token: [0; 24], window: 1 << 20 };
    Packet::Numbered { header, number, ack_now: false, checked: false, body: 0 }.encode(&mut bytes);
    put_stream_head(&mut bytes, offset, 1000, false);
    bytes.resize(bytes.len() + 1000, 7);
    port.on_packet(number, number, address(source as usize), &mut bytes);
    bytes.len()
}

#[test]
fn an_address_that_never_answered_gets_at_most_three_times_what_came_from_it() {
    let mut port = Port::new(PortConfig::default(), [1; 16]);
    let came = say(&mut port, 1, 0, 0);
    let Some(Event::Accepted(id, _)) = port.poll_event() else { panic!("not accepted") };
    port.with(0, id, |stream| stream.write(&[7; 100_000]));
    let (mut went, mut out) = (0, Vec::new());
    for now in (0..6_000_000).step_by(1_000) {
        while let Some(transmit) = port.poll_transmit(now, 64, 65_000, &mut out) {
            went += transmit.len;
        }
        out.clear();
    }
    assert!(went > 0 && went <= 3 * came, "{went} bytes went for {came} that came");
    assert!(port.is_empty(), "it was not forgotten");
}

#[test]
fn streams_and_answers_that_wait_are_bounded() {
    let config = PortConfig { streams_max: 4, ..PortConfig::default() };
    let mut port = Port::new(config, [1; 16]);
    (1..20).for_each(|source| {
        say(&mut port, source, 0, 0);
    });
    assert_eq!(port.len(), 4);
    let config = PortConfig { strangers_max: 0, ..PortConfig::default() };
    let mut port = Port::new(config, [1; 16]);
    (1..1_000).for_each(|source| {
        say(&mut port, source, 0, 0);
    });
    let mut out = Vec::new();
    let answers = std::iter::from_fn(|| port.poll_transmit(0, 64, 65_000, &mut out)).count();
    assert!((1..=64).contains(&answers), "{answers}");
}

/// The windows that strangers are granted are large only while there are few of them.
#[test]
fn of_many_strangers_only_a_few_get_a_large_window() {
    let mut port = Port::new(PortConfig::default(), [1; 16]);
    let windows = (1..=20).map(|source| {
        say(&mut port, source, 0, 0);
        let mut out = Vec::new();
        port.poll_transmit(0, 1, 65_000, &mut out).expect("an Accept");
        match Packet::decode(&out) {
            Ok(Packet::Numbered { header: Header::Accept { window, .. }, .. }) => window,
            other => panic!("no Accept but {other:?}"),
        }
    });
    let large = windows.filter(|window| *window > 1 << 20).count();
    assert_eq!(large, PortConfig::default().strangers_trusted);
}

/// A port that only opens streams, as that of a client.
#[test]
fn a_port_that_accepts_no_streams_enters_none() {
    let mut port = Port::new(PortConfig { accepts: false, ..PortConfig::default() }, [1; 16]);
    say(&mut port, 1, 0, 0);
    let mut out = Vec::new();
    assert!(port.is_empty() && port.poll_transmit(0, 64, 65_000, &mut out).is_none());
}

/// The path properties of so many hosts are kept. Those of the host that was heard of first go.
#[test]
fn hosts_whose_paths_are_remembered_are_bounded() {
    const HOSTS: u32 = 1_024;
    let host = |number: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + number));
    let mut port = Port::new(PortConfig::default(), [1; 16]);
    (0..=HOSTS).for_each(|number| port.suppose(u64::from(number), host(number), 1_000_000, 10_000));
    let known = |number| port.learned(u64::from(HOSTS), host(number)).is_some();
    assert!(!known(0) && (1..=HOSTS).all(known));
}

/// An Open of an ended stream opens nothing. So many of these are remembered, and the oldest is forgotten.
#[test]
fn ended_streams_that_are_remembered_are_bounded() {
    const ENDED: u64 = 4_096;
    let config = PortConfig { strangers_max: usize::MAX, ..PortConfig::default() };
    let mut port = Port::new(config, [1; 16]);
    let open = |port: &mut Port, now, source| {
        port.on_packet(now, now, address(0), &mut open_packet(source));
        std::iter::from_fn(|| port.poll_event()).find_map(|event| match event {
            Event::Accepted(id, _) => Some(id),
            _ => None,
        })
    };
    for source in 1..=ENDED + 1 {
        let id = open(&mut port, 0, source).expect("accepted");
        port.with(0, id, |stream| stream.abort());
        port.release(0, id);
    }
    let (later, mut out) = (2_000_000, Vec::new());
    while port.poll_transmit(later, 64, 65_000, &mut out).is_some() {
        out.clear();
    }
    assert!(port.is_empty(), "{} are left", port.len());
    assert!(open(&mut port, later, 2).is_none() && open(&mut port, later, ENDED + 1).is_none());
    assert!(open(&mut port, later, 1).is_some(), "the oldest is forgotten");
}

/// An echo service at the peer's port sends our own Open back, while the stream lives or after it. The same packet from
/// another address is another's Open.
#[test]
fn an_echo_of_our_own_opening_opens_nothing() {
    let mut port = Port::new(PortConfig::default(), [1; 16]);
    let id = port.open(0, address(1));
    port.with(0, id, |stream| stream.write(b"x"));
    let (mut echo, mut out) = (Vec::new(), Vec::new());
    port.poll_transmit(0, 1, 65_000, &mut echo).expect("it sends");
    let opens = |port: &mut Port, now, from| {
        port.on_packet(now, now, address(from), &mut echo.clone());
        std::iter::from_fn(|| port.poll_event()).any(|event| matches!(event, Event::Accepted(..)))
    };
    assert!(!opens(&mut port, 1, 1));
    port.with(1, id, |stream| stream.abort());
    port.release(1, id);
    let later = 2_000_000;
    while port.poll_transmit(later, 64, 65_000, &mut out).is_some() {
        out.clear();
    }
    assert!(!opens(&mut port, later, 1), "the stream has ended");
    assert!(opens(&mut port, later, 2));
}

/// Somebody who knows a stream's id, but does not hold its address, has it send nothing again.
#[test]
fn a_challenge_from_elsewhere_is_not_heard() {
    let mut port = Port::new(PortConfig::default(), [1; 16]);
    let id = port.open(0, address(1));
    port.with(0, id, |stream| stream.write(b"x"));
    let mut out = Vec::new();
    while port.poll_transmit(0, 64, 65_000, &mut out).is_some() {}
    let Ok(Packet::Numbered { header: Header::Open { source, .. }, .. }) = Packet::decode(&out) else {
        panic!("no Open")
    };
    let mut challenge = Vec::new();
    Packet::Challenge { target: source, token: [9; 24] }.encode(&mut challenge);
    // The same again is no news: otherwise somebody on the path would have the stream send packet after packet.
    for (now, from, heard) in [(1, 2, false), (2, 1, true), (3, 1, false)] {
        port.on_packet(now, now, address(from), &mut challenge);
        out.clear();
        while port.poll_transmit(now, 64, 65_000, &mut out).is_some() {}
        assert_eq!(!out.is_empty(), heard, "{now}");
    }
}

#[test]
fn a_packet_that_comes_again_is_not_heard() {
    let mut net = Net::pair(&PathSpec::default());
    let target = id_of_port_1(&mut net);
    let now = net.now;
    while net.event(1).is_some() {}
    let (_, id) = *net.opened.iter().find(|(port, _)| *port == 1).expect("accepted");
    let heard = |net: &Net| net.ports[1].stream(id).map(|stream| stream.status().counters.packets_received);
    let before = heard(&net).expect("it lives");
    for _ in 0..3 {
        net.ports[1].on_packet(now, now, address(0), &mut forged(target, 1_000, &[Frame::Ping]));
        assert_eq!(heard(&net), Some(before + 1));
    }
}

/// Bytes of a chunk of the store. Any piece occupies at least one whole chunk.
const CHUNK: usize = 64 << 10;

#[test]
fn of_who_was_not_admitted_little_is_held_behind_a_gap() {
    let mut port = Port::new(PortConfig { guest_gap: 64 << 10, ..PortConfig::default() }, [1; 16]);
    // Everything except the first byte.
    (0..1_000).for_each(|number| {
        say(&mut port, 1, number, 1 + 1000 * number);
    });
    assert!(port.guests_memory() <= 3 * CHUNK, "{} bytes", port.guests_memory());
    // The rest was dropped. It may be sent again, and readable data are not limited.
    (0..1_000).for_each(|number| {
        say(&mut port, 1, 1_000 + number, 1000 * number);
    });
    let Some(Event::Accepted(id, _)) = port.poll_event() else { panic!("not accepted") };
    assert_eq!(port.stream(id).map(|stream| stream.readable()), Some(1_000_000));
    let now = 10_000;
    port.with(now, id, |stream| stream.consume(now, 1_000_000));
    port.admit_stream(id);
    (0..900).for_each(|number| {
        say(&mut port, 1, 2_000 + number, 1_000_001 + 1000 * number);
    });
    assert!(port.memory() > 8 * CHUNK, "{} bytes of one that was admitted", port.memory());
}

/// A shard of parity is all of a block of one shard, so it brings data. That counts as data behind a gap does.
#[test]
fn of_who_was_not_admitted_no_parity_is_held_far_behind_a_gap() {
    let mut port = Port::new(PortConfig { guest_gap: 64 << 10, ..PortConfig::default() }, [1; 16]);
    say(&mut port, 1, 0, 0);
    for number in 1..1_000 {
        let mut bytes = Vec::new();
        let header = Header::Open { source: 1, token: [0; 24], window: 1 << 20 };
        Packet::Numbered { header, number, ack_now: false, checked: false, body: 0 }.encode(&mut bytes);
        put_parity_head(&mut bytes, 100_000 + 1000 * number, 1, 0);
        bytes.resize(bytes.len() + 1000, 7);
        port.on_packet(number, number, address(1), &mut bytes);
    }
    assert!(port.guests_memory() <= 3 * CHUNK, "{} bytes", port.guests_memory());
}

#[test]
fn what_streams_hold_together_is_bounded_and_all_go_on() {
    const MOST: usize = 32 << 20;
    const STREAMS: u64 = 64;
    let config = PortConfig { memory_max: MOST, strangers_max: 1_000, ..PortConfig::default() };
    let mut port = Port::new(config, [1; 16]);
    let mut streams = Vec::new();
    for source in 1..=STREAMS {
        say(&mut port, source, 0, 0);
        while let Some(event) = port.poll_event() {
            if let Event::Accepted(id, _) = event {
                port.admit_stream(id);
                port.with(0, id, |stream| stream.consume(0, 1000));
                streams.push(id);
            }
        }
    }
    // 1 MB of each stream, without the first byte.
    let bound = MOST + STREAMS as usize * 2 * CHUNK;
    for number in 1..1_000 {
        for source in 1..=STREAMS {
            say(&mut port, source, number, 1 + 1000 * number);
            assert!(port.memory() <= bound, "{} bytes", port.memory());
        }
    }
    assert!(port.memory() > MOST / 2);
    // All of it is sent again in order, and accepted.
    for source in 1..=STREAMS {
        let id = streams[source as usize - 1];
        for piece in 1..900 {
            say(&mut port, source, 1_000 + piece, 1000 * piece);
            let now = 1_000 + piece;
            port.with(now, id, |stream| stream.consume(now, stream.readable()));
            assert!(port.memory() <= bound, "{} bytes", port.memory());
        }
        assert_eq!(port.stream(id).and_then(|stream| stream.failure()), None);
    }
}

/// Packet losses make streams reach these bounds again and again.
#[test]
fn an_honest_stream_arrives_whole_whatever_may_be_held() {
    for seed in seeds(4) {
        for (guest_gap, memory_max) in [(64 << 10, usize::MAX), (u64::MAX, 256 << 10)] {
            let path = PathSpec { loss: Loss::Independent(0.05), seed, ..PathSpec::default() };
            let settings = PortConfig { guest_gap, memory_max, ..config(&path) };
            let mut net = Net::new(&path, vec![settings.clone(), settings]);
            // With little memory, the acceptor's application admits every stream.
            net.admits = guest_gap == u64::MAX;
            transfer(&mut net, 1_000_000, true, 60.0).expect("it ends");
        }
    }
}

/// A packet that repeats the opening of a stream, with these frames.
fn reopening(source: u64, number: u64, frames: &[Frame<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header::Open { source, token: [0; 24], window: 1 << 20 };
    Packet::Numbered { header, number, ack_now: false, checked: false, body: 0 }.encode(&mut bytes);
    frames.iter().for_each(|frame| put_small(&mut bytes, frame));
    bytes
}

/// Somebody opens streams in another host's name, and sees none of the answers. Whatever it reports of them counts
/// neither for these streams nor for those of that host: no acknowledgement, loss, mark or overload.
#[test]
fn of_who_has_not_shown_its_address_no_report_counts() {
    let mut port = Port::new(PortConfig::default(), [1; 16]);
    let mut out = Vec::new();
    for source in 1..=50 {
        let start = source * 20_000;
        // Bytes that the port may answer with some packets.
        for number in 0..6 {
            let mut bytes = reopening(source, number, &[Frame::Ping]);
            put_stream_head(&mut bytes, 1000 * number, 1000, false);
            bytes.resize(bytes.len() + 1000, 7);
            port.on_packet(start, start, address(0), &mut bytes);
        }
        let id = std::iter::from_fn(|| port.poll_event()).find_map(|event| match event {
            Event::Accepted(id, _) => Some(id),
            _ => None,
        });
        let id = id.expect("accepted");
        port.with(start, id, |stream| stream.write(&[7; 100_000]));
        let now = start + 10_000;
        for now in (start..now).step_by(100) {
            while port.poll_transmit(now, 1, 65_000, &mut out).is_some() {
                out.clear();
            }
        }
        let sent = port.stream(id).expect("it lives").status().counters.packets_sent;
        assert!((5..64).contains(&sent), "{sent} packets, of which some can be said to be lost");
        // The last one arrived, and no other.
        let words = (1_u64 << (sent - 1)).to_le_bytes();
        let recent = Words { first: 0, bytes: &words };
        let sweep = Words { first: 0, bytes: &[] };
        let ack = Ack { largest: sent - 1, arrived: 9, delay_us: 0, upto: 0, window: 1 << 20, recent, sweep };
        let overload = Strain { busy_us: 90_000, dropped: 1_000 };
        // Strain and Marks travel as padding, which ends a packet.
        for (number, frames) in
            [(6, [Frame::Ack(ack), Frame::Strain(overload)]), (7, [Frame::Ping, Frame::Marks(9)])]
        {
            port.on_packet(now, now, address(0), &mut reopening(source, number, &frames));
        }
        let status = port.stream(id).expect("it lives").status();
        assert_eq!(
            (status.counters.packets_received, status.counters.packets_stale),
            (8, 0),
            "they are read"
        );
        assert_eq!((status.rtt_us, status.counters.answers, status.counters.packets_lost), (None, 0, 0));
        assert_eq!((status.counters.peer_busy_us, status.counters.packets_marked), (0, 0));
    }
    let honest = port.open(2_000_000, address(0));
    assert_eq!(port.stream(honest).map(|stream| stream.status().loss), Some(0.0));
}

/// Whoever has an address of its own may open more streams than strangers may. So many wait for admission and no more.
/// The ones that the application gave up make room, and nobody else.
#[test]
fn guests_that_wait_for_admission_are_bounded() {
    const MOST: usize = 100;
    let config = PortConfig { guests_max: MOST, strangers_max: usize::MAX, ..PortConfig::default() };
    let mut port = Port::new(config, [1; 16]);
    let accepted = |port: &mut Port| -> Vec<_> {
        let events = std::iter::from_fn(|| port.poll_event());
        events.filter_map(|event| if let Event::Accepted(id, _) = event { Some(id) } else { None }).collect()
    };
    (1..1_000).for_each(|source| {
        say(&mut port, source, 0, 0);
    });
    let guests = accepted(&mut port);
    assert_eq!((guests.len(), port.len()), (MOST, MOST));
    // One that is admitted is no guest any more.
    port.admit_stream(guests[0]);
    say(&mut port, 1_000, 0, 0);
    assert_eq!((accepted(&mut port).len(), port.len()), (1, MOST + 1));
    // Released ones give their memory to the next, the first of them first. One that was admitted stays.
    guests[..3].iter().for_each(|id| port.release(1, *id));
    say(&mut port, 1_001, 0, 0);
    let lives = |port: &Port| [0, 1, 2, 3].map(|number| port.stream(guests[number]).is_some());
    assert_eq!((accepted(&mut port).len(), port.len()), (1, MOST + 1));
    assert_eq!(lives(&port), [true, false, true, true]);
    (2_000..3_000).for_each(|source| {
        say(&mut port, source, 0, 0);
        assert!(port.len() <= MOST + 1);
    });
    assert_eq!(lives(&port), [true, false, false, true]);
}

/// A guest that the application gave up and that acknowledges nothing is forgotten in 10 s, though it still writes.
#[test]
fn a_guest_that_was_given_up_is_forgotten_in_its_time() {
    let mut net = Net::pair(&PathSpec::default());
    let target = id_of_port_1(&mut net);
    while net.event(1).is_some() {}
    let (_, id) = *net.opened.iter().find(|(port, _)| *port == 1).expect("accepted");
    let (mut now, mut out) = (net.now, Vec::new());
    net.ports[1].with(now, id, |stream| stream.write(b"refused"));
    net.ports[1].release(now, id);
    let end = now + 11_000_000;
    for number in 1_000.. {
        net.ports[1].on_packet(now, now, address(0), &mut forged(target, number, &[Frame::Ping]));
        while net.ports[1].poll_transmit(now, 64, 65_000, &mut out).is_some() {
            out.clear();
        }
        if now >= end {
            break;
        }
        now += 100_000;
    }
    assert!(net.ports[1].is_empty(), "it is still there");
}

/// The opener of a stream takes the first answer to its opening. Another one changes neither the id nor the window.
#[test]
fn a_second_answer_to_an_opening_changes_nothing() {
    let mut port = Port::new(PortConfig::default(), [1; 16]);
    let id = port.open(0, address(1));
    let mut out = Vec::new();
    let mut next = |port: &mut Port, now| {
        port.with(now, id, |stream| stream.write(b"x"));
        out.clear();
        port.poll_transmit(now, 1, 65_000, &mut out).expect("it sends");
        let Ok(Packet::Numbered { header, .. }) = Packet::decode(&out) else { panic!("no packet") };
        header
    };
    let Header::Open { source: target, .. } = next(&mut port, 0) else { panic!("no Open") };
    let accept = |source, number| {
        let mut bytes = Vec::new();
        let header = Header::Accept { target, source, token: [source as u8; 24], window: source << 20 };
        Packet::Numbered { header, number, ack_now: true, checked: false, body: 0 }.encode(&mut bytes);
        put_small(&mut bytes, &Frame::Ping);
        bytes
    };
    let first = accept(7, 0);
    // The first one, the same again, another one, and one from elsewhere.
    for (now, from, bytes) in
        [(1_000, 1, &first), (2_000, 1, &first), (3_000, 1, &accept(8, 1)), (4_000, 2, &accept(9, 2))]
    {
        port.on_packet(now, now, address(from), &mut bytes.clone());
        let header = next(&mut port, now + 500);
        assert!(matches!(header, Header::Data { target: 7, .. }), "{header:?}");
        let learned = port.stream(id).and_then(|stream| stream.learned(now)).expect("a round trip");
        assert_eq!((learned.token, learned.peer_window), ([7; 24], 7 << 20));
    }
    let counters = port.stream(id).expect("it lives").status().counters;
    assert_eq!((counters.packets_received, counters.packets_stale, port.dropped().strange), (2, 1, 1));
}
