//! The substrate for C: `libisthmus.so` and `include/isthmus.h`.
//!
//! A thin face over `isthmus-substrate`: names are looked up, pointers checked, panics
//! caught (`door.rs`), and refusals become numbers. Everything else is there.

mod digests;
mod door;
mod endpoints;
mod memory;
mod messages;
mod names;
mod options;
mod table;
pub mod types;

pub use digests::*;
pub use endpoints::*;
pub use memory::*;
pub use messages::*;
pub use names::*;
pub use options::*;
