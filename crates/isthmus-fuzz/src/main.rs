//! The targets by hand, or under libFuzzer.
//!
//! Built by `make fuzz`, this is libFuzzer's program (`-help=1`) for the target that the
//! environment's `ISTHMUS_FUZZ_TARGET` names. Otherwise it takes words:
//!
//! - `isthmus-fuzz`: lists the targets;
//! - `isthmus-fuzz TARGET FILE...`: gives the files to a target, such as those that libFuzzer
//!   left of a fault;
//! - `isthmus-fuzz seeds TARGET FOLDER`: writes the target's seeds.
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
        ["seeds", target, folder] => named(target).and_then(|target| write_seeds(target, folder)),
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

#[cfg(not(fuzzing))]
fn write_seeds(target: &Target, folder: &str) -> Result<(), String> {
    for (number, seed) in (target.seeds)().iter().enumerate() {
        let path = format!("{folder}/seed-{number}");
        std::fs::write(&path, seed).map_err(|error| format!("cannot write {path}: {error}"))?;
    }
    Ok(())
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
