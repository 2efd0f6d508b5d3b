//! Thin shells around the engine: tcp lanes, memory, the progress driver.
//!
//! `unsafe` lives in `endpoint.rs`, `memory.rs`, `shell.rs`, `signals.rs` and `tcp.rs` only.

mod courtesy;
mod driver;
mod endpoint;
mod interface;
pub mod log;
mod memory;
mod poller;
mod settings;
mod shell;
mod signals;
mod tcp;

pub use endpoint::{Endpoint, OpenError, PostError};
pub use interface::InterfaceError;
pub use memory::{Access, RegionTable, RegisterError};
pub use settings::{PARAMETERS, Parameter, Routers, Settings, SettingsError, Streams, environment_name};
