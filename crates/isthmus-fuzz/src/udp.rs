//! Packets to a UDP port from any sender.

use std::net::SocketAddr;

use isthmus_seal::Secret;
use isthmus_udp::{Event, Initial, Port, PortConfig, StreamId};

/// The peer knows the port's address, so the first packets are encrypted with the key in it.
const SEALED: u8 = 1;
/// With `SEALED`: both ends have changed to the lane's keys before the input's packets come.
const KEYED: u8 = 2;
/// Each packet is one of the peer's, with one byte altered.
const ALTERED: u8 = 4;
/// Packets carry the id of the open stream.
const AIMED: u8 = 8;
const MOST: usize = 1 << 20;

fn at(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 1))
}

/// One seed for each set of flags: an opening packet, data and nonsense, each after its length.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut opener = Port::new(PortConfig::default(), [2; 16]);
    let id = opener.open(0, at(1));
    opener.with(0, id, |stream| stream.write(b"a first flight"));
    let mut open = Vec::new();
    opener.poll_transmit(0, 1, 65_000, &mut open);
    let packets = |how: u8, packets: &[&[u8]]| {
        let parts = packets.iter().flat_map(|packet| [&[packet.len() as u8][..], packet].concat());
        [how].into_iter().chain(parts).collect::<Vec<u8>>()
    };
    let open = &open[..open.len().min(120)];
    (0..16).map(|how| packets(how, &[open, b"\x11noise", &[0x13; 40], &[3, 0, 9, 1]])).collect()
}

/// Passes the packets that `from` has to send to `to`, if any, and keeps copies in `captured`.
fn pass(now: u64, from: &mut Port, mut to: Option<(&mut Port, SocketAddr)>, captured: &mut Vec<Vec<u8>>) {
    let mut out = Vec::new();
    for _ in 0..50 {
        let Some(transmit) = from.poll_transmit(now, 64, 65_000, &mut out) else { return };
        let start = out.len() - transmit.len;
        for packet in out[start..].chunks_mut(transmit.segment.max(1)) {
            captured.push(packet.to_vec());
            if let Some((port, sender)) = &mut to {
                port.on_packet(now, now, *sender, packet);
            }
        }
    }
}

/// For any packets, nothing panics and guests get no more memory and streams than they may. The first
/// byte has the flags above.
pub(crate) fn property(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let known = Initial::new(b"the listener's key");
    let config = PortConfig { guests_memory: MOST, ..PortConfig::default() };
    let mut port = Port::new(config, [1; 16]);
    let mut peer = Port::new(PortConfig::default(), [2; 16]);
    if how & SEALED != 0 {
        port.admit(known.clone());
    }
    let opened = if how & SEALED != 0 { peer.open_known(0, at(1), &known) } else { peer.open(0, at(1)) };
    let (mut sent, mut waste) = (Vec::new(), Vec::new());
    let mut now = 1_000;
    let mut accepted: Option<StreamId> = None;
    for _ in 0..4 {
        peer.with(now, opened, |stream| stream.write(&[7; 3000]));
        pass(now, &mut peer, Some((&mut port, at(2))), &mut sent);
        pass(now, &mut port, Some((&mut peer, at(1))), &mut waste);
        while let Some(event) = port.poll_event() {
            if let Event::Accepted(id, _) = event {
                accepted = Some(id);
            }
        }
        now += 1_000;
    }
    if how & (KEYED | SEALED) == KEYED | SEALED {
        let secret = Secret([9; Secret::LEN]);
        peer.with(now, opened, |stream| stream.rekey(&secret));
        accepted.map(|id| port.with(now, id, |stream| stream.rekey(&secret)));
    }
    let aim = sent.last().cloned().unwrap_or_default();
    while let Some((&len, more)) = rest.split_first() {
        let (packet, more) = more.split_at(usize::from(len).min(more.len()));
        rest = more;
        let mut packet = packet.to_vec();
        if how & AIMED != 0 && packet.len() >= 9 && aim.len() >= 9 {
            packet[1..9].copy_from_slice(&aim[1..9]);
        }
        if how & ALTERED != 0 {
            let mut fresh = Vec::new();
            peer.with(now, opened, |stream| stream.write(&packet));
            pass(now, &mut peer, None, &mut fresh);
            if let (Some(mut real), [place, byte, ..]) = (fresh.pop(), &packet[..]) {
                let place = usize::from(*place) % real.len().max(1);
                real[place] ^= byte;
                packet = real;
            }
        }
        let from = at(2 + (packet.len() % 3 == 0) as u8);
        port.on_packet(now, now, from, &mut packet);
        pass(now, &mut port, Some((&mut peer, at(1))), &mut waste);
        while port.poll_event().is_some() {}
        assert!(port.guests_memory() <= MOST && port.len() <= 65);
        now += 500;
    }
}
