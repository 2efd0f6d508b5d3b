//! Source of a copy: a file, or a folder of files. Also compares a copy with its source.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Bytes compared at a time.
const PIECE: usize = 1 << 20;
/// Most files in one folder. Count.
const IN_FOLDER: u32 = 1000;

/// Makes an incompressible file, or a folder of them, unless it exists. Then reads a file, so that its pages
/// are in memory.
pub(crate) fn make(path: &Path, bytes: u64, files: u32) -> io::Result<()> {
    if files > 1 {
        return make_folder(path, bytes / u64::from(files), files);
    }
    if path.metadata().is_ok_and(|there| there.len() == bytes) {
        io::copy(&mut File::open(path)?, &mut io::sink())?;
        return Ok(());
    }
    let mut random = File::open("/dev/urandom")?.take(bytes);
    io::copy(&mut random, &mut File::create(path)?)?;
    Ok(())
}

fn make_folder(path: &Path, each: u64, files: u32) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mut random = File::open("/dev/urandom")?;
    for number in 0..files {
        let folder = path.join((number / IN_FOLDER).to_string());
        if number.is_multiple_of(IN_FOLDER) {
            fs::create_dir_all(&folder)?;
        }
        let mut bytes = Vec::new();
        random.by_ref().take(each).read_to_end(&mut bytes)?;
        fs::write(folder.join(number.to_string()), bytes)?;
    }
    Ok(())
}

/// Touches the pages that the copy will get: on a virtual machine the first touch of a page costs several
/// times its copying.
pub(crate) fn touch_pages(path: &Path, bytes: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(bytes), &mut File::create(path)?)?;
    fs::remove_file(path)
}

/// Removes a copy, even if it is incomplete.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether two files or folders have the same contents.
pub(crate) fn equal(one: &Path, other: &Path) -> io::Result<bool> {
    if !one.is_dir() {
        return equal_files(one, other);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(one)? {
        names.push(entry?.file_name());
    }
    if fs::read_dir(other)?.count() != names.len() {
        return Ok(false);
    }
    for name in names {
        let there = other.join(&name);
        if !there.exists() || !equal(&one.join(name), &there)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_files(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let mut left = one.metadata()?.len();
    if other.metadata()?.len() != left {
        return Ok(false);
    }
    let room = left.min(PIECE as u64) as usize;
    let (mut a, mut b) = (vec![0; room], vec![0; room]);
    while left > 0 {
        let len = left.min(PIECE as u64) as usize;
        one.read_exact(&mut a[..len])?;
        other.read_exact(&mut b[..len])?;
        if a[..len] != b[..len] {
            return Ok(false);
        }
        left -= len as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_differ_are_told_from_equal_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        make(&one, 3 * PIECE as u64 + 5, 1).expect("made");
        fs::copy(&one, &other).expect("copied");
        assert!(equal(&one, &other).expect("read"));
        let mut bytes = fs::read(&one).expect("read");
        bytes[2 * PIECE + 1] ^= 1;
        fs::write(&other, &bytes).expect("written");
        assert!(!equal(&one, &other).expect("read"));
        fs::write(&other, &bytes[1..]).expect("written");
        assert!(!equal(&one, &other).expect("read"));
    }

    #[test]
    fn so_are_folders() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        make(&one, 2500, 2500).expect("made");
        let all = fs::read_dir(&one).expect("read").count();
        assert_eq!(all, 3);
        fs::create_dir_all(other.join("0")).expect("made");
        assert!(!equal(&one, &other).expect("read"));
        for number in 0..2500u32 {
            let (from, to) = [&one, &other].map(|root| root.join((number / 1000).to_string())).into();
            fs::create_dir_all(&to).expect("made");
            fs::copy(from.join(number.to_string()), to.join(number.to_string())).expect("copied");
        }
        assert!(equal(&one, &other).expect("read"));
        fs::write(other.join("2/2001"), "no").expect("written");
        assert!(!equal(&one, &other).expect("read"));
        remove(&other).expect("removed");
        remove(&other).expect("nothing is there any more");
    }
}
