//! Says of which commit a release is built, for samples of measurements (`isthmus bench wan`, `file`). Nothing
//! is said, and nothing goes wrong, where that is not known: without git, outside of its repository. Builds
//! that are not optimised say so instead; their figures mean nothing, and they are not built anew for a commit.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile != "release") {
        println!("cargo::rustc-env=ISTHMUS_BUILT_OF=(not a release build)");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Some(root) = root.canonicalize().ok() else { return };
    // A tarball may lie in somebody else's repository.
    let is_ours = git(&root, &["rev-parse", "--show-toplevel"]).is_some_and(|top| Path::new(&top) == root);
    let Some(commit) = git(&root, &["describe", "--always", "--dirty"]).filter(|_| is_ours) else { return };
    println!("cargo::rustc-env=ISTHMUS_BUILT_OF={commit}");
    // Each commit, and each change of what is built.
    let log = git(&root, &["rev-parse", "--git-path", "logs/HEAD"]).map(|log| root.join(log));
    let watched = log.into_iter().chain(compiled(&root));
    for path in watched.filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// What a release is compiled from. Tests are not: a file that one of them changes must not cost a build of minutes.
fn compiled(root: &Path) -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let members = crates.flat_map(|member| {
        // `links` and `maps` hold texts that sources include.
        ["src", "links", "maps", "Cargo.toml", "build.rs"].map(|part| member.path().join(part))
    });
    let others = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo", "include", "examples/mpi"];
    members.chain(others.map(|part| root.join(part))).collect()
}

/// What git says, in one line.
fn git(folder: &Path, words: &[&str]) -> Option<String> {
    let ended = Command::new("git").arg("-C").arg(folder).args(words).output().ok()?;
    let said = String::from_utf8(ended.stdout).ok().filter(|_| ended.status.success())?;
    Some(said.trim().to_owned()).filter(|said| !said.is_empty())
}
