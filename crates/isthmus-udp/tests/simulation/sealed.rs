//! Streams within sessions: packets that are not genuine change nothing, and are counted.

use isthmus_lab::rng::Rng;
use isthmus_udp::wire::{Frame, Header, Packet, put_small};
use isthmus_udp::{ChecksumKind, Dropped, Event, Port, PortConfig, Session, StreamId};

use crate::delivery::any_path;
use crate::known::known_pair;
use crate::net::{By, Net, OTHER, PathSpec, RESTART_US, address, config, seeds, transfer};

fn sealed_config(path: &PathSpec) -> PortConfig {
    PortConfig { sessions_only: true, ..config(path) }
}

fn sealed_pair(path: &PathSpec) -> Net {
    let mut net = Net::new(path, vec![sealed_config(path), sealed_config(path)]);
    net.sealed = Some(By::Session);
    net
}

#[test]
fn bytes_arrive_exactly_whatever_is_altered_cut_short_and_sent_again_on_the_way() {
    let mut dropped = Dropped::default();
    let mut stale = 0;
    for seed in seeds(150) {
        let path = any_path(seed);
        let mut settings = sealed_config(&path);
        // Keys replace checksums, which anybody can compute.
        settings.stream.composition.checksum = ChecksumKind::ALL[seed as usize % 2];
        let mut net = Net::new(&path, vec![settings.clone(), settings]);
        net.sealed = Some(By::Session);
        net.mischief = Some(Rng::new(seed, 14));
        let bytes = 1 + Rng::new(seed, 15).up_to(400_000);
        println!("seed {seed}: {bytes} bytes, {path:?}");
        transfer(&mut net, bytes, true, 600.0).expect("it ends");
        for (port, id) in &net.opened {
            let of = net.ports[*port].dropped();
            dropped.garbled += of.garbled;
            dropped.forged += of.forged;
            stale += net.ports[*port].stream(*id).map_or(0, |stream| stream.status().counters.packets_stale);
        }
    }
    assert!(dropped.garbled > 0 && dropped.forged > 0 && stale > 0, "{dropped:?}, {stale} stale");
}

#[test]
fn nothing_of_the_stream_can_be_read_on_the_way() {
    let mut net = sealed_pair(&PathSpec::default());
    let (now, id) = (net.now, net.open(0, 1));
    net.ports[0].with(now, id, |stream| stream.write(&[b'x'; 500]));
    let mut packets = Vec::new();
    net.ports[0].poll_transmit(now, 8, 9_000, &mut packets).expect("it opens");
    assert!(packets.len() > 500);
    assert!(!packets.windows(8).any(|bytes| bytes == b"xxxxxxxx"));
}

/// The first packet of a stream that port 0 opens.
fn opening(net: &mut Net, session: &Session) -> Vec<u8> {
    let now = net.now;
    net.ports[0].open_within(now, address(1), session);
    first_packet(&mut net.ports[0], now)
}

/// The next packet that a port sends.
pub(crate) fn first_packet(port: &mut Port, now: u64) -> Vec<u8> {
    let mut packets = Vec::new();
    port.poll_transmit(now, 1, 9_000, &mut packets).expect("it sends");
    packets
}

/// A packet that opens a stream without keys.
pub(crate) fn plain_opening() -> Vec<u8> {
    let mut plain = Vec::new();
    let header = Header::Open { source: 7, token: [0; 24], window: 1 << 20 };
    Packet::Numbered { header, number: 0, ack_now: true, checked: false, body: 0 }.encode(&mut plain);
    put_small(&mut plain, &Frame::Ping);
    plain
}

/// Bytes that a port sends at this moment.
pub(crate) fn answers(port: &mut Port, now: u64) -> usize {
    let mut out = Vec::new();
    port.poll_transmit(now, 8, 9_000, &mut out).map_or(0, |transmit| transmit.len)
}

#[test]
fn who_has_no_session_gets_no_answer_and_leaves_no_trace() {
    let mut net = sealed_pair(&PathSpec::default());
    let now = net.now;
    let expected = net.session();
    net.ports[1].expect(now, address(0).ip(), expected.clone());
    // Three strangers: one without keys, one with its own session, one that saw the token but has no keys.
    let plain = plain_opening();
    let other = net.session();
    let other = opening(&mut net, &other);
    let mut thief = opening(&mut net, &expected);
    let last = thief.len() - 1;
    thief[last] ^= 1;
    let mut data = Vec::new();
    Packet::Numbered {
        header: Header::Data { target: 9, keyed: false },
        number: 0,
        ack_now: true,
        checked: false,
        body: 0,
    }
    .encode(&mut data);
    for mut packet in [plain, other, thief, data] {
        net.ports[1].on_packet(now, now, address(0), &mut packet);
        assert_eq!((net.ports[1].len(), answers(&mut net.ports[1], now)), (0, 0));
    }
    assert_eq!(net.ports[1].dropped(), Dropped { strange: 4, ..Dropped::default() });
    // The session still works.
    let mut genuine = opening(&mut net, &expected);
    net.ports[1].on_packet(now, now, address(0), &mut genuine);
    assert_eq!(net.ports[1].len(), 1);
    let Some(Event::Accepted(id, _)) = net.ports[1].poll_event() else { panic!("nothing was accepted") };
    assert_eq!(net.ports[1].label(id), 1, "the session's");
}

#[test]
fn a_session_is_good_for_one_stream_and_for_half_a_minute() {
    let mut net = sealed_pair(&PathSpec::default());
    let (now, session) = (net.now, net.session());
    net.ports[1].expect(now, address(0).ip(), session.clone());
    let first = opening(&mut net, &session);
    for (packet, later) in [(first.clone(), 0), (first, 1_000), (opening(&mut net, &session), 2_000)] {
        let mut packet = packet;
        net.ports[1].on_packet(now + later, now + later, address(0), &mut packet);
        assert_eq!(net.ports[1].len(), 1, "{later}");
    }
    let mut late = sealed_pair(&PathSpec::default());
    let session = late.session();
    late.ports[1].expect(now, address(0).ip(), session.clone());
    let mut packet = opening(&mut late, &session);
    late.ports[1].on_packet(now + 31_000_000, now + 31_000_000, address(0), &mut packet);
    assert!(late.ports[1].is_empty());
}

/// An attacker may copy a session's first packet and send it from any address. That proves no address, so little goes
/// there.
#[test]
fn a_session_proves_the_address_of_its_host_only() {
    let mut net = sealed_pair(&PathSpec::default());
    let (now, session) = (net.now, net.session());
    net.ports[1].expect(now, address(0).ip(), session.clone());
    let opening = opening(&mut net, &session);
    for (from, is_proved) in [(address(5), false), (address(0), true)] {
        let mut port = Port::new(PortConfig { sessions_only: true, ..PortConfig::default() }, [1; 16]);
        port.expect(now, address(0).ip(), session.clone());
        port.on_packet(now, now, from, &mut opening.clone());
        let Some(Event::Accepted(id, _)) = port.poll_event() else { panic!("not accepted") };
        port.with(now, id, |stream| stream.write(&[7; 100_000]));
        let (mut went, mut out) = (0, Vec::new());
        while let Some(transmit) = port.poll_transmit(now, 64, 65_000, &mut out) {
            assert_eq!(transmit.to, from);
            went += transmit.len;
        }
        assert_eq!(went > 3 * opening.len(), is_proved, "{went} bytes go to {from}");
    }
}

/// Anybody on the path can make a Challenge. It does not take the session's token from the next Open.
#[test]
fn a_challenge_changes_no_stream_of_a_session() {
    let mut net = sealed_pair(&PathSpec::default());
    let (now, session) = (net.now, net.session());
    let token_of = |packet: &[u8]| match Packet::decode(packet) {
        Ok(Packet::Numbered { header: Header::Open { source, token, .. }, .. }) => (source, token),
        other => panic!("no Open but {other:?}"),
    };
    let (target, token) = token_of(&opening(&mut net, &session));
    let mut challenge = Vec::new();
    Packet::Challenge { target, token: [9; 24] }.encode(&mut challenge);
    net.ports[0].on_packet(now, now, address(1), &mut challenge);
    let again = net.ports[0].poll_timeout().expect("it asks again").max(now);
    assert_eq!(token_of(&first_packet(&mut net.ports[0], again)).1, token);
}

#[test]
fn sessions_that_wait_for_their_streams_are_bounded_and_the_oldest_goes() {
    let mut net = sealed_pair(&PathSpec::default());
    let sessions: Vec<_> = (0..1_025).map(|_| net.session()).collect();
    for (at, session) in sessions.iter().enumerate() {
        net.ports[1].expect(at as u64, address(0).ip(), session.clone());
    }
    for (session, streams) in [(&sessions[0], 0), (&sessions[1], 1), (&sessions[1_024], 2)] {
        let mut packet = opening(&mut net, session);
        net.ports[1].on_packet(2_000, 2_000, address(0), &mut packet);
        assert_eq!(net.ports[1].len(), streams);
    }
}

/// A packet that somebody on the path recorded and sends again changes nothing, and does not count as a sign of life.
#[test]
fn a_sealed_packet_that_comes_again_is_not_heard() {
    let mut net = sealed_pair(&PathSpec::default());
    let [id, there] = open_stream(&mut net);
    let now = net.now;
    net.ports[0].with(now, id, |stream| stream.write(b"x"));
    let packet = first_packet(&mut net.ports[0], now);
    let counters = |net: &Net| net.ports[1].stream(there).expect("it lives").status().counters;
    let before = counters(&net);
    for again in 0..3 {
        net.ports[1].on_packet(now, now, address(0), &mut packet.clone());
        let after = counters(&net);
        assert_eq!(after.packets_received, before.packets_received + 1);
        assert_eq!(after.packets_stale, before.packets_stale + again);
    }
}

/// Opens a stream, and returns its ends at both ports.
fn open_stream(net: &mut Net) -> [StreamId; 2] {
    let id = net.open(0, 1);
    let limit = net.now + 1_000_000;
    let mut accepted = None;
    while net.step(limit) {
        if let Some(Event::Accepted(id, _)) = net.event(1) {
            accepted = Some(id);
        }
    }
    [id, accepted.expect("it was accepted")]
}

#[test]
fn nobody_but_the_peer_ends_a_stream() {
    let mut net = sealed_pair(&PathSpec::default());
    let [id, _] = open_stream(&mut net);
    let now = net.now;
    net.ports[0].with(now, id, |stream| stream.write(b"x"));
    let mut bytes = Vec::new();
    net.ports[0].poll_transmit(now, 1, 9_000, &mut bytes).expect("there is data");
    let Ok(Packet::Numbered { header: Header::Data { target, .. }, .. }) = Packet::decode(&bytes) else {
        panic!("no data packet");
    };
    // Forged by somebody on the path, who knows the ids and uses the right address.
    let mut reset = Vec::new();
    Packet::Reset { target }.encode(&mut reset);
    net.ports[0].on_packet(now, now, address(1), &mut reset);
    let mut close = Vec::new();
    Packet::Numbered {
        header: Header::Data { target, keyed: false },
        number: 900,
        ack_now: false,
        checked: false,
        body: 0,
    }
    .encode(&mut close);
    put_small(&mut close, &Frame::Close { reason: 0 });
    close.extend_from_slice(&[0; 16]);
    net.ports[1].on_packet(now, now, address(0), &mut close);
    assert_eq!(net.ports[1].dropped().forged, 1);
    for port in 0..2 {
        let failed = std::iter::from_fn(|| net.event(port)).any(|event| matches!(event, Event::Failed(..)));
        assert!(!failed, "port {port}");
    }
}

#[test]
fn sealing_costs_its_sixteen_bytes_a_packet_and_no_more() {
    let path = PathSpec::default();
    let plain = transfer(&mut Net::pair(&path), 50_000_000, false, 60.0).expect("it ends");
    let sealed = transfer(&mut sealed_pair(&path), 50_000_000, false, 60.0).expect("it ends");
    assert!(sealed < 1.01 * plain, "plain {plain} s, sealed {sealed} s");
}

/// How long a transfer of 20 MB takes if a NAT before port `behind` forgets it on the way. Seconds.
fn past_nat(sealed: By, behind: usize, forgets: bool) -> f64 {
    let path = PathSpec::default();
    let mut net = match sealed {
        By::Session => sealed_pair(&path),
        By::Address => known_pair(&path),
    };
    net.forgets = forgets.then_some((behind, net.now + 100_000 + RESTART_US));
    let took = transfer(&mut net, 20_000_000, false, 60.0).expect("it ends");
    assert_eq!(net.opened.len(), 2, "the stream goes on");
    took
}

#[test]
fn a_nat_that_starts_again_costs_little_more_than_a_second_on_either_side() {
    for (sealed, behind) in [(By::Session, 0), (By::Session, 1), (By::Address, 0), (By::Address, 1)] {
        let [steady, forgotten] = [false, true].map(|forgets| past_nat(sealed, behind, forgets));
        println!("{sealed:?}, behind {behind}: {steady} s, {forgotten} s");
        assert!(forgotten < steady + 1.5, "{sealed:?}, behind {behind}: {steady} s, {forgotten} s");
    }
}

#[test]
fn only_the_newest_genuine_packet_of_the_same_host_moves_a_stream() {
    let mut net = sealed_pair(&PathSpec::default());
    let id = net.open(0, 1);
    let until = net.now + 500_000;
    while net.step(until) {
        while net.event(1).is_some() {}
    }
    let now = net.now;
    let mut packet = || {
        net.ports[0].with(now, id, |stream| stream.write(&[7; 100]));
        first_packet(&mut net.ports[0], now)
    };
    let (older, newer, newest) = (packet(), packet(), packet());
    let mut forged = newest.clone();
    *forged.last_mut().expect("a packet") ^= 1;
    let (elsewhere, other_host) = (address(OTHER), address(OTHER + 1));
    let (port, mut now) = (&mut net.ports[1], now);
    let mut sends_to = |from, packet: &[u8]| {
        port.on_packet(now, now, from, &mut packet.to_vec());
        let dropped = port.dropped();
        // By then an acknowledgement is due.
        now += 100_000;
        let sent = port.poll_transmit(now, 1, 9_000, &mut Vec::new());
        (sent.map(|sent| sent.to), dropped.strange, dropped.forged)
    };
    assert_eq!(sends_to(address(0), &newer), (Some(address(0)), 0, 0));
    assert_eq!(sends_to(elsewhere, &older), (None, 1, 0), "a packet that somebody has kept");
    assert_eq!(sends_to(elsewhere, &newer), (None, 2, 0), "a packet that somebody repeats");
    assert_eq!(sends_to(elsewhere, &forged), (None, 2, 1));
    assert_eq!(sends_to(other_host, &newest), (None, 3, 1));
    assert_eq!(sends_to(elsewhere, &newest), (Some(elsewhere), 3, 1));
}
