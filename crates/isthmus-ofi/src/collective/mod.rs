//! `fi_collective(3)`: collective operations of a group, made of messages among its members.

mod calls;
mod group;
mod plan;
mod running;
mod set;

pub(crate) use calls::{OPS, query};
pub(crate) use group::join;
pub(crate) use running::Collectives;
pub(crate) use set::open as open_set;
