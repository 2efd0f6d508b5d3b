//! Many lanes on one byte stream, each with its own credit. No I/O is done here.
//!
//! Many lanes share a link between routers. Three things must hold. A lane never waits for another lane whose receiver
//! has stopped reading. The memory of both ends is bounded. A single busy lane can fill the whole path from its first
//! byte on, however long the path is.
//!
//! So each end promises its [`Limits`] once, when the stream begins. They are a number of lanes, a credit of `base`
//! bytes for each lane, and a `pool` of further credit. The sender divides the pool among its lanes, because only the
//! sender knows which of them have something to send. Bytes that the receiving program has read become credit again.
//!
//! The pool is divided by dynamic thresholds (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998): a
//! lane may use [`SHARE`] times as much as is still free. One busy lane gets two thirds of the pool at once. Several
//! busy lanes get equal parts. However many lanes stall, some of the pool is left for the next.
//!
//! ```text
//!   program ── open, write, read ──▶ Mux ──▶ poll_output ──▶ byte stream out
//!                                     ▲
//!                                     └── on_header, on_payload ◀── byte stream in
//! ```
//!
//! [`Mux`] is the state of one end. Its owner moves the bytes: [`Mux::poll_output`] returns the next bytes to write,
//! and the bytes read go to [`Mux::on_header`] and [`Mux::on_payload`].
#![forbid(unsafe_code)]

mod frame;
mod lane;
mod mux;
mod piece;

pub use frame::{HEADER, PIECE};
pub use lane::LaneId;
pub use mux::{Counters, Event, Expect, Fault, Limits, Mux, Read, SHARE, Written};
pub use piece::Piece;
