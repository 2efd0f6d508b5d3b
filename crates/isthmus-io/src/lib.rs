//! Thin shells around the engine: tcp lanes, memory, the progress driver.
//!
//! `unsafe` lives in `memory.rs` and `endpoint.rs` only.

mod endpoint;
mod memory;
mod settings;

pub use endpoint::{Endpoint, OpenError, PostError};
pub use memory::{Access, RegionTable, RegisterError};
pub use settings::{PARAMETERS, Parameter, Settings, SettingsError};
