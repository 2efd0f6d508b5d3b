//! What the measurements on emulated WANs tell their user, before and afterwards.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use isthmus_bench::BenchError;

use crate::install::{self, LIBRARY};

/// The folder of the provider: the one that was given, or that beside this program. Says so where
/// there is none.
pub(super) fn provider(given: Option<&Path>) -> Option<PathBuf> {
    let found = given.map(Path::to_owned).or_else(install::provider_folder);
    if found.is_none() {
        errln!("isthmus bench: {LIBRARY} is not beside this program; give its folder with --provider-path");
    }
    found
}

/// Says how long it takes at least, by the floor of all runs in seconds, and where results go.
pub(super) fn announce(floor_s: f64, out: &Path) {
    let minutes = (floor_s / 60.0).ceil();
    errln!("isthmus bench: {minutes} min at the very least; results go to {}", out.display());
}

/// Shows what the runs, of which perhaps all gave a result, have left in their folder.
pub(super) fn conclude(out: &Path, ran: Result<bool, BenchError>) -> ExitCode {
    match ran {
        Ok(all) => {
            if let Ok(table) = std::fs::read_to_string(out.join("table.txt")) {
                out!("{table}");
            }
            outln!("{}", out.join("report.html").display());
            ExitCode::from(u8::from(!all))
        }
        Err(error) => {
            errln!("isthmus bench: {error}");
            ExitCode::from(3)
        }
    }
}

/// The version, and of which commit it was built where that is known (`build.rs`).
pub(super) fn version() -> String {
    let built = option_env!("ISTHMUS_BUILT_OF").map(|commit| format!(" {commit}"));
    env!("CARGO_PKG_VERSION").to_owned() + &built.unwrap_or_default()
}
