//! The routing table: from every subnet to every other, and to remote AS's.

use isthmus_wire::{AsId, Locator, SubnetId};

use crate::graph::{Cell, Graph, Rules};
use crate::map::{Remote, RouteMap, Router};
use crate::measured::Measured;
use crate::metric::Metric;

/// A subnet anywhere: its AS, and its id there.
pub type Destination = (AsId, SubnetId);

/// The routing table of a map under a metric.
///
/// The same map, metric and measurements give the same table everywhere: among equally cheap
/// routes the one with fewer hops wins, then the one with the lower subnet id where they part.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) map: RouteMap,
    pub(crate) graph: Graph,
    metric: Metric,
    /// The way from every subnet, for every destination: `cells[to * n + from]`.
    cells: Vec<Cell>,
}

/// A route: ordered subnets, and what they cost together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Subnets from the origin's to the last one in this AS. Empty if both ends are on one
    /// subnet, which needs no routing.
    pub path: Vec<SubnetId>,
    /// The sum over `path`, in the metric's units.
    pub cost: u64,
}

/// The next hop of data on a subnet, for a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The receivers of this hop.
    pub step: Step,
    /// The route from here, as chosen among equally good ones.
    pub route: Route,
}

/// The receivers of one hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The destination's endpoint itself: it is on this subnet.
    Direct,
    /// Any one of these routers of this AS: all lead on at the least cost. The first lead
    /// along [`NextHop::route`]. Not empty.
    Routers(Vec<NextRouter>),
    /// Any one of the remote AS's routers on this WAN subnet. Empty if the map does not have
    /// their endpoints.
    Gateways(Vec<Locator>),
}

/// A router to hand data to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextRouter {
    /// Its name.
    pub name: String,
    /// Its endpoint on the subnet where the data is, if the map has it.
    pub endpoint: Option<Locator>,
    /// The subnet on which it passes the data on.
    pub subnet: SubnetId,
}

/// Why there is no route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// The origin, or the destination in this AS, is not in the map.
    #[error("AS {} has no subnet {}; is the map the one of this AS, and up to date?", .0.0, .1.0)]
    UnknownSubnet(AsId, SubnetId),
    /// The destination's AS is not in the map.
    #[error("the map tells no way to AS {}; add [[remote]] with id = {}", .0.0, .0.0)]
    UnknownAs(AsId),
    /// Both ends are on ways out.
    #[error("subnets {} and {} both lead out, and an AS forwards nothing between other AS's", .0.0, .1.0)]
    Through(SubnetId, SubnetId),
    /// No route connects them that the rules allow and whose links and routers are up.
    #[error("no route leads from subnet {} to {to}; is a router missing, or down, or transit refused?", .from.0)]
    Unreachable {
        /// The origin.
        from: SubnetId,
        /// The destination, as text.
        to: String,
    },
}

impl Table {
    /// Computes the whole table. Subnets that were measured to lose everything, and routers
    /// that are down, carry no route. The time is proportional to the number of subnets times the
    /// number of pairs of a router and a subnet that it joins. The table has 16 bytes for every pair of subnets.
    pub fn compute(map: &RouteMap, metric: Metric, measured: Option<&Measured>) -> Self {
        let graph = Graph::new(map, metric, measured);
        let cells = (0..graph.len()).flat_map(|to| graph.ways_to(to, Rules::Kept)).collect();
        Self { map: map.clone(), graph, metric, cells }
    }

    /// The map it was computed from.
    pub fn map(&self) -> &RouteMap {
        &self.map
    }

    /// The metric of its costs.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// The entry for two subnets of the map, ways out included.
    pub fn route(&self, from: SubnetId, to: SubnetId) -> Result<Route, NoRoute> {
        let (from, to) = (self.index(from)?, self.index(to)?);
        self.route_between(from, to)
    }

    /// The next hop of data that is on the subnet `from` and goes to `to`.
    pub fn next_hop(&self, from: SubnetId, to: Destination) -> Result<NextHop, NoRoute> {
        let from = self.index(from)?;
        if to.0 == self.map.as_id {
            let to = self.index(to.1)?;
            let route = self.route_between(from, to)?;
            let step = if from == to { Step::Direct } else { self.step_along(from, &[to], &route) };
            return Ok(NextHop { step, route });
        }
        let remote = self.map.remote(to.0).ok_or(NoRoute::UnknownAs(to.0))?;
        self.next_hop_out(from, remote)
    }

    fn next_hop_out(&self, from: usize, remote: &Remote) -> Result<NextHop, NoRoute> {
        let here = self.map.subnets[from].id;
        // The data is already on a way out to that AS, whose routers do the rest.
        if let Some(way) = remote.ways_out.iter().find(|way| way.subnet == here) {
            let unreachable = || NoRoute::Unreachable { from: here, to: remote.name.clone() };
            let cost = self.graph.cost(from).ok_or_else(unreachable)?;
            let route = Route { path: vec![here], cost };
            return Ok(NextHop { step: Step::Gateways(way.gateways.clone()), route });
        }
        let exits: Vec<usize> = remote.ways_out.iter().filter_map(|way| self.map.index(way.subnet)).collect();
        let least = exits.iter().map(|exit| self.cell(from, *exit).cost).min();
        let best: Vec<usize> =
            exits.into_iter().filter(|exit| Some(self.cell(from, *exit).cost) == least).collect();
        // Among equally cheap ways out, fewer hops win, then lower ids.
        let routes = best.iter().filter_map(|exit| self.route_between(from, *exit).ok());
        let route = routes.min_by(|a, b| (a.path.len(), &a.path).cmp(&(b.path.len(), &b.path)));
        match route {
            Some(route) => Ok(NextHop { step: self.step_along(from, &best, &route), route }),
            None if self.map.subnets[from].role.leads_out() => {
                Err(NoRoute::Through(here, remote.ways_out[0].subnet))
            }
            None => Err(NoRoute::Unreachable { from: here, to: remote.name.clone() }),
        }
    }

    /// All routers on `from` that lead to one of `targets` at the least cost. Costs only
    /// fall on the way, so data handed to any of them never comes back.
    fn step_along(&self, from: usize, targets: &[usize], route: &Route) -> Step {
        let rest = self.graph.cost(from).map_or(0, |own| route.cost - own);
        let leads_on = |next: usize| {
            let arrives = |to: &usize| next == *to || self.graph.carries(next);
            next != from && targets.iter().any(|to| arrives(to) && self.cell(next, *to).cost == rest)
        };
        let mut routers = Vec::new();
        for router in self.graph.routers_on(from) {
            let ways = self.graph.joined_by(router).filter(|next| leads_on(*next)).map(|next| self.id(next));
            // Follows the route if this router can, or else takes the lowest id.
            if let Some(subnet) = ways.min_by_key(|next| (!route.path.contains(next), *next)) {
                let router: &Router = &self.map.routers[router];
                let endpoint = router.endpoint(self.id(from));
                routers.push(NextRouter { name: router.name.clone(), endpoint, subnet });
            }
        }
        routers.sort_by_key(|router| (!route.path.contains(&router.subnet), router.subnet));
        Step::Routers(routers)
    }

    pub(crate) fn index(&self, id: SubnetId) -> Result<usize, NoRoute> {
        self.map.index(id).ok_or(NoRoute::UnknownSubnet(self.map.as_id, id))
    }

    pub(crate) fn cell(&self, from: usize, to: usize) -> &Cell {
        &self.cells[to * self.graph.len() + from]
    }

    fn id(&self, subnet: usize) -> SubnetId {
        self.map.subnets[subnet].id
    }

    fn route_between(&self, from: usize, to: usize) -> Result<Route, NoRoute> {
        if from == to {
            return Ok(Route { path: Vec::new(), cost: 0 });
        }
        if self.graph.passes_through(from, to) {
            return Err(NoRoute::Through(self.id(from), self.id(to)));
        }
        let cell = self.cell(from, to);
        if !cell.is_way() {
            let to = format!("subnet {}", self.id(to).0);
            return Err(NoRoute::Unreachable { from: self.id(from), to });
        }
        let path = std::iter::successors(Some(from), |at| self.cell(*at, to).next());
        Ok(Route { path: path.map(|subnet| self.id(subnet)).collect(), cost: cell.cost })
    }
}
