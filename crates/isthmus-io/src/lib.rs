//! The shell around the engine (`isthmus-proto`): sockets, shared memory, threads and settings.
//!
//! An [`Endpoint`] is an engine with its shell. The engine decides; the shell moves bytes:
//!
//! ```text
//!   program: send, recv, write, …              poll
//!        │ endpoint/post.rs                     │ endpoint/drive.rs    I/O thread: driver.rs
//!        ▼                                      ▼                          │
//!   ┌──── engine (behind a lock) ◄──── shell: shell.rs, shell/ ◄───────────┘
//!   │                                      │
//!   └─ memory.rs, regions.rs               ▼
//!                              carriers: carrier/ (TCP, TLS, UDP, shared memory, fabrics)
//! ```
//!
//! - `endpoint`: the calls that a program makes, and which thread drives the endpoint.
//! - `engine`: the engine behind its lock, with the memory that it refers to.
//! - `shell`, `lane`: the loops that move bytes between lanes and the engine. `lane/table` alone changes the phase of a
//!   lane.
//! - `carrier`: the carriers of lanes; they move the bytes.
//! - `memory`, `region`, `regions`: buffers that programs lend, and registered memory.
//! - `driver`, `watch`, `cpu_yield`, `burst`: which thread polls when, so that polls are cheap and the processor is
//!   shared.
//! - `own_addresses`: addresses that the host loses while lanes use them.
//! - `settings`, `devices`, `interface`, `listen`: the configuration, and where an endpoint listens. `route_query` asks
//!   the kernel for routes.
//! - `ledger`: the file in which endpoints of one host share measurements of paths.
//! - [`Datagrams`]: an endpoint without an engine.
//!
//! # Threads
//!
//! - The thread that polls the completion queue drives the engine. The process's single I/O thread takes over
//!   (`driver.rs`) in two cases: no thread has polled for a few milliseconds, or a thread sleeps on the queue's
//!   descriptor.
//! - Only the thread that drives the shell touches it. The engine has a lock, which is released before each system call.
//! - Before a thread sleeps, it sets a flag in each lane's shared memory. A writer that finds the flag set wakes it.
//!   `isthmus-wakeup` holds this protocol, and loom checks it (`tools/models.sh`).
//! - A poll of an idle endpoint whose lanes are all in shared memory reads one word per lane and takes no lock
//!   (`watch.rs`). Only the first poll after a message spins, for 2 µs.
//! - If there are more runnable threads than processors, a poll that finds nothing sleeps briefly (`cpu_yield.rs`).
//! - Once a second the I/O thread looks for operations that have been pending longer than `stall_warning`, and logs what
//!   the oldest waits for. `isthmus state PID` and `isthmus top` ask this thread over a Unix socket (`figures.rs`).
//! - The I/O thread waits at most `SHELL_PATIENCE` (100 ms) for another thread to release an endpoint's shell. So a
//!   program's thread that hangs does not stop the I/O thread, which reports it.
//!
//! `unsafe` code is only in the files that `crates/isthmus/tests/rooms.rs` lists.

mod burst;
mod carrier;
mod cpu_yield;
mod datagrams;
mod devices;
mod driver;
mod endpoint;
mod engine;
mod error;
mod figures;
mod interface;
mod lane;
mod ledger;
mod listen;
pub mod lock;
pub mod log;
mod memory;
mod own_addresses;
mod poller;
mod region;
mod regions;
mod route_query;
mod scitag;
mod settings;
mod shell;
mod signals;
mod watch;

#[doc(hidden)]
pub use carrier::read_any_ring;
pub use carrier::try_shared_memory;
pub use datagrams::Datagrams;
pub use devices::{DEVICE_PARAMETERS, DeviceSettings, devices_from_file, devices_from_toml};
pub use endpoint::Endpoint;
pub use endpoint::asking::{figures_of, processes, state_of};
pub use error::{OpenError, PostError};
pub use figures::{DatagramCounts, EndpointFigures, LaneFigures, PeerFigures};
pub use interface::{
    Chosen, Family, InterfaceError, Why, interface_of, interface_trouble, network_bits_of, source_to,
};
pub use isthmus_udp::{Composition, Dropped, SpecError};
pub use isthmus_units::PerHost;
pub use region::Access;
pub use regions::{RegionTable, RegisterError};
pub use settings::{
    Admission, Credit, Dscp, Encrypt, Firefly, KeyFiles, LostPeer, MessageTransfer, PARAMETERS, Parameter,
    PortRange, Priority, Protocols, RateLimits, Routers, Scitag, Settings, SettingsError, Streams, Summary,
    Switch, TcpCongestion, TlsMode, Transport, environment_name,
};
pub use signals::{block_all as block_signals, process_number};
pub use watch::Watch;
