//! Resolves paths that users write after `user@host:` to paths below the root of that host.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::unistd::User;

/// The path below "/" for `written`, relative to the folder `home`. "~" stands for `home`, "~name" for that user's home.
/// Symbolic links in folders are resolved; in the last name only with `follow`, for a copy into it. A last name that
/// does not exist yet stays. A "/" or "/." at the end stays too, since it has a meaning for copies.
pub(crate) fn below_root(written: &[u8], home: &Path, follow: bool) -> Vec<u8> {
    let (body, end) = split_end(written);
    let full = match body {
        b"" if written.first() == Some(&b'/') => PathBuf::from("/"),
        b"" => home.to_owned(),
        _ => in_a_home(body, home).unwrap_or_else(|| home.join(OsStr::from_bytes(body))),
    };
    let follow = follow || !end.is_empty() || body.is_empty();
    let real = real(&full, follow).into_os_string().into_vec();
    let mut out = real.strip_prefix(b"/").unwrap_or(&real).to_vec();
    out.extend_from_slice(end);
    out
}

/// Replaces a "~" or "~name" at the start. `None` if there is none, or no such user: like shells, this then takes the
/// text for the name of a file.
fn in_a_home(written: &[u8], home: &Path) -> Option<PathBuf> {
    let rest = written.strip_prefix(b"~")?;
    let (name, below) = match rest.iter().position(|byte| *byte == b'/') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &b""[..]),
    };
    let of_another = || User::from_name(str::from_utf8(name).ok()?).ok()?.map(|user| user.dir);
    let home = if name.is_empty() { home.to_owned() } else { of_another()? };
    let below = Path::new(OsStr::from_bytes(below));
    // With a second "/" it would stand for the root.
    Some(home.join(below.strip_prefix("/").unwrap_or(below)))
}

/// Splits off the "/" or "/." at the end.
fn split_end(written: &[u8]) -> (&[u8], &[u8]) {
    let end = if written.ends_with(b"/.") { 2 } else { usize::from(written.ends_with(b"/")) };
    let (body, end) = written.split_at(written.len() - end);
    (body.strip_suffix(b"/").unwrap_or(body), end)
}

/// Resolves symbolic links, as far as the path exists.
fn real(path: &Path, follow: bool) -> PathBuf {
    if follow && let Ok(real) = path.canonicalize() {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) => real(above, true).join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_begin_at_home_and_links_are_followed() {
        let place = tempfile::tempdir().expect("a folder");
        let home = place.path().canonicalize().expect("there");
        std::fs::create_dir(home.join("scratch")).expect("made");
        symlink(home.join("scratch"), home.join("data")).expect("made");
        let base = home.to_str().expect("text").trim_start_matches('/').to_owned();
        let below = |written: &str, follow| {
            String::from_utf8(below_root(written.as_bytes(), &home, follow)).expect("text")
        };
        assert_eq!(below("new.h5", true), format!("{base}/new.h5"));
        assert_eq!(below("~/new.h5", true), format!("{base}/new.h5"));
        assert_eq!(below("~", true), base);
        assert_eq!(below("", true), base);
        let root = User::from_name("root").expect("users are known").expect("there is one").dir;
        let root = root.canonicalize().unwrap_or(root).display().to_string();
        let root = root.trim_start_matches('/');
        assert_eq!(below("~root", true), root, "the home of another user");
        assert_eq!(below("~root/new.h5", true), format!("{root}/new.h5"));
        assert_eq!(below("~//new.h5", true), format!("{base}/new.h5"));
        assert_eq!(below("~no-such-user/x", true), format!("{base}/~no-such-user/x"));
        assert_eq!(below("~/", true), format!("{base}/"));
        assert_eq!(below("data/x", true), format!("{base}/scratch/x"));
        assert_eq!(below("data", true), format!("{base}/scratch"));
        assert_eq!(below("data", false), format!("{base}/data"), "it is copied under its name");
        assert_eq!(below("data/.", false), format!("{base}/scratch/."));
        assert_eq!(below("data/a/b/", true), format!("{base}/scratch/a/b/"));
        assert_eq!(below("/nowhere/x", true), "nowhere/x");
        assert_eq!(below("/", true), "/", "the root itself");
        assert_eq!(below("data/*.h5", false), format!("{base}/scratch/*.h5"));
    }
}
