//! Opens files of a folder, and none outside it. The kernel refuses every path that leaves the folder (`openat2(2)`).
//! So no name and no symbolic link leads elsewhere, even if somebody exchanges them at the same time.
//!
//! The kernel judges a link by its text: it refuses absolute links, and those that go up out of the folder and come back.
//! Where such a link leads inside, the path without links to the same file is opened instead.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;

use crate::names;

/// Limit on repeated opens after a rename elsewhere disturbed one. Count.
const TRIES: usize = 16;

/// Opens a folder that a user of this host named.
pub fn folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens `path` below `dir`. No part of it may be a symbolic link.
pub fn open(dir: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    resolve(dir, path, flags | OFlags::NOFOLLOW, mode, ResolveFlags::NO_SYMLINKS)
}

/// Opens `path` below `dir`. It may contain symbolic links that lead below `dir`.
pub fn open_following(dir: impl AsFd, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    match resolve(&dir, path, flags, Mode::empty(), ResolveFlags::empty()) {
        Err(error) if leaves(&error) => {
            let real = real_path(&dir, path).ok_or(error)?;
            open(dir, if real.is_empty() { b"." } else { &real }, flags, Mode::empty())
        }
        opened => opened,
    }
}

/// Resolves a path below `dir` that may end in a symbolic link. Returns the opened folder that holds the final target,
/// and the name in it, which is no link. All of it leads below `dir`. `path` must not be empty.
pub fn follow(dir: impl AsFd, path: &[u8]) -> io::Result<(OwnedFd, Vec<u8>)> {
    let target = open_following(&dir, path, OFlags::PATH)?;
    let real = path_below(&dir, target).ok_or_else(|| explained(Errno::XDEV))?;
    let (above, name) = names::split(&real);
    Ok((open_folder(dir, above)?, if name.is_empty() { b".".to_vec() } else { name.to_vec() }))
}

/// Opens the folder at `path` below `dir`; "" is `dir` itself.
pub fn open_folder(dir: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    open(dir, if path.is_empty() { b"." } else { path }, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// The parts of an open file's absolute path, as the kernel gives it.
pub(crate) fn place(file: impl AsFd) -> io::Result<Vec<Vec<u8>>> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let path = readlinkat(CWD, path, Vec::new())?;
    Ok(components(path.as_bytes()).map(<[u8]>::to_vec).collect())
}

/// The names in a path.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// The path below `dir`, without links, of the file to which `path` leads; `None` if that is not below `dir`. With ".."
/// in a path, somebody could find out which names exist elsewhere; in a link only if its owner wants that.
fn real_path(dir: impl AsFd, path: &[u8]) -> Option<Vec<u8>> {
    if path.first() == Some(&b'/') || components(path).any(|name| name == b"..") {
        return None;
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let there = openat2(&dir, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).ok()?;
    path_below(dir, there)
}

/// The path below `dir` of an open file; `None` if it is not below.
fn path_below(dir: impl AsFd, file: impl AsFd) -> Option<Vec<u8>> {
    let (dir, file) = (place(dir).ok()?, place(file).ok()?);
    Some(file.strip_prefix(&dir[..])?.join(&b'/'))
}

/// Whether the kernel has refused a path because it leads out of the folder.
fn leaves(error: &io::Error) -> bool {
    error.kind() == io::Error::from(Errno::XDEV).kind()
}

fn resolve(dir: impl AsFd, path: &[u8], flags: OFlags, mode: Mode, how: ResolveFlags) -> io::Result<OwnedFd> {
    let how = how | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(&dir, path, flags | OFlags::CLOEXEC, mode, how) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::LOOP) if !how.contains(ResolveFlags::NO_SYMLINKS) => {
                return Err(io::Error::other("the path leads through too many symbolic links"));
            }
            Err(error) => return Err(explained(error)),
            Ok(opened) => return Ok(opened),
        }
    }
    Err(Errno::AGAIN.into())
}

fn explained(error: Errno) -> io::Error {
    let text = match error {
        Errno::XDEV => "the path leads out of the folder by a symbolic link or \"..\"",
        Errno::LOOP => "the path leads through a symbolic link, which is not followed here",
        Errno::NOTDIR => {
            "the path leads through something that is no folder, or a symbolic link, which is not followed"
        }
        Errno::NOSYS => "this kernel has no openat2; Linux 5.6 or later is needed to keep to a folder",
        error => return error.into(),
    };
    io::Error::new(io::Error::from(error).kind(), text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_leads_out() {
        let place = tempfile::tempdir().expect("a folder");
        let inside = place.path().join("inside");
        fs::create_dir_all(inside.join("sub")).expect("made");
        fs::write(place.path().join("secret"), "s").expect("written");
        fs::write(inside.join("sub/file"), "f").expect("written");
        symlink("..", inside.join("up")).expect("made");
        symlink("/etc", inside.join("etc")).expect("made");
        symlink("sub", inside.join("link")).expect("made");
        let dir = folder(&inside).expect("opened");
        let read = OFlags::RDONLY;
        for path in ["../secret", "up/secret", "etc/passwd", "/etc/passwd", "sub/../../secret"] {
            let path = path.as_bytes();
            assert!(open(&dir, path, read, Mode::empty()).is_err(), "{}", path.escape_ascii());
            assert!(open_following(&dir, path, read).is_err(), "{}", path.escape_ascii());
        }
        let text = open_following(&dir, b"up/secret", read).expect_err("outside").to_string();
        assert!(text.contains("leads out of the folder"), "{text}");
        for path in ["link", "sub/file", "sub/file/below"] {
            let text = open_folder(&dir, path.as_bytes()).expect_err("no folder").to_string();
            assert!(
                text.contains("no folder, or a symbolic link") || text.contains("not followed"),
                "{path}: {text}"
            );
        }
        assert!(open(&dir, b"sub/file", read, Mode::empty()).is_ok());
        assert!(open(&dir, b"link/file", read, Mode::empty()).is_err(), "no symbolic link at all");
        assert!(open_following(&dir, b"link/file", read).is_ok());
        // A link, also a chain of links, stands for its target if that is inside, however it is spelt.
        let whole = fs::canonicalize(&inside).expect("there").join("sub");
        let whole = whole.to_str().expect("text");
        for (link, text) in [
            ("latest", "sub/./../up/inside/sub/first"),
            ("sub/first", "file"),
            ("top", "sub/.."),
            ("whole", whole),
            ("back", "../inside/sub/first"),
        ] {
            symlink(text, inside.join(link)).expect("made");
        }
        symlink("round", inside.join("round")).expect("made");
        symlink("gone", inside.join("dangling")).expect("made");
        symlink("..", inside.join("sub/up")).expect("made");
        symlink("sub/", inside.join("slashed")).expect("made");
        let led = |path: &str| follow(&dir, path.as_bytes()).map(|(_, name)| name);
        for (path, name) in [
            ("sub/first", "file"),
            ("top", "."),
            ("slashed", "sub"),
            ("slashed/first", "file"),
            ("latest", "file"),
            ("back", "file"),
            ("whole", "sub"),
            ("whole/first", "file"),
            ("up/inside", "."),
        ] {
            assert_eq!(led(path).expect(path), name.as_bytes(), "{path}");
            assert!(open_following(&dir, path.as_bytes(), read).is_ok(), "{path}");
        }
        // It would tell which names exist outside.
        assert!(led("../inside/sub").is_err() && led(whole).is_err());
        for path in ["up", "etc", "round", "dangling", "missing"] {
            assert!(led(path).is_err(), "{path}");
        }
    }
}
