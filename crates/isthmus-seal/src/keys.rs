//! Secrets, and the keys of one direction that are derived from them.

use std::fmt;

use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

use crate::cipher::Key;

/// One key seals 2^24 packets. That is well below the limit of RFC 8446, section 5.5, at any packet size.
const KEY_BITS: u32 = 24;

/// 32 bytes that only the two ends know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; Secret::LEN]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Tells HKDF the length of its output. Bytes.
struct Okm(usize);

impl KeyType for Okm {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand.
fn expand<const LEN: usize>(prk: &Prk, info: &[&[u8]]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let okm = prk.expand(info, Okm(LEN)).and_then(|okm| okm.fill(&mut bytes));
    // HKDF fails only for outputs longer than 255 hashes.
    okm.expect("a secret or a key is short");
    bytes
}

impl Secret {
    /// Length. Bytes.
    pub const LEN: usize = 32;

    /// Derives a secret from `from` (HKDF-Extract). `from` need not look random, but must be hard to guess. `label`
    /// separates different uses of the same input.
    pub fn extract(label: &[u8], from: &[u8]) -> Self {
        Self(expand(&Salt::new(HKDF_SHA256, label).extract(from), &[]))
    }

    /// Derives another secret from this one (HKDF-Expand). Different `info` gives unrelated secrets. The parts of
    /// `info` count as one string.
    pub fn expand(&self, info: &[&[u8]]) -> Self {
        Self(expand(&Prk::new_less_safe(HKDF_SHA256, &self.0), info))
    }
}

/// The keys of one direction. The key changes every 2^24 packets. Packets of the previous and the next key are opened
/// too.
pub struct Keys {
    secret: Prk,
    epoch: u64,
    /// The keys of the epochs `epoch` - 1, `epoch` and `epoch` + 1. While `epoch` is 0, the first two are equal.
    keys: [Key; 3],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Keys {
    /// Makes the keys of the direction with this secret. Two directions must not use the same secret.
    pub fn new(secret: &Secret) -> Self {
        let secret = Prk::new_less_safe(HKDF_SHA256, &secret.0);
        let keys = [key(&secret, 0), key(&secret, 0), key(&secret, 1)];
        Self { secret, epoch: 0, keys }
    }

    /// Encrypts a text into `sealed`, and puts its tag, of [`TAG_LEN`] bytes, behind it. The text is the first bytes of
    /// `sealed`, as many as are left beside `more` and the tag, and then `more`, which the caller need not copy. The tag
    /// also covers `beside`, which stays readable. Numbers must grow, so that each is used once.
    ///
    /// # Panics
    /// If `sealed` has no room for `more` and the tag.
    pub fn seal(&mut self, number: u64, beside: &[u8], sealed: &mut [u8], more: &[u8]) {
        self.advance_to(number);
        let [_, key, _] = &self.keys;
        key.seal(number, beside, sealed, more);
    }

    /// Decrypts `sealed` in place; its tag is at its end. None if it is not genuine.
    pub fn open<'a>(&mut self, number: u64, beside: &[u8], sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let opened = self.key_for(number)?.open(number, beside, sealed)?;
        self.advance_to(number);
        Some(opened)
    }

    /// The key for a packet's number, if its epoch may be in use.
    fn key_for(&self, number: u64) -> Option<&Key> {
        let at = (number >> KEY_BITS) + 1;
        self.keys.get(at.checked_sub(self.epoch)? as usize)
    }

    /// Moves on to the epoch of this number, after a packet with it was found genuine.
    fn advance_to(&mut self, number: u64) {
        while number >> KEY_BITS > self.epoch {
            self.epoch += 1;
            self.keys.rotate_left(1);
            self.keys[2] = key(&self.secret, self.epoch + 1);
        }
    }
}

fn key(secret: &Prk, epoch: u64) -> Key {
    Key::new(&expand(secret, &[b"isthmus key", &epoch.to_be_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TAG_LEN;

    fn keys(seed: u8) -> Keys {
        Keys::new(&Secret([seed; Secret::LEN]))
    }

    fn sealed(by: &mut Keys, number: u64) -> Vec<u8> {
        let mut packet = vec![0; b"text".len() + TAG_LEN];
        by.seal(number, b"header", &mut packet, b"text");
        packet
    }

    fn opened(by: &mut Keys, number: u64, beside: &[u8], packet: &[u8]) -> Option<Vec<u8>> {
        by.open(number, beside, &mut packet.to_vec()).map(|text| text.to_vec())
    }

    #[test]
    fn what_was_sealed_opens_unless_anything_was_altered() {
        let (mut a, mut b) = (keys(1), keys(1));
        let packet = sealed(&mut a, 5);
        assert!(!packet.windows(4).any(|bytes| bytes == b"text"));
        assert_eq!(opened(&mut b, 5, b"header", &packet), Some(b"text".to_vec()));
        assert_eq!(opened(&mut b, 6, b"header", &packet), None, "another number");
        assert_eq!(opened(&mut b, 5, b"heAder", &packet), None, "another header");
        assert_eq!(opened(&mut keys(2), 5, b"header", &packet), None, "another secret");
        for at in 0..packet.len() {
            let mut altered = packet.clone();
            altered[at] ^= 1;
            assert_eq!(opened(&mut b, 5, b"header", &altered), None, "byte {at}");
            assert_eq!(opened(&mut b, 5, b"header", &packet[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn keys_change_on_both_sides_and_late_packets_still_open() {
        let (mut a, mut b) = (keys(1), keys(1));
        let first = |epoch: u64| epoch << KEY_BITS;
        let late = sealed(&mut a, first(1) - 1);
        let new = sealed(&mut a, first(1));
        assert_ne!(late, new);
        // One that claims to be of the epoch to come changes nothing unless it is genuine.
        assert_eq!(opened(&mut b, first(1) + 1, b"header", &new), None);
        assert_eq!(b.epoch, 0);
        assert_eq!(opened(&mut b, first(1), b"header", &new), Some(b"text".to_vec()));
        assert_eq!(opened(&mut b, first(1) - 1, b"header", &late), Some(b"text".to_vec()));
        let far = sealed(&mut a, first(3));
        assert_eq!(opened(&mut b, first(3), b"header", &far), None, "epochs are never skipped");
        let next = sealed(&mut keys(1), first(2));
        assert_eq!(opened(&mut b, first(2), b"header", &next), Some(b"text".to_vec()));
        assert_eq!(opened(&mut b, first(1) - 1, b"header", &late), None, "too late");
    }

    #[test]
    fn secrets_of_different_uses_differ() {
        let secret = Secret::extract(b"use", b"something");
        assert_ne!(secret, Secret::extract(b"another use", b"something"));
        assert_ne!(secret, Secret::extract(b"use", b"something else"));
        assert_ne!(secret.expand(&[b"there"]), secret.expand(&[b"back"]));
        assert_eq!(secret.expand(&[b"th", b"ere"]), secret.expand(&[b"there"]));
    }
}
