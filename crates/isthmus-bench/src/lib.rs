//! Benchmarks on emulated WANs: Isthmus and its competitors take turns on the same link.
//!
//! `run` measures a [`Matrix`] of links and [`Contender`]s. Each run has its own lab, so that the emulator's
//! report is about that run alone. Each run gives a [`Sample`]: its result and its circumstances. `table` and
//! `html` print medians of samples. `beside` measures two contenders that share a link. `files` measures copies
//! of files, by MPI programs and by commands. `papers` repeats the experiments of the project's source papers,
//! and prints their figures beside ours. `collectives` measures MPI collectives across two or three sites.

#![forbid(unsafe_code)]

mod beside;
mod choices;
mod collectives;
mod contender;
mod files;
mod html;
mod lab;
mod link;
mod matrix;
mod outcome;
mod papers;
mod plot;
mod run;
mod sample;
mod table;

use std::io;
use std::path::PathBuf;

pub use collectives::{Collectives, Layout};
pub use contender::Contender;
pub use files::{FileBench, FileContender, FilePaths, FileRun, FileSample, Io};
pub use isthmus_lab::catalogue::Catalogue;
pub use link::EmulatedLink;
pub use matrix::{Matrix, Work};
pub use papers::{Came, Form, Papers, Tools, render};
pub use run::{Bench, Paths};
pub use sample::{Sample, Shares};

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Something is missing on this machine. The text names it and the remedy.
    #[error("{0}")]
    Missing(String),
    /// A file or folder cannot be used.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program that MPI runs does not compile.
    #[error("the MPI program does not compile:\n{0}")]
    Compile(String),
}

impl BenchError {
    fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
