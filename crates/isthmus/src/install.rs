//! Finds the parts of an installation.

use std::env;
use std::path::{Path, PathBuf};

/// The provider's file name. libfabric loads files that end in `-fi.so`.
pub(crate) const LIBRARY: &str = "libisthmus-fi.so";

/// The provider's folder, relative to this program: `../lib`, `../lib/isthmus`, `../lib64/isthmus`, Debian's
/// `../lib/ARCH-linux-gnu/isthmus`, or the program's own folder.
pub(crate) fn provider_folder() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let bin = program.parent()?;
    let prefix = bin.parent().unwrap_or(bin);
    let multiarch = format!("lib/{}-linux-gnu/isthmus", env::consts::ARCH);
    let below = ["lib", "lib/isthmus", "lib64/isthmus", &multiarch].map(|folder| prefix.join(folder));
    below.into_iter().chain([bin.to_owned()]).find(|dir| holds_provider(dir))
}

pub(crate) fn holds_provider(folder: &Path) -> bool {
    folder.join(LIBRARY).is_file()
}
