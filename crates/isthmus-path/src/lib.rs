//! What is known about the path to each host, and what follows from it.
//!
//! Carriers, engine and router measure; this crate decides. The measurements are the *evidence*; what is known of a host
//! is its [`PathState`]; [`decide`] makes a [`Plan`] of it, and the carriers obey.
//!
//! ```text
//!   kernel's TCP counts ─┐                               ┌─ carrier: TCP, UDP, or a race of both
//!   UDP status ──────────┤    ┌──────────────────┐       ├─ bulk: how much of it UDP lanes carry
//!   races, silence ──────┼──▶ │ Hosts: PathState │ ─────▶├─ congestion control of TCP lanes
//!   processor's share ───┤    └──────────────────┘decide ├─ pace of each TCP lane
//!   other endpoints ─────┘        thresholds::TABLE      └─ why, for the log
//! ```
//!
//! - [`Hosts`] holds the state of all hosts, bounded in total, and tells what changes ([`Hosts::poll_news`]).
//! - [`thresholds`] has every number that decides, with its unit and reason.
//! - [`race`], [`provisional`] and [`blackhole`] tell whether UDP suits the path and gets through; [`trial`] whether TCP
//!   would carry more; [`losses`] whether losses are the path's own; [`pacing`] and [`sharing`] how fast TCP lanes send;
//!   [`segments`] whether large packets get through; [`streams`] how many TCP lanes there are to a peer; [`links`] which of a router's links carry new lanes.
//!
//! The crate does no I/O and has no clock: callers pass the time. How fast a UDP stream sends is decided by its own rate
//! control, in `isthmus-udp`.

#![forbid(unsafe_code)]

pub mod blackhole;
mod evidence;
mod hosts;
pub mod links;
pub mod losses;
pub mod pacing;
mod plan;
pub mod provisional;
mod queue;
pub mod race;
pub mod segments;
pub mod sharing;
pub mod streams;
pub mod thresholds;
pub mod trial;

pub use evidence::{LaneSample, TcpLook, UdpLook, UdpWork};
pub use hosts::{Hosts, News};
pub use plan::{
    Bulk, Carrier, Congestion, Finding, LossVerdict, PathState, Plan, Policy, Weakness, decide, long_us,
};

/// Microseconds on the caller's clock.
pub type Micros = u64;
