//! Where packets are sealed and opened.

/// Protects the frames of packets. The header stays readable and is authenticated with them.
///
/// An implementation with AES-GCM takes its keys from the exporter of a TLS 1.3 session
/// (RFC 8446, 7.5) and its nonce from the packet's number, which is never used twice. A
/// packet that was seen before is dropped by its number, so there is no other replay window.
pub trait Protection: Send + std::fmt::Debug {
    /// Bytes that sealing adds.
    fn overhead(&self) -> usize;
    /// Seals the packet from its frames, at `body`, on to its end, and appends the rest.
    fn seal(&mut self, number: u64, packet: &mut Vec<u8>, start: usize, body: usize);
    /// Opens a packet in place and returns its frames; `None` where it is not genuine.
    fn open<'a>(&mut self, number: u64, packet: &'a mut [u8], body: usize) -> Option<&'a [u8]>;
}

/// None, for links between hosts that trust their network, and below TLS.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Protection for Plain {
    fn overhead(&self) -> usize {
        0
    }
    fn seal(&mut self, _: u64, _: &mut Vec<u8>, _: usize, _: usize) {}
    fn open<'a>(&mut self, _: u64, packet: &'a mut [u8], body: usize) -> Option<&'a [u8]> {
        packet.get(body..)
    }
}
