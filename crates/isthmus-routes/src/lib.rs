//! The route map of an autonomous system (AS): read, check, compute, explain, draw.
//!
//! A map names the AS's subnets, the routers that join them, and the ways out to remote
//! AS's. The routing table has an entry for every pair of subnets: the list of subnets from
//! origin to destination that costs least under a metric. Routers of one AS have the same
//! map and so compute the same table; clients have no map.
//!
//! The semantics are those of section 4.1 of *End-to-End Data Movement Using MPI-IO Over
//! Routed Terabits Infrastructures* (Vallée, Kim, Atchley, Shipman; NDM'13).
//!
//! This crate does no I/O: it takes texts, and returns tables, explanations and drawings.
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
