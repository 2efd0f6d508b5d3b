//! The local fabrics that a TCP lane may move to: shared memory, or one of the site's fabrics.

use std::fmt::Arguments;
use std::os::fd::OwnedFd;

use isthmus_fabric::{FabricError, Ground, Hubs, Pipe, Taken, Way};

use super::memory::{self, Memory};

/// The agreement of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreed {
    Fabric(Pipe),
    /// Index of a link in [`Memory`].
    Memory(usize),
}

/// Offers and takes shared memory and fabrics. Shared memory goes first.
#[derive(Debug)]
pub(super) struct Grounds<'a> {
    pub(super) hubs: &'a mut Hubs,
    pub(super) memory: &'a mut Memory,
}

impl Ground for Grounds<'_> {
    type Pipe = Agreed;

    fn host(&mut self) -> u64 {
        Ground::host(self.hubs)
    }

    fn ways(&mut self, near: bool) -> Vec<Way> {
        let memory = if near { self.memory.offer() } else { None };
        memory.into_iter().chain(Ground::ways(self.hubs, near)).collect()
    }

    fn withdraw(&mut self, ways: &[Way]) {
        ways.iter().filter(|way| way.provider == memory::NAME).for_each(|way| self.memory.withdraw(way));
    }

    fn take(&mut self, ways: &[Way], near: bool) -> Option<Taken<Agreed>> {
        let offered = ways.iter().enumerate().filter(|(_, way)| near && way.provider == memory::NAME);
        let taken = offered.into_iter().find_map(|(choice, way)| {
            let pipe = Agreed::Memory(self.memory.take(way)?);
            Some(Taken { choice, pipe, lane: 0, name: Vec::new() })
        });
        taken.or_else(|| {
            let Taken { choice, pipe, lane, name } = Ground::take(self.hubs, ways, near)?;
            Some(Taken { choice, pipe: Agreed::Fabric(pipe), lane, name })
        })
    }

    fn join(&mut self, way: &Way, name: &[u8]) -> Result<Agreed, FabricError> {
        if way.provider != memory::NAME {
            return Ground::join(self.hubs, way, name).map(Agreed::Fabric);
        }
        let why = || "the other end has not taken it".to_owned();
        let failed = || FabricError::Call { what: "shared memory", why: why() };
        self.memory.join(way).map(Agreed::Memory).ok_or_else(failed)
    }

    fn probe(&mut self, pipe: Agreed, theirs: u64) {
        if let Agreed::Fabric(pipe) = pipe {
            Ground::probe(self.hubs, pipe, theirs);
        }
    }

    fn is_proved(&mut self, pipe: Agreed) -> bool {
        match pipe {
            Agreed::Fabric(pipe) => Ground::is_proved(self.hubs, pipe),
            // A process that found the memory has proved that it is on this host.
            Agreed::Memory(_) => true,
        }
    }

    fn set_key(&mut self, pipe: Agreed, key: u64) {
        if let Agreed::Fabric(pipe) = pipe {
            Ground::set_key(self.hubs, pipe, key);
        }
    }

    fn begin(&mut self, pipe: Agreed, connection: OwnedFd) {
        if let Agreed::Fabric(pipe) = pipe {
            Ground::begin(self.hubs, pipe, connection);
        }
    }

    fn remove(&mut self, pipe: Agreed) {
        match pipe {
            Agreed::Fabric(pipe) => Ground::remove(self.hubs, pipe),
            Agreed::Memory(link) => self.memory.remove(link),
        }
    }

    fn provider(&self, pipe: Agreed) -> &str {
        match pipe {
            Agreed::Fabric(pipe) => Ground::provider(self.hubs, pipe),
            Agreed::Memory(_) => memory::NAME,
        }
    }

    fn remark(&mut self, what: Arguments<'_>) {
        Ground::remark(self.hubs, what);
    }
}
