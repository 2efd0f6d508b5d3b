//! Thin shells around the engine: tcp lanes, memory, the progress driver.
//!
//! `unsafe` lives in `datagrams.rs`, `endpoint/post.rs`, `endpoint/sleep.rs`, `lane.rs`, `ledger.rs`, `lock.rs`, `memory.rs`,
//! `regions.rs`, `shell.rs`, `shell/down.rs`, `shell/reach.rs`, `shell/short.rs`, `signals.rs` and in `carrier/mod.rs`, `carrier/memory`, `carrier/tcp.rs`, `carrier/tls.rs` and
//! `carrier/udp/lane.rs` and `loans.rs` only.

mod burst;
mod carrier;
mod courtesy;
mod datagrams;
mod devices;
mod driver;
mod endpoint;
mod interface;
mod lane;
mod ledger;
mod listen;
pub mod lock;
pub mod log;
mod memory;
mod poller;
mod regions;
mod settings;
mod shell;
mod signals;
mod watch;

#[doc(hidden)]
pub use carrier::read_any_ring;
pub use carrier::try_shared_memory;
pub use datagrams::Datagrams;
pub use devices::{DEVICE_PARAMETERS, DeviceSettings, devices_from_file, devices_from_toml};
pub use endpoint::diagnosis::state_of;
pub use endpoint::{Endpoint, OpenError, PostError};
pub use interface::{
    Chosen, Family, InterfaceError, Why, interface_of, interface_trouble, network_bits_of, source_to,
};
pub use isthmus_udp::{Composition, Dropped, SpecError};
pub use isthmus_units::PerHost;
pub use regions::{Access, RegionTable, RegisterError};
pub use settings::{
    Admission, Credit, Encrypt, KeyFiles, MessageTransfer, PARAMETERS, Parameter, PortRange, Protocols,
    RateLimits, Routers, Settings, SettingsError, Streams, Summary, Switch, TcpCongestion, TlsMode,
    Transport, environment_name,
};
pub use signals::{block_all as block_signals, process_number};
pub use watch::Watch;
