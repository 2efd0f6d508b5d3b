//! The engine in virtual time: random programs on random networks, checked by an oracle, and tests of named situations.
//!
//! A failure prints its seed; `ISTHMUS_SEED=<seed>` with the test's name replays it.

#![allow(clippy::unwrap_used)]

mod acks;
mod announce;
mod arena;
mod buffered;
mod credit;
#[path = "../../../isthmus-udp/tests/simulation/floors.rs"]
mod floors;
mod hostile;
mod leases;
mod left_lanes;
mod program;
mod rails;
mod rng;
mod scenarios;
mod storms;
mod stragglers;
mod transfer;
mod world;
