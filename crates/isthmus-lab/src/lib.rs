//! Emulated sites and wide-area links on one machine.
//!
//! There is one link model ([`model`]) and two clocks: tests run it in virtual time, the emulator
//! ([`emulator`]) runs it with real packets between network namespaces ([`topology`]).
//!
//! The model has no I/O and serves simulations without the emulator:
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

pub mod catalogue;
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
    /// The configuration or the arguments are wrong.
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    /// The system refused something.
    #[error("cannot {action}: {source}{}", remedy(.source))]
    System {
        /// The attempted action.
        action: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Something else is missing. The text says what to do.
    #[error("{0}")]
    Missing(String),
}

/// The remedy of errors that have a usual one.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            " (run as root, or where unprivileged user namespaces are allowed; `isthmus lab check` says which)"
        }
        _ => "",
    }
}

/// Adds the attempted action to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<std::io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|e| LabError::System { action: action(), source: e.into() })
    }
}
