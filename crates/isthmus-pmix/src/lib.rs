//! The PMIx server of one process of `isthmus run`, for ranks of Open MPI 5.
//!
//! Only libpmix speaks PMIx, so this crate loads the site's libpmix at run time. libpmix has threads and memory of its
//! own: `isthmus run` starts the server as a process, and talks with it over a socket, which is the standard input of
//! the server. The server ends when the socket is closed.
//!
//! A message has a length (4 bytes, in this host's order), a letter, and that many bytes:
//!
//! | Letter | To | Meaning |
//! |---|---|---|
//! | `E` | `isthmus run` | one for each rank: its environment variables, each `NAME=VALUE` and a NUL |
//! | `X` | `isthmus run` | in place of these: the server cannot start, and why |
//! | `F` | `isthmus run` | all ranks here wait in a fence, and gave these bytes |
//! | `F` | the server | what all ranks of the world gave to the fence, which is over |
//! | `C`, `Z` | `isthmus run` | the rank with this number has connected; needs the server no more |
//! | `A` | `isthmus run` | a rank aborts: `RANK STATUS MESSAGE` |
//! | `L` | the server | `FIRST-LAST,...`: these ranks of the world are lost at once, and the job goes on |
//!
//! In `C`, `Z` and `A` the ranks of this process count from 0.

use std::path::PathBuf;

mod abi;
mod library;
mod server;

pub use server::serve;

/// The ranks that a server serves, and where.
#[derive(Clone, Debug)]
pub struct World {
    /// The name of the world.
    pub space: String,
    /// Ranks of the world.
    pub size: u32,
    /// Rank in the world of the first rank here.
    pub first: u32,
    /// Ranks here.
    pub count: u32,
    /// A folder for the files of libpmix and of the ranks' MPI. The server removes it at the end.
    pub folder: PathBuf,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(
        "libpmix.so.2 cannot be loaded ({0}); install libpmix 4 or later (Debian: libpmix2), or name its folder in \
         LD_LIBRARY_PATH"
    )]
    NoLibrary(String),
    #[error("this libpmix has no {0}; version 4 or later is needed")]
    NoFunction(&'static str),
    #[error("{what}: {why}")]
    Call { what: &'static str, why: String },
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the name of the world does not fit")]
    Name,
}
