//! Tests with crafted super-packets, cut in software and checked as a receiver would.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
/// A super-packet to build.
pub(crate) struct Craft {
    pub(crate) ipv6: bool,
    pub(crate) tcp: bool,
    pub(crate) segment: usize,
    pub(crate) payload: usize,
    pub(crate) options: usize,
    pub(crate) flags: u8,
}

impl Craft {
    fn transport(self) -> usize {
        14 + if self.ipv6 { 40 } else { 20 }
    }

    fn header(self) -> usize {
        self.transport() + if self.tcp { 20 + self.options } else { 8 }
    }

    /// Vnet header and super-packet, as Linux hands them over.
    pub(crate) fn build(self) -> Vec<u8> {
        let mut frame = vec![0_u8; self.header()];
        frame.extend((0..self.payload).map(|i| (i * 31 + i / 256) as u8));
        let ip_length = frame.len() - 14;
        if self.ipv6 {
            put_be16(&mut frame, 12, 0x86DD);
            frame[14] = 0x60;
            put_be16(&mut frame, 18, (ip_length - 40) as u16);
            frame[20] = if self.tcp { 6 } else { 17 };
            for (i, byte) in frame[22..54].iter_mut().enumerate() {
                *byte = 0xF0_u8.wrapping_add(i as u8);
            }
        } else {
            put_be16(&mut frame, 12, 0x0800);
            frame[14] = 0x45;
            put_be16(&mut frame, 16, ip_length as u16);
            put_be16(&mut frame, 18, 0xFFFE);
            frame[23] = if self.tcp { 6 } else { 17 };
            frame[26..34].copy_from_slice(&[10, 200, 0, 1, 10, 200, 0, 2]);
            let checksum = !fold(sum(&frame[14..34]));
            put_be16(&mut frame, 24, checksum);
        }
        let t = self.transport();
        if self.tcp {
            frame[t + 4..t + 8].copy_from_slice(&0xFFFF_FF00_u32.to_be_bytes());
            frame[t + 12] = (((20 + self.options) / 4) << 4) as u8;
            frame[t + 13] = self.flags;
        } else {
            put_be16(&mut frame, t + 4, (8 + self.payload) as u16);
        }
        let mut vnet = [0_u8; VNET_BYTES];
        vnet[0] = NEEDS_CSUM;
        vnet[1] = match (self.tcp, self.ipv6) {
            (false, _) => GSO_UDP_L4,
            (true, false) => GSO_TCPV4,
            (true, true) => GSO_TCPV6,
        } | if self.tcp && self.flags & TCP_CWR != 0 { GSO_ECN } else { 0 };
        put_ne16(&mut vnet, 2, self.header());
        put_ne16(&mut vnet, 4, self.segment);
        put_ne16(&mut vnet, 6, t);
        put_ne16(&mut vnet, 8, if self.tcp { 16 } else { 6 });
        let mut whole = vnet.to_vec();
        let parsed = Super::parse(&vnet, &frame, if self.tcp { Protocol::Tcp } else { Protocol::Udp });
        let partial = parsed.expect("crafted").pseudo_checksum(&frame, self.payload);
        put_be16(&mut frame, t + if self.tcp { 16 } else { 6 }, partial);
        whole.extend(frame);
        whole
    }
}

/// The run `first..end` as it is forwarded: vnet header, headers, payload.
fn send_on(bytes: &[u8], first: usize, end: usize) -> Vec<u8> {
    let frame = Frame::parse(bytes).expect("well formed");
    let mut header = [0; HEADER_BYTES_MAX];
    frame.run_header(bytes, first, end, &mut header);
    let mut run = header[..frame.header_len()].to_vec();
    run.extend(&bytes[frame.payload_range(first).0..frame.payload_range(end - 1).1]);
    run
}

/// Independent software segmentation: the packets that the network would carry.
fn segment(run: &[u8]) -> Vec<Vec<u8>> {
    let frame = Frame::parse(run).expect("well formed");
    let n = frame.segments();
    (0..n)
        .map(|i| {
            let (start, end) = frame.payload_range(i);
            let transport = ne16(run, 6);
            let ipv6 = be16(run, VNET_BYTES + 12) == 0x86DD;
            let header = if frame.shape.is_some() { frame.header_len() - VNET_BYTES } else { ne16(run, 2) };
            let mut packet = run[VNET_BYTES..VNET_BYTES + header].to_vec();
            let skip = if frame.shape.is_some() { start } else { VNET_BYTES + header };
            packet.extend(&run[skip..end]);
            let total = packet.len() - 14;
            if ipv6 {
                put_be16(&mut packet, 18, (total - 40) as u16);
            } else {
                let id = be16(&packet, 18).wrapping_add(i as u16);
                put_be16(&mut packet, 16, total as u16);
                put_be16(&mut packet, 18, id);
                put_be16(&mut packet, 24, 0);
                let checksum = !fold(sum(&packet[14..34]));
                put_be16(&mut packet, 24, checksum);
            }
            finish(&mut packet, transport, ipv6, i, n, ne16(run, 4));
            packet
        })
        .collect()
}

fn finish(packet: &mut [u8], t: usize, ipv6: bool, i: usize, n: usize, gso: usize) {
    let is_tcp = packet[if ipv6 { 20 } else { 23 }] == 6;
    let length = packet.len() - t;
    let at = t + if is_tcp { 16 } else { 6 };
    if is_tcp {
        let sequence = u32::from_be_bytes(packet[t + 4..t + 8].try_into().expect("four bytes"));
        packet[t + 4..t + 8].copy_from_slice(&sequence.wrapping_add((i * gso) as u32).to_be_bytes());
        packet[t + 13] &= if i > 0 { !TCP_CWR } else { 0xFF };
        packet[t + 13] &= if i + 1 < n { !(TCP_FIN | TCP_PSH) } else { 0xFF };
    } else {
        put_be16(packet, t + 4, length as u16);
    }
    let addresses = if ipv6 { 22..54 } else { 26..34 };
    put_be16(packet, at, 0);
    let pseudo = sum(&packet[addresses]) + if is_tcp { 6 } else { 17 } + length as u64;
    let checksum = !fold(pseudo + sum(&packet[t..]));
    put_be16(packet, at, checksum);
}

/// Finishes the partial checksum as a device does, and checks that the packet is valid.
fn check_partial(run: &[u8]) {
    let (start, offset) = (VNET_BYTES + ne16(run, 6), ne16(run, 8));
    let frame = &run[VNET_BYTES..];
    let ipv6 = be16(frame, 12) == 0x86DD;
    if !ipv6 {
        assert_eq!(fold(sum(&frame[14..34])), 0xFFFF, "IPv4 header checksum");
        assert_eq!(usize::from(be16(frame, 16)), frame.len() - 14, "IPv4 total length");
    }
    let mut transport = run[start..].to_vec();
    let checksum = !fold(sum(&transport));
    put_be16(&mut transport, offset, checksum);
    let addresses = if ipv6 { 22..54 } else { 26..34 };
    let protocol = u64::from(frame[if ipv6 { 20 } else { 23 }]);
    let whole = sum(&frame[addresses]) + protocol + transport.len() as u64 + sum(&transport);
    assert_eq!(fold(whole), 0xFFFF, "transport checksum");
}

pub(crate) const TCP: Craft =
    Craft { ipv6: false, tcp: true, segment: 1448, payload: 14_000, options: 12, flags: 0x10 | 0x89 };

#[test]
fn a_frame_tells_whether_it_carries_udp() {
    for (ipv6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut bytes = Craft { ipv6, tcp, ..TCP }.build();
        assert_eq!(Frame::parse(&bytes).expect("well formed").is_udp(), !tcp);
        bytes[..VNET_BYTES].fill(0);
        assert_eq!(Frame::parse(&bytes).expect("a single packet").is_udp(), !tcp);
    }
    let mut other = [PROTOCOL_UDP as u8; VNET_BYTES + 42];
    other[..VNET_BYTES].fill(0);
    assert!(!Frame::parse(&other).expect("neither IPv4 nor IPv6").is_udp());
}

#[test]
fn a_super_packet_costs_what_its_wire_packets_cost() {
    let frame = Frame::parse(&TCP.build()).expect("well formed");
    assert_eq!(frame.segments(), 10);
    let sizes: Vec<_> = frame.wire_sizes().collect();
    assert_eq!(sizes[0], 14 + 20 + 32 + 1448 + 24);
    assert_eq!(sizes[9], 14 + 20 + 32 + (14_000 - 9 * 1448) + 24);
    let small = [0_u8; VNET_BYTES + 42];
    assert_eq!(Frame::parse(&small).expect("plain").wire_sizes().collect::<Vec<_>>(), [84]);
}

#[test]
fn only_the_last_run_keeps_fin_and_psh_and_only_the_first_cwr() {
    let whole = TCP.build();
    let flags = |run: &[u8]| run[VNET_BYTES + TCP.transport() + 13];
    assert_eq!(flags(&send_on(&whole, 0, 4)), 0x10 | TCP_CWR);
    assert_eq!(flags(&send_on(&whole, 5, 8)), 0x10);
    assert_eq!(flags(&send_on(&whole, 9, 10)), 0x10 | TCP_FIN | TCP_PSH);
    assert_eq!(send_on(&whole, 0, 10), whole, "an unharmed super-packet goes on as it came");
}

#[test]
fn a_run_of_one_is_a_plain_packet_that_still_needs_its_checksum() {
    let run = send_on(&TCP.build(), 3, 4);
    assert_eq!((run[0], run[1], ne16(&run, 4)), (NEEDS_CSUM, GSO_NONE, 0));
    assert_eq!(run.len(), VNET_BYTES + TCP.header() + 1448);
}

#[test]
fn only_packets_that_may_be_marked_are_and_their_checksum_holds() {
    for ipv6 in [false, true] {
        for (class, marked) in
            [(0_u8, None), (1, Some(3)), (2, Some(3)), (3, Some(3)), (10 << 2 | 2, Some(10 << 2 | 3))]
        {
            let bytes = Craft { ipv6, ..TCP }.build();
            let frame = Frame::parse(&bytes).expect("well formed");
            let mut header = [0; HEADER_BYTES_MAX];
            frame.run_header(&bytes, 0, 2, &mut header);
            let ip = VNET_BYTES + 14;
            match ipv6 {
                true => (header[ip], header[ip + 1]) = (0x60 | class >> 4, class << 4),
                false => header[ip + 1] = class,
            }
            let before = header;
            assert_eq!(frame.mark(&mut header, 2), if marked.is_some() { 2 } else { 0 });
            let is = if ipv6 { header[ip] << 4 | header[ip + 1] >> 4 } else { header[ip + 1] };
            assert_eq!(is, marked.unwrap_or(class), "IPv6 {ipv6}");
            if marked.is_none() {
                assert_eq!(header, before);
            } else if !ipv6 {
                assert_eq!(fold(sum(&header[ip..ip + 20])), 0xFFFF);
            }
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    for (at, value) in [(4, 0), (6, 200), (1, 9)] {
        let mut bytes = TCP.build();
        bytes[at] = value;
        bytes[at + usize::from(at != 1)] = if at == 1 { value } else { 0 };
        let parsed = Frame::parse(&bytes);
        assert!(at == 6 || parsed.is_err(), "byte {at}");
    }
    assert!(Frame::parse(&[0; 20]).is_err());
    let short = TCP.build();
    assert!(Frame::parse(&short[..VNET_BYTES + 40]).is_err());
}

proptest! {
    /// For every cut, the receiver gets what the network would have carried of it.
    #[test]
    fn any_run_is_the_same_packets_as_cutting_the_whole(
        ipv6: bool, tcp: bool, segment_bytes in 100..9000_usize, count in 1..40_usize,
        tail in 1..100_usize, options in 0..=10_usize, flags: u8, cut in (0.0..1.0_f64, 0.0..1.0_f64),
    ) {
        let payload = ((count - 1) * segment_bytes + tail).min(65_000);
        let craft = Craft { ipv6, tcp, segment: segment_bytes, payload, options: options * 4, flags };
        let whole = craft.build();
        let packets = segment(&whole);
        let n = packets.len();
        let first = (cut.0 * n as f64) as usize;
        let end = first + 1 + (cut.1 * (n - first - 1) as f64) as usize;
        let run = send_on(&whole, first, end);
        check_partial(&run);
        prop_assert_eq!(segment(&run), packets[first..end].to_vec());
    }

    #[test]
    fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(frame) = Frame::parse(&bytes) {
            let n = frame.segments();
            let mut header = [0; HEADER_BYTES_MAX];
            frame.run_header(&bytes, 0, 1, &mut header);
            frame.run_header(&bytes, n - 1, n, &mut header);
            prop_assert!(frame.payload_range(n - 1).1 <= bytes.len());
        }
    }
}
