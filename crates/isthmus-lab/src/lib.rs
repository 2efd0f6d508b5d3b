//! Emulated sites and wide-area links on one machine.
//!
//! One link model ([`model`]), two clocks: tests turn it in virtual time, the emulator
//! ([`emulator`]) turns it with real packets between network namespaces ([`topology`]).
//!
//! The model is pure and serves simulations on its own:
//!
//! ```
//! use isthmus_lab::model::{Direction, DirectionSpec, Fate, wire_bytes};
//!
//! let spec = DirectionSpec { delay_ns: 12_000_000, ..Default::default() };
//! let mut link = Direction::new(spec);
//! let Fate::Deliver { at_ns, .. } = link.offer_one(0, wire_bytes(1226)) else { panic!() };
//! assert_eq!(at_ns, 12_010_000); // 1,250 bytes at 1 Gb/s, then the delay
//! ```

#![deny(unsafe_code)]

pub mod check;
pub mod config;
pub mod emulator;
pub mod model;
mod netlink;
pub mod packet;
pub mod privilege;
pub mod report;
pub mod rng;
pub mod site;
pub mod state;
mod store;
#[allow(unsafe_code)]
mod sys;
pub mod topology;
mod tuning;

/// Why a lab cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The user's configuration or arguments are at fault.
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    /// The system refused something.
    #[error("cannot {action}: {source}{}", remedy(.source))]
    System {
        /// What was tried.
        action: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something else is missing; the text says what to do.
    #[error("{0}")]
    Missing(String),
}

/// A next step for the errors that have a usual one.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            " (run as root, or where unprivileged user namespaces are allowed; `isthmus lab check` says which)"
        }
        _ => "",
    }
}

/// Adds what was being done to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<std::io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|e| LabError::System { action: action(), source: e.into() })
    }
}
