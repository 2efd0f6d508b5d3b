//! The attributes of a file that are copied with its content.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{
    FileType, Mode, Stat, Timespec, Timestamps, XattrFlags, chmod, fchmod, fgetxattr, flistxattr, fsetxattr,
    futimens, getxattr, listxattr, removexattr, setxattr,
};
use rustix::io::Errno;

use crate::names;
use crate::wire::{Meta, Time, XATTRS_MAX};

/// Permission bits that are copied: all but set-user-id and set-group-id, which lend the owner's rights.
const MODE_KEPT: u32 = 0o1777;
/// Permission bits that the owner needs to read the file and change its attributes, whatever its final bits.
const MODE_OWN: u32 = 0o600;
/// Longest list of names, and longest value, that the kernel gives. Bytes.
const XATTR_LIST: usize = 64 << 10;

/// Extended attributes: name and value.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// An extended attribute that could not be copied; everything else was.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is there, but for its extended attribute {0}: {1}; shorten or remove that, or copy to a file system that takes it"
)]
pub(crate) struct Unkept(String, Errno);

/// Whether all attributes were copied.
pub(crate) type Kept = Result<(), Unkept>;

/// Time of the last change of content.
pub(crate) fn mtime(stat: &Stat) -> Time {
    (stat.st_mtime, stat.st_mtime_nsec as u32)
}

/// Time of the last change of content or attributes.
pub(crate) fn ctime(stat: &Stat) -> Time {
    (stat.st_ctime, stat.st_ctime_nsec as u32)
}

/// The attributes in `stat`; it has no extended attributes.
pub(crate) fn of(stat: &Stat) -> Meta {
    Meta {
        mode: stat.st_mode & MODE_KEPT,
        mtime: mtime(stat),
        atime: (stat.st_atime, stat.st_atime_nsec as u32),
        xattrs: Vec::new(),
    }
}

/// The user's extended attributes of an open file. Empty if the file system has none.
///
/// # Errors
/// They are longer than the limit, or cannot be read.
pub(crate) fn xattrs(file: impl AsFd) -> io::Result<Xattrs> {
    read_xattrs(|names| flistxattr(&file, names), |name, value| fgetxattr(&file, name, value))
}

fn read_xattrs(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
) -> io::Result<Xattrs> {
    // Most files have none, or few.
    let mut short = [0u8; 512];
    let mut long = Vec::new();
    let names = match list(&mut short) {
        Ok(len) => &short[..len],
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(Errno::RANGE) => {
            long.resize(XATTR_LIST, 0);
            let len = list(&mut long)?;
            &long[..len]
        }
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    let mut total = 0;
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0u8; XATTR_LIST];
        let len = match get(name, &mut value) {
            Err(Errno::NODATA) => continue,
            got => got?,
        };
        value.truncate(len);
        total += name.len() + len + 16;
        if total > XATTRS_MAX {
            let text = format!("its extended attributes are longer than {XATTRS_MAX} bytes and not copied");
            return Err(io::Error::other(text));
        }
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

/// The times in the form of the system call.
pub(crate) fn times(meta: &Meta) -> Timestamps {
    let spec = |time: Time| Timespec { tv_sec: time.0, tv_nsec: i64::from(time.1.min(999_999_999)) };
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}

/// Sets extended attributes, permissions and finally times of a new file. Extended attributes that the file system
/// refuses are reported, and have no other effect.
pub(crate) fn apply(file: impl AsFd, meta: &Meta) -> io::Result<Kept> {
    let mut kept = Ok(());
    for (name, value) in &meta.xattrs {
        check_name(name)?;
        kept = kept.and(
            fsetxattr(&file, &name[..], value, XattrFlags::empty()).or_else(|error| unkept(name, error)),
        );
    }
    fchmod(&file, Mode::from_raw_mode(meta.mode & MODE_KEPT))?;
    futimens(&file, &times(meta))?;
    Ok(kept)
}

/// Sets all attributes but the times of an existing file or folder. Extended attributes that the source lacks are
/// removed. The file may be open without permission to read it (`O_PATH`).
pub(crate) fn renew(there: impl AsFd, stat: &Stat, meta: &Meta) -> io::Result<Kept> {
    let own = own_path(there);
    let wanted = meta.mode & MODE_KEPT;
    let mut mode = stat.st_mode & MODE_KEPT;
    let mut kept = Ok(());
    let found = listxattr(&own, &mut [0u8; 512][..]);
    if !matches!(found, Ok(0) | Err(Errno::OPNOTSUPP)) || !meta.xattrs.is_empty() {
        if mode & MODE_OWN != MODE_OWN && chmod(&own, beside_group(stat, mode | MODE_OWN)).is_ok() {
            mode |= MODE_OWN;
        }
        kept = renew_xattrs(&own, &meta.xattrs)?;
    }
    if mode != wanted {
        chmod(&own, beside_group(stat, wanted))?;
    }
    Ok(kept)
}

/// Gives the owner of a folder permission to read and change it.
pub(crate) fn open_up(folder: impl AsFd, stat: &Stat) -> Result<(), Errno> {
    if stat.st_mode & 0o700 == 0o700 {
        return Ok(());
    }
    chmod(own_path(folder), beside_group(stat, stat.st_mode & MODE_KEPT | 0o700))
}

/// These permissions, with the set-group-id bit of a folder kept.
fn beside_group(stat: &Stat, mode: u32) -> Mode {
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let group = if is_folder { stat.st_mode & 0o2000 } else { 0 };
    Mode::from_raw_mode(mode | group)
}

/// The path below /proc of an open file, which works for every kind of descriptor.
fn own_path(open: impl AsFd) -> String {
    format!("/proc/self/fd/{}", open.as_fd().as_raw_fd())
}

fn renew_xattrs(own: &str, wanted: &Xattrs) -> io::Result<Kept> {
    let found = read_xattrs(|names| listxattr(own, names), |name, value| getxattr(own, name, value))?;
    for (name, _) in found.iter().filter(|(name, _)| wanted.iter().all(|(kept, _)| kept != name)) {
        match removexattr(own, &name[..]) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut kept = Ok(());
    for (name, value) in wanted.iter().filter(|pair| !found.contains(pair)) {
        check_name(name)?;
        kept = kept
            .and(setxattr(own, &name[..], value, XattrFlags::empty()).or_else(|error| unkept(name, error)));
    }
    Ok(kept)
}

fn check_name(name: &[u8]) -> io::Result<()> {
    if !name.starts_with(b"user.") || name.contains(&0) {
        return Err(io::Error::other("an extended attribute that is not a user's"));
    }
    Ok(())
}

/// The report about an attribute that was refused. None if the file system has no attributes at all.
fn unkept(name: &[u8], error: Errno) -> Kept {
    if error == Errno::OPNOTSUPP { Ok(()) } else { Err(Unkept(names::shown(name), error)) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;

    /// Root may run the receiver, and may set what the sender's user may not.
    #[test]
    fn a_sender_lends_no_rights() {
        let file = tempfile::tempfile().expect("a file");
        let meta = Meta { mode: 0o6755, ..Meta::default() };
        apply(&file, &meta).expect("applied").expect("kept");
        assert_eq!(fstat(&file).expect("a file").st_mode & 0o7777, 0o755);
        for name in [&b"security.capability"[..], b"trusted.x", b"system.posix_acl_access", b"user.a\0b"] {
            let meta = Meta { xattrs: vec![(name.to_vec(), b"x".to_vec())], ..meta.clone() };
            let stat = fstat(&file).expect("a file");
            for done in [apply(&file, &meta), renew(&file, &stat, &meta)] {
                let error = done.expect_err("no user's").to_string();
                assert!(error.contains("not a user's"), "{error}");
            }
        }
    }
}
