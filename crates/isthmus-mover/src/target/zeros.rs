//! Zeros of sparse files: they are left out, or a hole is punched.

use std::io;

use rustix::fs::{FallocateFlags, fallocate};

use super::put_all;
use crate::cache::Opened;

/// Zeros of a sparse file are left out in units of this. Bytes; file systems allocate in such pages.
const STEP: usize = 4096;

/// The ways to write zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeros {
    Written,
    /// They are left out, because the file is new and has only zeros.
    Left,
    /// A hole is punched, because an earlier transfer may have left other bytes there.
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

/// Writes these bytes, or only the parts that are not zero.
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

/// Makes a hole of `len` bytes. If the file system has no holes, it writes zeros.
pub(super) fn put_hole(file: &Opened, offset: u64, len: u64, zeros: Zeros) -> io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if zeros == Zeros::Left || fallocate(file, how, offset, len).is_ok() {
        return Ok(());
    }
    (0..len).step_by(STEP).try_for_each(|at| {
        let step = (len - at).min(STEP as u64) as usize;
        put_all(file, &[0; STEP][..step], offset + at)
    })
}
