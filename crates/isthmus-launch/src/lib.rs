//! The launcher behind `isthmus run`: starts ranks in several jobs, at several sites, as one `MPI_COMM_WORLD`.
//!
//! Each site's own launcher starts `isthmus run`, which starts the ranks of an unmodified MPI program. It is also their
//! process manager: it answers PMI-1 and PMI-2 ([`pmi`]). The processes of `isthmus run` find each other at a meeting
//! place ([`At`]). They talk over endpoints of the substrate, so their messages are encrypted, pass routers, and
//! survive broken connections.
//!
//! `agent/` makes all decisions, without I/O. `run.rs` is the shell around it.
#![forbid(unsafe_code)]

mod agent;
mod failure;
mod letter;
mod nodes;
mod place;
pub mod pmi;
mod pmix;
mod ranks;
mod run;

pub use failure::{Ended, Failure};
pub use isthmus_substrate::meeting::At;
pub use letter::{JOB_MAX, OnLoss, PARTS_MAX, RANKS_MAX, Start};
pub use place::{Place, Wrong};
pub use ranks::{Print, become_rank};
pub use run::{Options, RunError, run};
