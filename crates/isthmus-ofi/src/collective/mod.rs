//! `fi_collective(3)`: collective operations of a group, made of messages among its members. `groups.rs` runs
//! them.

mod calls;
mod member;
mod set;

pub(crate) use calls::{OPS, query};
pub(crate) use member::join;
pub(crate) use set::open as open_set;
