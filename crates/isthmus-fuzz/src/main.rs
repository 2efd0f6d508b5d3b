//! Runs fuzz targets by hand, or under libFuzzer.
//!
//! Built by `make fuzz`, this is libFuzzer's program (`-help=1`) for the target that the
//! variable `ISTHMUS_FUZZ_TARGET` names. Otherwise it takes these arguments:
//!
//! - `isthmus-fuzz`: lists the targets;
//! - `isthmus-fuzz TARGET FILE...`: gives the files to a target, such as those that libFuzzer
//!   kept of a failure;
//! - `isthmus-fuzz unpack TARGET FOLDER`: writes the target's seeds and its corpus, a file for each input;
//! - `isthmus-fuzz pack TARGET FOLDER`: makes the folder's shortest files, [`CORPUS_MAX`] bytes of them, the
//!   target's corpus.
#![cfg_attr(fuzzing, no_main)]

use isthmus_fuzz::Target;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    static TARGET: std::sync::LazyLock<&Target> = std::sync::LazyLock::new(|| {
        let name = std::env::var("ISTHMUS_FUZZ_TARGET").expect("ISTHMUS_FUZZ_TARGET names a target");
        Target::named(&name).expect("ISTHMUS_FUZZ_TARGET names a target")
    });
    TARGET.check(input);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            isthmus_fuzz::TARGETS.iter().for_each(|target| println!("{:16}{}", target.name, target.about));
            Ok(())
        }
        ["unpack", target, folder] => named(target).and_then(|target| unpack(target, folder)),
        ["pack", target, folder] => named(target).and_then(|target| pack(target, folder)),
        [target, ref files @ ..] => named(target).and_then(|target| replay(target, files)),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isthmus-fuzz: {error}");
            std::process::ExitCode::from(2)
        }
    }
}

#[cfg(not(fuzzing))]
fn named(name: &str) -> Result<&'static Target, String> {
    Target::named(name)
        .ok_or_else(|| format!("there is no target {name:?}; without words the targets are listed"))
}

/// Longest corpus of a target. Bytes; keeps the repository small.
#[cfg(not(fuzzing))]
const CORPUS_MAX: usize = 24_000;

#[cfg(not(fuzzing))]
fn unpack(target: &Target, folder: &str) -> Result<(), String> {
    let inputs = (target.seeds)().into_iter().chain(target.corpus()?);
    for (number, input) in inputs.enumerate() {
        let path = format!("{folder}/input-{number:05}");
        std::fs::write(&path, input).map_err(|error| format!("cannot write {path}: {error}"))?;
    }
    Ok(())
}

#[cfg(not(fuzzing))]
fn pack(target: &Target, folder: &str) -> Result<(), String> {
    let unread = |error: std::io::Error| format!("cannot read {folder}: {error}");
    let entries = std::fs::read_dir(folder).map_err(unread)?;
    let read = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read(entry?.path());
    let mut inputs = entries.map(read).collect::<Result<Vec<_>, _>>().map_err(unread)?;
    inputs.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    let mut bytes = 0;
    inputs.retain(|input| {
        bytes += input.len();
        bytes <= CORPUS_MAX
    });
    println!("{}: {} inputs", target.name, inputs.len());
    target.keep(&inputs)
}

#[cfg(not(fuzzing))]
fn replay(target: &Target, files: &[&str]) -> Result<(), String> {
    for file in files {
        let input = std::fs::read(file).map_err(|error| format!("cannot read {file}: {error}"))?;
        println!("{file}: {} bytes", input.len());
        target.check(&input);
    }
    Ok(())
}
