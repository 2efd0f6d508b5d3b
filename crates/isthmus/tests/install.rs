//! `make install`: what is where afterwards, and nothing once it is taken away again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What `tools/build.sh` leaves; libraries need not be real ones to be copied.
fn built(folder: &Path) {
    for part in ["bin", "lib/pkgconfig", "include"] {
        fs::create_dir_all(folder.join(part)).expect("a fresh folder");
    }
    fs::copy(env!("CARGO_BIN_EXE_isthmus"), folder.join("bin/isthmus")).expect("the command");
    fs::copy(root().join("include/isthmus.h"), folder.join("include/isthmus.h")).expect("the header");
    for file in ["lib/libisthmus-fi.so", "lib/libisthmus.so.0"] {
        fs::write(folder.join(file), file).expect("written");
    }
    symlink("libisthmus.so.0", folder.join("lib/libisthmus.so")).expect("a fresh folder");
    fs::write(folder.join("lib/pkgconfig/isthmus.pc"), "prefix=${pcfiledir}/../..\nlibdir=${prefix}/lib\n")
        .expect("written");
}

fn make(target: &str, build: &Path, to: &Path) -> Output {
    let mut make = Command::new("make");
    make.arg("-C").arg(root()).args([target, "PREFIX=/opt/isthmus"]);
    make.arg(format!("DESTDIR={}", to.display())).env("BUILD", build).env_remove("MAKEFLAGS");
    make.output().expect("make(1) is there")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

#[test]
fn everything_is_put_where_it_belongs_and_taken_away_again() {
    let (build, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let missing = make("install", build.path(), to.path());
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && said.contains("make build"), "{said}");
    assert!(files(to.path()).is_empty());

    built(build.path());
    let done = make("install", build.path(), to.path());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let prefix = to.path().join("opt/isthmus");
    for file in [
        "bin/isthmus",
        "bin/isthmus-cp",
        "include/isthmus-mpi.h",
        "share/isthmus/mpi/plan.c",
        "share/doc/isthmus/LICENSE",
        "share/bash-completion/completions/isthmus",
        "share/zsh/site-functions/_isthmus",
        "share/fish/vendor_completions.d/isthmus.fish",
        "include/isthmus.h",
        "lib/isthmus/libisthmus-fi.so",
        "lib/systemd/system/isthmus-serve.service",
        "lib/sysusers.d/isthmus.conf",
        "lib/tmpfiles.d/isthmus.conf",
        "lib/libisthmus.so.0",
        "lib/libisthmus.so",
        "lib/pkgconfig/isthmus.pc",
        "share/man/man1/isthmus.1",
        "share/man/man1/isthmus-router-run.1",
        "share/man/man3/isthmus.3",
        "share/man/man3/isthmus_send.3",
    ] {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/isthmus-router.service")).expect("there");
    assert!(unit.contains("ExecStart=/opt/isthmus/bin/isthmus router run"), "{unit}");
    // From there the command finds the provider.
    let env = Command::new(prefix.join("bin/isthmus")).args(["env", "--mpi", "mpich"]).output();
    let env = String::from_utf8_lossy(&env.expect("it runs").stdout).into_owned();
    assert!(env.contains("opt/isthmus/lib/isthmus"), "{env}");

    // It starts its own PMIx server for programs of Open MPI. Here that finds a file in place of libpmix.
    let no_pmix = tempfile::tempdir().expect("a folder");
    fs::write(no_pmix.path().join("libpmix.so.2"), "").expect("written");
    let mut run = Command::new(prefix.join("bin/isthmus"));
    run.args(["run", "--job", "j", "--part", "1/1", "--pmix", "--", "true"]);
    let run = run.env("LD_LIBRARY_PATH", no_pmix.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        !run.status.success() && said.contains("no PMIx server: libpmix.so.2 cannot be loaded"),
        "{said}"
    );

    // Whatever version it is, the module leads to where it is.
    let modules: Vec<_> = files(&prefix.join("share/modulefiles/isthmus"));
    let [module] = &modules[..] else { panic!("{modules:?}") };
    let module = fs::read_to_string(module).expect("there");
    assert!(
        module.contains(r#"prepend_path("PATH", "/opt/isthmus/bin")"#) && !module.contains("@PREFIX@"),
        "{module}"
    );
    // Libraries may live elsewhere, and are found there.
    let elsewhere = tempfile::tempdir().expect("a folder");
    let mut make_there = Command::new("make");
    make_there.arg("-C").arg(root()).args(["install", "PREFIX=/opt/isthmus", "LIBDIR=/opt/isthmus/lib64"]);
    make_there.arg(format!("DESTDIR={}", elsewhere.path().display())).env("BUILD", build.path());
    assert!(make_there.env_remove("MAKEFLAGS").output().expect("make(1)").status.success());
    let there = elsewhere.path().join("opt/isthmus");
    let env = Command::new(there.join("bin/isthmus")).args(["env", "--mpi", "mpich"]).output();
    let env = String::from_utf8_lossy(&env.expect("it runs").stdout).into_owned();
    assert!(env.contains("opt/isthmus/lib64/isthmus"), "{env}");
    let pc = fs::read_to_string(there.join("lib64/pkgconfig/isthmus.pc")).expect("there");
    assert!(pc.contains("/opt/isthmus/lib64"), "{pc}");

    let gone = make("uninstall", build.path(), to.path());
    assert!(gone.status.success(), "{}", String::from_utf8_lossy(&gone.stderr));
    assert_eq!(files(to.path()), Vec::<PathBuf>::new());
}
