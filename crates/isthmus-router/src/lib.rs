//! The router: it joins subnets of a site, and sites by the WAN.
//!
//! A router relays *lanes*. It reads a lane's first frame, Hello, looks up where its target
//! is, connects to the next hop, passes the Hello on, and from then on moves bytes it does
//! not look at. Inside an AS a lane is a TCP connection of its own; toward the WAN lanes
//! share *links*, TLS connections between routers that have proved to each other whose they
//! are. Whoever is slow to take bytes slows those who send them, and nobody else.
//!
//! From the outside in: `daemon` starts it all; `listen` accepts; `router` takes a lane from
//! Hello to end; `step` chooses the way and `onward` goes it; `relay` moves the bytes;
//! `links` keeps what `link` makes of a connection (a `wire`: TCP, or UDP by `datagram`), and
//! `isthmus-trust` tells whose it is. A lane for the router itself publishes or looks up one of its
//! `names`.
#![forbid(unsafe_op_in_unsafe_fn)]

mod arrivals;
pub mod config;
mod daemon;
mod datagram;
mod dial;
mod ground;
pub mod hello;
mod lane;
mod link;
mod links;
mod listen;
pub mod manager;
mod measure;
mod metrics;
mod names;
mod onward;
mod page;
mod pulse;
mod quota;
mod relay;
mod report;
mod rhythm;
mod router;
mod settings;
mod status;
mod step;
pub mod targets;
mod tcp_info;
mod tls;
mod wire;

pub use daemon::{RunError, RunOptions, check, run};
pub use isthmus_trust::{Keygen, Made, Role};
