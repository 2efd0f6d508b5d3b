//! A file that several processes write together. Each writes its share to the same partial file, and has its own
//! journal. The processes need not know of each other. The last one sees from the journals that all shares are there,
//! and renames the file.
//!
//! The name of the partial file contains the version of the source and the number of shares. So blocks of another
//! version never get into it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, fsync, openat, renameat, unlinkat};
use rustix::io::{Errno, write};

use super::{Wanted, given_up, is_at, is_there, own, read_all, sync_folder};
use crate::cache::Opened;
use crate::descriptors::wait_for;
use crate::digest::{self, Digest};
use crate::journal::{self, Head};
use crate::meta::Kept;
use crate::{meta, names};

/// The names of the partial file and of the journal of one share.
pub(super) fn partial(wanted: &Wanted, rank: u32) -> (String, String) {
    let head = Head { boot: [0; 16], ..wanted.head };
    let tag = [&head.encode()[..], &wanted.share.ranks.to_le_bytes()].concat();
    names::partial_shared(&wanted.name, &tag, rank)
}

/// Records that this share is complete. If it was the last one, this renames the file and returns its digest.
///
/// # Errors
/// An error of the system; or the file was removed, for example by a share whose source had changed.
pub(super) fn finish(
    wanted: &Wanted,
    file: &Opened,
    journal: &OwnedFd,
) -> io::Result<(Option<Digest>, Kept)> {
    if wanted.sync {
        fsync(file)?;
    }
    let mark = wanted.head.mark(wanted.sync);
    if write(journal, &mark)? != mark.len() {
        return Err(Errno::NOSPC.into());
    }
    let (part, own) = partial(wanted, wanted.share.rank);
    let parent = &wanted.parent;
    let blocks = if is_at(&wanted.parent, file, part.as_bytes())? { all_blocks(wanted, file)? } else { None };
    let Some(blocks) = blocks else { return settled(wanted, file, &part, &own).map(|()| (None, Ok(()))) };
    let kept = meta::apply(file, &wanted.meta)?;
    if wanted.sync {
        fsync(file)?;
    }
    match renameat(parent, &part, parent, &wanted.name[..]) {
        Ok(()) => {}
        // Another process has finished the file at the same time.
        Err(Errno::NOENT) => return settled(wanted, file, &part, &own).map(|()| (None, Ok(()))),
        Err(error) => return Err(error.into()),
    }
    for rank in 0..wanted.share.ranks {
        let _ = unlinkat(parent, partial(wanted, rank).1, AtFlags::empty());
    }
    if wanted.sync {
        sync_folder(parent)?;
    }
    Ok((Some(digest::file(&blocks, wanted.head.size, wanted.head.block)), kept))
}

/// Succeeds if the file still waits for other shares, or if another process has renamed it.
fn settled(wanted: &Wanted, file: &Opened, part: &str, own: &str) -> io::Result<()> {
    if is_at(&wanted.parent, file, part.as_bytes())? {
        return Ok(());
    }
    let _ = unlinkat(&wanted.parent, own, AtFlags::empty());
    if is_at(&wanted.parent, file, &wanted.name)? {
        return Ok(());
    }
    Err(given_up())
}

/// The digests of all blocks, if all journals say that their share is complete. Blocks written by another host, or
/// before the last reboot, count if they were synced; otherwise they are read and compared.
fn all_blocks(wanted: &Wanted, file: &Opened) -> io::Result<Option<Vec<Digest>>> {
    let head = &wanted.head;
    let mut blocks: Vec<Option<Digest>> = vec![None; head.blocks() as usize];
    for rank in 0..wanted.share.ranks {
        let name = partial(wanted, rank).1;
        let Some(journal) = wait_for(|| own::open_existing(&wanted.parent, &name, file))? else {
            return Ok(None);
        };
        let bytes = read_all(&journal)?;
        let Some(earlier) = Head::decode(&bytes).filter(|earlier| earlier.fits(head)) else {
            return Ok(None);
        };
        let (mut found, _) = journal::read(&earlier, &bytes);
        let mark = found.iter().rposition(|(index, _)| *index == head.blocks());
        let Some((_, mark)) = mark.map(|at| found.swap_remove(at)) else { return Ok(None) };
        let sure = earlier.boot == head.boot || mark[0] == 1;
        let mut buffer = vec![0; if sure { 0 } else { head.block as usize }];
        for (index, digest) in found.into_iter().filter(|(index, _)| *index < head.blocks()) {
            if sure || is_there(file, head, index, &digest, &mut buffer) {
                blocks[index as usize] = Some(digest);
            }
        }
    }
    Ok(blocks.into_iter().collect())
}

/// Removes partial files of other versions of this file, or of another number of processes, if no process has them
/// open.
pub(super) fn sweep(wanted: &Wanted) {
    let (own, _) = partial(wanted, 0);
    let stem = own.trim_end_matches(".part").to_owned();
    let Ok(entries) = Dir::read_from(&wanted.parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_bytes();
        if !names::is_shared_of(name, &wanted.name) || name.starts_with(stem.as_bytes()) {
            continue;
        }
        // Opening a pipe must not wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(&wanted.parent, name, flags, Mode::empty()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = unlinkat(&wanted.parent, name, AtFlags::empty());
        }
    }
}
