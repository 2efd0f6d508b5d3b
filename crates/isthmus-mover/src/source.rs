//! Reads files that are sent, and notices when they change meanwhile.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{Advice, Mode, OFlags, SeekFrom, fadvise, fstat, seek};
use rustix::io::Errno;

use crate::buffer::PAGE;
use crate::cache::Opened;
use crate::plan::Part;
use crate::wire::{HEADER_MAX, Header, Kind, Piece, Share, Time, Verdict};
use crate::{confine, digest, meta, names};

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
    /// Whose blocks of it are sent.
    pub(crate) share: Share,
    /// Kept open while its blocks are read; not of files that fit into one.
    open: Mutex<Option<Arc<Opened>>>,
}

/// A block that was read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// What it holds.
    pub(crate) pieces: Vec<Piece>,
    /// Files of which it should have held a piece.
    pub(crate) failed: Vec<(u64, Verdict)>,
    /// Bytes after the header.
    pub(crate) len: usize,
    /// Time in the file system. Nanoseconds.
    pub(crate) disk_ns: u64,
    /// Time with digests and cipher. Nanoseconds.
    pub(crate) cpu_ns: u64,
}

impl Source {
    /// The file of an entry; none where the entry is no file.
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
            share,
            open: Mutex::new(None),
        })
    }

    fn open(&self) -> Result<OwnedFd, Verdict> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file =
            confine::open(&self.dir, &self.at, flags, Mode::empty()).map_err(|e| self.unreadable(&e))?;
        self.same(&file)?;
        Ok(file)
    }

    fn unreadable(&self, error: &io::Error) -> Verdict {
        Verdict::Unreadable(format!("{}: {error}", names::shown(&self.at)))
    }

    /// Whether it still is what was announced.
    fn same(&self, file: impl AsFd) -> Result<(), Verdict> {
        let stat = fstat(file).map_err(|e| self.unreadable(&e.into()))?;
        let now = (stat.st_size as u64, meta::mtime(&stat), meta::ctime(&stat));
        if now == (self.size, self.mtime, self.ctime) { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Verdict {
        let text = "changed while it was read; copy it again when nobody writes it";
        Verdict::Changed(format!("{}: {text}", names::shown(&self.at)))
    }

    /// How the reading of a file of several blocks ended.
    pub(crate) fn verdict(&self) -> Verdict {
        let open = self.open.lock().take();
        let same = match open {
            Some(file) => self.same(&*file),
            None => self.open().map(drop),
        };
        same.err().unwrap_or(Verdict::Unchanged)
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
        let whole = self.size <= block;
        let file = if whole { Arc::new(Opened::short(self.open()?)) } else { self.shared()? };
        if self.sparse && part.len > 0 && is_hole(&*file, part) {
            return if whole { self.same(&*file).map(|()| None) } else { Ok(None) };
        }
        let room = &mut room[..part.len as usize];
        let mut got = 0;
        while got < room.len() {
            match file.read_at(&mut room[got..], part.offset + got as u64) {
                Ok(0) => return Err(self.changed()),
                Ok(more) => got += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.unreadable(&error.into())),
            }
        }
        if whole {
            self.same(&*file)?;
        }
        Ok(Some(got))
    }
}

fn is_hole(file: impl AsFd, part: &Part) -> bool {
    match seek(&file, SeekFrom::Data(part.offset)) {
        Ok(data) => data >= part.offset + part.len,
        Err(Errno::NXIO) => true,
        Err(_) => false,
    }
}

/// Reads the pieces of a block to where they belong in `buffer`, with their digests.
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
