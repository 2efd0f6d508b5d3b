//! Partial files and journals have names that anybody can compute. In a folder where others may make files, one of
//! theirs may have such a name. They could read what is written to it, alter it later, or invent a journal. So only
//! regular files of this user are opened, without other names. Others are removed, unless a transfer is writing them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::{AGAIN, busy, is_at, lock, unique};

/// Opens the file of this name, or makes it.
///
/// # Errors
/// The system's; or somebody else's file has the name, and cannot be removed or is being written.
pub(super) fn open(parent: &OwnedFd, name: &str, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    for _ in 0..AGAIN {
        let opened = match openat(parent, name, flags, Mode::empty()) {
            Ok(file) if is_own(parent, &file)? => return Ok(file),
            Ok(file) => Some(file),
            Err(Errno::NOENT) => {
                let made = OFlags::CREATE | OFlags::EXCL;
                match openat(parent, name, flags | made, Mode::from_raw_mode(0o600)) {
                    Err(Errno::EXIST) => continue,
                    made => return Ok(made?),
                }
            }
            // Another user's transfer may be writing it. Only who can open it sees whether it is locked.
            Err(Errno::ACCESS) if is_of_another_user(parent, name)? => return Err(not_own(name)),
            // A symbolic link, a socket, or a file that this user may not open.
            Err(Errno::LOOP | Errno::ACCESS | Errno::NXIO) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(file) = &opened {
            // A transfer that is writing it holds a lock. Root opens the files of all users, and a snapshot may have
            // given a file of this user a second name.
            lock(file, FlockOperation::NonBlockingLockExclusive)?;
            if !is_at(parent, file, name.as_bytes())? {
                continue;
            }
        }
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::PERM | Errno::ACCESS | Errno::ISDIR) => return Err(not_own(name)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(busy())
}

fn not_own(name: &str) -> io::Error {
    let text = format!("{name} is there, and not a file of this user; remove it");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Whether the name is that of a regular file of another user.
fn is_of_another_user(parent: &OwnedFd, name: &str) -> io::Result<bool> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(is_regular(&stat) && !is_of_this_user(&stat)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file of this name for reading that has the same owner as `partial`, which is one of this user. None if there
/// is none.
pub(super) fn open_existing(parent: &OwnedFd, name: &str, partial: impl AsFd) -> io::Result<Option<OwnedFd>> {
    // Opening a pipe must not wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(parent, name, flags, Mode::empty()) {
        Ok(file) => {
            let stat = fstat(&file)?;
            let is_own = is_of_this_user(&stat) || stat.st_uid == fstat(partial)?.st_uid;
            Ok((is_single(&stat) && is_own).then_some(file))
        }
        Err(Errno::NOENT | Errno::LOOP | Errno::ACCESS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether this is a regular file of this user that has no other name.
fn is_own(parent: &OwnedFd, file: impl AsFd) -> io::Result<bool> {
    let stat = fstat(file)?;
    Ok(is_single(&stat) && (is_of_this_user(&stat) || stat.st_uid == owner_of_new(parent)?))
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Whether this is a regular file without other names.
fn is_single(stat: &Stat) -> bool {
    is_regular(stat) && stat.st_nlink <= 1
}

fn is_of_this_user(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

/// The owner of files that this process makes here. Some file systems give all files to one user, such as an NFS server
/// those of root.
fn owner_of_new(parent: &OwnedFd) -> io::Result<u32> {
    let name = unique(b"owner")?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(parent, &name, flags, Mode::from_raw_mode(0o600))?;
    let owner = fstat(&file).map(|stat| stat.st_uid);
    unlinkat(parent, &name, AtFlags::empty())?;
    Ok(owner?)
}
