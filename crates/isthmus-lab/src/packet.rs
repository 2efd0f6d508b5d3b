//! Frames that a TAP device with vnet headers delivers: single packets, and TCP or UDP super-packets
//! that stand for several wire packets.
//!
//! A super-packet is parsed once ([`Frame::parse`]). Then any run of its wire packets can get its own
//! headers ([`Frame::run_header`]). So the packets that survive a loss continue as fewer, smaller
//! super-packets, as if hardware had cut them.

use crate::model::wire_bytes;

/// Length of the `virtio_net_hdr` before each frame. Bytes.
pub const VNET_BYTES: usize = 10;

/// Longest header of a super-packet: vnet, Ethernet, IPv6 with extensions, TCP with options. Bytes.
pub const HEADER_BYTES_MAX: usize = 256;

/// Longest frame that a TAP device delivers, with its vnet header. Bytes.
pub const FRAME_BYTES_MAX: usize = VNET_BYTES + 18 + 65535 + 40;

const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
const PROTOCOL_TCP: u16 = 6;
const PROTOCOL_UDP: u16 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

/// Layout of a super-packet. Offsets count from the Ethernet header.
#[derive(Clone, Copy, Debug)]
struct Super {
    protocol: Protocol,
    ipv6: bool,
    transport: usize,
    header: usize,
    segment: usize,
    payload: usize,
}

/// A frame that was read from a TAP device: its length and its layout.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    /// Vnet header and frame together. Bytes.
    len: usize,
    shape: Option<Super>,
    is_udp: bool,
}

/// A frame is marked as a super-packet, but cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a super-packet whose headers do not hold together")]
pub struct Malformed;

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put_be16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// A vnet field. They have the machine's byte order.
fn ne16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]))
}

fn put_ne16(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
}

impl Frame {
    /// Parses a vnet header and the Ethernet frame behind it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < VNET_BYTES + ETHERNET_BYTES {
            return Err(Malformed);
        }
        let (vnet, frame) = bytes.split_at(VNET_BYTES);
        let shape = match vnet[1] & !GSO_ECN {
            GSO_NONE => None,
            GSO_TCPV4 | GSO_TCPV6 => Some(Super::parse(vnet, frame, Protocol::Tcp)?),
            GSO_UDP_L4 => Some(Super::parse(vnet, frame, Protocol::Udp)?),
            _ => return Err(Malformed),
        };
        let protocol = match be16(frame, 12) {
            ETHERTYPE_IPV4 => frame.get(ETHERNET_BYTES + 9),
            ETHERTYPE_IPV6 => frame.get(ETHERNET_BYTES + 6),
            _ => None,
        };
        let is_udp = protocol.is_some_and(|protocol| u16::from(*protocol) == PROTOCOL_UDP);
        Ok(Self { len: bytes.len(), shape, is_udp })
    }

    /// Whether its packets carry UDP. Extension headers of IPv6 are not looked into.
    pub fn is_udp(&self) -> bool {
        self.is_udp
    }

    /// Number of wire packets, at least 1.
    pub fn segments(&self) -> usize {
        self.shape.map_or(1, |s| s.payload.div_ceil(s.segment).max(1))
    }

    /// Length of the headers that each wire packet gets a copy of, vnet header included. A single packet
    /// has the vnet header only. Bytes.
    pub fn header_len(&self) -> usize {
        VNET_BYTES + self.shape.map_or(0, |s| s.header)
    }

    /// Start and end of the payload of wire packet `segment`, counted from the vnet header.
    pub fn payload_range(&self, segment: usize) -> (usize, usize) {
        match self.shape {
            None => (VNET_BYTES, self.len),
            Some(s) => {
                let start = self.header_len() + segment * s.segment;
                (start, (start + s.segment).min(self.len))
            }
        }
    }

    /// Wire costs of its packets, in order. Bytes.
    pub fn wire_sizes(&self) -> impl Iterator<Item = u32> + use<> {
        let frame = *self;
        (0..frame.segments()).map(move |i| {
            let (start, end) = frame.payload_range(i);
            wire_bytes((frame.header_len() - VNET_BYTES + end - start) as u32)
        })
    }

    /// The header for the run of wire packets `first..end`: `original` holds the first
    /// [`Frame::header_len`] bytes as read, `out` receives as many.
    ///
    /// It adjusts sequence number, IP id, lengths, header checksum, partial transport checksum and
    /// flags to those that the run's packets would have on the wire.
    pub fn run_header(&self, original: &[u8], first: usize, end: usize, out: &mut [u8; HEADER_BYTES_MAX]) {
        let len = self.header_len();
        out[..len].copy_from_slice(&original[..len]);
        let whole = first == 0 && end == self.segments();
        if let (Some(shape), false) = (self.shape, whole) {
            shape.fix(&mut out[..len], first, end, self.segments());
        }
    }
}

/// Bits of the traffic class that say whether a packet may be marked, and has been (RFC 3168). 0: it may not.
const ECN_BITS: u8 = 3;

impl Frame {
    /// Marks the `packets` packets behind this header, as a router whose queue grows. Returns how many were marked: none
    /// if their sender does not allow it.
    pub fn mark(&self, header: &mut [u8; HEADER_BYTES_MAX], packets: usize) -> u64 {
        let frame = &mut header[VNET_BYTES..self.header_len()];
        if frame.len() < ETHERNET_BYTES + 20 {
            return 0;
        }
        match be16(frame, 12) {
            ETHERTYPE_IPV4 if frame[ETHERNET_BYTES + 1] & ECN_BITS != 0 => {
                frame[ETHERNET_BYTES + 1] |= ECN_BITS;
                put_be16(frame, ETHERNET_BYTES + 10, 0);
                let length = usize::from(frame[ETHERNET_BYTES] & 0xf) * 4;
                let Some(ip) = frame.get(ETHERNET_BYTES..ETHERNET_BYTES + length) else { return 0 };
                let checksum = !fold(sum(ip));
                put_be16(frame, ETHERNET_BYTES + 10, checksum);
            }
            ETHERTYPE_IPV6 if frame[ETHERNET_BYTES + 1] >> 4 & ECN_BITS != 0 => {
                frame[ETHERNET_BYTES + 1] |= ECN_BITS << 4;
            }
            _ => return 0,
        }
        packets as u64
    }
}

impl Super {
    fn parse(vnet: &[u8], frame: &[u8], protocol: Protocol) -> Result<Self, Malformed> {
        let (segment, transport) = (ne16(vnet, 4), ne16(vnet, 6));
        let ipv6 = match be16(frame, 12) {
            ETHERTYPE_IPV4 => false,
            ETHERTYPE_IPV6 => true,
            _ => return Err(Malformed),
        };
        let ip_bytes = if ipv6 { 40 } else { 20 };
        if vnet[0] & NEEDS_CSUM == 0 || segment == 0 || transport < ETHERNET_BYTES + ip_bytes {
            return Err(Malformed);
        }
        let fixed = if protocol == Protocol::Tcp { 20 } else { 8 };
        if frame.len() < transport + fixed {
            return Err(Malformed);
        }
        let transport_bytes =
            if protocol == Protocol::Tcp { usize::from(frame[transport + 12] >> 4) * 4 } else { 8 };
        let header = transport + transport_bytes;
        if transport_bytes < fixed || header > frame.len() || VNET_BYTES + header > HEADER_BYTES_MAX {
            return Err(Malformed);
        }
        Ok(Self { protocol, ipv6, transport, header, segment, payload: frame.len() - header })
    }

    fn fix(&self, header: &mut [u8], first: usize, end: usize, segments: usize) {
        let payload = (end * self.segment).min(self.payload) - first * self.segment;
        let (vnet, frame) = header.split_at_mut(VNET_BYTES);
        self.fix_vnet(vnet, first, end);
        match self.ipv6 {
            true => put_be16(frame, ETHERNET_BYTES + 4, (self.header - ETHERNET_BYTES - 40 + payload) as u16),
            false => self.fix_ipv4(frame, first, payload),
        }
        match self.protocol {
            Protocol::Tcp => self.fix_tcp(frame, first, end == segments),
            Protocol::Udp => put_be16(frame, self.transport + 4, (8 + payload) as u16),
        }
        let checksum_at = self.transport + if self.protocol == Protocol::Tcp { 16 } else { 6 };
        let partial = self.pseudo_checksum(frame, payload);
        put_be16(frame, checksum_at, partial);
    }

    fn fix_vnet(&self, vnet: &mut [u8], first: usize, end: usize) {
        put_ne16(vnet, 2, self.header);
        if first > 0 {
            vnet[1] &= !GSO_ECN;
        }
        if end - first == 1 {
            vnet[1] = GSO_NONE;
            put_ne16(vnet, 4, 0);
        }
    }

    fn fix_ipv4(&self, frame: &mut [u8], first: usize, payload: usize) {
        let ip = &mut frame[ETHERNET_BYTES..self.transport];
        let id = be16(ip, 4).wrapping_add(first as u16);
        put_be16(ip, 2, (self.header - ETHERNET_BYTES + payload) as u16);
        put_be16(ip, 4, id);
        put_be16(ip, 10, 0);
        let checksum = !fold(sum(ip));
        put_be16(ip, 10, checksum);
    }

    fn fix_tcp(&self, frame: &mut [u8], first: usize, is_last: bool) {
        let tcp = &mut frame[self.transport..self.header];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let sequence = sequence.wrapping_add((first * self.segment) as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if first > 0 {
            tcp[13] &= !TCP_CWR;
        }
        if !is_last {
            tcp[13] &= !(TCP_FIN | TCP_PSH);
        }
    }

    /// The pseudo-header's sum, not complemented. The kernel or device that finishes the checksum
    /// adds the rest (Linux, `CHECKSUM_PARTIAL`).
    fn pseudo_checksum(&self, frame: &[u8], payload: usize) -> u16 {
        let addresses = if self.ipv6 { 22..54 } else { 26..34 };
        let protocol = if self.protocol == Protocol::Tcp { PROTOCOL_TCP } else { PROTOCOL_UDP };
        let length = self.header - self.transport + payload;
        fold(sum(&frame[addresses]) + u64::from(protocol) + length as u64)
    }
}

/// The sum of 16-bit big-endian words (RFC 1071), not folded.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | c.get(1).map_or(0, |b| u64::from(*b)));
    words.sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
pub(crate) mod tests;
