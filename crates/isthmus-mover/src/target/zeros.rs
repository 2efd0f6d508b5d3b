//! Zeros of files with holes: left out, or made a hole.

use std::io;

use rustix::fs::{FallocateFlags, fallocate};

use super::put_all;
use crate::cache::Opened;

/// Zeros of a sparse file are left out in steps of this. Bytes.
const STEP: usize = 4096;

/// What becomes of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeros {
    Written,
    /// The file is new, and has none but zeros: they are left out.
    Left,
    /// An earlier transfer may have left something else there: a hole is made.
    Punched,
}

impl Zeros {
    pub(super) fn of(sparse: bool, is_new: bool) -> Self {
        match (sparse, is_new) {
            (false, _) => Self::Written,
            (true, true) => Self::Left,
            (true, false) => Self::Punched,
        }
    }
}

/// Writes these bytes, or what of them is not zero.
pub(super) fn put(file: &Opened, bytes: &[u8], offset: u64, zeros: Zeros) -> io::Result<()> {
    if zeros == Zeros::Written {
        return put_all(file, bytes, offset);
    }
    let mut at = offset;
    for run in bytes.chunks(STEP) {
        let len = run.len() as u64;
        if run.iter().any(|byte| *byte != 0) {
            put_all(file, run, at)?;
        } else {
            put_hole(file, at, len, zeros)?;
        }
        at += len;
    }
    Ok(())
}

/// So many zeros; written all the same where the file system has no holes.
pub(super) fn put_hole(file: &Opened, offset: u64, len: u64, zeros: Zeros) -> io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if zeros != Zeros::Punched || fallocate(file, how, offset, len).is_ok() {
        return Ok(());
    }
    (0..len).step_by(STEP).try_for_each(|at| {
        let step = (len - at).min(STEP as u64) as usize;
        put_all(file, &[0; STEP][..step], offset + at)
    })
}
