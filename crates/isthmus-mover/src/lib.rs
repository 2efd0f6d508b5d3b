//! Files from site to site: verified block by block, resumable, sealed end to end.
//!
//! A client ([`client`]) and a service ([`server`]) converse over an endpoint, so over whatever
//! lanes and routers lie between them. One side sends and the other receives, whichever of
//! them began. From the outside in:
//!
//! - `sender` and `receiver` are the two sides' loops, each on one thread with its disk threads
//!   (`pool`); `session` is the conversation, `port` the endpoint without `unsafe`;
//! - `channel` carries control messages through TLS, `seal` encrypts blocks with its keys, and
//!   `wire` is what both sides say;
//! - `plan` chooses what is sent next, `gauge` how much at once; `journal` remembers what came,
//!   `digest` is BLAKE3 of files by blocks;
//! - `walk`, `expand` and `source` read, `landing`, `links` and `target` write, by `disk`; `confine` keeps them in.
//!
//! Memory: buffers of at most [`client::Transfer::memory`] or [`config::ServeConfig::memory`]
//! a session and side, 33 bytes a block of the at most 64 files of several blocks that are
//! under way (at a sender only of those that it has to read again), and about a kilobyte for each of at most 16,384 announced entries.
#![deny(unsafe_code)]

mod admission;
mod buffer;
mod cache;
pub mod channel;
pub mod client;
pub mod config;
pub mod confine;
#[allow(unsafe_code, reason = "buffers are lent to the kernel here, until they are given back")]
mod disk;
mod error;
mod expand;
mod gauge;
pub mod journal;
mod landing;
mod layout;
mod links;
mod meta;
pub mod names;
pub mod plan;
mod pool;
#[allow(unsafe_code, reason = "buffers are lent to the endpoint here, and only here")]
mod port;
mod receiver;
pub mod seal;
mod sender;
pub mod server;
mod session;
mod source;
mod succession;
mod sweep;
mod target;
mod walk;
pub mod watch;
pub mod wire;

pub use isthmus_digest as digest;

pub use cache::Cache;
pub use client::{Direction, Transfer};
pub use config::{Names, ServeConfig, Site, SitesConfig};
pub use disk::{Disk, Io};
pub use error::MoverError;
pub use layout::block_for;
pub use watch::{Notice, Summary};
