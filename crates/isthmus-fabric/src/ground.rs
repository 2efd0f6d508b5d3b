//! What neighbours may agree upon, as a meeting sees it.

use std::fmt::{Arguments, Debug};
use std::os::fd::OwnedFd;

use crate::hubs::{Hubs, Pipe};
use crate::{FabricError, Way};

/// A way that was taken of those offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken<P> {
    /// Its place in the list.
    pub choice: usize,
    /// The new lane.
    pub pipe: P,
    /// What the neighbour is to call it.
    pub lane: u64,
    /// The name of our endpoint.
    pub name: Vec<u8>,
}

/// See the module.
pub trait Ground {
    /// Names a lane.
    type Pipe: Copy + Debug + PartialEq;

    /// What processes that share memory with this one have in common.
    fn host(&mut self) -> u64;
    /// What is offered; `near` where the neighbour has an address of this host.
    fn ways(&mut self, near: bool) -> Vec<Way>;
    /// The offer is over.
    fn withdraw(&mut self, ways: &[Way]);
    /// Takes the first of the ways that leads somewhere from here; `near` where the neighbour shares memory
    /// with us.
    fn take(&mut self, ways: &[Way], near: bool) -> Option<Taken<Self::Pipe>>;
    /// A new lane by a way that was offered, to the endpoint that has this name there.
    ///
    /// # Errors
    /// It cannot be made.
    fn join(&mut self, way: &Way, name: &[u8]) -> Result<Self::Pipe, FabricError>;
    /// Tries a lane, which the neighbour calls `theirs`.
    fn probe(&mut self, pipe: Self::Pipe, theirs: u64);
    /// Whether it leads there and back.
    fn is_proved(&mut self, pipe: Self::Pipe) -> bool;
    /// The number that news of this lane carry.
    fn set_key(&mut self, pipe: Self::Pipe, key: u64);
    /// From now on the lane's bytes go here; the connection is what is left of the other way.
    fn begin(&mut self, pipe: Self::Pipe, connection: OwnedFd);
    /// Forgets a lane.
    fn remove(&mut self, pipe: Self::Pipe);
    /// What carries it, for people.
    fn provider(&self, pipe: Self::Pipe) -> &str;
    /// Tells people something, once.
    fn remark(&mut self, what: Arguments<'_>);
}

impl Ground for Hubs {
    type Pipe = Pipe;

    fn host(&mut self) -> u64 {
        Self::host(self)
    }

    fn ways(&mut self, _near: bool) -> Vec<Way> {
        Self::ways(self)
    }

    fn withdraw(&mut self, _ways: &[Way]) {}

    fn take(&mut self, ways: &[Way], near: bool) -> Option<Taken<Pipe>> {
        Self::take(self, ways, near)
    }

    fn join(&mut self, way: &Way, name: &[u8]) -> Result<Pipe, FabricError> {
        Self::join(self, way, name)
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
