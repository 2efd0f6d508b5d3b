//! The configuration file, looked at again while the program runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::Settings;
use crate::log::info_log;

/// Between looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What of the file is seen without reading it.
type Stamp = (SystemTime, u64);

/// A file of which what names protocols ([`Settings::all_protocols`]) is taken up when it changes. All else in it
/// holds from a program's start on.
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
    /// Of this file, from now on.
    pub(crate) fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: stamp(path), looked: Instant::now() }
    }

    /// The settings by it, if it has changed; the environment wins as ever. One that cannot be read, or has
    /// errors, is said to and changes nothing.
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
