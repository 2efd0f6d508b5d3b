//! The substrate: devices, endpoints, connections, events, messages and remote memory.
//!
//! It is for programs without MPI: persistent services that peers connect to and leave, with a service level for each
//! connection, and one queue of events for all peers. Below it is the engine that also carries MPI, with the same
//! lanes, routers, credit and recovery.
//!
//! ```text
//!   program ── Endpoint: connect, send, write, get_event          endpoint/
//!                 │
//!              Inner: one lock for all of it                       inner.rs, progress.rs, shaping.rs
//!                 ├── Talk: connections, no I/O                    talk/
//!                 ├── Port: an engine on each device               ports.rs, post.rs
//!                 ├── Datagrams: messages of UU connections        datagrams.rs
//!                 └── Buffers: for incoming messages               buffers.rs
//! ```
//!
//! A connection is an entry at both ends, on top of an engine's peer. Any number of connections share the lanes of that
//! peer. Control messages (`isthmus-wire`, `conversation.rs`) request, grant, refuse and end connections; `talk/` decides
//! all of this. `isthmus-proto`'s `service.rs` has what each service level promises. Messages of UU connections go as UDP
//! datagrams. Received messages stay in buffers that circulate between engine and program.
//!
//! ```no_run
//! use isthmus_substrate::{Endpoint, EndpointOptions, Event, Level, SendOptions, Substrate};
//!
//! let substrate = Substrate::init()?;
//! let endpoint = Endpoint::create(substrate.default_device()?, &EndpointOptions::default())?;
//! let context = 7; // yours; comes back with each event of the connection
//! endpoint.connect("isthmus://0.0/10.1.2.3:4100", b"hello", Level::Ro, context, &Default::default())?;
//! loop {
//!     match endpoint.next_event(None)? {
//!         Some(Event::Connected { connection, .. }) => {
//!             endpoint.send(connection, b"ping", &SendOptions::default())?;
//!         }
//!         Some(Event::Received(message)) => println!("{} bytes", message.len()),
//!         Some(Event::Disconnected { .. }) => break,
//!         _ => {}
//!     }
//! }
//! # Ok::<(), isthmus_substrate::Error>(())
//! ```
//!
//! `unsafe` code is only in `bell.rs`, `buffers.rs`, `endpoint/operations.rs`, `event.rs`, `memory.rs` and `post.rs`.

mod bell;
mod buffers;
mod datagrams;
mod device;
mod endpoint;
mod error;
mod event;
mod inner;
pub mod meeting;
mod memory;
mod options;
mod ports;
mod post;
mod progress;
pub mod rendezvous;
mod route;
mod shaping;
mod site;
mod talk;

pub use device::{Capabilities, Device, Substrate};
pub use endpoint::{Endpoint, EndpointCounters, Posted, Traffic};
pub use error::{Error, Failure};
pub use event::{Connection, Event, Message, Request};
pub use isthmus_io::{Access, log};
pub use isthmus_proto::{ServiceLevel as Level, Transfer};
pub use isthmus_wire::conversation::{MemoryHandle, PAYLOAD_MAX};
pub use memory::Region;
pub use options::{ConnectOptions, EndpointOptions, RemoteOptions, SendOptions};
pub use site::site;
