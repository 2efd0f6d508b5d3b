//! The route map: an AS's subnets, its routers, and its ways out.

use std::fmt;

use isthmus_units::{Rate, Span};
use isthmus_wire::{AsId, Locator, SubnetId};

use crate::fault::Faults;

/// Most subnets of a map. Count; the table has an entry of 16 bytes for every pair.
pub const SUBNETS_MAX: usize = 4096;

/// The checked route map of one AS: every id and name in it refers to something in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMap {
    pub(crate) as_id: AsId,
    pub(crate) name: String,
    pub(crate) subnets: Vec<Subnet>,
    pub(crate) routers: Vec<Router>,
    pub(crate) remotes: Vec<Remote>,
}

/// A subnet, within the AS or between AS's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Unique within its AS. Not 0.
    pub id: SubnetId,
    /// Unique among the map's subnets and remote AS's.
    pub name: String,
    /// Link rate of its devices. Bits per second.
    pub rate: Rate,
    /// One-way latency between two of its devices. Nanoseconds, one hour at most.
    pub latency: Span,
    /// The capabilities of its transport.
    pub capabilities: Capabilities,
    /// Its role in routes.
    pub role: Role,
}

/// The role of a subnet in routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A subnet of this AS that may stand anywhere in a route.
    Transit,
    /// A subnet of this AS that may only be the first or the last of a route.
    Edge,
    /// A wide-area network shared with other AS's: the first or last subnet of a route. An
    /// AS forwards nothing from one of its ways out to another.
    Wan,
    /// A wide-area link that serves this AS and one remote AS, otherwise like [`Role::Wan`].
    Private,
}

impl Role {
    /// Whether it leads out of the AS.
    pub fn leads_out(self) -> bool {
        matches!(self, Self::Wan | Self::Private)
    }
}

/// The capabilities of a subnet's transport. Default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Data goes from user memory to the wire without a copy.
    pub zero_copy: bool,
    /// Data goes past the operating system.
    pub os_bypass: bool,
    /// Remote memory access is native.
    pub rma: bool,
}

impl Capabilities {
    /// Their names in a map, in order.
    pub(crate) const NAMES: [&'static str; 3] = ["zero-copy", "os-bypass", "rma"];

    pub(crate) fn set(&mut self, name: &str) -> bool {
        match name {
            "zero-copy" => self.zero_copy = true,
            "os-bypass" => self.os_bypass = true,
            "rma" => self.rma = true,
            _ => return false,
        }
        true
    }

    /// The number of capabilities that it has. 0..=3.
    pub fn count(self) -> u32 {
        u32::from(self.zero_copy) + u32::from(self.os_bypass) + u32::from(self.rma)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = [self.zero_copy, self.os_bypass, self.rma];
        let names = Self::NAMES.iter().zip(has).filter_map(|(name, has)| has.then_some(*name));
        let names: Vec<_> = names.collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(" "))
    }
}

/// A router: it joins two or more subnets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    /// Unique among the map's routers.
    pub name: String,
    /// Its place on each of its subnets, in the order of the map's text.
    pub joins: Vec<Joint>,
}

/// A router's place on a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joint {
    /// The subnet.
    pub subnet: SubnetId,
    /// Its endpoint there, if the map has it.
    pub endpoint: Option<Locator>,
}

impl Router {
    /// Its endpoint on `subnet`, if the map has it.
    pub fn endpoint(&self, subnet: SubnetId) -> Option<Locator> {
        self.joins.iter().find(|joint| joint.subnet == subnet)?.endpoint
    }
}

/// A remote AS. The map does not describe its inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its id: neither 0 nor this AS's own id.
    pub id: AsId,
    /// Unique among the map's subnets and remote AS's. Default: `AS` and the id.
    pub name: String,
    /// The WAN subnets that lead to it, at least one.
    pub ways_out: Vec<WayOut>,
}

/// A WAN subnet that leads to a remote AS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayOut {
    /// The WAN subnet.
    pub subnet: SubnetId,
    /// Endpoints of the remote AS's routers there, if the map has them.
    pub gateways: Vec<Locator>,
}

impl RouteMap {
    /// Reads and checks `text`; `file_name` stands for the file in faults.
    ///
    /// Fails with every fault of the text, not only the first.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Faults> {
        crate::read::map(text, file_name)
    }

    /// Id of the AS.
    pub fn as_id(&self) -> AsId {
        self.as_id
    }

    /// Name of the AS. Default: `AS` and the id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All subnets, those that lead out included, by ascending id.
    pub fn subnets(&self) -> &[Subnet] {
        &self.subnets
    }

    /// All routers, in the order of the map's text.
    pub fn routers(&self) -> &[Router] {
        &self.routers
    }

    /// All remote AS's, by ascending id.
    pub fn remotes(&self) -> &[Remote] {
        &self.remotes
    }

    /// The subnet with this id.
    pub fn subnet(&self, id: SubnetId) -> Option<&Subnet> {
        self.index(id).map(|index| &self.subnets[index])
    }

    /// The subnet with this name.
    pub fn subnet_named(&self, name: &str) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.name == name)
    }

    /// The remote AS with this id.
    pub fn remote(&self, id: AsId) -> Option<&Remote> {
        self.remotes.iter().find(|remote| remote.id == id)
    }

    /// Position in [`RouteMap::subnets`].
    pub(crate) fn index(&self, id: SubnetId) -> Option<usize> {
        self.subnets.binary_search_by_key(&id, |subnet| subnet.id).ok()
    }
}
