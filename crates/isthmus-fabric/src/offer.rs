//! Payload of Offer: endpoints of fabrics, best first.
//!
//! An entry has the provider's name after its length in one byte, and the endpoint's name after
//! its length in two (little-endian).

use crate::net::NAME_MAX;

/// Longest list. Bytes. Senders leave out the rest; receivers refuse more.
pub(crate) const LIST_MAX: usize = 4096;
/// Longest name of a provider. Bytes.
pub(crate) const PROVIDER_MAX: usize = 64;

/// One endpoint that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedEndpoint {
    /// The provider's name.
    pub provider: String,
    /// The endpoint's name. Only the provider understands it.
    pub name: Vec<u8>,
}

/// Encodes a list. Entries that do not fit are left out.
pub(crate) fn encode(endpoints: &[OfferedEndpoint]) -> Vec<u8> {
    let mut out = Vec::new();
    for OfferedEndpoint { provider, name } in endpoints {
        let more = 3 + provider.len() + name.len();
        if provider.len() > PROVIDER_MAX || name.len() > NAME_MAX || out.len() + more > LIST_MAX {
            continue;
        }
        out.push(provider.len() as u8);
        out.extend_from_slice(provider.as_bytes());
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(name);
    }
    out
}

/// Decodes a list. `None` if the bytes are malformed.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Vec<OfferedEndpoint>> {
    let mut endpoints = Vec::new();
    while let Some((&len, rest)) = bytes.split_first() {
        let (provider, rest) = rest.split_at_checked(usize::from(len))?;
        let (len, rest) = rest.split_at_checked(2)?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([len[0], len[1]])))?;
        if provider.len() > PROVIDER_MAX || name.len() > NAME_MAX {
            return None;
        }
        endpoints.push(OfferedEndpoint {
            provider: String::from_utf8(provider.to_vec()).ok()?,
            name: name.to_vec(),
        });
        bytes = rest;
    }
    Some(endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(provider: &str, name: &[u8]) -> OfferedEndpoint {
        OfferedEndpoint { provider: provider.to_owned(), name: name.to_vec() }
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let endpoints = [endpoint("shm", b"fi_shm://7\0"), endpoint("verbs;ofi_rxm", &[0xff; 28])];
        let bytes = encode(&endpoints);
        assert_eq!(bytes[..5], [3, b's', b'h', b'm', 11]);
        assert_eq!(decode(&bytes), Some(endpoints.to_vec()));
        assert_eq!(decode(&[]), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_list_is_refused_wherever_it_ends() {
        let bytes = encode(&[endpoint("shm", &[1; 40])]);
        for end in 1..bytes.len() {
            assert_eq!(decode(&bytes[..end]), None, "cut at {end}");
        }
        assert_eq!(decode(&[1, 0xff, 0, 0]), None, "no UTF-8");
        assert_eq!(decode(&[&[0, 1, 1][..], &[0; 257]].concat()), None, "longer than any name");
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let endpoints = vec![endpoint("p", &[0; NAME_MAX]); 100];
        assert!(encode(&endpoints).len() <= LIST_MAX);
        assert_eq!(encode(&[endpoint("p", &[0; NAME_MAX + 1])]), []);
    }
}
