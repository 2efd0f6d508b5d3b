//! Encrypts blocks: AES-256-GCM, with one key for each direction of a session.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

/// Length of the tag that sealing adds to a block. Bytes.
pub const TAG_LEN: usize = 16;
/// Length of a key. Bytes.
pub const KEY_LEN: usize = 32;

/// The key of one direction. None if blocks are not encrypted.
#[derive(Debug)]
pub struct Seal(Option<LessSafeKey>);

/// A block is not as the other side sealed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a block was changed on its way")]
pub struct Broken;

impl Seal {
    /// A seal that does not encrypt.
    pub fn none() -> Self {
        Self(None)
    }

    /// A seal with this key. The key must not be used for anything else.
    pub fn new(key: &[u8; KEY_LEN]) -> Result<Self, Broken> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| Broken)?;
        Ok(Self(Some(LessSafeKey::new(key))))
    }

    /// Bytes that sealing adds to a block.
    pub fn overhead(&self) -> usize {
        if self.0.is_some() { TAG_LEN } else { 0 }
    }

    /// Encrypts `body`. The tag covers `header` too. Each `number` must be used only once.
    pub fn seal(&self, number: u64, header: &[u8], body: &mut [u8]) -> Result<Option<[u8; TAG_LEN]>, Broken> {
        let Some(key) = &self.0 else { return Ok(None) };
        let tag =
            key.seal_in_place_separate_tag(nonce(number), Aad::from(header), body).map_err(|_| Broken)?;
        let mut bytes = [0; TAG_LEN];
        bytes.copy_from_slice(tag.as_ref());
        Ok(Some(bytes))
    }

    /// Decrypts the body and tag after the header, which is the first `lead` bytes. Returns the body, moved to where
    /// the header was, so that it starts at a page.
    pub fn open<'a>(&self, number: u64, lead: usize, message: &'a mut [u8]) -> Result<&'a mut [u8], Broken> {
        let Some(key) = &self.0 else {
            let body = message.len().checked_sub(lead).ok_or(Broken)?;
            message.copy_within(lead.., 0);
            return Ok(&mut message[..body]);
        };
        let end = message.len().checked_sub(TAG_LEN).filter(|end| *end >= lead).ok_or(Broken)?;
        let (sealed, tag) = message.split_at_mut(end);
        let tag = Tag::try_from(&*tag).map_err(|_| Broken)?;
        let header = sealed[..lead].to_vec();
        key.open_in_place_separate_tag(nonce(number), Aad::from(&header[..]), tag, sealed, lead..)
            .map_err(|_| Broken)
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_opens_as_it_was_sealed_and_not_otherwise() {
        let seal = Seal::new(&[7; KEY_LEN]).expect("a key");
        let mut block = b"what the file says".to_vec();
        let tag = seal.seal(5, b"header", &mut block).expect("sealed").expect("a tag");
        assert_ne!(block, b"what the file says");
        block.extend_from_slice(&tag);
        let open = |number, header: &[u8], change: usize| {
            let mut message = [header, &block].concat();
            if let Some(byte) = message.get_mut(change) {
                *byte ^= 1;
            }
            seal.open(number, header.len(), &mut message).map(|body| body.to_vec())
        };
        assert_eq!(open(5, b"header", usize::MAX), Ok(b"what the file says".to_vec()));
        assert_eq!(open(6, b"header", usize::MAX), Err(Broken));
        assert_eq!(open(5, b"Header", usize::MAX), Err(Broken));
        for change in 0..b"header".len() + block.len() {
            assert_eq!(open(5, b"header", change), Err(Broken));
        }
        for (lead, len) in [(0, 15), (6, 21), (22, 21)] {
            assert_eq!(seal.open(5, lead, &mut vec![0; len]), Err(Broken));
        }
    }

    #[test]
    fn what_is_not_sealed_begins_where_its_header_did_too() {
        let mut message = *b"headerbody";
        assert_eq!(Seal::none().open(0, 6, &mut message).expect("as it is"), b"body");
        assert_eq!(Seal::none().open(0, 11, &mut message), Err(Broken));
    }
}
