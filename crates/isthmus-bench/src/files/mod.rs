//! Files across emulated WANs: those that MPI programs send each other, in the shapes of the
//! paper that the mover answers (sizes, blocks, POSIX or MPI-IO, overlapped or in turn), and
//! those that commands copy, `isthmus cp` beside its peers.

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
