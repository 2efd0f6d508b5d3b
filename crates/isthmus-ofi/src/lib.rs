//! The libfabric provider `isthmus`. Unmodified MPIs load it; its only exported symbol is `fi_prov_ini`.
//!
//! ```text
//!   libfabric ── fi_prov_ini ──► provider.rs
//!      │ calls through tables of functions
//!      ▼
//!   door.rs          null checks, panics and errors at the border to C
//!      ▼
//!   info/, fabric.rs, domain.rs, ep.rs, av.rs, cq/, cntr.rs, eq.rs, mr.rs, poll.rs, waitset.rs
//!      │             one file for each libfabric object
//!      ▼
//!   msg.rs, tagged.rs, rma.rs, atomic/, collective/, trigger/
//!      │             one file for each kind of operation
//!      ▼
//!   live.rs          an enabled endpoint: the engine below, and where completions go
//!      ▼
//!   isthmus-io
//! ```
//!
//! The library imports no symbol of libfabric: linking would bind it to one version of libfabric.

mod access;
mod atomic;
mod av;
mod call;
mod cm;
mod cntr;
mod collective;
mod convert;
mod counters;
mod cq;
mod domain;
mod door;
mod engine;
mod ep;
mod eq;
mod error;
mod fabric;
mod fid;
mod fork;
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
mod reach;
mod resolve;
mod rma;
mod send;
mod tagged;
mod trigger;
mod wait;
mod waitobj;
mod waitset;

use isthmus_abi::{abi, flags};

pub use provider::fi_prov_ini;
