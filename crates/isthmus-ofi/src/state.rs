//! What all objects of a fabric, or of a domain, have in common. They keep it, and so keep the fabric or domain open.

use std::sync::Arc;

use isthmus_io::{RegionTable, Settings};

use crate::access::Observers;
use crate::flags::FI_FORMAT_UNSPEC;
use crate::trigger::Board;

/// The fabric's state, which lives as long as any of its objects.
#[derive(Debug)]
pub(crate) struct FabricState {
    /// The libfabric interface that the program was built for.
    pub(crate) api_version: u32,
}

/// The domain's state, which lives as long as any object of the domain.
#[derive(Debug)]
pub(crate) struct DomainState {
    pub(crate) fabric: Arc<FabricState>,
    pub(crate) settings: Settings,
    pub(crate) regions: Arc<RegionTable>,
    /// Counters of accesses to single regions.
    pub(crate) observers: Arc<Observers>,
    /// Operations that wait for counters.
    pub(crate) board: Arc<Board>,
    /// Format of addresses: ours (`FI_FORMAT_UNSPEC`), or socket addresses.
    pub(crate) addr_format: u32,
    /// Peers name bytes by virtual address (`FI_MR_VIRT_ADDR`), else by offset.
    pub(crate) virtual_addressing: bool,
    /// Keys are ours to choose (`FI_MR_PROV_KEY`).
    pub(crate) provider_keys: bool,
}

impl DomainState {
    /// Whether addresses are socket addresses.
    pub(crate) fn socket_addresses(&self) -> bool {
        self.addr_format != FI_FORMAT_UNSPEC
    }
}
