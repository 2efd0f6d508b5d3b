//! Where packets are sealed and opened.
//!
//! Who shares a [`Session`] (the exporter of one TLS 1.3 session, RFC 8446, 7.5) has one
//! stream within it, whose packets are [`Sealed`] by AES-128-GCM. The header stays readable
//! and is authenticated; the nonce is the packet's number, which is never used twice; each
//! direction has keys of its own, that change every 2^24 packets, well before the bound of
//! RFC 8446, 5.5, at any packet size. A packet that came before is dropped by its number.
//!
//! Without a session packets can be [`Checked`]: UDP's own sum has 16 bits, and misses one in 65,536 of the
//! packets that a broken card or router alters. Builds from before there was that do not read them.

use std::fmt;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};

use crate::wire::{TOKEN_LEN, Token};

/// Protects the frames of packets. The header stays readable and is protected with them.
pub trait Protection: Send + fmt::Debug {
    /// Whether packets say that they have a checksum, see [`without_checksum`].
    fn is_checked(&self) -> bool {
        false
    }
    /// Bytes that sealing adds.
    fn overhead(&self) -> usize;
    /// Seals the packet that begins at `start` from its frames, at `body`, on to its end, and
    /// appends the rest.
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

/// CRC-32C of the whole packet, behind its frames. Which packets have one they say themselves, so that
/// each side begins and ceases when it likes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked;

/// Length of a checksum. Bytes.
const CHECKSUM_LEN: usize = 4;

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// A packet that says it has a checksum, without that; `None` where it is another.
pub(crate) fn without_checksum(packet: &mut [u8]) -> Option<&mut [u8]> {
    let (packet, sum) = packet.split_at_mut_checked(packet.len().checked_sub(CHECKSUM_LEN)?)?;
    (checksum(packet) == *sum).then_some(packet)
}

impl Protection for Checked {
    fn is_checked(&self) -> bool {
        true
    }
    fn overhead(&self) -> usize {
        CHECKSUM_LEN
    }
    fn seal(&mut self, _: u64, packet: &mut Vec<u8>, start: usize, _: usize) {
        packet.extend_from_slice(&checksum(&packet[start..]));
    }
    /// Nothing is believed of a packet before its checksum was seen to, its header neither: that is past here.
    fn open<'a>(&mut self, number: u64, packet: &'a mut [u8], body: usize) -> Option<&'a [u8]> {
        Plain.open(number, packet, body)
    }
}

/// Length of a direction's secret. Bytes.
const SECRET_LEN: usize = 32;

/// What both ends of an authenticated session have in common, for one stream.
#[derive(Clone)]
pub struct Session {
    pub(crate) token: Token,
    opener: [u8; SECRET_LEN],
    acceptor: [u8; SECRET_LEN],
    pub(crate) label: u64,
}

impl Session {
    /// How much the session's exporter is to give. Bytes.
    pub const LEN: usize = TOKEN_LEN + 2 * SECRET_LEN;

    /// From what the exporter gave. `label` is the application's own, see
    /// [`crate::Port::label`].
    pub fn new(exported: &[u8; Self::LEN], label: u64) -> Self {
        let part = |from: usize| std::array::from_fn(|i| exported[from + i]);
        Self {
            token: std::array::from_fn(|i| exported[i]),
            opener: part(TOKEN_LEN),
            acceptor: part(TOKEN_LEN + SECRET_LEN),
            label,
        }
    }

    /// The protection of whoever opens the stream.
    pub(crate) fn for_opener(&self) -> Sealed {
        Sealed { sends: Keys::new(&self.opener), receives: Keys::new(&self.acceptor) }
    }

    /// The protection of the other side.
    pub(crate) fn for_acceptor(&self) -> Sealed {
        Sealed { sends: Keys::new(&self.acceptor), receives: Keys::new(&self.opener) }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("label", &self.label).finish_non_exhaustive()
    }
}

/// Packets that one key seals, as a power of two.
const KEY_BITS: u32 = 24;

/// The keys of one direction: of the present epoch, the one before and the one behind.
struct Keys {
    secret: Prk,
    epoch: u64,
    /// Those of `epoch` - 1 (while `epoch` is 0, the same as the next), `epoch`, `epoch` + 1.
    keys: [LessSafeKey; 3],
}

impl Keys {
    fn new(secret: &[u8; SECRET_LEN]) -> Self {
        let secret = Prk::new_less_safe(HKDF_SHA256, secret);
        let keys = [key(&secret, 0), key(&secret, 0), key(&secret, 1)];
        Self { secret, epoch: 0, keys }
    }

    /// The key of a packet's number, if it is of an epoch that may be in use.
    fn of(&self, number: u64) -> Option<&LessSafeKey> {
        let at = (number >> KEY_BITS) + 1;
        self.keys.get(at.checked_sub(self.epoch)? as usize)
    }

    /// A packet of this number is known to be genuine.
    fn reach(&mut self, number: u64) {
        while number >> KEY_BITS > self.epoch {
            self.epoch += 1;
            self.keys.rotate_left(1);
            self.keys[2] = key(&self.secret, self.epoch + 1);
        }
    }
}

fn key(secret: &Prk, epoch: u64) -> LessSafeKey {
    let info = [b"isthmus-udp key".as_slice(), &epoch.to_be_bytes()];
    // It fails only where more is asked for than a hash can give.
    let okm = secret.expand(&info, &AES_128_GCM).expect("16 bytes are few");
    LessSafeKey::new(UnboundKey::from(okm))
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// AES-128-GCM by the keys of a [`Session`].
pub(crate) struct Sealed {
    sends: Keys,
    receives: Keys,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").finish_non_exhaustive()
    }
}

/// Length of what proves a packet genuine. Bytes.
const TAG_LEN: usize = 16;

impl Protection for Sealed {
    fn overhead(&self) -> usize {
        TAG_LEN
    }

    fn seal(&mut self, number: u64, packet: &mut Vec<u8>, start: usize, body: usize) {
        self.sends.reach(number);
        let [_, key, _] = &self.sends.keys;
        let (header, frames) = packet[start..].split_at_mut(body - start);
        // It fails only for packets of gigabytes.
        let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from(header), frames);
        packet.extend_from_slice(tag.expect("a packet is short").as_ref());
    }

    fn open<'a>(&mut self, number: u64, packet: &'a mut [u8], body: usize) -> Option<&'a [u8]> {
        let (header, sealed) = packet.split_at_mut_checked(body)?;
        let (frames, tag) = sealed.split_at_mut_checked(sealed.len().checked_sub(TAG_LEN)?)?;
        let tag = Tag::try_from(&*tag).ok()?;
        let key = self.receives.of(number)?;
        let opened = key.open_in_place_separate_tag(nonce(number), Aad::from(header), tag, frames, 0..);
        let opened = opened.ok()?;
        self.receives.reach(number);
        Some(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(seed: u8) -> Session {
        Session::new(&std::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add(i as u8)), 7)
    }

    fn sealed(by: &mut Sealed, number: u64) -> Vec<u8> {
        let mut packet = b"before headerframes".to_vec();
        by.seal(number, &mut packet, 7, 13);
        assert_eq!(packet.len(), 19 + by.overhead());
        packet.split_off(7)
    }

    fn opened(by: &mut Sealed, number: u64, packet: &[u8]) -> Option<Vec<u8>> {
        by.open(number, &mut packet.to_vec(), 6).map(<[u8]>::to_vec)
    }

    #[test]
    fn the_other_end_opens_what_was_sealed_and_nothing_else() {
        let (mut a, mut b) = (session(1).for_opener(), session(1).for_acceptor());
        let packet = sealed(&mut a, 5);
        assert!(!packet.windows(6).any(|bytes| bytes == b"frames"));
        assert_eq!(opened(&mut b, 5, &packet), Some(b"frames".to_vec()));
        assert_eq!(opened(&mut b, 6, &packet), None, "another number");
        for at in 0..packet.len() {
            let mut altered = packet.clone();
            altered[at] ^= 1;
            assert_eq!(opened(&mut b, 5, &altered), None, "byte {at}");
            assert_eq!(opened(&mut b, 5, &packet[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn a_checksum_is_that_of_the_standard_and_shows_what_was_altered() {
        // The check value of CRC-32C (RFC 3720, B.4, and the catalogues of CRCs).
        assert_eq!(checksum(b"123456789"), 0xe306_9283_u32.to_le_bytes());
        let mut packet = b"before headerframes".to_vec();
        Checked.seal(5, &mut packet, 7, 13);
        let mut packet = packet.split_off(7);
        assert_eq!(without_checksum(&mut packet.clone()).as_deref(), Some(b"headerframes".as_slice()));
        for bit in 0..8 * packet.len() {
            packet[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(without_checksum(&mut packet), None, "bit {bit}");
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(without_checksum(&mut [0; 3]), None);
    }

    #[test]
    fn each_direction_and_each_session_has_keys_of_its_own() {
        let (mut a, mut b) = (session(1).for_opener(), session(1).for_acceptor());
        let (there, back) = (sealed(&mut a, 5), sealed(&mut b, 5));
        assert_ne!(there, back);
        assert_eq!(opened(&mut a, 5, &there), None, "what one sent oneself");
        assert_eq!(opened(&mut a, 5, &back), Some(b"frames".to_vec()));
        assert_eq!(opened(&mut session(2).for_acceptor(), 5, &there), None, "another session");
    }

    #[test]
    fn keys_change_on_both_sides_and_late_packets_still_open() {
        let (mut a, mut b) = (session(1).for_opener(), session(1).for_acceptor());
        let first = |epoch: u64| epoch << KEY_BITS;
        let late = sealed(&mut a, first(1) - 1);
        let new = sealed(&mut a, first(1));
        assert_ne!(late, new);
        // One that claims to be of the epoch to come changes nothing unless it is genuine.
        assert_eq!(opened(&mut b, first(1) + 1, &new), None);
        assert_eq!(b.receives.epoch, 0);
        assert_eq!(opened(&mut b, first(1), &new), Some(b"frames".to_vec()));
        assert_eq!(opened(&mut b, first(1) - 1, &late), Some(b"frames".to_vec()));
        let far = sealed(&mut a, first(3));
        assert_eq!(opened(&mut b, first(3), &far), None, "epochs are never skipped");
        let next = sealed(&mut session(1).for_opener(), first(2));
        assert_eq!(opened(&mut b, first(2), &next), Some(b"frames".to_vec()));
        assert_eq!(opened(&mut b, first(1) - 1, &late), None, "too late");
    }
}
