//! The destination of a transfer: compares entries with what is there, makes folders and symbolic links, and prepares
//! files.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{
    Access, AtFlags, FileType, Mode, OFlags, Stat, accessat, fchmod, fstat, futimens, mkdirat, openat,
    readlinkat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::journal::Head;
use crate::links::Bounds;
use crate::target::{Target, Wanted, boot, sync_folder, unique};
use crate::wire::{Answer, Entry, ITSELF, Kind, Meta, Outcome, Rules, Time};
use crate::{confine, descriptors, meta, names};

/// Limit on folders that are kept open; it bounds descriptors.
const FOLDERS_MAX: usize = 64;
/// Limit on remembered folders that could not be made. Beyond it the same failure may be reported twice.
const REFUSED_MAX: usize = 1024;

/// The folder to which everything goes. Nothing outside it is touched.
#[derive(Debug)]
pub(crate) struct Landing {
    base: Arc<OwnedFd>,
    /// Whether this transfer makes the base folder.
    is_new: bool,
    goes: Goes,
    rules: Rules,
    block: u64,
    boot: [u8; 16],
    /// The folder inside which symbolic links may lead. None: anywhere.
    bounds: Option<Bounds>,
    folders: HashMap<Vec<u8>, Arc<OwnedFd>>,
    /// Folders that could not be made and whose end is still to come.
    refused: HashSet<Vec<u8>>,
}

/// The place of entries below the base.
#[derive(Debug)]
enum Goes {
    /// Under their own paths.
    Into,
    /// Under their own paths in a folder that does not exist: in a dry run, or because it could not be made.
    IntoMissing(Vec<u8>),
    /// The single file gets this name. A folder keeps its own name, and goes into a new folder of this name.
    As(Vec<u8>),
}

/// The result for an entry.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// All that is to be done was done.
    Over(Outcome),
    /// An answer, and the file if it will come.
    Asked(Answer, Option<Box<Target>>),
    /// Nothing yet, for want of a descriptor. It must be tried again after [`descriptors::PAUSE`].
    Later,
}

impl Landing {
    /// Finds out what `path` below `root` is: a folder to copy into, or the new name of the file that
    /// comes. With `into`, or when a folder comes, a missing folder is made.
    ///
    /// # Errors
    /// The path leads out, or there is no folder that it could be in.
    pub(crate) fn new(
        root: Arc<OwnedFd>,
        path: &[u8],
        into: bool,
        rules: Rules,
        block: u64,
        any_symlink: bool,
    ) -> io::Result<Self> {
        let bounds = if any_symlink { None } else { Some(Bounds::new(root.clone())?) };
        let at = |base, goes| Self {
            base,
            is_new: false,
            goes,
            rules,
            block,
            boot: boot(),
            bounds: bounds.clone(),
            folders: HashMap::new(),
            refused: HashSet::new(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = |path: &[u8]| {
            confine::open_following(&root, if path.is_empty() { b"." } else { path }, flags).map(Arc::new)
        };
        let (above, name) = names::split(path);
        match folder(path) {
            Ok(base) => return Ok(at(base, Goes::Into)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::NotADirectory && !into => {}
            Err(error) => return Err(error),
        }
        let above = folder(above).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let text = format!("there is no folder {:?}; make it first", names::shown(above));
                io::Error::new(error.kind(), text)
            }
            _ => error,
        })?;
        if into && !rules.dry_run {
            make_folder(&above, name, 0o777, rules.sync)?;
            let is_new = true;
            return Ok(Self { is_new, ..at(Arc::new(confine::open_folder(&above, name)?), Goes::Into) });
        }
        let name = name.to_vec();
        Ok(at(above, if into { Goes::IntoMissing(name) } else { Goes::As(name) }))
    }

    /// Whether this is a dry run.
    pub(crate) fn is_dry(&self) -> bool {
        self.rules.dry_run
    }

    /// Name of a single file here, if it differs.
    pub(crate) fn name(&self) -> Option<&[u8]> {
        if let Goes::As(name) = &self.goes { Some(name) } else { None }
    }

    /// Does everything for an entry that can be done at once. It calls `alive` now and then.
    pub(crate) fn prepare(&mut self, entry: &Entry, alive: &mut dyn FnMut()) -> Prepared {
        let Entry { path, kind, .. } = entry;
        let refused = |text| match kind {
            Kind::File { .. } => Prepared::Asked(Answer::Refused(text), None),
            _ => Prepared::Over(Outcome::Failed(text)),
        };
        let is_below = self.is_in_refused(path);
        if *kind == Kind::FolderEnd && (is_below || self.refused.remove(path)) {
            // Its failure was reported when it began.
            return Prepared::Over(Outcome::Done(None));
        }
        if is_below {
            // The failure of its folder was reported.
            return refused(String::new());
        }
        let error = match self.try_prepare(entry, alive) {
            Ok(prepared) => return prepared,
            Err(error) if descriptors::may_come(&error) => return Prepared::Later,
            Err(error) => descriptors::explained(error),
        };
        let may_not = error.kind() == io::ErrorKind::PermissionDenied;
        let mut remedy =
            if may_not { "; who runs the receiving side may not write there" } else { "" }.to_owned();
        let is_kept = self.refused.len() < REFUSED_MAX && path.len() <= names::PATH_MAX;
        if *kind == Kind::Folder && path != ITSELF && is_kept {
            self.refused.insert(path.clone());
            remedy.push_str("; nothing in it is copied");
        }
        refused(format!("{}: {error}{remedy}", names::shown(path)))
    }

    /// Whether a path is in a folder that could not be made.
    fn is_in_refused(&self, path: &[u8]) -> bool {
        let mut above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at]);
        !self.refused.is_empty() && above.any(|folder| self.refused.contains(folder))
    }

    fn try_prepare(&mut self, entry: &Entry, alive: &mut dyn FnMut()) -> io::Result<Prepared> {
        if entry.path == ITSELF {
            return self.itself(entry);
        }
        if entry.kind == Kind::Folder {
            self.make_destination()?;
        }
        if entry.kind == Kind::FolderEnd && self.rules.dry_run {
            return Ok(Prepared::Over(Outcome::Kept));
        }
        let path = self.place(&entry.path)?;
        if let (Kind::Symlink(text), Some(bounds)) = (&entry.kind, &self.bounds)
            && let Err(why) = bounds.hold(&self.base, names::split(&path).0, text)
        {
            if descriptors::is_short(&why) {
                return Err(why);
            }
            let text = format!("a symbolic link to {:?}, {why}", names::shown(text));
            return Err(io::Error::other(format!("{text}; this export does not take it")));
        }
        let (folder, name) = names::split(&path);
        let parent = match self.folder(folder) {
            // A dry run makes no folders, so those in it are not there.
            Err(error) if self.rules.dry_run && error.kind() == io::ErrorKind::NotFound => {
                return self.would(folder, &entry.kind);
            }
            parent => parent?,
        };
        let there = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        match &entry.kind {
            Kind::File { .. } => self.file(entry, path.clone(), parent, name, there.as_ref(), alive),
            Kind::Symlink(text) => self.link(&parent, &path, text, entry, there.as_ref()),
            Kind::Folder if self.rules.dry_run => match there.as_ref() {
                None => self.would(folder, &entry.kind),
                Some(stat) => is_folder(stat).map(|()| Prepared::Over(Outcome::Kept)),
            },
            Kind::Folder => {
                self.begin_folder(&parent, &path, entry.meta.mode, there.as_ref())?;
                Ok(Prepared::Over(if there.is_some() { Outcome::Kept } else { Outcome::Done(None) }))
            }
            Kind::FolderEnd => {
                let folder = self.folder(&path)?;
                self.folders.remove(&path);
                end_folder(&folder, &entry.meta, self.rules.sync)?;
                Ok(Prepared::Over(Outcome::Done(None)))
            }
        }
    }

    /// Makes the destination folder. A folder always goes into the destination, whether that existed or not. So a
    /// repeated command continues the first one.
    fn make_destination(&mut self) -> io::Result<()> {
        let Goes::As(name) = &self.goes else { return Ok(()) };
        let name = name.clone();
        self.goes = Goes::IntoMissing(name.clone());
        if !self.rules.dry_run {
            make_folder(&self.base, &name, 0o777, self.rules.sync)?;
            self.base = Arc::new(confine::open_folder(&self.base, &name)?);
            self.goes = Goes::Into;
        }
        Ok(())
    }

    /// Handles the folder whose contents go here. If it existed before, it keeps its attributes.
    fn itself(&self, entry: &Entry) -> io::Result<Prepared> {
        match entry.kind {
            Kind::Folder if self.is_new => {
                fchmod(&self.base, Mode::from_raw_mode(entry.meta.mode & 0o777 | 0o700))?;
            }
            Kind::FolderEnd if self.is_new => end_folder(&self.base, &entry.meta, self.rules.sync)?,
            Kind::Folder | Kind::FolderEnd => {}
            _ => return Err(io::Error::other("only a folder is copied as what is in it")),
        }
        Ok(Prepared::Over(Outcome::Kept))
    }

    fn begin_folder(
        &mut self,
        parent: &OwnedFd,
        path: &[u8],
        mode: u32,
        there: Option<&Stat>,
    ) -> io::Result<()> {
        match there {
            None => make_folder(parent, names::split(path).1, mode | 0o700, self.rules.sync)?,
            Some(stat) => {
                is_folder(stat)?;
                open_up(parent, names::split(path).1);
            }
        }
        // It is a folder, and no symbolic link to one.
        self.folder(path).map(drop)
    }

    /// The path of an entry here.
    fn place(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        names::check(path).map_err(io::Error::other)?;
        let here = match &self.goes {
            Goes::Into => path.to_vec(),
            Goes::IntoMissing(folder) => names::join(folder, path),
            Goes::As(name) => {
                // Nothing outside that name is touched, whatever the sender says.
                let below = path.iter().position(|byte| *byte == b'/').map_or(&b""[..], |at| &path[at + 1..]);
                names::join(name, below)
            }
        };
        names::check(&here).map_err(io::Error::other)?;
        if names::is_partial(names::split(&here).1) {
            return Err(io::Error::other("this name is kept for files that are not whole yet"));
        }
        Ok(here)
    }

    /// The folder at `path`. It stays open for further entries.
    fn folder(&mut self, path: &[u8]) -> io::Result<Arc<OwnedFd>> {
        if path.is_empty() {
            return Ok(self.base.clone());
        }
        if let Some(folder) = self.folders.get(path) {
            return Ok(folder.clone());
        }
        let folder = Arc::new(confine::open_folder(&self.base, path)?);
        descriptors::have_come();
        if self.folders.len() >= FOLDERS_MAX {
            self.folders.clear();
        }
        self.folders.insert(path.to_vec(), folder.clone());
        Ok(folder)
    }

    fn file(
        &mut self,
        entry: &Entry,
        path: Vec<u8>,
        parent: Arc<OwnedFd>,
        name: &[u8],
        there: Option<&Stat>,
        alive: &mut dyn FnMut(),
    ) -> io::Result<Prepared> {
        let Kind::File { size, ctime, sparse, share } = entry.kind else {
            return Err(io::Error::other("no file"));
        };
        let blocks = if size > self.block { size.div_ceil(self.block) } else { 1 };
        if !share.is_sound(blocks) {
            return Err(io::Error::other("a share that no such file has"));
        }
        if let Some(stat) = there {
            may_be_replaced(stat)?;
            if let Some(answer) = self.leave_alone(size, entry.meta.mtime, stat) {
                if answer == Answer::Same && !self.rules.dry_run {
                    renew(&parent, name, stat, &entry.meta)?;
                }
                return Ok(Prepared::Asked(answer, None));
            }
        }
        if self.rules.dry_run {
            return self.would(names::split(&path).0, &entry.kind);
        }
        let head = Head { block: self.block, size, mtime: entry.meta.mtime, ctime, boot: self.boot };
        let wanted = Wanted {
            path,
            parent,
            name: name.to_vec(),
            meta: entry.meta.clone(),
            head,
            sparse,
            share,
            sync: self.rules.sync,
        };
        let mut begun = Target::begin(wanted, alive)?;
        let answer = begun.answer();
        Ok(Prepared::Asked(answer, Some(Box::new(begun.target))))
    }

    fn link(
        &mut self,
        parent: &OwnedFd,
        path: &[u8],
        text: &[u8],
        entry: &Entry,
        there: Option<&Stat>,
    ) -> io::Result<Prepared> {
        if let Some(stat) = there {
            may_be_replaced(stat)?;
            if self.is_to_stay(stat, entry.meta.mtime) {
                return Ok(Prepared::Over(Outcome::Newer));
            }
        }
        let (folder, name) = names::split(path);
        let is_same = there.is_some()
            && readlinkat(parent, name, Vec::new()).is_ok_and(|found| found.as_bytes() == text);
        if self.rules.dry_run {
            let kept = Prepared::Over(Outcome::Kept);
            return if is_same { Ok(kept) } else { self.would(folder, &entry.kind) };
        }
        put_link(parent, name, text, &entry.meta, is_same)?;
        if self.rules.sync {
            sync_folder(parent)?;
        }
        Ok(Prepared::Over(if is_same { Outcome::Kept } else { Outcome::Done(None) }))
    }

    /// Whether the existing file stays because it is newer and `update` is set.
    fn is_to_stay(&self, there: &Stat, mtime: Time) -> bool {
        self.rules.update && meta::mtime(there) > mtime
    }

    fn leave_alone(&self, size: u64, mtime: Time, there: &Stat) -> Option<Answer> {
        let file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        if self.is_to_stay(there, mtime) {
            return Some(Answer::Newer);
        }
        let same = file && there.st_size as u64 == size && meta::mtime(there) == mtime;
        (same && !self.rules.all).then_some(Answer::Same)
    }

    /// The result in a dry run for something to be made in the folder at `path`.
    fn would(&mut self, path: &[u8], kind: &Kind) -> io::Result<Prepared> {
        self.would_write(path)?;
        Ok(match *kind {
            Kind::File { size, share, .. } => {
                Prepared::Asked(Answer::Would(share.bytes(size, self.block)), None)
            }
            _ => Prepared::Over(Outcome::Done(None)),
        })
    }

    /// Checks whether something could be made in the folder at `path`, or in the nearest existing one above it.
    ///
    /// # Errors
    /// The system would refuse it.
    fn would_write(&mut self, mut path: &[u8]) -> io::Result<()> {
        let folder = loop {
            match self.folder(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_empty() => {
                    path = names::split(path).0;
                }
                folder => break folder?,
            }
        };
        match accessat(&folder, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty()) {
            // The copy itself would give the owner permission.
            Err(Errno::ACCESS) if !path.is_empty() && fstat(&folder)?.st_uid == geteuid().as_raw() => Ok(()),
            answer => Ok(answer?),
        }
    }
}

/// Checks that the existing entry where a folder must be is a folder.
fn is_folder(there: &Stat) -> io::Result<()> {
    if FileType::from_raw_mode(there.st_mode) == FileType::Directory {
        return Ok(());
    }
    let text = "there is something else of this name, and no folder; remove it, or copy elsewhere";
    Err(io::Error::other(text))
}

/// Checks that the existing entry may be replaced by a file or a symbolic link.
fn may_be_replaced(there: &Stat) -> io::Result<()> {
    let what = match FileType::from_raw_mode(there.st_mode) {
        FileType::RegularFile | FileType::Symlink => return Ok(()),
        FileType::Directory => "folder",
        FileType::Fifo => "pipe",
        _ => "device or socket",
    };
    Err(io::Error::other(format!("there is a {what} of this name; remove it, or copy elsewhere")))
}

/// Sets the attributes of a file whose content is the same already.
fn renew(parent: &OwnedFd, name: &[u8], seen: &Stat, meta: &Meta) -> io::Result<()> {
    let file = openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&file)?;
    // Another file has taken its name just now; leave it alone.
    if (stat.st_dev, stat.st_ino) != (seen.st_dev, seen.st_ino) {
        return Ok(());
    }
    meta::renew(&file, &stat, meta)?.map_err(io::Error::other)
}

/// Sets a folder's attributes and times after all its entries are there.
fn end_folder(folder: &OwnedFd, meta: &Meta, sync: bool) -> io::Result<()> {
    let kept = meta::renew(folder, &fstat(folder)?, meta)?;
    futimens(folder, &meta::times(meta))?;
    if sync {
        sync_folder(folder)?;
    }
    kept.map_err(io::Error::other)
}

fn put_link(parent: &OwnedFd, name: &[u8], text: &[u8], meta: &Meta, is_same: bool) -> io::Result<()> {
    let give_times = |name: &[u8]| {
        let _ = utimensat(parent, name, &meta::times(meta), AtFlags::SYMLINK_NOFOLLOW);
    };
    if is_same {
        give_times(name);
        return Ok(());
    }
    let temporary = unique(name)?;
    symlinkat(text, parent, &temporary)?;
    give_times(temporary.as_bytes());
    let renamed = renameat(parent, &temporary, parent, name);
    if renamed.is_err() {
        let _ = unlinkat(parent, &temporary, AtFlags::empty());
    }
    Ok(renamed?)
}

/// Gives the owner write permission for a read-only folder until its end.
fn open_up(parent: &OwnedFd, name: &[u8]) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty());
    // If this fails, the write into the folder reports it.
    let _ = folder.and_then(|folder| meta::open_up(&folder, &fstat(&folder)?));
}

/// Makes a folder, and syncs it to the disk if `sync` is set. Another session that copies the same tree may have made
/// it.
fn make_folder(parent: &OwnedFd, name: &[u8], mode: u32, sync: bool) -> io::Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    if sync { sync_folder(parent) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::BLOCKS_MAX;
    use crate::wire::Share;

    const BLOCK: u64 = 1 << 16;

    /// A landing in the folder `inside` of a new folder, which it may not leave.
    fn confined() -> (tempfile::TempDir, Landing) {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(place.path().join("inside")).expect("made");
        let root = Arc::new(confine::folder(&place.path().join("inside")).expect("opened"));
        let landing = Landing::new(root, b"", true, Rules::default(), BLOCK, true).expect("a folder");
        (place, landing)
    }

    fn file(size: u64, share: Share) -> Kind {
        Kind::File { size, ctime: (0, 0), sparse: false, share }
    }

    /// Why an entry is refused, if it is.
    fn refusal(landing: &mut Landing, path: &[u8], kind: Kind) -> Option<String> {
        let entry = Entry { id: 0, path: path.to_vec(), kind, meta: Meta::default() };
        match landing.prepare(&entry, &mut || ()) {
            Prepared::Over(Outcome::Failed(why)) | Prepared::Asked(Answer::Refused(why), None) => Some(why),
            _ => None,
        }
    }

    #[test]
    fn entries_that_no_honest_sender_announces_are_refused() {
        let (place, mut landing) = confined();
        let own = names::partial(b"x").0;
        for path in ["../x", "/x", "a/../../x", "..", "", "a//b", "a\0b", &own] {
            for kind in [Kind::Symlink(b"text".to_vec()), file(1, Share::default()), Kind::Folder] {
                let why = refusal(&mut landing, path.as_bytes(), kind);
                assert!(why.is_some(), "{path:?}");
            }
        }
        let why = refusal(&mut landing, b"x", file(1, Share { rank: 2, ranks: 2 }));
        assert!(why.is_some_and(|why| why.contains("a share that no such file has")));
        let why = refusal(&mut landing, b"x", file((BLOCKS_MAX + 1) * BLOCK, Share::default()));
        assert!(why.is_some_and(|why| why.contains("use longer ones")));
        let names = |folder: &str| std::fs::read_dir(place.path().join(folder)).expect("there").count();
        assert_eq!((names(""), names("inside")), (1, 0), "nothing was made");
    }

    /// However many folders come, and however many cannot be made.
    #[test]
    fn what_is_kept_of_folders_is_bounded() {
        let (_place, mut landing) = confined();
        for number in 0..REFUSED_MAX + 9 {
            assert!(refusal(&mut landing, format!("../{number}").as_bytes(), Kind::Folder).is_some());
        }
        assert_eq!(landing.refused.len(), REFUSED_MAX);
        landing.refused.clear();
        assert!(refusal(&mut landing, &[b'a'; 100 << 10], Kind::Folder).is_some());
        assert!(landing.refused.is_empty(), "a path that nothing can have");
        for number in 0..FOLDERS_MAX + 9 {
            assert_eq!(refusal(&mut landing, number.to_string().as_bytes(), Kind::Folder), None);
        }
        assert!(landing.folders.len() <= FOLDERS_MAX, "{} are open", landing.folders.len());
    }

    /// A sender that was told one name reaches nothing beside it.
    #[test]
    fn nothing_beside_the_one_new_name_is_touched() {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(place.path().join("beside")).expect("made");
        let root = Arc::new(confine::folder(place.path()).expect("opened"));
        let landing = Landing::new(root, b"new", false, Rules::default(), 1 << 16, true);
        let mut landing = landing.expect("a name in a folder");
        for (id, path) in [&b"beside/link"[..], b"link", ITSELF].into_iter().enumerate() {
            let kind = Kind::Symlink(b"text".to_vec());
            let entry = Entry { id: id as u64, path: path.to_vec(), kind, meta: Meta::default() };
            let is_done = matches!(landing.prepare(&entry, &mut || ()), Prepared::Over(Outcome::Done(_)));
            assert_eq!(is_done, path == b"link");
        }
        let link = std::fs::read_link(place.path().join("new")).expect("the new name");
        assert_eq!(link, std::path::Path::new("text"));
        assert_eq!(std::fs::read_dir(place.path().join("beside")).expect("there").count(), 0);
    }
}
