//! Ethernet frames from any host of the segment.

use std::net::SocketAddr;

use isthmus_datagram::{frame_header, parse_frame};

/// A frame to an IPv4 address, padded, and one to an IPv6 address.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap_or(SocketAddr::from(([0; 4], 0)));
    let frame =
        |from, to, packet: &[u8]| [&frame_header(at(from), at(to), packet.len())[..], packet].concat();
    let padded = [frame("10.1.2.3:4567", "10.1.2.4:80", b"abc"), vec![0; 20]].concat();
    vec![padded, frame("[fe80::1]:1", "[fe80::2]:2", &[7; 100]), frame("10.0.0.1:1", "10.0.0.2:2", b"")]
}

/// A frame that parses is the same when built again from its addresses and packet, without padding.
pub(crate) fn property(input: &[u8]) {
    let mut frame = input.to_vec();
    let Some((from, to, packet)) = parse_frame(&mut frame) else { return };
    let again = [&frame_header(from, to, packet.len())[..], packet].concat();
    assert_eq!(again, input[..again.len()]);
}
