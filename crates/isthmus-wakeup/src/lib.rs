//! Decides which thread does posted work, and which thread wakes which.
//!
//! The crate has five protocols between threads or processes. None of them may ever lose a wake-up:
//!
//! - [`WorkLock`]: many threads post work, and one thread at a time does it. If work is posted while another thread
//!   holds the data, either that thread or the poster does it.
//! - [`Wakeup`]: threads sleep until a completion is delivered, and the I/O thread takes over an
//!   endpoint that nobody polls.
//! - [`sleeper`]: the writer of a shared-memory ring wakes a reader that sleeps.
//! - [`Held`]: posted work may wait for the program's next poll, or until the I/O thread takes over.
//! - [`Waiters`]: a thread that changes a value learns whether anybody waits for that.
//!
//! This crate does no I/O. The caller implements [`Bells`], which rings and clears the endpoint's descriptor. So the
//! same code runs in the endpoint and under [loom](https://docs.rs/loom). loom tries all orders in which threads can
//! run, and all values that a load may return. `tools/models.sh` runs the models in `models.rs`.
//!
//! In each protocol both sides store one word and then load another, and the store must come first. That needs a fence
//! on each side. If the store is an atomic exchange, x86 processors need no other fence ([`fence_after_exchange`]).
//!
//! ```text
//!   side A: store a; fence; load b        At least one of both sides sees the other's store,
//!   side B: store b; fence; load a        so no wake-up is lost.
//! ```

mod held;
pub mod sleeper;
mod sync;
mod waiters;
mod wakeup;
mod work_lock;

#[cfg(all(test, loom))]
mod models;

pub use held::Held;
pub use sync::fence_after_exchange;
pub use waiters::Waiters;
pub use wakeup::{Bells, Wakeup};
pub use work_lock::WorkLock;
