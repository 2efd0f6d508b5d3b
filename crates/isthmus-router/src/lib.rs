//! The router: it joins subnets of a site, and sites by the WAN.
//!
//! A router relays *lanes*. It reads a lane's first frame, Hello, and looks up the next hop to the lane's target. It
//! connects to that hop and passes the Hello on. After that it copies bytes in both directions and does not read them.
//! Inside an AS each lane is a TCP connection. Toward the WAN, lanes share *links*: TLS connections between routers,
//! which prove their AS to each other. A slow receiver slows its own sender only.
//!
//! ```text
//!   daemon ── start, reload, drain
//!     └── listen ── accepts lanes (TCP) and links (TLS over TCP or UDP)
//!           ├── router ── one lane from Hello to end
//!           │     ├── step ── which routes lead to the target; no I/O
//!           │     ├── onward ── connects to the next hop that answers
//!           │     ├── relay ── copies the bytes
//!           │     └── names ── lanes to the router itself: publish or look up a name
//!           └── links ── the set of links; dials and redials
//!                 └── link ── many lanes on one wire (TCP, or UDP by datagram)
//! ```
//!
//! Between two sites many lanes share a few long-lived links. `isthmus-mux` schedules the lanes of a link, and gives
//! each lane its own credit. Delivery is guaranteed between the endpoints, not between routers: if a router dies, its
//! lanes break, and the endpoints send again on others. A router that hangs sends no heartbeats. After 2 s without one,
//! its links get no new lanes (`heartbeat`).
//!
//! `isthmus-trust` checks certificates. `measure` reads the state of the links, and `history` keeps it for two minutes.
//! `metrics`, `report`, `status` and `page` show it; `isthmus-metrics` serves it.
#![forbid(unsafe_op_in_unsafe_fn)]

mod arrivals;
pub mod config;
mod daemon;
mod datagram;
mod dial;
mod heartbeat;
pub mod hello;
mod history;
mod lane;
mod link;
mod links;
mod listen;
mod local_fabric;
pub mod manager;
mod measure;
mod metrics;
mod names;
mod onward;
mod page;
mod quota;
mod relay;
mod report;
mod router;
mod settings;
mod spin;
mod status;
mod step;
pub mod targets;
mod tcp_info;
mod tls;
mod wire;

pub use daemon::{RunError, RunOptions, check, run};
pub use isthmus_trust::{Keygen, Made, Role, check_name};
