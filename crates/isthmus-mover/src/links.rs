//! Checks whether an incoming symbolic link leads out of the export. It checks where the link leads, not how it is
//! written.
//!
//! Parts of the path that do not exist yet are judged by their names, because whatever is made there later is checked
//! too. A ".." after a name is accepted only if that name is a folder now. No client can turn a folder into a link
//! later. But it could make a link of a free name, and the ".." would then go up from the link's target.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat};

use crate::confine::{self, components, place};
use crate::descriptors::is_short;

const OUTSIDE: &str = "which is outside of the export";

/// The folder inside which links may lead.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    root: Arc<OwnedFd>,
    /// Its absolute path, which absolute links may contain.
    place: Vec<Vec<u8>>,
}

impl Bounds {
    /// The bounds of the folder `root`.
    pub(crate) fn new(root: Arc<OwnedFd>) -> io::Result<Self> {
        let place = place(&*root)?;
        Ok(Self { root, place })
    }

    /// Whether a link with this text in the folder `path` below `base` stays inside.
    ///
    /// # Errors
    /// Why it may not, or that of the system for want of a descriptor.
    pub(crate) fn hold(&self, base: &OwnedFd, path: &[u8], text: &[u8]) -> io::Result<()> {
        let refused = |why: &str| Err(io::Error::other(why));
        let mut at = match text.strip_prefix(b"/") {
            Some(_) => Vec::new(),
            None => {
                let base =
                    place(base).map_err(|_| io::Error::other("of which the folder cannot be found"))?;
                let Some(below) = base.strip_prefix(&self.place[..]) else { return refused(OUTSIDE) };
                below.iter().map(Vec::as_slice).chain(components(path)).map(<[u8]>::to_vec).collect()
            }
        };
        // The link's own folder cannot become a link.
        let mut own = at.len();
        let mut names: Vec<_> = components(text).collect();
        if text.first() == Some(&b'/') {
            let above = self.place.iter().zip(&names).take_while(|(own, name)| own == *name).count();
            if above < self.place.len() {
                return refused(OUTSIDE);
            }
            names.drain(..above);
        }
        for name in names {
            if name != b".." {
                at.push(name.to_vec());
            } else if at.is_empty() {
                return refused(OUTSIDE);
            } else if at.len() <= own || self.is_folder(&at)? {
                at.pop();
                own = own.min(at.len());
            } else {
                return refused(
                    "which goes up (\"..\") after a name that is no folder, and so may lead outside",
                );
            }
        }
        self.leads_in(&at)
    }

    fn is_folder(&self, at: &[Vec<u8>]) -> io::Result<bool> {
        match confine::open_folder(&self.root, &at.join(&b'/')) {
            Err(error) if is_short(&error) => Err(error),
            opened => Ok(opened.is_ok()),
        }
    }

    /// Checks where the existing part of the path leads.
    fn leads_in(&self, at: &[Vec<u8>]) -> io::Result<()> {
        for len in (1..=at.len()).rev() {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let there = openat(&self.root, at[..len].join(&b'/'), flags, Mode::empty());
            let there = match there.map_err(io::Error::from) {
                Ok(there) => there,
                // Only what is missing may be judged by its name.
                Err(error) if is_short(&error) => return Err(error),
                Err(_) => continue,
            };
            let there = place(there).map_err(|_| io::Error::other("of which the end cannot be found"))?;
            let is_inside = there.starts_with(&self.place);
            let by_another = || io::Error::other("which leads out of the export by another link");
            return if is_inside { Ok(()) } else { Err(by_another()) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    struct Export {
        folder: tempfile::TempDir,
        bounds: Bounds,
    }

    impl Export {
        /// The folder has a/b and c, and links to a, to ".", to c by its absolute path, and one that leads out.
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let root = folder.path().join("export");
            fs::create_dir_all(root.join("a/b")).expect("made");
            fs::create_dir(root.join("c")).expect("made");
            symlink("a", root.join("to-a")).expect("made");
            symlink("/etc", root.join("out")).expect("made");
            symlink(".", root.join("here")).expect("made");
            symlink(fs::canonicalize(root.join("c")).expect("there"), root.join("whole")).expect("made");
            let bounds = Bounds::new(Arc::new(confine::folder(&root).expect("opened"))).expect("there");
            Self { folder, bounds }
        }

        fn root(&self) -> std::path::PathBuf {
            self.folder.path().join("export")
        }

        /// Checks a link at `path` in a transfer whose folder is `base`.
        fn judge(&self, base: &str, path: &str, text: impl AsRef<Path>) -> Result<(), String> {
            let base = confine::folder(&self.root().join(base)).expect("opened");
            let text = text.as_ref().as_os_str().as_bytes();
            self.bounds.hold(&base, path.as_bytes(), text).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn links_that_stay_inside_the_export_are_taken_however_they_are_spelt() {
        let export = Export::new();
        for (base, path, text) in [
            ("", "", "c"),
            ("", "", "./c//x"),
            ("", "a/b", "../../c"),
            // Out of the transfer's folder, but not out of the export.
            ("a/b", "", "../../c/new"),
            ("a", "new/deeper", "../../../c"),
            // Up after a folder that is one.
            ("", "", "a/../c"),
            ("", "", "a/b/../../c"),
            // Nothing is there yet.
            ("", "", "missing/file"),
            ("", "", "to-a/b"),
            ("", "", "whole/x"),
        ] {
            assert_eq!(export.judge(base, path, text), Ok(()), "{base} {path} {text}");
        }
        let root = fs::canonicalize(export.root()).expect("there");
        assert_eq!(export.judge("a", "", root.join("c/x")), Ok(()), "the export by its whole name");
        assert_eq!(export.judge("a", "", &root), Ok(()));
    }

    #[test]
    fn links_that_lead_outside_are_refused_however_they_are_spelt() {
        let export = Export::new();
        let root = fs::canonicalize(export.root()).expect("there");
        let beside = format!("{}-other/x", root.display());
        for (base, path, text) in [
            ("", "", "/etc/passwd"),
            ("", "", ".."),
            ("a", "", "../../x"),
            ("", "", "a/../../x"),
            // Links that exist.
            ("", "", "out/passwd"),
            ("", "", "here/here/../../x"),
            ("", "", "to-a/../.."),
            // Names that could be made links later.
            ("", "", "x/x/x/../../../../etc/passwd"),
            ("", "", "missing/../c"),
            ("", "", &beside),
        ] {
            assert!(export.judge(base, path, text).is_err(), "{base} {path} {text}");
        }
        assert!(export.judge("", "", root.join("../x")).is_err());
    }
}
