//! Who does posted work, and who wakes whom.
//!
//! Three protocols between threads, or processes, that must never lose a wake-up:
//!
//! - [`Turn`]: many threads post work, one at a time does it. Work that is posted while another
//!   thread is at it is done by that thread, or by the one that posted it.
//! - [`Wakeup`]: threads sleep until a completion is delivered, and the I/O thread takes over an
//!   endpoint that nobody polls.
//! - [`sleeper`]: the writer of a shared-memory ring wakes a reader that sleeps.
//!
//! This crate does no I/O. Callers pass in what rings and silences ([`Bells`]), so the same code
//! runs in the endpoint and under [loom](https://docs.rs/loom), which tries all orders in which
//! threads can run and all values that a load may return. `tools/models.sh` runs the models in
//! `models.rs`.
//!
//! Each protocol is a store that must come before a load of something else, on both sides. That
//! takes a fence on each side. Where the store is an atomic exchange, x86 processors need no
//! other fence ([`fence_after_exchange`]).

pub mod sleeper;
mod sync;
mod turn;
mod wakeup;

#[cfg(all(test, loom))]
mod models;

pub use sync::fence_after_exchange;
pub use turn::Turn;
pub use wakeup::{Bells, Wakeup};
