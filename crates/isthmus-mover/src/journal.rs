//! The journal of a partial file: the blocks that are there, and their digests.
//!
//! It is append-only. A record is written after the block's bytes. So the journal of a killed process is always true.
//! After a reboot, bytes that the journal names may be lost. So the journal names the boot, and blocks of another boot
//! are read and compared before they count. The same is done if the file was written after the journal's last record.

use crate::digest::Digest;
use crate::wire::Time;

const MAGIC: &[u8; 8] = b"ISTJRNL1";
const CHECK: usize = 8;
/// Length of the head. Bytes.
pub const HEAD_LEN: usize = 8 + 8 + 8 + 12 + 12 + 16 + CHECK;
/// Length of a record. Bytes.
pub const RECORD_LEN: usize = 8 + 32 + CHECK;

/// The head of a journal: it identifies one version of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of a block.
    pub block: u64,
    /// Length of the source. Bytes.
    pub size: u64,
    /// Time of the source's last change of content.
    pub mtime: Time,
    /// Time of the source's last change of content or attributes.
    pub ctime: Time,
    /// The boot id of the receiving host when it was written.
    pub boot: [u8; 16],
}

impl Head {
    /// Whether blocks of `self` are blocks of `other`.
    pub fn fits(&self, other: &Self) -> bool {
        Self { boot: other.boot, ..*self } == *other
    }

    /// Whether they may be: attributes of the source have changed, so its blocks must be compared.
    pub fn resembles(&self, other: &Self) -> bool {
        Self { ctime: other.ctime, ..*self }.fits(other)
    }

    /// Number of blocks of the file.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block)
    }

    /// The bytes that a journal begins with.
    pub fn encode(&self) -> [u8; HEAD_LEN] {
        let mut out = Vec::with_capacity(HEAD_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.block.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        for time in [self.mtime, self.ctime] {
            out.extend_from_slice(&time.0.to_le_bytes());
            out.extend_from_slice(&time.1.to_le_bytes());
        }
        out.extend_from_slice(&self.boot);
        let check = check(&out, &[]);
        out.extend_from_slice(&check);
        let mut head = [0; HEAD_LEN];
        head.copy_from_slice(&out);
        head
    }

    /// Decodes the head of a journal. None if these bytes are no complete head.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.get(..HEAD_LEN)?.split_at(HEAD_LEN - CHECK);
        if &body[..8] != MAGIC || sum != check(body, &[]) {
            return None;
        }
        let long = |at: usize| Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let word = |at: usize| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let time = |at: usize| Some((long(at)? as i64, word(at + 8)?));
        let head = Self {
            block: long(8)?,
            size: long(16)?,
            mtime: time(24)?,
            ctime: time(36)?,
            boot: *body.get(48..)?.first_chunk()?,
        };
        (head.block > 0).then_some(head)
    }

    /// The record that a process's whole share of the file is there, and whether it is on the disk (`synced`). It is
    /// numbered like a block after the last.
    pub fn mark(&self, synced: bool) -> [u8; RECORD_LEN] {
        self.record(self.blocks(), &[u8::from(synced); 32])
    }

    /// The record of block `index`.
    pub fn record(&self, index: u64, digest: &Digest) -> [u8; RECORD_LEN] {
        let mut out = [0; RECORD_LEN];
        out[..8].copy_from_slice(&index.to_le_bytes());
        out[8..40].copy_from_slice(digest);
        let sum = check(&out[..40], &self.encode());
        out[40..].copy_from_slice(&sum);
        out
    }
}

/// Reads a journal: the blocks with their digests, perhaps with a [`Head::mark`], and the number of valid bytes.
pub fn read(head: &Head, bytes: &[u8]) -> (Vec<(u64, Digest)>, u64) {
    let mut found = Vec::new();
    let mut good = HEAD_LEN as u64;
    for record in bytes.get(HEAD_LEN..).unwrap_or_default().chunks_exact(RECORD_LEN) {
        let index = u64::from_le_bytes(*record.first_chunk().unwrap_or(&[0; 8]));
        let digest: Digest = *record[8..].first_chunk().unwrap_or(&[0; 32]);
        if head.record(index, &digest) != record || index > head.blocks() {
            break;
        }
        found.push((index, digest));
        good += RECORD_LEN as u64;
    }
    (found, good)
}

/// A checksum. It detects torn writes, and records of another journal.
fn check(bytes: &[u8], context: &[u8]) -> [u8; CHECK] {
    let mut hasher = blake3::Hasher::new();
    let digest = hasher.update(context).update(bytes).finalize();
    *digest.as_bytes().first_chunk().unwrap_or(&[0; CHECK])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head() -> Head {
        Head { block: 1 << 20, size: 100 << 20, mtime: (1, 2), ctime: (-3, 4), boot: [7; 16] }
    }

    #[test]
    fn a_head_survives_its_bytes() {
        assert_eq!(Head::decode(&head().encode()), Some(head()));
        assert!(head().fits(&Head { boot: [8; 16], ..head() }));
        assert!(!head().fits(&Head { mtime: (1, 3), ..head() }));
        let other = Head { ctime: (9, 9), boot: [8; 16], ..head() };
        assert!(!head().fits(&other) && head().resembles(&other));
        assert!(!head().resembles(&Head { mtime: (1, 3), ..other }));
        assert_eq!(Head::decode(&head().encode()[..HEAD_LEN - 1]), None);
    }

    proptest! {
        /// For any damage by a crash or a bad disk, a journal never shows a block that was not
        /// recorded.
        #[test]
        fn what_is_left_of_a_journal_is_true(
            blocks in prop::collection::vec((0u64..100, any::<[u8; 32]>()), 0..30),
            cut in any::<prop::sample::Index>(),
            flip in any::<Option<prop::sample::Index>>(),
        ) {
            let mut bytes = head().encode().to_vec();
            for (index, digest) in &blocks {
                bytes.extend_from_slice(&head().record(*index, digest));
            }
            let whole = bytes.clone();
            bytes.truncate(cut.index(whole.len() + 1));
            if let (Some(flip), false) = (flip, bytes.is_empty()) {
                let at = flip.index(bytes.len());
                bytes[at] ^= 0x10;
            }
            if let Some(head) = Head::decode(&bytes) {
                let (found, good) = read(&head, &bytes);
                prop_assert!(found.len() <= blocks.len() && found == blocks[..found.len()]);
                prop_assert_eq!(good as usize, HEAD_LEN + found.len() * RECORD_LEN);
                prop_assert!(bytes[..good as usize] == whole[..good as usize]);
            }
            let (all, _) = read(&head(), &whole);
            prop_assert_eq!(all, blocks);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            if let Some(head) = Head::decode(&bytes) {
                read(&head, &bytes);
            }
        }
    }
}
