//! The libfabric provider `isthmus`. Unmodified MPIs load it; its only exported symbol is `fi_prov_ini`.
//!
//! ```text
//!   libfabric ── fi_prov_ini ──► provider.rs
//!      │ calls through tables of functions
//!      ▼
//!   door.rs          null checks, panics and errors at the border to C
//!      ▼
//!   info/, fabric.rs, domain.rs, ep.rs, av.rs, cq.rs, cntr.rs, eq.rs, mr.rs, poll.rs, waitset.rs
//!      │             one file for each libfabric object
//!      ▼
//!   msg.rs, tagged.rs, rma.rs, atomic/, collective/, deferred.rs
//!      │             one file for each kind of operation
//!      ▼
//!   endpoint.rs, call.rs
//!      │             an endpoint as its operations see it, and what they post
//!      ▼
//!   live.rs          an enabled endpoint: the engine below, and where completions go
//!      ▼
//!   isthmus-io
//! ```
//!
//! `live.rs` and what its completions reach know each other: `queue.rs`, `counter.rs` and `sources.rs`, by which reads
//! drive endpoints; `trigger/` and `groups.rs`, which completions move on; `counters.rs`, `access.rs` and `state.rs`,
//! which hold them. No other modules do, but `domain.rs` and `mr.rs`.
//!
//! The library imports no symbol of libfabric: linking would bind it to one version of libfabric.

mod access;
mod atomic;
mod av;
mod av_table;
mod call;
mod cm;
mod cntr;
mod collective;
mod convert;
mod counter;
mod counters;
mod cq;
mod deferred;
mod domain;
mod door;
mod endpoint;
mod engine;
mod ep;
mod eq;
mod error;
mod events;
mod fabric;
mod fid;
mod fork;
mod groups;
mod info;
mod joint;
mod live;
mod log;
mod mr;
mod msg;
mod options;
mod order;
mod peers;
mod poll;
mod provider;
mod queue;
mod reach;
mod resolve;
mod rma;
mod send;
mod sources;
mod state;
mod tagged;
mod trigger;
mod wait;
mod waitobj;
mod waitset;

use isthmus_abi::{abi, flags};

pub use provider::fi_prov_ini;
