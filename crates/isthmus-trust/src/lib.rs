//! Mutual TLS 1.3 between sites: checks which AS a certificate belongs to, and whether that AS is admitted.
//!
//! - [`Trust`] has the TLS settings for both roles of a handshake, client and server (`tls.rs`).
//! - [`Trust::expiring`] warns of a certificate that ends soon (`expiry.rs`).
//! - [`Keygen`] makes the certificates of a site (`keygen.rs`).
//! - [`Throwaway`] makes certificates for one conversation (`throwaway.rs`).
//! - [`Role`] and [`Fingerprint`] restrict what a certificate is accepted for (`role.rs`).
//! - [`explain`] tells an administrator what to change after a failed handshake (`why.rs`).
//!
//! The users of this crate choose the transport below TLS and the protocol above it.
#![forbid(unsafe_code)]

mod expiry;
mod keygen;
mod role;
mod throwaway;
mod tls;
mod why;

pub use keygen::{Keygen, Made, check_name};
pub use role::{Fingerprint, Role};
pub use throwaway::Throwaway;
pub use tls::{Files, Shown, Trust, TrustError, is_refused, peer_as, peer_fingerprint};
pub use why::explain;
