//! A stream of bytes as sealed records. A record is the length of the text (4 bytes, little-endian), the encrypted
//! text, and its tag. Records are numbered from 0 without gaps, so none can be left out, repeated or moved.

use crate::keys::{Keys, Secret, TAG_LEN};

/// Length of the field that holds the length of a record's text. Bytes.
const LEN_BYTES: usize = 4;
/// Most text in a record, as in TLS (RFC 8446, 5.1). Bytes.
pub const RECORD_MAX: usize = 16 << 10;
/// Bytes of a record beside its text.
pub const RECORD_OVERHEAD: usize = LEN_BYTES + TAG_LEN;

/// A record was not sealed with this secret. It was changed on its way, or comes from somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// Seals one direction of a stream.
#[derive(Debug)]
pub struct Sealer {
    keys: Keys,
    next: u64,
}

impl Sealer {
    /// Makes the sealer of the direction with this secret. Two directions must not use the same secret.
    pub fn new(secret: &Secret) -> Self {
        Self { keys: Keys::new(secret), next: 0 }
    }

    /// Appends a record to `out`. `write` appends its text, [`RECORD_MAX`] bytes at most.
    pub fn seal(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.extend_from_slice(&[0; LEN_BYTES]);
        write(out);
        let len = out.len() - start - LEN_BYTES;
        assert!(len <= RECORD_MAX, "a record of {len} bytes");
        let (head, text) = out[start..].split_at_mut(LEN_BYTES);
        head.copy_from_slice(&(len as u32).to_le_bytes());
        let tag = self.keys.seal(self.next, head, text);
        self.next += 1;
        out.extend_from_slice(&tag);
    }
}

/// Opens one direction of a stream.
#[derive(Debug)]
pub struct Opener {
    keys: Keys,
    next: u64,
}

impl Opener {
    /// Makes the opener of the direction with this secret.
    pub fn new(secret: &Secret) -> Self {
        Self { keys: Keys::new(secret), next: 0 }
    }

    /// Decrypts, in place, the record at the start of `bytes`. Returns the number of bytes that it took and its text.
    /// None if the record is not complete yet.
    ///
    /// # Errors
    /// [`Forged`]: the rest of the stream must not be used either.
    pub fn open<'a>(&mut self, bytes: &'a mut [u8]) -> Result<Option<(usize, &'a mut [u8])>, Forged> {
        let Some((head, rest)) = bytes.split_first_chunk_mut::<LEN_BYTES>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > RECORD_MAX {
            return Err(Forged);
        }
        let Some(sealed) = rest.get_mut(..len + TAG_LEN) else { return Ok(None) };
        let text = self.keys.open(self.next, head, sealed).ok_or(Forged)?;
        self.next += 1;
        Ok(Some((len + RECORD_OVERHEAD, text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sealer, Opener) {
        let secret = Secret([7; Secret::LEN]);
        (Sealer::new(&secret), Opener::new(&secret))
    }

    fn record(by: &mut Sealer, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        by.seal(&mut out, |out| out.extend_from_slice(text));
        assert_eq!(out.len(), text.len() + RECORD_OVERHEAD);
        out
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let (mut a, mut b) = pair();
        let texts = [&[][..], b"one", &[5; RECORD_MAX]];
        let mut bytes: Vec<u8> = texts.iter().flat_map(|text| record(&mut a, text)).collect();
        for at in 0..RECORD_OVERHEAD {
            assert_eq!(b.open(&mut bytes[..at]), Ok(None), "{at} bytes are not a whole record");
        }
        let mut from = 0;
        for text in texts {
            let (taken, opened) = b.open(&mut bytes[from..]).expect("genuine").expect("whole");
            assert_eq!(opened, text);
            from += taken;
        }
        assert_eq!(from, bytes.len());
    }

    #[test]
    fn a_record_that_is_altered_repeated_moved_or_left_out_is_forged() {
        let (mut a, _) = pair();
        let (first, second) = (record(&mut a, b"first"), record(&mut a, b"second"));
        for at in 0..first.len() {
            let mut altered = first.clone();
            altered[at] ^= 1;
            let opened = pair().1.open(&mut altered).map(|opened| opened.is_some());
            // A length that became greater may ask for more.
            assert!(opened == Err(Forged) || at < LEN_BYTES && opened == Ok(false), "byte {at}");
        }
        assert_eq!(pair().1.open(&mut second.clone()), Err(Forged), "the first is missing");
        let (_, mut b) = pair();
        assert!(b.open(&mut first.clone()).is_ok_and(|opened| opened.is_some()));
        assert_eq!(b.open(&mut first.clone()), Err(Forged), "again");
        assert_eq!(b.open(&mut [255; 64]), Err(Forged), "longer than any record");
    }
}
