//! Walks the trees to copy, and lists their entries.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use isthmus_io::log::no_thread;
use isthmus_layout::Layout;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fstat, readlinkat, seek, statat};

use crate::descriptors::wait_for;
use crate::wire::{Choice, ITSELF, Kind, Meta, RANKS_MAX, Share, Trouble};
use crate::{confine, meta, names};

/// Limits on the patterns of a choice: their number, and the length of each in bytes.
const PATTERNS_MAX: usize = 64;
const PATTERN_LEN_MAX: usize = 1024;
/// Most devices that are walked at the same time. Count.
const WALKS_MAX: usize = 16;
/// Most entries of a device that were found and not announced yet. Count.
const LIST_MAX: usize = 4096;
const NO_KIND: &str = "neither file, folder nor symbolic link; not copied";

/// A source: a path in an open folder, and its name at the destination.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    /// The folder that paths are opened from.
    pub(crate) dir: Arc<OwnedFd>,
    /// Path below it.
    pub(crate) at: Vec<u8>,
    /// Name at the destination. None: it is a folder whose contents go there.
    pub(crate) name: Option<Vec<u8>>,
}

impl Root {
    /// Its length, if it is a regular file. Bytes.
    pub(crate) fn file_len(&self) -> Option<u64> {
        let stat = statat(&self.dir, &self.at[..], AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(stat.st_size as u64)
    }
}

/// Whether a source as the user wrote it means the contents of a folder: "SRC/", "SRC/.", ".".
pub(crate) fn is_contents(written: &[u8]) -> bool {
    !written.is_empty() && matches!(names::split(written).1, b"" | b"." | b"..")
}

/// All sources of a transfer.
#[derive(Debug)]
pub(crate) struct Roots {
    /// Sources that exist.
    pub(crate) found: Vec<Root>,
    /// Sources that do not exist.
    pub(crate) missing: Vec<Trouble>,
}

impl Roots {
    /// Sorts the named sources.
    ///
    /// # Errors
    /// None of them exists; or two have the same path at the destination, so that chance would decide which one stays.
    pub(crate) fn new(named: impl Iterator<Item = Result<Root, Trouble>>) -> Result<Self, String> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for root in named {
            match root {
                Ok(root) => found.push(root),
                Err(trouble) => missing.push(trouble),
            }
        }
        if let (true, Some(first)) = (found.is_empty(), missing.first()) {
            return Err(first.text.clone());
        }
        if found.len() > 1 && found.iter().any(|root| root.name.is_none()) {
            let text = "a source that ends in \"/\" or \"/.\" is what is in the folder, and is copied by itself; leave \
                        that off, or name no other source";
            return Err(text.to_owned());
        }
        let mut seen = HashSet::new();
        let twice = found.iter().filter_map(|root| root.name.as_ref()).find(|name| !seen.insert(*name));
        match twice {
            Some(name) => Err(format!(
                "two sources are called {:?}, of which one would replace the other; copy them to different folders",
                names::shown(name)
            )),
            None => Ok(Self { found, missing }),
        }
    }
}

/// One result of a walk.
#[derive(Debug)]
pub(crate) enum Found {
    /// Something to copy.
    Item(Item),
    /// Something that is not copied, and why.
    Trouble(Trouble),
    /// Something that cannot be copied because of its kind or name. This is no failure.
    Skipped(Trouble),
}

/// An entry without its number.
#[derive(Debug)]
pub(crate) struct Item {
    /// The folder that `at` is opened from.
    pub(crate) dir: Arc<OwnedFd>,
    /// Path below it.
    pub(crate) at: Vec<u8>,
    /// Path at the destination.
    pub(crate) path: Vec<u8>,
    /// Its kind.
    pub(crate) kind: Kind,
    /// Its attributes.
    pub(crate) meta: Meta,
    /// The volumes that it lies on, if it is a file.
    pub(crate) layout: Layout,
}

/// The compiled filter of files to leave out.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    exclude: Patterns,
    include: Patterns,
    recursive: bool,
    share: Share,
    /// Bytes of a block.
    block: u64,
}

impl Filter {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// A pattern is invalid; the text says which one and why.
    pub(crate) fn new(choice: &Choice, block: u64) -> Result<Self, String> {
        let Share { rank, ranks } = choice.share;
        if rank >= ranks || ranks > RANKS_MAX {
            return Err(format!("there is no process {rank} of {ranks}"));
        }
        Ok(Self {
            exclude: Patterns::new(&choice.exclude)?,
            include: Patterns::new(&choice.include)?,
            recursive: choice.recursive,
            share: choice.share,
            block,
        })
    }

    fn leaves_out(&self, path: &[u8], is_folder: bool) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        self.exclude.fits(path, is_folder) && !self.include.fits(path, is_folder)
    }
}

/// Patterns of one kind, with the meaning of rsync. A pattern with "/" at its end matches only folders. One that begins
/// with "/" matches only entries directly in the source. One with "/" in the middle matches the end of a path.
#[derive(Clone, Debug)]
struct Patterns {
    any: GlobSet,
    folders: GlobSet,
}

impl Patterns {
    fn new(texts: &[String]) -> Result<Self, String> {
        if texts.len() > PATTERNS_MAX || texts.iter().any(|text| text.len() > PATTERN_LEN_MAX) {
            return Err(format!("at most {PATTERNS_MAX} patterns of {PATTERN_LEN_MAX} bytes are taken"));
        }
        let (mut any, mut folders) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for text in texts {
            let (set, rest) = match text.strip_suffix('/') {
                Some(rest) => (&mut folders, rest),
                None => (&mut any, &text[..]),
            };
            let whole = rest.strip_prefix('/').map_or_else(|| format!("**/{rest}"), str::to_owned);
            let glob = GlobBuilder::new(&whole).literal_separator(true).build();
            set.add(glob.map_err(|error| format!("{text:?} is no pattern: {}", error.kind()))?);
        }
        let built = |set: GlobSetBuilder| {
            set.build().map_err(|error| format!("these patterns cannot be used: {}", error.kind()))
        };
        Ok(Self { any: built(any)?, folders: built(folders)? })
    }

    fn fits(&self, path: &Path, is_folder: bool) -> bool {
        self.any.is_match(path) || is_folder && self.folders.is_match(path)
    }
}

fn is_folder(within: impl AsFd, name: &[u8]) -> bool {
    statat(within, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Whether a file has holes. Space that was allocated and never written (`fallocate`) counts as a hole. It has blocks,
/// so files that are longer than `block` are asked for their first hole. Shorter ones cost nothing to send.
fn sparse(file: impl AsFd, stat: &Stat, block: u64) -> bool {
    let size = stat.st_size as u64;
    let has_first_hole = || seek(file, SeekFrom::Hole(0)).is_ok_and(|hole| hole < size);
    (stat.st_blocks as u64).saturating_mul(512) < size || size > block && has_first_hole()
}

/// The report about something at `at` that is not copied to `path`.
fn trouble(at: &[u8], path: &[u8], error: &dyn std::fmt::Display) -> Trouble {
    Trouble { path: path.to_vec(), text: format!("{}: {error}", names::shown(at)) }
}

/// The listener is gone: the walk ends.
struct Gone;

/// Starts to walk the roots: those of each device one after the other, and the devices side by side, each with its own
/// list of what was found.
pub(crate) fn start(roots: Roots, filter: &Filter) -> io::Result<Vec<Receiver<Found>>> {
    let mut missing = roots.missing;
    let mut groups: BTreeMap<u64, Vec<Root>> = BTreeMap::new();
    for root in roots.found {
        let stat = statat(&root.dir, &root.at[..], AtFlags::SYMLINK_NOFOLLOW);
        let device = stat.map_or(0, |stat| stat.st_dev);
        let is_one_more = groups.len() >= WALKS_MAX && !groups.contains_key(&device);
        let group = if is_one_more { groups.values_mut().next() } else { None };
        match group {
            Some(group) => group.push(root),
            None => groups.entry(device).or_default().push(root),
        }
    }
    let mut lists = Vec::new();
    for found in groups.into_values() {
        let (out, list) = crossbeam_channel::bounded(LIST_MAX);
        let (roots, filter) = (Roots { found, missing: std::mem::take(&mut missing) }, filter.clone());
        std::thread::Builder::new()
            .name("mover-walk".to_owned())
            .spawn(move || walk(roots, &filter, &out))
            .map_err(no_thread)?;
        lists.push(list);
    }
    Ok(lists)
}

/// Walks all roots one after the other. It ends early if the listener is gone.
fn walk(roots: Roots, filter: &Filter, out: &Sender<Found>) {
    for trouble in roots.missing {
        if out.send(Found::Trouble(trouble)).is_err() {
            return;
        }
    }
    for root in &roots.found {
        let (path, top) = match &root.name {
            Some(name) => (&name[..], name.len() + 1),
            None => (ITSELF, 0),
        };
        let mut walker = Walker { dir: &root.dir, top, filter, out };
        if walker.visit(root.dir.as_fd(), &root.at, &root.at, path, 0).is_err() {
            return;
        }
    }
}

struct Walker<'a> {
    dir: &'a Arc<OwnedFd>,
    /// Length of the root's own name at the start of a path at the destination. Bytes.
    top: usize,
    filter: &'a Filter,
    out: &'a Sender<Found>,
}

impl Walker<'_> {
    fn emit(&self, found: Found) -> Result<(), Gone> {
        self.out.send(found).map_err(|_| Gone)
    }

    fn trouble(&self, at: &[u8], path: &[u8], error: &dyn std::fmt::Display) -> Result<(), Gone> {
        self.emit(Found::Trouble(trouble(at, path, error)))
    }

    /// The same for an error of the system.
    fn refused(&self, at: &[u8], path: &[u8], error: &io::Error) -> Result<(), Gone> {
        let may_not = error.kind() == io::ErrorKind::PermissionDenied;
        let remedy = if may_not { "; who runs the sending side may not read it" } else { "" };
        self.trouble(at, path, &format_args!("{error}{remedy}"))
    }

    fn skip(&self, at: &[u8], path: &[u8], why: &str) -> Result<(), Gone> {
        self.emit(Found::Skipped(trouble(at, path, &why)))
    }

    fn item(&self, at: &[u8], path: &[u8], kind: Kind, meta: Meta) -> Result<(), Gone> {
        self.laid_out(at, path, kind, meta, Layout::default())
    }

    /// An entry with this layout.
    fn laid_out(&self, at: &[u8], path: &[u8], kind: Kind, meta: Meta, layout: Layout) -> Result<(), Gone> {
        self.emit(Found::Item(Item {
            dir: self.dir.clone(),
            at: at.to_vec(),
            path: path.to_vec(),
            kind,
            meta,
            layout,
        }))
    }

    /// Visits the entry `name` in the open folder `within`.
    fn visit(
        &mut self,
        within: rustix::fd::BorrowedFd<'_>,
        name: &[u8],
        at: &[u8],
        path: &[u8],
        depth: usize,
    ) -> Result<(), Gone> {
        if path != ITSELF
            && let Err(error) = names::check(path)
        {
            // It names the path.
            return self.emit(Found::Trouble(Trouble { path: path.to_vec(), text: error.to_string() }));
        }
        // The path to a source may have changed since it was found.
        let stat = if depth == 0 {
            wait_for(|| confine::open(within, name, OFlags::PATH, Mode::empty()))
                .and_then(|there| Ok(fstat(there)?))
        } else {
            statat(within, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)
        };
        let stat = match stat {
            Ok(stat) => stat,
            Err(error) => return self.refused(at, path, &error),
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let open = |more| wait_for(|| confine::open(within, name, flags | more, Mode::empty()));
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_folder = kind == FileType::Directory;
        if path == ITSELF && !is_folder {
            return self.trouble(at, path, &"is no folder, of which the content could be copied");
        }
        let long = kind == FileType::RegularFile && self.share_of(&stat) != Share::default();
        if !is_folder && !long && !self.filter.share.takes(path) {
            return Ok(());
        }
        match kind {
            FileType::RegularFile => match open(OFlags::empty()) {
                Ok(file) => self.file(&file, at, path),
                Err(error) => self.refused(at, path, &error),
            },
            FileType::Directory if !self.filter.recursive => {
                self.trouble(at, path, &"is a folder; add -r to copy it with what is in it")
            }
            FileType::Directory => match open(OFlags::DIRECTORY) {
                Ok(folder) => self.folder(folder, &stat, at, path, depth),
                Err(error) => self.refused(at, path, &error),
            },
            FileType::Symlink => match readlinkat(within, name, Vec::new()) {
                Ok(text) => self.item(at, path, Kind::Symlink(text.into_bytes()), meta::of(&stat)),
                Err(error) => self.refused(at, path, &io::Error::from(error)),
            },
            // The user has named it, so it must be copied.
            _ if depth == 0 => self.trouble(at, path, &NO_KIND),
            _ => self.skip(at, path, NO_KIND),
        }
    }

    /// The share of a file that is copied: all of it, or this process's share of a long file.
    fn share_of(&self, stat: &Stat) -> Share {
        let Filter { share, block, .. } = self.filter;
        if share.splits(stat.st_size as u64, *block) { *share } else { Share::default() }
    }

    fn file(&self, file: &OwnedFd, at: &[u8], path: &[u8]) -> Result<(), Gone> {
        let stat = match fstat(file) {
            Ok(stat) => stat,
            Err(error) => return self.refused(at, path, &io::Error::from(error)),
        };
        let meta = self.with_xattrs(file, &stat, at, path)?;
        let size = stat.st_size as u64;
        let (sparse, share) = (sparse(file, &stat, self.filter.block), self.share_of(&stat));
        let device = stat.st_dev;
        let is_long = size > self.filter.block;
        let layout = if is_long { Layout::of(file, device) } else { Layout::on_device(device) };
        self.laid_out(at, path, Kind::File { size, ctime: meta::ctime(&stat), sparse, share }, meta, layout)
    }

    fn with_xattrs(&self, file: &OwnedFd, stat: &Stat, at: &[u8], path: &[u8]) -> Result<Meta, Gone> {
        let xattrs = match meta::xattrs(file) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.trouble(at, path, &error)?;
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
        let mut meta = self.with_xattrs(&folder, stat, at, path)?;
        if self.filter.share.ranks > 1 {
            // The process that ends first must not lock the others out.
            meta.mode |= 0o700;
        }
        self.item(at, path, Kind::Folder, meta.clone())?;
        // A deep tree has all folders of its path open: one descriptor each.
        let mut entries = match Dir::new(folder) {
            Ok(entries) => entries,
            Err(error) => return self.refused(at, path, &io::Error::from(error)),
        };
        while let Some(entry) = entries.read() {
            let (folder, entry) = match (entries.fd(), entry) {
                (Ok(folder), Ok(entry)) => (folder, entry),
                (Err(error), _) | (_, Err(error)) => {
                    self.refused(at, path, &io::Error::from(error))?;
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let at = names::join(at, name);
            let path = if path == ITSELF { name.to_vec() } else { names::join(path, name) };
            // Entries that are left out are not examined further; they may be gone by now.
            let is_folder = match entry.file_type() {
                FileType::Unknown => is_folder(folder, name),
                kind => kind == FileType::Directory,
            };
            // Patterns match paths below the root, not the root's own name.
            if self.filter.leaves_out(&path[self.top..], is_folder) {
                continue;
            }
            if names::is_partial(name) {
                // A user's own file may have such a name.
                self.skip(&at, &path, "named as files that are not whole yet; not copied")?;
            } else {
                self.visit(folder, name, &at, &path, depth + 1)?;
            }
        }
        self.item(at, path, Kind::FolderEnd, meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_processes_are_bounded() {
        let refused = |choice: Choice| Filter::new(&choice, 1 << 16).is_err();
        let patterns = |count, len| vec!["a".repeat(len); count];
        assert!(!refused(Choice { exclude: patterns(PATTERNS_MAX, PATTERN_LEN_MAX), ..Choice::default() }));
        assert!(refused(Choice { exclude: patterns(PATTERNS_MAX + 1, 1), ..Choice::default() }));
        assert!(refused(Choice { include: patterns(1, PATTERN_LEN_MAX + 1), ..Choice::default() }));
        for share in [Share { rank: 2, ranks: 2 }, Share { rank: 0, ranks: RANKS_MAX + 1 }] {
            assert!(refused(Choice { share, ..Choice::default() }), "{share:?}");
        }
    }
}
