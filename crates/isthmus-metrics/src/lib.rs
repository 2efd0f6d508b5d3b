//! What a daemon tells of itself over HTTP.
//!
//! A daemon implements [`Status`]. [`serve`] then answers `/metrics` (for Prometheus), `/state` (JSON for
//! `isthmus top`), `/health`, and the daemon's own pages. [`Metrics`] holds the metrics of one answer. A marker in the
//! kernel's list of Unix sockets tells `isthmus top` which addresses of this host answer ([`marked`]).
#![forbid(unsafe_code)]

mod families;
mod http;
mod marker;

pub use families::{Kind, LABELLED_MAX, Labels, Metrics, limited};
pub use http::{Page, Status, serve, serve_in_thread};
pub use marker::marked;

use std::net::SocketAddr;

/// Checks the address of a status. Others on the network can read a status that is not on loopback, so the
/// configuration must say `status_remote = true` for that.
///
/// # Errors
/// What to change in the configuration.
pub fn check_address(status: SocketAddr, remote: bool) -> Result<(), String> {
    if status.ip().is_loopback() || remote {
        return Ok(());
    }
    Err(format!(
        "status = \"{status}\" is open to others; use 127.0.0.1 or [::1], or add status_remote = true if everybody \
         who reaches this address may read it"
    ))
}
