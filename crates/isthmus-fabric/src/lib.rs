//! Lanes over a site's local fabric, through libfabric.
//!
//! Every lane starts on TCP. The neighbour is found at a known address, and the connection shows
//! at once when the neighbour dies, which reliable datagrams do not. The lane's first frame may
//! be an Offer of fabrics (`meeting.rs`). If the neighbours agree on one and a packet has crossed
//! it both ways, the lane's bytes go over the fabric in packets (`hub.rs`). The connection then
//! shows that the neighbour lives, and wakes sleepers: not every provider has a descriptor to
//! sleep on, and no thread spins.
//!
//! `unsafe` is in `library.rs` (finding libfabric), `net.rs` (its objects), and in `hub.rs`
//! and `hubs.rs`, which copy from and to a lane's borrowed memory.

mod fabrics;
mod host;
mod hub;
mod hubs;
mod library;
mod meeting;
mod net;
mod offer;
mod pipe;

pub use fabrics::{Fabrics, Taken};
pub use hub::{News, Piped};
pub use hubs::{Hubs, Pipe};
pub use meeting::{Foreign, Meeting, Met};
pub use offer::OfferedEndpoint;

/// Why a fabric cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// libfabric is not installed.
    #[error("libfabric.so.1 cannot be loaded; install it, or add its folder to LD_LIBRARY_PATH")]
    NoLibrary,
    /// libfabric has no provider of this name here.
    #[error("libfabric has no provider of this name that fits ({0}); `fi_info -l` lists those there are")]
    NoProvider(String),
    /// A call failed.
    #[error("{what}: {why}")]
    Call {
        /// The function.
        what: &'static str,
        /// libfabric's text for the error.
        why: String,
    },
    /// The provider has no room for another lane.
    #[error("the fabric has as many lanes as its provider has room for")]
    Full,
}
