//! BLAKE3 of a file, as `b3sum` prints it, computed from digests of the file's blocks.
//!
//! BLAKE3 is a tree. A block whose length is a power of two, at a multiple of that length, is a
//! subtree. Its *chaining value* is the block's digest here. The digests of all blocks give the
//! file's digest, in whatever order they were computed, without a second read. A file of one
//! block is a tree by itself: the block's digest is the file's.
#![forbid(unsafe_code)]

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

/// A digest of a block or of a file.
pub type Digest = [u8; 32];

/// The digest of bytes that are a whole file.
pub fn of(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}

/// The digest of the block at `offset` of a file of `size` bytes. `block` is the blocks' length.
pub fn piece(bytes: &[u8], offset: u64, size: u64, block: u64) -> Digest {
    if size <= block {
        return of(bytes);
    }
    let mut hasher = Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(bytes).finalize_non_root()
}

/// The same for a block of `len` zeros.
pub fn hole(len: u64, offset: u64, size: u64, block: u64) -> Digest {
    const ZEROS: &[u8] = &[0; 64 << 10];
    let mut hasher = Hasher::new();
    if size > block {
        hasher.set_input_offset(offset);
    }
    let mut left = len;
    while left > 0 {
        let step = left.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..step as usize]);
        left -= step;
    }
    if size > block { hasher.finalize_non_root() } else { *hasher.finalize().as_bytes() }
}

/// The digest of a file of `size` bytes from its blocks' digests, in order.
pub fn file(blocks: &[Digest], size: u64, block: u64) -> Digest {
    if let [whole] = blocks {
        return *whole;
    }
    let left = left_subtree_len(size);
    let (first, second) = blocks.split_at((left / block) as usize);
    let (first, second) = (subtree(first, left, block), subtree(second, size - left, block));
    *merge_subtrees_root(&first, &second, Mode::Hash).as_bytes()
}

fn subtree(blocks: &[Digest], size: u64, block: u64) -> Digest {
    if let [one] = blocks {
        return *one;
    }
    let left = left_subtree_len(size);
    let (first, second) = blocks.split_at((left / block) as usize);
    let (first, second) = (subtree(first, left, block), subtree(second, size - left, block));
    merge_subtrees_non_root(&first, &second, Mode::Hash)
}

/// The digest in hexadecimal.
pub fn hex(digest: &Digest) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_give_the_digest_of_the_whole() {
        let block = 4096;
        for size in [0, 1, 4095, 4096, 4097, 8192, 10_000, 5 * 4096, 16 * 4096, 16 * 4096 + 1, 23 * 4096 - 9]
        {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 7 + i / 256) as u8).collect();
            let size = size as u64;
            let pieces: Vec<Digest> = match bytes.len() {
                0 => vec![piece(&[], 0, 0, block)],
                _ => bytes
                    .chunks(block as usize)
                    .enumerate()
                    .map(|(i, chunk)| piece(chunk, i as u64 * block, size, block))
                    .collect(),
            };
            assert_eq!(file(&pieces, size, block), *blake3::hash(&bytes).as_bytes(), "{size} bytes");
        }
    }

    #[test]
    fn a_hole_is_zeros() {
        let zeros = vec![0; 128 << 10];
        for (offset, size) in [(0, 128 << 10), (128 << 10, 1 << 20)] {
            assert_eq!(
                hole(zeros.len() as u64, offset, size, 128 << 10),
                piece(&zeros, offset, size, 128 << 10)
            );
        }
    }
}
