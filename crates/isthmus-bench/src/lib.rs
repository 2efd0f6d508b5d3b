//! Measurements on emulated WANs: Isthmus beside its peers, on the same link, in turn.
//!
//! A [`Matrix`] of links and [`Contender`]s is measured run by run (`run`), each in a lab of its
//! own, so that the emulator's report on itself is about that run alone; what came out and under
//! which circumstances is a [`Sample`]. `table` and `html` tell medians of samples. `beside` is of two
//! that share a link. `files` does the same with files: those that MPI programs send each other, and
//! those that commands copy. `papers` repeats the experiments of the project's source papers, and reports their figures
//! beside ours. `collectives` measures collectives of MPI across two sites.

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

pub use collectives::Collectives;
pub use contender::Contender;
pub use files::{FileBench, FileContender, FilePaths, FileRun, FileSample, Io};
pub use link::Link;
pub use matrix::{Matrix, Work};
pub use papers::{Came, Form, Papers, Tools, render};
pub use run::{Bench, Paths};
pub use sample::{Sample, Shares};

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Something is missing here; the text names it and the remedy.
    #[error("{0}")]
    Missing(String),
    /// A file or folder cannot be used.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
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
