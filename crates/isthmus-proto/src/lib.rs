//! The protocol engine: it decides everything that happens between two endpoints, and does no I/O.
//!
//! The shell (`isthmus-io`) passes in time, frames and news of lanes, and fetches what to write, deadlines and
//! completions. The engine knows no socket, clock, thread or raw pointer, so a simulation can run a whole network of
//! engines in virtual time and repeat it exactly.
//!
//! ```text
//!   program: send, recv, write, read, atomic             poll_completion
//!        │                                                     ▲
//!        ▼                                                     │
//!   ┌─────────────────────────── Engine ───────────────────────────┐
//!   │ post → transmit          matching          receive ← begin   │
//!   └──────────────────────────────────────────────────────────────┘
//!        │ next_ready, transmit, poll_action, poll_timeout     ▲
//!        ▼                                                     │ handle, feed, lane_lost, handle_timeout
//!   shell: sockets, rings in shared memory, the clock
//! ```
//!
//! The parts:
//!
//! - `engine`: peers, connections, lanes and operations, with one file for each policy.
//! - `operation`: the requests of a program, and the completions that it gets.
//! - `matching`: matches messages with receives.
//! - `window`: the fragments that are unacknowledged, and those that have arrived.
//! - `admission`: the handshake by which both ends of a lane prove who they are.
//! - `memory`: names for buffers that only the shell's [`Memory`] touches.
//! - `atomics`: the arithmetic of atomic operations.
//! - `service`: the promises of the substrate's service levels.
//! - `transfer`: how messages are transferred, by name, and the settings that choose it.
#![forbid(unsafe_code)]

mod admission;
mod atomics;
mod engine;
mod matching;
mod memory;
mod operation;
mod service;
mod transfer;
mod window;

pub use admission::{ADMITS_KNOWN, public_key};
pub use atomics::apply as apply_atomic;
pub use engine::{
    Action, Batch, Config, Counters, Decision, Engine, FAST_PATH_FRAME_MAX, LaneId, LaneKind, LaneLoss,
    Micros, PeerCounters, PeerFault, PeerState, Refusal, Segment, Sink,
};
pub use isthmus_path::{Bulk, LaneSample};
pub use isthmus_seal::Secret;
pub use memory::{Access, BufferRef, Memory};
pub use operation::{
    AtomicKind, AtomicOp, AtomicRequest, AtomicType, Channel, Completion, CompletionKind, Fence, Level,
    OpError, Options, PeekAction, PeekRequest, PeerId, RecvRequest, RemoteRange, RmaRequest, SendRequest,
};
pub use service::{Order, Reliability, ServiceLevel};
pub use transfer::{Transfer, Transfers};
