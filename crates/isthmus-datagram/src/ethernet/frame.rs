//! Header of our Ethernet frames: 40 bytes before each packet.
//!
//! | Bytes | |
//! |---|---|
//! | 0 | 0x49 |
//! | 1 | version, 1 |
//! | 2..4 | length of the packet: short frames get padding |
//! | 4..6, 6..8 | port of the sender, of the receiver |
//! | 8..24, 24..40 | address of the sender, of the receiver: IPv6, or IPv4 mapped |
//!
//! Numbers are big-endian. A frame without a packet only shows its sender's Ethernet address. The
//! receiver that a broadcast frame names answers with such a frame.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use socket2::SockFilter;

/// Our ethertype: IEEE 802's second number for local experiments (802, clause 9.2.3).
pub(super) const ETHERTYPE: u16 = 0x88b6;
/// Length of the header. Bytes.
pub const FRAME_HEADER_BYTES: u32 = 40;

const MAGIC: u8 = 0x49;
const VERSION: u8 = 1;
const LEN: usize = FRAME_HEADER_BYTES as usize;
const TO_PORT: usize = 6;
const TO_END: usize = 36;

/// The header of a packet of `len` bytes.
pub fn header(from: SocketAddr, to: SocketAddr, len: usize) -> [u8; LEN] {
    let mut out = [0; LEN];
    (out[0], out[1]) = (MAGIC, VERSION);
    out[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    out[4..6].copy_from_slice(&from.port().to_be_bytes());
    out[TO_PORT..8].copy_from_slice(&to.port().to_be_bytes());
    out[8..24].copy_from_slice(&octets(from.ip()));
    out[24..].copy_from_slice(&octets(to.ip()));
    out
}

/// Sender, receiver and packet of a frame. `None` if the frame is not ours.
pub fn parse(frame: &mut [u8]) -> Option<(SocketAddr, SocketAddr, &mut [u8])> {
    let (header, rest) = frame.split_first_chunk_mut::<LEN>()?;
    if (header[0], header[1]) != (MAGIC, VERSION) {
        return None;
    }
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let packet = rest.get_mut(..word(2).into())?;
    let address = |at: usize, port: u16| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port)
    };
    Some((address(8, word(4)), address(24, word(TO_PORT)), packet))
}

/// Kernel filter for frames of our kind to this port and the address's last 4 bytes.
pub(super) fn filter(own: SocketAddr) -> [SockFilter; 8] {
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_WORD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let end = octets(own.ip());
    let end = u32::from_be_bytes([end[12], end[13], end[14], end[15]]);
    // A jump's distance counts from the next instruction. The last instruction drops.
    [
        SockFilter::new(LOAD_BYTE, 0, 0, 0),
        SockFilter::new(EQUAL, 0, 5, MAGIC.into()),
        SockFilter::new(LOAD_HALF, 0, 0, TO_PORT as u32),
        SockFilter::new(EQUAL, 0, 3, own.port().into()),
        SockFilter::new(LOAD_WORD, 0, 0, TO_END as u32),
        SockFilter::new(EQUAL, 0, 1, end),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_vector_holds() {
        let (from, to) =
            ("10.1.2.3:4567".parse().expect("valid"), "[fe80::1]:80".parse::<SocketAddr>().expect("valid"));
        let mut frame = header(from, to, 3).to_vec();
        let mut golden = vec![0x49, 1, 0, 3, 0x11, 0xd7, 0, 80];
        golden.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        golden.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(frame, golden);
        frame.extend(b"abc and what an Ethernet pads with");
        assert_eq!(parse(&mut frame), Some((from, to, &mut b"abc".to_vec()[..])));
    }

    #[test]
    fn what_is_no_frame_of_ours_is_none() {
        let at: SocketAddr = "10.1.2.3:4567".parse().expect("valid");
        let good = header(at, at, 2);
        let with = |place: usize, byte: u8| {
            let mut frame = [good.as_slice(), b"ab"].concat();
            frame[place] = byte;
            frame
        };
        assert!(parse(&mut with(0, MAGIC)).is_some());
        assert!(parse(&mut with(0, 0x45)).is_none(), "another's");
        assert!(parse(&mut with(1, 2)).is_none(), "a later version");
        assert!(parse(&mut with(3, 3)).is_none(), "a length beyond the end");
        for len in 0..LEN {
            assert!(parse(&mut good[..len].to_vec()).is_none());
        }
    }
}
