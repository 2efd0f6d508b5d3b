//! All protocol behaviour, without I/O.
//!
//! Time and bytes come in as arguments; bytes, deadlines and completions go out when
//! asked for. Nothing here knows a socket, a clock, a thread or a raw pointer.
#![forbid(unsafe_code)]

mod admission;
mod atomics;
mod engine;
mod matching;
mod memory;
mod operation;
mod service;
mod window;

pub use admission::{ADMITS_KNOWN, public_key};
pub use atomics::apply as apply_atomic;
pub use engine::{
    Action, Batch, Config, Counters, Decision, Engine, LaneId, LaneKind, LaneLoss, LaneSample, Micros,
    PeerCounters, PeerFault, Refusal, SHORT_FRAME_MAX, Segment, Sink, Transfer, Transfers,
};
pub use isthmus_seal::Secret;
pub use memory::{Access, Memory, Place};
pub use operation::{
    AtomicKind, AtomicOp, AtomicRequest, AtomicType, Channel, Completion, CompletionKind, Fence, Level,
    OpError, Options, PeekAction, PeekRequest, PeerId, RecvRequest, RemoteRange, RmaRequest, SendRequest,
};
pub use service::{Order, Reliability, ServiceLevel};
