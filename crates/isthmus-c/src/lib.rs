//! The substrate for C: `libisthmus.so` and `include/isthmus.h`.
//!
//! A thin layer over `isthmus-substrate`, which does all the work. This crate looks up handles, checks pointers,
//! catches panics, and turns errors into status numbers.
//!
//! ```text
//!   C call ── door.rs ── endpoints.rs, messages.rs, memory.rs, options.rs, names.rs, digests.rs ── isthmus-substrate
//!          ── layouts.rs ── isthmus-layout
//!          ── sites.rs, which asks the environment
//!   C's or standard error's lines ── log.rs ── isthmus-io
//!             panics,     one function for each call of the header
//!             errors      table.rs: what handles stand for    types.rs: structures and numbers
//! ```

mod digests;
mod door;
mod endpoints;
mod layouts;
mod log;
mod memory;
mod messages;
mod names;
mod options;
mod sites;
mod table;
pub mod types;

pub use digests::*;
pub use endpoints::*;
pub use layouts::*;
pub use log::*;
pub use memory::*;
pub use messages::*;
pub use names::*;
pub use options::*;
pub use sites::*;
