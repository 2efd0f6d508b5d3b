//! Messages of the measurements on emulated WANs, before and after them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use isthmus_bench::BenchError;

use crate::install::{self, LIBRARY};

/// The provider's folder: `given`, or the one beside this program. Prints an error if there is none.
pub(super) fn provider(given: Option<&Path>) -> Option<PathBuf> {
    let found = given.map(Path::to_owned).or_else(install::provider_folder);
    if found.is_none() {
        errln!("isthmus bench: {LIBRARY} is not beside this program; give its folder with --provider-path");
    }
    found
}

/// Announces the least time that all runs take (`floor_s`, seconds), and where results go.
pub(super) fn announce(floor_s: f64, out: &Path) {
    let minutes = (floor_s / 60.0).ceil();
    errln!("isthmus bench: {minutes} min at the very least; results go to {}", out.display());
}

/// Prints the table and the path of the report. `ran` says whether all runs gave a result.
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

/// The version, and the commit that it was built from if known (`build.rs`).
pub(super) fn version() -> String {
    let built = option_env!("ISTHMUS_BUILT_OF").map(|commit| format!(" {commit}"));
    env!("CARGO_PKG_VERSION").to_owned() + &built.unwrap_or_default()
}
