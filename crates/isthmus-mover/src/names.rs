//! Checks names from the other side, and makes the names of partial files.

/// Longest name of one file that Linux takes. Bytes.
pub const NAME_MAX: usize = 255;
/// Longest path within a transfer. Bytes; below the system's 4096, because the destination's own path is added.
pub const PATH_MAX: usize = 3072;
/// Limit on the depth of nested folders.
pub const DEPTH_MAX: usize = 200;

const OWN: &str = ".isthmus-";

/// Why a path is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It begins at the file system's root, or goes up.
    #[error("{0:?} leads out of the folder; only paths within it are taken")]
    Escapes(String),
    /// Nothing, or an empty or "." component, or a NUL.
    #[error("{0:?} is not the path of a file")]
    Malformed(String),
    /// Longer than the system takes.
    #[error(
        "{0:?} is too long: a name may have {NAME_MAX} bytes, a path {PATH_MAX}, {DEPTH_MAX} folders deep; nothing below \
         it is copied; name a folder further down as another source"
    )]
    TooLong(String),
}

/// Limit on the characters of a path in messages.
const SHOWN_MAX: usize = 300;
/// Limit on the characters of a text from the other side in messages: a path and a reason.
const TEXT_MAX: usize = 4 * PATH_MAX;

/// Formats a path for people: without control characters, at most one line. A longer path loses its middle, because its
/// start tells where it is and its end what it is.
pub fn shown(path: &[u8]) -> String {
    cut(&String::from_utf8_lossy(path), SHOWN_MAX)
}

/// Formats a text from the other side: without control characters. The end says why, so it is never cut off.
pub fn said(text: &str) -> String {
    cut(text, TEXT_MAX)
}

fn cut(text: &str, most: usize) -> String {
    // The last of these change the order in which a terminal shows the rest of a line, or end the line.
    let is_control = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let clean = |c: char| if is_control(c) { '\u{fffd}' } else { c };
    let count = text.chars().count();
    if count <= most {
        return text.chars().map(clean).collect();
    }
    let head = (most - 3) / 2;
    let tail = most - 3 - head;
    let parts = text.chars().take(head).chain("...".chars()).chain(text.chars().skip(count - tail));
    parts.map(clean).collect()
}

/// Checks a path within a transfer: relative, without "." and "..", of a length that the
/// system takes.
pub fn check(path: &[u8]) -> Result<(), NameError> {
    if path.first() == Some(&b'/') {
        return Err(NameError::Escapes(shown(path)));
    }
    let mut depth = 0;
    for name in path.split(|byte| *byte == b'/') {
        depth += 1;
        match name {
            b".." => return Err(NameError::Escapes(shown(path))),
            b"" | b"." => return Err(NameError::Malformed(shown(path))),
            name if name.contains(&0) => return Err(NameError::Malformed(shown(path))),
            name if name.len() > NAME_MAX => return Err(NameError::TooLong(shown(path))),
            _ => {}
        }
    }
    if path.len() > PATH_MAX || depth > DEPTH_MAX {
        return Err(NameError::TooLong(shown(path)));
    }
    Ok(())
}

/// Like [`check`], for a path that a user wrote after an export's name. Empty components, "." and a trailing slash are
/// removed first. An empty path is the export itself.
pub fn tidy(path: &[u8]) -> Result<Vec<u8>, NameError> {
    if path.first() == Some(&b'/') {
        return Err(NameError::Escapes(shown(path)));
    }
    let names: Vec<&[u8]> =
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    let tidy = names.join(&b'/');
    if !tidy.is_empty() {
        check(&tidy)?;
    }
    Ok(tidy)
}

/// The folder and the name of a path. The folder is empty for a name alone.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// A path without slashes at its end.
pub fn unslashed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// Joins two paths. Either may be empty.
pub fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match (folder, name) {
        (b"", name) => name.to_vec(),
        (folder, b"") => folder.to_vec(),
        (folder, name) => [folder, b"/", name].concat(),
    }
}

/// The path of an entry at the destination, if a single file has the new name `name`.
pub fn called(name: Option<&[u8]>, path: &[u8]) -> Vec<u8> {
    name.filter(|_| !path.contains(&b'/')).unwrap_or(path).to_vec()
}

/// The names of the partial file and its journal.
pub fn partial(name: &[u8]) -> (String, String) {
    let short = &blake3::hash(name).to_hex()[..16];
    (format!("{OWN}{short}.part"), format!("{OWN}{short}.journal"))
}

/// The same for a file that several processes write together. `tag` tells its version, and each process has a journal.
pub fn partial_shared(name: &[u8], tag: &[u8], rank: u32) -> (String, String) {
    let [short, tag] = [name, tag].map(|bytes| blake3::hash(bytes).to_hex()[..16].to_owned());
    (format!("{OWN}{short}-{tag}.part"), format!("{OWN}{short}-{tag}.{rank}.journal"))
}

/// Whether `found` is a name that [`partial_shared`] makes for a file called `name`.
pub fn is_shared_of(found: &[u8], name: &[u8]) -> bool {
    let start = format!("{OWN}{}-", &blake3::hash(name).to_hex()[..16]);
    is_partial(found) && found.starts_with(start.as_bytes())
}

/// Whether a name is one of a partial file or journal. Such files are never copied, and never a
/// destination. The check is exact, because a user's own file may begin the same way.
pub fn is_partial(name: &[u8]) -> bool {
    let Some((short, rest)) = name.strip_prefix(OWN.as_bytes()).and_then(|rest| rest.split_at_checked(16))
    else {
        return false;
    };
    let is_hash = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let rest = match rest.strip_prefix(b"-").and_then(|rest| rest.split_at_checked(16)) {
        Some((tag, rest)) if is_hash(tag) => rest,
        Some(_) => return false,
        None => rest,
    };
    is_hash(short) && (rest == b".part" || rest.starts_with(b".") && rest.ends_with(b".journal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_folder_or_are_none_are_refused() {
        for path in ["/etc/passwd", "..", "a/../../b", "a/.."] {
            assert!(matches!(check(path.as_bytes()), Err(NameError::Escapes(_))), "{path}");
        }
        for path in ["", ".", "a//b", "a/./b", "a/", "a\0b"] {
            assert!(matches!(check(path.as_bytes()), Err(NameError::Malformed(_))), "{path}");
        }
        for path in ["x".repeat(256), "ab/".repeat(1100) + "c", "a/".repeat(201) + "c"] {
            assert!(matches!(check(path.as_bytes()), Err(NameError::TooLong(_))), "{}", path.len());
        }
        for path in ["a", "a/b", "...", "a b\n", &"x".repeat(255)] {
            assert_eq!(check(path.as_bytes()), Ok(()), "{path}");
        }
    }

    #[test]
    fn what_a_user_writes_is_tidied() {
        assert_eq!(tidy(b"a//./b/"), Ok(b"a/b".to_vec()));
        assert_eq!(tidy(b""), Ok(Vec::new()));
        assert!(tidy(b"/a").is_err() && tidy(b"a/../b").is_err());
    }

    #[test]
    fn names_of_our_own_are_known_whatever_the_users_are() {
        let (part, journal) = partial("ä".repeat(127).as_bytes());
        assert!(part.len() < 40 && is_partial(part.as_bytes()) && is_partial(journal.as_bytes()));
        let (part, journal) = partial_shared(b"x", b"y", 12);
        assert!(is_partial(part.as_bytes()) && is_partial(journal.as_bytes()));
        for users in [
            ".isthmus-notes.txt",
            ".isthmus-notes.part",
            ".isthmus-0123456789abcdeg.part",
            ".isthmus-.journal",
        ] {
            assert!(!is_partial(users.as_bytes()), "{users}");
        }
    }

    #[test]
    fn names_are_shown_without_commands_to_the_terminal() {
        assert_eq!(shown(b"a\x1b[2Jb"), "a\u{fffd}[2Jb");
        assert_eq!(
            shown("a\u{9b}31m\u{202e}fdp.exe\u{2028}".as_bytes()),
            "a\u{fffd}31m\u{fffd}fdp.exe\u{fffd}"
        );
        let long = [&b"/first/"[..], &[b'x'; 4000], b"/last"].concat();
        let shown = shown(&long);
        assert_eq!(shown.len(), 300);
        assert!(shown.starts_with("/first/x") && shown.ends_with("x/last"), "{shown}");
    }

    #[test]
    fn why_something_failed_is_never_cut_off() {
        for len in [300, PATH_MAX, 100_000] {
            let text = said(&format!("{}: Permission denied\x07", "p/".repeat(len / 2)));
            assert!(text.ends_with(": Permission denied\u{fffd}") && text.len() < 5 * PATH_MAX, "{text}");
        }
    }
}
