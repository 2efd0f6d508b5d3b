//! The header of datagrams of the provider's datagram endpoints (`FI_EP_DGRAM`).

/// The head of a datagram; the message follows it. All integers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// Incarnation of the endpoint that it is for; 0: any.
    pub to: u32,
    /// Incarnation of the endpoint that sent it.
    pub from: u32,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
}

impl MessageHeader {
    /// Length of the encoded form. Bytes.
    pub const LEN: usize = 24;
    const MAGIC: u32 = u32::from_le_bytes(*b"ISTd");

    /// The encoded form.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.to.to_le_bytes());
        out[8..12].copy_from_slice(&self.from.to_le_bytes());
        out[12..16].copy_from_slice(&u32::from(self.data.is_some()).to_le_bytes());
        out[16..].copy_from_slice(&self.data.unwrap_or(0).to_le_bytes());
        out
    }

    /// Reads the head of a datagram. `None`: it is none of ours.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let data = u64::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
        if word(0)? != Self::MAGIC {
            return None;
        }
        let data = match (word(12)?, data) {
            (0, 0) => None,
            (1, data) => Some(data),
            _ => return None,
        };
        Some(Self { to: word(4)?, from: word(8)?, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_has_this_form() {
        let header = MessageHeader { to: 0x0102, from: 3, data: Some(4) };
        let bytes = *b"ISTd\x02\x01\0\0\x03\0\0\0\x01\0\0\0\x04\0\0\0\0\0\0\0";
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(MessageHeader::from_bytes(&bytes), Some(header));
        let without = MessageHeader { data: None, ..header };
        assert_eq!(MessageHeader::from_bytes(&without.to_bytes()), Some(without));
    }

    #[test]
    fn what_is_none_is_passed_over() {
        let bytes = MessageHeader { to: 1, from: 2, data: Some(3) }.to_bytes();
        assert_eq!(MessageHeader::from_bytes(&bytes[..23]), None);
        for (at, value) in [(0, b'i'), (12, 2), (12, 0)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(MessageHeader::from_bytes(&other), None, "{at}");
        }
    }
}
