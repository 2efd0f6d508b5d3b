//! The address of an endpoint: 64 bytes.
//!
//! The first 32 say where the endpoint is. The last 32 are its key. Only those who know the key may connect
//! (docs/security.md). So the key is a secret. [`fmt::Display`], which logs and errors use, leaves it out;
//! [`Address::uri`] has it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Id of an autonomous system. 0 means "not configured".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AsId(pub u32);

/// Id of a subnet, unique within its autonomous system only. 0 means "not configured".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubnetId(pub u32);

/// The IP address and port at which an endpoint listens inside its subnet.
pub type Locator = SocketAddr;

/// The public key of an endpoint (X25519). Only those who were given the address know it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; Key::LEN]);

impl Key {
    /// Length. Bytes.
    pub const LEN: usize = 32;
    /// Stands for "no key": the endpoint admits everybody, or its full address is not known.
    pub const NONE: Self = Self([0; Self::LEN]);

    /// Whether there is no key.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "none" } else { "secret" })
    }
}

/// The address of one endpoint of one process.
///
/// It travels in business cards and port names, so it has one fixed length. The `incarnation` is drawn at random when
/// the endpoint opens. So the address of a process that ended does not reach another process that reuses its port. An
/// incarnation of 0 is a wildcard, for addresses that a user typed: it stands for the endpoint that listens at the
/// locator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Autonomous system of the endpoint's device.
    pub as_id: AsId,
    /// Subnet of the endpoint's device.
    pub subnet: SubnetId,
    /// IP address and TCP port at which the endpoint accepts lanes.
    pub locator: Locator,
    /// Random number of the endpoint's instance; 0 is a wildcard.
    pub incarnation: u32,
    /// The key by which the endpoint proves its identity, and by which others prove that they may connect.
    pub key: Key,
}

/// Why bytes or text are not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Fewer bytes than [`Address::LEN`].
    #[error("an isthmus address has 64 bytes, this one has {0}")]
    Length(usize),
    /// The leading magic number is not ours.
    #[error("these bytes are not an isthmus address (they start with {0:#04x})")]
    Magic(u8),
    /// The address was made by an incompatible version.
    #[error("address format {0} is unknown to this version; use the same isthmus release on both sides")]
    Format(u8),
    /// Text that does not follow `isthmus://AS.SUBNET/IP:PORT[#INCARNATION[.KEY]]`. What follows `#` is left out: it
    /// may have a key, and errors are logged.
    #[error("`{0}` is not an isthmus address; expected isthmus://AS.SUBNET/IP:PORT[#INCARNATION[.KEY]]")]
    Text(String),
}

const MAGIC: u8 = 0xA5;
const FORMAT: u8 = 1;
const URI_SCHEME: &str = "isthmus://";

impl Address {
    /// Length of the encoded form. Bytes.
    pub const LEN: usize = Self::PLACE_LEN + Key::LEN;
    /// Length of the part that frames carry: all but the key. Bytes.
    pub const PLACE_LEN: usize = 32;

    /// The encoded form: [`Address::place_bytes`], then the key.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..Self::PLACE_LEN].copy_from_slice(&self.place_bytes());
        out[Self::PLACE_LEN..].copy_from_slice(&self.key.0);
        out
    }

    /// The encoded form without the key: magic, format, port, AS, subnet, incarnation (all big-endian), then the IPv6
    /// (or IPv4-mapped) address.
    pub fn place_bytes(self) -> [u8; Self::PLACE_LEN] {
        let ip = match self.locator.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut out = [0; Self::PLACE_LEN];
        out[0] = MAGIC;
        out[1] = FORMAT;
        out[2..4].copy_from_slice(&self.locator.port().to_be_bytes());
        out[4..8].copy_from_slice(&self.as_id.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.subnet.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.incarnation.to_be_bytes());
        out[16..32].copy_from_slice(&ip.octets());
        out
    }

    /// Decodes what [`Address::to_bytes`] made; bytes beyond [`Address::LEN`] are ignored.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk().ok_or(AddressError::Length(bytes.len()))?;
        let (place, key) = bytes.split_at(Self::PLACE_LEN);
        Ok(Self { key: Key(std::array::from_fn(|i| key[i])), ..Self::from_place(place)? })
    }

    /// Decodes what [`Address::place_bytes`] made; the key is [`Key::NONE`].
    pub fn from_place(bytes: &[u8]) -> Result<Self, AddressError> {
        let bytes: &[u8; Self::PLACE_LEN] = bytes.first_chunk().ok_or(AddressError::Length(bytes.len()))?;
        if bytes[0] != MAGIC {
            return Err(AddressError::Magic(bytes[0]));
        }
        if bytes[1] != FORMAT {
            return Err(AddressError::Format(bytes[1]));
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[16..32]);
        let ip = Ipv6Addr::from(octets).to_canonical();
        Ok(Self {
            as_id: AsId(word(4)),
            subnet: SubnetId(word(8)),
            locator: SocketAddr::new(ip, u16::from_be_bytes([bytes[2], bytes[3]])),
            incarnation: word(12),
            key: Key::NONE,
        })
    }

    /// The address without its key, as frames carry it.
    pub fn place(self) -> Self {
        Self { key: Key::NONE, ..self }
    }

    /// The whole address as text, for those who are to connect. It is a secret.
    pub fn uri(&self) -> String {
        if self.key.is_none() {
            return self.to_string();
        }
        let key: String = self.key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{self}{}.{key}", if self.is_wildcard() { "#0" } else { "" })
    }

    /// Whether this address stands for any endpoint that listens at its locator.
    pub fn is_wildcard(&self) -> bool {
        self.incarnation == 0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{URI_SCHEME}{}.{}/{}", self.as_id.0, self.subnet.0, self.locator)?;
        if self.is_wildcard() { Ok(()) } else { write!(f, "#{:08x}", self.incarnation) }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse_uri(text).ok_or_else(|| AddressError::Text(without_key(text)))
    }
}

/// Text that should be an address, for an error: "#..." stands for what follows `#`.
fn without_key(text: &str) -> String {
    text.split_once('#').map_or_else(|| text.to_owned(), |(place, _)| format!("{place}#..."))
}

fn parse_uri(text: &str) -> Option<Address> {
    let (ids, rest) = text.strip_prefix(URI_SCHEME)?.split_once('/')?;
    let (as_id, subnet) = ids.split_once('.')?;
    let (locator, incarnation, key) = match rest.split_once('#') {
        Some((locator, hex)) => match hex.split_once('.') {
            Some((hex, key)) => (locator, number(hex, 16)?, parse_key(key)?),
            None => (locator, number(hex, 16)?, Key::NONE),
        },
        None => (rest, 0, Key::NONE),
    };
    let locator: Locator = locator.parse().ok()?;
    // An address with a scope, such as `[fe80::1%3]`, is valid on one host only.
    if matches!(locator, SocketAddr::V6(v6) if v6.scope_id() != 0) {
        return None;
    }
    Some(Address {
        as_id: AsId(number(as_id, 10)?),
        subnet: SubnetId(number(subnet, 10)?),
        incarnation,
        key,
        ..Address::from(locator)
    })
}

/// A key as [`Address::uri`] writes it.
fn parse_key(hex: &str) -> Option<Key> {
    let is_hex = hex.len() == 2 * Key::LEN && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap_or(0);
    is_hex.then(|| Key(std::array::from_fn(byte))).filter(|key| !key.is_none())
}

/// A number without a sign.
fn number(text: &str, radix: u32) -> Option<u32> {
    (!text.starts_with('+')).then(|| u32::from_str_radix(text, radix).ok())?
}

impl From<SocketAddr> for Address {
    /// The wildcard address of the endpoint that listens at `locator`, ids not configured. An IPv4-mapped IPv6 address
    /// becomes an IPv4 address.
    fn from(locator: SocketAddr) -> Self {
        let locator = SocketAddr::new(locator.ip().to_canonical(), locator.port());
        Self { as_id: AsId::default(), subnet: SubnetId::default(), locator, incarnation: 0, key: Key::NONE }
    }
}

impl Default for Address {
    fn default() -> Self {
        Self::from(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Address {
        Address {
            as_id: AsId(3),
            subnet: SubnetId(7),
            locator: "10.1.2.3:4567".parse().expect("a socket address"),
            incarnation: 0xdead_beef,
            key: Key(std::array::from_fn(|i| i as u8 + 1)),
        }
    }

    #[test]
    fn the_golden_vector_holds() {
        let expected = [
            0xA5, 1, 0x11, 0xD7, 0, 0, 0, 3, 0, 0, 0, 7, 0xde, 0xad, 0xbe, 0xef, //
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3, //
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, //
            17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
        ];
        assert_eq!(sample().to_bytes(), expected);
        assert_eq!(Address::from_bytes(&expected), Ok(sample()));
        assert_eq!(sample().place_bytes(), expected[..32]);
        assert_eq!(Address::from_place(&expected[..32]), Ok(sample().place()));
    }

    #[test]
    fn text_and_bytes_name_the_same_endpoint() {
        let text = "isthmus://3.7/10.1.2.3:4567#deadbeef";
        assert_eq!(sample().place().uri(), text);
        assert_eq!(text.parse(), Ok(sample().place()));
        let whole = format!("{text}.0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20");
        assert_eq!(sample().uri(), whole);
        assert_eq!(whole.parse(), Ok(sample()));
    }

    #[test]
    fn what_is_written_to_logs_has_no_key() {
        assert_eq!(sample().to_string(), sample().place().uri());
        assert!(!format!("{:?}", sample()).contains('['), "{:?}", sample());
        let spoilt = format!("{}x", sample().uri()).parse::<Address>().expect_err("no address");
        assert!(spoilt.to_string().contains("10.1.2.3:4567#..."), "{spoilt}");
        assert!(!format!("{spoilt} {spoilt:?}").contains("01020304"), "{spoilt:?}");
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        assert_eq!(Address::from_bytes(&[0xA5; 63]), Err(AddressError::Length(63)));
        assert_eq!(Address::from_bytes(&[0; 64]), Err(AddressError::Magic(0)));
        assert_eq!(Address::from_bytes(&[0xA5; 64]), Err(AddressError::Format(0xA5)));
        assert!("tcp://1.2/3".parse::<Address>().is_err());
        assert!("isthmus://+1.2/10.1.2.3:4#5".parse::<Address>().is_err());
        assert!("isthmus://1.2/10.1.2.3:4#+5".parse::<Address>().is_err());
        let zero = format!("isthmus://1.2/10.1.2.3:4#5.{}", "00".repeat(32));
        for wrong in
            ["isthmus://1.2/10.1.2.3:4#5.", "isthmus://1.2/10.1.2.3:4#5.01", &zero, &zero.replace("00", "+1")]
        {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
        assert!("isthmus://1.2/[fe80::1%3]:4".parse::<Address>().is_err(), "means nothing elsewhere");
    }

    #[test]
    fn an_ipv4_address_is_one_however_it_is_written() {
        let mapped = "isthmus://3.7/[::ffff:10.1.2.3]:4567#deadbeef".parse();
        assert_eq!(mapped, Ok(sample().place()));
        let mapped: SocketAddr = "[::ffff:10.1.2.3]:4567".parse().expect("a socket address");
        assert_eq!(Address::from(mapped).locator, sample().locator);
    }

    proptest! {
        #[test]
        fn any_address_survives_both_forms(as_id: u32, subnet: u32, ip: u32, port: u16, incarnation: u32, key: [u8; 32]) {
            let address = Address {
                as_id: AsId(as_id),
                subnet: SubnetId(subnet),
                locator: SocketAddr::new(Ipv4Addr::from(ip).into(), port),
                incarnation,
                key: Key(key),
            };
            prop_assert_eq!(Address::from_bytes(&address.to_bytes()), Ok(address));
            prop_assert_eq!(address.uri().parse(), Ok(address));
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes: Vec<u8>) {
            let _ = Address::from_bytes(&bytes);
        }
    }
}
