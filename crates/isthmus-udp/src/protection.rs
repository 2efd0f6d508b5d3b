//! Packet protection: encryption and authentication, or a checksum.
//!
//! A sealed packet's header stays readable and is authenticated. The nonce is the packet number, which is never used
//! twice. Each direction has keys of its own ([`isthmus_seal::Keys`]). A replayed packet is dropped by its number.
//! There are two sources of keys:
//!
//! - A [`Session`]: the exporter of one TLS 1.3 session (RFC 8446, 7.5). One stream is opened within it.
//! - An [`Initial`] secret, which comes with the acceptor's address. As with QUIC's Initial packets (RFC 9001, 5.2), a
//!   stream's first keys are derived from this secret and the connection ids. The acceptor's id is one of them. A
//!   repeated Open gets another id, so the acceptor never uses keys twice.
//!
//! Once both ends share a secret of their own, they change to keys from it ([`crate::Stream::rekey`]): the acceptor at
//! once, the opener when it knows that the acceptor did. Then a packet with the initial keys counts only if it was sent
//! before the change.
//!
//! Other packets may have a checksum ([`Checked`]). UDP's own has 16 bits, and misses one in 65,536 altered packets.

use std::fmt;

use isthmus_seal::{Keys, Secret, TAG_LEN};

use crate::wire::{ConnectionId, Header, TOKEN_LEN, Token};

/// Protects the frames of packets. The header stays readable and is protected with them.
pub trait Protection: Send + fmt::Debug {
    /// Whether packets say that they have a checksum, see `without_checksum`.
    fn is_checked(&self) -> bool {
        false
    }
    /// Whether Data packets are sealed with the stream's own keys, see [`Protection::rekey`].
    fn is_keyed(&self) -> bool {
        false
    }
    /// Whether packets are encrypted.
    fn is_sealed(&self) -> bool {
        false
    }
    /// Whether the keys belong to a session, so that no proof of an address is needed.
    fn is_of_session(&self) -> bool {
        false
    }
    /// Whether a Data packet that opens comes from the peer, as nobody else has its keys. `keyed`: it is sealed with
    /// the stream's own.
    fn proves_peer(&self, _keyed: bool) -> bool {
        false
    }
    /// Bytes that sealing adds.
    fn overhead(&self) -> usize;
    /// Seals the packet that begins at `start`, with its frames at `body`. Both are offsets in `packet`. Appends `more`,
    /// the rest of the frames, sealed too, and the tag or checksum.
    fn seal(&mut self, of: Sealing, packet: &mut Vec<u8>, start: usize, body: usize, more: &[u8]);
    /// Opens a packet in place and returns its frames; `None` if it is not authentic.
    fn open<'a>(&mut self, of: Sealing, packet: &'a mut [u8], body: usize) -> Option<&'a [u8]>;
    /// Changes to keys from this secret; the peer has it, or will after our next message. False if keys stay.
    fn rekey(&mut self, _: &Secret) -> bool {
        false
    }
}

/// Properties of a packet's header that decide how it is sealed.
#[derive(Clone, Copy, Debug)]
pub struct Sealing {
    /// The packet number.
    pub number: u64,
    /// Whether the packet uses the stream's own keys.
    pub keyed: bool,
    /// Id of the acceptor, if the packet is an Accept and so tells it.
    pub acceptor: Option<ConnectionId>,
}

impl Sealing {
    /// Takes the properties from this header.
    pub fn new(header: &Header, number: u64) -> Self {
        let (keyed, acceptor) = match *header {
            Header::Data { keyed, .. } => (keyed, None),
            Header::Accept { source, .. } => (false, Some(source)),
            Header::Open { .. } => (false, None),
        };
        Self { number, keyed, acceptor }
    }
}

/// No protection: for hosts that trust their network, and below TLS.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Protection for Plain {
    fn overhead(&self) -> usize {
        0
    }
    fn seal(&mut self, _: Sealing, packet: &mut Vec<u8>, _: usize, _: usize, more: &[u8]) {
        packet.extend_from_slice(more);
    }
    fn open<'a>(&mut self, _: Sealing, packet: &'a mut [u8], body: usize) -> Option<&'a [u8]> {
        packet.get(body..)
    }
}

/// CRC-32C of the whole packet, behind its frames. Each packet says whether it has one, so each side starts and stops
/// when it likes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked;

/// Length of a checksum. Bytes.
const CHECKSUM_LEN: usize = 4;

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// Removes the checksum of a packet that says it has one; `None` if the checksum is wrong.
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
    fn seal(&mut self, _: Sealing, packet: &mut Vec<u8>, start: usize, _: usize, more: &[u8]) {
        packet.extend_from_slice(more);
        packet.extend_from_slice(&checksum(&packet[start..]));
    }
    /// The port has checked and removed the checksum by now, as even a header counts only after that.
    fn open<'a>(&mut self, of: Sealing, packet: &'a mut [u8], body: usize) -> Option<&'a [u8]> {
        Plain.open(of, packet, body)
    }
}

/// Secrets that both ends of an authenticated session share, for one stream.
#[derive(Clone)]
pub struct Session {
    pub(crate) token: Token,
    opener: Secret,
    acceptor: Secret,
    pub(crate) label: u64,
}

impl Session {
    /// Bytes to ask of the session's exporter.
    pub const LEN: usize = TOKEN_LEN + 2 * Secret::LEN;

    /// Makes a session from the exporter's bytes. `label` is for the application, see [`crate::Port::label`].
    pub fn new(exported: &[u8; Self::LEN], label: u64) -> Self {
        let part = |from: usize| Secret(std::array::from_fn(|i| exported[from + i]));
        Self {
            token: std::array::from_fn(|i| exported[i]),
            opener: part(TOKEN_LEN),
            acceptor: part(TOKEN_LEN + Secret::LEN),
            label,
        }
    }

    /// Protection of the side that opens the stream.
    pub(crate) fn for_opener(&self) -> Sealed {
        Sealed::by_session(&self.opener, &self.acceptor)
    }

    /// Protection of the side that accepts it.
    pub(crate) fn for_acceptor(&self) -> Sealed {
        Sealed::by_session(&self.acceptor, &self.opener)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("label", &self.label).finish_non_exhaustive()
    }
}

/// Secret of those who may open a stream to an acceptor, derived from the secret part of the acceptor's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initial(Secret);

impl Initial {
    /// Derives the secret from what only holders of the acceptor's address know.
    pub fn new(known: &[u8]) -> Self {
        Self(Secret::extract(b"isthmus-udp initial", known))
    }

    fn opener_secret(&self, opener: ConnectionId) -> Secret {
        self.0.expand(&[OPENER, &opener.to_be_bytes()])
    }

    fn acceptor_secret(&self, opener: ConnectionId, acceptor: ConnectionId) -> Secret {
        self.0.expand(&[ACCEPTOR, &opener.to_be_bytes(), &acceptor.to_be_bytes()])
    }

    /// Protection of the side that opens a stream with this id.
    pub(crate) fn for_opener(&self, opener: ConnectionId) -> Sealed {
        let sends = Keys::new(&self.opener_secret(opener));
        Sealed {
            sends,
            receives: Inward::Awaited { initial: self.clone(), opener },
            own: None,
            role: Role::Opener,
        }
    }

    /// Protection of the side that accepts it with the id `acceptor`.
    pub(crate) fn for_acceptor(&self, opener: ConnectionId, acceptor: ConnectionId) -> Sealed {
        let sends = Keys::new(&self.acceptor_secret(opener, acceptor));
        let receives = Inward::Known(Box::new(Keys::new(&self.opener_secret(opener))));
        Sealed { sends, receives, own: None, role: Role::Acceptor }
    }
}

/// Labels that keep the keys of a stream's directions apart.
const OPENER: &[u8] = b"opener";
const ACCEPTOR: &[u8] = b"acceptor";

/// Which side this is, and whether its keys may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Keys of a session are the stream's own from the beginning.
    Session,
    Opener,
    Acceptor,
}

/// The initial keys of received packets.
#[derive(Debug)]
enum Inward {
    Known(Box<Keys>),
    /// The acceptor has not told its id yet.
    Awaited {
        initial: Initial,
        opener: ConnectionId,
    },
}

/// The keys from the secret of both ends.
#[derive(Debug)]
struct Own {
    sends: Keys,
    receives: Keys,
    /// The peer has these keys too.
    confirmed: bool,
    /// Smallest number of a packet received with these keys.
    first: Option<u64>,
}

/// AES-128-GCM with the keys of a [`Session`] or of an [`Initial`] secret, and later with the stream's own.
#[derive(Debug)]
pub(crate) struct Sealed {
    sends: Keys,
    receives: Inward,
    own: Option<Box<Own>>,
    role: Role,
}

impl Sealed {
    fn by_session(sends: &Secret, receives: &Secret) -> Self {
        let receives = Inward::Known(Box::new(Keys::new(receives)));
        Self { sends: Keys::new(sends), receives, own: None, role: Role::Session }
    }

    fn open_by_own<'a>(&mut self, number: u64, header: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let own = self.own.as_mut()?;
        let opened = own.receives.open(number, header, sealed)?;
        own.confirmed = true;
        own.first = Some(own.first.map_or(number, |first| first.min(number)));
        Some(opened)
    }

    fn open_by_initial<'a>(&mut self, of: Sealing, header: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let changed_at = self.own.as_ref().and_then(|own| own.first);
        if changed_at.is_some_and(|first| of.number > first) {
            return None; // the peer had changed its keys by then
        }
        match &mut self.receives {
            Inward::Known(keys) => keys.open(of.number, header, sealed).map(|opened| &*opened),
            Inward::Awaited { initial, opener } => {
                let mut keys = Keys::new(&initial.acceptor_secret(*opener, of.acceptor?));
                let opened = keys.open(of.number, header, sealed)?;
                self.receives = Inward::Known(Box::new(keys));
                Some(opened)
            }
        }
    }
}

impl Protection for Sealed {
    fn is_keyed(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.confirmed)
    }

    fn is_sealed(&self) -> bool {
        true
    }

    fn is_of_session(&self) -> bool {
        self.role == Role::Session
    }

    fn proves_peer(&self, keyed: bool) -> bool {
        keyed || self.is_of_session()
    }

    fn overhead(&self) -> usize {
        TAG_LEN
    }

    fn seal(&mut self, of: Sealing, packet: &mut Vec<u8>, start: usize, body: usize, more: &[u8]) {
        let keys = match &mut self.own {
            Some(own) if of.keyed => &mut own.sends,
            _ => &mut self.sends,
        };
        packet.resize(packet.len() + more.len() + TAG_LEN, 0);
        let (header, frames) = packet[start..].split_at_mut(body - start);
        keys.seal(of.number, header, frames, more);
    }

    fn open<'a>(&mut self, of: Sealing, packet: &'a mut [u8], body: usize) -> Option<&'a [u8]> {
        let (header, sealed) = packet.split_at_mut_checked(body)?;
        if of.keyed {
            self.open_by_own(of.number, header, sealed)
        } else {
            self.open_by_initial(of, header, sealed)
        }
    }

    fn rekey(&mut self, secret: &Secret) -> bool {
        let keys = |label: &[u8]| Keys::new(&secret.expand(&[label]));
        let (sends, receives) = match self.role {
            Role::Session => return false,
            Role::Opener => (keys(OPENER), keys(ACCEPTOR)),
            Role::Acceptor => (keys(ACCEPTOR), keys(OPENER)),
        };
        let confirmed = self.role == Role::Acceptor;
        self.own = Some(Box::new(Own { sends, receives, confirmed, first: None }));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(seed: u8) -> Session {
        Session::new(&std::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add(i as u8)), 7)
    }

    fn plainly(number: u64) -> Sealing {
        Sealing { number, keyed: false, acceptor: None }
    }

    fn keyed(number: u64) -> Sealing {
        Sealing { keyed: true, ..plainly(number) }
    }

    /// A packet of an acceptor that tells its id, 9.
    fn accepting(number: u64) -> Sealing {
        Sealing { acceptor: Some(9), ..plainly(number) }
    }

    fn sealed(by: &mut Sealed, of: Sealing) -> Vec<u8> {
        let mut packet = b"before headerfra".to_vec();
        by.seal(of, &mut packet, 7, 13, b"mes");
        assert_eq!(packet.len(), 19 + by.overhead());
        packet.split_off(7)
    }

    fn opened(by: &mut Sealed, of: Sealing, packet: &[u8]) -> Option<Vec<u8>> {
        by.open(of, &mut packet.to_vec(), 6).map(<[u8]>::to_vec)
    }

    fn frames() -> Option<Vec<u8>> {
        Some(b"frames".to_vec())
    }

    #[test]
    fn a_checksum_is_that_of_the_standard_and_shows_what_was_altered() {
        // The check value of CRC-32C (RFC 3720, B.4, and the catalogues of CRCs).
        assert_eq!(checksum(b"123456789"), 0xe306_9283_u32.to_le_bytes());
        let mut packet = b"before headerfra".to_vec();
        Checked.seal(plainly(5), &mut packet, 7, 13, b"mes");
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
        let (there, back) = (sealed(&mut a, plainly(5)), sealed(&mut b, plainly(5)));
        assert_ne!(there, back);
        assert_eq!(opened(&mut a, plainly(5), &there), None, "what one sent oneself");
        assert_eq!(opened(&mut a, plainly(5), &back), frames());
        assert_eq!(opened(&mut session(2).for_acceptor(), plainly(5), &there), None, "another session");
        assert!(!a.rekey(&Secret([1; 32])), "a session's keys stay");
    }

    #[test]
    fn who_knows_the_address_opens_and_no_two_streams_have_the_same_keys() {
        let (known, other) = (Initial::new(b"the key of an address"), Initial::new(b"another"));
        let mut a = known.for_opener(3);
        let there = sealed(&mut a, plainly(0));
        assert_eq!(opened(&mut known.for_acceptor(3, 9), plainly(0), &there), frames());
        assert_eq!(opened(&mut known.for_acceptor(4, 9), plainly(0), &there), None, "another opener's id");
        assert_eq!(opened(&mut other.for_acceptor(3, 9), plainly(0), &there), None, "another address");
        // A repeated Open leads to an acceptor with another id, and so to other keys.
        let answers = [9, 10].map(|id| sealed(&mut known.for_acceptor(3, id), plainly(0)));
        assert_ne!(answers[0], answers[1]);
        assert_eq!(opened(&mut a, plainly(0), &answers[0]), None, "whose id it is was not said");
        assert_eq!(opened(&mut a, accepting(0), &answers[1]), None, "another id was said");
        assert_eq!(opened(&mut a, accepting(0), &answers[0]), frames());
        assert_eq!(opened(&mut a, plainly(0), &answers[0]), frames(), "once known it need not be said");
    }

    #[test]
    fn both_ends_change_to_their_own_keys_and_late_packets_still_open() {
        let known = Initial::new(b"the key of an address");
        let (mut a, mut b) = (known.for_opener(3), known.for_acceptor(3, 9));
        let secret = Secret([5; 32]);
        let late = sealed(&mut a, plainly(1));
        assert!(a.rekey(&secret) && !a.is_keyed(), "the acceptor may not have the secret yet");
        let before = sealed(&mut a, plainly(2));
        assert_eq!(opened(&mut b, plainly(2), &before), frames());
        assert!(b.rekey(&secret) && b.is_keyed());
        // A packet of the acceptor with these keys shows the opener that it has them.
        let back = sealed(&mut b, keyed(0));
        assert_eq!(opened(&mut a, keyed(0), &back), frames());
        assert!(a.is_keyed());
        let own = sealed(&mut a, keyed(3));
        assert_eq!(opened(&mut b, keyed(3), &own), frames());
        assert_eq!(opened(&mut b, plainly(1), &late), frames());
        // Others with the address can make packets with the initial keys, but too late.
        let forged = sealed(&mut known.for_opener(3), plainly(4));
        assert_eq!(opened(&mut b, plainly(4), &forged), None);
        assert_eq!(opened(&mut b, keyed(4), &forged), None);
        let mut other = known.for_opener(3);
        other.rekey(&Secret([6; 32]));
        assert_eq!(opened(&mut b, keyed(4), &sealed(&mut other, keyed(4))), None, "another secret");
    }
}
