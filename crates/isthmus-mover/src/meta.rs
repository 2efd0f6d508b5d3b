//! What is kept of a file beside its content.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{
    Mode, Stat, Timespec, Timestamps, XattrFlags, fchmod, fgetxattr, flistxattr, fsetxattr, futimens,
};
use rustix::io::Errno;

use crate::wire::{Meta, Time, XATTRS_MAX};

/// Permission bits that are kept: not those that lend a file's owner's rights.
const MODE_KEPT: u32 = 0o1777;
/// Longest list of names, and longest value, that the kernel gives. Bytes.
const XATTR_LIST: usize = 64 << 10;

/// When the content changed last.
pub(crate) fn mtime(stat: &Stat) -> Time {
    (stat.st_mtime, stat.st_mtime_nsec as u32)
}

/// When anything of it changed last.
pub(crate) fn ctime(stat: &Stat) -> Time {
    (stat.st_ctime, stat.st_ctime_nsec as u32)
}

/// What `stat` says; no extended attributes.
pub(crate) fn of(stat: &Stat) -> Meta {
    Meta {
        mode: stat.st_mode & MODE_KEPT,
        mtime: mtime(stat),
        atime: (stat.st_atime, stat.st_atime_nsec as u32),
        xattrs: Vec::new(),
    }
}

/// The users' extended attributes of an open file; none where the file system has none.
///
/// # Errors
/// They are more than are carried, or cannot be read.
pub(crate) fn xattrs(file: impl AsFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // Most files have none, or few.
    let mut short = [0u8; 512];
    let mut long = Vec::new();
    let names = match flistxattr(&file, &mut short[..]) {
        Ok(len) => &short[..len],
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(Errno::RANGE) => {
            long.resize(XATTR_LIST, 0);
            let len = flistxattr(&file, &mut long[..])?;
            &long[..len]
        }
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    let mut total = 0;
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0u8; XATTR_LIST];
        let len = match fgetxattr(&file, name, &mut value[..]) {
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

/// The times as the system takes them.
pub(crate) fn times(meta: &Meta) -> Timestamps {
    let spec = |time: Time| Timespec { tv_sec: time.0, tv_nsec: i64::from(time.1.min(999_999_999)) };
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}

/// Gives an open file what is kept: attributes, permissions, and last its times.
pub(crate) fn apply(file: impl AsFd, meta: &Meta) -> io::Result<()> {
    for (name, value) in &meta.xattrs {
        if !name.starts_with(b"user.") || name.contains(&0) {
            return Err(io::Error::other("an extended attribute that is not a user's"));
        }
        match fsetxattr(&file, &name[..], value, XattrFlags::empty()) {
            // A file system without them keeps the content at least.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fchmod(&file, Mode::from_raw_mode(meta.mode & MODE_KEPT))?;
    Ok(futimens(&file, &times(meta))?)
}
