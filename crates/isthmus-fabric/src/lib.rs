//! Lanes over a site's local fabric: libfabric as a client.
//!
//! A lane is opened by TCP, whatever it is to run on: that connection is found by the address
//! that everybody knows, and tells at once when the neighbour dies, which reliable datagrams
//! do not. Its first frame may be an Offer of fabrics (`meeting.rs`). If the neighbours agree
//! on one and a packet has crossed it both ways, the lane's bytes go over the fabric in
//! packets (`hub.rs`), and the connection remains as the lane's sign of life, its end, and a
//! bell for who sleeps: not every provider has a descriptor to sleep on, and nobody spins.
//!
//! `unsafe` lives in `library.rs` (finding libfabric), `net.rs` (its objects), and in `hub.rs`
//! and `hubs.rs`, which copy from and to the memory that a lane is lent.

mod ground;
mod host;
mod hub;
mod hubs;
mod library;
mod meeting;
mod net;
mod offer;
mod pipe;

pub use ground::{Ground, Taken};
pub use hub::{News, Piped};
pub use hubs::{Hubs, Pipe};
pub use meeting::{Meeting, Met};
pub use offer::Way;

/// Why a fabric cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// There is no libfabric.
    #[error("libfabric.so.1 cannot be loaded; install it, or add its folder to LD_LIBRARY_PATH")]
    NoLibrary,
    /// libfabric has no such provider here.
    #[error("libfabric has no provider of this name that fits ({0}); `fi_info -l` lists those there are")]
    NoProvider(String),
    /// A call failed.
    #[error("{what}: {why}")]
    Call {
        /// The call.
        what: &'static str,
        /// What libfabric says.
        why: String,
    },
    /// As many lanes as there is room for.
    #[error("the fabric has as many lanes as its provider has room for")]
    Full,
}
