//! A stream of bytes as sealed records. A record is the length of the text (4 bytes, little-endian), the encrypted
//! text, and its tag. Records are numbered from 0 without gaps, so none can be left out, repeated or moved.

use crate::cipher::TAG_LEN;
use crate::keys::{Keys, Secret};

/// Length of the field that holds the length of a record's text, and so where the text begins. Bytes.
pub const LEN_BYTES: usize = 4;
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

    /// Makes a record at the start of `out` and returns its length. Its text, [`RECORD_MAX`] bytes at most, begins with
    /// the `first` bytes that the caller has put into `out` behind [`LEN_BYTES`]. `more` is the rest, which goes from
    /// where it lies into the record, encrypted.
    ///
    /// # Panics
    /// If the text is longer, or `out` has no room for the record.
    pub fn seal(&mut self, out: &mut [u8], first: usize, more: &[u8]) -> usize {
        let len = first + more.len();
        assert!(len <= RECORD_MAX, "a record of {len} bytes");
        let record = &mut out[..len + RECORD_OVERHEAD];
        let (head, sealed) = record.split_at_mut(LEN_BYTES);
        head.copy_from_slice(&(len as u32).to_le_bytes());
        self.keys.seal(self.next, head, sealed, more);
        self.next += 1;
        record.len()
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

    /// The length of the record at the start of `bytes`, [`RECORD_OVERHEAD`] more than that of its text. None if the
    /// record is not complete yet.
    ///
    /// # Errors
    /// [`Forged`]: no record is that long. As below, the rest of the stream must not be used either.
    pub fn record_len(bytes: &[u8]) -> Result<Option<usize>, Forged> {
        let Some(head) = bytes.first_chunk::<LEN_BYTES>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > RECORD_MAX {
            return Err(Forged);
        }
        Ok(Some(len + RECORD_OVERHEAD).filter(|len| *len <= bytes.len()))
    }

    /// Decrypts a record in place and returns its text.
    ///
    /// # Errors
    /// [`Forged`]
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<&'a mut [u8], Forged> {
        let (head, sealed) = record.split_first_chunk_mut::<LEN_BYTES>().ok_or(Forged)?;
        let text = self.keys.open(self.next, head, sealed).ok_or(Forged)?;
        self.next += 1;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sealer, Opener) {
        let secret = Secret([7; Secret::LEN]);
        (Sealer::new(&secret), Opener::new(&secret))
    }

    /// A record whose text is put there up to `first`, and encrypted into it from there on.
    fn record(by: &mut Sealer, text: &[u8], first: usize) -> Vec<u8> {
        let mut out = vec![0; text.len() + RECORD_OVERHEAD];
        out[LEN_BYTES..LEN_BYTES + first].copy_from_slice(&text[..first]);
        assert_eq!(by.seal(&mut out, first, &text[first..]), out.len());
        out
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let (mut a, mut b) = pair();
        let texts = [(&[][..], 0), (b"one", 3), (b"another", 0), (&[5; RECORD_MAX], 40)];
        let mut bytes: Vec<u8> =
            texts.iter().flat_map(|(text, first)| record(&mut a, text, *first)).collect();
        for at in 0..RECORD_OVERHEAD {
            assert_eq!(Opener::record_len(&bytes[..at]), Ok(None), "{at} bytes are not a whole record");
        }
        let mut from = 0;
        for (text, _) in texts {
            let len = Opener::record_len(&bytes[from..]).expect("possible").expect("whole");
            let record = &mut bytes[from..from + len];
            assert_eq!(b.open(record).expect("genuine"), text);
            from += len;
        }
        assert_eq!(from, bytes.len());
    }

    #[test]
    fn a_record_that_is_altered_repeated_moved_or_left_out_is_forged() {
        let (mut a, _) = pair();
        let (first, second) = (record(&mut a, b"first", 2), record(&mut a, b"second", 2));
        let is_forged = |by: &mut Opener, record: &[u8]| by.open(&mut record.to_vec()).is_err();
        for at in 0..first.len() {
            let mut altered = first.clone();
            altered[at] ^= 1;
            assert!(is_forged(&mut pair().1, &altered), "byte {at}");
        }
        assert!(is_forged(&mut pair().1, &second), "the first is missing");
        let (_, mut b) = pair();
        assert!(!is_forged(&mut b, &first));
        assert!(is_forged(&mut b, &first), "again");
        assert_eq!(b.open(&mut [0; LEN_BYTES - 1]), Err(Forged), "shorter than any record");
        assert_eq!(Opener::record_len(&[255; 64]), Err(Forged), "longer than any record");
    }
}
