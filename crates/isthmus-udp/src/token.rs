//! Address validation tokens (RFC 9000, 8.1): proof that a host answers at an address, without state at the issuer.

use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::Micros;
use crate::wire::{TOKEN_LEN, Token};

/// Lifetime of a token. Microseconds (1 h).
const LIFE_US: Micros = 3_600_000_000;

/// Issues and checks tokens, and draws connection ids.
///
/// A token holds the time of issue, and SipHash-2-4 (Aumasson and Bernstein, 2012; 128 bits) of that time and the
/// address under a secret key. The port is left out, so that a token serves later connections of the same host.
#[derive(Clone, Debug)]
pub(crate) struct Mint {
    key: [u8; 16],
    drawn: u64,
}

impl Mint {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self { key, drawn: 0 }
    }

    pub(crate) fn issue(&self, now: Micros, to: IpAddr) -> Token {
        let mut token = [0; TOKEN_LEN];
        token[..8].copy_from_slice(&now.to_le_bytes());
        token[8..].copy_from_slice(&self.seal(now, to));
        token
    }

    pub(crate) fn is_good(&self, token: &Token, now: Micros, from: IpAddr) -> bool {
        let mut raw = [0; 8];
        raw.copy_from_slice(&token[..8]);
        let issued = Micros::from_le_bytes(raw);
        // Compares all bytes, so that timing reveals nothing of the expected ones.
        let wrong = self.seal(issued, from).iter().zip(&token[8..]).fold(0, |wrong, (a, b)| wrong | (a ^ b));
        wrong == 0 && issued <= now && now - issued <= LIFE_US
    }

    fn seal(&self, issued: Micros, ip: IpAddr) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u8(1);
        hasher.write_u64(issued);
        match ip {
            IpAddr::V4(v4) => hasher.write(&v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => hasher.write(&v6.octets()),
        }
        hasher.finish128().as_bytes()
    }

    /// Draws a number that nobody can guess without the key: never 0, and hardly ever drawn before.
    pub(crate) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u8(2);
        hasher.write_u64(self.drawn);
        hasher.finish128().h1.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_address_and_time_only() {
        let mint = Mint::new([7; 16]);
        let ip: IpAddr = "10.0.0.1".parse().expect("valid");
        let other: IpAddr = "10.0.0.2".parse().expect("valid");
        let token = mint.issue(1_000, ip);
        assert!(mint.is_good(&token, 1_000, ip) && mint.is_good(&token, LIFE_US, ip));
        assert!(!mint.is_good(&token, 2_000, other));
        assert!(!mint.is_good(&token, 999, ip), "from the future");
        assert!(!mint.is_good(&token, 1_001 + LIFE_US, ip), "too old");
        assert!(!Mint::new([8; 16]).is_good(&token, 2_000, ip));
        assert!(!mint.is_good(&[0; TOKEN_LEN], 0, ip));
        for byte in 0..TOKEN_LEN {
            let mut forged = token;
            forged[byte] ^= 1;
            assert!(!mint.is_good(&forged, 2_000, ip), "byte {byte}");
        }
    }

    #[test]
    fn draws_differ() {
        let mut mint = Mint::new([7; 16]);
        let drawn: std::collections::HashSet<u64> = (0..10_000).map(|_| mint.draw()).collect();
        assert_eq!(drawn.len(), 10_000);
    }
}
