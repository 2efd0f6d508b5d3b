//! Runs `provider.c` through the system's libfabric, where there is one to build against.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The provider under the name that libfabric looks for, in a folder of its own.
fn provider(folder: &Path) {
    let test = std::env::current_exe().expect("the test's own path");
    let built = test.with_file_name("libisthmus_fi.so");
    std::fs::copy(built, folder.join("libisthmus-fi.so")).expect("the library was built");
}

fn build(folder: &Path) -> Option<PathBuf> {
    let program = folder.join("provider");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/provider.c");
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        return None;
    }
    let built = Command::new("cc")
        .args(["-O1", "-Wall", "-Wno-deprecated-declarations", "-o"])
        .args([&program, &source])
        .arg("-lfabric")
        .status()
        .expect("a C compiler");
    assert!(built.success(), "provider.c does not build");
    Some(program)
}

#[test]
fn a_c_program_finds_every_object_and_operation_as_the_manual_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = build(folder.path()) else {
        eprintln!("skipped: no libfabric headers (Debian: libfabric-dev)");
        return;
    };
    provider(folder.path());
    let output = Command::new(program)
        .env("FI_PROVIDER_PATH", folder.path())
        .env("FI_PROVIDER", "isthmus")
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
