//! Copies past the caches, by streaming (non-temporal) stores.
//!
//! A writer overwrites lines of a ring that are still in the caches of the reader's processor. An ordinary store has to
//! fetch each line first, and few at a time: on the hosts measured, a writer got 2 to 8 GB/s that way, and the reader
//! waited for three quarters of the time. Streaming stores write whole lines to memory without fetching them (Buntinas
//! et al., "Cache-efficient, intranode, large-message MPI communication with MPICH2-Nemesis", 2009): 11 to 15 GB/s.

/// From this length on, streaming stores are quicker. Bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STREAMED_MIN: usize = 2 << 10;
/// Length of a cache line. Bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = super::ring::LINE as usize;

/// Copies `len` bytes to memory that another processor read last. A thread that sees a later store with release
/// ordering sees these bytes as well.
///
/// # Safety
/// See [`std::ptr::copy_nonoverlapping`].
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= STREAMED_MIN {
        let lead = to.align_offset(LINE);
        let lines = (len - lead) / LINE * LINE;
        let rest = len - lead - lines;
        // SAFETY: the caller's promise: together the three are what is to be copied.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, lead);
            copy_lines(from.add(lead), to.add(lead), lines);
            std::ptr::copy_nonoverlapping(from.add(lead + lines), to.add(lead + lines), rest);
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

/// Like [`copy`], for whole lines; `to` is at the start of a line.
///
/// # Safety
/// See [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    for line in (0..len).step_by(LINE) {
        for at in (line..line + LINE).step_by(size_of::<__m128i>()) {
            // SAFETY: within what is copied; `to` is aligned.
            unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
        }
    }
    // SAFETY: every processor with these registers has this instruction. Later stores would not wait for streaming
    // ones.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_wherever_it_lies_and_none_beside() {
        let from: Vec<u8> = (0..5_000).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in [0, 1, 63, 64, 2_047, 2_048, 2_049, 2_111, 2_112, 4_096, 4_500] {
            for (there, here) in (0..64).map(|at| (at, (at * 5) % 67)).chain([(0, 0), (64, 8), (8, 64)]) {
                let mut to = vec![0; 5_000];
                // SAFETY: both are long enough.
                unsafe { copy(from[there..].as_ptr(), to[here..].as_mut_ptr(), len) };
                assert_eq!(
                    to[here..here + len],
                    from[there..there + len],
                    "{len} bytes from {there} to {here}"
                );
                let beside = to[..here].iter().chain(&to[here + len..]);
                assert!(beside.into_iter().all(|byte| *byte == 0), "{len} bytes from {there} to {here}");
            }
        }
    }
}
