//! Authenticated encryption between two endpoints that share a secret.
//!
//! Both ends have the same [`Secret`]. [`Keys`] are derived from it for one direction and seal numbered packets.
//! [`Sealer`] and [`Opener`] do the same for a stream of bytes, which they cut into records. Nothing here does I/O.
//!
//! ```text
//!   Secret ──▶ Keys ──▶ packets of a UDP stream            keys.rs
//!                └────▶ Sealer, Opener: records of a lane   records.rs
//! ```
//!
//! The cipher is AES-128-GCM (NIST SP 800-38D), by the crates `aws-lc-rs` and `ring` (`cipher.rs`). Keys are derived by
//! HKDF with SHA-256 (RFC 5869), by `ring`.

mod cipher;
mod keys;
mod records;

pub use cipher::TAG_LEN;
pub use keys::{Keys, Secret};
pub use records::{Forged, LEN_BYTES, Opener, RECORD_MAX, RECORD_OVERHEAD, Sealer};
