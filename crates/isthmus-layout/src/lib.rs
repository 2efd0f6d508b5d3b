//! Where files lie on this host's storage, and which storage target is read or written next.
//!
//! - The block length follows the layout: with a block of one stripe, or a part of one, each request goes to one target.
//! - Reads and writes are scheduled by target, so that no target has two of them under way while another idles. Y. Kim
//!   and others call this layout-aware scheduling (LADS, FAST '15).
//!
//! ```text
//!   layout.rs       the targets of a file, by Lustre's attribute
//!   description.rs  the same by a file that an administrator or user writes
//!   load.rs         requests under way by target ("join the shortest queue")
//!   schedule.rs     the pieces of one file, for workers that share its targets
//! ```
#![forbid(unsafe_code)]

mod description;
mod layout;
mod load;
mod schedule;

pub use description::{Description, Fault};
pub use layout::{Layout, STRIPE_MAX, TARGETS_MAX, Turns, Volume, block_for};
pub use load::Load;
pub use schedule::{Piece, Schedule, Worker};
