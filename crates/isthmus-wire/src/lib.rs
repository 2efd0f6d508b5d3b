//! Bytes on the wire: endpoint addresses and the one table of frames.
//!
//! This crate does no I/O and contains no `unsafe` code. Everything that two Isthmus processes must agree on is defined
//! here:
//!
//! - `address.rs`: the address of an endpoint.
//! - `frame.rs`: the table of the engine's frames.
//! - `conversation.rs`: the control messages of the substrate.
//! - `datagram.rs`: the start of datagrams.
//! - `rendezvous.rs`: requests for names at a router, and answers.
//! - `versions.rs`: how two ends agree on a version.
#![forbid(unsafe_code)]

mod address;
pub mod conversation;
mod datagram;
pub mod frame;
mod hash;
pub mod rendezvous;
mod versions;

pub use address::{Address, AddressError, AsId, Key, Locator, SubnetId};
pub use datagram::MessageHeader;
pub use frame::{Frame, FrameError, PROTOCOL_OLDEST, PROTOCOL_VERSION};
pub use hash::fnv1a;
pub use versions::Versions;
