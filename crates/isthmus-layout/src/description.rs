//! A file that describes layouts which no file system tells:
//!
//! ```toml
//! [[file]]
//! path = "/scratch/run42"
//! stripe = "1MiB"
//! targets = [0, 1, 2, 3]
//! ```
//!
//! The path is a file, or a folder with everything below it. If several entries have it, the longest path counts. The
//! targets take turns at stripes, from the beginning of the file on. Their numbers only tell them apart. A target with
//! more turns than others stands there several times.

use std::path::{Path, PathBuf};

use isthmus_units::Size;
use serde::Deserialize;

use crate::{Layout, STRIPE_MAX, TARGETS_MAX};

/// Shortest stripe. Bytes; a page, because direct reads begin at pages.
const STRIPE_MIN: u64 = 4096;

/// Why a description is of no use.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct Fault {
    path: PathBuf,
    what: String,
}

/// What a description file says; see the module.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    #[serde(default)]
    file: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    path: PathBuf,
    stripe: Size,
    targets: Vec<u32>,
}

impl Entry {
    fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        if !self.path.is_absolute() {
            return Err(format!("{path} is no absolute path"));
        }
        let Size(stripe) = self.stripe;
        if !(STRIPE_MIN..=STRIPE_MAX).contains(&stripe) || !stripe.is_multiple_of(STRIPE_MIN) {
            return Err(format!(
                "the stripe of {path} has {stripe} bytes; it is a multiple of 4KiB, up to 1024GiB"
            ));
        }
        if self.targets.is_empty() || self.targets.len() > TARGETS_MAX {
            return Err(format!(
                "{path} has {} targets; 1 to {TARGETS_MAX} are possible",
                self.targets.len()
            ));
        }
        Ok(())
    }
}

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// [`Fault`], which names the file.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let fault = |what: String| Fault { path: path.to_owned(), what };
        let text = std::fs::read_to_string(path).map_err(|why| fault(why.to_string()))?;
        let description: Self = toml::from_str(&text).map_err(|why| fault(why.to_string()))?;
        description.file.iter().try_for_each(Entry::check).map_err(fault)?;
        Ok(description)
    }

    /// The layout of the file at this path. None: nothing is said about it.
    pub fn layout(&self, path: &Path) -> Option<Layout> {
        let path = std::path::absolute(path).ok()?;
        let entries = self.file.iter().filter(|entry| path.starts_with(&entry.path));
        let entry = entries.max_by_key(|entry| entry.path.components().count())?;
        Some(Layout::striped(0, entry.stripe.0, &entry.targets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> Result<Description, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("layouts.toml");
        std::fs::write(&file, text).expect("written");
        Description::read(&file).map_err(|fault| fault.to_string())
    }

    #[test]
    fn the_longest_path_counts_and_other_files_have_no_layout() {
        let description = described(
            "[[file]]\npath = '/scratch'\nstripe = '1MiB'\ntargets = [3, 5, 5]\n\
             [[file]]\npath = '/scratch/run42/big.h5'\nstripe = '64KiB'\ntargets = [1, 2]\n",
        )
        .expect("a description");
        let layout = |path: &str| {
            let layout = description.layout(Path::new(path))?;
            Some((layout.stripe(), layout.targets().to_vec()))
        };
        assert_eq!(layout("/scratch/run42/small"), Some((1 << 20, vec![3, 5, 5])));
        assert_eq!(layout("/scratch/run42/big.h5"), Some((64 << 10, vec![1, 2])));
        assert_eq!((layout("/scratch2/run42"), layout("/")), (None, None));
    }

    #[test]
    fn faults_name_the_file_and_say_what_is_expected() {
        let entry = |path: &str, stripe: &str, targets: &str| {
            described(&format!("[[file]]\npath = '{path}'\nstripe = '{stripe}'\ntargets = {targets}\n"))
                .expect_err("a fault")
        };
        for (fault, words) in [
            (entry("scratch", "1MiB", "[1]"), "scratch is no absolute path"),
            (
                entry("/scratch", "5000B", "[1]"),
                "the stripe of /scratch has 5000 bytes; it is a multiple of 4KiB, up to",
            ),
            (entry("/scratch", "1MiB", "[]"), "/scratch has 0 targets; 1 to 2048 are possible"),
            (entry("/scratch", "1ms", "[1]"), "expected"),
            (described("[[files]]\n").expect_err("a fault"), "unknown field `files`"),
        ] {
            assert!(fault.contains("layouts.toml: ") && fault.contains(words), "{fault}");
        }
        let absent = Description::read(Path::new("/nowhere/layouts.toml")).expect_err("absent");
        assert!(absent.to_string().starts_with("/nowhere/layouts.toml: No such file"), "{absent}");
    }
}
