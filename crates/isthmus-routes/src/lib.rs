//! The route map of an autonomous system (AS): read, check, compute, explain, draw.
//!
//! A map names the AS's subnets, the routers that join them, and the ways out to remote
//! AS's. From it follows the routing table, an entry for every pair of subnets: the ordered
//! subnets from origin to destination that cost least under a metric. Routers of one AS
//! hold the same map and so compute the same table; clients hold no map.
//!
//! The semantics are those of section 4.1 of *End-to-End Data Movement Using MPI-IO Over
//! Routed Terabits Infrastructures* (Vallée, Kim, Atchley, Shipman; NDM'13).
//!
//! This crate does no I/O: texts are handed in, and tables, explanations and drawings out.
#![forbid(unsafe_code)]

mod draw;
mod explain;
mod fault;
mod graph;
mod map;
mod measured;
mod metric;
mod read;
mod table;
mod text;

pub use draw::draw;
pub use explain::{Candidate, Dropped, Explanation, Reason};
pub use fault::{Fault, Faults};
pub use map::{Capabilities, Joint, Remote, Role, RouteMap, Router, SUBNETS_MAX, Subnet, WayOut};
pub use measured::{LinkState, Measured};
pub use metric::Metric;
pub use table::{Destination, NextHop, NextRouter, NoRoute, Route, Step, Table};
