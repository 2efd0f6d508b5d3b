//! The fabrics that two neighbours may agree on, as an interface for a meeting.

use std::fmt::{Arguments, Debug};
use std::os::fd::OwnedFd;

use crate::hubs::{Hubs, Pipe};
use crate::{FabricError, OfferedEndpoint};

/// The offered endpoint that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken<P> {
    /// Its index in the list.
    pub choice: usize,
    /// The new lane.
    pub pipe: P,
    /// The neighbour's name for the lane.
    pub lane: u64,
    /// The name of our endpoint.
    pub name: Vec<u8>,
}

/// The fabrics of one side.
pub trait Fabrics {
    /// Identifies a lane.
    type Pipe: Copy + Debug + PartialEq;

    /// A number that processes have in common if they may share memory.
    fn host(&mut self) -> u64;
    /// The endpoints to offer. `near`: the neighbour has an address of this host.
    fn endpoints(&mut self, near: bool) -> Vec<OfferedEndpoint>;
    /// Ends an offer.
    fn withdraw(&mut self, endpoints: &[OfferedEndpoint]);
    /// Chooses the first endpoint that can be reached from here. `near`: the neighbour shares memory with
    /// us.
    fn take(&mut self, endpoints: &[OfferedEndpoint], near: bool) -> Option<Taken<Self::Pipe>>;
    /// Makes a lane from an offered endpoint to the neighbour's endpoint `name`.
    ///
    /// # Errors
    /// If it cannot be made.
    fn join(&mut self, endpoint: &OfferedEndpoint, name: &[u8]) -> Result<Self::Pipe, FabricError>;
    /// Tests a lane, which the neighbour calls `theirs`.
    fn probe(&mut self, pipe: Self::Pipe, theirs: u64);
    /// Whether packets have crossed in both directions.
    fn is_proved(&mut self, pipe: Self::Pipe) -> bool;
    /// Sets the number that the lane's news carry.
    fn set_key(&mut self, pipe: Self::Pipe, key: u64);
    /// From now on the lane's bytes go over the fabric. `connection` is its TCP connection.
    fn begin(&mut self, pipe: Self::Pipe, connection: OwnedFd);
    /// Removes a lane.
    fn remove(&mut self, pipe: Self::Pipe);
    /// Name of the lane's provider, for people.
    fn provider(&self, pipe: Self::Pipe) -> &str;
    /// Logs a remark, once.
    fn remark(&mut self, what: Arguments<'_>);
}

impl Fabrics for Hubs {
    type Pipe = Pipe;

    fn host(&mut self) -> u64 {
        Self::host(self)
    }

    fn endpoints(&mut self, _near: bool) -> Vec<OfferedEndpoint> {
        Self::endpoints(self)
    }

    fn withdraw(&mut self, _endpoints: &[OfferedEndpoint]) {}

    fn take(&mut self, endpoints: &[OfferedEndpoint], near: bool) -> Option<Taken<Pipe>> {
        Self::take(self, endpoints, near)
    }

    fn join(&mut self, endpoint: &OfferedEndpoint, name: &[u8]) -> Result<Pipe, FabricError> {
        Self::join(self, endpoint, name)
    }

    fn probe(&mut self, pipe: Pipe, theirs: u64) {
        Self::probe(self, pipe, theirs);
    }

    fn is_proved(&mut self, pipe: Pipe) -> bool {
        Self::is_proved(self, pipe)
    }

    fn set_key(&mut self, pipe: Pipe, key: u64) {
        Self::set_key(self, pipe, key);
    }

    fn begin(&mut self, pipe: Pipe, connection: OwnedFd) {
        Self::begin(self, pipe, connection);
    }

    fn remove(&mut self, pipe: Pipe) {
        Self::remove(self, pipe);
    }

    fn provider(&self, pipe: Pipe) -> &str {
        Self::provider(self, pipe)
    }

    fn remark(&mut self, what: Arguments<'_>) {
        Self::remark(self, what);
    }
}
