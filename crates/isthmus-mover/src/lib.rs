//! Copies files from site to site. Each block is verified; a transfer can be resumed; data is encrypted end to end.
//!
//! A client ([`client`]) and a service ([`server`]) talk over an endpoint, and so over any lanes and routers between
//! them. One side sends and the other receives; either side may have begun.
//!
//! ```text
//!   sender                                                receiver
//!   walk, expand ── entries ──────────────────────▶ landing, links: compare with files here
//!   plan ◀───────── answers: send, same, have … ─── target, journal
//!   source ── blocks (read, digest, seal) ────────▶ target: open, compare digest, write, journal
//!        └───────── session, channel, port: one endpoint ─────────┘
//! ```
//!
//! - `sender` and `receiver` are the loops of the two sides. Each has one thread, and disk threads (`pool`).
//! - `session` orders the messages. `port` wraps the endpoint, so that its users need no `unsafe`.
//! - `channel` carries control messages through TLS. `seal` encrypts blocks with keys of that channel. `wire` defines
//!   the messages.
//! - `plan` chooses the next block. `gauge` sets how many bytes are in flight. `journal` records the blocks that came.
//!   `digest` is BLAKE3 of files by blocks.
//! - `sessions` holds what a service reports of its sessions.
//! - `walk`, `expand` and `source` read files. `landing`, `links` and `target` write them. Both use `disk`. `confine`
//!   keeps all paths below the folder. `descriptors` waits where no descriptor is free.
//!
//! Memory of each side of a session:
//!
//! - buffers: at most [`client::Transfer::memory`] or [`config::ServeConfig::memory`];
//! - 33 bytes for each block of the at most 64 long files in progress (a sender needs this only for files that it reads
//!   again);
//! - about 1 kB for each of at most 16,384 announced entries.
#![deny(unsafe_code)]

mod admission;
mod buffer;
mod cache;
pub mod channel;
pub mod client;
pub mod config;
pub mod confine;
mod descriptors;
#[allow(unsafe_code, reason = "buffers are lent to the kernel here, until they are given back")]
mod disk;
mod error;
mod expand;
mod gauge;
pub mod journal;
mod landing;
mod links;
mod meta;
pub mod names;
pub mod plan;
mod pool;
#[allow(unsafe_code, reason = "buffers are lent to the endpoint here, and only here")]
mod port;
mod reachability;
mod receiver;
pub mod seal;
mod sender;
pub mod server;
mod session;
pub mod sessions;
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
pub use isthmus_layout::block_for;
pub use watch::{Notice, Summary};
