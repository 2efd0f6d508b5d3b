//! Reads files that are sent, and notices when they change meanwhile.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use isthmus_layout::Layout;
use parking_lot::Mutex;
use rustix::fs::{Advice, Mode, OFlags, SeekFrom, fadvise, fstat, fstatfs, seek};
use rustix::io::Errno;

use crate::buffer::{Buffer, PAGE};
use crate::cache::Opened;
use crate::descriptors::wait_for;
use crate::plan::Part;
use crate::wire::{HEADER_MAX, Header, Kind, Piece, Share, Time, Verdict};
use crate::{confine, digest, meta, names};

/// The error text for a source that has changed.
pub(crate) const CHANGED: &str = "changed while it was read; copy it again when nobody writes it";
/// Limit on complete reads of a file to find out whether it is unchanged, if it changes again meanwhile.
const AGAIN: usize = 3;
/// Bytes read in one job of that check, so that other blocks need not wait long.
const LOOK_STEP: u64 = 16 << 20;

/// Room before a block's bytes for its header: whole pages, so that the bytes begin with one. Bytes.
pub(crate) const HEAD_ROOM: usize = (4 + HEADER_MAX).next_multiple_of(PAGE);

/// A file that is being sent.
#[derive(Debug)]
pub(crate) struct Source {
    dir: Arc<OwnedFd>,
    at: Vec<u8>,
    /// Path at the destination.
    pub(crate) path: Vec<u8>,
    /// Length. Bytes.
    pub(crate) size: u64,
    mtime: Time,
    ctime: Time,
    sparse: bool,
    /// The volumes that it lies on.
    pub(crate) layout: Layout,
    /// The share of its blocks that this process sends.
    pub(crate) share: Share,
    /// The open file while its blocks are read. Files of one block are not kept open.
    open: Mutex<Option<Arc<Opened>>>,
    look: Mutex<Look>,
}

/// Device, inode, and time of the last change of content or attributes.
type Version = (u64, u64, Time);

/// Progress of reading a file again whose attributes have changed.
#[derive(Debug, Default)]
struct Look {
    times: usize,
    version: Option<Version>,
    /// The digests of its blocks.
    digests: Vec<u8>,
    next: u64,
}

/// A block that was read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Its pieces.
    pub(crate) pieces: Vec<Piece>,
    /// Files whose piece could not be read.
    pub(crate) failed: Vec<(u64, Verdict)>,
    /// Bytes after the header.
    pub(crate) len: usize,
    /// Time spent in the file system. Nanoseconds.
    pub(crate) disk_ns: u64,
    /// Time spent on digests and encryption. Nanoseconds.
    pub(crate) cpu_ns: u64,
}

impl Source {
    /// The source of an entry. None if the entry is no file.
    pub(crate) fn new(item: &crate::walk::Item) -> Option<Self> {
        let Kind::File { size, ctime, sparse, share } = item.kind else { return None };
        Some(Self {
            dir: item.dir.clone(),
            at: item.at.clone(),
            path: item.path.clone(),
            size,
            mtime: item.meta.mtime,
            ctime,
            sparse,
            layout: item.layout.clone(),
            share,
            open: Mutex::new(None),
            look: Mutex::default(),
        })
    }

    fn open(&self) -> Result<OwnedFd, Verdict> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let opened = wait_for(|| confine::open(&self.dir, &self.at, flags, Mode::empty()));
        let file = opened.map_err(|e| self.unreadable(&e))?;
        self.version(&file)?;
        Ok(file)
    }

    fn unreadable(&self, error: &io::Error) -> Verdict {
        Verdict::Unreadable(format!("{}: {error}", names::shown(&self.at)))
    }

    /// The version of the open file, if its length and time of content are as announced. Otherwise only the name or the
    /// permissions may have changed, or somebody changed the content and set the old time.
    fn version(&self, file: impl AsFd) -> Result<Version, Verdict> {
        let stat = fstat(&file).map_err(|e| self.unreadable(&e.into()))?;
        if (stat.st_size as u64, meta::mtime(&stat)) != (self.size, self.mtime) {
            // The kernel drops and remakes what it knows of a file of /sys at any time, with new times.
            let made = is_made_by_the_kernel(&file);
            return Err(if made { self.made_by_the_kernel() } else { self.changed() });
        }
        Ok((stat.st_dev, stat.st_ino, meta::ctime(&stat)))
    }

    fn made_by_the_kernel(&self) -> Verdict {
        Verdict::Unreadable(format!(
            "{}: the kernel makes its content when it is read, and its length and times say nothing, as files of /proc \
             and /sys do; write its content to a file, and copy that",
            names::shown(&self.at)
        ))
    }

    fn changed(&self) -> Verdict {
        Verdict::Changed(format!("{}: {CHANGED}", names::shown(&self.at)))
    }

    /// The verdict on a file of several blocks after it was read. None: not known yet; ask again.
    pub(crate) fn verdict(&self, block: u64, is_doubtful: bool) -> Option<Verdict> {
        let verdict = self.judge(block, is_doubtful).unwrap_or_else(Some);
        if verdict.is_some() {
            *self.open.lock() = None;
        }
        verdict
    }

    fn judge(&self, block: u64, is_doubtful: bool) -> Result<Option<Verdict>, Verdict> {
        let mut look = self.look.lock();
        let file = self.shared()?;
        let version = self.version(&*file)?;
        if look.version.is_none() && !is_doubtful && version.2 == self.ctime {
            return Ok(Some(Verdict::Unchanged));
        }
        let Range { start, end } = self.share.blocks(self.size.div_ceil(block));
        if look.version != Some(version) {
            if look.times == AGAIN {
                return Err(self.changed());
            }
            *look = Look { times: look.times + 1, version: Some(version), digests: Vec::new(), next: start };
        }
        let mut room = Buffer::new(block as usize).map_err(|error| self.unreadable(&error))?;
        for index in look.next..end.min(look.next + LOOK_STEP.div_ceil(block)) {
            let offset = index * block;
            let part = Part { id: 0, offset, len: block.min(self.size - offset) };
            let digest = match self.read(&part, &mut room, block)? {
                Some(len) => digest::piece(&room[..len], offset, self.size, block),
                None => digest::hole(part.len, offset, self.size, block),
            };
            look.digests.extend_from_slice(&digest);
            look.next = index + 1;
        }
        if look.next < end {
            return Ok(None);
        }
        let (device, inode, _) = self.version(self.open()?)?;
        if (device, inode) != (version.0, version.1) {
            // The file under this name is not the one that was read.
            return Err(self.changed());
        }
        if self.version(&*file)? != version {
            return Ok(None);
        }
        Ok(Some(Verdict::Digest(digest::of(&look.digests))))
    }

    fn shared(&self) -> Result<Arc<Opened>, Verdict> {
        if let Some(file) = &*self.open.lock() {
            return Ok(file.clone());
        }
        let file = Arc::new(Opened::long(self.open()?));
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        Ok(self.open.lock().get_or_insert(file).clone())
    }

    /// Reads one piece to the start of `room`. None: it is a hole.
    fn read(&self, part: &Part, room: &mut [u8], block: u64) -> Result<Option<usize>, Verdict> {
        if self.size > block {
            let file = self.shared()?;
            return self.read_from(&file, part, room);
        }
        for _ in 0..AGAIN {
            let file = Opened::short(self.open()?);
            let version = self.version(&file)?;
            let read = self.read_from(&file, part, room)?;
            if self.version(&file)? == version {
                return Ok(read);
            }
        }
        Err(self.changed())
    }

    fn read_from(&self, file: &Opened, part: &Part, room: &mut [u8]) -> Result<Option<usize>, Verdict> {
        if self.sparse && part.len > 0 && is_hole(file, part) {
            return Ok(None);
        }
        let room = &mut room[..part.len as usize];
        let mut got = 0;
        while got < room.len() {
            match file.read_at(&mut room[got..], part.offset + got as u64) {
                Ok(0) => return Err(self.ended_early(file, part.offset + got as u64)),
                Ok(more) => got += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.unreadable(&error.into())),
            }
        }
        self.ends_with(file, part)?;
        Ok(Some(got))
    }

    /// Checks that the content ends at the file's length. Generated files, as in /proc, may state another length, and
    /// must not count as copied. They have no blocks on a disk, so other files need no check.
    fn ends_with(&self, file: &Opened, part: &Part) -> Result<(), Verdict> {
        let is_last = part.offset + part.len == self.size;
        if !is_last || self.size > 0 && !self.sparse {
            return Ok(());
        }
        match file.read_at(&mut [0], self.size) {
            // Some file systems refuse offsets beyond the length.
            Ok(0) | Err(_) => Ok(()),
            Ok(_) => {
                Err(self.lies(file, format_args!("it has more than the {} bytes of its length", self.size)))
            }
        }
    }

    /// The verdict for a file whose content ended at `end`, before its length.
    fn ended_early(&self, file: &Opened, end: u64) -> Verdict {
        self.lies(file, format_args!("it has {end} bytes, and not the {} of its length", self.size))
    }

    /// The verdict for a file whose length and content differ.
    fn lies(&self, file: &Opened, how: std::fmt::Arguments<'_>) -> Verdict {
        match self.version(file) {
            Ok(_) => Verdict::Unreadable(format!(
                "{}: {how}, as files of /proc and /sys do; write its content to a file, and copy that",
                names::shown(&self.at)
            )),
            Err(verdict) => verdict,
        }
    }
}

/// File systems whose files the kernel makes when they are read: sysfs, control groups (versions 2 and 1), debugfs and
/// tracefs. Their numbers are in `linux/magic.h`. Files of /proc keep their times while they are open.
const MADE_BY_THE_KERNEL: [u64; 5] = [0x6265_6572, 0x6367_7270, 0x0027_e0eb, 0x6462_6720, 0x7472_6163];

fn is_made_by_the_kernel(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|system| MADE_BY_THE_KERNEL.contains(&(system.f_type as u64)))
}

fn is_hole(file: impl AsFd, part: &Part) -> bool {
    match seek(&file, SeekFrom::Data(part.offset)) {
        Ok(data) => data >= part.offset + part.len,
        Err(Errno::NXIO) => true,
        Err(_) => false,
    }
}

/// Reads the pieces of a block into `buffer`, and computes their digests.
pub(crate) fn read_block(parts: &[(Part, Arc<Source>)], buffer: &mut [u8], block: u64) -> Read {
    let mut read = Read::default();
    for (part, source) in parts {
        let start = Instant::now();
        let room = &mut buffer[HEAD_ROOM + read.len..];
        let got = source.read(part, room, block);
        let middle = Instant::now();
        read.disk_ns += (middle - start).as_nanos() as u64;
        let (hole, digest) = match got {
            Err(verdict) => {
                read.failed.push((part.id, verdict));
                continue;
            }
            Ok(Some(len)) => {
                read.len += len;
                (false, digest::piece(&room[..len], part.offset, source.size, block))
            }
            Ok(None) => (true, digest::hole(part.len, part.offset, source.size, block)),
        };
        read.cpu_ns += middle.elapsed().as_nanos() as u64;
        read.pieces.push(Piece { id: part.id, offset: part.offset, len: part.len as u32, hole, digest });
    }
    read
}

/// Puts the header before a block's bytes; returns where the message begins.
pub(crate) fn put_header(buffer: &mut [u8], header: &Header) -> Result<usize, crate::wire::WireError> {
    let mut bytes = Vec::new();
    header.encode(&mut bytes)?;
    let start = HEAD_ROOM - bytes.len();
    buffer[start..HEAD_ROOM].copy_from_slice(&bytes);
    Ok(start)
}
