//! Writes incoming files. Pieces come in any order. A file gets its final name only when it is complete.
//!
//! A file of one block is written to a file without a name, which then gets its name. A longer file grows as a partial
//! file beside its destination, with a journal of its blocks.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use isthmus_layout::{Layout, Volume};
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, fstat, fstatvfs, fsync,
    ftruncate, linkat, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, pread, write};

use crate::cache::Opened;
use crate::descriptors::{self, wait_for};
use crate::digest::{self, Digest};
use crate::journal::{self, HEAD_LEN, Head};
use crate::meta::Kept;
use crate::source::CHANGED;
use crate::wire::{Answer, Meta, Outcome, Piece, Share, Time, Verdict};
use crate::{meta, names};
use zeros::{Zeros, put, put_hole};

mod own;
mod shared;
mod zeros;

/// Limit on the blocks of a file. Each costs a receiver 33 bytes of memory while the file grows.
pub(crate) const BLOCKS_MAX: u64 = 1 << 24;
/// Longest journal that is read. Bytes; some blocks may be in it twice.
const JOURNAL_MAX: u64 = 2 * BLOCKS_MAX * journal::RECORD_LEN as u64;

/// Space reserved in one step. Bytes. A file system that works page by page takes a few milliseconds for it.
const RESERVE_STEP: u64 = 16 << 20;

/// Limit on attempts to open a partial file that other transfers rename at the same time. Count.
const AGAIN: usize = 100;

/// A file that will come.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Path at the destination, for people.
    pub(crate) path: Vec<u8>,
    /// The folder that it will be in.
    pub(crate) parent: Arc<OwnedFd>,
    /// Its name there.
    pub(crate) name: Vec<u8>,
    /// Its attributes.
    pub(crate) meta: Meta,
    /// The head of its journal.
    pub(crate) head: Head,
    /// Leave zeros out.
    pub(crate) sparse: bool,
    /// The share of its blocks that comes here.
    pub(crate) share: Share,
    /// It must be on the disk before it is reported as done.
    pub(crate) sync: bool,
}

impl Wanted {
    /// The names of its partial file and its journal.
    fn partial(&self) -> (String, String) {
        if self.is_shared() { shared::partial(self, self.share.rank) } else { names::partial(&self.name) }
    }

    /// Whether other processes write parts of it.
    fn is_shared(&self) -> bool {
        self.share != Share::default()
    }

    /// The blocks that come here.
    fn range(&self) -> Range<u64> {
        self.share.blocks(self.head.blocks())
    }
}

/// Why a block is invalid; the session must end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    /// Its digest differs from the sender's.
    #[error("{0}: a block differs from what was sent; run the command again, and check this host's memory")]
    Digest(String),
    /// It is no block of this file.
    #[error("{0}: a block that is none of this file's")]
    Place(String),
}

#[derive(Debug)]
struct Growing {
    /// The digests of the blocks that are there, from the first block of this share on.
    blocks: Vec<Option<Digest>>,
    left: u64,
    /// The sender's confirmation: the source is unchanged, or must have this digest.
    confirmed: Option<Confirmed>,
    /// Space is being reserved, which changes the file's times.
    reserving: bool,
    over: bool,
}

#[derive(Clone, Copy, Debug)]
enum Confirmed {
    Unchanged,
    IfDigest(Digest),
}

/// The partial file with its journal.
#[derive(Debug)]
struct Partial {
    file: Opened,
    journal: OwnedFd,
    zeros: Zeros,
    growing: Mutex<Growing>,
}

/// A file that pieces are written to.
#[derive(Debug)]
pub(crate) struct Target {
    wanted: Wanted,
    /// The volumes that it lies on.
    layout: Layout,
    partial: Option<Partial>,
    /// Blocks of an earlier transfer may be of another version; the source's digest tells.
    is_doubtful: bool,
}

/// The result of [`Target::begin`].
#[derive(Debug)]
pub(crate) struct Begun {
    /// The file.
    pub(crate) target: Target,
    /// Blocks of an earlier transfer: first and count.
    pub(crate) have: Vec<(u64, u64)>,
}

impl Begun {
    /// The answer for the sender.
    pub(crate) fn answer(&mut self) -> Answer {
        let have = std::mem::take(&mut self.have);
        match (have.is_empty(), self.target.is_doubtful) {
            (true, _) => Answer::Send,
            (false, false) => Answer::Have(have),
            (false, true) => Answer::Perhaps(have),
        }
    }
}

/// The result of [`Target::reserve`].
#[derive(Debug)]
pub(crate) enum Reserved {
    /// More must be reserved, from here on.
    Until(u64),
    /// Nothing more is to be reserved. If there is no space, this is the file's outcome.
    Over(Option<Outcome>),
}

impl Target {
    /// Prepares the file, or continues what an earlier transfer left. It calls `alive` now and then, because it may
    /// take long.
    ///
    /// # Errors
    /// An error of the system, with a remedy.
    pub(crate) fn begin(mut wanted: Wanted, alive: &mut dyn FnMut()) -> io::Result<Begun> {
        if wanted.head.size <= wanted.head.block {
            let layout = Layout::on_device(fstat(&wanted.parent)?.st_dev);
            let target = Self { wanted, layout, partial: None, is_doubtful: false };
            return Ok(Begun { target, have: Vec::new() });
        }
        if wanted.head.blocks() > BLOCKS_MAX {
            let text = format!("it has more than {BLOCKS_MAX} blocks; use longer ones (--block)");
            return Err(io::Error::other(text));
        }
        let (partial, journal) = wanted.partial();
        let open = |name: &str, more| own::open(&wanted.parent, name, more);
        if wanted.is_shared() && wanted.share.rank == 0 {
            shared::sweep(&wanted);
        }
        let shared = wanted.is_shared();
        let how = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        let file = lock_named(&wanted.parent, &partial, how, || open(&partial, OFlags::empty()));
        let file = file.map_err(unmade)?;
        let journal = open(&journal, OFlags::APPEND)?;
        descriptors::have_come();
        if shared {
            lock(&journal, FlockOperation::NonBlockingLockExclusive)?;
        }
        let (blocks, ctime) = resume(&wanted, &file, &journal, alive)?;
        let is_doubtful = ctime != wanted.head.ctime && blocks.iter().any(Option::is_some);
        // The journal keeps the version that it began with. Otherwise the next transfer would trust its blocks.
        wanted.head.ctime = ctime;
        let stat = fstat(&file)?;
        let (is_new, layout) = (stat.st_size == 0, Layout::of(&file, stat.st_dev));
        let zeros = Zeros::of(wanted.sparse, is_new);
        if let Err(error) = make_room(&wanted, &file) {
            if blocks.iter().all(Option::is_none) && !shared {
                discard(&wanted);
            }
            return Err(room(error, wanted.head.size));
        }
        let left = blocks.iter().filter(|block| block.is_none()).count() as u64;
        let have = ranges(&blocks, wanted.range().start);
        let growing = Mutex::new(Growing { blocks, left, confirmed: None, reserving: false, over: false });
        let partial = Some(Partial { file: Opened::long(file), journal, zeros, growing });
        let target = Self { wanted, layout, partial, is_doubtful };
        Ok(Begun { target, have })
    }

    /// Path at the destination, for people.
    pub(crate) fn path(&self) -> &[u8] {
        &self.wanted.path
    }

    /// The volume of the byte at this offset.
    pub(crate) fn volume(&self, offset: u64) -> Volume {
        self.layout.volume(offset)
    }

    /// Length. Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.wanted.head.size
    }

    /// Bytes of it that come here.
    pub(crate) fn bytes(&self) -> u64 {
        self.wanted.share.bytes(self.size(), self.wanted.head.block)
    }

    /// Number of its blocks that come here.
    pub(crate) fn blocks(&self) -> u64 {
        let range = self.wanted.range();
        range.end - range.start
    }

    /// Reserves the next step of the file's space, from `from` on, so that the disk does not fill up later. It goes in
    /// steps, because some file systems are slow at it, and block writes to the file meanwhile.
    pub(crate) fn reserve(&self, from: u64) -> Reserved {
        // If processes share the file, the first one reserves for all.
        let wanted = &self.wanted;
        let partial = self.partial.as_ref().filter(|_| !wanted.sparse && wanted.share.rank == 0);
        let Some(partial) = partial else { return Reserved::Over(None) };
        let mut growing = partial.growing.lock();
        if growing.over || growing.left == 0 {
            return Reserved::Over(None);
        }
        growing.reserving = true;
        drop(growing);
        let until = from.saturating_add(RESERVE_STEP).min(self.size());
        let taken = fallocate(&partial.file, FallocateFlags::empty(), from, until - from);
        let mut growing = partial.growing.lock();
        growing.reserving = false;
        match taken {
            Ok(()) if until < self.size() && growing.left > 0 => Reserved::Until(until),
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => {
                let told = std::mem::replace(&mut growing.over, true);
                drop(growing);
                Reserved::Over((!told).then(|| self.failed(&room(error.into(), self.size()))))
            }
            // Other errors: this file system cannot reserve, and need not.
            _ => Reserved::Over(self.try_finish(partial, growing).unwrap_or_else(|e| Some(self.failed(&e)))),
        }
    }

    /// Compares a piece with its digest.
    ///
    /// # Errors
    /// [`Damage`].
    pub(crate) fn check(&self, piece: &Piece, bytes: &[u8]) -> Result<(), Damage> {
        let Head { block, size, .. } = self.wanted.head;
        let len = u64::from(piece.len);
        let fits = piece.offset.is_multiple_of(block)
            && piece.offset.checked_add(len).is_some_and(|end| end <= size)
            && len == block.min(size - piece.offset)
            && (len > 0 || size == 0)
            && (self.partial.is_none() || self.wanted.range().contains(&(piece.offset / block)));
        if !fits {
            return Err(Damage::Place(names::shown(self.path())));
        }
        let found = if piece.hole {
            digest::hole(len, piece.offset, size, block)
        } else {
            digest::piece(bytes, piece.offset, size, block)
        };
        if found == piece.digest { Ok(()) } else { Err(Damage::Digest(names::shown(self.path()))) }
    }

    /// Writes a checked piece. Returns the file's outcome if this was the last one.
    pub(crate) fn write(&self, piece: &Piece, bytes: &[u8]) -> Option<Outcome> {
        match &self.partial {
            None => Some(match self.write_whole(piece, bytes) {
                Ok(kept) => self.done(Some(piece.digest), kept),
                Err(error) => self.failed(&room(error, self.wanted.head.size)),
            }),
            Some(partial) => self.write_block(partial, piece, bytes).unwrap_or_else(|error| {
                let mut growing = partial.growing.lock();
                let told = std::mem::replace(&mut growing.over, true);
                drop(growing);
                (!told).then(|| self.failed(&room(error, self.wanted.head.size)))
            }),
        }
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Outcome {
        Outcome::Failed(format!("{}: {error}", names::shown(self.path())))
    }

    fn done(&self, digest: Option<Digest>, kept: Kept) -> Outcome {
        kept.map_or_else(|unkept| self.failed(&unkept), |()| Outcome::Done(digest))
    }

    fn write_block(&self, partial: &Partial, piece: &Piece, bytes: &[u8]) -> io::Result<Option<Outcome>> {
        let head = &self.wanted.head;
        let index = piece.offset / head.block;
        let at = (index - self.wanted.range().start) as usize;
        let growing = partial.growing.lock();
        if growing.over || growing.blocks[at].is_some() {
            return Ok(None);
        }
        drop(growing);
        if piece.hole {
            put_hole(&partial.file, piece.offset, u64::from(piece.len), partial.zeros)?;
        } else {
            put(&partial.file, bytes, piece.offset, partial.zeros)?;
        }
        let record = head.record(index, &piece.digest);
        // A single append is complete or torn after a crash, and never mixed with another one.
        if write(&partial.journal, &record)? != record.len() {
            return Err(Errno::NOSPC.into());
        }
        let mut growing = partial.growing.lock();
        if growing.blocks[at].replace(piece.digest).is_none() {
            growing.left -= 1;
        }
        self.try_finish(partial, growing)
    }

    /// Takes the sender's verdict on its source. Returns the file's outcome if all blocks are there.
    pub(crate) fn close(&self, verdict: &Verdict) -> Option<Outcome> {
        let Some(partial) = &self.partial else {
            return match verdict {
                Verdict::Unchanged | Verdict::Digest(_) => None,
                Verdict::Changed(text) | Verdict::Unreadable(text) => Some(Outcome::Failed(text.clone())),
            };
        };
        let mut growing = partial.growing.lock();
        match verdict {
            // The sender said this before it knew our blocks. Another verdict follows.
            Verdict::Unchanged if self.is_doubtful => {}
            Verdict::Unchanged => growing.confirmed = Some(Confirmed::Unchanged),
            Verdict::Digest(digest) => growing.confirmed = Some(Confirmed::IfDigest(*digest)),
            Verdict::Changed(text) | Verdict::Unreadable(text) => {
                if std::mem::replace(&mut growing.over, true) {
                    return None;
                }
                drop(growing);
                if matches!(verdict, Verdict::Changed(_)) {
                    // The blocks are of two versions.
                    discard(&self.wanted);
                }
                return Some(Outcome::Failed(text.clone()));
            }
        }
        self.try_finish(partial, growing).unwrap_or_else(|error| Some(self.failed(&error)))
    }

    fn try_finish(
        &self,
        partial: &Partial,
        mut growing: parking_lot::MutexGuard<'_, Growing>,
    ) -> io::Result<Option<Outcome>> {
        let Some(confirmed) = growing.confirmed else { return Ok(None) };
        if growing.left > 0 || growing.reserving || growing.over {
            return Ok(None);
        }
        growing.over = true;
        let blocks: Vec<Digest> = growing.blocks.iter().copied().flatten().collect();
        drop(growing);
        if matches!(confirmed, Confirmed::IfDigest(wanted) if wanted != digest::of(blocks.as_flattened())) {
            discard(&self.wanted);
            return Ok(Some(self.failed(&CHANGED)));
        }
        let done = if self.wanted.is_shared() {
            shared::finish(&self.wanted, &partial.file, &partial.journal)
        } else {
            let Head { size, block, .. } = self.wanted.head;
            self.finish(partial).map(|kept| (Some(digest::file(&blocks, size, block)), kept))
        };
        Ok(Some(match done {
            Ok((digest, kept)) => self.done(digest, kept),
            Err(error) => self.failed(&error),
        }))
    }

    /// Gives the partial file its attributes and its name.
    fn finish(&self, partial: &Partial) -> io::Result<Kept> {
        let Wanted { parent, name, meta, sync, .. } = &self.wanted;
        let kept = meta::apply(&partial.file, meta)?;
        if *sync {
            fsync(&partial.file)?;
        }
        let (part, journal) = names::partial(name);
        if !is_at(parent, &partial.file, part.as_bytes())? {
            return Err(given_up());
        }
        // Remove the journal first: once this file has its new name, another transfer may begin a partial file.
        match unlinkat(parent, &journal, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        renameat(parent, &part, parent, &name[..])?;
        if *sync {
            sync_folder(parent)?;
        }
        Ok(kept)
    }

    /// A file of one block.
    fn write_whole(&self, piece: &Piece, bytes: &[u8]) -> io::Result<Kept> {
        let Wanted { parent, name, meta, sync, sparse, .. } = &self.wanted;
        let Some(file) = nameless(parent)? else { return self.write_named(piece, bytes) };
        let file = Opened::short(file);
        fill(&file, piece, bytes, *sparse)?;
        let kept = meta::apply(&file, meta)?;
        if *sync {
            fsync(&file)?;
        }
        publish(&file, parent, name)?;
        if *sync {
            sync_folder(parent)?;
        }
        Ok(kept)
    }

    /// The same for a file system without unnamed files.
    fn write_named(&self, piece: &Piece, bytes: &[u8]) -> io::Result<Kept> {
        let Wanted { parent, name, meta, sync, sparse, .. } = &self.wanted;
        let temporary = unique(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = Opened::short(wait_for(|| openat(parent, &temporary, flags, mode))?);
        let written = (|| {
            fill(&file, piece, bytes, *sparse)?;
            let kept = meta::apply(&file, meta)?;
            if *sync {
                fsync(&file)?;
            }
            renameat(parent, &temporary, parent, &name[..])?;
            Ok(kept)
        })();
        if written.is_err() {
            let _ = unlinkat(parent, &temporary, AtFlags::empty());
        }
        written
    }
}

fn fill(file: &Opened, piece: &Piece, bytes: &[u8], sparse: bool) -> io::Result<()> {
    if piece.hole || sparse {
        ftruncate(file, u64::from(piece.len))?;
    }
    if !piece.hole { put(file, bytes, 0, Zeros::of(sparse, true)) } else { Ok(()) }
}

/// A new unnamed file in `parent`. None if the file system does not support it.
fn nameless(parent: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    wait_for(|| match openat(parent, ".", flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error),
    })
}

/// Gives an unnamed file this name, and replaces the file that had it.
fn publish(file: &Opened, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    match linkat(CWD, &own, parent, name, AtFlags::SYMLINK_FOLLOW) {
        Err(Errno::EXIST) => {}
        linked => return Ok(linked?),
    }
    let temporary = unique(name)?;
    linkat(CWD, &own, parent, &temporary, AtFlags::SYMLINK_FOLLOW)?;
    let renamed = renameat(parent, &temporary, parent, name);
    if renamed.is_err() {
        let _ = unlinkat(parent, &temporary, AtFlags::empty());
    }
    Ok(renamed?)
}

/// A temporary name that nobody else uses.
pub(crate) fn unique(name: &[u8]) -> io::Result<String> {
    let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(names::partial(&[name, &random.to_le_bytes()].concat()).0)
}

/// Syncs the names in a folder and its own attributes to the disk. Some file systems cannot, and need not.
pub(crate) fn sync_folder(folder: impl AsFd) -> io::Result<()> {
    match fsync(folder) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes what an unfinished file left.
fn discard(wanted: &Wanted) {
    let (part, journal) = wanted.partial();
    // In this order: see `finish`.
    for name in [journal, part] {
        let _ = unlinkat(&wanted.parent, &name, AtFlags::empty());
    }
}

fn room(error: io::Error, size: u64) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            let text = format!(
                "{error}; it needs {size} bytes in all, and a free inode (df -i): make room there and run the same \
                 command, which continues"
            );
            io::Error::new(error.kind(), text)
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            io::Error::new(error.kind(), format!("{error}; who runs the receiving side may not write there"))
        }
        _ => unmade(error),
    }
}

/// Explains that a file could not be made in a folder that was there a moment ago.
fn unmade(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    let text =
        "its folder on the receiving side takes no new files, as below /proc, or was removed meanwhile";
    io::Error::new(error.kind(), format!("{error}; {text}"))
}

/// Gives the file its length, if there seems to be room for it.
fn make_room(wanted: &Wanted, file: &OwnedFd) -> io::Result<()> {
    let size = wanted.head.size;
    let taken = (fstat(file)?.st_blocks as u64).saturating_mul(512);
    let system = fstatvfs(file)?;
    if !wanted.sparse && system.f_bavail.saturating_mul(system.f_frsize) < size.saturating_sub(taken) {
        return Err(Errno::NOSPC.into());
    }
    Ok(ftruncate(file, size)?)
}

fn put_all(file: &Opened, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(Errno::NOSPC.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Opens a file by `open` and locks it. It repeats this until the locked file is still called `name`: between open and
/// lock, another process may have renamed or removed it.
fn lock_named<E: Into<io::Error>>(
    parent: &OwnedFd,
    name: &str,
    how: FlockOperation,
    mut open: impl FnMut() -> Result<OwnedFd, E>,
) -> io::Result<OwnedFd> {
    for _ in 0..AGAIN {
        let file = open().map_err(Into::<io::Error>::into)?;
        lock(&file, how)?;
        if is_at(parent, &file, name.as_bytes())? {
            return Ok(file);
        }
    }
    Err(busy())
}

/// Whether `file` is the file with this name.
fn is_at(parent: &OwnedFd, file: impl AsFd, name: &[u8]) -> io::Result<bool> {
    let own = fstat(file)?;
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Locks a file, unless its file system has no locks.
fn lock(file: &OwnedFd, how: FlockOperation) -> io::Result<()> {
    if flock(file, how) == Err(Errno::WOULDBLOCK) { Err(busy()) } else { Ok(()) }
}

fn given_up() -> io::Error {
    io::Error::other("another process gave it up, or it was removed; run the same command again")
}

fn busy() -> io::Error {
    let text = "another transfer is writing it; wait for that, or end it, and try again";
    io::Error::new(io::ErrorKind::WouldBlock, text)
}

/// Finds the blocks of an earlier transfer, and takes over its journal. Also returns the `ctime` of the source in the
/// journal. A shared file uses this transfer's `ctime`; otherwise the journals could not be combined.
fn resume(
    wanted: &Wanted,
    file: &OwnedFd,
    journal: &OwnedFd,
    alive: &mut dyn FnMut(),
) -> io::Result<(Vec<Option<Digest>>, Time)> {
    let head = &wanted.head;
    let range = wanted.range();
    let mut blocks = vec![None; (range.end - range.start) as usize];
    // Other processes write to a shared file too, so its times tell nothing.
    let is_untouched = !wanted.is_shared() && is_untouched(file, journal)?;
    let bytes = read_all(journal)?;
    let earlier = Head::decode(&bytes)
        .filter(|earlier| earlier.fits(head) || !wanted.is_shared() && earlier.resembles(head));
    let Some(earlier) = earlier else {
        if !wanted.is_shared() {
            ftruncate(file, 0)?;
        }
        ftruncate(journal, 0)?;
        begin_journal(journal, head)?;
        return Ok((blocks, head.ctime));
    };
    let head = &Head { ctime: earlier.ctime, ..*head };
    let (found, good) = journal::read(&earlier, &bytes);
    let sure = earlier.boot == head.boot && is_untouched;
    let mut buffer = vec![0; if sure { 0 } else { head.block as usize }];
    for (index, digest) in found {
        if range.contains(&index) && (sure || is_there(file, head, index, &digest, &mut buffer)) {
            blocks[(index - range.start) as usize] = Some(digest);
        }
        alive();
    }
    if !sure {
        ftruncate(journal, 0)?;
        begin_journal(journal, head)?;
        for (index, digest) in blocks.iter().enumerate().filter_map(|(i, block)| Some((i, block.as_ref()?))) {
            write(journal, &head.record(range.start + index as u64, digest))?;
        }
    } else {
        ftruncate(journal, good)?;
    }
    Ok((blocks, head.ctime))
}

/// Whether nothing was written to the file after the journal's last record.
fn is_untouched(file: &OwnedFd, journal: &OwnedFd) -> io::Result<bool> {
    let (file, journal) = (fstat(file)?, fstat(journal)?);
    Ok((file.st_ctime, file.st_ctime_nsec) <= (journal.st_mtime, journal.st_mtime_nsec))
}

fn begin_journal(journal: &OwnedFd, head: &Head) -> io::Result<()> {
    if write(journal, &head.encode())? != HEAD_LEN { Err(Errno::NOSPC.into()) } else { Ok(()) }
}

fn read_all(journal: &OwnedFd) -> io::Result<Vec<u8>> {
    let len = fstat(journal)?.st_size as u64;
    if len > JOURNAL_MAX {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; len as usize];
    let got = read_at(journal, &mut bytes, 0)?;
    bytes.truncate(got);
    Ok(bytes)
}

fn read_at(file: impl AsFd, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match pread(&file, &mut bytes[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(got)
}

/// Whether a block of a journal is on the disk with this digest.
fn is_there(file: impl AsFd, head: &Head, index: u64, digest: &Digest, buffer: &mut [u8]) -> bool {
    let offset = index * head.block;
    let len = head.block.min(head.size - offset) as usize;
    let bytes = &mut buffer[..len];
    matches!(read_at(file, bytes, offset), Ok(got) if got == len)
        && digest::piece(bytes, offset, head.size, head.block) == *digest
}

/// The blocks that are there as ranges of first and count. `blocks` begins with block `start`.
fn ranges(blocks: &[Option<Digest>], start: u64) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    let there = blocks.iter().zip(start..).filter_map(|(block, index)| block.is_some().then_some(index));
    for index in there {
        match out.last_mut() {
            Some((first, count)) if *first + *count == index => *count += 1,
            _ => out.push((index, 1)),
        }
    }
    out
}

/// The running system's boot.
pub(crate) fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut id = [0; 16];
    let digits = text.trim().replace('-', "");
    for (byte, pair) in id.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).unwrap_or(0);
    }
    id
}

#[cfg(test)]
mod tests;
