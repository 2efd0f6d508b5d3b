//! `fi_collective(3)`: operations of all members of a group at once, made of messages among them.

mod calls;
mod group;
mod plan;
mod running;
mod set;

pub(crate) use calls::{OPS, query};
pub(crate) use group::join;
pub(crate) use running::Collectives;
pub(crate) use set::open as open_set;
