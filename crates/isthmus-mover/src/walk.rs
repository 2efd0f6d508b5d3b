//! Walks trees that are to be copied, and says what is in them.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crossbeam_channel::Sender;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, readlinkat, statat};

use crate::wire::{Choice, Kind, Meta, RANKS_MAX, Share};
use crate::{confine, meta, names};

/// Most patterns of a choice, and the longest.
const PATTERNS_MAX: usize = 64;
const PATTERN_LEN_MAX: usize = 1024;

/// Where to begin: something in an open folder, and what it is called at the destination.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    /// The folder that paths are opened from.
    pub(crate) dir: Arc<OwnedFd>,
    /// Path below it.
    pub(crate) at: Vec<u8>,
    /// Name at the destination.
    pub(crate) name: Vec<u8>,
}

impl Root {
    /// How long it is, if it is a regular file. Bytes.
    pub(crate) fn file_len(&self) -> Option<u64> {
        let stat = statat(&self.dir, &self.at[..], AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(stat.st_size as u64)
    }
}

/// Whether each has a place of its own at the destination.
///
/// # Errors
/// Two have the same: which of them would stay would be chance.
pub(crate) fn apart(roots: &[Root]) -> Result<(), String> {
    let mut seen = HashSet::new();
    match roots.iter().find(|root| !seen.insert(&root.name)) {
        Some(root) => Err(format!(
            "two sources are called {:?}, of which one would replace the other; copy them to different folders",
            names::shown(&root.name)
        )),
        None => Ok(()),
    }
}

/// What a walk finds.
#[derive(Debug)]
pub(crate) enum Found {
    /// Something to copy.
    Item(Item),
    /// Something that is not copied, and why.
    Trouble(String),
    /// The same, and no fault: it cannot be copied by its nature or its name.
    Skipped(String),
}

/// An entry before it has a number.
#[derive(Debug)]
pub(crate) struct Item {
    /// The folder that `at` is opened from.
    pub(crate) dir: Arc<OwnedFd>,
    /// Path below it.
    pub(crate) at: Vec<u8>,
    /// Path at the destination.
    pub(crate) path: Vec<u8>,
    /// What it is.
    pub(crate) kind: Kind,
    /// What is kept of it.
    pub(crate) meta: Meta,
}

/// Which files are left out, ready to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    exclude: GlobSet,
    include: GlobSet,
    recursive: bool,
    share: Share,
    /// Bytes of a block.
    block: u64,
}

impl Filter {
    /// Reads the patterns.
    ///
    /// # Errors
    /// Which pattern is none, and why.
    pub(crate) fn new(choice: &Choice, block: u64) -> Result<Self, String> {
        let Share { rank, ranks } = choice.share;
        if rank >= ranks || ranks > RANKS_MAX {
            return Err(format!("there is no process {rank} of {ranks}"));
        }
        Ok(Self {
            exclude: patterns(&choice.exclude)?,
            include: patterns(&choice.include)?,
            recursive: choice.recursive,
            share: choice.share,
            block,
        })
    }

    fn leaves_out(&self, path: &[u8]) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        !self.exclude.is_empty() && self.exclude.is_match(path) && !self.include.is_match(path)
    }
}

/// A pattern without a slash is about names wherever they are, as `*.tmp`.
fn patterns(texts: &[String]) -> Result<GlobSet, String> {
    if texts.len() > PATTERNS_MAX || texts.iter().any(|text| text.len() > PATTERN_LEN_MAX) {
        return Err(format!("at most {PATTERNS_MAX} patterns of {PATTERN_LEN_MAX} bytes are taken"));
    }
    let mut set = GlobSetBuilder::new();
    for text in texts {
        let wide = match text.trim_start_matches('/') {
            text if text.contains('/') => text.to_owned(),
            text => format!("**/{text}"),
        };
        let glob = GlobBuilder::new(&wide).literal_separator(true).build();
        set.add(glob.map_err(|error| format!("{text:?} is no pattern: {}", error.kind()))?);
    }
    set.build().map_err(|error| format!("these patterns cannot be used: {}", error.kind()))
}

/// Whether a file has holes.
fn sparse(stat: &Stat) -> bool {
    (stat.st_blocks as u64).saturating_mul(512) < stat.st_size as u64
}

/// The listener is gone: the walk ends.
struct Gone;

/// Walks all roots in turn; ends early when nobody listens any more.
pub(crate) fn walk(roots: &[Root], filter: &Filter, out: &Sender<Found>) {
    for root in roots {
        let mut walker = Walker { dir: &root.dir, filter, out };
        if walker.visit(root.dir.as_fd(), &root.at, &root.at, &root.name, 0).is_err() {
            return;
        }
    }
}

struct Walker<'a> {
    dir: &'a Arc<OwnedFd>,
    filter: &'a Filter,
    out: &'a Sender<Found>,
}

impl Walker<'_> {
    fn say(&self, found: Found) -> Result<(), Gone> {
        self.out.send(found).map_err(|_| Gone)
    }

    fn trouble(&self, at: &[u8], error: &dyn std::fmt::Display) -> Result<(), Gone> {
        self.say(Found::Trouble(format!("{}: {error}", names::shown(at))))
    }

    /// The same of what the system said.
    fn refused(&self, at: &[u8], error: &io::Error) -> Result<(), Gone> {
        let may_not = error.kind() == io::ErrorKind::PermissionDenied;
        let remedy = if may_not { "; who runs the sending side may not read it" } else { "" };
        self.trouble(at, &format_args!("{error}{remedy}"))
    }

    fn skip(&self, at: &[u8], why: &str) -> Result<(), Gone> {
        self.say(Found::Skipped(format!("{}: {why}", names::shown(at))))
    }

    fn item(&self, at: &[u8], path: &[u8], kind: Kind, meta: Meta) -> Result<(), Gone> {
        self.say(Found::Item(Item {
            dir: self.dir.clone(),
            at: at.to_vec(),
            path: path.to_vec(),
            kind,
            meta,
        }))
    }

    /// What is called `name` in the open folder `within`.
    fn visit(
        &mut self,
        within: rustix::fd::BorrowedFd<'_>,
        name: &[u8],
        at: &[u8],
        path: &[u8],
        depth: usize,
    ) -> Result<(), Gone> {
        if let Err(error) = names::check(path) {
            return self.trouble(at, &error);
        }
        let stat = match statat(within, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => return self.refused(at, &io::Error::from(error)),
        };
        let open =
            |flags| confine::open(within, name, OFlags::RDONLY | OFlags::NONBLOCK | flags, Mode::empty());
        let kind = FileType::from_raw_mode(stat.st_mode);
        let long = kind == FileType::RegularFile && self.share_of(&stat) != Share::default();
        if kind != FileType::Directory && !long && !self.filter.share.takes(path) {
            return Ok(());
        }
        match kind {
            FileType::RegularFile => match open(OFlags::empty()) {
                Ok(file) => self.file(&file, at, path),
                Err(error) => self.refused(at, &error),
            },
            FileType::Directory if !self.filter.recursive => {
                self.trouble(at, &"is a folder; add -r to copy it with what is in it")
            }
            FileType::Directory => match open(OFlags::DIRECTORY) {
                Ok(folder) => self.folder(folder, &stat, at, path, depth),
                Err(error) => self.refused(at, &error),
            },
            FileType::Symlink => match readlinkat(within, name, Vec::new()) {
                Ok(text) => self.item(at, path, Kind::Symlink(text.into_bytes()), meta::of(&stat)),
                Err(error) => self.refused(at, &io::Error::from(error)),
            },
            // What the user has named is to be copied.
            _ if depth == 0 => self.trouble(at, &"neither file, folder nor symbolic link; not copied"),
            _ => self.skip(at, "neither file, folder nor symbolic link; not copied"),
        }
    }

    /// Whose blocks of a file are copied: all, or this process's of a long one.
    fn share_of(&self, stat: &Stat) -> Share {
        let Filter { share, block, .. } = self.filter;
        if share.splits(stat.st_size as u64, *block) { *share } else { Share::default() }
    }

    fn file(&self, file: &OwnedFd, at: &[u8], path: &[u8]) -> Result<(), Gone> {
        let stat = match fstat(file) {
            Ok(stat) => stat,
            Err(error) => return self.refused(at, &io::Error::from(error)),
        };
        let meta = self.with_xattrs(file, &stat, at)?;
        let size = stat.st_size as u64;
        let (sparse, share) = (sparse(&stat), self.share_of(&stat));
        self.item(at, path, Kind::File { size, ctime: meta::ctime(&stat), sparse, share }, meta)
    }

    fn with_xattrs(&self, file: &OwnedFd, stat: &Stat, at: &[u8]) -> Result<Meta, Gone> {
        let xattrs = match meta::xattrs(file) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.trouble(at, &error)?;
                Vec::new()
            }
        };
        Ok(Meta { xattrs, ..meta::of(stat) })
    }

    fn folder(
        &mut self,
        folder: OwnedFd,
        stat: &Stat,
        at: &[u8],
        path: &[u8],
        depth: usize,
    ) -> Result<(), Gone> {
        let mut meta = self.with_xattrs(&folder, stat, at)?;
        if self.filter.share.ranks > 1 {
            // Who is done first must not lock the others out.
            meta.mode |= 0o700;
        }
        self.item(at, path, Kind::Folder, meta.clone())?;
        let entries = match Dir::read_from(&folder) {
            Ok(entries) => entries,
            Err(error) => return self.refused(at, &io::Error::from(error)),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.refused(at, &io::Error::from(error))?;
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let path = names::join(path, name);
            // The pattern is about what is below the root, not about the root's own name.
            let below = path.iter().position(|byte| *byte == b'/').map_or(&path[..], |at| &path[at + 1..]);
            if self.filter.leaves_out(below) {
                continue;
            }
            if names::is_partial(name) {
                // A user may have given one of these to something else.
                self.skip(&names::join(at, name), "named as files that are not whole yet; not copied")?;
            } else {
                self.visit(folder.as_fd(), name, &names::join(at, name), &path, depth + 1)?;
            }
        }
        self.item(at, path, Kind::FolderEnd, meta)
    }
}
