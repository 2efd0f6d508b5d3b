//! Benchmark of file transfers across emulated WANs: between MPI programs, and by commands. The MPI
//! transfers vary size, block, POSIX or MPI-IO, and overlap, as in the paper that the mover answers.
//! `isthmus cp` is measured beside other copy commands.

mod contender;
mod report;
mod run;
mod sample;
mod script;
pub(crate) mod source;

pub(crate) use contender::find;
pub use contender::{FileContender, Io};
pub use run::{FileBench, FilePaths, FileRun};
pub use sample::FileSample;
