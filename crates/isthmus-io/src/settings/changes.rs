//! Follows changes of the configuration file while the program runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::Settings;
use crate::log::info_log;

/// Time between two checks of the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The file attributes that show a change without reading the file.
type Stamp = (SystemTime, u64);

/// A file whose protocol settings ([`Settings::all_protocols`]) take effect when it changes. Its other settings are
/// read only at a program's start.
#[derive(Debug)]
pub(crate) struct Changes {
    path: PathBuf,
    seen: Option<Stamp>,
    looked: Instant,
}

fn stamp(path: &Path) -> Option<Stamp> {
    let known = fs::metadata(path).ok()?;
    Some((known.modified().ok()?, known.len()))
}

impl Changes {
    /// Follows this file from now on.
    pub(crate) fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: stamp(path), looked: Instant::now() }
    }

    /// The new settings if the file has changed; the environment wins as always. If the file cannot be read or has
    /// errors, that is logged and nothing changes.
    pub(crate) fn look(&mut self) -> Option<Settings> {
        if self.looked.elapsed() < LOOK_EVERY {
            return None;
        }
        self.looked = Instant::now();
        let now = stamp(&self.path)?;
        if self.seen.replace(now) == Some(now) {
            return None;
        }
        let read = Settings::from_file(&self.path);
        match read.and_then(|mut settings| settings.override_from_environment().map(|()| settings)) {
            Ok(settings) => Some(settings),
            Err(error) => {
                info_log!("the configuration has changed, and is left alone: {error}");
                None
            }
        }
    }
}
