//! Admission: the handshake by which both ends of a lane authenticate each other.
//!
//! An endpoint has a key pair (X25519). Its public key is a part of its address and never crosses a lane in clear. Only
//! those who were given the address know the key. To know it is the permission to connect. A lane begins with a
//! Noise handshake, `Noise_IK_25519_ChaChaPoly_BLAKE2s` (The Noise Protocol Framework, revision 34, 7.5), by the crate
//! `snow`:
//!
//! - Hello carries the first message. Making one takes the listener's public key. It contains the caller's own public
//!   key, encrypted, and proves that the caller has the private one. The handshake's prologue is the Hello without its
//!   count of routers, so nobody on the way can change who calls whom.
//! - Welcome carries the second message. Making one takes the listener's private key. It contains the Welcome,
//!   encrypted, so nobody on the way can change that either.
//!
//! A recorded Hello proves nothing when somebody sends it again: it contains the number of the caller's Hellos to this
//! listener, and the listener takes each number once ([`HelloNumbers`]). So the caller may send data right behind its
//! Hello without waiting for the Welcome, and the first message is no later than without a proof.
//!
//! The Hello of a lane that is to be encrypted ("sealed") also contains a secret that was drawn for this lane. The
//! handshake encrypts the secret to the listener. The keys of everything behind Hello and Welcome come from it.
//!
//! All randomness comes from a secret that the shell draws ([`Secret`]), so that a simulation repeats exactly.

use std::fmt;

use isthmus_seal::Secret;
use isthmus_wire::Key;
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

/// The handshake, as the Noise specification names it.
const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
/// Length of the number in a Hello's proof. Bytes.
const NUMBER_LEN: usize = 8;
/// Length of the authentication tag behind an encrypted part. Bytes.
const TAG_LEN: usize = 16;
/// Length of the proof in a Hello: an ephemeral key, the caller's key, and the number. Bytes.
const HELLO_PROOF_LEN: usize = Key::LEN + Key::LEN + TAG_LEN + NUMBER_LEN + TAG_LEN;
/// Buffer size for a proof: more than the longest one has. Bytes.
const PROOF_MAX: usize = 256;

/// Part of the error text of a caller that an endpoint refuses because it proved nothing.
pub const ADMITS_KNOWN: &str = "admits only those who know its whole address";

/// The public key that goes into the address of an endpoint with this secret. The secret must be random, known to
/// nobody else, and different for each endpoint.
pub fn public_key(secret: &Secret) -> Key {
    Identity::new(*secret).key
}

/// An endpoint's keys.
#[derive(Debug)]
pub(crate) struct Identity {
    secret: Secret,
    private: Secret,
    key: Key,
    /// Lane secrets and ephemeral keys that were drawn. Count; it makes each of them different.
    drawn: u64,
}

impl Identity {
    pub(crate) fn new(secret: Secret) -> Self {
        let private = secret.expand(&[b"isthmus endpoint"]);
        let mut pair = x25519();
        pair.set(&private.0);
        let mut key = Key::NONE;
        key.0.copy_from_slice(&pair.pubkey()[..Key::LEN]);
        Self { secret, private, key, drawn: 0 }
    }

    /// Draws a secret for a lane.
    pub(crate) fn draw_lane_secret(&mut self) -> Secret {
        self.drawn += 1;
        self.secret.expand(&[b"isthmus lane", &self.drawn.to_le_bytes()])
    }

    /// Length of the proof in a Hello. `seals` says whether the lane is to be sealed. Bytes.
    pub(crate) const fn proof_len(seals: bool) -> usize {
        HELLO_PROOF_LEN + if seals { Secret::LEN } else { 0 }
    }

    /// Makes the proof for the `number`th Hello to the endpoint with the key `to`. `lane` is the lane's secret if the
    /// lane is to be sealed.
    pub(crate) fn begin_hello(
        &mut self,
        to: &Key,
        hello: &[u8],
        number: u64,
        lane: Option<&Secret>,
    ) -> (PendingHello, Vec<u8>) {
        let state = self.builder(hello, |builder| builder.remote_public_key(&to.0)?.build_initiator());
        let mut pending = PendingHello(state);
        let payload = [&number.to_le_bytes()[..], lane.map_or(&[], |lane| &lane.0)].concat();
        let proof = write(&mut pending.0, &payload);
        (pending, proof)
    }

    /// Checks the proof of a Hello. `None` if its sender does not know this endpoint's key, or if anybody altered it.
    pub(crate) fn check_hello_proof(&mut self, hello: &[u8], proof: &[u8]) -> Option<ProvenHello> {
        let mut state = self.builder(hello, |builder| builder.build_responder());
        let payload = read(&mut state, proof)?;
        let (number, lane) = payload.split_first_chunk::<NUMBER_LEN>()?;
        let number = u64::from_le_bytes(*number);
        let lane = match lane {
            [] => None,
            secret => Some(Secret(secret.try_into().ok()?)),
        };
        let key = Key(state.get_remote_static()?.try_into().ok()?);
        Some(ProvenHello { state, key, number, lane })
    }

    fn builder(
        &mut self,
        prologue: &[u8],
        build: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
    ) -> HandshakeState {
        self.drawn += 1;
        let ephemeral = self.secret.expand(&[b"isthmus ephemeral", &self.drawn.to_le_bytes()]);
        let params: NoiseParams = PATTERN.parse().expect("a pattern of the standard");
        let builder = Builder::with_resolver(params, Box::new(Resolver(ephemeral)));
        let builder =
            builder.prologue(prologue).and_then(|builder| builder.local_private_key(&self.private.0));
        builder.and_then(build).expect("all that the pattern needs is there")
    }
}

/// The handshake of an unanswered Hello of ours.
pub(crate) struct PendingHello(HandshakeState);

impl PendingHello {
    /// Whether this proof shows that the listener sent this Welcome.
    pub(crate) fn check_answer(&mut self, welcome: &[u8], proof: &[u8]) -> bool {
        read(&mut self.0, proof).is_some_and(|answer| answer == welcome)
    }
}

impl fmt::Debug for PendingHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingHello")
    }
}

/// A Hello whose proof is good. The caller of [`Identity::check_hello_proof`] still has to check that its number is
/// new.
pub(crate) struct ProvenHello {
    state: HandshakeState,
    /// The caller's public key.
    pub(crate) key: Key,
    pub(crate) number: u64,
    /// The lane's secret, if it is to be sealed.
    pub(crate) lane: Option<Secret>,
}

impl ProvenHello {
    /// Length of the proof of a Welcome that has `welcome` bytes. Bytes.
    pub(crate) const fn proof_len(welcome: usize) -> usize {
        Key::LEN + welcome + TAG_LEN
    }

    /// Makes the proof for the Welcome.
    pub(crate) fn answer(mut self, welcome: &[u8]) -> Vec<u8> {
        write(&mut self.state, welcome)
    }
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; PROOF_MAX];
    let len = state.write_message(payload, &mut message).expect("room for a short message");
    message.truncate(len);
    message
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Option<Vec<u8>> {
    let mut payload = vec![0; PROOF_MAX];
    let len = state.read_message(message, &mut payload).ok()?;
    payload.truncate(len);
    Some(payload)
}

/// The numbers of the Hellos that went to a peer and came from it.
#[derive(Debug, Default)]
pub(crate) struct HelloNumbers {
    sent: u64,
    /// The highest number that came.
    highest: u64,
    /// The numbers that came, of the 64 up to `highest`: bit i stands for `highest` - i.
    came: u64,
}

impl HelloNumbers {
    /// The number of the next Hello to the peer, from 1.
    pub(crate) fn next(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Records a Hello of the peer. False if its number came before, or is too old to tell.
    pub(crate) fn take(&mut self, number: u64) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.came = if ahead < 64 { self.came << ahead } else { 0 } | 1;
            self.highest = number;
            return true;
        }
        let bit = 1_u64.checked_shl((self.highest - number).min(64) as u32).unwrap_or(0);
        let is_new = bit != 0 && number > 0 && self.came & bit == 0;
        self.came |= bit;
        is_new
    }
}

fn x25519() -> Box<dyn Dh> {
    DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("built in")
}

/// Gives `snow` its algorithms. Its only randomness is the ephemeral key that was drawn for the handshake.
struct Resolver(Secret);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Drawn(Some(self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Gives 32 random bytes once.
struct Drawn(Option<Secret>);

impl Random for Drawn {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        let drawn = self.0.take().filter(|drawn| drawn.0.len() == out.len()).ok_or(snow::Error::Rng)?;
        out.copy_from_slice(&drawn.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &[u8] = b"a hello";
    const WELCOME: &[u8] = b"a welcome";

    fn pair() -> (Identity, Identity) {
        (Identity::new(Secret([1; 32])), Identity::new(Secret([2; 32])))
    }

    #[test]
    fn both_ends_know_each_other_afterwards() {
        let (mut a, mut b) = pair();
        let secrets = [None, Some(a.draw_lane_secret()), Some(a.draw_lane_secret())];
        assert_ne!(secrets[1], secrets[2]);
        for lane in &secrets[..2] {
            let (_, proof) = a.begin_hello(&b.key, HELLO, 6, lane.as_ref());
            assert_eq!(proof.len(), Identity::proof_len(lane.is_some()));
            assert_eq!(b.check_hello_proof(HELLO, &proof).map(|heard| heard.lane), Some(*lane));
            assert!(lane.is_none_or(|lane| !proof.windows(32).any(|part| part == lane.0)));
        }
        let (mut pending, proof) = a.begin_hello(&b.key, HELLO, 7, None);
        let heard = b.check_hello_proof(HELLO, &proof).expect("a good proof");
        assert_eq!((heard.key, heard.number), (a.key, 7));
        let answer = heard.answer(WELCOME);
        assert_eq!(answer.len(), ProvenHello::proof_len(WELCOME.len()));
        assert!(pending.check_answer(WELCOME, &answer));
    }

    #[test]
    fn who_does_not_know_the_key_or_alters_anything_proves_nothing() {
        let (mut a, mut b) = pair();
        let stranger = public_key(&Secret([3; 32]));
        assert!(b.check_hello_proof(HELLO, &a.begin_hello(&stranger, HELLO, 1, None).1).is_none());
        let (_, proof) = a.begin_hello(&b.key, HELLO, 1, None);
        assert!(b.check_hello_proof(b"another hello", &proof).is_none());
        for at in 0..proof.len() {
            let mut altered = proof.clone();
            altered[at] ^= 1;
            assert!(b.check_hello_proof(HELLO, &altered).is_none(), "byte {at}");
            assert!(b.check_hello_proof(HELLO, &proof[..at]).is_none(), "cut at {at}");
        }
        // The point of order 1 makes the shared secret known to all.
        assert!(b.check_hello_proof(HELLO, &[&[0; 32], &proof[32..]].concat()).is_none());
    }

    #[test]
    fn an_answer_is_for_one_hello_and_one_welcome() {
        let (mut a, mut b) = pair();
        let mut answer = |number| {
            let (pending, proof) = a.begin_hello(&b.key, HELLO, number, None);
            (pending, b.check_hello_proof(HELLO, &proof).expect("good").answer(WELCOME))
        };
        let ((mut first, good), (mut second, _)) = (answer(1), answer(2));
        assert!(!second.check_answer(WELCOME, &good), "of another Hello");
        assert!(!second.check_answer(WELCOME, &[]));
        assert!(!first.check_answer(b"altered", &good));
    }

    #[test]
    fn no_key_goes_in_clear_and_no_ephemeral_key_twice() {
        let (mut a, mut b) = pair();
        let (_, first) = a.begin_hello(&b.key, HELLO, 1, None);
        let (_, second) = a.begin_hello(&b.key, HELLO, 1, None);
        assert_ne!(first[..32], second[..32]);
        let answer = b.check_hello_proof(HELLO, &first).expect("good").answer(WELCOME);
        for bytes in [first, answer] {
            for key in [a.key, b.key] {
                assert!(!bytes.windows(32).any(|part| part == key.0));
            }
        }
    }

    #[test]
    fn each_number_is_taken_once_in_any_order_of_the_last_64() {
        let mut numbers = HelloNumbers::default();
        assert_eq!((numbers.next(), numbers.next()), (1, 2));
        for number in [3, 1, 2, 70, 69, 40, 7, 200] {
            assert!(numbers.take(number), "{number}");
            assert!(!numbers.take(number), "{number} again");
        }
        assert!(!numbers.take(136) && numbers.take(137), "too old");
        assert!(!numbers.take(0) && !HelloNumbers::default().take(0));
        assert!(numbers.take(u64::MAX) && !numbers.take(1));
    }
}
