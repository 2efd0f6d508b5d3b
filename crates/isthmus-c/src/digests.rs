//! Calls that compute digests of data by blocks.

use std::ffi::{c_int, c_void};

use isthmus_digest::{Digest, file, piece};

use crate::door::{Refusal, bytes, enter, give, invalid};

/// The shortest block. Bytes; a chunk of BLAKE3.
const BLOCK_MIN: u64 = 1024;

fn check_block(block: u64) -> Result<(), Refusal> {
    if block < BLOCK_MIN || !block.is_power_of_two() {
        return Err(invalid("a block's length is a power of two from 1024 on"));
    }
    Ok(())
}

/// `isthmus_digest_block`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_digest_block(
    data: *const c_void,
    len: usize,
    offset: u64,
    size: u64,
    block: u64,
    digest: *mut Digest,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let data = unsafe { bytes(data, len) }?;
        if size > block {
            check_block(block)?;
            if !offset.is_multiple_of(block) || offset >= size {
                return Err(invalid("no block begins at this offset"));
            }
        }
        let there = if size > block { block.min(size - offset) } else { size };
        if len as u64 != there {
            return Err(invalid("the block has another length"));
        }
        // SAFETY: C's promise.
        unsafe { give(digest, piece(data, offset, size, block)) }
    };
    enter(body, || ())
}

/// `isthmus_digest_whole`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_digest_whole(
    digests: *const u8,
    count: usize,
    size: u64,
    block: u64,
    digest: *mut Digest,
) -> c_int {
    let body = || {
        check_block(block)?;
        let len = count.checked_mul(size_of::<Digest>()).ok_or_else(|| invalid("too many digests"))?;
        // SAFETY: C's promise.
        let all = unsafe { bytes(digests.cast(), len) }?;
        // SAFETY: any 32 bytes are a digest, and bytes need no alignment.
        let (_, digests, _) = unsafe { all.align_to::<Digest>() };
        let whole = match digests {
            [] if size == 0 => piece(&[], 0, 0, block),
            _ if digests.len() as u64 == size.div_ceil(block) => file(digests, size, block),
            _ => return Err(invalid("a digest of each block is needed, and no more")),
        };
        // SAFETY: C's promise.
        unsafe { give(digest, whole) }
    };
    enter(body, || ())
}
