//! The local fabrics that a TCP lane may move to: shared memory, or one of the site's fabrics.

use std::fmt::Arguments;
use std::os::fd::OwnedFd;

use isthmus_fabric::{FabricError, Fabrics, Hubs, OfferedEndpoint, Pipe, Taken};

use super::memory::Memory;
use crate::settings::MEMORY;

/// The agreement of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreed {
    Fabric(Pipe),
    /// Index of a link in [`Memory`].
    Memory(usize),
}

/// Offers and takes shared memory and fabrics. Shared memory goes first.
#[derive(Debug)]
pub(super) struct LocalFabrics<'a> {
    pub(super) hubs: &'a mut Hubs,
    pub(super) memory: &'a mut Memory,
}

impl Fabrics for LocalFabrics<'_> {
    type Pipe = Agreed;

    fn host(&mut self) -> u64 {
        Fabrics::host(self.hubs)
    }

    fn endpoints(&mut self, near: bool) -> Vec<OfferedEndpoint> {
        let memory = if near { self.memory.offer() } else { None };
        memory.into_iter().chain(Fabrics::endpoints(self.hubs, near)).collect()
    }

    fn withdraw(&mut self, endpoints: &[OfferedEndpoint]) {
        endpoints
            .iter()
            .filter(|endpoint| endpoint.provider == MEMORY)
            .for_each(|endpoint| self.memory.withdraw(endpoint));
    }

    fn take(&mut self, endpoints: &[OfferedEndpoint], near: bool) -> Option<Taken<Agreed>> {
        let offered =
            endpoints.iter().enumerate().filter(|(_, endpoint)| near && endpoint.provider == MEMORY);
        let taken = offered.into_iter().find_map(|(choice, endpoint)| {
            let pipe = Agreed::Memory(self.memory.take(endpoint)?);
            Some(Taken { choice, pipe, lane: 0, name: Vec::new() })
        });
        taken.or_else(|| {
            let Taken { choice, pipe, lane, name } = Fabrics::take(self.hubs, endpoints, near)?;
            Some(Taken { choice, pipe: Agreed::Fabric(pipe), lane, name })
        })
    }

    fn join(&mut self, endpoint: &OfferedEndpoint, name: &[u8]) -> Result<Agreed, FabricError> {
        if endpoint.provider != MEMORY {
            return Fabrics::join(self.hubs, endpoint, name).map(Agreed::Fabric);
        }
        let why = || "the other end has not taken it".to_owned();
        let failed = || FabricError::Call { what: "shared memory", why: why() };
        self.memory.join(endpoint).map(Agreed::Memory).ok_or_else(failed)
    }

    fn probe(&mut self, pipe: Agreed, theirs: u64) {
        if let Agreed::Fabric(pipe) = pipe {
            Fabrics::probe(self.hubs, pipe, theirs);
        }
    }

    fn is_proved(&mut self, pipe: Agreed) -> bool {
        match pipe {
            Agreed::Fabric(pipe) => Fabrics::is_proved(self.hubs, pipe),
            // A process that found the memory has proved that it is on this host.
            Agreed::Memory(_) => true,
        }
    }

    fn set_key(&mut self, pipe: Agreed, key: u64) {
        if let Agreed::Fabric(pipe) = pipe {
            Fabrics::set_key(self.hubs, pipe, key);
        }
    }

    fn begin(&mut self, pipe: Agreed, connection: OwnedFd) {
        if let Agreed::Fabric(pipe) = pipe {
            Fabrics::begin(self.hubs, pipe, connection);
        }
    }

    fn remove(&mut self, pipe: Agreed) {
        match pipe {
            Agreed::Fabric(pipe) => Fabrics::remove(self.hubs, pipe),
            Agreed::Memory(link) => self.memory.remove(link),
        }
    }

    fn provider(&self, pipe: Agreed) -> &str {
        match pipe {
            Agreed::Fabric(pipe) => Fabrics::provider(self.hubs, pipe),
            Agreed::Memory(_) => MEMORY,
        }
    }

    fn remark(&mut self, what: Arguments<'_>) {
        Fabrics::remark(self.hubs, what);
    }
}
