//! A systematic erasure code: Reed-Solomon with a Cauchy matrix over GF(2^8) (Blömer et al., "An XOR-Based
//! Erasure-Resilient Coding Scheme", 1995).
//!
//! Parity shard `j` of a block is the sum over the data shards `i`, each times 1 / (`i` + `255 - j`), byte by byte,
//! where `+` is that of GF(2^8). Any square part of a Cauchy matrix is invertible. So any `n` parity shards restore any
//! `n` missing shards, at a cost that grows with `n` and not with the block. A parity shard does not depend on how many
//! there are.

use rustfs_erasure_codec::galois_8::{div, mul, mul_slice_xor};

/// Most data and parity shards of a block together. Count.
pub(crate) const SHARDS_MAX: usize = 256;

/// The factor of data shard `shard` in parity shard `parity`; both together are at most [`SHARDS_MAX`].
fn factor(shard: u8, parity: u8) -> u8 {
    div(1, shard ^ (255 - parity))
}

/// Adds a data shard's `bytes` to `sum`, those at the same place of a parity shard. From zeros this makes the parity;
/// on the parity it removes the data shard again. Both slices must have one length.
pub(crate) fn add(shard: u8, bytes: &[u8], parity: u8, sum: &mut [u8]) {
    mul_slice_xor(factor(shard, parity), bytes, sum);
}

/// Restores the shards `missing` from as many parity shards `parity`. `sums` has their bytes, in that order, `len`
/// each; the other data shards must be removed from them. `put` gets each shard's number and bytes.
pub(crate) fn solve(missing: &[u8], parity: &[u8], sums: &[u8], len: usize, mut put: impl FnMut(u8, &[u8])) {
    let product = |factors: &mut dyn Iterator<Item = u8>| factors.fold(1, mul);
    let points: Vec<u8> = parity.iter().map(|parity| 255 - parity).collect();
    // The inverse of a Cauchy matrix by its formula. Here: the factors of an element that depend on its column.
    let columns: Vec<u8> = points
        .iter()
        .map(|point| {
            let over = product(&mut missing.iter().map(|shard| shard ^ point));
            div(over, product(&mut points.iter().filter(|other| *other != point).map(|other| other ^ point)))
        })
        .collect();
    let mut bytes = vec![0; len];
    for shard in missing {
        // The factors that depend on the element's row.
        let over = product(&mut points.iter().map(|point| point ^ shard));
        let row = div(
            over,
            product(&mut missing.iter().filter(|other| *other != shard).map(|other| other ^ shard)),
        );
        bytes.fill(0);
        for ((point, column), sum) in points.iter().zip(&columns).zip(sums.chunks_exact(len)) {
            mul_slice_xor(div(mul(row, *column), shard ^ point), sum, &mut bytes);
        }
        put(*shard, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;

    /// The product in GF(2^8) by its definition, with the polynomial 0x11d.
    fn times(a: u8, b: u8) -> u8 {
        let double = |a: u8| (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1d };
        (0..8).fold((0, a), |(sum, a), bit| (sum ^ if b >> bit & 1 == 1 { a } else { 0 }, double(a))).0
    }

    fn coded(block: &[Vec<u8>], parity: usize) -> Vec<Vec<u8>> {
        let sum = |index: usize| {
            let mut sum = vec![0; block[0].len()];
            block.iter().zip(0..).for_each(|(bytes, shard)| add(shard, bytes, index as u8, &mut sum));
            sum
        };
        (0..parity).map(sum).collect()
    }

    /// A block's number of shards and their length in bytes, its missing shards, and the parity shards that are there.
    fn blocks() -> impl Strategy<Value = (usize, usize, Vec<u8>, Vec<u8>)> {
        (1..=255_usize, 1..70_usize, 1..=60_usize)
            .prop_flat_map(|(count, len, most)| {
                let parity = most.min(SHARDS_MAX - count);
                (Just(count), Just(len), Just(parity), 1..=parity.min(count))
            })
            .prop_flat_map(|(count, len, parity, lost)| {
                let some = |of: usize| subsequence((0..of).map(|i| i as u8).collect::<Vec<_>>(), lost);
                (Just(count), Just(len), some(count), some(parity))
            })
    }

    proptest! {
        #[test]
        fn what_is_missing_comes_back_from_as_much_parity((count, len, missing, parity) in blocks(), seed: u8) {
            let byte = |shard: usize, i: usize| (shard * 31 + i * 7 + usize::from(seed)).wrapping_mul(i + 3) as u8;
            let block: Vec<Vec<u8>> = (0..count).map(|shard| (0..len).map(|i| byte(shard, i)).collect()).collect();
            let coded = coded(&block, usize::from(parity.iter().copied().max().unwrap_or(0)) + 1);
            let mut sums = Vec::new();
            for index in &parity {
                let mut sum = coded[usize::from(*index)].clone();
                for shard in (0..count as u8).filter(|shard| !missing.contains(shard)) {
                    add(shard, &block[usize::from(shard)], *index, &mut sum);
                }
                sums.extend(sum);
            }
            let mut back = Vec::new();
            solve(&missing, &parity, &sums, len, |shard, bytes| back.push((shard, bytes.to_vec())));
            let expected: Vec<_> = missing.iter().map(|shard| (*shard, block[usize::from(*shard)].clone())).collect();
            prop_assert_eq!(back, expected);
        }
    }

    /// The two ends may be of different builds, so the code is part of the format, whatever instructions compute it.
    #[test]
    fn parity_is_what_it_always_was() {
        let block: Vec<Vec<u8>> =
            (0..5_u8).map(|shard| (0..100_u8).map(|i| i.wrapping_mul(5) ^ shard).collect()).collect();
        for (index, sum) in coded(&block, 4).iter().enumerate() {
            for (at, byte) in sum.iter().enumerate() {
                let term = |shard: u8| {
                    let inverse =
                        (1..=255).find(|x| times(*x, shard ^ (255 - index as u8)) == 1).unwrap_or(0);
                    times(inverse, block[usize::from(shard)][at])
                };
                assert_eq!(*byte, (0..5).map(term).fold(0, |sum, term| sum ^ term));
            }
        }
    }
}
