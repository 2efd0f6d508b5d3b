//! The launcher behind `isthmus run`: starts ranks in several jobs, at several sites, as one `MPI_COMM_WORLD`.
//!
//! Each site's own launcher starts `isthmus run`, which starts the ranks of an unmodified MPI program. It is also their
//! process manager: it answers PMI-1 and PMI-2 ([`pmi`]). The processes of `isthmus run` find each other by
//! what [`At`] names. They talk over endpoints of the substrate, so their messages are encrypted, pass routers, and
//! survive broken connections.
//!
//! ```text
//!   part 1, site A                            part 2, site B
//!
//!   hub ─ head of part 1 ◄── substrate ──►  head of part 2
//!    ├── process ── ranks                     ├── process ── ranks
//!    └── process ── ranks                     └── process ── ranks
//! ```
//!
//! 1. A process learns its part and its number from the site's launcher (`launcher.rs`). The processes of a part connect
//!    to its *head*. The heads connect to the *hub*, the head of part 1. They find it by a file, a name at a router, or a
//!    port and a secret (the substrate's `meeting.rs`).
//! 2. When all processes of all parts are there, the hub tells their ranks and nodes (`nodes.rs`). Each process starts
//!    its ranks (`ranks.rs`).
//! 3. It answers their PMI commands. For Open MPI a second process serves PMIx (`isthmus-pmix`, `pmix.rs`). At a fence
//!    the ranks' data go up the tree, and the data of all ranks come back down.
//! 4. The first failure that reaches the hub ends the job. If a later failure explains it, the job reports the later one
//!    (`failure.rs`). With `--on-loss continue` the job goes on without the lost ranks (`agent/losing.rs`).
//! 5. Gathered output goes up the tree. Each piece is acknowledged when the hub has printed it (`ranks.rs`).
//!
//! `agent/` makes all decisions, without I/O or a clock. `run.rs` is the shell around it.
#![forbid(unsafe_code)]

mod agent;
mod failure;
mod launcher;
mod letter;
mod nodes;
pub mod pmi;
mod pmix;
mod ranks;
mod reach;
mod run;

pub use failure::{Ended, Failure};
pub use isthmus_substrate::meeting::At;
pub use launcher::{ProcessNumber, Wrong};
pub use letter::{JOB_MAX, OnLoss, PARTS_MAX, RANKS_MAX, Start};
pub use pmix::SPACE as PMIX_SPACE;
pub use ranks::{Print, become_rank};
pub use run::{Options, RunError, run};
