//! Many lanes on one byte stream, each with credit of its own; no I/O.
//!
//! A link between routers is shared by many lanes. None may wait for another whose receiver
//! has stopped reading, what the ends hold must be bounded, and one that is busy is to have
//! the whole path from its first byte on, however long the path is.
//!
//! So each end promises the other, once, when the stream begins ([`Limits`]): so many lanes, for
//! each of them `base` bytes that it may send unasked, and a `pool` of bytes that the sender
//! deals out among the lanes as it sees fit, who alone knows which of them have something to
//! send. Bytes that the receiving program has read are given back. The pool is dealt out by
//! dynamic thresholds (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998): a
//! lane may have [`SHARE`] times as much as is still free. One busy lane gets two thirds of
//! the pool at once, busy ones get equal parts, and however many stand still, there is
//! something left for the next.
//!
//! [`Mux`] is the state of one end. What carries its bytes, and when, is its owner's business:
//! [`Mux::poll_output`] gives what is to be written; what was read goes to [`Mux::on_header`]
//! and [`Mux::on_payload`].
#![forbid(unsafe_code)]

mod frame;
mod lane;
mod mux;
mod piece;

pub use frame::{HEADER, PIECE};
pub use lane::LaneId;
pub use mux::{Counters, Event, Expect, Fault, Limits, Mux, Read, SHARE, Written};
pub use piece::Piece;
