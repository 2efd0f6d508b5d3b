//! Whose certificate is it, and is it admitted: mutual TLS 1.3 between sites.
//!
//! [`Trust`] is both roles of a handshake, [`Keygen`] makes the certificates, [`Throwaway`] those of one conversation. What goes
//! through TLS, and over what, is its users' affair.
#![forbid(unsafe_code)]

mod keygen;
mod role;
mod throwaway;
mod tls;
mod why;

pub use keygen::{Keygen, Made};
pub use role::{Fingerprint, Role};
pub use throwaway::Throwaway;
pub use tls::{Files, Trust, TrustError, peer_as, peer_fingerprint};
pub use why::explain;
