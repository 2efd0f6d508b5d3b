//! Expands a client's pattern at the service to names below an export.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::GlobBuilder;
use rustix::fs::{Dir, OFlags};

use crate::walk::is_contents;
use crate::{confine, names};

/// Limit on the paths to which the patterns of a session expand; it bounds memory.
pub(crate) const MATCHES_MAX: usize = 4096;

/// Whether a path that a user wrote stands for the names that fit it. "[" alone does not make it one: files are called so.
pub(crate) fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| matches!(byte, b'*' | b'?'))
}

/// The paths below `root` that match `pattern`, sorted by name. As in a shell, "*" and "?" match no "/", and no dot at
/// the start of a name. A text that is no pattern, or is the path of an existing file, stands for itself. `room` is the
/// number of paths still allowed.
///
/// # Errors
/// The pattern is none, nothing fits it or too much does, or a folder cannot be read.
pub(crate) fn expand(root: &OwnedFd, pattern: &[u8], room: &mut usize) -> io::Result<Vec<Vec<u8>>> {
    if !is_pattern(pattern) {
        return Ok(vec![pattern.to_vec()]);
    }
    let tidy = names::tidy(pattern).map_err(io::Error::other)?;
    let is_there = |path: &[u8]| confine::open_following(root, path, OFlags::PATH).is_ok();
    if is_there(&tidy) {
        return Ok(vec![pattern.to_vec()]);
    }
    let mut found = vec![Vec::new()];
    for part in tidy.split(|byte| *byte == b'/') {
        if !part.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[')) {
            found.iter_mut().for_each(|path| *path = names::join(path, part));
            continue;
        }
        let mut next = Vec::new();
        for folder in &found {
            fitting(root, folder, part, *room, &mut next)?;
        }
        found = next;
    }
    found.retain(|path| is_there(path));
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is nothing whose name fits"));
    }
    *room -= found.len();
    found.sort();
    if is_contents(pattern) {
        found.iter_mut().for_each(|path| path.push(b'/'));
    }
    Ok(found)
}

/// Whether the error means that a match of the part before is no folder of the export.
fn is_no_folder(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, NotADirectory, NotFound};
    matches!(error.kind(), NotADirectory | NotFound | CrossesDevices)
}

/// Appends the paths in a folder that match one part of a pattern, at most `room` of them.
fn fitting(
    root: impl AsFd,
    folder: &[u8],
    part: &[u8],
    room: usize,
    out: &mut Vec<Vec<u8>>,
) -> io::Result<()> {
    let text = std::str::from_utf8(part).map_err(|_| io::Error::other("a pattern is UTF-8"))?;
    let glob = GlobBuilder::new(text).literal_separator(true).build();
    let glob = glob.map_err(|error| io::Error::other(format!("{text:?} is no pattern: {}", error.kind())))?;
    let glob = glob.compile_matcher();
    let at = if folder.is_empty() { b"." } else { folder };
    let entries = match confine::open_following(root, at, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(dir) => Dir::new(dir)?,
        Err(error) if is_no_folder(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let is_hidden = name.first() == Some(&b'.') && part.first() != Some(&b'.');
        let is_own = matches!(name, b"." | b"..") || names::is_partial(name);
        if is_hidden || is_own || !glob.is_match(Path::new(std::ffi::OsStr::from_bytes(name))) {
            continue;
        }
        if out.len() == room {
            let text = format!("more than {MATCHES_MAX} names fit; copy their folder, with --include");
            return Err(io::Error::other(text));
        }
        out.push(names::join(folder, name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_the_names_that_fit() {
        let place = tempfile::tempdir().expect("a folder");
        for name in ["a.h5", "b.h5", ".c.h5", "run1/x.h5", "run2/x.h5", "run2/y.log", "run*/z", "[n].h5"] {
            let path = place.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, name).expect("written");
        }
        std::os::unix::fs::symlink("/etc", place.path().join("run3")).expect("made");
        std::fs::write(place.path().join(".isthmus-0123456789abcdef.part"), "half").expect("written");
        let root = confine::folder(place.path()).expect("opened");
        let fits = |pattern: &str| -> Result<Vec<String>, String> {
            let found = expand(&root, pattern.as_bytes(), &mut 7).map_err(|error| error.to_string())?;
            Ok(found.into_iter().map(|path| String::from_utf8(path).expect("text")).collect())
        };
        let all = |paths: &[&str]| Ok(paths.iter().map(|path| (*path).to_owned()).collect());
        assert_eq!(fits("*.h5"), all(&["[n].h5", "a.h5", "b.h5"]));
        assert_eq!(fits(".*"), all(&[".c.h5"]));
        assert_eq!(fits("?.h5"), all(&["a.h5", "b.h5"]));
        assert_eq!(fits("./run[12]/*.h5"), all(&["run1/x.h5", "run2/x.h5"]));
        assert_eq!(fits("r?n2/"), all(&["run2/"]));
        assert_eq!(fits("r?n2/."), all(&["run2/"]));
        assert_eq!(fits("run*"), all(&["run*"]), "it is there");
        assert_eq!(fits("*/passwd"), fits("*/nothing"), "nothing outside");
        assert_eq!(fits("*/nothing"), Err("there is nothing whose name fits".to_owned()));
        assert!(fits("*[").expect_err("no pattern").contains("is no pattern"));
        assert!(fits("../*").expect_err("outside").contains("leads out"));
        let error = expand(&root, b"*", &mut 4).expect_err("more than four").to_string();
        assert!(error.contains("copy their folder"), "{error}");
        assert_eq!(fits("nothing"), all(&["nothing"]), "no pattern");
        let mut room = 7;
        expand(&root, b"*.h5", &mut room).expect("three names");
        assert_eq!(room, 4, "for all patterns together");
    }
}
