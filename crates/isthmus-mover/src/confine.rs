//! Opening files of a folder, and none outside it: the kernel is told to refuse every way out
//! (`openat2(2)`), so that no name and no symbolic link leads elsewhere, however quickly
//! somebody exchanges one for the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// How often an open is repeated that a rename elsewhere disturbed.
const TRIES: usize = 16;

/// Opens a folder that the user of this host named.
pub fn folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens something below `dir` on a path without symbolic links.
pub fn open(dir: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    resolve(dir, path, flags | OFlags::NOFOLLOW, mode, ResolveFlags::NO_SYMLINKS)
}

/// Opens something below `dir` on a path that may lead through symbolic links, as long as
/// they stay below it.
pub fn open_following(dir: impl AsFd, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    resolve(dir, path, flags, Mode::empty(), ResolveFlags::empty())
}

/// The folder at `path` below `dir`; "" is `dir` itself.
pub fn open_folder(dir: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    open(dir, if path.is_empty() { b"." } else { path }, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

fn resolve(dir: impl AsFd, path: &[u8], flags: OFlags, mode: Mode, how: ResolveFlags) -> io::Result<OwnedFd> {
    let how = how | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(&dir, path, flags | OFlags::CLOEXEC, mode, how) {
            Err(Errno::AGAIN | Errno::INTR) => {}
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
    }
}
